"""Assigns parameters to groups, by patterns of their names and by whether they are decayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from parity.training.spec import Group

DECAY = "weight_decay"


@dataclass(frozen=True)
class PatternGroup:
    """The parameters whose names match any of `patterns`, and the optimizer's options for them."""

    patterns: tuple[str, ...]
    options: Mapping[str, Any]


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that a glob matches entirely, case-sensitively."""
    return tuple(name for name in names if fnmatchcase(name, pattern))


def grouped(
    names: Sequence[str], options: Mapping[str, Any], groups: Sequence[PatternGroup], excludes: Sequence[str]
) -> tuple[Group, ...]:
    """Puts every parameter into one group, in the order of `names`; those that match no pattern are the first group.

    A group with parameters that match `excludes`, which are not decayed, becomes two groups.
    """
    claimed = [frozenset(n for pattern in group.patterns for n in matching(pattern, names)) for group in groups]
    excluded = {name for pattern in excludes for name in matching(pattern, names)}
    rest = frozenset(names).difference(*claimed)
    split = []
    for own, values in [(rest, options), *((c, g.options) for c, g in zip(claimed, groups, strict=True))]:
        kept = tuple(name for name in names if name in own and name not in excluded)
        bare = tuple(name for name in names if name in own and name in excluded)
        split += [Group(kept, dict(values)), Group(bare, {**values, DECAY: 0.0})]
    return tuple(group for group in split if group.parameters)
