"""What "the reference has" is an expression of the reference, whatever other causes a training step has."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.candidates import edits_of
from parity.cases.edit_words import REFERENCE_HAS, is_of
from parity.cases.op import IncompatibleError
from parity.cases.trial import Trial
from parity.judge.diagnose.evaluator import Alteration
from parity.training.edits import ProgramEdits, whole_program
from parity.training.judge.evaluator import StageEvaluator
from parity.training.judge.measured import measure
from parity.training.judge.oracle import oracle_of
from parity.training.steps import Update
from tests.training.runs import Run, judged, lies, planned, setting_of
from tests.training.test_diagnoses import DENSE, GROUPS, SILENT, edit_that_says
from tests.training.whole_steps import StepChanges

pytestmark = pytest.mark.slow
MEAN_OF_FEWER = "y = reshape(sum(kept, axis=(0, 1)), ()) / (n_counted - 1)"


def loss_edit() -> ProgramEdits:
    """A cross entropy that divides by too few."""
    op, tensors = OPS["cross_entropy"], {"x": np.ones((3, 4)), "target": np.zeros(3, np.int64)}
    program = whole_program(op, op.params(), tensors)
    return ProgramEdits(program, (edit_that_says(MEAN_OF_FEWER, program, tensors, "y"),))


def stage(text: str, folder, name: str, known) -> StageEvaluator:
    """A stage of the first step of a truthful run, after causes that are known."""
    case = planned(text, folder)
    case = replace(case, params=replace(case.params, accumulation=1))
    setting = setting_of(case)
    run = Run(case.params, "float64", setting)
    run.one()
    oracle = oracle_of(case.id, case.params, "float64", setting)
    measured = measure(oracle, name, run.records[1], known)
    assert measured is not None
    return StageEvaluator(oracle, name, measured, known)


KNOWN = {
    "loss": lambda: {"loss": {"edits": loss_edit()}},
    "activation": lambda: {"gelu": {"form": "tanh"}},
}


@pytest.mark.parametrize("known", KNOWN)
def test_an_edit_of_the_gradient_is_told_beside_the_reference_whatever_is_known(known, tmp_path):
    evaluator = stage(DENSE, tmp_path, "gradient", KNOWN[known]())
    own = evaluator.reference.program(Alteration())
    program, tensors = evaluator.program(Alteration()), evaluator.tensors(Alteration())
    edits = edits_of(program, Trial(program, tensors).shapes, next(iter(program.outputs)))
    n_told = 0
    for edit in itertools.islice(edits, 0, None, 29):
        with contextlib.suppress(IncompatibleError):
            _, has, right = evaluator.expression(Alteration(edits=(edit,)), Alteration()).partition(REFERENCE_HAS)
            n_told += bool(has)
            assert not has or is_of(own, right), right
    assert n_told


def test_a_mistake_of_the_loss_and_one_of_the_optimizer_are_both_told_beside_the_reference(tmp_path):
    case = planned(DENSE, tmp_path)
    case = replace(case, params=replace(case.params, accumulation=1))
    op = OPS["sgd"]
    params = op.params(**case.params.groups[0].options)
    tensors = {name: np.ones(3) for name in op.infer_shapes(params, {"param": (3,)}).inputs}
    program = whole_program(op, params, tensors)
    text = "1 - momentum, where the reference has 1 - dampening"
    update = ProgramEdits(program, (edit_that_says(text, program, tensors, "param"),))
    lie = lies(StepChanges(model={"loss": {"edits": loss_edit()}}, update=Update(edits=update)))
    both = judged(case, {"honest": SILENT, "liar": lie}, "float64").diagnoses
    assert [row.evidence["stage"] for row in both] == ["loss", "update"]
    first, second = (row.evidence["expression"] for row in both)
    assert f"{REFERENCE_HAS}reshape(sum(kept, axis=(0, 1)), ()) / n_counted" in first
    assert second.startswith(text)


def test_two_edits_of_one_optimizer_step_are_one_of_the_reference_or_none(tmp_path):
    case = planned(GROUPS, tmp_path)
    op = OPS["adam"]
    params = op.params(**case.params.groups[0].options)
    tensors = {name: np.ones(3) for name in op.infer_shapes(params, {"param": (3,)}).inputs}
    program = whole_program(op, params, tensors)
    texts = (
        "rate = lr, where the reference has lr / bc1",
        "rate * exp_avg, where the reference has rate * new exp_avg",
    )
    update = ProgramEdits(program, tuple(edit_that_says(text, program, tensors, "param") for text in texts))
    [row] = judged(
        case, {"honest": SILENT, "liar": lies(StepChanges(update=Update(edits=update)))}, "float64"
    ).diagnoses
    expression = row.evidence["expression"]
    assert expression == "lr * exp_avg, where the reference has lr * m_hat (in update)"
