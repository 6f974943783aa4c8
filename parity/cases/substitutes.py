"""Substitutes that kernels compute instead of a step of a reference: scatters that overwrite, misread indices, running
sums that lose the total of earlier blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.op import IncompatibleError
from parity.cases.primitives import Sizes, each
from parity.cases.program import Array

Index = NDArray[np.int64]


# Other indices.


def interleaved(index: Array) -> Array:
    """0 1 0 1 for 0 0 1 1, and the reverse; IncompatibleError unless all elements are equally frequent."""
    counts = np.unique(index, return_counts=True)[1]
    if index.ndim != 1 or not counts.size or counts.min() != counts.max() or counts[0] in (1, index.size):
        raise IncompatibleError("the index has no groups")
    return np.asarray(index.reshape(counts.size, -1).T.ravel())


def relative(index: Array) -> Array:
    """The index relative to the first of its row; IncompatibleError for a single row."""
    if index.ndim < 2:
        raise IncompatibleError("the index has one row")
    return np.asarray(index - index[..., :1])


def backwards(index: Array) -> Array:
    """The index in reverse order along its last axis."""
    return np.ascontiguousarray(index[..., ::-1])


def as_stored(index: Array, name: str) -> Array:
    """The index rounded to a floating-point format."""
    return np.asarray(np.rint(rounded(index.astype(np.float64), FORMATS[name])), index.dtype)


INDEXES: Mapping[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
    "interleaved": (interleaved, ()),
    "relative": (relative, ()),
    "backwards": (backwards, ()),
    "bfloat16": (as_stored, ("bfloat16",)),
    "float16": (as_stored, ("float16",)),
}
"""Changes of an index, with their further operands."""
INDEXED: Mapping[str, int] = {"rows_of": 1, "scatter_rows": 1, "gathered": 1, "scattered": 2, "entries": 1}
"""The operand that is an index, by function."""


# Scatters.


def scattered(values: Array, index: Index, n: int, how: str) -> Array:
    """The elements of each row of `values` [rows, m] at the `index` [m] of n, without negative ones. Those of equal
    index are added, or only the `last` or `first` is kept; a value of 0 overwrites nothing."""
    inside = index >= 0
    kept, at = values[:, inside], index[inside]
    sums = np.zeros((len(values), n), values.dtype)
    if how not in OVERWRITING:
        np.add.at(sums.T, at, kept.T)
        return sums
    row, column = (indices[:: -1 if how == "first" else 1] for indices in np.nonzero(kept))
    sums[row, at[column]] = kept[row, column]
    return sums


def placed_rows(values: Array, index: Index, n: int, repeated: str) -> Array:
    """`scatter_rows` that overwrites."""
    rows = values.reshape(index.size, -1).T
    return scattered(rows, index.ravel(), n, repeated).T.reshape(n, *values.shape[index.ndim :])


def placed_patches(
    windows: Array,
    lengths: tuple[int, ...],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    *,
    indexing: str = "",
    repeated: str = "",
) -> Array:
    """`from_patches` as kernels with flat indices of an image do it: overwritten if `repeated` (`last`, `first`), or
    with other `indexing`: indices `in the window`, with the `other width`, after a rounding to a format, or with the
    elements that no window reaches at the front (`rest in front`)."""
    n = len(lengths)
    size, kernel = windows.shape[1 : 1 + n], windows.shape[2 + n :]
    axes = zip(size, kernel, each(stride, n), each(padding, n), each(dilation, n), lengths, strict=True)
    flat, inside = np.zeros((1,) * (2 * n), np.int64), np.ones((1,) * (2 * n), np.bool_)
    widths = {"in the window": kernel, "other width": lengths[::-1]}.get(indexing, lengths)
    for axis, (m, k, s, p, d, length) in enumerate(axes):
        at = np.arange(m)[:, None] * s + np.arange(k) * d - p
        reached = min(length, (m - 1) * s + (k - 1) * d + 1 - 2 * p) if indexing == "rest in front" else length
        within = (at >= 0) & (at < reached)
        at = np.broadcast_to(np.arange(k), at.shape) if indexing == "in the window" else at + length - reached
        shape = [m if a == axis else k if a == n + axis else 1 for a in range(2 * n)]
        flat, inside = flat * widths[axis] + at.reshape(shape), inside & within.reshape(shape)
    total = math.prod(lengths)
    flat = as_stored(flat, indexing) if indexing in FORMATS else flat
    flat = np.where(inside, np.minimum(flat, total - 1), -1).ravel()
    rows = np.moveaxis(windows, 1 + n, 1).reshape(windows.shape[0] * windows.shape[1 + n], -1)
    return scattered(rows, flat, total, repeated).reshape(len(windows), -1, *lengths)


# Running sums in blocks.


def cumsum_in_blocks(values: Any, axis: int, carried: str, block: int, first: str = "") -> Any:
    """The running sums along an axis in blocks; each block starts from the total of the `last` block alone, or from
    `none`. The `first` block may be the `shorter` one, as for a reversed axis."""
    rows = anp.moveaxis(values, axis, 0)
    short = rows.shape[0] % block if first else 0
    bounds = [0, *range(short or block, rows.shape[0], block), rows.shape[0]]
    sums = [anp.cumsum(rows[start:end], axis=0) for start, end in pairwise(bounds)]
    if carried == "last":
        sums = [sums[0], *(total + before[-1:] for before, total in pairwise(sums))]
    return anp.moveaxis(anp.concatenate(sums), 0, axis)


BLOCKS = (128, 64, 32, 16, 8, 4)
"""Elements that a kernel handles together; the remainder is its tail."""


def viewed_as_swapaxes(values: Any, one: int, other: int) -> Any:
    """The elements in unchanged memory order, in the shape with two axes exchanged."""
    return anp.reshape(values, np.swapaxes(np.empty(anp.shape(values)), one, other).shape)


def viewed_as_transpose(values: Any, axes: Any = None) -> Any:
    """The elements in unchanged memory order, in the shape with the axes reordered."""
    return anp.reshape(values, np.transpose(np.empty(anp.shape(values)), axes).shape)


INDEXINGS = ("in the window", "other width", "rest in front", "bfloat16", "float16")
OVERWRITING = ("last", "first")
Substitute = tuple[Callable[..., Any], Mapping[str, Any]]
SUBSTITUTES: Mapping[str, Mapping[str, Substitute]] = {
    "scatter_rows": {how: (placed_rows, {"repeated": how}) for how in OVERWRITING},
    "from_patches": {how: (placed_patches, {"repeated": how}) for how in OVERWRITING}
    | {how: (placed_patches, {"indexing": how}) for how in INDEXINGS},
    "cumsum": {
        f"{carried} {block} {first}": (cumsum_in_blocks, {"carried": carried, "block": block, "first": first})
        for block in BLOCKS
        for carried in ("none", "last")
        for first in ("", "shorter")
    },
    "swapaxes": {"viewed": (viewed_as_swapaxes, {})},
    "transpose": {"viewed": (viewed_as_transpose, {})},
}
"""Other functions of the same operands, with keywords, by the name of the function and that of the substitute."""


def substitute(function: str, name: str) -> Substitute:
    """A function that a kernel may use instead: one of `SUBSTITUTES`, or of NumPy."""
    return SUBSTITUTES.get(function, {}).get(name) or (getattr(np, name), {})
