"""The kinds of cases that are no cases of an op: each is built by a room of its own, looked up where one is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from parity.config.cases import BuiltCase, Scope
    from parity.config.grammar import ConfigModel
    from parity.config.nodes import Node, Report
    from parity.config.plan import BackendSpec

KIND = "kind"
"""The key by which a case says that it is of one of these kinds."""

OP = "op"
"""The kind of all other cases."""

KINDS: Mapping[str, str] = {"train": "parity.training.config.case:TRAININGS"}


class CaseKind(Protocol):
    """A kind of cases: the model of an entry of `cases`, and what becomes of it."""

    @property
    def model(self) -> type[ConfigModel]:
        """What an entry may hold."""
        ...

    def build(self, node: Node, scope: Scope) -> Iterator[BuiltCase]:
        """The cases that one entry stands for; what is wrong is reported and left out."""
        ...

    def shortened(self, built: BuiltCase, steps: int) -> BuiltCase:
        """The case with its first steps only."""
        ...

    def check(self, built: BuiltCase, baseline: str, backends: tuple[BackendSpec, ...], report: Report) -> None:
        """Reports a case that these backends cannot run, or not against this baseline."""
        ...


def case_kind(name: str) -> CaseKind:
    """The kind of cases that has this name."""
    module, _, attribute = KINDS[name].partition(":")
    kind: CaseKind = getattr(import_module(module), attribute)
    return kind
