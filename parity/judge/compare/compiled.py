"""The pass of `metrics.py` over one block of float32 or float64, compiled by numba; import it only where it saves time.

Divisions cost more than reading memory, so each chunk is screened first, in the dtype of the arrays, for elements that
may raise a maximum: most chunks have none. The others are processed element by element, as in NumPy. All metrics are
those of `metrics.py`, except the sums, which differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Sums: TypeAlias = tuple[float, float, float, float]
Block: TypeAlias = tuple[Sums, int, int, int, float, float, int, float, float, int, bool]
"""The fields of `metrics._Partial`, in its order."""
Kernel: TypeAlias = Callable[[Array, Array, Array, Array, float, float], Block]
"""Arguments: actual and expected, their bits as signed integers, rtol and atol."""

_CHUNK = 1024
"""Elements screened at a time: they stay in the first-level cache until their sums are taken."""

_SLACK = 4
"""Bounds are lowered by this many eps: at most half an eps for each of six roundings, and one more."""

_UNDERFLOW = 2.0**-1021
"""Larger than the loss of `mag * rtol` outside the normal range of float64."""

_NO_ULPS: Any = np.uint64(0)

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(dtype: np.dtype[Any]) -> Kernel:
    """The kernel for contiguous arrays of `dtype`, float32 or float64; from numba's cache if it has one.

    Raises numba's error if it cannot compile, and RuntimeError if compiling is disabled.
    """
    if numba.config.DISABLE_JIT:
        raise RuntimeError("NUMBA_DISABLE_JIT keeps numba from compiling")
    floats, bits = (
        types.Array(numba.from_dtype(np.dtype(f"{kind}{dtype.itemsize}")), 1, "C", readonly=True) for kind in "fi"
    )
    signature = (floats, floats, bits, bits, types.float64, types.float64)
    try:
        return cast(Kernel, numba.njit(signature, cache=True, **_OPTIONS)(_block))
    except (OSError, RuntimeError):
        return cast(Kernel, numba.njit(signature, **_OPTIONS)(_block))


def _inlined(function: Function) -> Function:
    return cast(Function, numba.njit(**_OPTIONS)(function))


def _reordered(function: Function) -> Function:
    """For sums, which are vectorised only if any order is allowed. NaN and infinity keep their meaning."""
    return cast(Function, numba.njit(fastmath={"reassoc", "contract", "nsz"}, **_OPTIONS)(function))


class _Extremes(NamedTuple):
    """The maxima so far; `excess` is -inf, and `worst` 0, before the first finite element."""

    max_abs: float
    max_rel: float
    required: float
    excess: float
    worst: int


class _Outside(NamedTuple):
    """The elements of a chunk that are not finite in both: how many, how many of them differ, and the first that
    does."""

    n: int
    n_differ: int
    first_differ: int
    first_inside: int


@_reordered
def _plus_product(total: float, x: float, y: float) -> float:
    return total + x * y


@_inlined
def _sums(actual: Array, expected: Array) -> Sums:
    aa = ee = ae = dd = 0.0
    for i in range(actual.size):
        a, e = np.float64(actual[i]), np.float64(expected[i])
        aa, ee = _plus_product(aa, a, a), _plus_product(ee, e, e)
        ae, dd = _plus_product(ae, a, e), _plus_product(dd, a - e, a - e)
    return aa, ee, ae, dd


@_inlined
def _lowered(maximum: float, factor: float, like: Array) -> Any:
    """The product, slightly lowered, in the dtype of `like`; 0 if it is too small to be lowered."""
    limits, kind = np.finfo(like.dtype), like.dtype.type
    if maximum == math.inf:
        return kind(math.inf)
    bound = maximum * factor
    return kind(0 if bound < 64 * limits.tiny else min(bound * (1 - _SLACK * limits.eps), np.float64(limits.max)))


@_inlined
def _smaller(bound: Any, other: Any) -> Any:
    """`bound` where `other` is NaN."""
    return other if other < bound else bound


@_inlined
def _screened(
    actual: Array,
    expected: Array,
    actual_bits: Array,
    expected_bits: Array,
    extremes: _Extremes,
    rtol: float,
    atol: float,
) -> tuple[bool, Any]:
    """Whether an element may raise a maximum; and the largest distance in ulps, valid if no pair has opposite signs.

    A quotient rounds to more than a maximum only if the difference is at least the product of maximum and divisor, and
    rounding keeps that order. Where a sum is rounded too, and where float32 stands for float64, `_SLACK` is more than
    the roundings. NaN, in the data or in a bound of inf * 0, raises nothing.
    """
    kind, near_kind = actual.dtype.type, actual_bits.dtype.type
    max_abs, max_rel = _lowered(extremes.max_abs, 1, actual), _lowered(extremes.max_rel, 1, actual)
    per_rtol, per_atol = _lowered(extremes.excess, rtol, actual), _lowered(extremes.excess, atol, actual)
    per_atol = kind(per_atol - kind(extremes.excess * _UNDERFLOW))
    required, free = _lowered(extremes.required, 1, actual), _lowered(atol, 1, actual)
    limits, may_raise, near = np.finfo(actual.dtype), False, near_kind(0)
    smallest = kind(limits.tiny * limits.eps)
    for i in range(actual.size):
        diff, mag = abs(actual[i] - expected[i]), abs(expected[i])
        bound = _smaller(max_abs, max_rel * mag)
        bound = _smaller(_smaller(bound, per_rtol * mag + per_atol), required * mag + free)
        may_raise |= diff >= (bound if bound > smallest else smallest)
        distance = near_kind(abs(near_kind(actual_bits[i] - expected_bits[i])))
        near = distance if distance > near else near
    return may_raise, np.int64(near)


@_inlined
def _raised(actual: Array, expected: Array, start: int, extremes: _Extremes, rtol: float, atol: float) -> _Extremes:
    """The maxima with those of a chunk without NaN and infinity, which starts at `start`.

    Equal elements must be skipped by the rarely taken branch: a branch of their own doubles the time.
    """
    max_abs, max_rel, required, excess, worst = extremes
    smallest = 5e-324
    for i in range(actual.size):
        mag = abs(np.float64(expected[i]))
        diff = abs(np.float64(actual[i]) - np.float64(expected[i]))
        over, allowed = diff - atol, mag * rtol + atol
        bound = _smaller(_smaller(max_abs, max_rel * mag), excess * allowed)
        if diff >= max(bound, smallest) or over >= max(smallest, required * mag):
            max_abs, max_rel = max(max_abs, diff), max(max_rel, diff / mag)
            required = max(required, over / mag) if over > 0 else required
            tolerances = diff / allowed
            if tolerances > excess:
                excess, worst = tolerances, start + i
    return _Extremes(max_abs, max_rel, required, excess, worst)


@_inlined
def _count(actual: Array, expected: Array, rtol: float, atol: float) -> int:
    n = 0
    for i in range(actual.size):
        diff = abs(np.float64(actual[i]) - np.float64(expected[i]))
        n += int(diff > abs(np.float64(expected[i])) * rtol + atol)
    return n


@_inlined
def _ulps(actual_bits: Array, expected_bits: Array) -> tuple[Any, bool]:
    """The largest distance on the line that runs through zero, both zeros being one; and whether all bits are equal."""
    magnitude = np.iinfo(actual_bits.dtype).max
    largest, different = _NO_ULPS, np.int64(0)
    for i in range(actual_bits.size):
        x, y = np.int64(actual_bits[i]), np.int64(expected_bits[i])
        different |= x ^ y
        across = np.uint64(x & magnitude) + np.uint64(y & magnitude)
        distance: Any = across if (x ^ y) < 0 else np.uint64(abs(x - y))
        largest = distance if distance > largest else largest
    return largest, different == 0


@_inlined
def _masked(actual: Array, expected: Array, a: Array, e: Array) -> _Outside:
    """Copies to `a` and `e`, with 0 in both where either is not finite."""
    n, n_differ, first_differ, first_inside = 0, 0, -1, -1
    for i in range(actual.size):
        x, y = actual[i], expected[i]
        inside = math.isfinite(x) and math.isfinite(y)
        a[i], e[i] = (x, y) if inside else (actual.dtype.type(0), actual.dtype.type(0))
        if inside:
            first_inside = i if first_inside < 0 else first_inside
            continue
        n += 1
        if x != y and not (math.isnan(x) and math.isnan(y)):
            n_differ += 1
            first_differ = i if first_differ < 0 else first_differ
    return _Outside(n, n_differ, first_differ, first_inside)


def _block(actual: Array, expected: Array, actual_bits: Array, expected_bits: Array, rtol: float, atol: float) -> Block:
    extremes, largest, equal = _Extremes(0.0, 0.0, 0.0, -math.inf, 0), _NO_ULPS, True
    aa = ee = ae = dd = 0.0
    n_outside, n_mismatched, n_differ, first_differ = 0, 0, 0, -1
    spare = np.empty(_CHUNK, actual.dtype), np.empty(_CHUNK, actual.dtype)
    for start in range(0, actual.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        a, e, a_bits, e_bits = actual[part], expected[part], actual_bits[part], expected_bits[part]
        may_raise, near = _screened(a, e, a_bits, e_bits, extremes, rtol, atol)
        sums, first_inside = _sums(a, e), 0
        finite = math.isfinite(sums[0] + sums[1])
        if not finite:
            outside = _masked(a, e, spare[0], spare[1])
            a, e = spare[0][: a.size], spare[1][: a.size]
            a_bits, e_bits = a.view(a_bits.dtype), e.view(a_bits.dtype)
            sums, first_inside = _sums(a, e), outside.first_inside
            n_outside, n_differ = n_outside + outside.n, n_differ + outside.n_differ
            if first_differ < 0 and outside.n_differ:
                first_differ = start + outside.first_differ
        aa, ee, ae, dd = aa + sums[0], ee + sums[1], ae + sums[2], dd + sums[3]
        if extremes.excess < 0 and first_inside >= 0:
            extremes, may_raise = _Extremes(0.0, 0.0, 0.0, 0.0, start + first_inside), True
        if may_raise or not finite:
            extremes = _raised(a, e, start, extremes, rtol, atol)
        if extremes.excess >= 1:
            n_mismatched += _count(a, e, rtol, atol)
        if finite and extremes.max_abs > 0 and extremes.max_rel < 1:
            largest = max(largest, np.uint64(near))
        else:
            far, same = _ulps(a_bits, e_bits)
            largest, equal = max(largest, far), equal and same
    equal = equal and extremes.max_abs == 0 and not n_differ
    sums = (aa, ee, ae, dd)
    n_finite = actual.size - n_outside
    max_abs, max_rel, required, excess, worst = extremes
    if n_differ:
        required, excess, worst = math.inf, math.inf, first_differ
    return sums, n_finite, n_mismatched + n_differ, n_differ, max_abs, max_rel, largest, required, excess, worst, equal
