"""The report's pictures as numbers: the sizes of a tensor's errors, and their locations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ELEMENTS = 1_000_000
"""A larger tensor is sampled at even distances."""

MAX_ROWS, MAX_COLUMNS = 16, 40
N_LEVELS = 6
NOT_FINITE = N_LEVELS + 1
"""The level of a block with an element that is finite in only one of the two; 0 is a block without error."""

FINEST_DECADES = 8
"""A histogram of at most this many decades has four bars per decade, else two."""

LOWEST = -6
"""The decade, in units of the histogram, below which errors are counted together."""

Floats = NDArray[np.float64]


class PictureError(Exception):
    """No picture can be made of two arrays; the message says why."""


@dataclass(frozen=True)
class Errors:
    """|actual − oracle| of a tensor, infinite if only one of the two is finite.

    `values` has as many axes as the tensor; `n_elements` is the size of the whole, of which `values` may be a part.
    """

    values: Floats
    shape: tuple[int, ...]

    @property
    def n_elements(self) -> int:
        """The size of the tensor."""
        return math.prod(self.shape)

    @property
    def sampled(self) -> bool:
        """Whether the elements are a sample."""
        return self.values.size < self.n_elements


@dataclass(frozen=True)
class Histogram:
    """Number of elements per bar; `n_exact` have no error, `n_infinite` an infinite one."""

    counts: tuple[int, ...]
    n_exact: int
    n_infinite: int

    @property
    def total(self) -> int:
        """All elements."""
        return sum(self.counts) + self.n_exact + self.n_infinite


@dataclass(frozen=True)
class LogBins:
    """The bars that several histograms share: `n` of equal width between the decimal logarithms `low` and `high`."""

    low: int
    high: int

    @property
    def n(self) -> int:
        """How many bars there are."""
        return (self.high - self.low) * (4 if self.high - self.low <= FINEST_DECADES else 2)


@dataclass(frozen=True)
class Map:
    """The largest error in each block of a tensor that is arranged in rows and columns.

    `levels` are 1 to N_LEVELS in equal steps of the logarithm between `low` and `high`, 0 without any error, and
    NOT_FINITE. `rows` and `columns` say what the axes are.
    """

    levels: NDArray[np.int64]
    low: float
    high: float
    rows: str
    columns: str


def errors(actual: NDArray[Any], exact: NDArray[Any]) -> Errors:
    """|actual − exact|, of evenly spaced elements where there are many; raises PictureError."""
    if actual.shape != exact.shape:
        raise PictureError(f"its shape {list(actual.shape)} differs from that of the exact answer, {list(exact.shape)}")
    strange = [array.dtype for array in (actual, exact) if array.dtype.kind not in "biuf"]
    if strange:
        raise PictureError(f"{strange[0]} is not a real dtype")
    if not actual.size:
        raise PictureError("it has no elements")
    index = thinned(actual.shape)
    observed, wanted = (np.asarray(array[index], dtype=np.float64) for array in (actual, exact))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(observed - wanted)
    same = (observed == wanted) | (np.isnan(observed) & np.isnan(wanted))
    return Errors(np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf)), actual.shape)


def thinned(shape: Sequence[int]) -> tuple[slice, ...]:
    """Slices that keep at most MAX_ELEMENTS: the longest axis is halved until they fit."""
    steps = [1] * len(shape)
    left = list(shape)
    while math.prod(left) > MAX_ELEMENTS:
        longest = left.index(max(left))
        steps[longest] *= 2
        left[longest] = -(-shape[longest] // steps[longest])
    return tuple(slice(None, None, step) for step in steps)


def axis_for(many: Sequence[Errors], unit: float) -> LogBins:
    """Whole decades around the errors of several tensors, in units of `unit`, including 1 and 10."""
    logs = [log for one in many if (log := logarithms(one.values, unit)).size]
    low = min((float(log.min()) for log in logs), default=0.0)
    high = max((float(log.max()) for log in logs), default=0.0)
    return LogBins(max(min(math.floor(low), -1), LOWEST), max(math.floor(high) + 1, 2))


def logarithms(values: Floats, unit: float) -> Floats:
    """Decimal logarithms of the finite, nonzero errors."""
    usable = values[(values > 0) & np.isfinite(values)]
    return np.asarray(np.log10(usable) - math.log10(unit), dtype=np.float64)


def histogram(tensor_errors: Errors, unit: float, axis: LogBins) -> Histogram:
    """The errors in units of `unit`, counted by decimal logarithm; those beyond the axis count in its end bars."""
    inside = np.clip(logarithms(tensor_errors.values, unit), axis.low, np.nextafter(axis.high, axis.low))
    counts, _ = np.histogram(inside, bins=axis.n, range=(axis.low, axis.high))
    exact, infinite = (
        int(np.count_nonzero(mask)) for mask in (tensor_errors.values == 0, np.isinf(tensor_errors.values))
    )
    return Histogram(tuple(counts.tolist()), exact, infinite)


def mismatch_map(tensor_errors: Errors) -> Map:
    """The locations of the errors, in at most MAX_ROWS times MAX_COLUMNS blocks."""
    split = best_split(tensor_errors.shape)
    plane = tensor_errors.values.reshape(math.prod(tensor_errors.values.shape[:split]), -1)
    worst = largest_by_block(plane)
    usable = worst[(worst > 0) & np.isfinite(worst)]
    high = float(usable.max()) if usable.size else 1.0
    # Within a decade, different shades would make noise look like a pattern.
    low = min(float(usable.min()), high / 10) if usable.size else 0.1
    return Map(
        levels(worst, low, high),
        low,
        high,
        axes_text(tensor_errors.shape, 0, split),
        axes_text(tensor_errors.shape, split),
    )


def best_split(shape: Sequence[int]) -> int:
    """Number of leading axes that become rows, so that the plane is about twice as wide as high; 0 for a vector."""
    if len(shape) < 2:
        return 0
    return min(range(1, len(shape)), key=lambda n: abs(math.log(2 * math.prod(shape[:n]) / math.prod(shape[n:]))))


def axes_text(shape: Sequence[int], start: int, stop: int | None = None) -> str:
    """`axis 0 (64)`, `axes 1 to 3 (8 × 6 × 6)`, or empty without axes."""
    sizes = shape[start:stop]
    if not sizes:
        return ""
    name = f"axis {start}" if len(sizes) == 1 else f"axes {start} to {start + len(sizes) - 1}"
    return f"{name} ({' × '.join(map(str, sizes))})"


def largest_by_block(plane: Floats) -> Floats:
    """The largest value in each block of a plane."""
    heights, widths = (edges(n, most) for n, most in zip(plane.shape, (MAX_ROWS, MAX_COLUMNS), strict=True))
    by_row = np.maximum.reduceat(plane, heights, axis=0)
    return np.asarray(np.maximum.reduceat(by_row, widths, axis=1), dtype=np.float64)


def edges(n: int, most: int) -> NDArray[np.intp]:
    """The starts of at most `most` blocks of nearly equal length."""
    blocks = min(n, most)
    return (np.arange(blocks) * n) // blocks


def levels(worst: Floats, low: float, high: float) -> NDArray[np.int64]:
    """The level of each block."""
    usable = (worst > 0) & np.isfinite(worst)
    logs = np.log10(worst, out=np.zeros_like(worst), where=usable)
    share = (logs - math.log10(low)) / (math.log10(high) - math.log10(low))
    shades = 1 + np.clip((share * N_LEVELS).astype(np.int64), 0, N_LEVELS - 1)
    return np.where(np.isinf(worst), NOT_FINITE, np.where(worst > 0, shades, 0))


def runs(shades: NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of equal level in a map: level, row, first column, length."""
    for row, line in enumerate(shades.tolist()):
        column = 0
        for level, stretch in groupby(line):
            length = sum(1 for _ in stretch)
            yield level, row, column, length
            column += length
