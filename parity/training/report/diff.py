"""The first divergences of trainings that moved, appeared or vanished between two runs."""

from __future__ import annotations

from collections.abc import Iterator

from parity.reporting.diff.compared_run import ComparedRun
from parity.reporting.results.rows import CellKey, TrainingRow
from parity.training.report.view import location_text


def divergence_notes(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    """`perceptron float32 oneflow diverges at step 1, update (dampening-first-step) -> no divergence`, for each
    change."""
    after = rows(b)
    for key, row in rows(a).items():
        old, new = summary(row), summary(after.get(key, row))
        if old != new:
            yield f"training {' '.join(key)}: {old} -> {new}"


def rows(run: ComparedRun) -> dict[CellKey, TrainingRow]:
    """The trainings of a run that are compared, by case, dtype and the backend's name in the second run."""
    named = ((run.names.get(row.backend), row) for row in run.results.trainings)
    return {(row.case, row.dtype, name): row for name, row in named if name is not None}


def summary(row: TrainingRow) -> str:
    """Where a backend diverges, and why."""
    if row.parting is None:
        return "no divergence"
    cause = f" ({row.parting.diagnosis})" if row.parting.diagnosis else ""
    return f"diverges at {location_text(row.parting)}{cause}"
