"""Liars among trainings are named with the step and the stage, whoever computes the same raises no alarm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.candidates import edits_of
from parity.cases.edit_words import described
from parity.cases.edits import Edit
from parity.cases.op import IncompatibleError
from parity.cases.program import Program
from parity.cases.trial import Trial
from parity.config.plan import CasePlan
from parity.diagnoses import catalogue
from parity.training.edits import ProgramEdits, whole_program
from parity.training.judge.causes import SOURCES, Stage, standing
from parity.training.judge.judge import JudgedTraining
from parity.training.judge.measured import MeasuredStage
from parity.training.spec import Clip
from parity.training.steps import Clipping, Update
from tests.exhaustive import one_of_each
from tests.training.runs import HONEST, Lie, Run, judged, lies, planned, setting_of
from tests.training.whole_steps import StepChanges

pytestmark = pytest.mark.slow

MASKED = """
  - id: transformer
    kind: train
    model: {bert: {layers: 1, hidden: 8, heads: 2, ffn: 12, vocab: 14, sequence: 6}}
    data: {rows: 24}
    optimizer: {name: adamw, lr: 1.0e-2, eps: 1.0e-6, weight_decay: 0.1, weight_decay_excludes: ["*.bias", "*norm*"]}
    schedule: {name: warmup_polynomial, warmup_steps: 3, total_iters: 9, start_factor: 0.1}
    clip: {name: norm, max_norm: 0.5}
    batch_size: 4
    accumulation: 2
    steps: 5
"""
DENSE = """
  - id: dense
    kind: train
    model: [{linear: {out_features: 9}}, {activation: gelu}, layer_norm, {linear: {out_features: 4}}]
    data: {name: classification, features: [5], classes: 4, rows: 64}
    optimizer: {name: sgd, lr: 0.05, momentum: 0.9, dampening: 0.5}
    schedule: {name: step, step_size: 3, gamma: 0.5}
    clip: {name: value, clip_value: 0.05}
    batch_size: 8
    accumulation: 2
    steps: 7
"""
IMAGES = """
  - id: images
    kind: train
    model: [{conv2d: {out_channels: 3, kernel_size: 3}}, batch_norm, {activation: relu}, flatten, {linear: {out_features: 3}}]
    data: {name: classification, features: [2, 5, 5], classes: 3, rows: 32}
    optimizer: {name: lamb, lr: 0.01, weight_decay: 0.1}
    batch_size: 8
    steps: 4
"""
GROUPS = """
  - id: groups
    kind: train
    model: [{linear: {out_features: 6}}, {activation: tanh}, {linear: {out_features: 2}}]
    data: {name: regression, features: [5], targets: 2, rows: 32}
    optimizer: {name: adam, lr: 0.01, eps: 1.0e-3, groups: [{parameters: ["linear1.*"], lr: 0.002}]}
    schedule: {name: linear, total_iters: 3}
    batch_size: 8
    steps: 5
"""
CASES = {"masked": MASKED, "dense": DENSE, "images": IMAGES, "groups": GROUPS}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CasePlan]:
    return {name: planned(text, tmp_path_factory.mktemp("cases")) for name, text in CASES.items()}


def updates(**arguments: object) -> Lie:
    return lies(StepChanges(update=Update(arguments)))


def options(last: int = 0, **changed: object) -> Lie:
    """Other options of all groups up to the last."""
    return lies(StepChanges(update=Update(options=dict.fromkeys(range(last + 1), changed))))


def model(**variants: object) -> Lie:
    return lies(StepChanges(model=variants))


def clips(recipe: Clip | None, **arguments: object) -> Lie:
    return lies(StepChanges(clipping=Clipping(recipe, arguments)))


class Patterned(Clipping):
    """Leaves out the parameters whose names match one of the patterns in `without`."""

    def of(self, names: Sequence[str]) -> Clipping:
        own = frozenset(name for name in names for pattern in self.without if fnmatchcase(name, pattern))
        return Clipping(self.recipe, self.arguments, without=own).of(names)


def left_out(*patterns: str, **arguments: object) -> Lie:
    """A norm without the parameters of these names."""
    return lies(StepChanges(clipping=Patterned(Clip(max_norm=0.5), arguments, without=frozenset(patterns))))


def scheduled(**arguments: object) -> Lie:
    return lies(StepChanges(schedule=arguments))


def repeated(order: dict[int, np.ndarray]) -> Callable[[int, np.ndarray], np.ndarray]:
    def rows(step: int, right: np.ndarray) -> np.ndarray:
        order[step] = right
        return order[step - 1] if step % 2 == 0 else right

    return rows


def same_shard(_step: int, rows: np.ndarray) -> np.ndarray:
    return np.concatenate([np.tile(part[: len(part) // 2], 2) for part in np.split(rows, 2)])


NORM = Clip(max_norm=0.5)
EVERY = {0: {"weight_decay": 0.1}, 1: {"weight_decay": 0.1}}
FAULTS = [
    ("masked", scheduled(offset=1), "schedule-off-by-one", 1, "schedule"),
    ("masked", scheduled(offset=-1), "schedule-off-by-one", 2, "schedule"),
    ("masked", scheduled(warmup_offset=1), "warmup-boundary", 1, "schedule"),
    ("groups", scheduled(warmup_longer=1), "warmup-boundary", 2, "schedule"),
    ("dense", scheduled(offset=1), "schedule-off-by-one", 3, "schedule"),
    ("dense", scheduled(ignored=True), "schedule-ignored", 4, "schedule"),
    ("masked", updates(decoupled=False), "weight-decay-coupling", 1, "update"),
    ("masked", lies(StepChanges(update=Update(options=EVERY))), "weight-decay-excludes", 1, "update"),
    ("masked", updates(eps_placement="hat"), "eps-placement", 1, "update"),
    ("groups", updates(eps_placement="inside"), "eps-placement", 2, "update"),
    ("groups", updates(bias_correction=False), "bias-correction", 2, "update"),
    ("groups", lies(StepChanges(update=Update(offset=1))), "step-offset", 2, "update"),
    ("groups", lies(StepChanges(update=Update(rate=lambda _s, _g, lr: 3 * lr))), "scaled", 2, "update"),
    (
        "groups",
        lies(StepChanges(update=Update(options={1: {"eps": 1e-2}, 0: {"eps": 1e-2}}))),
        "eps-value",
        2,
        "update",
    ),
    ("dense", options(momentum=0.85), "option-value", 2, "update"),
    ("dense", options(dampening=0.4), "option-value", 2, "update"),
    ("dense", options(weight_decay=0.02), "option-value", 1, "update"),
    ("groups", options(1, betas=(0.95, 0.999)), "option-value", 1, "update"),
    ("groups", options(1, betas=(0.9, 0.98)), "option-value", 1, "update"),
    ("groups", options(1, betas=(0.999, 0.9)), "option-value", 1, "update"),
    ("images", options(betas=(0.8, 0.999)), "option-value", 1, "update"),
    ("images", options(weight_decay=0.0), "option-value", 1, "update"),
    ("groups", lies(StepChanges(update=Update(factor=-1.0))), "sign-flipped", 2, "update"),
    ("groups", lies(StepChanges(update=Update(skipped=frozenset(["linear0.bias"])))), "stale", 1, "update"),
    ("dense", updates(dampened_first=True), "dampening-first-step", 1, "update"),
    ("dense", updates(lr_inside=True), "lr-in-momentum", 1, "update"),
    ("dense", updates(nesterov=True), "nesterov-form", 1, "update"),
    ("images", updates(trust="never"), "trust-ratio", 1, "update"),
    ("images", updates(decay="outside"), "weight-decay-coupling", 1, "update"),
    ("masked", clips(replace(NORM, scope="tensor")), "clip-per-tensor", 1, "clip"),
    ("masked", clips(None), "clip-ignored", 1, "clip"),
    ("masked", left_out("*.bias", "*norm*"), "clip-left-out", 1, "clip"),
    ("masked", left_out("*.bias", spared=True), "clip-left-out", 1, "clip"),
    ("masked", clips(NORM, by_value=True), "clip-by-value", 1, "clip"),
    ("masked", clips(NORM, norm_type=1.0), "norm-type", 1, "clip"),
    ("masked", clips(NORM, denominator_eps=1e-3), "clip-denominator-eps", 1, "clip"),
    ("dense", clips(Clip("value", clip_value=0.05), by_norm=True), "clip-by-norm", 1, "clip"),
    ("dense", Lie(factor=2.0), "accumulation-sum", 1, "gradient"),
    ("dense", lies(StepChanges(model={"accumulation": {"reduction": "sum"}})), "accumulation-sum", 1, "gradient"),
    ("images", Lie(factor=2.0, ranks=2), "rank-reduction", 1, "gradient"),
    ("dense", Lie(changes=HONEST.changes, factor=-1.0), "sign-flipped", 1, "gradient"),
    ("dense", Lie(factor=1.37), "scaled", 1, "gradient"),
    ("dense", lies(StepChanges(kept=True)), "gradient-not-zeroed", 2, "gradient"),
    ("masked", Lie(rows=lambda _, rows: rows[::-1].copy()), "batch-order", 1, "data"),
    ("masked", Lie(rows=repeated({})), "repeated-data", 2, "data"),
    ("dense", Lie(rows=same_shard, ranks=2), "repeated-data", 1, "data"),
    ("images", model(batch_norm={"batch_statistics": False}), "batch-norm-statistics", 1, "forward"),
    ("images", model(batch_norm={"running_ddof": 0}), "running-var-ddof", 1, "forward"),
    ("images", model(batch_norm={"momentum_complement": True}), "momentum-complement", 1, "forward"),
    ("images", lies(StepChanges(model={"ranks": {"count": 2}}), ranks=2), "batch-norm-statistics", 1, "forward"),
    ("dense", model(gelu={"form": "tanh"}), "activation-form", 1, "forward"),
    ("dense", model(layer_norm={"ddof": 1}), "variance-ddof", 1, "forward"),
    ("dense", model(layer_norm={"eps": 1e-3}), "eps-value", 1, "forward"),
    ("dense", model(matmul={"operands": "bfloat16"}), "reduced-precision", 1, "forward"),
    ("dense", model(gelu={"form": "tanh"}, backward={"only": True}), "activation-form", 1, "gradient"),
    ("dense", model(loss={"reduction": "sum"}, backward={"only": True}), "mean-vs-sum", 1, "gradient"),
    ("dense", model(loss={"reduction": "sum"}), "mean-vs-sum", 1, "loss"),
    ("masked", model(loss={"reduction": "all"}), "mean-vs-sum", 1, "loss"),
]


SILENT = Lie(hidden=("output", "loss", "grad.", "clipped.", "norm", "param.", "state.", "buffer."))
"""Tells the truth by its curves only, which takes the judge less time."""


def divergence(judged: JudgedTraining, backend: str) -> tuple[str, int, str | None] | None:
    first = judged.divergences[backend]
    return None if first is None else (first.diagnosis, first.step, first.stage)


@pytest.mark.parametrize(
    ("case", "lie", "diagnosis", "step", "stage"),
    one_of_each(
        lambda *row: row[-1],
        (pytest.param(*row, id=f"{row[0]}-{row[2]}-{i}") for i, row in enumerate(FAULTS)),
    ),
)
def test_a_liar_is_named_with_step_and_stage(
    case: str, lie: Lie, diagnosis: str, step: int, stage: str, cases: dict[str, CasePlan]
) -> None:
    found = judged(cases[case], {"honest": SILENT, "liar": lie})
    assert divergence(found, "liar") == (diagnosis, step, stage), [(d.id, dict(d.evidence)) for d in found.diagnoses]
    assert divergence(found, "honest") is None
    assert [d.id for d in found.diagnoses] == [diagnosis], "one cause and none of its consequences"
    assert all(d.explained for d in found.diagnoses)


def edit_that_says(text: str, program: Program, tensors: Mapping[str, NDArray[Any]], target: str) -> Edit:
    """The first edit whose description begins with a text; some edits of a program cannot be done."""
    for edit in edits_of(program, Trial(program, tensors).shapes, target):
        with contextlib.suppress(IncompatibleError):
            if described(program, edit).startswith(text):
                return edit
    raise AssertionError(f"no edit says {text}")


def edited(case: CasePlan, text: str) -> Lie:
    """The edit of the optimizer's program whose description begins with a text."""
    training = case.params
    op = OPS[training.optimizer]
    params = op.params(**training.groups[0].options)
    tensors = {name: np.ones(3) for name in op.infer_shapes(params, {"param": (3,)}).inputs}
    program = whole_program(op, params, tensors)
    edit = edit_that_says(text, program, tensors, "param")
    return lies(StepChanges(update=Update(edits=ProgramEdits(program, (edit,)))))


SHORTER = {
    "sqrt(new exp_avg_sq), where the reference has sqrt(new exp_avg_sq) / spread": (
        "v_hat = new exp_avg_sq, where the reference has new exp_avg_sq / bc2"
    )
}
"""The same mistake in another form of the optimizer; which one comes first depends on the last digits."""


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("groups", "rate = lr, where the reference has lr / bc1"),
        ("groups", "sqrt(new exp_avg_sq), where the reference has sqrt(new exp_avg_sq) / spread"),
        ("groups", "1 - betas[0], where the reference has 1 - betas[1]"),
        ("groups", "rate * exp_avg, where the reference has rate * new exp_avg"),
        ("dense", "1 - momentum, where the reference has 1 - dampening"),
        ("dense", "lr * momentum_buffer, where the reference has lr * new momentum_buffer"),
    ],
)
def test_a_mistake_that_nobody_listed_has_an_expression(case: str, text: str, cases: dict[str, CasePlan]) -> None:
    found = judged(cases[case], {"honest": SILENT, "liar": edited(cases[case], text)})
    [diagnosis] = found.diagnoses
    assert (diagnosis.id, diagnosis.explained, diagnosis.evidence["stage"]) == ("reference-edit", True, "update")
    assert diagnosis.evidence["expression"].startswith((text, SHORTER.get(text, text)))


@pytest.mark.parametrize("patterns", [("*.bias",), ("linear0.*",)])
def test_gradients_of_some_parameters_that_are_not_cleared_are_named(
    patterns: tuple[str, ...], cases: dict[str, CasePlan]
) -> None:
    names = [p.name for p in cases["dense"].params.parameters]
    own = sorted(name for name in names for pattern in patterns if fnmatchcase(name, pattern))
    lie = lies(StepChanges(kept=frozenset(own)))
    [diagnosis] = judged(cases["dense"], {"honest": SILENT, "liar": lie}).diagnoses
    assert (diagnosis.id, diagnosis.evidence["parameters"]["of"]) == ("gradient-not-zeroed", own)


@pytest.mark.parametrize("pattern", ["*.bias", "linear1.*"])
def test_an_option_that_some_parameters_of_a_group_do_not_have_is_named(pattern: str, tmp_path: Path) -> None:
    text = GROUPS.replace("adam, lr: 0.01, eps: 1.0e-3", "adamw, lr: 0.01, weight_decay: 0.1")
    case = planned(text.replace('[{parameters: ["linear1.*"], lr: 0.002}]', "[]"), tmp_path)
    own = [p.name for p in case.params.parameters if fnmatchcase(p.name, pattern)]
    lie = lies(StepChanges(update=Update(options={0: {"weight_decay": 0.0}}, of=frozenset(own))))
    [diagnosis] = judged(case, {"honest": SILENT, "liar": lie}).diagnoses
    assert diagnosis.evidence["parameters"]["of"] == sorted(own)
    assert diagnosis.evidence["expression"] in NOT_DECAYED


NOT_DECAYED = (
    "shrink = lr * 0, where the reference has lr * weight_decay",
    "shrink = 0 * weight_decay, where the reference has lr * weight_decay",
)


def test_an_option_whose_number_is_right_by_chance_ties_with_a_number_in_place(tmp_path: Path) -> None:
    """1 - 0.01 * 0.1 is the square's beta, 0.999."""
    text = GROUPS.replace("adam, lr: 0.01, eps: 1.0e-3", "adamw, lr: 0.01, weight_decay: 0.1")
    case = planned(text.replace('[{parameters: ["linear1.*"], lr: 0.002}]', "[]"), tmp_path)
    params = OPS["adamw"].params(lr=0.01, weight_decay=0.1, step=3)
    tensors = {n: np.ones((2, 3)) for n in ("param", "grad", "exp_avg", "exp_avg_sq")}
    program = whole_program(OPS["adamw"], params, tensors)
    edit = edit_that_says("(1 - betas[1]) * param, where", program, tensors, "param")
    [diagnosis] = judged(
        case, {"honest": SILENT, "liar": lies(StepChanges(update=Update(edits=ProgramEdits(program, (edit,)))))}
    ).diagnoses
    assert diagnosis.evidence["expression"] == "shrink = 0.01 * weight_decay, where the reference has lr * weight_decay"
    [tied] = diagnosis.evidence["not_told_from"]
    assert "betas[1]" in tied["expression"]


def test_an_edit_of_the_loss_explains_the_gradient(cases: dict[str, CasePlan]) -> None:
    op, tensors = OPS["cross_entropy"], {"x": np.ones((3, 4)), "target": np.zeros(3, np.int64)}
    program = whole_program(op, op.params(), tensors)
    text = "y = reshape(sum(kept, axis=(0, 1)), ()) / (n_counted - 1)"
    edit = edit_that_says(text, program, tensors, "y")
    lie = lies(StepChanges(model={"loss": {"edits": ProgramEdits(program, (edit,))}}))
    case = replace(cases["dense"], params=replace(cases["dense"].params, accumulation=1))
    [diagnosis] = judged(case, {"honest": SILENT, "liar": lie}).diagnoses
    assert (diagnosis.id, diagnosis.evidence["stage"]) == ("reference-edit", "loss")
    assert diagnosis.evidence["expression"].startswith(text)


def test_errors_of_the_size_of_a_format_that_go_another_way_have_no_cause(cases: dict[str, CasePlan]) -> None:
    found = judged(cases["dense"], {"honest": SILENT, "noisy": Lie(noise=3e-3)})
    named = divergence(found, "noisy")
    assert named is not None
    assert (named[0], named[2]) == ("unexplained", "forward")


@pytest.mark.parametrize(
    ("case", "dtype", "seed"),
    one_of_each(lambda case, *_: case, product(CASES, ("float32", "float64"), (0, 1))),
)
def test_who_sums_in_another_order_raises_no_alarm(
    case: str, dtype: str, seed: int, cases: dict[str, CasePlan]
) -> None:
    found = judged(cases[case], {"pairs": HONEST, "sequence": Lie(other=True)}, dtype, seed)
    assert found.divergences == {"pairs": None, "sequence": None}
    assert not found.diagnoses
    assert all(c.verdict.passes for c in found.comparisons)


def test_two_faults_are_both_named_and_their_consequences_are_not(cases: dict[str, CasePlan]) -> None:
    changes = StepChanges(model={"gelu": {"form": "tanh"}}, update=Update({"nesterov": True}))
    found = judged(cases["dense"], {"honest": HONEST, "liar": lies(changes)})
    assert [d.id for d in found.diagnoses] == ["activation-form", "nesterov-form"]
    assert [d.evidence["stage"] for d in found.diagnoses] == ["forward", "update"]


def test_two_faults_of_one_stage_are_found_together(cases: dict[str, CasePlan]) -> None:
    changes = StepChanges(update=Update({"bias_correction": False, "eps_placement": "inside"}))
    found = judged(cases["groups"], {"honest": HONEST, "liar": lies(changes)})
    assert {d.id for d in found.diagnoses} == {"bias-correction", "eps-placement"}


def test_attributes_in_float32_are_rounding_in_float32_and_have_a_name_in_float64(cases: dict[str, CasePlan]) -> None:
    lie = lies(StepChanges(update=Update({"powers_dtype": "float32"}, narrow="float32")))
    assert divergence(judged(cases["groups"], {"honest": HONEST, "narrow": lie}), "narrow") is None
    found = judged(cases["groups"], {"honest": HONEST, "narrow": lie}, "float64")
    assert divergence(found, "narrow") == ("attribute-precision", 1, "update")
    assert {c.verdict.value for c in found.comparisons if c.verdict.fails} == {"degraded"}


@pytest.mark.parametrize(
    ("case", "lie", "diagnosis"),
    [
        ("groups", updates(bias_correction=False), "bias-correction"),
        ("dense", clips(None), "clip-ignored"),
        ("dense", updates(lr_inside=True), "lr-in-momentum"),
        ("masked", updates(decoupled=False), "weight-decay-coupling"),
    ],
)
def test_what_a_mode_does_not_show_is_told_from_the_update(
    case: str, lie: Lie, diagnosis: str, cases: dict[str, CasePlan]
) -> None:
    hidden = ("grad.", "clipped.", "norm", "output")
    found = judged(cases[case], {"honest": replace(HONEST, hidden=hidden), "liar": replace(lie, hidden=hidden)})
    assert divergence(found, "honest") is None
    named = divergence(found, "liar")
    assert named is not None
    assert (named[0], named[2]) == (diagnosis, "update")


def test_a_step_that_is_wrong_once_is_named_as_such(cases: dict[str, CasePlan]) -> None:
    found = judged(cases["dense"], {"honest": HONEST, "liar": updates(dampened_first=True)})
    assert "at step 1 only" in found.diagnoses[0].evidence["where"]


def test_what_no_hypothesis_explains_is_said_to_be_unexplained(cases: dict[str, CasePlan]) -> None:
    lie = lies(StepChanges(update=Update(rate=lambda step, _group, lr: lr * (1 + 0.1 * step))))
    found = judged(cases["groups"], {"honest": HONEST, "liar": lie})
    assert divergence(found, "liar") == ("unexplained", 2, "update")
    assert not found.diagnoses[0].explained
    assert found.diagnoses[0].evidence["tried"] > 10


@pytest.mark.parametrize("case", CASES)
def test_every_cause_has_an_entry_in_the_catalogue(case: str, cases: dict[str, CasePlan]) -> None:
    record = Run(cases[case].params, "float32", setting_of(cases[case])).one()
    measured = MeasuredStage(replace(record, previous=record))
    for name in SOURCES:
        for dtype in ("float32", "float64"):
            stated = standing(name, Stage(cases[case].params, 2, dtype, measured))
            assert {cause.id for cause in stated} <= set(catalogue())
