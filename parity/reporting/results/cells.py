"""The cells of a run as every format shows them: a case in one dtype on one backend, with its status and differences.

A failing comparison belongs to the backends that exceed the error bound in it, else to the backend under test. So every
difference is reported once, at its origin, and all formats have the same counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from parity import exit_codes
from parity.engine.inputs import slug
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import Outcome
from parity.reporting.results.measures import measures_of
from parity.reporting.results.rows import NOT_COMPARED, REFERENCED, SEVERITY, CaseRow, OutcomeRow, Results, TrainingRow
from parity.reporting.text.words import grouped, plural, unique


class Status(StrEnum):
    """The status of a cell, the most urgent first."""

    FAILED = "failed"
    """It differs at the failing level and is not accepted."""
    ERROR = "error"
    """It has no result: an error, a crash, a timeout, or an unavailable backend."""
    NOT_RUN = "not-run"
    """The run was interrupted before it was compared."""
    UNSUPPORTED = "unsupported"
    """The framework does not support it."""
    KNOWN = "known"
    """A known deviation accepts that it differs or is not supported."""
    BELOW = "below"
    """It differs, but below the failing level; or it differs or has no result, and the run does not judge it."""
    SUSPECT = "suspect"
    """It passes, but the tolerance hides an error, or zeros would also pass."""
    PASSED = "passed"
    """It agrees."""


LABELS: Mapping[Status, str] = {
    Status.FAILED: "failed",
    Status.ERROR: "no result",
    Status.NOT_RUN: "not run",
    Status.UNSUPPORTED: "unsupported",
    Status.KNOWN: "known",
    Status.BELOW: "warning",
    Status.SUSPECT: "suspect",
    Status.PASSED: "passed",
}
"""The status in words."""


@dataclass(frozen=True)
class CellResult:
    """A case in one dtype on one backend.

    `rows` are its comparisons, the worst first. `outcome` is None if the run was interrupted before it. `training`
    is the row of `trainings` that has its steps. `anchor` names the cell in links; it is unique in a run and made of
    ASCII letters, digits and `._=+-`.
    """

    case: CaseRow
    dtype: str
    backend: str
    status: Status
    rows: tuple[Comparison, ...]
    diagnoses: tuple[Diagnosis, ...]
    ended: OutcomeRow | None
    anchor: str
    training: TrainingRow | None = None

    @property
    def id(self) -> str:
        """The case's id."""
        return self.case.id

    @property
    def op(self) -> str:
        """The case's op."""
        return self.case.op

    @property
    def outcome(self) -> str:
        """Its outcome; empty if the run was interrupted before it."""
        return "" if self.ended is None else self.ended.outcome

    @property
    def message(self) -> str:
        """The backend's message."""
        return "" if self.ended is None else self.ended.message

    @property
    def composed(self) -> bool:
        """Whether it is parity's own composition of the framework's calls, so a finding is not the framework's."""
        return self.ended is not None and self.ended.composed

    @property
    def compared_rows(self) -> tuple[Comparison, ...]:
        """The comparisons that could be made."""
        return tuple(row for row in self.rows if row.compared)

    @property
    def verdict(self) -> str:
        """The worst verdict."""
        return next((row.verdict for row in self.rows if row.compared), NOT_COMPARED)

    @property
    def compared(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict != NOT_COMPARED

    @cached_property
    def excess(self) -> float:
        """The worst element's difference in units of its tolerance."""
        return max(map(measures_of(self.op).excess, self.compared_rows), default=0.0)

    @cached_property
    def ratio(self) -> float | None:
        """The largest error ratio of this backend, None if not measured."""
        ratios = (ratio_of(row, self.backend) for row in self.compared_rows)
        return max((ratio for ratio in ratios if ratio is not None), default=None)

    @property
    def failing(self) -> tuple[Comparison, ...]:
        """The comparisons that differ, accepted or not."""
        return tuple(row for row in self.rows if row.fails)

    @property
    def hidden(self) -> tuple[Comparison, ...]:
        """The passes in which the tolerance hides that this backend exceeds its error bound."""
        return tuple(row for row in self.rows if row.suspect and self.backend in row.culprit)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that differ or pass only because the tolerance is loose, the worst first."""
        return tuple(dict.fromkeys(row.tensor for row in (*self.failing, *self.hidden)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why its differences are accepted."""
        return tuple(dict.fromkeys(row.known for row in self.rows if row.known is not None))

    @property
    def causes(self) -> tuple[str, ...]:
        """The ids of the diagnoses of this backend."""
        return tuple(dict.fromkeys(row.id for row in self.diagnoses))

    @property
    def counts(self) -> bool:
        """Whether the run judges it."""
        return not self.rows or any(row.counts for row in self.rows)

    @property
    def finding(self) -> bool:
        """Whether it has something to show: a difference, accepted or not, or an error that the tolerance hides."""
        return bool(self.failing or self.hidden)


def cells(results: Results) -> list[CellResult]:
    """All cells of the plan, the most urgent and worst first."""
    owned = ((owner, row) for row in results.comparisons for owner in row.owners)
    compared = grouped(((row.case, row.dtype, owner), row) for owner, row in owned)
    diagnosed = grouped(((cause.case, cause.dtype, cause.backend), cause) for cause in results.diagnoses)
    outcomes = {row.key: row for row in results.outcomes}
    trainings = {row.key: row for row in results.trainings}
    level, anchors, made = failing_level(results), set[str](), []
    names = results.backend_names
    asked = {(c.id, dtype, name): c for c in results.cases for dtype in c.dtypes for name in c.backends or names}
    for key, case in asked.items():
        rows = sorted(compared.get(key, ()), key=lambda row: severity(row, case.op), reverse=True)
        cell = CellResult(
            case=case,
            dtype=key[1],
            backend=key[2],
            status=status_of(rows, outcomes.get(key), level, reference=is_reference(case, key[2], results)),
            rows=tuple(rows),
            diagnoses=tuple(diagnosed.get(key, ())),
            ended=outcomes.get(key),
            anchor=unique(f"{slug(key[0])}.{key[1]}.{slug(key[2])}", anchors),
            training=trainings.get(key),
        )
        made.append(cell)
    return sorted(made, key=urgency)


def failing_level(results: Results) -> frozenset[str]:
    """The verdicts that fail the run, by default those of the default level."""
    level = results.run.fail_on
    return exit_codes.FAILING[level if level in exit_codes.FAIL_ON else exit_codes.DEFAULT_FAIL_ON]


def is_reference(case: CaseRow, backend: str, results: Results) -> bool:
    """Whether a backend is the baseline of others and is not compared itself."""
    return case.op in REFERENCED and backend == (case.baseline or results.run.baseline)


def status_of(
    rows: Sequence[Comparison], outcome: OutcomeRow | None, level: frozenset[str], *, reference: bool = False
) -> Status:
    """The status of a cell, from its comparisons and its outcome; a `reference` needs no comparison."""
    failing = [row for row in rows if row.fails]
    if any(row.verdict in level and row.known is None and row.counts for row in failing):
        return Status.FAILED
    if outcome is None:
        return Status.NOT_RUN
    if outcome.outcome == Outcome.UNSUPPORTED.value:
        return Status.KNOWN if rows and all(row.known is not None for row in rows) else Status.UNSUPPORTED
    if outcome.outcome != Outcome.OK.value:
        return Status.BELOW if rows and not any(row.counts for row in rows) else Status.ERROR
    made = [row for row in rows if row.compared]
    if not made:
        return Status.PASSED if reference else Status.NOT_RUN
    if any(row.known is not None for row in made):
        return Status.KNOWN
    if failing:
        return Status.BELOW
    return Status.SUSPECT if any(row.suspect for row in rows) else Status.PASSED


def ratio_of(row: Comparison, backend: str) -> float | None:
    """The error ratio of one backend of a comparison."""
    ratios = (ratio for name, ratio in row.backend_ratios if name == backend)
    return next((ratio for ratio in ratios if ratio is not None and not math.isnan(ratio)), None)


def severity(row: Comparison, op: str) -> tuple[float, float]:
    """Orders comparisons by verdict, then by the worst element's difference in tolerances."""
    return SEVERITY[row.verdict] if row.compared else -1.0, measures_of(op).excess(row)


def urgency(cell: CellResult) -> tuple[float, ...]:
    """Orders cells: by status, then by verdict, then by the size of the error."""
    return list(Status).index(cell.status), -SEVERITY[cell.verdict], -(cell.ratio or 0.0), -cell.excess


def counts(shown: Iterable[CellResult]) -> dict[str, int]:
    """Number of cells per status, the most urgent first, without zeros."""
    numbers = Counter(cell.status for cell in shown)
    return {status.value: numbers[status] for status in Status if numbers[status]}


TENSOR_LABELS: Mapping[Status, str] = {
    Status.FAILED: "fail",
    Status.ERROR: "lack a result",
    Status.KNOWN: "known",
    Status.BELOW: "warn",
    Status.SUSPECT: "suspect",
    Status.PASSED: "agree",
}
"""The status of a tensor in words, the most urgent first."""


def tensor_status(rows: Sequence[Comparison], level: frozenset[str]) -> Status:
    """The status of a tensor, from all of its comparisons that count."""
    judged = [row for row in rows if row.counts]
    if not judged:
        return status_of_others(rows)
    made = [row for row in judged if row.compared]
    if any(row.verdict in level and row.known is None for row in made):
        return Status.FAILED
    if any(not row.compared and row.known is None for row in judged):
        return Status.ERROR
    if not made or any(row.known is not None for row in made):
        return Status.KNOWN
    if any(row.fails for row in made):
        return Status.BELOW
    return Status.SUSPECT if any(row.suspect for row in made) else Status.PASSED


def status_of_others(rows: Sequence[Comparison]) -> Status:
    """The status of a tensor of which nothing is judged."""
    if any(row.known is not None for row in rows):
        return Status.KNOWN
    return Status.BELOW if any(row.fails or not row.compared for row in rows) else Status.PASSED


def tensor_statuses(results: Results) -> dict[tuple[str, str, str], Status]:
    """The status of each tensor; a tensor is one of a case in one dtype."""
    level = failing_level(results)
    tensors = grouped((row.tensor_key, row) for row in results.comparisons)
    return {key: tensor_status(rows, level) for key, rows in tensors.items()}


def tally(results: Results) -> dict[Status, int]:
    """How many tensors have each status, the most urgent first."""
    numbers = results.summary.tensors if results.left_out else Counter(tensor_statuses(results).values())
    return {status: numbers[status] for status in TENSOR_LABELS if numbers.get(status)}


def tally_text(results: Results) -> str:
    """`148 tensors: 8 fail, 8 warn, 132 agree`."""
    numbers = tally(results)
    parts = [f"{n} {TENSOR_LABELS[status]}" for status, n in numbers.items()]
    return f"{plural(sum(numbers.values()), 'tensor')}: {', '.join(parts)}" if numbers else "no tensors"
