"""The tolerance frontier of a comparison: the few points (|expected|, |difference|) that decide for every tolerance.

`d <= atol + rtol * e` holds for all elements if it holds for the vertices of their convex hull's upper left part, since
the largest `d - rtol * e` is at a vertex: some ten points for 10^7 elements. A vertex less than `SLACK` above the line
between its neighbours is left out, so that rounding makes none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Point: TypeAlias = tuple[float, float]
Frontier: TypeAlias = tuple[Point, ...]

NEVER: Point = (0.0, math.inf)
"""The point that no tolerance accepts: a difference of NaN or infinity, or of integers."""
SLACK = 8 * 2.0**-52
"""As a part of the difference."""
FEW_POINTS = 64
"""Points that are sorted in Python."""


def accepts(frontier: Iterable[Sequence[float]], rtol: float, atol: float) -> bool:
    """Whether a tensor with this frontier passes."""
    for expected, difference in frontier:  # noqa: SIM110 - all() takes twice as long, and a run has 10^6 rows
        if difference > atol + rtol * expected:
            return False
    return True


def frontier_of(difference: Array, magnitude: Array, ratio: Array, top: int) -> Frontier:
    """The frontier of a block: |difference|, |expected|, their quotient, and where the first is largest and not 0.

    A vertex is the one with the largest difference, or has a larger quotient than that one. `ratio` is overwritten.
    """
    wanted = np.flatnonzero(ratio >= ratio[top] * (1 - SLACK))
    n = wanted.size
    if n <= FEW_POINTS:
        return chain(zip(magnitude[wanted].tolist(), difference[wanted].tolist(), strict=True))
    room = ratio if 3 * n <= ratio.size else np.empty(3 * n, ratio.dtype)
    e, d, above = room[:n], room[n : 2 * n], room[2 * n : 3 * n]
    np.take(magnitude, wanted, out=e)
    np.take(difference, wanted, out=d)
    start = e.min()
    first, last = (start, d[e == start].max()), (magnitude[top], difference[top])
    return chain([first, *between(first, last, e, d, above), last])


def joined(frontiers: Sequence[Frontier]) -> Frontier:
    """The frontier of several blocks."""
    return frontiers[0] if len(frontiers) == 1 else chain([point for frontier in frontiers for point in frontier])


def between(first: tuple[Any, Any], last: tuple[Any, Any], e: Array, d: Array, above: Array) -> Iterator[Any]:
    """The vertices between two, by the one that is farthest above their line (QuickHull); `above` is overwritten."""
    if not first[0] < last[0]:
        return
    np.subtract(e, first[0], out=above)
    above *= (last[1] - first[1]) / (last[0] - first[0])
    above += first[1]
    np.subtract(d, above, out=above)
    inside = np.flatnonzero(above > 0)
    e, d, above = e[inside], d[inside], above[inside]
    real = (above > SLACK * d) & (first[0] < e) & (e < last[0])
    if not real.any():
        return
    e, d, above = e[real], d[real], above[real]
    at = int(above.argmax())
    vertex = e[at], d[at]
    yield from between(first, vertex, e, d, above)
    yield vertex
    yield from between(vertex, last, e, d, above)


def chain(points: Iterable[Point]) -> Frontier:
    """The vertices of a few points, by Andrew's monotone chain."""
    vertices: list[Point] = []
    for e, d in sorted(((float(e), float(d)) for e, d in points), key=lambda point: (point[0], -point[1])):
        if d <= (vertices[-1][1] if vertices else 0.0):
            continue
        while len(vertices) > 1 and is_below(vertices[-1], vertices[-2], (e, d)):
            vertices.pop()
        vertices.append((e, d))
    return tuple(vertices)


def is_below(point: Point, left: Point, right: Point) -> bool:
    """Whether a point is on the line between two others or below."""
    line = left[1] + (right[1] - left[1]) * ((point[0] - left[0]) / (right[0] - left[0]))
    return point[1] - line <= SLACK * point[1]
