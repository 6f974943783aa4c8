"""All metrics of two tensors that arrive in parts; only few elements are measured in float64.

No element below the tolerance frontier so far (`frontier.py`) can raise the largest difference, quotient, excess or
required rtol: each of them is the least tolerance of a kind that all elements pass. So pieces that stay in cache are
screened in their own dtype, in which rounding is covered by `slack_of`; the rest is measured as in `metrics.py`. The
metrics are the same, except the sums, which in float32 are right to seven digits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from parity.judge.compare import metrics
from parity.judge.compare.frontier import Frontier, joined
from parity.judge.compare.metrics import Array, Metrics, quotient
from parity.judge.compare.workspace import Workspace, run_blocks, workspace

_FLOAT64 = np.dtype(np.float64)

PIECE = 1 << 16
"""Elements of a piece: 256 KiB of float32."""
ROW = 128
"""Elements whose products are added up in float32."""
LOWEST = 1e-25
"""Sums of squares below lose digits in float32, as does a difference below the root of it."""
LEAST = 1e-200
"""Where less is allowed, an excess may be infinite, and the first infinite one counts as the worst."""
STEEPEST = 0.25
"""Elements with smaller quotients have the same sign, and their distance in ulps is bounded."""


class RunningMaxima(NamedTuple):
    """The frontier of the elements so far, and their largest distance in ulps."""

    frontier: Frontier = ()
    max_ulp: int = 0

    @property
    def finite(self) -> bool:
        """Whether the frontier is finite, so that elements can be below it."""
        return bool(self.frontier) and math.isfinite(self.frontier[-1][1])

    def slope(self, dtype: np.dtype[Any]) -> float:
        """The quotient up to which an element that is no larger than the largest difference raises nothing.

        The frontier is above the line from 0 to its last point. A difference of `slope` times a number is at most
        `slope` times twice as many ulps as the number has mantissas, twice that where the other one has a smaller
        exponent.
        """
        if not self.finite:
            return 0.0
        magnitude, highest = self.frontier[-1]
        steep = highest / magnitude if magnitude else math.inf
        by_ulps = self.max_ulp / 2.0 ** (np.finfo(dtype).nmant + 2)
        return min(steep, by_ulps, STEEPEST) * (1 - slack_of(dtype))

    def above(self, difference: Array, magnitude: Array) -> Any:
        """Which points are not below the frontier, that is above one of its lines; the first line goes through 0."""
        if not self.finite:
            return np.ones(difference.size, bool)
        slack, ends = slack_of(difference.dtype), ((0.0, 0.0), *self.frontier)
        is_above = difference > self.frontier[-1][1] * (1 - slack)
        for (e, d), (e_next, d_next) in itertools.pairwise(ends[1:] if not ends[1][0] else ends):
            steep = (d_next - d) / (e_next - e)
            if not steep < np.finfo(difference.dtype).max:
                return np.ones(difference.size, bool)
            is_above |= difference > magnitude * (steep * (1 - slack)) + (d - steep * e) * (1 - slack)
        return is_above

    def joined(self, parts: Iterable[metrics._Partial]) -> RunningMaxima:
        """These maxima with those of further elements."""
        partials = list(parts)
        frontier = joined([self.frontier, *(part.frontier or () for part in partials)])
        return RunningMaxima(concave(frontier), max(self.max_ulp, *(part.max_ulp for part in partials)))


def concave(frontier: Frontier) -> Frontier:
    """A frontier without the points that lie below the line from 0 to a later one: no tolerance depends on them."""
    start = max(range(len(frontier)), key=lambda i: quotient(*reversed(frontier[i])), default=0)
    return frontier[start:]


def slack_of(dtype: np.dtype[Any]) -> float:
    """More than the rounding errors of a difference, of a bound and of their comparison, relative to them."""
    return 16 * float(np.finfo(dtype).eps)


def compare_parts(
    parts: Iterable[tuple[Array, Array]],
    shape: tuple[int, ...],
    rtol: float,
    atol: float,
    *,
    threads: int = 2,
    known: RunningMaxima = RunningMaxima(),  # noqa: B008 - it is frozen
) -> Metrics:
    """The metrics of tensors of `shape` in flat parts, all of one length but the last, which may be shorter.

    Each part is read once; `known` is what some of their elements show. Raises ValueError if the parts are not those
    of a tensor of this shape.
    """
    tol, totals, values, length, n = metrics._Tolerance(rtol, atol), [], [], 0, 0
    with np.errstate(all="ignore"):
        for actual, expected in parts:
            metrics._check(actual, expected, rtol, atol)
            x, y = metrics._flat(actual), metrics._flat(expected)
            total = same(x, y) or part_of(x, y, tol, threads, known)
            known = known.joined([total])
            totals.append(total)
            values.append((x[total.worst], y[total.worst]))
            length, n = length or x.size, n + x.size
        if n != math.prod(shape) or not totals:
            raise ValueError(f"{n} elements are not those of a tensor of shape {list(shape)}")
        whole = metrics._joined(totals, length)
        whole = whole._replace(frontier=whole.frontier and concave(whole.frontier))
        return metrics._metrics(whole, values[whole.worst // length], n, shape)


def same(actual: Array, expected: Array) -> metrics._Partial | None:
    """The metrics of a part with equal bits, without differences; None if the bits differ, or a sum is not usable."""
    if actual.dtype != expected.dtype or actual.dtype not in (np.float32, np.float64) or not actual.size:
        return None
    x, y = (array.view(f"u{array.itemsize}") for array in (actual, expected))
    if not np.array_equal(x[:PIECE], y[:PIECE]) or not np.array_equal(x, y):
        return None
    square = dot(actual, actual)
    if not lowest(actual.dtype) < square < metrics._HIGHEST:
        return None
    sums = metrics._Sums(square, square, square, 0.0)
    return metrics._Partial(sums, actual.size, 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, True, ())


def part_of(
    actual: Array, expected: Array, tol: metrics._Tolerance, threads: int, known: RunningMaxima
) -> metrics._Partial:
    """The metrics of a part, piece by piece if its dtype allows it."""
    floats = actual.dtype == expected.dtype and actual.dtype in (np.float32, np.float64)
    if not floats or actual.size < PIECE or max(tol) < LEAST:
        return metrics._whole(actual, expected, tol, threads, many=False)

    def work(index: int) -> metrics._Partial:
        x, y = (array[index * PIECE : (index + 1) * PIECE] for array in (actual, expected))
        return piece(x, y, tol, known) or metrics._whole(x, y, tol, 1, many=False)

    return metrics._joined(run_blocks(work, -(-actual.size // PIECE), threads), PIECE)


def piece(actual: Array, expected: Array, tol: metrics._Tolerance, known: RunningMaxima) -> metrics._Partial | None:
    """The metrics of a piece; None if sums overflow, underflow or are not finite."""
    space, n, dtype = workspace(actual.dtype), actual.size, actual.dtype
    difference, magnitude, bound = space.difference[:n], space.expected[:n], space.actual[:n]
    np.subtract(actual, expected, out=difference)
    sums = sums_of(actual, expected, difference)
    if sums is None:
        return None
    np.absolute(difference, out=difference)
    top, slack = float(difference.max()), slack_of(dtype)
    if not top:
        equal = np.array_equal(actual.view(f"u{actual.itemsize}"), expected.view(f"u{actual.itemsize}"))
        return metrics._Partial(sums, n, 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, bool(equal), ())
    np.absolute(expected, out=magnitude)
    limit(magnitude, bound, metrics._Tolerance(known.slope(dtype), 0.0), -1)
    over = difference > bound
    if known.finite and top >= (high := known.frontier[-1][1] * (1 - slack)):
        over |= difference > high
    wanted = np.flatnonzero(over)
    d, m, a, e = (np.take(array, wanted) for array in (difference, magnitude, actual, expected))
    # From here on, the work memory is used for other elements.
    n_mismatched = 0 if top <= tol.atol * (1 - slack) else mismatched(actual, expected, space, tol)
    partial = metrics._Partial(sums, n, n_mismatched, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, False, ())
    if not wanted.size:
        return partial
    above = known.above(d, m)
    kept = np.flatnonzero(above if tol.atol >= LEAST else above | (m * tol.rtol <= LEAST))
    partial = partial._replace(max_ulp=metrics._max_ulp(a, e, space, may_cross_zero=True))
    if not kept.size:
        return partial
    exact = metrics._block(a[kept], e[kept], tol, workspace(_FLOAT64))
    return partial._replace(
        max_abs=exact.max_abs, max_rel=exact.max_rel, required=exact.required, excess=exact.excess,
        worst=int(wanted[kept[exact.worst]]), frontier=exact.frontier,
    )  # fmt: skip


def sums_of(actual: Array, expected: Array, difference: Array) -> metrics._Sums | None:
    """The sums of products; None where one is not finite, or too small for the digits it should have."""
    pairs = (actual, actual), (expected, expected), (actual, expected), (difference, difference)
    sums = metrics._Sums(*(dot(x, y) for x, y in pairs))
    if not all(map(math.isfinite, sums)):
        return None
    least, arrays = lowest(actual.dtype), (actual, expected, None, difference)
    small = (array for total, array in zip(sums, arrays, strict=True) if array is not None and total < least)
    return None if any(array.any() for array in small) or max(sums) > metrics._HIGHEST else sums


def lowest(dtype: np.dtype[Any]) -> float:
    """Sums of squares below lose digits."""
    return LOWEST if dtype.itemsize == 4 else metrics._LOWEST


def dot(x: Array, y: Array) -> float:
    """The dot product; rows in the type of the arrays, their sum in float64."""
    cut = x.size - x.size % ROW
    rows = np.vecdot(x[:cut].reshape(-1, ROW), y[:cut].reshape(-1, ROW)).sum(dtype=np.float64)
    return float(rows) + float(x[cut:].dot(y[cut:]))


def limit(magnitude: Array, out: Array, tol: metrics._Tolerance, sign: int) -> None:
    """The tolerances of elements, surely a little too low, or with a `sign` of 1 too high; 0 at least."""
    part = 1 + sign * slack_of(magnitude.dtype)
    np.multiply(magnitude, tol.rtol * part, out=out)
    shift = tol.atol * part
    least = float(np.finfo(magnitude.dtype).tiny) / float(np.finfo(magnitude.dtype).eps)
    if shift < 2 * least:
        shift += sign * least  # A product that is subnormal has fewer digits.
    if shift:
        out += shift
    if shift < 0 and float(magnitude.min()) * tol.rtol < 2 * least:
        np.maximum(out, zeros(out.dtype)[: out.size], out=out)


@functools.cache
def zeros(dtype: np.dtype[Any]) -> Array:
    """A piece of zeros: a maximum with a number takes four times as long."""
    return np.zeros(PIECE, dtype)


def mismatched(actual: Array, expected: Array, space: Workspace, tol: metrics._Tolerance) -> int:
    """How many elements exceed their tolerance; those near it are measured in float64.

    `space` has the differences and magnitudes, and is overwritten.
    """
    difference, magnitude, bound = (
        buffer[: actual.size] for buffer in (space.difference, space.expected, space.actual)
    )
    limit(magnitude, bound, tol, 1)
    surely = difference > bound
    limit(magnitude, bound, tol, -1)
    near = np.flatnonzero((difference > bound) & ~surely)
    n = int(np.count_nonzero(surely))
    if not near.size:
        return n
    return n + metrics._block(actual[near], expected[near], tol, workspace(_FLOAT64)).n_mismatched
