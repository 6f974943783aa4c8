"""Parameters to groups: by patterns of their names, with weight decay or without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from parity.training.spec import Group

DECAY = "weight_decay"


@dataclass(frozen=True)
class PatternGroup:
    """The parameters whose names match one of `patterns`, and all of the optimizer's options for them."""

    patterns: tuple[str, ...]
    options: Mapping[str, Any]


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that a glob matches as a whole; upper and lower case differ."""
    return tuple(name for name in names if fnmatchcase(name, pattern))


def members(group: PatternGroup, names: Iterable[str]) -> frozenset[str]:
    """The names that one of a group's patterns matches."""
    known = tuple(names)
    return frozenset(name for pattern in group.patterns for name in matching(pattern, known))


def grouped(
    names: Sequence[str], options: Mapping[str, Any], groups: Sequence[PatternGroup], excludes: Sequence[str]
) -> tuple[Group, ...]:
    """Every parameter in exactly one group, those that no pattern names first, in the order of `names`.

    A parameter that `excludes` names stays in its group's place but is not decayed: such a group becomes two.
    """
    claimed = [members(group, names) for group in groups]
    excluded = {name for pattern in excludes for name in matching(pattern, names)}
    rest = frozenset(names).difference(*claimed)
    split = []
    for own, values in [(rest, options), *((c, g.options) for c, g in zip(claimed, groups, strict=True))]:
        kept = tuple(name for name in names if name in own and name not in excluded)
        bare = tuple(name for name in names if name in own and name in excluded)
        split += [Group(kept, dict(values)), Group(bare, {**values, DECAY: 0.0})]
    return tuple(group for group in split if group.parameters)
