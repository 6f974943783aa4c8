"""What reports say about trainings: the result, a row for each backend, the curves with divergences, and the probes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.blocks import Block, CaseAnswer, Chapter, Figures, Folded, Grid, GridCell, GridColumn
from parity.reporting.kinds import report_of
from parity.reporting.plots.curves import Band, DrawnCurve, Look, Mark, Panel, key
from parity.reporting.plots.svg import Floats
from parity.reporting.results.cells import CellResult, Status, cells
from parity.reporting.results.rows import CellKey, Results, TrainingRow
from parity.reporting.text.words import cut, listed, plural
from parity.training.report.view import (
    TrainingRun,
    clauses,
    location_text,
    probed,
    ratio_curve,
    ratio_texts,
    remark,
    sparkline,
    stages_of,
    table_row,
    training_runs,
)

SMALL = 84
"""The height of the plots of the gradient's norm and of the rate."""
MAX_NAME = 22
MAX_PROBES = 60
"""Rows of probed steps on a page."""
COLUMNS = (
    GridColumn("backend"),
    GridColumn("steps", number=True),
    GridColumn("final loss", number=True),
    GridColumn("largest ratio", number=True),
    GridColumn("diverges at"),
    GridColumn("cause", prose=True),
    GridColumn("loss", from_width=110, style="quiet"),
)
N_ALWAYS = 4
"""Columns whose texts are no news where a backend diverges."""
LEAD = (
    "A backend diverges where its curve is 8 envelopes or more away from the baseline's, or where the error of a stage "
    "of a step is 8 times what rounding explains. The grey band around the baseline's curve is the error bound."
)
PROBES = (
    "the error of each stage, given the same input as the oracle, over what rounding explains; the first stage of a "
    "step that exceeds the error bound is marked"
)

Cells = Mapping[CellKey, CellResult]
"""Cells by case, dtype and backend."""


def chapter(results: Results) -> Chapter:
    """All trainings, diverging ones first."""
    by_key = {(cell.id, cell.dtype, cell.backend): cell for cell in cells(results)}
    runs, looks = training_runs(results), looks_of(results)
    n_diverged = sum(bool(run.diverged) for run in runs)
    which = f"a backend diverges in {n_diverged} of them" if n_diverged else "no backend diverges"
    lead = f"{plural(len(runs), 'training')}, each backend from the same start on the same batches; {which}. {LEAD}"
    answers = [answer(run, looks, by_key) for run in sorted(runs, key=lambda run: not run.diverged)]
    return Chapter("Trainings", "training", lead, answers)


def answer(run: TrainingRun, looks: Mapping[str, Look], by_key: Cells) -> CaseAnswer:
    """A training in a dtype."""
    return CaseAnswer(
        case=run.id,
        dtype=run.dtype,
        title=f"training {run.id} {run.dtype}",
        anchor=run.anchor,
        sentences=clauses(run),
        blocks=list(blocks(run, looks, by_key)),
        fails=bool(run.diverged),
        badge=badge(run),
        status=style_of(run, by_key),
        facts=report_of(run.case.op).recipe(run.case),
    )


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


def blocks(run: TrainingRun, looks: Mapping[str, Look], by_key: Cells) -> Iterator[Block]:
    """The table of backends, the curves, and the probed steps."""
    if run.rows:
        rows = [backend_row(run, row, looks, by_key) for row in run.every]
        note = f"The largest ratio is that of any curve or probe; {remark(run)}."
        yield Grid(COLUMNS, rows, note=note, kind="sides")
    shown = [panel for panel in panels(run, looks) if any(len(curve.values) for curve in panel.curves)]
    if shown:
        yield Figures(shown)
    stages = stages_of(run.rows)
    grids = [probe_grid(row, stages) for row in run.rows if row.probes]
    if grids:
        is_open = style_of(run, by_key) not in (Status.PASSED, Status.NOT_RUN)
        yield Folded("Probed steps", PROBES, grids, is_open, "probes", asked=True)


def backend_row(run: TrainingRun, row: TrainingRow, looks: Mapping[str, Look], by_key: Cells) -> list[GridCell]:
    """A backend or the oracle: the legend of its line and a link to its cell, its texts, its loss in a line."""
    cell = by_key.get((run.id, run.dtype, row.backend))
    name, *texts = table_row(run, row)
    diverges = row is not run.oracle and row.parting is not None
    styles = ("bad" if diverges and i >= N_ALWAYS else "" for i in range(1, len(texts) + 1))
    head = GridCell(name, link="" if cell is None else cell.anchor, key=key(looks.get(row.backend)))
    return [head, *map(GridCell, texts, styles), GridCell(sparkline(row.curves.loss))]


def probe_grid(row: TrainingRow, stages: Sequence[str]) -> Grid:
    """The ratio of each stage in the probed steps of a backend."""
    columns = [GridColumn(name, number=True) for name in ("step", *stages)]
    rows = [
        [GridCell(f"{item.step:,}"), *map(GridCell, ratio_texts(item), item.styles)] for item in probed(row, stages)
    ]
    return Grid(columns, rows, f"{row.backend}: probed steps", kind="probe", most=MAX_PROBES)


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
