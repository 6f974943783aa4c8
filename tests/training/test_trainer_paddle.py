"""Paddle's trainings in a worker: against a loop written by hand, and step by step against the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parity.training.spec import Clip, Schedule, Training
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
LIMIT = {"float32": 2e-5, "float64": 5e-7}
"""Paddle keeps most attributes of its kernels in float32."""

EPS_INSIDE = StepChanges(update=Update({"eps_inside": True}))
OWN_FORMULAS = {"rmsprop": EPS_INSIDE, "rmsprop-centered": EPS_INSIDE}
"""Where Paddle's optimizers follow another formula than PyTorch's."""


@pytest.fixture(scope="module")
def paddle_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("paddle"), "paddle") as found:
        yield found


@pytest.fixture(scope="module")
def own_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("own"), "paddle", OWN) as found:
        yield found


def test_the_loop_is_that_of_a_user_bit_for_bit(paddle_client, tmp_path):
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
    paddle_client.train(case)
    curves, state = paddle_client.steps(10), paddle_client.state()
    losses, parameters = run_by_hand(paddle_client, "paddle", "paddle_mlp.py", case, tmp_path)
    np.testing.assert_allclose(curves["loss"], losses, rtol=1e-7)
    for name, value in parameters.items():
        np.testing.assert_array_equal(state[f"param.{name}"], value, err_msg=name)


MODELS: dict[str, tuple[Training, StepChanges]] = {
    "mlp": (preset("mlp", options=SGD), StepChanges()),
    "cnn": (preset("cnn", options=SGD), StepChanges({"batch_norm": {"running_ddof": 0}})),
    "bert": (preset("bert", options=SGD), StepChanges()),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_oracles_but_for_running_variances(paddle_client, name, dtype):
    case, own = MODELS[name]
    assert_within(worst_errors(paddle_client, case, dtype, own), LIMIT[dtype])


def test_batch_norm_keeps_the_biased_variance(paddle_client):
    found = worst_errors(paddle_client, MODELS["cnn"][0])
    assert_within(found, LIMIT["float64"], buffer=0.1)
    assert found["buffer"] > 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_follow_their_formulas(paddle_client, name, dtype):
    op, options = OPTIMIZERS[name]
    case = preset("mlp", optimizer=op, options=options, steps=4)
    found = worst_errors(paddle_client, case, dtype, OWN_FORMULAS.get(name, StepChanges()))
    assert_within(found, 20 * LIMIT[dtype])


def test_rmsprop_adds_eps_under_the_root(paddle_client):
    case = preset("mlp", optimizer="rmsprop", options=RMSPROP)
    assert worst_errors(paddle_client, case)["param"] > 1e-3


def test_rmsprop_keeps_the_rate_in_its_momentum(paddle_client):
    case = preset("mlp", optimizer="rmsprop", options={**RMSPROP, "momentum": 0.9, "centered": True})
    own = StepChanges(update=Update({"eps_inside": True, "lr_inside": True}))
    assert_within(worst_errors(paddle_client, case, changes=own), LIMIT["float64"])
    assert worst_errors(paddle_client, case, changes=EPS_INSIDE)["state.momentum_buffer"] > 0.9


GROUPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd": ("sgd", SGD, {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.0}),
    "adam": ("adam", ADAM, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.0}),
    "adamw": ("adamw", ADAM, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.0}),
    "lamb": ("lamb", ADAM, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.0}),
    "adagrad": ("adagrad", ADAGRAD, {"lr": 0.01, "eps": 0.1, "weight_decay": 0.0}),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_their_own_options(paddle_client, name):
    op, options, other = GROUPS[name]
    case = in_two_groups(options, other, optimizer=op, schedule=SCHEDULED[5], steps=4)
    assert_within(worst_errors(paddle_client, case), 20 * LIMIT["float64"])


@pytest.mark.parametrize("schedule", SCHEDULED, ids=lambda s: f"{s.name}-{s.options.get('start_factor', '')}")
def test_schedules_follow_their_formulas_in_every_group(paddle_client, schedule):
    got, wanted = rates_of(paddle_client, in_two_groups(SGD, {"lr": 0.03}, schedule=schedule, steps=9))
    np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-17)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: f"{c.name}-{c.scope}-{c.norm_type}-{c.max_norm}")
def test_gradients_are_clipped_within_their_scope(paddle_client, clip):
    found = worst_errors(paddle_client, in_two_groups(SGD, {}, clip=clip, steps=2), "float32")
    assert_within(found, LIMIT["float32"])


def test_micro_batches_give_the_gradient_of_their_mean(paddle_client):
    case = preset("mlp", options=SGD, accumulation=4)
    assert_within(worst_errors(paddle_client, case), LIMIT["float64"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_from_its_state(paddle_client, name, dtype):
    op, options = OPTIMIZERS[name]
    assert_resumes(paddle_client, preset("mlp", optimizer=op, options=options, schedule=SCHEDULED[5], steps=6), dtype)


def test_groups_with_and_without_momentum_go_on_from_their_state(paddle_client):
    case = in_two_groups(SGD, {"momentum": 0.9, "lr": 0.03}, schedule=SCHEDULED[3], steps=6)
    assert_resumes(paddle_client, case, "float32")


ENDS = Schedule("polynomial", {"total_iters": 6, "power": 1.0, "end_lr": 0.01})
LACKING = {
    "has no dampening": preset("mlp", options={**SGD, "momentum": 0.9, "dampening": 0.5}),
    "has no lr_decay": preset("mlp", optimizer="adagrad", options={**ADAGRAD, "lr_decay": 0.1}),
    "gamma should be": preset("mlp", options=SGD, schedule=Schedule("step", {"step_size": 2, "gamma": 2.0})),
    "cannot have the same end_lr": in_two_groups(SGD, {"lr": 0.03}, schedule=ENDS),
}


@pytest.mark.parametrize("reason", LACKING)
def test_what_paddle_lacks_is_unsupported_with_its_reason(paddle_client, reason):
    reply = answer_to(paddle_client, LACKING[reason])
    assert reply["outcome"] == "unsupported"
    assert reason in reply["message"]


OWN = """
from pathlib import Path

import paddle
import paddle.nn.functional as F

CALLED = Path(__file__).with_suffix(".called")


def called(name):
    with CALLED.open("a") as file:
        file.write(name + "\\n")


def embedding(x, weight):
    called("embedding")
    return F.embedding(x, weight)


def position_embedding(x, weight):
    called("position_embedding")
    return x + weight[: x.shape[1]]


def linear(x, weight, bias=None):
    called("linear")
    return F.linear(x, weight.t(), bias)


def layer_norm(x, normalized_shape, eps, weight, bias):
    called("layer_norm")
    return F.layer_norm(x, list(normalized_shape), weight, bias, eps)


def gelu(x):
    called("gelu")
    return F.gelu(x)


def scaled_dot_product_attention(query, key, value):
    called("scaled_dot_product_attention")
    scores = paddle.matmul(query, key, transpose_y=True) / query.shape[-1] ** 0.5
    return paddle.matmul(F.softmax(scores), value)


def conv2d(x, weight, bias, stride, padding):
    called("conv2d")
    return F.conv2d(x, weight, bias, stride, padding)


def batch_norm(x, running_mean, running_var, training, momentum, eps, weight, bias):
    called("batch_norm")
    y = F.batch_norm(x, running_mean.clone(), running_var.clone(), weight, bias, training, 1 - momentum, eps)
    axes = [0, *range(2, x.ndim)]
    mean = momentum * x.mean(axes) + (1 - momentum) * running_mean
    return {"y": y, "running_mean": mean, "running_var": momentum * x.var(axes) + (1 - momentum) * running_var}


def cross_entropy(x, target):
    called("cross_entropy")
    losses = F.cross_entropy(x, target, reduction="none")
    return losses.sum() / (target >= 0).astype(x.dtype).sum()


def clip_grad_norm(grads, max_norm, norm_type, scope):
    called("clip_grad_norm")
    norm = sum((grad * grad).sum() for grad in grads) ** 0.5
    return {"grads": [grad * paddle.clip(max_norm / (norm + 1e-6), max=1.0) for grad in grads], "total_norm": norm}


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
        parameter.clear_gradient()
"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_a_users_functions_take_the_place_of_everything(own_client, name, dtype):
    more = {"optimizer": "adamw", "options": ADAM, "schedule": SCHEDULED[1], "clip": Clip("norm", 0.05)}
    assert_within(worst_errors(own_client, preset(name, **more), dtype), 5 * LIMIT[dtype])


def test_every_function_of_the_user_was_called(own_client):
    defined = {line[4:].partition("(")[0] for line in OWN.splitlines() if line.startswith("def ")}
    assert set((own_client.folder / "my_ops.called").read_text().split()) == defined - {"called"}


def test_norm_types_that_paddle_does_not_have_are_unsupported(paddle_client):
    paddle_client.train(preset("mlp", options=SGD, clip=Clip("norm", 0.05, norm_type=3.0)), "float32")
    reply, _ = paddle_client.ask("steps", count=1)
    assert reply["outcome"] == "unsupported"
    assert "norm_type" in reply["message"]
