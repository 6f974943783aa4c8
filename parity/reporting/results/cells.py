"""The cells of a run, which every format shows: a case in one dtype on one backend, with its status and what is off.

A failing comparison belongs to the sides that are off in it, else to the side under test; so every difference is told
once, where it comes from, and the counts of all formats are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from parity import gate
from parity.engine.inputs import slug
from parity.judge.compare.verdict import Verdict
from parity.outcome import Outcome
from parity.reporting.results.record import excess
from parity.reporting.results.results import Results, Row
from parity.reporting.text.reasons import SEVERITY

NOT_COMPARED = Verdict.NOT_COMPARED.value


class Status(StrEnum):
    """What a reviewer has to know about a cell, the most urgent first."""

    FAILED = "failed"
    """It differs at the level that fails the run, and nobody accepted that."""
    ERROR = "error"
    """It gave no result: an error, a crash, a timeout, a backend that is not available."""
    NOT_RUN = "not-run"
    """The run was interrupted before it was compared."""
    UNSUPPORTED = "unsupported"
    """The framework cannot do it."""
    KNOWN = "known"
    """It differs, or the framework cannot do it, and the ledger accepts that."""
    BELOW = "below"
    """It differs, below the level that fails the run."""
    SUSPECT = "suspect"
    """It passes, but the tolerance hides an error, or zeros would have passed too."""
    PASSED = "passed"
    """It agrees."""


LABELS: Mapping[Status, str] = {
    Status.FAILED: "failed",
    Status.ERROR: "no result",
    Status.NOT_RUN: "not run",
    Status.UNSUPPORTED: "unsupported",
    Status.KNOWN: "known",
    Status.BELOW: "below the level that fails",
    Status.SUSPECT: "suspect pass",
    Status.PASSED: "passed",
}
"""The status in words."""


@dataclass(frozen=True)
class Cell:
    """A case in one dtype on one backend.

    `rows` are its comparisons, the worst first. `verdict` is the worst of them, `excess` by how many tolerances the
    worst element is off, `ratio` the largest error ratio of this backend (None where it was not measured).
    `training` is the row of `trainings` that tells its steps.
    `anchor` names the cell in links; it is unique in a run and made of ASCII letters, digits and `._=+-`.
    """

    case: Row
    dtype: str
    backend: str
    status: Status
    verdict: str
    rows: tuple[Row, ...]
    diagnoses: tuple[Row, ...]
    outcome: str
    message: str
    anchor: str
    excess: float = 0.0
    ratio: float | None = None
    training: Row | None = None

    @property
    def id(self) -> str:
        """The case's id."""
        return str(self.case["id"])

    @property
    def op(self) -> str:
        """The case's op."""
        return str(self.case["op"])

    @property
    def failing(self) -> tuple[Row, ...]:
        """The comparisons that differ, whether accepted or not."""
        return tuple(row for row in self.rows if Verdict(row["verdict"]).fails)

    @property
    def hidden(self) -> tuple[Row, ...]:
        """The passes whose tolerance hides that this backend is off."""
        return tuple(row for row in self.rows if row["suspect"] and self.backend in row["culprit"])

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that differ, or that only a tolerance lets pass, the worst first."""
        return tuple(dict.fromkeys(row["tensor"] for row in (*self.failing, *self.hidden)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for which its differences are accepted."""
        return tuple(dict.fromkeys(str(row["known"]) for row in self.rows if row["known"] is not None))

    @property
    def causes(self) -> tuple[str, ...]:
        """The ids of the diagnoses of this backend."""
        return tuple(dict.fromkeys(row["id"] for row in self.diagnoses))

    @property
    def finding(self) -> bool:
        """Whether there is something to show: a difference, accepted or not, or one that a tolerance hides."""
        return bool(self.failing or self.hidden)


def cells(results: Results) -> list[Cell]:
    """All cells that the run was asked for, the most urgent and worst first."""
    owned = by_cell(results.comparisons)
    outcomes = {(row["case"], row["dtype"], row["backend"]): row for row in results.outcomes}
    told: dict[tuple[str, str, str], list[Row]] = {}
    for row in results.diagnoses:
        told.setdefault((row["case"], row["dtype"], row["backend"]), []).append(row)
    trained = {(row["case"], row["dtype"], row["backend"]): row for row in results.trainings}
    level = failing_level(results)
    found = []
    for (key, case), anchor in zip(asked(results).items(), anchors(asked(results)), strict=True):
        rows = sorted(owned.get(key, ()), key=lambda row: severity(row, case["op"]), reverse=True)
        outcome = outcomes.get(key)
        made = cell(key, case, rows, outcome, told.get(key, ()), anchor, level)
        found.append(replace(made, training=trained.get(key)))
    return sorted(found, key=urgency)


def failing_level(results: Results) -> frozenset[str]:
    """The verdicts that fail the run; those of the strictest level where it does not say."""
    asked = results.run.get("fail_on")
    return gate.FAILING[asked if asked in gate.FAIL_ON else gate.FAIL_ON[0]]


def asked(results: Results) -> dict[tuple[str, str, str], Row]:
    """The case of every cell that the run was asked for, in the order of the configs."""
    return {
        (case["id"], str(dtype), backend["name"]): case
        for case in results.cases
        for dtype in case["dtypes"]
        for backend in results.backends
    }


def cell(
    key: tuple[str, str, str],
    case: Row,
    rows: Sequence[Row],
    outcome: Row | None,
    diagnoses: Iterable[Row],
    anchor: str,
    level: frozenset[str],
) -> Cell:
    """One cell; `rows` with the worst first, `level` the verdicts that fail the run."""
    made = [row for row in rows if row["verdict"] != NOT_COMPARED]
    ratios = [ratio for row in made if (ratio := ratio_of(row, key[2])) is not None]
    return Cell(
        case=case,
        dtype=key[1],
        backend=key[2],
        status=status_of(rows, outcome, level),
        verdict=made[0]["verdict"] if made else NOT_COMPARED,
        rows=tuple(rows),
        diagnoses=tuple(diagnoses),
        outcome="" if outcome is None else outcome["outcome"],
        message="" if outcome is None else outcome["message"],
        anchor=anchor,
        excess=max((excess(row, case["op"]) for row in made), default=0.0),
        ratio=max(ratios, default=None),
    )


def status_of(rows: Sequence[Row], outcome: Row | None, level: frozenset[str]) -> Status:
    """What a reviewer has to know, from the comparisons that belong to a cell and its outcome."""
    failing = [row for row in rows if Verdict(row["verdict"]).fails]
    if any(row["verdict"] in level and row["known"] is None for row in failing):
        return Status.FAILED
    if outcome is None:
        return Status.NOT_RUN
    if outcome["outcome"] == Outcome.UNSUPPORTED.value:
        return Status.KNOWN if rows and all(row["known"] is not None for row in rows) else Status.UNSUPPORTED
    if outcome["outcome"] != Outcome.OK.value:
        return Status.ERROR
    made = [row for row in rows if row["verdict"] != NOT_COMPARED]
    if not made:
        return Status.NOT_RUN
    if any(row["known"] is not None for row in made):
        return Status.KNOWN
    if failing:
        return Status.BELOW
    return Status.SUSPECT if any(row["suspect"] for row in rows) else Status.PASSED


def by_cell(comparisons: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """The comparisons by the cells that they belong to."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in comparisons:
        for owner in owners(row):
            found.setdefault((row["case"], row["dtype"], owner), []).append(row)
    return found


def owners(row: Row) -> Sequence[str]:
    """The backends that a comparison is told of: those that are off in it, else the one under test."""
    return [side for side in row["culprit"] if side in (row["actual"], row["expected"])] or [row["actual"]]


def ratio_of(row: Row, backend: str) -> float | None:
    """The error ratio of one side of a comparison."""
    for side in ("actual", "expected"):
        ratio = row["error_ratio"].get(side)
        if row[side] == backend and isinstance(ratio, (int, float)) and not math.isnan(ratio):
            return float(ratio)
    return None


def severity(row: Row, op: str = "") -> tuple[float, float]:
    """Orders comparisons: by verdict, then by how many tolerances the worst element is off."""
    return -1.0 if row["verdict"] == NOT_COMPARED else SEVERITY[row["verdict"]], excess(row, op)


def urgency(found: Cell) -> tuple[float, ...]:
    """Orders cells: by status, then by verdict, then by the size of the error."""
    ratio = found.ratio if found.ratio is not None else 0.0
    return list(Status).index(found.status), -SEVERITY[found.verdict], -ratio, -found.excess


def anchors(keys: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """A name for each cell, for links."""
    seen: Counter[str] = Counter()
    for case, dtype, backend in keys:
        name = f"{slug(case)}.{dtype}.{slug(backend)}"
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}.{seen[name]}"


def counts(found: Iterable[Cell]) -> dict[str, int]:
    """How many cells have each status, the most urgent first; those that no cell has are left out."""
    numbers = Counter(cell.status for cell in found)
    return {status.value: numbers[status] for status in Status if numbers[status]}


def counts_text(numbers: Mapping[str, int]) -> str:
    """`4 failed, 2 known, 58 passed`."""
    return ", ".join(f"{n} {LABELS[Status(status)]}" for status, n in numbers.items())
