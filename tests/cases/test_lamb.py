"""LAMB's oracle: against numbers worked out by hand, and what the trust ratio does at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.optimizer import LambParams
from parity.cases.oracle import evaluate

ZERO = {"exp_avg": np.zeros(2), "exp_avg_sq": np.zeros(2)}
FIRST = {"param": np.array([3.0, -4.0]), "grad": np.array([0.5, 2.0]), **ZERO}


def lamb(tensors=FIRST, variants=None, **params):
    given = {"lr": 0.1, "eps": 0.0, "weight_decay": 0.0, "step": 1, **params}
    return evaluate(OPS["lamb"], LambParams(**given), tensors, **(variants or {}))


def test_the_first_step_goes_along_the_gradients_signs_by_the_parameters_norm():
    found = lamb()
    np.testing.assert_allclose(found["param"], [3 - 0.1 * 5 / 2**0.5, -4 - 0.1 * 5 / 2**0.5], rtol=1e-15)
    np.testing.assert_allclose(found["exp_avg"], 0.1 * FIRST["grad"], rtol=1e-15)
    np.testing.assert_allclose(found["exp_avg_sq"], 0.001 * FIRST["grad"] ** 2, rtol=1e-12)


def test_the_decay_is_scaled_with_the_rest():
    update = np.array([1 + 0.5 * 3, 1 - 0.5 * 4])
    ratio = 5 / np.sqrt(np.sum(update * update))
    np.testing.assert_allclose(lamb(weight_decay=0.5)["param"], FIRST["param"] - 0.1 * ratio * update, rtol=1e-15)


def test_a_decay_may_be_left_out_of_the_norm_or_out_of_what_is_scaled():
    ratio, update, decay = 5 / 2**0.5, np.ones(2), 0.5 * FIRST["param"]
    moves = {"unmeasured": ratio * (update + decay), "outside": ratio * update + decay}
    for variant, move in moves.items():
        found = lamb(variants={"decay": variant}, weight_decay=0.5)["param"]
        np.testing.assert_allclose(found, FIRST["param"] - 0.1 * move, rtol=1e-14)


@pytest.mark.parametrize("name", ["param", "grad"])
def test_the_ratio_is_1_where_a_norm_is_0(name):
    found = lamb({**FIRST, name: np.zeros(2)}, eps=1e-6)
    plain = lamb({**FIRST, name: np.zeros(2)}, {"trust": "never"}, eps=1e-6)
    assert np.array_equal(found["param"], plain["param"])
    assert np.isfinite(found["param"]).all()


def test_a_ratio_only_where_something_decays():
    plain = 0.1 * np.ones(2)
    np.testing.assert_allclose(FIRST["param"] - lamb(variants={"trust": "decayed"})["param"], plain, rtol=1e-14)
    decayed = lamb(variants={"trust": "decayed"}, weight_decay=0.5)["param"]
    assert np.array_equal(decayed, lamb(weight_decay=0.5)["param"])


def test_a_norm_above_10_may_be_clamped():
    large = {**FIRST, "param": 100 * FIRST["param"]}
    moved = large["param"] - lamb(large, {"trust": "clamped"})["param"]
    np.testing.assert_allclose(moved, 0.1 * 10 / 2**0.5 * np.ones(2), rtol=1e-14)
    assert np.array_equal(lamb(variants={"trust": "clamped"})["param"], lamb()["param"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_the_step_stays_in_its_dtype(dtype):
    found = evaluate(OPS["lamb"], LambParams(), FIRST, dtype=dtype)
    assert {values.dtype for values in found.values()} == {np.dtype(dtype)}
