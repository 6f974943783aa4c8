"""Who runs the cases that are no ops, by kind. The rest of the house calls them through this table alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from parity.config.plan import CasePlan
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome

CLIENTS: Mapping[str, str] = {"train": "parity.training.run:CLIENT", "model": "parity.models.run:CLIENT"}
"""A `Client` for each kind that is no op, as module:name; it is imported when it is first called."""


@dataclass(frozen=True)
class JudgedCase:
    """A case in one dtype, run and judged by its client; `rows` are the client's own for results.json."""

    case: CasePlan
    dtype: str
    outcomes: Sequence[CellOutcome]
    comparisons: Sequence[Comparison]
    diagnoses: Sequence[Diagnosis]
    rows: Sequence[Any]
    judge_seconds: float


@dataclass(frozen=True)
class Client:
    """What runs the cases of a kind: `run(plan, options, run_dir, observe, rows, done)` runs those of a plan.

    `replaceable(case)` are the functions that a user's file may have for such a case.
    """

    run: Callable[..., Iterator[JudgedCase]]
    replaceable: Callable[[CasePlan], Sequence[str]]


def client_of(kind: str) -> Client:
    """The client that runs the cases of a kind; raises KeyError for an op."""
    module, _, name = CLIENTS[kind].partition(":")
    client: Client = getattr(import_module(module), name)
    return client
