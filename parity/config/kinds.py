"""The kinds of cases that are no cases of an op: each is built by a room of its own, looked up where one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.config.cases import BuiltCase, Scope
    from parity.config.nodes import Node, Problems
    from parity.config.plan import BackendSpec

KIND = "kind"
"""The key by which a case says that it is of one of these kinds."""

OP = "op"
"""The kind of all other cases."""

KINDS: Mapping[str, str] = {"train": "parity.training.config.case:TRAININGS"}


@dataclass(frozen=True)
class CaseKind:
    """A kind of cases.

    `model` is what an entry of `cases` may hold, `build(node, scope)` makes the cases that it stands for;
    `shortened(built, steps)` is a case with its first steps only. `check(built, baseline, backends, report)` reports
    what these backends cannot run, or not against this baseline.
    """

    model: Any
    build: Callable[[Node, Scope], Iterator[BuiltCase]]
    shortened: Callable[[BuiltCase, int], BuiltCase]
    check: Callable[[BuiltCase, str, tuple[BackendSpec, ...], Problems], None]


def case_kind(name: str) -> CaseKind:
    """The kind of cases that has this name."""
    module, _, attribute = KINDS[name].partition(":")
    kind: CaseKind = getattr(import_module(module), attribute)
    return kind
