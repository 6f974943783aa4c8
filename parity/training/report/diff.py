"""What became of the partings of trainings between two runs: those that moved, appeared or vanished."""

from __future__ import annotations

from collections.abc import Iterator

from parity.reporting.diff.sides import Key, Side
from parity.reporting.results.results import Row
from parity.training.report.view import place_text

NONE = "no parting"


def parting_notes(a: Side, b: Side) -> Iterator[str]:
    """`perceptron float32 oneflow parts at step 1, update (dampening-first-step) -> no parting`, for each change."""
    before, after = rows(a), rows(b)
    for key, row in before.items():
        old, new = said(row), said(after.get(key, row))
        if old != new:
            yield f"training {' '.join(key)}: {old} -> {new}"


def rows(side: Side) -> dict[Key, Row]:
    """The trainings of a run that are compared, by case, dtype and the backend's name in the second run."""
    found = ((row["case"], row["dtype"], side.names.get(row["backend"]), row) for row in side.results.trainings)
    return {(case, dtype, name): row for case, dtype, name, row in found if name is not None}


def said(row: Row) -> str:
    """Where a side parts, and why."""
    parting = row["parting"]
    if parting is None:
        return NONE
    cause = f" ({parting['diagnosis']})" if parting["diagnosis"] else ""
    return f"parts at {place_text(parting)}{cause}"
