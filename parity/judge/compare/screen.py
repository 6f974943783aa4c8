"""Checks whether two tensors agree, in a tenth of the time that all metrics take: most pairs of two dumps agree.

Differences are taken in the tensors' own dtype, in pieces that stay in cache. A piece passes if all differences are
below the tolerance by more than rounding. Any other piece, NaN, infinities, overflow and underflow need all metrics.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parity.judge.compare import metrics
from parity.judge.compare.chunked import LOWEST, PIECE, RunningMaxima
from parity.judge.compare.metrics import Metrics
from parity.judge.compare.workspace import run_blocks, workspace

Array = NDArray[Any]

SLACK = 1e-5
"""A tolerance is lowered by this part of it: float32 rounds a difference and its limit to 2^-24, four times at most."""


class Piece(NamedTuple):
    """What a piece contributes: the largest difference and its index, the sums of squares and of products, whether bits
    are equal."""

    top: float
    at: int
    squares: tuple[float, float, float, float]
    equal: bool


def screened(
    parts: Iterable[tuple[Array, Array]], shape: tuple[int, ...], rtol: float, atol: float, *, threads: int = 2
) -> Metrics | RunningMaxima:
    """Metrics of two float tensors that agree and arrive in flat parts; if all metrics are needed, the maxima of the
    first piece that does not agree.

    `max_rel_diff` and `required_rtol` are nan, `max_ulp_diff` and `frontier` None: they are not measured. `worst_index`
    is where the difference is largest. Sums are those of float32, right to five digits.
    """
    pieces: list[Piece] = []
    best, values, n = -1.0, (math.nan, math.nan), 0
    with np.errstate(all="ignore"):
        for actual, expected in parts:
            x, y = (part.astype(np.float32) if part.dtype == np.float16 else part for part in (actual, expected))
            if x.dtype != y.dtype or x.dtype not in (np.float32, np.float64) or x.size != y.size:
                return RunningMaxima()
            for i, one in enumerate(pieces_of(x, y, rtol, atol, threads)):
                if one is None:
                    wrong = slice(i * PIECE, (i + 1) * PIECE)
                    tol = metrics._Tolerance(rtol, atol)
                    return RunningMaxima().joined([metrics._whole(x[wrong], y[wrong], tol, 1, many=False)])
                if one.top > best:
                    best, index = one.top, i * PIECE + one.at
                    values, worst = (float(actual[index]), float(expected[index])), n + index
                pieces.append(one)
            n += x.size
    if n != math.prod(shape) or not n:
        return RunningMaxima()
    xx, yy, xy, dd = (math.fsum(column) for column in zip(*(one.squares for one in pieces), strict=True))
    both = math.sqrt(xx) * math.sqrt(yy)
    return Metrics(
        n_elements=n,
        n_mismatched=0,
        n_nonfinite_mismatched=0,
        max_abs_diff=abs(values[0] - values[1]),
        max_rel_diff=0.0 if not best else math.nan,
        max_ulp_diff=0 if not best else None,
        rmse=math.sqrt(dd / n),
        cosine=min(xy / both, 1.0) if both else 1.0 if xx == yy else math.nan,
        required_rtol=0.0 if best <= atol else math.nan,
        worst_index=tuple(map(int, np.unravel_index(worst, shape))),
        actual_value=values[0],
        expected_value=values[1],
        equal=all(one.equal for one in pieces),
        frontier=None if best else (),
        expected_rms=math.sqrt(yy / n),
    )


def pieces_of(actual: Array, expected: Array, rtol: float, atol: float, threads: int) -> list[Piece | None]:
    """The pieces of two flat arrays; some after the first that does not agree are skipped."""
    ended = threading.Event()

    def work(index: int) -> Piece | None:
        result = None if ended.is_set() else piece(actual, expected, index, rtol, atol)
        if result is None:
            ended.set()
        return result

    return run_blocks(work, -(-actual.size // PIECE), threads)


def piece(actual: Array, expected: Array, index: int, rtol: float, atol: float) -> Piece | None:
    """The `index`-th piece of two flat arrays; None if it may not agree, or if sums overflow or underflow."""
    x, y = (array[index * PIECE : (index + 1) * PIECE] for array in (actual, expected))
    space = workspace(x.dtype)
    d, limit = space.difference[: x.size], space.expected[: x.size]
    np.subtract(x, y, out=d)
    top = float(max(d.max(), -d.min()))
    if not top <= atol * (1 - SLACK):
        np.abs(y, out=limit)
        limit *= rtol * (1 - SLACK)
        limit += atol * (1 - SLACK)
        np.abs(d, out=space.actual[: x.size])
        if not (space.actual[: x.size] <= limit).all():
            return None
    squares = (float(x.dot(x)), float(y.dot(y)), float(x.dot(y)), float(d.dot(d)) if top else 0.0)
    if not all(math.isfinite(square) for square in squares):
        return None
    small = min(squares[0], squares[1]) < LOWEST or (top and squares[3] < LOWEST)
    if small and (x.any() or y.any()):
        return None
    at = int(np.abs(d, out=limit).argmax()) if top else 0
    equal = not top and np.array_equal(x.view(f"u{x.itemsize}"), y.view(f"u{x.itemsize}"))
    return Piece(top, at, squares, bool(equal))
