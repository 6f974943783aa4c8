"""Functions that edits apply to the values of a step, and sums and products that lose digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Shape
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.op import IncompatibleError
from parity.cases.primitives import part
from parity.cases.program import Array


def rounded_to(values: Any, target: str) -> Any:
    """`values` rounded to a lower precision; their dtype stays."""
    return rounded(np.asarray(values), FORMATS[target])


def rounded_floats(values: Any, target: str) -> Any:
    """An array of floating-point numbers rounded to a lower precision; other values unchanged."""
    return rounded_to(values, target) if isinstance(values, np.ndarray) and values.dtype.kind == "f" else values


def weighted(values: Any, axis: int, weight: Callable[[NDArray[np.int8]], None]) -> Any:
    """`values` times integers along `axis`; with 1, `weight` changes nothing."""
    shape = anp.shape(values)
    weights = np.ones(shape[axis], np.int8)
    weight(weights)
    return values * weights.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))])


def flipped(values: Any, axis: int) -> Any:
    """`values` reversed along an axis."""
    return part(values, (slice(None),) * (axis % len(anp.shape(values))) + (slice(None, None, -1),))


def first_for_all(values: Any, axis: int) -> Any:
    """The first value along an axis, repeated along it."""
    axis %= len(anp.shape(values))
    first = part(values, (slice(None),) * axis + (slice(0, 1),))
    return first * np.ones(anp.shape(values), np.int8)


def last_for_all(values: Any, axis: int) -> Any:
    """The last value along an axis, repeated along it."""
    return first_for_all(flipped(values, axis), axis)


def mean_for_all(values: Any, axis: int) -> Any:
    """The mean of the values along an axis, repeated along it."""
    return anp.mean(values, axis=axis, keepdims=True) * np.ones(anp.shape(values), np.int8)


def largest_for_all(values: Any, axis: int) -> Any:
    """The largest value along an axis, repeated along it."""
    return anp.max(values, axis=axis, keepdims=True) * np.ones(anp.shape(values), np.int8)


def interleaved(values: Any, axis: int, groups: int) -> Any:
    """`values` along an axis in another order: the first of each group, then the second of each."""
    shape = anp.shape(values)
    apart = anp.reshape(values, (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]))
    return anp.reshape(anp.swapaxes(apart, axis, axis + 1), shape)


def with_axes(values: Any, *order: int) -> Any:
    """`values` with their axes in another order."""
    return anp.transpose(values, order)


def tail_dropped(values: Any, axis: int, block: int) -> Any:
    """`values` with zeros in the tail of `axis` after whole blocks."""
    length = anp.shape(values)[axis]
    return weighted(values, axis, lambda w: w[length // block * block :].fill(0))


def only_block(values: Any, axis: int, block: int, which: int) -> Any:
    """`values` with zeros except in the first (0) or the last (-1) of the blocks of `axis`."""
    length = anp.shape(values)[axis]
    start = 0 if which == 0 else (length - 1) // block * block

    def weight(weights: NDArray[np.int8]) -> None:
        weights[:start] = 0
        weights[start + block :] = 0

    return weighted(values, axis, weight)


def with_first_twice(values: Any, axis: int) -> Any:
    """`values` with the first one along `axis` doubled."""
    return weighted(values, axis, lambda w: w[:1].fill(2))


def shifted(values: Any, axis: int, by: int) -> Any:
    """Each value shifted `by` positions along an axis; the first value, or the last, fills the positions left free."""
    positions = np.clip(np.arange(anp.shape(values)[axis]) - by, 0, anp.shape(values)[axis] - 1)
    return values[(slice(None),) * axis + (positions,)]


def shifted_in_zeros(values: Any, axis: int, by: int) -> Any:
    """The same with zeros in the positions left free."""
    left = slice(by) if by > 0 else slice(by, None)
    return weighted(shifted(values, axis, by), axis, lambda w: w[left].fill(0))


def without(values: Any, axis: int, index: int) -> Any:
    """`values` with a zero at one index of `axis`."""
    return weighted(values, axis, lambda w: w[index : index + 1 or None].fill(0))


def only(values: Any, axis: int, index: int) -> Any:
    """`values` with zeros except at one index of `axis`: the result of overwriting a sum instead of adding to it."""

    def weight(weights: NDArray[np.int8]) -> None:
        kept = weights[index]
        weights.fill(0)
        weights[index] = kept

    return weighted(values, axis, weight)


def centred_in_blocks(values: Any, axis: int, block: int, *axes: int) -> Any:
    """`values` less the mean of each block along an axis; the means may be over other axes too."""
    return centred(values, axis, range(0, anp.shape(values)[axis], block), axes)


def centred_in_halves(values: Any, axis: int, more: int, *axes: int) -> Any:
    """The same for either half; the first may have one `more` of an odd number."""
    return centred(values, axis, (0, anp.shape(values)[axis] // 2 + more), axes)


def centred(values: Any, axis: int, starts: Sequence[int], axes: Sequence[int]) -> Any:
    """`values` less the mean of each part along an axis."""
    parts = [*pairwise((*starts, anp.shape(values)[axis]))]
    if any(start >= end for start, end in parts):
        raise IncompatibleError("a part is empty")
    blocks = [part(values, (slice(None),) * axis + (slice(*ends),)) for ends in parts]
    return anp.concatenate([b - anp.mean(b, axis=tuple(axes) or axis, keepdims=True) for b in blocks], axis)


def lane_of(values: Any, axis: int, number: float) -> Any:
    """A constant instead of `values` along an axis, which gets length 1."""
    shape = anp.shape(values)
    return np.full((*shape[:axis], 1, *shape[axis + 1 :]), number)


def filled_to_blocks(values: Any, lane: Any, axis: int, block: int) -> Any:
    """`values` with copies of a lane behind them, up to whole blocks, or to a power of 2 (block 0)."""
    length, shape = anp.shape(values)[axis], anp.shape(lane)
    if len(shape) <= axis or shape[axis] != 1:
        raise IncompatibleError("the lanes differ")
    whole = -(-length // block) * block if block else 1 << (length - 1).bit_length()
    return anp.concatenate([values, anp.repeat(lane, whole - length, axis)], axis)


def running_sum(values: Array, axis: Any = None, keepdims: bool = False, format: str = "") -> Array:  # noqa: A002 - as formulas show it
    """The sum over `axis`, in memory order, with a running total in a lower precision."""
    axes = range(values.ndim) if axis is None else [a % values.ndim for a in np.atleast_1d(axis).tolist()]
    kept = [1 if a in axes else length for a, length in enumerate(values.shape)]
    rest = [length for a, length in enumerate(values.shape) if a not in axes]
    rows = np.moveaxis(values, tuple(axes), range(len(axes))).reshape(-1, *rest)
    total = np.zeros(rest, values.dtype)
    for row in rows:
        total = rounded_to(total + row, format)
    return total.reshape(kept if keepdims else rest)


def products(a: Array, b: Array) -> Array:
    """The terms of a product of matrices, summed along the last axis but one; IncompatibleError for a vector."""
    if min(a.ndim, b.ndim) < 2:
        raise IncompatibleError("no matrices")
    return np.asarray(a[..., :, :, None] * b[..., None, :, :])


def running_matmul(a: Array, b: Array, format: str = "") -> Array:  # noqa: A002
    """The product of matrices, with running totals in a lower precision."""
    return running_sum(products(a, b), -2, format=format)


def running_scatter(values: Array, index: Array, n: int, format: str = "") -> Array:  # noqa: A002
    """The sums [n, ...] of the values that have the same index, with running totals in a lower precision."""
    sums = np.zeros((n, *values.shape[index.ndim :]), values.dtype)
    for at, row in zip(index.ravel(), values.reshape(index.size, *sums.shape[1:]), strict=True):
        sums[at] = rounded_to(sums[at] + row, format)
    return sums


def rounded_products(a: Array, b: Array, format: str = "") -> Array:  # noqa: A002
    """The product of matrices, with products in a lower precision."""
    return np.asarray(rounded_to(products(a, b), format).sum(-2))


@dataclass(frozen=True)
class Weights:
    """The elements of a tensor of a `shape` as sums of those of a `source`: `(element, element of the source, weight)`,
    and numbers to which they are added. Elements are counted behind the `shared` axes, in memory order."""

    shared: Shape
    source: Shape
    shape: Shape
    weights: tuple[tuple[int, int, float], ...]
    numbers: tuple[tuple[int, float], ...] = ()

    def __str__(self) -> str:
        """The first sums: `[..., 0]: 0.5 [..., 0] + 0.5 [..., 1]`."""
        elements = list(dict.fromkeys(element for element, _, _ in self.weights))
        rest = [f"{len(elements) - SHOWN} more"] if len(elements) > SHOWN else []
        return "; ".join([*map(self._sum, elements[:SHOWN]), *rest])

    def _sum(self, element: int) -> str:
        terms = [(weight, self._at(there, self.source)) for p, there, weight in self.weights if p == element]
        text = " + ".join(at if weight == 1 else f"{weight:g} {at}" for weight, at in terms)
        return f"{self._at(element, self.shape)}: {text}"

    def _at(self, element: int, shape: Shape) -> str:
        indices = np.unravel_index(element, shape[len(self.shared) :])
        return f"[{', '.join([*(['...'] if self.shared else []), *map(str, map(int, indices))])}]"


SHOWN = 4
"""How many sums are printed."""


def weighted_sums(values: Array, how: Weights) -> Array:
    """The sums of elements."""
    rows = values.reshape(prod(how.shared), -1)
    result = np.zeros((len(rows), prod(how.shape) // max(1, len(rows))), values.dtype)
    for element, number in how.numbers:
        result[:, element] = number
    for element, source, weight in how.weights:
        result[:, element] += values.dtype.type(weight) * rows[:, source]
    return result.reshape(how.shape)


def largest_products(a: Array, b: Array) -> Array:
    """The product of matrices with the largest of its terms instead of their sum."""
    return np.asarray(products(a, b).max(-2))


RUNNING: Mapping[str, Callable[..., Array]] = {
    "sum": running_sum,
    "matmul": running_matmul,
    "scatter_rows": running_scatter,
}
"""Functions that accumulate in a lower precision, by the function they replace."""


THROUGH: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "negative": (np.negative, ()),
    "double": (np.multiply, (2.0,)),
    "half": (np.multiply, (0.5,)),
    "square": (np.square, ()),
    "sqrt": (np.sqrt, ()),
    "absolute": (np.absolute, ()),
    "reciprocal": (np.power, (-1.0,)),
    "zero": (np.zeros_like, ()),
    "one": (np.ones_like, ()),
    "one more": (np.add, (1.0,)),
    "one less": (np.subtract, (1.0,)),
    "exp": (np.exp, ()),
    "positive part": (np.maximum, (0.0,)),
}
"""The functions applied to an operand or a result, with their further operands."""
ALONG: Mapping[str, Callable[..., Any]] = {
    "flipped": flipped,
    "first for all": first_for_all,
    "last for all": last_for_all,
    "mean for all": mean_for_all,
    "largest for all": largest_for_all,
    "axes": with_axes,
    "interleaved": interleaved,
    "transposed": np.swapaxes,
    "first twice": with_first_twice,
    "shifted": shifted,
    "shifted in zeros": shifted_in_zeros,
    "without one": without,
    "only one": only,
    "without tail": tail_dropped,
    "only block": only_block,
    "centred in blocks": centred_in_blocks,
    "centred in halves": centred_in_halves,
}
"""The functions along an axis, or two."""
NUMBERS: Mapping[str, Callable[[float], float]] = {
    "zero": lambda v: 0.0 if isinstance(v, float) else 0.0 * v,
    "one": lambda v: 0 * v + 1,
    "one less": lambda v: v - 1,
    "one more": lambda v: v + 1,
    "double": lambda v: 2 * v,
    "half": lambda v: v / 2,
    "complement": lambda v: 1 - v,
    "negative": lambda v: -v,
    "square": lambda v: v * v,
    "root": lambda v: v**0.5 if v >= 0 else v,
    "inverse": lambda v: 1 / v if v else v,
    "negative inverse": lambda v: -1 / v if v else v,
    "float32": lambda v: float(np.float32(v)),
}
"""Other values for a number of the reference."""
for _name, _function in NUMBERS.items():
    _function.__name__ = _name  # the name in formulas
