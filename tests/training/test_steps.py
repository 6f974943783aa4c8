"""Schedules, clipping, updates and whole runs of the oracle, against torch.optim and torch.nn.utils."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from parity.cases.op import CaseError
from parity.diagnoses import catalogue
from parity.training.data import GENERATORS, IGNORED, check, generate, order
from parity.training.judge.oracle import merged, update_of
from parity.training.messages import training_of
from parity.training.schedules import SCHEDULES
from parity.training.schedules import check as check_schedule
from parity.training.spec import Clip, DataSpec, Group, Schedule, message
from parity.training.steps import Clipping, Update, clipped, rates
from parity.training.variants import narrow_options
from tests.training import torch_models
from tests.training.examples import drawn, preset
from tests.training.whole_steps import StepChanges, stepped

# Schedules.


def optimizer_of(lr=0.3):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


LR = torch.optim.lr_scheduler
TORCH = {
    "constant": ({}, lambda o: LR.ConstantLR(o, factor=1.0)),
    "linear": ({"total_iters": 5, "start_factor": 0.1}, lambda o: LR.LinearLR(o, 0.1, total_iters=5)),
    "polynomial": ({"total_iters": 12, "power": 2.0}, lambda o: LR.PolynomialLR(o, 12, power=2.0)),
    "cosine": ({"T_max": 9, "eta_min": 0.01}, lambda o: LR.CosineAnnealingLR(o, 9, eta_min=0.01)),
    "step": ({"step_size": 4, "gamma": 0.5}, lambda o: LR.StepLR(o, 4, gamma=0.5)),
    "warmup_polynomial": (
        {"warmup_steps": 4, "total_iters": 12, "start_factor": 0.25},
        lambda o: LR.SequentialLR(o, [LR.LinearLR(o, 0.25, total_iters=4), LR.PolynomialLR(o, 8)], milestones=[4]),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # the optimizer's own step changes no rate
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR calls it itself
def test_schedules_are_those_of_pytorch(name):
    options, made = TORCH[name]
    optimizer = optimizer_of()
    schedule, given = made(optimizer), SCHEDULES[name].options(**options)
    for t in range(16):
        mine = SCHEDULES[name].rate(0.3, t, given)
        np.testing.assert_allclose(mine, optimizer.param_groups[0]["lr"], rtol=1e-12, atol=1e-16, err_msg=str(t))
        schedule.step()


def test_a_polynomial_ends_at_its_last_rate():
    options = SCHEDULES["warmup_polynomial"].options(2, 6, end_lr=0.1)
    found = [SCHEDULES["warmup_polynomial"].rate(0.5, t, options) for t in range(9)]
    np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], rtol=1e-15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_variant_of_a_schedule_changes_a_rate(name):
    options = SCHEDULES[name].options(**TORCH[name][0])
    plain = [SCHEDULES[name].rate(0.3, t, options) for t in range(16)]
    variants = SCHEDULES[name].variants(options)
    assert bool(variants) == (name != "constant")
    for variant in variants:
        assert variant.id in catalogue()
        found = [SCHEDULES[name].rate(0.3, t, options, **variant.arguments) for t in range(16)]
        assert found != plain or (name, variant.id) == ("step", "attribute-precision"), variant
        assert min(found) >= 0


WARM = SCHEDULES["warmup_polynomial"].options
BROKEN_SCHEDULES = [
    (SCHEDULES["linear"].options(0), "total_iters"),
    (SCHEDULES["cosine"].options(5, eta_min=float("nan")), "eta_min"),
    (SCHEDULES["step"].options(3, gamma=-1.0), "gamma"),
    (WARM(5, 5), "warmup_steps"),
    (WARM(-1, 5), "warmup_steps"),
]


@pytest.mark.parametrize(("options", "key"), BROKEN_SCHEDULES)
def test_a_schedule_that_makes_no_sense_is_refused(options, key):
    with pytest.raises(CaseError) as caught:
        check_schedule(options)
    assert caught.value.key == key


# Whole runs.

ADAM = {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-6}
OPTIMIZERS = {
    "sgd": ("sgd", {"lr": 0.1}, lambda groups: torch.optim.SGD(groups, lr=0.1)),
    "momentum": (
        "sgd",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, dampening=0.3),
    ),
    "nesterov": (
        "sgd",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adam": ("adam", ADAM, lambda groups: torch.optim.Adam(groups, **ADAM)),
    "adamw": ("adamw", ADAM, lambda groups: torch.optim.AdamW(groups, **ADAM)),
    "rmsprop": (
        "rmsprop",
        {"lr": 0.01, "momentum": 0.5, "centered": True},
        lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    ),
    "adagrad": (
        "adagrad",
        {"lr": 0.05, "lr_decay": 0.1},
        lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.1),
    ),
}
RECIPE = {
    "schedule": Schedule("warmup_polynomial", {"warmup_steps": 4, "total_iters": 15, "start_factor": 0.25}),
    "clip": Clip(max_norm=0.5),
    "steps": 20,
    "accumulation": 2,
}


def grouped(case, options):
    """Matrices decay, vectors do not and have another rate."""
    names = [p.name for p in case.parameters]
    decayed = tuple(name for name in names if name.endswith("weight"))
    rest = tuple(name for name in names if name not in decayed)
    return (
        Group(decayed, {**options, "weight_decay": 0.05}),
        Group(rest, {**options, "weight_decay": 0.0, "lr": options["lr"] / 2}),
    )


def case_of(name="adam", model="mlp", **more):
    optimizer, options, _ = OPTIMIZERS[name]
    case = preset(model, optimizer=optimizer, rows=32, **{**RECIPE, **more})
    return replace(case, groups=grouped(case, options))


def started(case):
    kinds = {p.name: "param" if p.trained else "buffer" for p in case.tensors}
    return {f"{kinds[name]}.{name}": values for name, values in drawn(case).items()}


def run(case, dtype="float64", changes=None):
    """The tensors of every step."""
    x, target = generate(case.data, 0, "case", "float32")
    found, before = [], started(case)
    for step, rows in enumerate(order(case, 0, "case"), start=1):
        parts = [(x[part], target[part]) for part in np.split(rows, case.accumulation)]
        before = stepped(case, step, before, parts, dtype=dtype, changes=changes or StepChanges())
        found.append(before)
    return found


def torch_run(case, made):
    """Parameters, loss, norm and rates of every step in PyTorch."""
    tensors = {
        n: torch.tensor(v, requires_grad=n in case.groups[0].parameters + case.groups[1].parameters)
        for n, v in drawn(case).items()
    }
    groups = [
        {"params": [tensors[n] for n in g.parameters], "weight_decay": g.options["weight_decay"], "lr": g.options["lr"]}
        for g in case.groups
    ]
    optimizer = made(groups)
    schedule = LR.SequentialLR(
        optimizer, [LR.LinearLR(optimizer, 0.25, total_iters=4), LR.PolynomialLR(optimizer, 11)], milestones=[4]
    )
    x, target = (
        torch.tensor(v, dtype=torch.float64 if v.dtype.kind == "f" else None)
        for v in generate(case.data, 0, "case", "float32")
    )
    for rows in order(case, 0, "case"):
        optimizer.zero_grad()
        parts = [(x[part], target[part]) for part in np.split(rows, case.accumulation)]
        _, loss = torch_models.gradients(case, tensors, parts)
        norm = torch.nn.utils.clip_grad_norm_([p for g in groups for p in g["params"]], case.clip.max_norm)
        lr = [g["lr"] for g in optimizer.param_groups]
        optimizer.step()
        schedule.step()
        yield {n: t.detach().numpy().copy() for n, t in tensors.items()}, loss, norm, lr


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR calls it itself
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_20_steps_are_those_of_pytorch(name):
    case = case_of(name)
    for mine, (tensors, loss, norm, lr) in zip(run(case), torch_run(case, OPTIMIZERS[name][2]), strict=True):
        np.testing.assert_allclose(mine["loss"], loss, rtol=1e-9)
        np.testing.assert_allclose(mine["norm"], norm, rtol=1e-8)
        np.testing.assert_allclose(mine["lr"], lr, rtol=1e-12, atol=1e-18)
        for parameter, values in tensors.items():
            np.testing.assert_allclose(mine[f"param.{parameter}"], values, rtol=1e-8, atol=1e-10, err_msg=parameter)


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR calls it itself
@pytest.mark.parametrize("model", ["cnn", "bert"])
def test_20_steps_of_larger_models_are_those_of_pytorch(model):
    case = case_of("momentum", model)
    mine, (tensors, loss, *_) = run(case)[-1], list(torch_run(case, OPTIMIZERS["momentum"][2]))[-1]
    np.testing.assert_allclose(mine["loss"], loss, rtol=1e-9)
    for parameter in case.tensors:
        name = ("param." if parameter.trained else "buffer.") + parameter.name
        np.testing.assert_allclose(mine[name], tensors[parameter.name], rtol=1e-7, atol=1e-10, err_msg=name)


def test_a_step_shows_every_tensor_by_its_name():
    case = case_of("adamw", "cnn")
    first = run(case)[0]
    names = {p.name for p in case.parameters}
    kinds = ("grad", "clipped", "param", "state.exp_avg", "state.exp_avg_sq")
    expected = {"output", "loss", "lr", "norm", *(f"{kind}.{name}" for kind in kinds for name in names)}
    assert set(first) == expected | {f"buffer.{p.name}" for p in case.buffers}
    assert first["lr"].shape == (2,)


def test_a_run_learns():
    for model in ("mlp", "bert"):
        case = replace(case_of("adam", model, steps=60), schedule=Schedule(), clip=None)
        losses = [float(step["loss"]) for step in run(case)]
        assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
@pytest.mark.parametrize("name", [*OPTIMIZERS, "lamb"])
def test_a_step_stays_in_its_dtype(name, dtype):
    case = case_of("adam" if name == "lamb" else name, steps=2)
    case = replace(case, optimizer="lamb") if name == "lamb" else case
    for step in run(case, dtype):
        assert {values.dtype for key, values in step.items() if key != "lr"} == {np.dtype(dtype)}


def test_a_message_comes_back_as_the_training():
    for model in ("mlp", "cnn", "bert"):
        case = case_of("adamw", model)
        told = json.loads(json.dumps(message(case)))
        back = training_of(told, {p.name: p.shape for p in case.tensors})
        assert message(back) == message(case)
        assert [p.name for p in back.tensors] == [p.name for p in case.tensors]
        x, target = generate(case.data, 0, "case", "float32")
        first, second = (stepped(some, 1, started(case), [(x, target)]) for some in (case, back))
        assert all(np.array_equal(first[name], second[name]) for name in first)


# Changes of a step.

OTHER_CLIP = Clip(max_norm=0.05)
CHANGES = {
    "model": StepChanges(model={"matmul": {"operands": "bfloat16"}}),
    "schedule-ignored": StepChanges(schedule={"ignored": True}),
    "clip-ignored": StepChanges(clipping=Clipping(None)),
    "clip-per-tensor": StepChanges(clipping=Clipping(replace(OTHER_CLIP, scope="tensor"))),
    "clip-by-group": StepChanges(clipping=Clipping(replace(OTHER_CLIP, scope="group"))),
    "clip-by-value": StepChanges(clipping=Clipping(OTHER_CLIP, {"by_value": True})),
    "clip-unclamped": StepChanges(clipping=Clipping(Clip(max_norm=100.0), {"clamped": False})),
    "decoupled": StepChanges(update=Update({"decoupled": True})),
    "no-bias-correction": StepChanges(update=Update({"bias_correction": False})),
    "step-offset": StepChanges(update=Update(offset=1)),
    "excludes-ignored": StepChanges(update=Update(options={1: {"weight_decay": 0.05}})),
    "other-rate": StepChanges(update=Update(rate=lambda step, group, lr: lr / step)),
    "doubled": StepChanges(update=Update(factor=2.0)),
    "narrow": StepChanges(update=Update(narrow="float32")),
    "kept": StepChanges(kept=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_changes_the_run(name):
    case = case_of("adam", steps=6, clip=OTHER_CLIP)
    plain, found = run(case)[-1], run(case, changes=CHANGES[name])[-1]
    assert any(not np.array_equal(plain[key], found[key]) for key in plain if key.startswith("param."))


def test_skipped_parameters_stay():
    case = case_of("adam", steps=2)
    name = case.parameters[0].name
    found = run(case, changes=StepChanges(update=Update(skipped=frozenset((name,)))))[-1]
    assert np.array_equal(found[f"param.{name}"], drawn(case)[name])
    assert not np.array_equal(found[f"param.{case.parameters[1].name}"], drawn(case)[case.parameters[1].name])


def test_options_in_float32_are_tried_in_every_combination():
    case = case_of("momentum", steps=2)
    names = {"lr", "momentum", "dampening", "weight_decay"}
    assert set(narrow_options(case)) == {frozenset(some) for n in range(1, 5) for some in combinations(names, n)}
    plain, one, every = (
        run(case, changes=StepChanges(update=update))[-1]["param.head.weight"]
        for update in (Update(), Update(narrow="float32", narrowed=frozenset({"lr"})), Update(narrow="float32"))
    )
    assert 0 < np.abs(one - plain).max() < 1e-7
    assert 0 < np.abs(every - one).max() < 1e-7


def test_two_changes_together():
    one = {"update": {"decoupled": True, "offset": 1}, "clip": {"by_value": True}}
    both = update_of(merged(one, {"update": {"bias_correction": False, "factor": 2.0}}))
    assert both == Update({"decoupled": True, "bias_correction": False}, offset=1, factor=2.0)


@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_what_is_clipped_together_has_the_norm(scope):
    case = case_of(clip=Clip(max_norm=0.01, scope=scope))
    grads = {p.name: np.full(p.shape, 3.0) for p in case.parameters}
    found, norm = clipped(case, grads)
    units = {"global": [list(grads)], "group": [g.parameters for g in case.groups], "tensor": [[n] for n in grads]}
    for unit in units[scope]:
        np.testing.assert_allclose(np.linalg.norm(np.concatenate([found[n].ravel() for n in unit])), 0.01, rtol=1e-6)
    np.testing.assert_allclose(norm, 3.0 * sum(g.size for g in grads.values()) ** 0.5, rtol=1e-14)


def test_clipping_by_value_and_not_at_all():
    grads = {p.name: np.full(p.shape, 3.0) for p in case_of().parameters}
    found, _ = clipped(case_of(clip=Clip("value", clip_value=0.5)), grads)
    assert {float(g.max()) for g in found.values()} == {0.5}
    found, norm = clipped(case_of(clip=None), grads)
    assert all(np.array_equal(found[n], grads[n]) for n in grads)
    assert norm > 0


def test_rates_by_group():
    case = case_of()
    assert rates(case, 5) == [0.02, 0.01]
    assert rates(case, 1, offset=4) == [0.02, 0.01]


# Data.

SETS = {
    "classification": {"features": (3, 4), "classes": 5},
    "regression": {"features": 4, "targets": 2},
    "masked_lm": {"vocab": 50, "sequence": 20},
}


def data_of(name, rows=300):
    kind = GENERATORS[name]
    options = kind.options(**SETS[name])
    check(options)
    return DataSpec(name, rows, kind.x(options), kind.target(options), SETS[name])


@pytest.mark.parametrize("name", GENERATORS)
def test_data_have_their_shapes_and_depend_on_seed_and_case_alone(name):
    data, kind = data_of(name), GENERATORS[name]
    x, target = generate(data, 3, "case", "float32")
    assert x.shape == (300, *data.x)
    assert target.shape == (300, *data.target)
    assert x.dtype == ("int64" if kind.tokens else "float32")
    assert target.dtype == ("float32" if name == "regression" else "int64")
    again = generate(data, 3, "case", "float64")
    assert all(np.array_equal(a, b.astype(a.dtype)) for a, b in zip((x, target), again, strict=True))
    for seed, case in ((4, "case"), (3, "other")):
        assert not np.array_equal(generate(data, seed, case, "float32")[0], x)


def test_rows_have_different_numbers_of_masked_tokens():
    x, target = generate(data_of("masked_lm"), 0, "case", "float32")
    masked = target != IGNORED
    counts = masked.sum(axis=1)
    assert counts.min() >= 1
    assert len(set(counts)) > 2
    assert (x[masked] == 49).all()
    assert (x[~masked] < 49).all()
    assert target[masked].min() >= 0
    assert target.max() < 49


def test_an_order_is_a_permutation_per_epoch_in_whole_batches():
    case = preset("mlp", rows=10, batch_size=4, steps=5)
    shuffled = order(case, 0, "case")
    assert shuffled.shape == (5, 4)
    assert shuffled.dtype == np.int32
    for epoch in (shuffled[:2], shuffled[2:4]):
        assert len(set(epoch.ravel())) == 8
    assert not np.array_equal(shuffled[:2], shuffled[2:4])
    plain = order(replace(case, data=replace(case.data, order="sequential")), 0, "case")
    assert plain.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2 + [[0, 1, 2, 3]]
    with pytest.raises(CaseError, match="larger than the data, 10 rows"):
        order(replace(case, batch_size=11), 0, "case")


BROKEN_DATA = [
    ("classification", {"features": (), "classes": 3}, "features"),
    ("classification", {"features": (3, 0), "classes": 3}, "features"),
    ("classification", {"features": 3, "classes": 1}, "classes"),
    ("regression", {"features": 3, "targets": 0}, "targets"),
    ("masked_lm", {"vocab": 2, "sequence": 4}, "vocab"),
    ("masked_lm", {"vocab": 9, "sequence": 4, "masked": 1.5}, "masked"),
]


@pytest.mark.parametrize(("name", "options", "key"), BROKEN_DATA)
def test_data_that_cannot_be_drawn_are_refused(name, options, key):
    with pytest.raises(CaseError) as caught:
        check(GENERATORS[name].options(**options))
    assert caught.value.key == key
