"""OneFlow's trainings in a worker: against a loop written by hand, and step by step against the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parity.training.spec import Clip, Schedule
from parity.training.steps import Update
from tests.training.examples import preset
from tests.training.requests import TrainingClient, client
from tests.training.trainer_checks import (
    ADAGRAD,
    ADAM,
    CLIPS,
    OPTIMIZERS,
    RMSPROP,
    SCHEDULED,
    SGD,
    answer_to,
    assert_resumes,
    assert_within,
    in_two_groups,
    rates_of,
    run_by_hand,
    worst_errors,
)
from tests.training.whole_steps import StepChanges

pytestmark = pytest.mark.frameworks

DTYPES = ("float32", "float64")
LIMIT = {"float32": 5e-5, "float64": 2e-6}
"""OneFlow keeps rates, betas and momenta in float32, and its softmax of float32 is off by some 30 ulp."""

EPS_INSIDE = StepChanges(update=Update({"eps_inside": True}))
UNMEASURED = StepChanges(update=Update({"decay": "unmeasured"}))
OWN_FORMULAS = {"rmsprop": EPS_INSIDE, "rmsprop-centered": EPS_INSIDE, "lamb": UNMEASURED}
"""Where OneFlow's optimizers follow another formula than PyTorch's or the paper's."""


@pytest.fixture(scope="module")
def oneflow_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("oneflow"), "oneflow") as found:
        yield found


def test_the_loop_is_that_of_a_user_bit_for_bit(oneflow_client, tmp_path):
    warm_up = {"warmup_steps": 3, "total_iters": 8, "start_factor": 0.0, "power": 1.0, "end_lr": 0.0}
    case = preset(
        "mlp",
        optimizer="adamw",
        options={"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1},
        schedule=Schedule("warmup_polynomial", warm_up),
        clip=Clip("norm", 0.05),
        accumulation=2,
        steps=10,
    )
    oneflow_client.train(case)
    curves, state = oneflow_client.steps(10), oneflow_client.state()
    losses, parameters = run_by_hand(oneflow_client, "oneflow", "oneflow_mlp.py", case, tmp_path)
    np.testing.assert_allclose(curves["loss"], losses, rtol=1e-7)
    for name, value in parameters.items():
        np.testing.assert_array_equal(state[f"param.{name}"], value, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mlp", "cnn", "bert"])
def test_models_are_the_oracles(oneflow_client, name, dtype):
    assert_within(worst_errors(oneflow_client, preset(name, options=SGD), dtype), LIMIT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_follow_their_formulas(oneflow_client, name, dtype):
    op, options = OPTIMIZERS[name]
    case = preset("mlp", optimizer=op, options=options, steps=4)
    found = worst_errors(oneflow_client, case, dtype, OWN_FORMULAS.get(name, StepChanges()))
    assert_within(found, 20 * LIMIT[dtype])


@pytest.mark.parametrize("name", ["rmsprop", "lamb"])
def test_some_formulas_are_oneflows_own(oneflow_client, name):
    op, options = OPTIMIZERS[name]
    assert worst_errors(oneflow_client, preset("mlp", optimizer=op, options=options))["param"] > 1e-4


def test_the_first_step_of_sgd_is_dampened(oneflow_client):
    case = preset("mlp", options={**SGD, "momentum": 0.9, "dampening": 0.5}, steps=2)
    own = StepChanges(update=Update({"dampened_first": True}))
    assert_within(worst_errors(oneflow_client, case, changes=own), LIMIT["float64"])
    assert worst_errors(oneflow_client, case)["state.momentum_buffer"] > 0.1


GROUPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd": ("sgd", SGD, {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.0}),
    "adam": ("adam", ADAM, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.0}),
    "adamw": ("adamw", ADAM, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.0}),
    "adagrad": ("adagrad", ADAGRAD, {"lr": 0.01, "eps": 0.1, "weight_decay": 0.0, "lr_decay": 0.1}),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_their_own_options(oneflow_client, name):
    op, options, other = GROUPS[name]
    case = in_two_groups(options, other, optimizer=op, schedule=SCHEDULED[5], steps=4)
    assert_within(worst_errors(oneflow_client, case), 20 * LIMIT["float64"])


ENDS = Schedule("polynomial", {"total_iters": 6, "power": 1.0, "end_lr": 0.01})


@pytest.mark.parametrize("schedule", [*SCHEDULED, ENDS], ids=lambda s: f"{s.name}-{s.options.get('start_factor', '')}")
def test_schedules_follow_their_formulas_in_every_group(oneflow_client, schedule):
    got, wanted = rates_of(oneflow_client, in_two_groups(SGD, {"lr": 0.03}, schedule=schedule, steps=9))
    np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-17)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: f"{c.name}-{c.scope}-{c.norm_type}-{c.max_norm}")
def test_gradients_are_clipped_within_their_scope(oneflow_client, clip):
    found = worst_errors(oneflow_client, in_two_groups(SGD, {}, clip=clip, steps=2))
    assert_within(found, LIMIT["float64"])


def test_micro_batches_give_the_gradient_of_their_mean(oneflow_client):
    case = preset("mlp", options=SGD, accumulation=4)
    assert_within(worst_errors(oneflow_client, case), LIMIT["float64"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_from_its_state(oneflow_client, name):
    op, options = OPTIMIZERS[name]
    case = preset("mlp", optimizer=op, options=options, schedule=SCHEDULED[5], steps=6)
    assert_resumes(oneflow_client, case, "float64")


LACKING = {
    "RMSprop has no momentum": preset("mlp", optimizer="rmsprop", options={**RMSPROP, "momentum": 0.9}),
    "between 0 and 1": preset("mlp", options=SGD, schedule=Schedule("linear", {"total_iters": 4, "start_factor": 2.0})),
}


@pytest.mark.parametrize("reason", LACKING)
def test_what_oneflow_lacks_is_unsupported_with_its_reason(oneflow_client, reason):
    reply = answer_to(oneflow_client, LACKING[reason])
    assert reply["outcome"] == "unsupported"
    assert reason in reply["message"]


OWN = """
from pathlib import Path

import oneflow as flow
import oneflow.nn.functional as F

CALLED = Path(__file__).with_suffix(".called")


def called(name):
    with CALLED.open("a") as file:
        file.write(name + "\\n")


def embedding(x, weight):
    called("embedding")
    return F.embedding(x, weight)


def linear(x, weight, bias=None):
    called("linear")
    return flow.matmul(x, weight.transpose(0, 1)) + bias


def layer_norm(x, normalized_shape, eps, weight, bias):
    called("layer_norm")
    error = x - x.mean(-1, keepdim=True)
    return error / ((error * error).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def gelu(x):
    called("gelu")
    return 0.5 * x * (1 + flow.erf(x / 2**0.5))


def scaled_dot_product_attention(query, key, value):
    called("scaled_dot_product_attention")
    scores = flow.matmul(query, key.transpose(2, 3)) / query.shape[-1] ** 0.5
    return flow.matmul(flow.softmax(scores, dim=-1), value)


def batch_norm(x, running_mean, running_var, training, momentum, eps, weight, bias):
    called("batch_norm")
    mean, n = x.mean((0, 2, 3)), x.numel() / x.shape[1]
    error = x - mean.reshape(1, -1, 1, 1)
    var = (error * error).mean((0, 2, 3))
    y = error / (var.reshape(1, -1, 1, 1) + eps).sqrt() * weight.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
    new = momentum * var * n / (n - 1) + (1 - momentum) * running_var
    return {"y": y, "running_mean": momentum * mean + (1 - momentum) * running_mean, "running_var": new}


def cross_entropy(x, target):
    called("cross_entropy")
    return F.cross_entropy(x, target)


def clip_grad_norm(grads, max_norm, norm_type, scope):
    called("clip_grad_norm")
    norm = sum((grad * grad).sum() for grad in grads) ** 0.5
    return {"grads": [grad * (max_norm / (norm + 1e-6)).clamp(max=1.0) for grad in grads], "total_norm": norm}


def adamw(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    called("adamw")
    first = betas[0] * exp_avg + (1 - betas[0]) * grad
    second = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    root = (second / (1 - betas[1] ** step)).sqrt() + eps
    moved = param * (1 - lr * weight_decay) - lr / (1 - betas[0] ** step) * first / root
    return {"param": moved, "exp_avg": first, "exp_avg_sq": second}


def learning_rate(step, lr, name, total_iters, start_factor):
    called("learning_rate")
    return lr * (start_factor + (1 - start_factor) * min(step - 1, total_iters) / total_iters)


def zero_grad(parameters):
    called("zero_grad")
    for parameter in parameters:
        parameter.grad = None
"""


@pytest.fixture(scope="module")
def own_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("own"), "oneflow", OWN) as found:
        yield found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_a_users_functions_take_the_place_of_everything(own_client, name, dtype):
    more = {"optimizer": "adamw", "options": ADAM, "schedule": SCHEDULED[1], "clip": Clip("norm", 0.05)}
    assert_within(worst_errors(own_client, preset(name, **more), dtype), 5 * LIMIT[dtype])


def test_every_function_of_the_user_was_called(own_client):
    defined = {line[4:].partition("(")[0] for line in OWN.splitlines() if line.startswith("def ")}
    assert set((own_client.folder / "my_ops.called").read_text().split()) == defined - {"called"}
