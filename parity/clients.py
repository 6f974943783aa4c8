"""What runs the cases that are not ops, by kind. Other packages reach the clients only through this table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from parity.config.plan import CasePlan, Plan
from parity.judge.audit import CaseAudit
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failures, of_failed_case
from parity.outcome import CellOutcome

CLIENTS: Mapping[str, str] = {
    "train": "parity.training.run:CLIENT",
    "model": "parity.models.run:CLIENT",
    "decode": "parity.models.decode.run:CLIENT",
}
"""The `Client` of each kind that is not an op, as `module:name`; imported when it is first needed."""


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
    """Runs the cases of a kind: `run(plan, options, run_dir, observe, rows, done)` runs those of a plan.

    `replaceable(case)` lists the functions that a user's file may define for such a case. `audit(case, plan)` measures
    which mistakes its data reveal.
    """

    run: Callable[..., Iterator[JudgedCase]]
    replaceable: Callable[[CasePlan], Sequence[str]]
    audit: Callable[[CasePlan, Plan], CaseAudit]


def or_failed(
    results: Iterator[JudgedCase],
    plan: Plan,
    case: CasePlan,
    left: Sequence[str],
    passing: tuple[type[Exception], ...] = (),
) -> Iterator[JudgedCase]:
    """The results of a case; where parity itself fails, other than by errors that are `passing`, the dtypes that are
    `left` then are not compared."""
    failures = Failures()
    with failures.contained("running the case", passing=passing):
        yield from results
    for dtype in left if failures else ():
        yield failed(plan.of(case), case, dtype, failures)


def failed(plan: Plan, case: CasePlan, dtype: str, failures: Failures) -> JudgedCase:
    """A case at which parity itself has failed: without outcomes, so that a resumed run runs it again."""
    names = [spec.name for spec in plan.backends if case.runs_on(spec.name)]
    return JudgedCase(case, dtype, (), *of_failed_case(case, dtype, names, failures), (), 0.0)


def client_of(kind: str) -> Client:
    """The client that runs the cases of a kind; raises KeyError for an op."""
    client: Client = resolve_name(CLIENTS[kind])
    return client
