"""What no edit of the reference gives: formulas of its values, measured weights, and a cause for each tensor."""

from __future__ import annotations

import numpy as np
import pytest

from parity.judge.diagnose.weights import copied, summed
from tests.judge.judging import names, planned
from tests.judge.test_inquiry import Kernel, evidence, judged, raw_for_normalised

TANH = planned("tanh", x=(6, 7))
POOL = planned("avg_pool1d", x=(2, 3, 8), kernel_size=2)
NORM = planned("layer_norm", x=(6, 8), normalized_shape=(8,))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda x, y: y / (1 + np.abs(x)), "y = y / (1 + absolute(x))"),
        (lambda x, y: np.where((x > 0.5) & (x < 1), x * y, y), "y * x, y)"),
        (lambda x, y: np.where(x > 0, x, 3 * y), "y = where(greater(x, 0), x, 3 * y)"),
    ],
)
def test_a_formula_that_only_the_kernel_has_is_found(fault, told):
    found = judged(TANH, Kernel(lambda given, _params, right: {"y": fault(given["x"], right["y"])}))
    for dtype in TANH.dtypes:
        assert names(found, dtype) == ["reference-edit"]
        assert told in evidence(found, dtype)["expression"]


QUADRANTS = planned("atan2", x=(9, 8))


def test_a_condition_on_two_inputs_is_found():
    def fault(given, _params, right):
        third = (given["x"] < 0) & (given["other"] < 0)
        return {"y": np.where(third, right["y"] + 2 * np.pi, right["y"])}

    text = "y = where(logical_and(less(x, 0), less(other, 0)), 6.283185307 + y, y)"
    assert evidence(judged(QUADRANTS, Kernel(fault)))["expression"] == text


def test_a_condition_that_no_two_inputs_give_is_not_made_up():
    def fault(given, _params, right):
        return {"y": right["y"] + 2 * np.pi * (np.sin(50 * given["x"]) > 0.5)}

    assert names(judged(QUADRANTS, Kernel(fault)), "float64") != ["reference-edit"]


def test_the_backward_pass_may_compute_from_the_output():
    def fault(source, given, right):
        s = 1 / (1 + np.exp(-right[source]))
        return {"grad.x": given["grad.y"] * s * (1 + given["x"] * (1 - s))}

    silu = planned("silu", x=(6, 9))
    found = judged(silu, Kernel(lambda given, _params, right: fault("y", given, right)))
    text = "the backward pass uses functions of y wherever the reference has those of x"
    assert evidence(found)["expression"] == text
    doubled = judged(silu, Kernel(lambda given, _params, right: fault("x", given, {"x": 2 * given["x"]})))
    assert "functions of y" not in evidence(doubled).get("expression", "")


def test_a_value_may_be_joined_with_an_earlier_one():
    def centred(given, params, right):
        share = params.betas[1]
        second = share * given["exp_avg_sq"] + (1 - share) * (given["grad"] - right["exp_avg"]) ** 2
        return {"exp_avg_sq": second}

    adam = planned("adam", param=(6, 5), betas=(0.9, 0.99), step=4)
    text = "square(grad - new exp_avg), where the reference has square(grad) (in new exp_avg_sq)"
    assert evidence(judged(adam, Kernel(centred)))["expression"] == text


def test_what_is_no_short_formula_stays_unexplained():
    odd = Kernel(lambda given, _params, right: {"y": right["y"] + 0.1 * np.sin(7 * given["x"]) ** 3})
    assert names(judged(TANH, odd), "float64") == ["unexplained"]


def test_windows_that_lie_elsewhere_are_measured():
    def later(given, _params, _right):
        x = np.concatenate([given["x"][..., 1:], given["x"][..., -1:]], axis=-1)
        return {"y": (x[..., 0::2] + 2 * x[..., 1::2]) / 3}

    expression = evidence(judged(POOL, Kernel(later)))["expression"]
    assert "[..., 0]: 0.333333 [..., 1] + 0.666667 [..., 2]" in expression


def test_weights_are_those_of_every_result():
    rng = np.random.default_rng(0)
    source = [rng.normal(size=(2, 5)) for _ in range(6)]
    assert copied(source, [-x[:, ::-1] for x in source]).weights[0] == (0, 4, -1.0)
    assert copied(source, [x[:, :2] + x[:, 1:3] for x in source]) is None
    assert summed(source, [x[:, :2] / 3 + x[:, 1:3] for x in source]).weights[:2] == ((0, 0, 1 / 3), (0, 1, 1.0))
    assert summed(source, [x[:, :2] ** 2 for x in source]) is None


def test_tensors_with_causes_of_their_own_have_them_together():
    def two(given, params, right):
        return {**raw_for_normalised(given, params, right), "y": np.flip(right["y"])}

    found = judged(NORM, Kernel(two))
    for dtype in NORM.dtypes:
        assert sorted(names(found, dtype)) == ["permuted-axes", "reference-edit"]
