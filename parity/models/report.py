"""The report of a case of `kind: model`: the answer first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.models.view import HEAD, CaseView, views
from parity.reporting.kinds import Anchors, CaseReport
from parity.reporting.results.rows import CaseRow, InputRow, Results

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parity.reporting.results.cells import CellResult
    from parity.reporting.text.reasons import CaseRows

UNMEASURED = ("not-compared", "nonfinite", "structure")
"""Verdicts without a distance."""
LAYER = "layer."
"""The prefix of the tensors of a layer in step."""
WEIGHTS = "weights."
"""The prefix of a port's own parameters."""


class ModelReport(CaseReport):
    """Models: judged by the envelope of the whole model, reported by the layer that is wrong."""

    no_script = (
        "there are scripts for single ops, not for models; the run directory has the tensors of a wrong layer, and the "
        "program of the code between layers, below `tensors/`"
    )
    pictured = False
    resumes_by_dtype = True
    template = "models"
    head: Sequence[str] = HEAD
    legend = f"In a model, {ERROR_BOUND:g} envelopes are the tolerance. "

    def recorded(self, case: CasePlan, folder: Path | None) -> tuple[dict[str, Any], dict[str, InputRow]]:  # noqa: ARG002 - drawn by the baseline
        """The functions; the batch is drawn by the baseline."""
        return case.params.recorded(), {}

    def enveloped(self, row: Comparison) -> bool:
        """Whether there is no tolerance; layers in step that are ops have one."""
        return not row.rtol and not row.atol

    def excess(self, row: Comparison) -> float:
        """The difference in tolerances; ERROR_BOUND envelopes are one."""
        if self.enveloped(row) and row.verdict not in UNMEASURED:
            return row.largest_ratio / ERROR_BOUND
        return super().excess(row)

    def reason(self, row: Comparison, rows: CaseRows) -> str:
        """How far a tensor is from the baseline's."""
        if row.verdict in UNMEASURED or not self.enveloped(row):
            return super().reason(row, rows)
        if row.tensor.startswith(WEIGHTS):
            return f"{row.actual}'s own values are {row.largest_ratio:.3g} roundings from those of {row.expected}"
        what = "given the same inputs" if row.tensor.startswith(LAYER) else "run on its own"
        if not row.fails:
            return f"{what}, {row.actual} is within {ERROR_BOUND:g} envelopes of {row.expected}: rounding"
        return (
            f"{what}, {row.actual} is {row.largest_ratio:.3g} times as far from {row.expected} as runs whose weights "
            f"and inputs are perturbed by an ulp; the error bound is {ERROR_BOUND:g}"
        )

    def advice(self, findings: Sequence[Comparison]) -> Iterator[str]:
        """Where to look next."""
        if findings and not any(row.tensor.startswith((LAYER, WEIGHTS)) for row in findings):
            yield "no layer differs when given the same inputs: look before and after the model, and at the loss"

    def views(self, results: Results) -> Sequence[CaseView]:
        """A view of each port, those that fail first."""
        return views(results)

    def screen(self, case: CaseRow, dtypes: Iterable[str], results: Results) -> Iterator[RenderableType]:
        """The answer and the parts."""
        for one in self.views(results):
            if one.case.id == case.id and one.dtype in dtypes:
                yield from parts(one, self.head)

    def anchors(self, results: Results) -> Anchors:
        """The anchor of each case and dtype: that of its first port."""
        return {(one.case.id, one.dtype): one.anchor for one in reversed(self.views(results))}

    def html_section(self, results: Results, cells: Sequence[CellResult]) -> Markup:  # noqa: ARG002 - the rows say all
        """A table for each port, or each backend."""
        from parity.reporting.html.templates import rendered

        shown = [
            {"anchor": one.anchor, "title": one.title, "lines": one.answer(), "rows": one.table()}
            for one in self.views(results)
        ]
        return rendered(self.template, models=shown, head=self.head) if shown else Markup()

    def markdown_pieces(self, results: Results) -> Sequence[str]:
        """The same in Markdown, a piece for each port."""
        return [markdown(one, self.head) for one in self.views(results)]

    def console_parts(self, results: Results, width: int, *, verbose: bool) -> Iterator[RenderableType]:  # noqa: ARG002 - as it fits
        """The same on the console."""
        for one in self.views(results):
            yield from parts(one, self.head)


def markdown(one: CaseView, head: Sequence[str]) -> str:
    """An answer and its table in Markdown."""
    from parity.reporting.text.safe import code, line, table_row

    rows = [table_row([code(text) for text in row]) for row in one.table()]
    table = f"\n{table_row(head)}{table_row(['---'] * len(head))}{''.join(rows)}" if rows else ""
    return f"\n{code(one.title)}: {line('; '.join(one.answer()))}\n{table}"


def parts(one: CaseView, head: Sequence[str]) -> Iterator[RenderableType]:
    """An answer and its table on the console."""
    from rich.table import Table
    from rich.text import Text

    from parity.config.nodes import printable

    yield Text()
    yield Text(printable(one.title), style="bold red" if one.fails else "bold")
    for sentence in one.answer():
        yield Text(f"  {printable(sentence)}")
    rows = one.table()
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in head:
            table.add_column(name, justify="left" if name in head[:2] else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(text)) for text in row))
        yield table
