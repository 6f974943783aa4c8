"""The trainings in the HTML report: the result, the curves with divergences, and the probes of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.html.templates import n_bytes, rendered
from parity.reporting.kinds import report_of
from parity.reporting.plots.svg import Floats
from parity.reporting.results.cells import CellResult, Status
from parity.reporting.results.rows import CellKey, Results, TrainingRow
from parity.reporting.text.words import cut, listed
from parity.training.report.plot import Band, DrawnCurve, Look, Mark, Panel, key, plot
from parity.training.report.view import (
    HEAD,
    TrainingRun,
    clauses,
    location_text,
    probed,
    ratio_curve,
    ratio_texts,
    remark,
    stages_of,
    table_row,
    training_runs,
)

BUDGET = 600_000
"""Limit in bytes for all trainings; those that would exceed it get one sentence."""
SMALL = 84
"""The height of the plots of the gradient's norm and of the rate."""
MAX_NAME = 22
MAX_PROBES = 60
MAX_TRIED = 3
"""After so many trainings without space, the rest get one sentence without being tried."""

BRIEF: dict[str, Any] = {"recipe": (), "backends": (), "plots": (), "probes": ()}
"""The fields of a training that is shown without details."""

Cells = Mapping[CellKey, CellResult]
"""Cells by case, dtype and backend."""


def trainings(results: Results, cells: Sequence[CellResult]) -> Markup:
    """The section, diverging trainings first; empty without trainings."""
    runs = training_runs(results)
    if not runs:
        return Markup()
    by_key = {(cell.id, cell.dtype, cell.backend): cell for cell in cells}
    looks = looks_of(results)
    left, parts, n_brief = BUDGET, [], 0
    for run in sorted(runs, key=lambda run: not run.diverged):
        t = answer(run, by_key)
        part = rendered("training", t=t | details(run, looks, by_key)) if n_brief < MAX_TRIED else Markup()
        if not part or n_bytes(part) > left:
            part, n_brief = rendered("training", t=t | BRIEF), n_brief + 1
        left -= n_bytes(part)
        parts.append(part)
    n_diverged = sum(bool(run.diverged) for run in runs)
    return rendered("trainings", parts=parts, n=len(runs), n_diverged=n_diverged, n_brief=n_brief)


def looks_of(results: Results) -> dict[str, Look]:
    """How each backend is drawn."""
    return {name: Look(i, name == results.run.baseline) for i, name in enumerate(results.backend_names)}


def style_of(run: TrainingRun, by_key: Cells) -> str:
    """The style of the result: that of the most severe diverging cell, which may be an accepted one."""
    cells = [by_key.get((run.id, run.dtype, row.backend)) for row, _ in run.diverged]
    statuses = [Status.FAILED if cell is None else cell.status for cell in cells]
    if statuses:
        return min(statuses, key=list(Status).index).value
    return Status.PASSED.value if run.rows else Status.NOT_RUN.value


def badge(run: TrainingRun) -> str:
    """`2 of 4 backends diverge`."""
    if n := len(run.diverged):
        return f"{n} of {len(run.rows)} backends {'diverges' if n == 1 else 'diverge'}"
    return "together" if run.rows else "no result"


def answer(run: TrainingRun, cells: Cells) -> dict[str, Any]:
    """The part that every training has: its names and the result."""
    return {
        "id": run.id,
        "dtype": run.dtype,
        "anchor": run.anchor,
        "clauses": clauses(run),
        "badge": badge(run),
        "style": style_of(run, cells),
    }


def details(run: TrainingRun, looks: Mapping[str, Look], cells: Cells) -> dict[str, Any]:
    """The part for which there may be no space: recipe, table of backends, plots and probes."""
    stages = stages_of(run.rows)
    return {
        "recipe": report_of(run.case.op).recipe(run.case),
        "ensemble": remark(run),
        "head": HEAD,
        "backends": [backend_row(run, row, looks, cells) for row in run.every],
        "plots": [plot(panel) for panel in panels(run, looks) if any(len(curve.values) for curve in panel.curves)],
        "stages": stages,
        "probes": [probes(row, stages) for row in run.rows if row.probes],
    }


def backend_row(run: TrainingRun, row: TrainingRow, looks: Mapping[str, Look], cells: Cells) -> dict[str, Any]:
    """A row of the table, for a backend or the oracle: the legend of its line, its texts, a link to its cell."""
    cell = cells.get((run.id, run.dtype, row.backend))
    return {
        "key": key(looks.get(row.backend)),
        "texts": table_row(run, row),
        "link": "" if cell is None else cell.anchor,
        "parts": row is not run.oracle and row.parting is not None,
    }


def panels(run: TrainingRun, looks: Mapping[str, Look]) -> Iterator[Panel]:
    """The plots: large ones of loss and ratio, small ones of the gradient's norm and the rate."""
    losses, norms, rates = (
        [DrawnCurve(row.backend, floats(getattr(row.curves, name)), looks.get(row.backend)) for row in run.every]
        for name in ("loss", "grad_norm", "lr")
    )
    ratios = [DrawnCurve(row.backend, ratio_curve(row), looks[row.backend]) for row in run.rows]
    ratios = [curve for curve in ratios if not np.isnan(curve.values).all()]
    yield Panel("loss", losses, marks(run, losses, looks), band(run, "loss"))
    yield Panel("error ratio: distance in envelopes", ratios, marks(run, ratios, looks, ratio=True), ratio=True)
    yield Panel("norm of the gradient", norms, band=band(run, "grad_norm"), height=SMALL)
    yield Panel("learning rate", rates, height=SMALL, may_log=False)


def floats(values: Sequence[float]) -> Floats:
    """A curve as an array."""
    return np.asarray(values, dtype=np.float64)


def marks(
    run: TrainingRun, curves: Sequence[DrawnCurve], looks: Mapping[str, Look], *, ratio: bool = False
) -> list[Mark]:
    """The marks of divergences, on the backend's curve, or at the probe's ratio if the curve's is within the bound."""
    values = {curve.name: curve.values for curve in curves}
    made = []
    for row, at in run.diverged:
        curve = values.get(row.backend, np.zeros(0))
        value = float(curve[at.step - 1]) if 0 < at.step <= len(curve) else math.nan
        if ratio and at.ratio is not None and not value >= ERROR_BOUND:
            value = at.ratio
        made.append(Mark(at.step, value, mark_text(run, row), looks[row.backend]))
    return made


def mark_text(run: TrainingRun, row: TrainingRow) -> str:
    """`oneflow: step 1, loss, scaled; also dampening-first-step`."""
    first, *others = run.ids(row) or [""]
    causes = (f", {first}" if first else "") + (f"; also {listed(others)}" if others else "")
    return f"{cut(row.backend, MAX_NAME)}: {location_text(row.parting)}{causes}"


def band(run: TrainingRun, name: str) -> Band | None:
    """The error bound: ERROR_BOUND envelopes around the baseline's curve."""
    centre: Sequence[float] = next((getattr(row.curves, name) for row in run.every if row.backend == row.expected), [])
    envelope: Sequence[float] = next((width for row in run.rows if (width := row.curves.envelope.get(name))), [])
    n = min(len(centre), len(envelope))
    if not n:
        return None
    around, bound = floats(centre[:n]), ERROR_BOUND * floats(envelope[:n])
    with np.errstate(over="ignore", invalid="ignore"):
        return Band(around - bound, around + bound)


def probes(row: TrainingRow, stages: Sequence[str]) -> dict[str, Any]:
    """The probed steps of a backend: the ratio of each stage and its style, `first` for the one that diverges first."""
    steps = list(probed(row, stages))
    return {
        "backend": row.backend,
        "rows": [
            (f"{item.step:,}", [*zip(ratio_texts(item), item.styles, strict=True)]) for item in steps[:MAX_PROBES]
        ],
        "parts": row.parting is not None,
        "n_hidden": max(len(steps) - MAX_PROBES, 0),
    }
