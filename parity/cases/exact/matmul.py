"""A matrix product for longdouble that is exact up to its last addition, at the speed of float64 BLAS.

Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication by using fast routines of matrix
multiplication and its applications" (Numerical Algorithms 59, 2012): operands are cut into slices so narrow that the
product of two slices has no rounding error in float64, and only the sum of these products is rounded. NumPy's own
longdouble product takes no BLAS, is about ten times as slow, and rounds at every step.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive
from numpy.typing import NDArray

from parity.cases.exact.summation import sequential

MANTISSA = 53
MAX_LOOPED = 1 << 28
"""Products of more multiplications are not summed in sequence: a loop takes too long."""


@primitive  # type: ignore[untyped-decorator]
def matmul(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """`a @ b` for `a` of shape (..., k) and `b` of shape (k, n); sliced in longdouble, NumPy's own in other dtypes, or
    in sequence where sums are."""
    if sequential() and a.size * b.shape[1] <= MAX_LOOPED:
        return looped(a, b)
    if a.dtype != np.longdouble or not (np.isfinite(a).all() and np.isfinite(b).all()):
        plain: NDArray[Any] = np.matmul(a, b)
        return plain
    left, right = slices(a.reshape(-1, a.shape[-1]), axis=1), slices(b, axis=0)
    total = np.zeros((left[0].shape[0], b.shape[1]), np.longdouble)
    for x, y in product(reversed(left), reversed(right)):
        total += np.matmul(x, y)
    return total.reshape((*a.shape[:-1], b.shape[1]))


def looped(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """`a @ b` in the dtype, each sum in sequence."""
    total = np.zeros((*a.shape[:-1], b.shape[1]), a.dtype)
    for k in range(a.shape[-1]):
        total += a[..., k, None] * b[k]
    return total


def slices(matrix: NDArray[Any], axis: int) -> list[NDArray[np.float64]]:
    """Float64 matrices that sum to `matrix`, from the most significant; products along `axis` are exact."""
    high = matrix.astype(np.float64)
    low = (matrix - high).astype(np.float64)
    return [*cut(high, axis), *(cut(low, axis) if low.any() else [])]


def cut(rest: NDArray[np.float64], axis: int) -> list[NDArray[np.float64]]:
    """`slices` of a float64 matrix."""
    width = math.ceil((MANTISSA + math.log2(max(2, rest.shape[axis]))) / 2)
    found: list[NDArray[np.float64]] = []
    while not found or rest.any():
        _, exponent = np.frexp(np.abs(rest).max(axis=axis, keepdims=True, initial=0))
        shift = np.ldexp(1.0, exponent + width)
        found.append((rest + shift) - shift)
        rest = rest - found[-1]
    return found


def _vjp_a(_: Any, a: Any, b: Any) -> Any:
    return lambda g: matmul(g, np.swapaxes(b, 0, 1)).reshape(a.shape)


def _vjp_b(_: Any, a: Any, b: Any) -> Any:
    return lambda g: matmul(np.swapaxes(a.reshape(-1, a.shape[-1]), 0, 1), g.reshape(-1, g.shape[-1])).reshape(b.shape)


defvjp(matmul, _vjp_a, _vjp_b)
