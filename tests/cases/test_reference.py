"""The oracle: its gradients against finite differences, its values against published numbers, its checks of shapes."""

from __future__ import annotations

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.attention import MultiHeadParams
from parity.cases.clip import ClipGradNormParams, ClipGradValueParams
from parity.cases.conv import Conv2dParams
from parity.cases.draw import generator
from parity.cases.elementwise import GeluParams, NoParams
from parity.cases.embedding import EmbeddingParams, PositionParams
from parity.cases.loss import CrossEntropyParams, MseLossParams
from parity.cases.matmul import LinearParams
from parity.cases.norm import BatchNormParams, GroupNormParams, InstanceNormParams, LayerNormParams
from parity.cases.op import CaseError
from parity.cases.oracle import evaluate
from parity.cases.pooling import AvgPool2dParams

DIFFERENTIABLE = {
    "layer_norm": (LayerNormParams((3, 4)), {"x": (5, 3, 4)}),
    "group_norm": (GroupNormParams(2), {"x": (3, 4, 5)}),
    "instance_norm": (InstanceNormParams(eps=0.1), {"x": (2, 3, 4, 2)}),
    "batch_norm": (BatchNormParams(), {"x": (5, 3, 2)}),
    "batch_norm-eval": (BatchNormParams(training=False), {"x": (5, 3)}),
    "linear": (LinearParams(out_features=4), {"x": (2, 3, 5)}),
    "conv2d": (Conv2dParams(4, 3, stride=2, padding=1), {"x": (2, 3, 6, 5)}),
    "conv2d-groups": (Conv2dParams(4, 2, groups=2, dilation=2), {"x": (2, 4, 5, 6)}),
    "embedding": (EmbeddingParams(5, 3), {"x": (2, 4)}),
    "position_embedding": (PositionParams(5), {"x": (2, 3, 4)}),
    "scaled_dot_product_attention": (NoParams(), {"query": (2, 2, 3, 4), "key": (2, 2, 5, 4)}),
    "multi_head_attention": (MultiHeadParams(2), {"x": (2, 3, 4)}),
    **{name: (NoParams(), {"x": (4, 5)}) for name in ("relu", "tanh", "silu", "sigmoid", "flatten")},
    "gelu": (GeluParams(), {"x": (4, 5)}),
    "gelu-tanh": (GeluParams("tanh"), {"x": (4, 5)}),
    "avg_pool2d": (AvgPool2dParams(2), {"x": (2, 3, 5, 4)}),
    "cross_entropy": (CrossEntropyParams(), {"x": (6, 4)}),
    "mse_loss": (MseLossParams(), {"x": (6, 4)}),
}


def test_every_differentiable_op_is_here():
    assert {name.partition("-")[0] for name in DIFFERENTIABLE} == {op.name for op in OPS.values() if op.differentiable}


def tensors_for(name, params, given, scale=1.0):
    op = OPS[name.partition("-")[0]]
    shapes = op.infer_shapes(params, given)
    rng = generator(0, name)
    tensors = {n: scale * rng.uniform(0.5, 1.5, shape).astype(np.longdouble) for n, shape in shapes.inputs.items()}
    if op.data == "x":
        tensors["x"] = rng.normal(1.0, 2.0, shapes.inputs["x"]).astype(np.longdouble)
    tensors |= {n: rng.integers(*bounds, shapes.inputs[n]) for n, bounds in shapes.integers.items()}
    tensors["grad.y"] = np.asarray(rng.normal(0.0, 1.0, shapes.outputs["y"]), np.longdouble)
    return op, tensors


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_agree_with_finite_differences_in_longdouble(name):
    params, given = DIFFERENTIABLE[name]
    op, tensors = tensors_for(name, params, given)
    found = evaluate(op, params, tensors)
    step = np.longdouble(2) ** -21
    for leaf in op.differentiable:
        numeric = np.zeros_like(tensors[leaf])
        for index in np.ndindex(numeric.shape):
            sides = []
            for sign in (1, -1):
                moved = {**tensors, leaf: tensors[leaf].copy()}
                moved[leaf][index] += sign * step
                y = evaluate(op, params, moved, gradients=False)["y"]
                sides.append(np.sum(y * tensors["grad.y"]))
            numeric[index] = (sides[0] - sides[1]) / (2 * step)
        largest = max(1.0, float(np.abs(found["y"] * tensors["grad.y"]).sum()))
        np.testing.assert_allclose(found[f"grad.{leaf}"], numeric, rtol=1e-9, atol=largest * 1e-11, err_msg=leaf)


def test_a_wrong_gradient_would_be_seen():
    """The check above can fail: with detached statistics the gradient of x is another one."""
    params, given = DIFFERENTIABLE["layer_norm"]
    op, tensors = tensors_for("layer_norm", params, given)
    right, wrong = (evaluate(op, params, tensors, detached=d)["grad.x"] for d in ("", "both"))
    assert np.abs(right - wrong).max() > 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_result_has_the_dtype_that_was_asked_for(name, dtype):
    params, given = DIFFERENTIABLE[name]
    op, tensors = tensors_for(name, params, given)
    found = evaluate(op, params, tensors, dtype=dtype)
    assert {values.dtype for values in found.values()} == {np.dtype(dtype)}, {n: v.dtype for n, v in found.items()}


def test_the_near_constant_pair_of_oneflow_pull_request_6149():
    x = np.array([[[[-1.83965693, -1.82964566]]]], dtype=np.float32)
    tensors = {"x": x, "weight": np.ones((1, 1, 2)), "bias": np.zeros((1, 1, 2)), "grad.y": np.ones_like(x)}
    found = evaluate(OPS["layer_norm"], LayerNormParams((1, 1, 2)), tensors)
    np.testing.assert_allclose(found["y"].ravel(), [-0.845427158, 0.845427158], rtol=1e-9)
    assert np.abs(found["grad.x"]).max() < 1e-16


def test_running_statistics_follow_pytorch():
    x = np.array([[1.0], [2.0], [6.0]])
    tensors = {
        "x": x,
        "running_mean": np.array([10.0]),
        "running_var": np.array([1.0]),
        "weight": np.ones(1),
        "bias": np.zeros(1),
    }
    found = evaluate(OPS["batch_norm"], BatchNormParams(momentum=0.1), tensors)
    np.testing.assert_allclose(found["running_mean"], [9.3], rtol=1e-15)
    np.testing.assert_allclose(found["running_var"], [0.9 + 0.1 * x.var(ddof=1)], rtol=1e-15)
    biased = evaluate(OPS["batch_norm"], BatchNormParams(momentum=0.1), tensors, running_ddof=0)
    np.testing.assert_allclose(biased["running_var"], [0.9 + 0.1 * x.var()], rtol=1e-15)
    ported = evaluate(OPS["batch_norm"], BatchNormParams(momentum=0.1), tensors, momentum_complement=True)
    np.testing.assert_allclose(ported["running_mean"], [1.0 + 0.9 * 3.0 - 0.0], rtol=1e-15)


THREE = {"grads.0": np.array([3.0, 4.0]), "grads.1": np.array([[6.0, 8.0]]), "grads.2": np.array([3.0])}


def clip(params, **variants):
    return evaluate(OPS["clip_grad_norm"], params, THREE, **variants)


def test_global_clipping_with_and_without_the_epsilon():
    found = clip(ClipGradNormParams(1.0))
    np.testing.assert_allclose(found["total_norm"], 134**0.5, rtol=1e-15)
    np.testing.assert_allclose(found["grads.0"][0], 0.259160505, atol=5e-10)
    np.testing.assert_allclose(
        clip(ClipGradNormParams(1.0), denominator_eps=0.0)["grads.0"][0], 0.259160528, atol=5e-10
    )


def test_clipping_per_tensor():
    found = clip(ClipGradNormParams(1.0, scope="per_tensor"))
    np.testing.assert_allclose(found["grads.0"][0], 0.59999988, atol=5e-9)
    np.testing.assert_allclose(found["total_norm"], 134**0.5, rtol=1e-15)


@pytest.mark.parametrize(("norm_type", "expected"), [(1.0, 24.0), (2.0, 134**0.5), (float("inf"), 8.0)])
def test_norm_types(norm_type, expected):
    np.testing.assert_allclose(clip(ClipGradNormParams(1.0, norm_type))["total_norm"], expected, rtol=1e-15)


def test_a_norm_below_the_limit_changes_nothing():
    found = clip(ClipGradNormParams(100.0))
    assert all(np.array_equal(found[name], values) for name, values in THREE.items())


def test_clipping_by_value():
    found = evaluate(OPS["clip_grad_value"], ClipGradValueParams(3.5), THREE)
    assert found["grads.0"].tolist() == [3.0, 3.5]


BROKEN = [
    ("layer_norm", LayerNormParams((5,)), {"x": (2, 3)}, "params.normalized_shape"),
    ("layer_norm", LayerNormParams(()), {"x": (2, 3)}, "params.normalized_shape"),
    ("layer_norm", LayerNormParams((3,)), {}, "inputs.x"),
    ("layer_norm", LayerNormParams((3,)), {"x": (2, 3), "bias": (2,)}, "inputs.bias"),
    ("layer_norm", LayerNormParams((3,), eps=-1.0), {"x": (2, 3)}, "params.eps"),
    ("group_norm", GroupNormParams(3), {"x": (2, 4, 5)}, "params.num_groups"),
    ("group_norm", GroupNormParams(0), {"x": (2, 4, 5)}, "params.num_groups"),
    ("instance_norm", InstanceNormParams(), {"x": (2, 4)}, "inputs.x"),
    ("batch_norm", BatchNormParams(), {"x": (4,)}, "inputs.x"),
    ("batch_norm", BatchNormParams(momentum=2.0), {"x": (4, 3)}, "params.momentum"),
    ("batch_norm", BatchNormParams(), {"x": (4, 3), "running_var": (4,)}, "inputs.running_var"),
    ("linear", LinearParams(), {"x": (4, 3)}, "params.out_features"),
    ("linear", LinearParams(in_features=5, out_features=2), {"x": (4, 3)}, "params.in_features"),
    ("linear", LinearParams(), {"x": (4, 3), "weight": (3, 4)}, "inputs.weight"),
    ("clip_grad_norm", ClipGradNormParams(0.0), {"grads.0": (2,)}, "params.max_norm"),
    ("clip_grad_norm", ClipGradNormParams(1.0, 0.5), {"grads.0": (2,)}, "params.norm_type"),
    ("clip_grad_norm", ClipGradNormParams(1.0), {}, "inputs.grads"),
    ("clip_grad_value", ClipGradValueParams(float("nan")), {"grads.0": (2,)}, "params.clip_value"),
]


@pytest.mark.parametrize(("op", "params", "given", "key"), BROKEN)
def test_what_does_not_fit_is_refused_with_its_key(op, params, given, key):
    with pytest.raises(CaseError) as caught:
        OPS[op].infer_shapes(params, given)
    assert caught.value.key == key
    assert len(caught.value.message) > 10
