"""The functions that references need beyond NumPy, to their last digits."""

import math

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.cases.primitives import erfc

ERFC = {
    0.5: "0.479500122186953462317253346108035472",
    2.0: "0.004677734981047265837930743632747071",
    10.0: "2.088487583762544757000786294957788611561e-45",
    27.0: "5.237048923789255685016067682849547090933e-319",
    100.0: "6.405961424921732039021339148586394148214e-4346",
}


@pytest.mark.parametrize("x", ERFC)
def test_erfc_has_its_last_digits_however_small_it_is(x):
    assert abs(erfc(np.array([x], np.longdouble))[0] / np.longdouble(ERFC[x]) - 1) < 1e-18


@pytest.mark.parametrize(("dtype", "most"), [("float64", 26.0), ("float32", 9.0)])
def test_erfc_in_a_dtype_is_as_careful_as_the_dtype_allows(dtype, most):
    x = np.linspace(-8, most, 20001).astype(dtype)
    exact = np.array([math.erfc(value) for value in x])
    np.testing.assert_allclose(erfc(x), exact, rtol=8 * np.finfo(dtype).eps)


def test_erfc_has_its_limits_and_keeps_nan():
    x = np.array([np.inf, -np.inf, 0.0, np.nan, 200.0])
    np.testing.assert_array_equal(erfc(x), [0.0, 2.0, 1.0, np.nan, 0.0])


def test_gelu_and_its_gradient_have_all_digits_in_the_tail():
    x = np.array([-6.0, -10.0, -20.0, -35.0])
    found = evaluate(OPS["gelu"], OPS["gelu"].params(), {"x": x, "grad.y": np.ones_like(x)})
    cdf = [0.5 * math.erfc(-value / math.sqrt(2)) for value in x]
    density = [math.exp(-value * value / 2) / math.sqrt(2 * math.pi) for value in x]
    np.testing.assert_allclose(found["y"].astype(float), x * cdf, rtol=1e-12)
    np.testing.assert_allclose(found["grad.x"].astype(float), cdf + x * density, rtol=1e-11)


def test_gelu_by_tanh_has_all_digits_in_the_tail():
    x = np.array([-6.0, -10.0, -20.0])
    found = evaluate(OPS["gelu"], OPS["gelu"].params("tanh"), {"x": x, "grad.y": np.ones_like(x)})
    decay = [math.exp(2 * math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)) for value in x]
    slope = [2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * value**2) for value in x]
    np.testing.assert_allclose(found["y"].astype(float), x * decay, rtol=1e-10)
    np.testing.assert_allclose(found["grad.x"].astype(float), decay * (1 + x * slope), rtol=1e-10)
