"""Which values of one computation another one has, too: with the same elements up to their order, sign or a factor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NONE, PART, MOVED, SCALED, KNOWN = 0, 1, 2, 3, 4
"""How well a value is known: not at all; as a part of a larger one; its elements, in another order or location; up to a
factor; as it is."""
FEW = 4
"""Values with so few different elements are compared by location: their elements alone say nothing."""
MANY = 8
"""So many elements among those of a larger value are a part of it."""
MOST_AXES = 5
FAR = 1e300
"""Stands for infinity; NaN is as far on the other code."""
LARGE, FAR_ABOVE = 1e8, 1e4
"""Elements from `LARGE` on stand for infinity where all others are `FAR_ABOVE` times smaller."""


@dataclass(frozen=True, eq=False)
class Item:
    """A value, and what is compared first."""

    values: Array

    @cached_property
    def distinct(self) -> Array:
        """The different elements, sorted; NaN first."""
        return np.unique(np.nan_to_num(self.plain.ravel(), nan=-2 * FAR, posinf=FAR, neginf=-FAR))

    @cached_property
    def plain(self) -> Array:
        """The value with infinities for what stands for them, as -1e9 in a mask."""
        sizes = np.abs(self.values)
        far = sizes >= LARGE
        if not 0.0 < sizes[~far].max(initial=0.0) <= LARGE / FAR_ABOVE:
            return self.values
        return np.where(far, np.copysign(np.inf, self.values), self.values)

    @cached_property
    def scale(self) -> float:
        """The largest finite element, without its sign."""
        finite = np.abs(self.distinct[np.abs(self.distinct) < FAR])
        return float(finite.max(initial=0.0))

    @cached_property
    def few(self) -> bool:
        """Whether there are few different elements."""
        return 1 < self.distinct.size <= FEW and self.values.size > 2 * self.distinct.size

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest finite element."""
        finite = self.distinct[np.abs(self.distinct) < FAR]
        return (float(finite[0]), float(finite[-1])) if finite.size else (0.0, 0.0)

    @cached_property
    def squeezed(self) -> Array:
        """The value without axes along which it is constant."""
        values = self.plain
        for axis in reversed(range(values.ndim)):
            first = values.take([0], axis) if values.shape[axis] else values
            if values.shape[axis] and np.array_equal(np.broadcast_to(first, values.shape), values, equal_nan=True):
                values = first
        return values.reshape([n for n in values.shape if n != 1])

    @cached_property
    def pattern(self) -> Array:
        """A value with two different elements as zeros and ones."""
        ones: Array = (self.squeezed == self.squeezed.max(initial=-np.inf)).astype(np.float64)
        return ones


class Known:
    """The values that a computation has; `factors` are those by which another one's may differ. Nothing is looked for
    after `until`, a time of the monotonic clock."""

    def __init__(self, arrays: Iterable[Array], factors: Iterable[float] = (), until: float = math.inf) -> None:
        self.until = until
        self.items = [Item(array) for array in arrays if array.size]
        others = {sign * f for f in factors for sign in (1, -1) if f} - {1.0, -1.0}
        self.factors = (1.0, -1.0, *others)
        ends = [item.ends for item in self.items]
        self.low = np.array([low for low, _ in ends])
        self.high = np.array([high for _, high in ends])

    def level(self, array: Array, tolerance: float, *, padded: bool = False) -> int:
        """How well a value is known; one that is `padded` may have zeros besides. Raises TimeoutError."""
        item = Item(array)
        if time.monotonic() > self.until:
            raise TimeoutError
        if not array.size:
            return KNOWN
        best = NONE
        for factor in self.factors:
            for other in self.alike(item, factor, tolerance):
                best = max(best, compared(item, other, factor, tolerance))
                if best == KNOWN:
                    return KNOWN if abs(factor) == 1.0 else SCALED
        if best == NONE and self.is_part(item, tolerance, padded):
            return MOVED if padded else PART
        return best

    def alike(self, item: Item, factor: float, tolerance: float) -> Iterator[Item]:
        """The values that, times the factor, have the same ends."""
        if item.few:
            yield from (other for other in self.items if other.few) if factor == 1.0 else ()
            return
        low, high = sorted(end / factor for end in item.ends)
        slack = 2 * tolerance * item.scale / abs(factor)
        for i in np.flatnonzero((abs(self.low - low) <= slack) & (abs(self.high - high) <= slack)):
            yield self.items[i]

    def is_part(self, item: Item, tolerance: float, padded: bool) -> bool:
        """Whether the elements are among those of a larger value; zeros do not count in a `padded` one."""
        own = item.distinct[(item.distinct != 0) & (np.abs(item.distinct) < FAR)] if padded else item.distinct
        if own.size < MANY:
            return False
        slack = tolerance * item.scale
        sample = own[:: max(1, own.size // MANY)]
        for i in np.flatnonzero((self.low <= own[0] + slack) & (self.high >= own[-1] - slack)):
            other = self.items[i].distinct
            if other.size >= own.size and within(sample, other, slack) and within(own, other, slack):
                return True
        return False


def compared(item: Item, other: Item, factor: float, tolerance: float) -> int:
    """How well a value is another one times a factor."""
    if item.few or other.few:
        return KNOWN if item.few and other.few and same_pattern(item, other, tolerance) else NONE
    mine, theirs = item.distinct, times(other.distinct, factor)
    slack = tolerance * item.scale
    if not within(mine, theirs, slack) or not within(theirs, mine, slack):
        return NONE
    one, whole = item.squeezed, other.squeezed * factor
    return KNOWN if same_positions(one, whole, slack) or is_repeated(one, whole, slack) else MOVED


def times(distinct: Array, factor: float) -> Array:
    """Sorted elements times a factor."""
    far = np.abs(distinct) >= FAR
    return distinct if factor == 1.0 else np.sort(np.where(far, distinct * np.sign(factor), distinct * factor))


def within(some: Array, others: Array, slack: float) -> bool:
    """Whether each element is near one of others, which are sorted."""
    at = np.searchsorted(others, some)
    near = np.minimum(
        np.abs(others[np.minimum(at, others.size - 1)] - some), np.abs(others[np.maximum(at - 1, 0)] - some)
    )
    return bool((near <= slack).all())


def same_pattern(item: Item, other: Item, tolerance: float) -> bool:
    """Whether two values with few elements have them at the same positions; two elements may be any two."""
    if item.distinct.size == 2 == other.distinct.size:
        return same_positions(item.pattern, other.pattern, 0.0) or same_positions(item.pattern, 1 - other.pattern, 0.0)
    return same_positions(item.squeezed, other.squeezed, tolerance * max(item.scale, other.scale))


def same_positions(mine: Array, theirs: Array, slack: float) -> bool:
    """Whether two values are equal up to the order of axes and the shape."""
    if mine.size != theirs.size:
        return False
    one, other = (mine, theirs) if mine.ndim >= theirs.ndim else (theirs, mine)
    flat = other.ravel()
    orders = permutations(range(one.ndim)) if one.ndim <= MOST_AXES else [tuple(range(one.ndim))]
    return any(is_near(one.transpose(order).ravel(), flat, slack) for order in orders)


def is_repeated(mine: Array, theirs: Array, slack: float) -> bool:
    """Whether a larger value is another one several times along an axis, as the two halves of a rotary table."""
    if not 0 < mine.size < theirs.size or theirs.size % mine.size:
        return False
    count = theirs.size // mine.size
    for axis in (axis for axis, n in enumerate(theirs.shape) if n % count == 0):
        first, *others = np.split(theirs, count, axis)
        same = all(is_near(first.ravel(), other.ravel(), slack) for other in others)
        if same and same_positions(mine, first, slack):
            return True
    return False


def is_near(one: Array, other: Array, slack: float) -> bool:
    """Whether elements are near each other; infinities and NaN are the same in both."""
    with np.errstate(invalid="ignore"):
        return bool(
            (abs(one[:4] - other[:4]) <= slack).all()
            if np.isfinite(one[:4]).all() and not (abs(one[:4] - other[:4]) <= slack).all()
            else ((abs(one - other) <= slack) | (one == other) | (np.isnan(one) & np.isnan(other))).all()
        )


def factors_of(numbers: Iterable[float], shapes: Iterable[Sequence[int]]) -> set[float]:
    """By what values may differ: 2, its logarithm, numbers of the code, roots of axes' lengths; their inverses."""
    own: set[float] = {
        2.0,
        np.log(2.0),
        *(abs(n) for n in numbers),
        *(float(n) ** 0.5 for shape in shapes for n in shape),
    }
    return {factor for n in own if 1e-9 < n < 1e9 for factor in (n, 1 / n)}


def difference(one: Any, other: Any) -> float:
    """The largest difference in relation to the largest element; infinite where only one has infinities or NaN."""
    if one.shape != other.shape:
        return np.inf
    finite = np.isfinite(other)
    with np.errstate(invalid="ignore"):
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(one[finite]).all():
            return np.inf
    scale = max(float(np.abs(values[finite]).max(initial=0.0)) for values in (one, other))
    return 0.0 if not scale else float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / scale
