"""Large cases in blocks of rows: the same numbers as all rows at once, and only where an op allows it."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np
import pytest

from parity.cases import OPS, blocked, oracle, program
from parity.cases.oracle import IN_SEQUENCE, evaluate
from parity.cases.program import trace
from tests.judge.judging import drawn, planned

CASES = {
    "layer_norm": {"x": (40, 32), "normalized_shape": (32,)},
    "linear": {"x": (40, 32), "out_features": 24},
    "square": {"op": "linear", "x": (32, 32), "out_features": 32},
    "batch_norm": {"x": (40, 8)},
    "gelu": {"x": (40, 32)},
    "conv2d": {"x": (9, 3, 8, 8), "weight": (4, 3, 3, 3)},
}
NOT_CUT = {"batch_norm"}


def inputs_of(name):
    given = dict(CASES[name])
    case = planned(given.pop("op", name), **given)
    return case, drawn(case)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(oracle, "SPLITS", {})
    monkeypatch.setattr(oracle, "PROGRAMS", {})
    monkeypatch.setattr(blocked, "BLOCK", 300)
    monkeypatch.setattr(program, "OUTLINED", 100)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("functions", [{}, IN_SEQUENCE])
def test_blocks_give_the_same_numbers(name, functions, monkeypatch):
    case, inputs = inputs_of(name)
    how = {"dtype": np.float64, "functions": functions}
    whole = evaluate(OPS[case.op], case.params, inputs, **how)
    monkeypatch.setattr(oracle, "LARGE", 1)
    parts = evaluate(OPS[case.op], case.params, inputs, **how)
    assert whole.keys() == parts.keys()
    for tensor, values in whole.items():
        np.testing.assert_allclose(parts[tensor], values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_an_op_is_cut_only_where_its_rows_are_independent(name, monkeypatch):
    case, inputs = inputs_of(name)
    monkeypatch.setattr(oracle, "LARGE", 1)
    evaluate(OPS[case.op], case.params, inputs, dtype=np.float64)
    [found] = oracle.SPLITS.values()
    assert (found is None) == (name in NOT_CUT)
    if found is not None:
        assert found[0] == {"x", "grad.y"}
        assert found[1]["y"] == found[1]["grad.x"] == "rows"


def test_some_outputs_only():
    case, inputs = inputs_of("layer_norm")
    whole = evaluate(OPS[case.op], case.params, inputs, dtype=np.float64)
    [[name, values]] = evaluate(OPS[case.op], case.params, inputs, dtype=np.float64, outputs=["grad.bias"]).items()
    assert name == "grad.bias"
    assert np.array_equal(values, whole["grad.bias"])


def test_a_large_product_of_matrices_keeps_its_shape_in_a_gradient():
    def attention(tensors, _params):
        scores = anp.matmul(tensors["q"], anp.swapaxes(tensors["q"], -1, -2))
        return {"y": anp.matmul(scores, tensors["q"])}

    q = np.random.default_rng(0).normal(size=(2, 24, 3))
    arriving = {"y": np.ones((2, 24, 3))}
    traced, _ = trace(attention, {"q": q}, differentiable=["q"], gradients=arriving)
    own = traced.run({"q": q, "grad.y": arriving["y"]}, "float64")["grad.q"]
    step, ones = 1e-6 * np.eye(1, q.size).reshape(q.shape), arriving["y"]
    difference = (attention({"q": q + step}, {})["y"] - attention({"q": q - step}, {})["y"]) * ones
    assert abs(own[0, 0, 0] - difference.sum() / 2e-6) < 1e-5
