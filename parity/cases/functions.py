"""What a model's lines need beyond `autograd.numpy`: differentiable, in any dtype, in sequence where sums are."""

from __future__ import annotations

from functools import cache
from math import factorial, prod
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.exact.matmul import matmul
from parity.cases.exact.summation import sequential, total


@primitive  # type: ignore[untyped-decorator]
def product(a: NDArray[Any], b: NDArray[Any], operands: str = "", result: str = "") -> NDArray[Any]:
    """`a @ b` for `b` of shape (k, n), or for two stacks of matrices of the same length.

    `operands` and `result` are rounded to the formats of these names, here and in the gradient.
    """
    a, b = (rounded(v, FORMATS[operands]) if operands else v for v in (a, b))
    found = plain_product(a, b)
    return rounded(found, FORMATS[result]) if result else found


MAX_LOOPED = 1 << 24
"""Larger products in float64 and float32 are never looped over: BLAS sums some hundred terms in sequence itself."""


def plain_product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """`a @ b`, exact in longdouble, and in sequence where sums are and it is quick enough."""
    if sequential() and a.size * b.shape[-1] > MAX_LOOPED and a.dtype != np.longdouble:
        return np.asarray(np.matmul(a, b))
    if b.ndim == 2:
        return np.asarray(matmul(a, b))
    if sequential():
        return np.asarray(sum(a[..., k, None] * b[..., None, k, :] for k in range(a.shape[-1])))
    return np.asarray(np.matmul(a, b))


def _product_vjp_a(_ans: Any, _a: Any, b: Any, operands: str = "", result: str = "") -> Any:
    return lambda g: product(g, np.swapaxes(b, -1, -2), operands, result)


def _product_vjp_b(_ans: Any, a: Any, b: Any, operands: str = "", result: str = "") -> Any:
    if b.ndim > 2:
        return lambda g: product(np.swapaxes(a, -1, -2), g, operands, result)
    rows = a.reshape(-1, a.shape[-1])
    return lambda g: product(rows.T, g.reshape(-1, g.shape[-1]), operands, result)


defvjp(product, _product_vjp_a, _product_vjp_b)


@primitive  # type: ignore[untyped-decorator]
def rows_of(matrix: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
    """matrix[index] along the first axis."""
    return np.asarray(matrix[index])


def scatter(values: NDArray[Any], index: NDArray[np.int64], n: int) -> NDArray[Any]:
    """The sums [n, ...] of the `values` that have the same `index`, each in sequence."""
    found = np.zeros((n, *values.shape[index.ndim :]), values.dtype)
    flat, rows = index.ravel(), values.reshape(index.size, -1)
    if not flat.size:
        return found
    sequence = np.argsort(flat, kind="stable")
    which = flat[sequence]
    starts = np.flatnonzero(np.diff(which, prepend=which[0] - 1))
    found.reshape(n, -1)[which[starts]] = np.add.reduceat(rows[sequence], starts, axis=0)
    return found


defvjp(rows_of, lambda _, matrix, index: lambda g: scatter(g, index, len(matrix)), None)


@primitive  # type: ignore[untyped-decorator]
def entries(matrix: NDArray[Any], columns: NDArray[np.int64]) -> NDArray[Any]:
    """One entry of each row, [rows, 1]."""
    found: NDArray[Any] = np.take_along_axis(matrix, columns[:, None], axis=1)
    return found


def _entries_vjp(_ans: Any, matrix: Any, columns: Any) -> Any:
    def spread(g: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.zeros_like(matrix)
        np.put_along_axis(found, columns[:, None], g, axis=1)
        return found

    return spread


defvjp(entries, _entries_vjp, None)


@primitive  # type: ignore[untyped-decorator]
def patches(x: NDArray[Any], size: int, stride: int, padding: int) -> NDArray[Any]:
    """Squares of images with zeros around them: (N, C, H, W) to (N, H', W', C * size * size)."""
    around = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (size, size), (2, 3))[:, :, ::stride, ::stride]
    n, c, high, wide = windows.shape[:4]
    found: NDArray[Any] = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, high, wide, c * size * size)
    return found


def _patches_vjp(ans: Any, x: Any, size: int, stride: int, padding: int) -> Any:
    n, c, h, w = x.shape
    high, wide = ans.shape[1:3]

    def gather(g: NDArray[Any]) -> NDArray[Any]:
        squares = g.reshape(n, high, wide, c, size, size).transpose(0, 3, 4, 5, 1, 2)
        found = np.zeros((n, c, h + 2 * padding, w + 2 * padding), g.dtype)
        for i in range(size):
            for j in range(size):
                found[:, :, i : i + stride * high : stride, j : j + stride * wide : stride] += squares[:, :, i, j]
        return found[:, :, padding : padding + h, padding : padding + w]

    return gather


defvjp(patches, _patches_vjp, None, None, None)


def softmax(x: Any, axis: int = -1, *, detached: bool = False) -> Any:
    """exp(x) over its sum along `axis`, shifted by the maximum; the sum gets no gradient where it is `detached`."""
    axis %= getval(x).ndim
    powers = anp.exp(x - getval(x).max(axis=axis, keepdims=True))
    sums = total(powers, (axis,))
    return powers / (getval(sums) if detached else sums)


def relu(x: Any) -> Any:
    """max(x, 0), whose gradient at 0 is 0."""
    return anp.where(getval(x) <= 0, getval(x).dtype.type(0), x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + anp.exp(-x))


def silu(x: Any) -> Any:
    """x * sigmoid(x) (Elfwing, Uchibe, Doya 2018)."""
    return x * sigmoid(x)


def gelu(x: Any) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""
    kind = getval(x).dtype.type
    return x * (erf(x * np.sqrt(kind(0.5))) + 1) * kind(0.5)


def gelu_tanh(x: Any) -> Any:
    """The approximation of `gelu` by tanh (their section 2)."""
    kind = getval(x).dtype.type
    inner = (x + x * x * x * kind(0.044715)) * np.sqrt(2 / pi(kind))
    return x * (anp.tanh(inner) + 1) * kind(0.5)


def gelu_sigmoid(x: Any) -> Any:
    """The approximation of `gelu` by a sigmoid (their section 2)."""
    return x * sigmoid(x * getval(x).dtype.type(1.702))


def pi(kind: Any) -> Any:
    """pi in a dtype: 4 arctan(1)."""
    return 4 * np.arctan(kind(1))


STEPS = 128
REACH = 7
"""erf is expanded around k / STEPS; it is 1 in every dtype beyond REACH."""


@primitive  # type: ignore[untyped-decorator]
def erf(x: NDArray[Any]) -> NDArray[Any]:
    """The error function, by its Taylor series around the nearest of `STEPS` points per unit."""
    kind = x.dtype.type
    size = np.minimum(np.abs(x), kind(REACH))
    nearest = np.rint(np.nan_to_num(size) * kind(STEPS)).astype(np.intp)
    rest = size - nearest.astype(x.dtype) / kind(STEPS)
    *lower, found = (c[nearest] for c in coefficients(x.dtype))
    for coefficient in reversed(lower):
        found = found * rest + coefficient
    signed: NDArray[Any] = np.copysign(found, x)
    return signed


defvjp(erf, lambda _, x: lambda g: g * np.exp(-x * x) * (2 / np.sqrt(pi(x.dtype.type))))


@cache
def coefficients(dtype: np.dtype[Any]) -> tuple[NDArray[Any], ...]:
    """The Taylor coefficients [points] of erf by order, as many as `dtype` needs, computed in longdouble.

    The derivatives are exp(-x^2) times Hermite polynomials (Abramowitz and Stegun, 7.1.19), whose recurrence is
    H[n + 1] = 2 x H[n] - 2 n H[n - 1]; at most sqrt(n! 2^n) times a constant near 1 (22.14.17).
    """
    x = np.arange(REACH * STEPS + 1, dtype=np.longdouble) / STEPS
    slope = 2 / np.sqrt(pi(np.longdouble)) * np.exp(-x * x)
    found, hermite, before, n = [series(x)], np.ones_like(x), np.zeros_like(x), 1
    while (2**n / factorial(n)) ** 0.5 / (2 * STEPS) ** n > float(np.finfo(dtype).eps) / 8:
        found.append((-1) ** (n - 1) * hermite * slope / factorial(n))
        hermite, before, n = 2 * x * hermite - 2 * (n - 1) * before, hermite, n + 1
    return tuple(values.astype(dtype) for values in found)


def series(x: NDArray[Any]) -> NDArray[Any]:
    """erf by a series of positive terms (Abramowitz and Stegun, 7.1.6), to the last digit for 0 <= x <= REACH."""
    term, found, n = x.copy(), x.copy(), 0
    while np.any(term > found * np.finfo(x.dtype).eps / 8):
        n += 1
        term = term * 2 * x * x / (2 * n + 1)
        found = found + term
    return np.asarray(np.minimum(2 / np.sqrt(pi(x.dtype.type)) * np.exp(-x * x) * found, 1))


def avg_pool(x: Any, size: int) -> Any:
    """Means over squares of (N, C, H, W); rows and columns that fill no square are left out."""
    n, c, h, w = getval(x).shape
    high, wide = h // size, w // size
    squares = x[:, :, : high * size, : wide * size].reshape((n, c, high, size, wide, size))
    return anp.reshape(total(squares, (3, 5)), (n, c, high, wide)) / size**2


def flat(x: Any) -> Any:
    """All axes but the first into one."""
    shape = getval(x).shape
    return anp.reshape(x, (shape[0], prod(shape[1:])))
