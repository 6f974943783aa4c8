"""The report of a case of `kind: model`: the answer first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.models.view import COLUMNS, CaseView, views
from parity.reporting.blocks import CaseAnswer, Chapter, Grid, GridColumn
from parity.reporting.kinds import CaseReport
from parity.reporting.results.rows import InputRow, Results

if TYPE_CHECKING:
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
    heading = "Models"
    lead_text = (
        "Every layer, and the code between layers, got what its partner in the baseline got. What each part explains "
        "is measured: it is replaced by its partner's result, after all before it, and the rest of the difference at "
        "the output is what remains."
    )
    columns = COLUMNS
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

    def chapter(self, results: Results) -> Chapter:
        """An answer for each port, or each backend."""
        answers = [answer(one, self.columns) for one in self.views(results)]
        return Chapter(self.heading, "model", self.lead_text, answers)


def answer(one: CaseView, columns: Sequence[GridColumn]) -> CaseAnswer:
    """What reports say about a view."""
    rows = one.table()
    blocks = [Grid(columns, rows)] if rows else []
    return CaseAnswer(one.case.id, one.dtype, one.title, one.anchor, one.answer(), blocks, one.fails)
