"""The distance of two arrays: the judge's metrics for real and complex numbers, and each element in tolerances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.config.tolerances import Tolerance
from parity.judge.compare.metrics import Metrics, compare

Array = NDArray[Any]


def measure(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool = True) -> Metrics:
    """All metrics of two arrays of one shape; unless `equal_nan`, NaN differs from NaN.

    Complex numbers are compared by modulus, |actual - expected| <= atol + rtol |expected|, as numpy.isclose does;
    they have no distance in ulps, and `actual_value` and `expected_value` are moduli.
    """
    if not equal_nan:
        actual = without_common_nan(actual, expected)
    if "c" in (actual.dtype.kind, expected.dtype.kind):
        return complex_metrics(actual, expected, tolerance)
    return compare(actual, expected, tolerance.rtol, tolerance.atol)


def without_common_nan(actual: Array, expected: Array) -> Array:
    """`actual`, with infinity, which differs from NaN, where both arrays are NaN."""
    if "f" not in (actual.dtype.kind, expected.dtype.kind) and "c" not in (actual.dtype.kind, expected.dtype.kind):
        return actual
    both = np.isnan(actual) & np.isnan(expected)
    return np.where(both, actual.dtype.type(np.inf), actual) if both.any() else actual


def complex_metrics(actual: Array, expected: Array, tolerance: Tolerance) -> Metrics:
    """The metrics of moduli: of |expected|, and of |expected| + |actual - expected|, whose difference is the error.

    The sum is taken in longdouble for complex128, so that an error of one unit roundoff keeps its first digits.
    """
    a, e = (widened(values) for values in (actual, expected))
    with np.errstate(all="ignore"):
        same, missing = a == e, np.isnan(a)
        distance = np.where(same, 0, np.abs(a - e))
        # The modulus of NaN + infinity i is infinite.
        magnitude = np.where(np.isnan(e), np.nan, np.abs(e))
        # With an infinite or missing expected value the sum is meaningless; 0 differs from both.
        moved = np.where(~np.isfinite(e) & ~same, 0, magnitude + distance)
        moved[missing] = np.nan
    metrics = compare(moved, magnitude, tolerance.rtol, tolerance.atol)
    at = metrics.worst_index
    values = (float("nan"),) * 2 if at is None else (float(np.abs(a[at])), float(magnitude[at]))
    equal = bool((same | (missing & np.isnan(e))).all())
    return replace(metrics, actual_value=values[0], expected_value=values[1], max_ulp_diff=None, equal=equal)


def widened(values: Array) -> Array:
    """In the type in which differences are taken: float64, or longdouble for wider floats and 64-bit integers."""
    dtype = values.dtype
    if dtype.kind == "c":
        return values.astype(np.complex128 if dtype.itemsize <= 8 else np.clongdouble, copy=False)
    wide = dtype.itemsize > 8 or (dtype.kind in "iu" and dtype.itemsize == 8)
    return values.astype(np.longdouble if wide else np.float64, copy=False)


def excess(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool = True) -> Array:
    """Every element's difference in tolerances, 1 being the limit; inf where only one value is finite."""
    a, e = widened(actual), widened(expected)
    with np.errstate(all="ignore"):
        distance = np.abs(a - e) / (tolerance.atol + tolerance.rtol * np.abs(e))
    agree = a == e
    if equal_nan:
        agree |= np.isnan(a) & np.isnan(e)
    finite = np.isfinite(a) & np.isfinite(e)
    return np.where(agree, 0, np.where(finite, distance, np.inf))
