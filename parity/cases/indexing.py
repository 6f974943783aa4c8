"""Indices and order: gather, scatter_add, index_select, sort, topk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.draw import Normal, Shape
from parity.cases.embedding import GATHERS as ROWS
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import part
from parity.cases.program import by_hand, primitive

Array = NDArray[Any]
X = Input("x", Normal(), differentiable=True)
INDEX = Input("index", integers=True)
REPEATED = "an index that comes twice along dim"


@dataclass(frozen=True)
class IndexParams:
    """`dim`: the axis that is indexed (torch.gather, torch.scatter_add, torch.index_select)."""

    dim: int


@dataclass(frozen=True)
class SortParams:
    """torch.sort; equal values stay in their order, and NaN is the largest value."""

    dim: int = -1
    descending: bool = False


@dataclass(frozen=True)
class TopkParams:
    """torch.topk: the `k` largest, or smallest, the most extreme one first."""

    k: int
    dim: int = -1
    largest: bool = True


def grid_indices(index: Array, axis: int) -> tuple[Array, ...]:
    """The indices of the elements that `index` selects along an axis, for NumPy."""
    each: list[Array] = list(np.indices(index.shape, sparse=True))
    each[axis] = index
    return tuple(each)


@primitive
def gathered(x: Array, index: Array, axis: int) -> Array:
    """An element of x for each element of `index`: x[i, index[i, j], ...]."""
    return np.asarray(x[grid_indices(index, axis)])


@primitive
def scattered(values: Array, like: Array, index: Array, axis: int) -> Array:
    """The sums of the `values` with the same `index`, each in sequence; zeros of the shape of `like` elsewhere."""
    sums = np.zeros_like(like)
    np.add.at(sums, grid_indices(index, axis), values)
    return sums


@primitive
def assigned(values: Array, like: Array, index: Array, axis: int) -> Array:
    """The last of the `values` with the same `index`; zeros of the shape of `like` elsewhere."""
    kept = np.zeros_like(like)
    kept[grid_indices(index, axis)] = values
    return kept


@primitive
def last_of(x: Array, like: Array, index: Array, axis: int) -> Array:
    """`gathered`, with 0 where a later `index` is the same."""
    number = np.arange(index.size, dtype=np.float64).reshape(index.shape)
    last = np.full(like.shape, -1.0)
    last[grid_indices(index, axis)] = number
    return np.asarray(np.where(last[grid_indices(index, axis)] == number, x[grid_indices(index, axis)], 0), x.dtype)


@primitive
def outside(like: Array, index: Array, axis: int) -> Array:
    """1 where no `index` points, else 0."""
    mask = np.ones_like(like)
    mask[grid_indices(index, axis)] = 0
    return mask


@primitive
def offset_by(index: Array, by: int, n: int, wrapped: bool) -> Array:
    """The index plus `by`, kept below `n` by wrapping around or by clipping; as it is for n = 0."""
    if not n:
        return index + by
    return np.asarray((index + by) % n if wrapped else np.clip(index + by, 0, n - 1))


@primitive
def ordering(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort x along an axis; equal values stay in their order."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.ascontiguousarray(x.shape[axis] - 1 - np.flip(backwards, axis))


@primitive
def ranks_of(order: Array, axis: int) -> Array:
    """The inverse of a permutation: the rank of each element."""
    return np.argsort(order, axis, kind="stable")


defvjp(gathered, lambda _, x, index, axis: lambda g: scattered(g, x, index, axis), None, None)
defvjp(scattered, lambda _, _values, _like, index, axis: lambda g: gathered(g, index, axis), None, None, None)
defvjp(assigned, lambda _, _values, like, index, axis: lambda g: last_of(g, like, index, axis), None, None, None)

GATHERS: Mapping[str, Any] = {
    "added": gathered,
    "overwritten": by_hand(gathered, lambda g, _y, x, index, axis: assigned(g, x, index, axis)),
    "straight": by_hand(gathered, lambda g, _y, _x, _index, _axis: g),
    "gathered": by_hand(gathered, lambda g, _y, _x, index, axis: gathered(g, index, axis)),
}
"""Gradients of repeated elements are added (the reference) or overwritten; the gradient of a permutation may also be
passed on as it is, or permuted again instead of back."""


def axis_of(dim: int, shape: Shape, key: str = "dim") -> int:
    """The axis from 0 on; CaseError if there is none."""
    if not -len(shape) <= dim < len(shape):
        raise CaseError(f"params.{key}", f"{key} must be from {-len(shape)} to {len(shape) - 1}, not {dim}")
    return dim % len(shape)


def gather(
    tensors: Mapping[str, Any],
    params: IndexParams,
    *,
    dim: int | None = None,
    offset: int = 0,
    wrapped: bool = False,
    repeated: str = "added",
) -> dict[str, Any]:
    """x[i, index[i, j], ...]; index has the shape of y and at most that of x beside `dim`.

    `offset` is added to the index, `wrapped` around or clipped; `repeated` is one of `GATHERS`.
    """
    x, index = tensors["x"], tensors["index"]
    axis = axis_of(params.dim if dim is None else dim, x.shape)
    index = offset_by(index, offset, x.shape[axis], wrapped) if offset else index
    return {"y": GATHERS[repeated](x, index, axis)}


def scatter_add(
    tensors: Mapping[str, Any],
    params: IndexParams,
    *,
    dim: int | None = None,
    offset: int = 0,
    wrapped: bool = False,
    repeated: str = "added",
) -> dict[str, Any]:
    """x plus src[i, j, ...] at [i, index[i, j], ...].

    `repeated`: the last src stands instead of x (`overwritten`), only the last is added (`once`, as `y[index] += src`
    does), or they and x are `averaged`. Else as gather.
    """
    x, index, src = tensors["x"], tensors["index"], tensors["src"]
    axis = axis_of(params.dim if dim is None else dim, x.shape)
    index = offset_by(index, offset, x.shape[axis], wrapped) if offset else index
    like = getval(x)
    if repeated in ("overwritten", "once"):
        values = gathered(x, index, axis) + src if repeated == "once" else src
        return {"y": x * outside(like, index, axis) + assigned(values, like, index, axis)}
    y = x + scattered(src, like, index, axis)
    if repeated == "averaged":
        y = y / (1 + scattered(np.ones_like(getval(src)), like, index, axis))
    return {"y": y}


def index_select(
    tensors: Mapping[str, Any],
    params: IndexParams,
    *,
    offset: int = 0,
    wrapped: bool = False,
    repeated: str = "added",
) -> dict[str, Any]:
    """The slices of x along `dim` that the index [n] names, in its order. Else as gather."""
    x, index = tensors["x"], tensors["index"]
    axis = axis_of(params.dim, x.shape)
    index = offset_by(index, offset, x.shape[axis], wrapped) if offset else index
    return {"y": anp.swapaxes(ROWS[repeated](anp.swapaxes(x, 0, axis), index), 0, axis)}


def sort(
    tensors: Mapping[str, Any],
    params: SortParams,
    *,
    dim: int | None = None,
    first: int = 0,
    ranks: bool = False,
    backward: str = "added",
) -> dict[str, Any]:
    """The values in ascending order, and their indices from `first` on; with `ranks` the rank of each element of x.

    `backward` is one of `GATHERS`.
    """
    x = tensors["x"]
    axis = axis_of(params.dim if dim is None else dim, x.shape)
    order = ordering(getval(x), axis, params.descending)
    indices = ranks_of(order, axis) if ranks else order
    return {
        "y": GATHERS[backward](x, order, axis),
        "indices": offset_by(indices, first, 0, False) if first else indices,
    }


def topk(tensors: Mapping[str, Any], params: TopkParams, *, first: int = 0, backwards: bool = False) -> dict[str, Any]:
    """The k largest or smallest values, the most extreme one first (`backwards`: last), and their indices."""
    x = tensors["x"]
    axis = axis_of(params.dim, x.shape)
    order = ordering(getval(x), axis, params.largest)
    order = part(order, along(axis, slice(params.k)))
    order = part(order, along(axis, slice(None, None, -1))) if backwards else order
    return {"y": gathered(x, order, axis), "indices": offset_by(order, first, 0, False) if first else order}


def along(axis: int, which: slice) -> tuple[slice, ...]:
    """The slices for `which` along an axis."""
    return (*[slice(None)] * axis, which)


def index_shapes(params: IndexParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; index: as x unless it is given, at most x beside `dim`; y: as index."""
    x, index, axis = indexed(params, given)
    return TensorShapes(inputs={"x": x, "index": index}, outputs={"y": index}, integers={"index": (0, x[axis])})


def scatter_shapes(params: IndexParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; index: as x unless it is given, at most x beside `dim`; src: as index; y: as x."""
    x, index, axis = indexed(params, given)
    src = require_shape(given, "src", index, f"index {list(index)}")
    inputs = {"x": x, "index": index, "src": src}
    return TensorShapes(inputs=inputs, outputs={"y": x}, integers={"index": (0, x[axis])})


def indexed(params: IndexParams, given: Mapping[str, Shape]) -> tuple[Shape, Shape, int]:
    """The shapes of x and of an index with as many axes, and the axis."""
    x = with_axes(given)
    axis, index = axis_of(params.dim, x), given.get("index", x)
    if len(index) != len(x) or any(index[i] > x[i] for i in range(len(x)) if i != axis):
        raise CaseError("inputs.index", f"shape {list(index)} must be at most x {list(x)} beside dim {params.dim}")
    return x, index, axis


def with_axes(given: Mapping[str, Shape]) -> Shape:
    """The shape of x, which needs an axis."""
    x = require_x(given, (), "")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis")
    return x


def select_shapes(params: IndexParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; index: (n,), by default as many as x has along `dim`; y: as x, with n along `dim`."""
    x = with_axes(given)
    axis = axis_of(params.dim, x)
    index = given.get("index", (x[axis],))
    if len(index) != 1:
        raise CaseError("inputs.index", f"shape {list(index)} must have one axis")
    y = (*x[:axis], *index, *x[axis + 1 :])
    return TensorShapes(inputs={"x": x, "index": index}, outputs={"y": y}, integers={"index": (0, x[axis])})


def sort_shapes(params: SortParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y and indices: as x."""
    x = with_axes(given)
    axis_of(params.dim, x)
    return TensorShapes(inputs={"x": x}, outputs={"y": x, "indices": x})


def topk_shapes(params: TopkParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y and indices: as x, with k along `dim`."""
    x = with_axes(given)
    axis = axis_of(params.dim, x)
    if not 0 <= params.k <= x[axis]:
        raise CaseError("params.k", f"k must be from 0 to {x[axis]}, not {params.k}")
    y = (*x[:axis], params.k, *x[axis + 1 :])
    return TensorShapes(inputs={"x": x}, outputs={"y": y, "indices": y})


def offsets(n: int) -> Iterator[Variant]:
    """Indices one too large or too small, wrapped around or clipped."""
    for offset in (1, -1) if n > 1 else ():
        for wrapped in (False, True):
            yield Variant("index-offset", {"offset": offset, "wrapped": wrapped}, shown_by="values that differ")


def other_axes(dim: int, x: Shape, index: Shape) -> Iterator[Variant]:
    """Other axes along which the same index is valid."""
    axis = axis_of(dim, x)
    for other in range(len(x)):
        fits = all(index[i] <= x[i] for i in range(len(x)) if i != other) and x[axis] <= x[other]
        if other != axis and fits:
            yield Variant("wrong-axis", {"dim": other}, shown_by="axes that differ")


def gather_variants(params: IndexParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another axis, another origin of the index, gradients that overwrite each other."""
    yield from other_axes(params.dim, shapes["x"], shapes["index"])
    yield from offsets(shapes["x"][params.dim])
    yield Variant("repeated-rows", {"repeated": "overwritten"}, shown_by=REPEATED)


def scatter_variants(params: IndexParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another axis, another origin of the index, values that overwrite each other."""
    yield from other_axes(params.dim, shapes["x"], shapes["index"])
    yield from offsets(shapes["x"][params.dim])
    yield Variant("repeated-rows", {"repeated": "overwritten"}, shown_by="any index")
    yield Variant("repeated-rows", {"repeated": "once"}, shown_by=REPEATED)
    yield Variant("mean-vs-sum", {"repeated": "averaged"}, shown_by="any index")


def select_variants(params: IndexParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another origin of the index, gradients that overwrite each other or are averaged."""
    yield from offsets(shapes["x"][params.dim])
    yield Variant("repeated-rows", {"repeated": "overwritten"}, shown_by=REPEATED)
    yield Variant("mean-vs-sum", {"repeated": "averaged"}, shown_by=REPEATED)


def sort_variants(params: SortParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The reverse order, another axis, ranks or indices from 1 on, a gradient that is not permuted back."""
    x = shapes["x"]
    yield Variant("sort-order", params={"descending": not params.descending}, shown_by="values that differ")
    for other in range(len(x)):
        if other != axis_of(params.dim, x):
            yield Variant("wrong-axis", {"dim": other}, shown_by="axes that differ")
    yield Variant("index-offset", {"first": 1}, shown_by="any input")
    yield Variant("permuted-elements", {"ranks": True}, shown_by="three values or more")
    for backward in ("straight", "gathered"):
        yield Variant("permuted-elements", {"backward": backward}, shown_by="three values or more")


def topk_variants(params: TopkParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The other end, the reverse order, indices from 1 on."""
    yield Variant("sort-order", params={"largest": not params.largest}, shown_by="values that differ")
    if params.k > 1:
        yield Variant("sort-order", {"backwards": True}, shown_by="values that differ")
    yield Variant("index-offset", {"first": 1}, shown_by="any input")


GATHER = Op(
    name="gather",
    summary="an element along an axis for each index",
    params=IndexParams,
    inputs=(X, INDEX),
    infer_shapes=index_shapes,
    reference=gather,
    variants=gather_variants,
)
SCATTER_ADD = Op(
    name="scatter_add",
    summary="x plus src at the places that an index names",
    params=IndexParams,
    inputs=(X, INDEX, Input("src", Normal(), differentiable=True)),
    infer_shapes=scatter_shapes,
    reference=scatter_add,
    variants=scatter_variants,
)
INDEX_SELECT = Op(
    name="index_select",
    summary="slices along an axis",
    params=IndexParams,
    inputs=(X, INDEX),
    infer_shapes=select_shapes,
    reference=index_select,
    variants=select_variants,
)
SORT = Op(
    name="sort",
    summary="values in order, and their indices",
    params=SortParams,
    inputs=(X,),
    infer_shapes=sort_shapes,
    reference=sort,
    variants=sort_variants,
    indexes={"indices": "x"},
)
TOPK = Op(
    name="topk",
    summary="the k largest or smallest values, and their indices",
    params=TopkParams,
    inputs=(X,),
    infer_shapes=topk_shapes,
    reference=topk,
    variants=topk_variants,
    indexes={"indices": "x"},
)
OPS = (GATHER, SCATTER_ADD, INDEX_SELECT, SORT, TOPK)
