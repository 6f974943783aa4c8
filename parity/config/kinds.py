"""The kinds of cases besides cases of an op: each is built by its own package, imported when a config uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.config.cases import BuiltCase, Scope
    from parity.config.nodes import Node, Problems
    from parity.config.plan import BackendSpec

KIND = "kind"
"""The key that names a case's kind."""

OP = "op"
"""The kind of all other cases."""

KINDS: Mapping[str, str] = {
    "train": "parity.training.config.case:TRAININGS",
    "model": "parity.models.config:MODELS",
    "decode": "parity.models.decode.config:DECODINGS",
}


@dataclass(frozen=True)
class CaseKind:
    """A kind of cases.

    `model` describes an entry of `cases`; `build(node, scope)` makes its cases; `shortened(built, steps)` is a case
    with only its first steps; `check(built, baseline, backends, report)` reports what these backends cannot run, or
    cannot compare with this baseline.
    """

    model: Any
    build: Callable[[Node, Scope], Iterator[BuiltCase]]
    shortened: Callable[[BuiltCase, int], BuiltCase]
    check: Callable[[BuiltCase, str, tuple[BackendSpec, ...], Problems], None]


def case_kind(name: str) -> CaseKind:
    """The kind of cases with this name."""
    kind: CaseKind = resolve_name(KINDS[name])
    return kind
