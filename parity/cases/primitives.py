"""Functions that references need beyond NumPy: differentiable, one step of a program each, in any dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from math import factorial
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.dtypes import as_dtype
from parity.cases.program import LIFTED, primitive

Array = NDArray[Any]


def scalar(value: Any, like: Any) -> Any:
    """`value` in the dtype of `like`, so that computations with it alone use that dtype."""
    return in_dtype_of(getval(value), getval(like))


@primitive
def in_dtype_of(value: Any, like: Any) -> Any:
    """`scalar` of a value without a gradient."""
    return np.asarray(like).dtype.type(value)


LIFTED[in_dtype_of.raw] = scalar  # type: ignore[attr-defined]  # set by `primitive`


@primitive
def stopped(value: Any) -> Any:
    """`value`, in edits of a traced program; in a reference, `getval` stops a gradient."""
    return value


@primitive
def narrow(value: Any, dtype: str) -> Any:
    """`value`, a number or an array, rounded to `dtype`; its own dtype stays."""
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return float(as_dtype(np.asarray(value), dtype))
    return as_dtype(np.asarray(value), dtype).astype(value.dtype)


@primitive
def root(value: float) -> float:
    """The square root of an option."""
    return math.sqrt(value) if value >= 0 else math.nan


def pi(like: Any) -> Any:
    """pi in the dtype of `like`: 4 arctan(1)."""
    return 4 * np.arctan(scalar(1, like))


@primitive
def part(x: Array, which: tuple[slice, ...]) -> Array:
    """x[which]."""
    return np.ascontiguousarray(x[which])


@primitive
def placed(values: Array, like: Array, which: tuple[slice, ...]) -> Array:
    """Zeros of the shape of `like` with `values` at `which`."""
    result = np.zeros_like(like)
    result[which] = values
    return result


defvjp(part, lambda _, x, which: lambda g: placed(g, x, which), None)


@primitive
def whole(values: Array, n: int) -> NDArray[np.intp]:
    """`values`, up to rounding errors, as integers from -n to 2n: beyond them no element of n can be meant."""
    return np.asarray(np.rint(np.clip(np.nan_to_num(values), -n, 2 * n)), np.intp)


@primitive
def rows_of(matrix: Array, index: NDArray[np.int64]) -> Array:
    """matrix[index] along the first axis."""
    return np.asarray(matrix[index])


def take(x: Any, index: NDArray[np.intp], axis: int) -> Any:
    """np.take along an axis."""
    return anp.swapaxes(rows_of(anp.swapaxes(x, 0, axis), index), 0, axis)


@primitive
def scatter_rows(values: Array, index: NDArray[np.int64], n: int) -> Array:
    """The sums [n, ...] of the `values` that have the same `index`, each in sequence."""
    sums = np.zeros((n, *values.shape[index.ndim :]), values.dtype)
    flat, rows = index.ravel(), values.reshape(index.size, -1)
    if not flat.size:
        return sums
    sequence = np.argsort(flat, kind="stable")
    which = flat[sequence]
    starts = np.flatnonzero(np.diff(which, prepend=which[0] - 1))
    sums.reshape(n, -1)[which[starts]] = np.add.reduceat(rows[sequence], starts, axis=0)
    return sums


@primitive
def last_rows(values: Array, index: NDArray[np.int64], n: int) -> Array:
    """The last of the `values` that have the same `index`, [n, ...]; zeros where there is none."""
    kept = np.zeros((n, *values.shape[index.ndim :]), values.dtype)
    for at, row in zip(index.ravel(), values.reshape(index.size, *kept.shape[1:]), strict=True):
        kept[at] = row
    return kept


@primitive
def mean_rows(values: Array, index: NDArray[np.int64], n: int) -> Array:
    """The means [n, ...] of the `values` that have the same `index`; zeros where there is none."""
    counts = np.maximum(np.bincount(index.ravel(), minlength=n), 1).astype(values.dtype)
    sums = scatter_rows(values, index, n)
    return np.asarray(sums / counts.reshape(n, *(1,) * (sums.ndim - 1)))


def scatter_in_sequence(values: Array, index: NDArray[np.int64], n: int) -> Array:
    """`scatter_rows`, one row after the other."""
    sums = np.zeros((n, *values.shape[index.ndim :]), values.dtype)
    np.add.at(sums, index, values)
    return sums


SCATTER: Callable[..., Any] = scatter_rows.raw  # type: ignore[attr-defined]


defvjp(rows_of, lambda _, matrix, index: lambda g: scatter_rows(g, index, len(matrix)), None)


@primitive
def entries(matrix: Array, columns: NDArray[np.int64]) -> Array:
    """One entry of each row, [rows, 1]."""
    return np.take_along_axis(matrix, columns[:, None], axis=1)


@primitive
def spread_entries(values: Array, matrix: Array, columns: NDArray[np.int64]) -> Array:
    """Zeros of the shape of `matrix`, with a value [rows, 1] at one column of each row."""
    result = np.zeros_like(matrix)
    np.put_along_axis(result, columns[:, None], values, axis=1)
    return result


defvjp(entries, lambda _, matrix, columns: lambda g: spread_entries(g, matrix, columns), None)


Sizes = int | tuple[int, ...]
"""A whole number for each axis, or one for all."""


def each(value: Sizes, n: int) -> tuple[int, ...]:
    """`value` for each of `n` axes; ValueError for another number of them, and for what is no whole number."""
    values = value if isinstance(value, tuple) else (value,) * n
    if len(values) != n or any(v != int(v) for v in values):
        raise ValueError(f"{value} is not a whole number for each of {n} axes")
    return tuple(map(int, values))


MOST_PADDED = 2**24
"""Elements of a padded tensor, 128 MiB in float64: an edit may take any number for a stride or a padding."""


def require_near(n_elements: int, padded: tuple[int, ...]) -> None:
    """ValueError where a tensor with its padding is large only because of the padding."""
    if math.prod(padded) > max(MOST_PADDED, 64 * n_elements):
        raise ValueError("windows are mostly outside of the tensor")


@primitive
def patches(
    x: Array,
    kernel: tuple[int, ...],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    size: tuple[int, ...],
    value: float = 0.0,
) -> Array:
    """`size` windows along the axes of x, [N, C, *axes] to [N, *size, C, *kernel]: the first begins `padding` before
    x, the next `stride` later, and outside of x is `value`. ValueError for a negative stride or dilation, and for
    windows that are mostly outside of x."""
    n, spans = len(kernel), []
    strides, starts, dilations = each(stride, n), each(padding, n), each(dilation, n)
    if min((*strides, *dilations)) < 0:
        raise ValueError("windows move forward")
    for many, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        spans.append((many - 1) * s + (k - 1) * d + 1)
    behind = [max(0, span - p - length) for span, p, length in zip(spans, starts, x.shape[2:], strict=True)]
    around = [(max(0, p), b) for p, b in zip(starts, behind, strict=True)]
    require_near(x.size, (*x.shape[:2], *map(sum, zip(*zip(*around, strict=True), x.shape[2:], strict=True))))
    padded = np.pad(x, ((0, 0), (0, 0), *around), constant_values=value)
    whole = (slice(None), slice(None))
    seen = padded[(*whole, *(slice(max(0, -p), None) for p in starts))]
    steps = seen.strides[2:]
    windows = np.lib.stride_tricks.as_strided(
        seen,
        (*x.shape[:2], *size, *kernel),
        (
            *seen.strides[:2],
            *(a * s for a, s in zip(steps, strides, strict=True)),
            *(a * d for a, d in zip(steps, dilations, strict=True)),
        ),
        writeable=False,
    )
    return np.ascontiguousarray(np.moveaxis(windows, 1, 1 + n))


@primitive
def from_patches(windows: Array, lengths: tuple[int, ...], stride: Sizes, padding: Sizes, dilation: Sizes) -> Array:
    """The sums [N, C, *lengths] of the elements of `windows` [N, *size, C, *kernel], each added at its position in
    `patches`."""
    n = len(lengths)
    strides, starts, dilations = each(stride, n), each(padding, n), each(dilation, n)
    size, kernel = windows.shape[1 : 1 + n], windows.shape[2 + n :]
    if min((*strides, *dilations)) < 0:
        raise ValueError("windows move forward")
    ends = [(m - 1) * s + (k - 1) * d + 1 for m, k, s, d in zip(size, kernel, strides, dilations, strict=True)]
    before = [max(0, p) for p in starts]
    room = [b + max(length, e - p) for b, length, e, p in zip(before, lengths, ends, starts, strict=True)]
    require_near(windows.size, (windows.shape[0], windows.shape[1 + n], *room))
    sums = np.zeros((windows.shape[0], windows.shape[1 + n], *room), windows.dtype)
    by_offset = np.moveaxis(windows, tuple(range(1, 1 + n)), tuple(range(-n, 0)))
    whole = (slice(None), slice(None))
    for offset in np.ndindex(*kernel):
        first = [b - p + o * d for b, p, o, d in zip(before, starts, offset, dilations, strict=True)]
        slices = [slice(f, f + (m - 1) * s + 1, s) for f, m, s in zip(first, size, strides, strict=True)]
        sums[(*whole, *slices)] += by_offset[(*whole, *offset)]
    return sums[(*whole, *(slice(b, b + length) for b, length in zip(before, lengths, strict=True)))]


def _patches_vjp(_ans: Any, x: Any, _kernel: Any, stride: Any, padding: Any, dilation: Any, *_: Any) -> Any:
    return lambda g: from_patches(g, x.shape[2:], stride, padding, dilation)


def _from_patches_vjp(_ans: Any, windows: Any, lengths: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    n = len(lengths)
    size, kernel = windows.shape[1 : 1 + n], windows.shape[2 + n :]
    return lambda g: patches(g, kernel, stride, padding, dilation, size)


defvjp(patches, _patches_vjp, argnums=(0,))
defvjp(from_patches, _from_patches_vjp, argnums=(0,))


STEPS = 128
REACH = 7
"""erf is expanded around k / STEPS; it is 1 in every dtype beyond REACH."""


@primitive
def erf(x: Array) -> Array:
    """The error function, by its Taylor series around the nearest of `STEPS` points per unit."""
    kind = x.dtype.type
    size = np.minimum(np.abs(x), kind(REACH))
    nearest = np.rint(np.nan_to_num(size) * kind(STEPS)).astype(np.intp)
    rest = size - nearest.astype(x.dtype) / kind(STEPS)
    *lower, value = (c[nearest] for c in coefficients(x.dtype))
    for coefficient in reversed(lower):
        value = value * rest + coefficient
    return np.asarray(np.copysign(value, x))


ERF: Callable[..., Any] = erf.raw  # type: ignore[attr-defined]
defvjp(erf, lambda _, x: lambda g: g * np.exp(-x * x) * (2 / np.sqrt(pi(x))))


@cache
def coefficients(dtype: np.dtype[Any]) -> tuple[NDArray[Any], ...]:
    """The Taylor coefficients [points] of erf by order, as many as `dtype` needs, computed in longdouble.

    The derivatives are exp(-x^2) times Hermite polynomials (Abramowitz and Stegun, 7.1.19), whose recurrence is
    H[n + 1] = 2 x H[n] - 2 n H[n - 1]; at most sqrt(n! 2^n) times a constant near 1 (22.14.17).
    """
    x = np.arange(REACH * STEPS + 1, dtype=np.longdouble) / STEPS
    slope = 2 / np.sqrt(pi(x)) * np.exp(-x * x)
    terms, hermite, before, n = [series(x)], np.ones_like(x), np.zeros_like(x), 1
    while (2**n / factorial(n)) ** 0.5 / (2 * STEPS) ** n > float(np.finfo(dtype).eps) / 8:
        terms.append((-1) ** (n - 1) * hermite * slope / factorial(n))
        hermite, before, n = 2 * x * hermite - 2 * (n - 1) * before, hermite, n + 1
    return tuple(values.astype(dtype) for values in terms)


def series(x: NDArray[Any]) -> NDArray[Any]:
    """erf by a series of positive terms (Abramowitz and Stegun, 7.1.6), to the last digit for 0 <= x <= REACH."""
    term, value, n = x.copy(), x.copy(), 0
    while np.any(term > value * np.finfo(x.dtype).eps / 8):
        n += 1
        term = term * 2 * x * x / (2 * n + 1)
        value = value + term
    return np.asarray(np.minimum(2 / np.sqrt(pi(x)) * np.exp(-x * x) * value, 1))


STEP, TERMS = 0.4375, 16
"""The width of the trapezoids under erfc's integral, a short binary fraction, and their number: the error is exp(-(pi /
STEP)^2) of the value, below a longdouble's roundoff."""
FAR = 107
"""erfc is 0 in every dtype from here on."""


@primitive
def erfc(x: Array) -> Array:
    """1 - erf(x), to the last digits however small it is."""
    values = np.asarray(1 - erf(x))
    above = x >= x.dtype.type(0.5)
    values[above] = tail(np.minimum(x[above], x.dtype.type(FAR)))
    return values


ERFC: Callable[..., Any] = erfc.raw  # type: ignore[attr-defined]
defvjp(erfc, lambda _, x: lambda g: -g * np.exp(-x * x) * (2 / np.sqrt(pi(x))))


def tail(x: NDArray[Any]) -> NDArray[Any]:
    """erfc for 0.5 <= x <= FAR by the trapezoidal rule, a sum of positive terms, and the residue of its pole (Chiarella
    and Reichel 1968; Matta and Reichel 1971)."""
    step, square = x.dtype.type(STEP), x * x
    total = 1 / square
    for n in range(1, TERMS + 1):
        node = (n * step) ** 2
        total = total + 2 * np.exp(-node) / (node + square)
    decay = np.where(x < pi(x) / step, np.exp(-2 * pi(x) / step * x), 0)
    return np.asarray(bell(x) * total * x * (step / pi(x)) - 2 * decay / (1 - decay))


def bell(x: NDArray[Any]) -> NDArray[Any]:
    """exp(-x^2), without the rounding error of a large square."""
    near = np.rint(x * x.dtype.type(STEPS)) / x.dtype.type(STEPS)
    return np.asarray(np.exp(-near * near) * np.exp(-(x - near) * (x + near)))
