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
        (lambda x, y: np.where((x > 0.5) & (x < 1), x * y, y), "x * y"),
        (lambda x, y: np.where(x > 0, x, 3 * y), "y = where(greater(x, 0), x, 3 * y)"),
    ],
)
def test_a_formula_that_only_the_kernel_has_is_found(fault, told):
    found = judged(TANH, Kernel(lambda given, _params, right: {"y": fault(given["x"], right["y"])}))
    for dtype in TANH.dtypes:
        assert names(found, dtype) == ["reference-edit"]
        assert told in evidence(found, dtype)["expression"]


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
