"""The oracle: its gradients against finite differences, its values against published numbers, its checks of shapes."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.clip import ClipGradNormParams, ClipGradValueParams
from parity.cases.ctc import CtcLossParams
from parity.cases.draw import Probabilities
from parity.cases.loss import CrossEntropyParams
from parity.cases.matmul import LinearParams
from parity.cases.norm import BatchNormParams, GroupNormParams, InstanceNormParams, LayerNormParams
from parity.cases.op import CaseError
from parity.cases.oracle import evaluate, perturbed_rounding
from parity.cases.value_loss import CosineSimilarityParams, HuberParams
from parity.config import load_plan
from tests.conftest import CONFIGS

CASES = {case.id: case for case in load_plan(sorted((CONFIGS / "ops").glob("*.yaml"))).cases}
"""Small cases of every op."""


def test_every_op_has_a_case():
    assert {case.op for case in CASES.values()} == set(OPS)


def example(name):
    """An op's case: the op, its params, and its tensors in longdouble."""
    case = CASES[name]
    tensors = {plan.name: plan.sample(0, case.id, "float64") for plan in case.tensors}
    wide = {n: values.astype(np.longdouble) if values.dtype.kind == "f" else values for n, values in tensors.items()}
    return OPS[case.op], case.params, wide


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if OPS[c.op].differentiable and c.gradients])
def test_gradients_agree_with_finite_differences_in_longdouble(name):
    op, params, tensors = example(name)
    exact = evaluate(op, params, tensors)
    step = np.longdouble(2) ** -21
    for leaf in op.differentiable:
        if leaf not in tensors:
            continue
        numeric = np.zeros_like(tensors[leaf])
        for index in np.ndindex(numeric.shape):
            sides = []
            for sign in (1, -1):
                moved = {**tensors, leaf: tensors[leaf].copy()}
                moved[leaf][index] += sign * step
                values = evaluate(op, params, moved, gradients=False)
                sides.append(sum(np.sum(values[name] * tensors[f"grad.{name}"]) for name in op.grad_outputs))
            numeric[index] = (sides[0] - sides[1]) / (2 * step)
        largest = max(1.0, *(float(np.abs(exact[name] * tensors[f"grad.{name}"]).sum()) for name in op.grad_outputs))
        np.testing.assert_allclose(exact[f"grad.{leaf}"], numeric, rtol=1e-9, atol=largest * 1e-11, err_msg=leaf)


def test_a_wrong_gradient_would_be_seen():
    """The check above can fail: with detached statistics the gradient of x is another one."""
    op, params, tensors = example("layer_norm")
    right, wrong = (evaluate(op, params, tensors, detached=d)["grad.x"] for d in ("", "both"))
    assert np.abs(right - wrong).max() > 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("name", CASES)
def test_every_result_has_the_dtype_that_was_asked_for(name, dtype):
    op, params, tensors = example(name)
    found = evaluate(op, params, tensors, dtype=dtype)
    kinds = {values.dtype for values in found.values() if values.dtype != np.int64}
    assert kinds <= {np.dtype(dtype)}, {n: v.dtype for n, v in found.items()}


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


@pytest.mark.parametrize(("op", "slope"), [("expm1", 1.0), ("elu", 1.0), ("celu", 1.0)])
def test_a_gradient_through_expm1_keeps_its_digits_far_below_0(op, slope):
    x = np.array([-100.0, -30.0, -1.0])
    found = evaluate(OPS[op], OPS[op].params(), {"x": x, "grad.y": np.ones(3)}, dtype=np.float64)["grad.x"]
    np.testing.assert_allclose(found, slope * np.exp(x), rtol=1e-15)


def test_a_perturbed_sum_with_a_number_stays_in_its_dtype():
    perturbed = perturbed_rounding(np.random.default_rng(0))
    for function in (np.add, np.subtract):
        assert perturbed[function](np.ones(3, np.float32), 1.0).dtype == np.float32


def test_probabilities_sum_to_1_in_every_dtype():
    values = Probabilities().sample(np.random.default_rng(0), (50, 7)).astype(np.float16)
    assert set(values.sum(axis=1, dtype=np.float64)) == {1.0}
    assert np.unique(values).size > 20


def test_ctc_adds_up_all_alignments():
    """Every path of 4 steps over 3 classes whose labels, less repeats and blanks, are the target."""
    x, target = np.random.default_rng(0).normal(size=(4, 1, 3)), (1, 1)
    given = {"x": x, "target": np.array([target]), "input_lengths": np.array([4]), "target_lengths": np.array([2])}
    p = np.exp(x[:, 0]) / np.exp(x[:, 0]).sum(axis=1, keepdims=True)
    paths = [path for path in np.ndindex(3, 3, 3, 3) if tuple(k for k, _ in groupby(path) if k) == target]
    expected = -np.log(sum(np.prod([p[i, k] for i, k in enumerate(path)]) for path in paths))
    np.testing.assert_allclose(evaluate(OPS["ctc_loss"], CtcLossParams(reduction="sum"), given)["y"], expected, 1e-12)


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
    ("cross_entropy", CrossEntropyParams(label_smoothing=1.5), {"x": (4, 3)}, "params.label_smoothing"),
    ("cross_entropy", CrossEntropyParams(), {"x": (4, 3), "weight": (4,)}, "inputs.weight"),
    ("huber_loss", HuberParams(delta=0.0), {"x": (4, 3)}, "params.delta"),
    ("cosine_similarity", CosineSimilarityParams(dim=2), {"x": (4, 3)}, "params.dim"),
    ("ctc_loss", CtcLossParams(), {"x": (5, 3, 4), "target": (2, 3)}, "inputs.target"),
    ("ctc_loss", CtcLossParams(blank=4), {"x": (5, 3, 4)}, "params.blank"),
]


@pytest.mark.parametrize(("op", "params", "given", "key"), BROKEN)
def test_what_does_not_fit_is_refused_with_its_key(op, params, given, key):
    with pytest.raises(CaseError) as caught:
        OPS[op].infer_shapes(params, given)
    assert caught.value.key == key
    assert len(caught.value.message) > 10
