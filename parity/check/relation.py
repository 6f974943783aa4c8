"""What one value is to another: twice as large, its elements in another order, different in its last rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, permutations

import numpy as np
from numpy.typing import NDArray

from parity.check.match import MOST_AXES, Array

NEAR = 1e-7
"""Values of float64 that differ by this part of their largest element are equal."""
FEWEST = 4
"""So many elements are needed: any relation holds for fewer."""
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "the square of it": np.square,
    "the square root of it": np.sqrt,
    "the reciprocal of it": np.reciprocal,
    "the absolute value of it": np.abs,
    "the exponential of it": np.exp,
    "the logarithm of it": np.log,
    "the positive part of it": lambda x: np.maximum(x, 0),
    "1 minus it": lambda x: 1 - x,
}
"""Functions of an element, in words."""
FRACTIONS = 12
"""Factors that are fractions of numbers up to this one are written so."""


def relation(own: Array, other: Array, *, weak: bool) -> str:
    """`own` in terms of `other`, in words that complete "its value is"; empty if nothing simple is known. A `weak`
    relation holds for a part of the elements only: it is asked of values that are meant to be the same."""
    other = aligned(own, other)
    if own.shape != other.shape or own.size < FEWEST:
        return reordered(own, other)
    with np.errstate(all="ignore"):
        tried = chain(relations(own, other), in_parts(own, other) if weak else ())
        return next(filter(None, tried), "")


def aligned(own: Array, other: Array) -> Array:
    """A value in another one's shape, where they differ in axes of one element only."""
    same = [n for n in own.shape if n != 1] == [n for n in other.shape if n != 1]
    return other.reshape(own.shape) if same else other


def relations(own: Array, other: Array) -> Iterator[str]:
    """What may hold for all elements of two values of one shape, the simplest first."""
    finite = np.isfinite(own) & np.isfinite(other)
    one, two = own[finite], other[finite]
    if one.size < FEWEST or not finite.all() or is_equal(one, two):
        return
    yield scaled(one, two)
    yield next((name for name, function in FUNCTIONS.items() if is_equal(one, function(two))), "")
    yield from (reordered(own, other), by_axis(own, other))


def in_parts(own: Array, other: Array) -> Iterator[str]:
    """What may hold for a part of the elements."""
    finite = np.isfinite(own) & np.isfinite(other)
    if not finite.all():
        yield not_finite(own, other)
    unequal = ~near(own, other)
    if unequal.any():
        yield from (thresholded(own[finite], other[finite]), in_part(own, other))
        yield f"equal but for {unequal.sum()} of {unequal.size} elements" if unequal.mean() < 0.5 else ""


def near(one: Array, other: Array) -> NDArray[np.bool_]:
    """Which elements are equal, up to rounding."""
    scale = max(np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in (one, other))
    with np.errstate(invalid="ignore"):
        equal: NDArray[np.bool_] = (np.abs(one - other) <= NEAR * scale) | (one == other)
    return equal | (np.isnan(one) & np.isnan(other))


def is_equal(one: Array, other: Array) -> bool:
    """Whether all elements are equal, up to rounding."""
    return bool(near(one, other).all())


def not_finite(own: Array, other: Array) -> str:
    """`NaN or infinite in 3 of 64 elements, where the other is finite`."""
    bad, gone = ~np.isfinite(own) & np.isfinite(other), np.isfinite(own) & ~np.isfinite(other)
    if bad.any():
        return f"NaN or infinite in {bad.sum()} of {bad.size} elements, where the other is finite"
    return f"finite in {gone.sum()} of {gone.size} elements, where the other is NaN or infinite" if gone.any() else ""


def scaled(own: Array, other: Array) -> str:
    """`0.5 times it`, `it plus 0.1`."""
    whole = float(other @ other)
    factor = float(own @ other) / whole if whole else 0.0
    if factor and is_equal(own, factor * other) and varies(other):
        return "its negative" if abs(factor + 1) < NEAR else f"{number(factor)} times it"
    shift = float((own - other).mean())
    return f"it plus {number(shift)}" if is_equal(own - shift, other) and varies(other) else ""


def varies(values: Array) -> bool:
    """Whether elements differ by more than rounding."""
    return bool(np.ptp(values) > NEAR * np.abs(values).max())


def number(value: float) -> str:
    """A number in four digits, as a fraction, or as the root of one."""
    root = fraction(value * value) if value > 0 else ""
    return fraction(value) or (f"sqrt({root})" if root else f"{value:.4g}")


def fraction(value: float) -> str:
    """A number as a fraction of small numbers; empty if it is none."""
    near_one = Fraction(value).limit_denominator(FRACTIONS) if np.isfinite(value) else Fraction(0)
    is_small = 0 < abs(near_one.numerator) <= FRACTIONS and abs(float(near_one) - value) < 1e-6 * abs(value)
    return str(near_one) if is_small else ""


def reordered(own: Array, other: Array) -> str:
    """`with its axes in the order 1, 0`, `shifted by 1 along axis 2`, `its elements in another order`."""
    if own.size != other.size or own.size < FEWEST:
        return ""
    if own.ndim == other.ndim and own.ndim <= MOST_AXES:
        for order in list(permutations(range(own.ndim)))[1:]:
            if tuple(other.shape[a] for a in order) == own.shape and is_equal(own, other.transpose(order)):
                return f"it with its axes in the order {', '.join(map(str, order))}"
    if own.shape == other.shape:
        for axis, length in enumerate(own.shape):
            if length > 1 and is_equal(own, np.flip(other, axis)):
                return f"it reversed along axis {axis}"
            moved = next((by for by in shifts(own, other, axis) if is_equal(own, np.roll(other, by, axis))), 0)
            if moved:
                by = moved if moved <= length // 2 else moved - length
                return f"it shifted by {by} along axis {axis}"
    if is_equal(np.sort(own, axis=None), np.sort(other, axis=None)) and varies(other):
        return "its elements in another order"
    return ""


def shifts(own: Array, other: Array, axis: int) -> Iterator[int]:
    """The shifts along an axis after which the first elements are equal."""
    line = np.moveaxis(other, axis, 0).reshape(other.shape[axis], -1)[:, 0]
    slack = NEAR * np.abs(other).max()
    yield from (-int(i) % line.size for i in np.flatnonzero(np.abs(line - own.flat[0]) <= slack) if i)


def in_part(own: Array, other: Array) -> str:
    """`equal but for indices 32 to 34 of axis 1 (of 35)`, where only some indices of an axis differ."""
    unequal = ~near(own, other)
    best: tuple[int, str] = (own.size // 2 + 1, "")
    for axis, length in enumerate(own.shape):
        rows = unequal.any(axis=tuple(a for a in range(own.ndim) if a != axis))
        indices = np.flatnonzero(rows)
        n_wrong = len(indices) * own.size // length
        if 0 < len(indices) < length and n_wrong < best[0]:
            best = n_wrong, f"equal but for {span(indices)} of axis {axis} (of {length})"
    return best[1]


def span(indices: NDArray[np.intp]) -> str:
    """`index 3`, `indices 32 to 34`, `every 8th index from 7 on`, `12 indices`."""
    first, last = int(indices[0]), int(indices[-1])
    if first == last:
        return f"index {first}"
    if last - first + 1 == len(indices):
        return f"indices {first} to {last}"
    steps = np.unique(np.diff(indices))
    return f"every {ordinal(int(steps[0]))} index from {first} on" if len(steps) == 1 else f"{len(indices)} indices"


def ordinal(value: int) -> str:
    """`2nd`, `8th`."""
    ends = {1: "st", 2: "nd", 3: "rd"} if value % 100 // 10 != 1 else {}
    return f"{value}{ends.get(value % 10, 'th')}"


def by_axis(own: Array, other: Array) -> str:
    """`it times a number for each index of axis 0`, and the same for plus."""
    for axes in dict.fromkeys([*((a,) for a in range(own.ndim)), *((a, a + 1) for a in range(own.ndim - 1))]):
        rest = tuple(a for a in range(own.ndim) if a not in axes)
        if not rest or np.prod([own.shape[a] for a in rest]) < FEWEST:
            continue
        which = f"for each index of axis {' and '.join(map(str, axes))}"
        factor = (own * other).sum(axis=rest, keepdims=True) / (other * other).sum(axis=rest, keepdims=True)
        if is_equal(own, factor * other) and not near(factor, np.ones_like(factor)).mean() > 0.5:
            return f"it times another number {which} ({ends(factor)})"
        shift = (own - other).mean(axis=rest, keepdims=True)
        if is_equal(own - shift, other) and not near(shift, np.zeros_like(shift)).mean() > 0.5:
            return f"it plus another number {which} ({ends(shift)})"
    return ""


def ends(numbers: Array) -> str:
    """A few numbers, `1, -1`; the smallest and the largest of many, `0.1 to 3`."""
    if numbers.size <= FEWEST:
        return ", ".join(number(float(value)) for value in numbers.flat)
    return f"{number(float(numbers.min()))} to {number(float(numbers.max()))}"


def thresholded(own: Array, other: Array) -> str:
    """`equal where it is at most 3.1`, if only elements beyond a number differ."""
    unequal = ~near(own, other)
    for sign, word in ((1, "at most"), (-1, "at least")):
        wrong, right = sign * other[unequal], sign * other[~unequal]
        if min(wrong.size, right.size) >= FEWEST and right.max() < wrong.min():
            return f"equal where it is {word} {number(float(sign * right.max()))}"
    return ""


SUMS, PRODUCTS = frozenset(("sum", "mean", "nansum")), frozenset(("matmul", "linear", "mm", "bmm", "dot", "mv"))
"""Functions that add up along an axis, and those that add up products."""


def partial_sum(own: Array, function: str, operands: Sequence[Array]) -> str:
    """`the sum of only 0 to 511 of 513 along axis 1`, where a value is a part of what a function would add up."""
    terms = terms_of(function, operands)
    if terms is None or own.size < 2:
        return ""
    for axis, length in enumerate(terms.shape):
        rest = [n for i, n in enumerate(terms.shape) if i != axis]
        if length < 2 or [n for n in own.shape if n != 1] != [n for n in rest if n != 1]:
            continue
        part = np.expand_dims(own.reshape(rest), axis)
        parts = np.cumsum(terms, axis) / (length if function == "mean" else 1)
        whole = np.take(parts, [-1], axis)
        others = tuple(i for i in range(terms.ndim) if i != axis)
        counts = np.arange(1, length + 1)
        # Less than a half is a step on the way to the sum.
        heads = np.flatnonzero(near(part, parts).all(axis=others) & (2 * counts > length) & (counts < length))
        if heads.size:
            return f"the sum of only 0 to {heads[0]} of the {length} elements of axis {axis}"
        tails = np.flatnonzero(near(part, whole - parts).all(axis=others) & (2 * counts < length))
        if tails.size:
            return f"the sum of only {tails[0] + 1} to {length - 1} of the {length} elements of axis {axis}"
    return ""


MOST_TERMS = 1 << 22
"""Terms of 32 MB, which are added up step by step."""


def terms_of(function: str, operands: Sequence[Array]) -> Array | None:
    """What a function adds up; None where that is not known, or too large."""
    if function in SUMS and operands:
        return operands[0]
    if function not in PRODUCTS or len(operands) < 2:
        return None
    one, other = operands[:2]
    other = other.T if function == "linear" else other
    if one.ndim < 1 or other.ndim != 2 or one.shape[-1] != other.shape[0]:
        return None
    return one[..., :, None] * other if one.size * other.shape[1] <= MOST_TERMS else None
