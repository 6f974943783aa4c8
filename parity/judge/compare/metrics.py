"""Every metric of a comparison of two arrays, in one pass over blocks.

Differences are taken in the widest type: float64 for float16, float32 and float64; longdouble where either array is
longdouble or a 64-bit integer, or float64 squares leave their range. Blocks have a fixed size and their sums are joined
in order, so neither the number of threads nor their timing changes a bit of the result.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parity.judge.compare.frontier import NEVER, Frontier, frontier_of, joined
from parity.judge.compare.workspace import Workspace, block_length, run_blocks, workspace

Array: TypeAlias = NDArray[Any]

_LOG = logging.getLogger(__name__)

_FLOAT64 = np.dtype(np.float64)
_LONGDOUBLE = np.dtype(np.longdouble)

# OpenBLAS splits a dot product of more than 10,000 elements over threads, and its result depends on their number.
# Longer ones are computed in short rows instead: NumPy releases the GIL only for more than 500 of them.
_SHORT = 8192
_ROW = 128

# Sums of squares between these bounds have no relevant underflow or overflow in float64.
_LOWEST, _HIGHEST = 1e-280, 1e300

COMPILED_FROM = 1 << 29
"""From this many bytes of both arrays on, numba, if installed, replaces NumPy.

Loading it costs 0.34 s of processor time (2.8 s when it first compiles) and 112 MB; it saves 1.2 s per GB of float32,
0.6 of float64, and a tensor is compared twice. The size alone decides: the sums of both differ in their last digits,
and must not depend on earlier comparisons.
"""

_LONG = 1 << 21
"""Elements of a compiled block: a fifth less time than with 1 << 19, and two threads still end together."""

# The signed integer as wide as a float, for distances on the ordered line.
_BITS = {np.dtype(f"f{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}


@dataclass(frozen=True)
class Metrics:
    """How far `actual` is from `expected`, both of the same shape; see `compare`.

    Maxima, `rmse` and `cosine` are over the elements where both arrays are finite. `max_rel_diff` is |a-e|/|e|, inf
    where only e is zero. `max_ulp_diff` counts representable numbers (-0.0 and +0.0 are one) in the dtype of
    `actual`; None unless both arrays have the same dtype or `expected` is a wider float (then rounded to `actual`'s).
    `cosine` is nan where exactly one array is all zero. `required_rtol` is the smallest rtol that would pass with the
    given atol, inf where none would. `worst_index` is the first non-finite mismatch, else the element where |a-e| is
    the most tolerances; None for an empty tensor. `equal` is bit for bit, NaN counting as equal to NaN; across dtypes
    it means same value and same sign. `frontier` decides for every other tolerance (`frontier.py`); None if it was not
    taken, in tensors that numba compares. `expected_rms` is the root mean square of `expected`.
    """

    n_elements: int
    n_mismatched: int
    n_nonfinite_mismatched: int
    max_abs_diff: float
    max_rel_diff: float
    max_ulp_diff: int | None
    rmse: float
    cosine: float
    required_rtol: float
    worst_index: tuple[int, ...] | None
    actual_value: float
    expected_value: float
    equal: bool
    frontier: Frontier | None = None
    expected_rms: float = math.nan


class _Sums(NamedTuple):
    """Sums of products over one block: Python floats, or longdouble scalars where that is the work dtype."""

    actual: Any
    expected: Any
    cross: Any
    difference: Any

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.actual + self.expected))


class _Partial(NamedTuple):
    """The metrics of a block, or of all: `worst` counts from its start; `max_ulp` is -1 if ulps are not counted."""

    sums: _Sums
    n_finite: int
    n_mismatched: int
    n_nonfinite: int
    max_abs: Any
    max_rel: Any
    max_ulp: int
    required: Any
    excess: Any
    worst: int
    equal: bool
    frontier: Frontier | None = None


class _Tolerance(NamedTuple):
    rtol: float
    atol: float


def compare(actual: ArrayLike, expected: ArrayLike, rtol: float, atol: float, *, threads: int = 2) -> Metrics:
    """All metrics of `|actual - expected| <= atol + rtol * |expected|`, in one pass and 32 MiB with two threads.

    Both are real arrays (float, integer or bool) of the same shape, empty and 0-d included; an array that is
    not contiguous is copied first. NaN matches NaN only, an infinity itself only.
    """
    a, e = np.asarray(actual), np.asarray(expected)
    _check(a, e, rtol, atol)
    if not a.size:
        return _empty(a, e)
    x, y, tol = _flat(a), _flat(e), _Tolerance(rtol, atol)
    with np.errstate(all="ignore"):
        total = _whole(x, y, tol, threads, x.nbytes + y.nbytes >= COMPILED_FROM)
        return _metrics(total, (x[total.worst], y[total.worst]), x.size, a.shape)


def _whole(actual: Array, expected: Array, tol: _Tolerance, threads: int, many: bool) -> _Partial:
    """The metrics of two flat arrays, in the dtype that has their squares."""
    wide = _work_dtype(actual.dtype, expected.dtype)
    total = _total(actual, expected, tol, wide, threads, many)
    if wide is _FLOAT64 and 8 in (actual.itemsize, expected.itemsize) and not _in_range(total, actual, expected):
        total = _total(actual, expected, tol, _LONGDOUBLE, threads, many)
    return total


def quotient(numerator: float, denominator: float) -> float:
    """0/0 is 0, and anything else over 0 infinite."""
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 0.0


def bfloat16_ulps(counted: int | None) -> int | None:
    """A distance of bfloat16 values that float32 holds: bfloat16 has one number for 2^16 of float32's."""
    return None if counted is None else counted >> 16


def _check(actual: Array, expected: Array, rtol: float, atol: float) -> None:
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: actual {actual.shape}, expected {expected.shape}")
    if actual.dtype.kind not in "fiub" or expected.dtype.kind not in "fiub":
        raise TypeError(f"real numbers expected: actual {actual.dtype}, expected {expected.dtype}")
    if not (0 <= rtol < math.inf and 0 <= atol < math.inf):
        raise ValueError(f"tolerances must be finite and not negative: rtol={rtol}, atol={atol}")


def _flat(array: Array) -> Array:
    """One axis, contiguous, in this machine's byte order."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)


def _work_dtype(actual: np.dtype[Any], expected: np.dtype[Any]) -> np.dtype[Any]:
    for dtype in (actual, expected):
        if dtype == _LONGDOUBLE or (dtype.kind in "iu" and dtype.itemsize == 8):
            return _LONGDOUBLE
    return _FLOAT64


def _total(actual: Array, expected: Array, tol: _Tolerance, wide: np.dtype[Any], threads: int, many: bool) -> _Partial:
    """The metrics of all blocks together."""
    compiled = _compiled(actual, expected) if many and wide is _FLOAT64 else None
    length = _LONG if compiled else block_length(wide)

    def work(index: int) -> _Partial:
        part = slice(index * length, (index + 1) * length)
        a, e = actual[part], expected[part]
        return compiled(a, e, tol) if compiled else _block(a, e, tol, workspace(wide))

    if actual.size <= length:
        return work(0)
    return _joined(run_blocks(work, -(-actual.size // length), threads), length)


def _compiled(actual: Array, expected: Array) -> Callable[[Array, Array, _Tolerance], _Partial] | None:
    """The compiled `_block`, if there is one for these arrays and it compiles."""
    same = actual.dtype == expected.dtype and actual.dtype in (np.float32, np.float64)
    aligned = actual.flags.aligned and expected.flags.aligned
    if not (same and aligned):
        return None
    kernel, bits = _kernel(actual.dtype), _BITS[actual.dtype]
    if kernel is None:
        return None

    def block(actual: Array, expected: Array, tol: _Tolerance) -> _Partial:
        sums, *rest = kernel(actual, expected, actual.view(bits), expected.view(bits), *tol)
        return _Partial(_Sums(*sums), *rest)

    return block


@functools.cache
def _kernel(dtype: np.dtype[Any]) -> Callable[..., Any] | None:
    """The compiled pass; None if numba is missing, does not support this NumPy or Python, or fails."""
    try:
        from parity.judge.compare.compiled import compiled

        return compiled(dtype)
    except Exception as error:
        _LOG.debug("comparing %s without numba: %s", dtype, error)
        return None


def _block(actual: Array, expected: Array, tol: _Tolerance, space: Workspace) -> _Partial:
    """The metrics of one block, which fits into `space`."""
    sums = _sums(actual, expected, space)
    if sums.finite:
        return _values(actual, expected, sums, tol, space)
    return _masked(actual, expected, tol, space)


def _masked(actual: Array, expected: Array, tol: _Tolerance, space: Workspace) -> _Partial:
    """A block with NaN or infinity (or with squares beyond the work dtype): those elements are compared separately."""
    outside = ~(np.isfinite(actual) & np.isfinite(expected))
    differ = outside & (actual != expected) & ~(np.isnan(actual) & np.isnan(expected))
    a, e = actual.copy(), expected.copy()
    a[outside] = e[outside] = 0
    part = _values(a, e, _sums(a, e, space), tol, space, outside)
    part = part._replace(n_finite=part.n_finite - int(np.count_nonzero(outside)))
    n_nonfinite = int(np.count_nonzero(differ))
    if not n_nonfinite:
        return part
    return part._replace(
        n_mismatched=part.n_mismatched + n_nonfinite,
        n_nonfinite=n_nonfinite,
        required=math.inf,
        excess=math.inf,
        worst=int(differ.argmax()),
        equal=False,
    )


def _sums(actual: Array, expected: Array, space: Workspace) -> _Sums:
    """Sums of products; leaves the difference in `space.difference`."""
    x, y = _widened(actual, space.actual), _widened(expected, space.expected)
    d = np.subtract(x, y, out=space.difference[: x.size])
    return _Sums(_dot(x, x), _dot(y, y), _dot(x, y), _dot(d, d))


def _widened(array: Array, buffer: Array) -> Array:
    if array.dtype == buffer.dtype:
        return array
    out = buffer[: array.size]
    np.copyto(out, array)
    return out


def _dot(x: Array, y: Array) -> Any:
    """The dot product, in the type of the arrays."""
    if x.size <= _SHORT:
        return x.dot(y)
    cut = x.size - x.size % _ROW
    total = np.vecdot(x[:cut].reshape(-1, _ROW), y[:cut].reshape(-1, _ROW)).sum()
    return total + x[cut:].dot(y[cut:])


def _values(
    actual: Array, expected: Array, sums: _Sums, tol: _Tolerance, space: Workspace, ignored: Array | None = None
) -> _Partial:
    """The metrics of a block without NaN and infinity; `worst` avoids the elements in `ignored`. Follows `_sums`."""
    n = actual.size
    diff, magnitude, scratch = space.difference[:n], space.expected[:n], space.actual[:n]
    np.absolute(diff, out=diff)
    np.absolute(expected if expected.dtype == magnitude.dtype else magnitude, out=magnitude)
    top = int(diff.argmax())
    max_abs = diff[top]
    max_rel = _largest_ratio(diff, magnitude, scratch)
    frontier = frontier_of(diff, magnitude, scratch, top) if max_abs else ()
    excess, worst, n_mismatched = _excess(diff, magnitude, scratch, tol, ignored)
    required = _required_rtol(diff, magnitude, scratch, tol.atol, max_abs, max_rel)
    max_ulp = _max_ulp(actual, expected, space, may_cross_zero=not max_rel < 1)
    equal = bool(max_abs == 0 and (np.signbit(actual) == np.signbit(expected)).all())
    return _Partial(sums, n, n_mismatched, 0, max_abs, max_rel, max_ulp, required, excess, worst, equal, frontier)


def _largest_ratio(numerator: Array, denominator: Array, out: Array) -> Any:
    """The largest quotient, 0/0 counting as 0; `out` is overwritten and may be `numerator`."""
    np.divide(numerator, denominator, out=out)
    largest = np.fmax.reduce(out)
    return largest if largest > 0 else 0.0


def _excess(diff: Array, magnitude: Array, out: Array, tol: _Tolerance, ignored: Array | None) -> tuple[Any, int, int]:
    """The error of the worst element in tolerances, its index, and how many elements exceed their tolerance.

    Any difference where none is allowed counts as inf.
    """
    np.divide(diff, _allowed(magnitude, out, tol), out=out)
    if not tol.atol:
        np.copyto(out, 0, where=np.isnan(out))
    if ignored is not None:
        out[ignored] = -math.inf
    worst = int(out.argmax())
    excess = out[worst]
    # A quotient may round to 1 although the difference exceeds the tolerance.
    n_mismatched = 0 if excess < 1 else int(np.count_nonzero(diff > _allowed(magnitude, out, tol)))
    return excess, worst, n_mismatched


def _allowed(magnitude: Array, out: Array, tol: _Tolerance) -> Array:
    np.multiply(magnitude, tol.rtol, out=out)
    return np.add(out, tol.atol, out=out)


def _required_rtol(diff: Array, magnitude: Array, out: Array, atol: float, max_abs: Any, max_rel: Any) -> Any:
    if max_abs <= atol:
        return 0.0
    if atol == 0:
        return max_rel
    return _largest_ratio(np.subtract(diff, atol, out=out), magnitude, out)


def _max_ulp(actual: Array, expected: Array, space: Workspace, *, may_cross_zero: bool) -> int:
    """The largest distance in representable numbers of `actual`'s dtype; overwrites all of `space`."""
    bits = _BITS.get(actual.dtype)
    if bits is None or not _on_line(actual.dtype, expected.dtype):
        return -1
    n = actual.size
    x, y, z = (buffer.view(bits)[:n] for buffer in (space.actual, space.expected, space.difference))
    if actual.dtype != expected.dtype:
        np.copyto(z.view(actual.dtype), expected, casting="same_kind")
        expected = z.view(actual.dtype)
    if may_cross_zero:
        return _ordered_distance(actual.view(bits), expected.view(bits), x, y, z)
    # With equal signs, the bits themselves are ordered. -0.0 against 0.0 wraps to the lowest integer twice.
    np.subtract(actual.view(bits), expected.view(bits), out=x)
    return max(0, int(np.absolute(x, out=x).max()))


def _on_line(actual: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Whether distances are counted in `actual`'s numbers: both arrays have its dtype, or `expected` a wider float."""
    wider = expected.kind == "f" and expected.itemsize > actual.itemsize
    return actual in _BITS and (actual == expected or wider)


def _ordered_distance(actual: Array, expected: Array, x: Array, y: Array, sign: Array) -> int:
    """The largest distance on the line that runs through zero; `x`, `y` and `sign` are overwritten."""
    _order(expected, y, x)
    _order(actual, x, sign)
    high = np.maximum(x, y, out=sign)
    np.minimum(x, y, out=x)
    return int(np.subtract(high, x, out=x).view(f"u{x.itemsize}").max())


def _order(bits: Array, out: Array, sign: Array) -> None:
    """Sign and magnitude to an integer that grows with the number; both zeros become 0."""
    np.right_shift(bits, 8 * bits.itemsize - 1, out=sign)
    np.bitwise_and(bits, np.iinfo(bits.dtype).max, out=out)
    np.bitwise_xor(out, sign, out=out)
    np.subtract(out, sign, out=out)


def _in_range(total: _Partial, actual: Array, expected: Array) -> bool:
    """Whether no square overflowed, underflowed or lost precision in float64."""
    sums = total.sums
    return (
        (_LOWEST < sums.actual < _HIGHEST or (sums.actual == 0 and not actual.any()))
        and (_LOWEST < sums.expected < _HIGHEST or (sums.expected == 0 and not expected.any()))
        and (_LOWEST < sums.difference < _HIGHEST or total.max_abs == 0)
    )


def _joined(parts: list[_Partial], length: int) -> _Partial:
    """The metrics of all blocks, of `length` elements, together."""
    index, worst = max(enumerate(parts), key=lambda pair: (pair[1].n_nonfinite > 0, pair[1].excess))
    return _Partial(
        sums=_Sums(*map(_exact_sum, zip(*(p.sums for p in parts), strict=True))),
        n_finite=sum(p.n_finite for p in parts),
        n_mismatched=sum(p.n_mismatched for p in parts),
        n_nonfinite=sum(p.n_nonfinite for p in parts),
        max_abs=max(p.max_abs for p in parts),
        max_rel=max(p.max_rel for p in parts),
        max_ulp=max(p.max_ulp for p in parts),
        required=max(p.required for p in parts),
        excess=worst.excess,
        worst=index * length + worst.worst,
        equal=all(p.equal for p in parts),
        frontier=None if any(p.frontier is None for p in parts) else joined([p.frontier or () for p in parts]),
    )


def _exact_sum(values: tuple[Any, ...]) -> Any:
    """Rounded once for float64; longdouble is added up in order. Infinite where the sum leaves the range."""
    if any(isinstance(value, np.longdouble) for value in values):
        return sum(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.inf


def _metrics(total: _Partial, worst: tuple[Any, Any], n: int, shape: tuple[int, ...]) -> Metrics:
    """The public form of `total`, with the values of the worst element, the number of elements and their shape."""
    sums = total.sums
    return Metrics(
        n_elements=n,
        n_mismatched=total.n_mismatched,
        n_nonfinite_mismatched=total.n_nonfinite,
        max_abs_diff=float(total.max_abs),
        max_rel_diff=float(total.max_rel),
        max_ulp_diff=total.max_ulp if total.max_ulp >= 0 else None,
        rmse=float((sums.difference / total.n_finite) ** 0.5) if total.n_finite else 0.0,
        cosine=_cosine(sums.actual, sums.expected, sums.cross),
        required_rtol=float(total.required),
        worst_index=_index(total.worst, shape),
        actual_value=float(worst[0]),
        expected_value=float(worst[1]),
        equal=total.equal,
        frontier=(NEVER,) if total.n_nonfinite and total.frontier is not None else total.frontier,
        expected_rms=float((sums.expected / total.n_finite) ** 0.5) if total.n_finite else 0.0,
    )


def _cosine(actual: Any, expected: Any, cross: Any) -> float:
    if actual == 0 or expected == 0:
        return 1.0 if actual == expected else math.nan
    cosine = float(cross / (actual**0.5 * expected**0.5))
    return math.copysign(1.0, cosine) if abs(cosine) > 1 else cosine


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for length in reversed(shape):
        flat, rest = divmod(flat, length)
        index.append(rest)
    return tuple(reversed(index))


def _empty(actual: Array, expected: Array) -> Metrics:
    """The metrics of empty tensors: nothing differs, and there is no worst element."""
    on_line = _on_line(actual.dtype, expected.dtype)
    return Metrics(0, 0, 0, 0.0, 0.0, 0 if on_line else None, 0.0, 1.0, 0.0, None, math.nan, math.nan, True, ())
