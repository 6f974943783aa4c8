"""The trainings on the console: a table for each case and dtype, and the probed steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from parity.config.nodes import printable
from parity.reporting.results.rows import Results, TrainingRow
from parity.training.report.view import (
    HEAD,
    TrainingRun,
    brief,
    probed,
    ratio_texts,
    remark,
    sparkline,
    stages_of,
    table_row,
    training_runs,
)

SPARK_FROM = 110
"""The least width of a console for a table with a sparkline of the loss."""
RIGHT = frozenset(("steps", "final loss", "largest ratio"))
PROBE_STYLES = {"first": "bold red", "off": "red", "": "dim"}


def training_tables(results: Results, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The trainings of a run, diverging ones first; `verbose` adds the probed steps."""
    for run in sorted(training_runs(results), key=lambda run: not run.diverged):
        yield from training_parts(run, width, probes=verbose)


def training_parts(run: TrainingRun, width: int, *, probes: bool) -> Iterator[RenderableType]:
    """A training: the result, a row for each backend, and the probed steps."""
    yield Text()
    style = "bold red" if run.diverged else "bold"
    yield Text.assemble((printable(f"training {run.id} {run.dtype}: "), style), printable(brief(run)))
    if run.rows:
        yield backend_table(run, spark=width >= SPARK_FROM)
    if probes:
        yield Text(printable(remark(run)), style="dim")
        stages = stages_of(run.rows)
        yield from (probe_table(row, stages) for row in run.rows if row.probes)


def backend_table(run: TrainingRun, *, spark: bool) -> Table:
    """A row for each backend."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in HEAD:
        table.add_column(name, justify="right" if name in RIGHT else "left", overflow="fold")
    if spark:
        table.add_column("loss", no_wrap=True)
    for row in run.every:
        style = "red" if row.parting else ""
        texts = [Text(printable(text), style=style if i > 3 else "") for i, text in enumerate(table_row(run, row))]
        table.add_row(*texts, *([Text(sparkline(row.curves.loss), style="dim")] if spark else []))
    return table


def probe_table(row: TrainingRow, stages: Sequence[str]) -> Table:
    """The ratio of every stage in each probed step; the first one beyond the error bound is bold."""
    title = Text(printable(f"{row.backend}: probed steps"))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("step", *stages):
        table.add_column(name, justify="right", no_wrap=True)
    for item in probed(row, stages):
        styles = (PROBE_STYLES[style] for style in item.styles)
        table.add_row(f"{item.step:,}", *map(Text, ratio_texts(item), styles))
    return table
