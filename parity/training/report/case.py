"""The texts about trainings in every output format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.config.plan import ORACLE, CasePlan
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.reporting.kinds import CaseReport
from parity.reporting.results.rows import CaseRow, InputRow, Results
from parity.reporting.text.words import listed, number
from parity.training.lockstep.session import CHECKPOINT, training_folder
from parity.training.report import record
from parity.training.report.view import (
    STAGE_WORDS,
    cell_lines,
    parts_at,
    parts_text,
    value_text,
    where_text,
)
from parity.training.spec import CURVES, STAGES

if TYPE_CHECKING:
    from parity.judge.diagnose.diagnosis import Diagnosis
    from parity.reporting.blocks import Chapter
    from parity.reporting.diff.compared_run import ComparedRun
    from parity.reporting.results.cells import CellResult
    from parity.reporting.text.reasons import CaseRows

STAGE = "stage."
"""The prefix of tensors that are a stage of a step rather than a curve."""
STEPWISE = ("loss", "grad_norm")
"""The curves with a number for each step; the others are norms after the last step."""
UNMEASURED = ("not-compared", "nonfinite", "structure")
"""Verdicts without an error ratio."""
CALLED = ("optimizer", "steps", "batch_size", "weights")
"""The most important keys of a recipe."""

STAGE_ADVICE: Mapping[str, str] = {
    "data": "compare the sampler: seed, shuffling per epoch, the last batch, the rows of each rank",
    "forward": "run the layers as op cases; compare eps, the form of the activation, training and evaluation mode",
    "loss": "compare the reduction, the ignored targets, and the factor of an accumulated micro-batch",
    "gradient": "look for gradients that were not cleared, or summed instead of averaged over micro-batches or ranks",
    "clip": "compare the scope of the norm, its type, the epsilon, and whether clipping comes before the step",
    "schedule": "compare the number of the first step, when the schedule advances, and the end of the warm-up",
    "update": "run the optimizer as an op case; compare options, decay, bias corrections and initial state",
}
"""The advice for each stage that exceeds the error bound."""

DRIFT = (
    "every probed stage is within the error bound, so many small errors add up: run it in float64, where they vanish, "
    "and compare the mode, the precision and the threads"
)


class TrainingReport(CaseReport):
    """Reports a training by the step and stage of its first divergence; it is judged by envelopes unless a tolerance
    is given."""

    no_script = (
        "there are scripts for single ops, not for trainings; `parity explain` shows the step and stage of the first "
        "divergence: write a case of that stage's op (the optimizer, the clipping, a layer)"
    )
    pictured = False
    resumes_by_dtype = True
    legend = f"In a training, {ERROR_BOUND:g} envelopes are the tolerance. "

    def recorded(self, case: CasePlan, folder: Path | None) -> tuple[dict[str, Any], dict[str, InputRow]]:
        """Model and recipe, the data set and the initial weights."""
        return record.params(case.params), record.inputs(case.params, folder)

    def is_going(self, run_dir: Path, index: int, case: CasePlan, dtype: str) -> bool:
        """Whether it has a checkpoint."""
        return (training_folder(run_dir, index, case) / dtype / CHECKPOINT).exists()

    def call(self, case: CaseRow) -> str:
        """`train(optimizer=sgd, steps=12)`."""
        given = {name: case.params[name] for name in CALLED if name in case.params}
        return f"{case.op}({', '.join(f'{name}={value}' for name, value in given.items())})"

    def recipe(self, case: CaseRow) -> list[tuple[str, str]]:
        """The keys of the recipe with their values."""
        return [(name.replace("_", " "), value_text(value)) for name, value in case.params.items()]

    def enveloped(self, row: Comparison) -> bool:
        """Whether it is judged by envelopes: no tolerance is given."""
        return not row.rtol and not row.atol

    def excess(self, row: Comparison) -> float:
        """The difference in tolerances; without a given one, ERROR_BOUND envelopes are the tolerance."""
        if self.enveloped(row) and row.verdict not in ("structure", "nonfinite"):
            return row.largest_ratio / ERROR_BOUND
        return super().excess(row)

    def location(self, row: Comparison) -> str:
        """The step of a curve's worst element."""
        if row.tensor.startswith(STAGE):
            return super().location(row)
        return f"step {row.worst_index[0] + 1}" if row.tensor in STEPWISE and row.worst_index else "the last step"

    def shows_oracle(self, row: Comparison) -> bool:
        """Whether the oracle's value is known, which it may not be for a curve."""
        return row.oracle_value is not None

    def reason(self, row: Comparison, rows: CaseRows) -> str:
        """How far a stage is from the oracle's result for the same input, or a curve from the baseline's."""
        if row.verdict in UNMEASURED:
            return super().reason(row, rows)
        names = row.culprit or [row.actual]
        known = rows.ratios(row.dtype, row.tensor)
        ratios, backends = listed(number(known.get(name)) for name in names), listed(names)
        explained = stage_reason if row.tensor.startswith(STAGE) else curve_reason
        return explained(row, backends, ratios)

    def advice(self, findings: Sequence[Comparison]) -> Iterator[str]:
        """The advice for the stages that exceed the error bound, if any."""
        wrong = {row.tensor.removeprefix(STAGE) for row in findings if row.tensor.startswith(STAGE)}
        if findings:
            yield from [f"{stage}: {STAGE_ADVICE[stage]}" for stage in STAGES if stage in wrong] or [DRIFT]

    def since(self, diagnosis: Diagnosis | None) -> str:
        """`first at step 1, in the update of fc2.weight`."""
        evidence = {} if diagnosis is None else diagnosis.evidence
        if "step" not in evidence:
            return ""
        step, stage = evidence["step"], STAGE_WORDS.get(str(evidence.get("stage")), "")
        when = f"only at step {step} of {evidence['only']} probed" if "only" in evidence else f"first at step {step}"
        return f"{when}{stage and f', in the {stage}{parts_text(evidence)}'}"

    def part(self, row: Comparison, diagnosis: Diagnosis | None) -> str:
        """The worst tensor of a stage."""
        evidence = {} if diagnosis is None else diagnosis.evidence
        return str(evidence.get("worst_tensor", "")) if row.tensor == f"{STAGE}{evidence.get('stage')}" else ""

    def drifts(self, row: Comparison) -> bool:
        """Whether it is a curve."""
        return row.tensor in CURVES

    def headline(self, cell: CellResult) -> str:
        """`diverges at step 1 in the update of fc2.weight; `."""
        at = None if cell.training is None else cell.training.parting
        return "" if at is None else f"{where_text(at)}{parts_at(at, cell.diagnoses)}; "

    def details(self, cell: CellResult) -> Iterator[str]:
        """Its steps, its first divergence, and the probed steps that exceed the error bound."""
        return iter(()) if cell.training is None else cell_lines(cell.training)

    def chapter(self, results: Results) -> Chapter:
        """The curves with the divergences, and the probes."""
        from parity.training.report.answer import chapter

        return chapter(results)

    def diff_notes(self, a: ComparedRun, b: ComparedRun) -> Iterator[str]:
        """The divergences that moved, appeared or vanished."""
        from parity.training.report.diff import divergence_notes

        return divergence_notes(a, b)


def stage_reason(row: Comparison, backends: str, ratios: str) -> str:
    """How far a stage is from the oracle's result for the same input."""
    stage = STAGE_WORDS.get(row.tensor.removeprefix(STAGE), row.tensor)
    if row.fails:
        return (
            f"given the same input, the error of the {stage} of {backends} is {ratios} times that of a careful "
            f"implementation; the error bound is {ERROR_BOUND:g}"
        )
    if row.hides:
        why = f": {row.message}" if row.message else ""
        return f"it passes, although the error ratio of the {stage} of {backends} is {ratios}{why}"
    return f"given the same input, the {stage} of {backends} is that of the oracle within rounding"


def curve_reason(row: Comparison, backends: str, ratios: str) -> str:
    """How far a curve is from the baseline's, or from the oracle's own."""
    if row.fails:
        reference = row.expected if row.error_ratio.expected is None else ORACLE
        return (
            f"the curve of {backends} is {ratios} envelopes away from that of {reference}; runs from a start perturbed "
            f"by an ulp stay within 1, and the error bound is {ERROR_BOUND:g}"
        )
    if row.suspect:
        return f"the curve of {backends} passes, although it {row.message or 'leaves the envelope'}: {ratios} envelopes"
    return f"the curve of {backends} stays within {ERROR_BOUND:g} envelopes of that of {row.expected}"
