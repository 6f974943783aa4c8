"""Pools along one, two or three axes (max, average, adaptive), and flatten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import NoParams
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import Sizes, each, entries, patches, rows_of
from parity.cases.program import by_hand
from parity.cases.windows import checked, images, n_windows

X = (Input("x", Normal(), differentiable=True),)
LEAST = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}


@dataclass(frozen=True)
class MaxPoolParams:
    """`stride` is that of the kernel by default; with `ceil_mode` a window may end behind the padding."""

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    ceil_mode: bool = False


@dataclass(frozen=True)
class AvgPoolParams:
    """`stride` is that of the kernel by default; with `ceil_mode` a window may end behind the padding."""

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    ceil_mode: bool = False
    count_include_pad: bool = True


@dataclass(frozen=True)
class AdaptivePoolParams:
    """Window i of m begins at element floor(i n / m) and ends before ceil((i + 1) n / m)."""

    output_size: int | tuple[int, ...]


def size_of(params: Any, lengths: Shape) -> Shape:
    """How many windows there are along axes of these lengths; raises CaseError if there are none.

    With `ceil_mode` a last one ends behind the padding, unless it begins there, too.
    """
    n = len(lengths)
    kernel, strides, padding = (each(v, n) for v in (params.kernel_size, stride_of(params), params.padding))
    around = tuple(2 * p + params.ceil_mode * (s - 1) for p, s in zip(padding, strides, strict=True))
    size = n_windows(lengths, kernel, strides, around, getattr(params, "dilation", 1))
    axes = zip(lengths, strides, padding, size, strict=True)
    return tuple(m - (params.ceil_mode and (m - 1) * s >= length + p) for length, s, p, m in axes)


def stride_of(params: Any) -> Sizes:
    """By default that of windows which do not overlap."""
    return params.kernel_size if params.stride is None else params.stride  # type: ignore[no-any-return]


def pool_shapes(params: Any, given: Mapping[str, Shape], *, axes: int) -> TensorShapes:
    """x: (N, C, *axes); y: (N, C, *axes')."""
    checked(params, axes, LEAST)
    x = images(given, axes)
    pairs = zip(each(params.kernel_size, axes), each(params.padding, axes), strict=True)
    if any(2 * p > k for k, p in pairs):
        raise CaseError("params.padding", "padding must be at most half of the kernel")
    return TensorShapes(inputs={"x": x}, outputs={"y": (*x[:2], *size_of(params, x[2:]))})


def channels_first(y: Any, shape: Shape) -> Any:
    """[N * axes * C, 1], or as many elements, as (N, C, *axes) for windows of the `shape` [N, *axes, C, *kernel]."""
    axes = (len(shape) - 2) // 2
    rows = anp.reshape(y, shape[: axes + 2])
    return anp.transpose(rows, (0, axes + 1, *range(1, axes + 1)))


def max_pool(
    tensors: Mapping[str, Any], params: MaxPoolParams, *, outside: float = -np.inf, less: int = 0, ignored: str = ""
) -> dict[str, Any]:
    """The first largest element of each window (torch.nn.functional.max_pool1d, 2d, 3d).

    Elements `outside` of x have this value; `less` of them are before x and more behind; `ignored` is a param with the
    value 1 (`stride`, `dilation`).
    """
    x = tensors["x"]
    stride = 1 if ignored == "stride" else stride_of(params)
    dilation = 1 if ignored == "dilation" else params.dilation
    kernel = each(params.kernel_size, x.ndim - 2)
    seen = patches(x, kernel, stride, before(params, less), dilation, size_of(params, x.shape[2:]), outside)
    windows = anp.reshape(seen, (-1, prod(kernel)))
    first = anp.argmax(getval(windows), axis=1)
    return {"y": channels_first(entries(windows, first), seen.shape)}


def before(params: Any, less: int) -> Sizes:
    """How far before x the first window begins."""
    return params.padding - less if isinstance(params.padding, int) else tuple(p - less for p in params.padding)


def avg_pool(
    tensors: Mapping[str, Any],
    params: AvgPoolParams,
    *,
    summed: bool = False,
    counted: str = "",
    less: int = 0,
    ignored: str = "",
    narrow: bool = False,
) -> dict[str, Any]:
    """The mean of each window, or with `summed` the sum (torch.nn.functional.avg_pool1d, 2d, 3d).

    `counted`: only the elements of x, with the `padding` too, or the whole `kernel`; by default what
    `count_include_pad` says. `narrow` is that of `mean_of`. The other options are those of `max_pool`.
    """
    x, n = tensors["x"], tensors["x"].ndim - 2
    kernel, stride = each(params.kernel_size, n), 1 if ignored == "stride" else stride_of(params)
    size = size_of(params, x.shape[2:])
    seen = patches(x, kernel, stride, before(params, less), 1, size)
    sums = channels_first(total(seen, tuple(range(n + 2, 2 * n + 2))), seen.shape)
    counted = counted or ("padding" if params.count_include_pad else "x")
    return {"y": sums if summed else mean_of(sums, counts(params, x.shape[2:], size, counted), narrow)}


def mean_of(sums: Any, count: Any, narrow: bool) -> Any:
    """sums / count; in the backward pass a `narrow` one is a factor in float32."""
    return narrow_mean(sums, count) if narrow else sums / count


narrow_mean = by_hand(
    lambda sums, count: sums / count,
    lambda g, _y, _sums, count: g * np.asarray(1 / np.asarray(count, float), np.float32).astype(float),
)


def counts(params: AvgPoolParams, lengths: Shape, size: Shape, counted: str) -> Any:
    """The number of elements of each window [*size], or of all if they are equal."""
    n, along = len(lengths), []
    kernel, strides, padding = (each(v, n) for v in (params.kernel_size, stride_of(params), params.padding))
    for length, m, k, s, p in zip(lengths, size, kernel, strides, padding, strict=True):
        starts, margin = np.arange(m) * s - p, {"x": 0, "padding": p, "kernel": length + p + k}[counted]
        along.append(np.minimum(starts + k, length + margin) - np.maximum(starts, -margin))
    return number_or_all(along)


def number_or_all(along: Iterable[NDArray[np.intp]]) -> int | NDArray[np.float64]:
    """The products of numbers of elements along each axis; one number if all are equal."""
    products = reduce(np.multiply.outer, along)
    return int(products.flat[0]) if (products == products.flat[0]).all() else products.astype(np.float64)


def max_variants(params: MaxPoolParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Zeros around x, a dilation ignored, and the variants of both kinds of pools."""
    n = len(shapes["x"]) - 2
    if max(each(params.padding, n)) > 0 or params.ceil_mode:
        yield Variant("padding-mode", {"outside": 0.0}, shown_by="a border below 0")
    if max(each(params.dilation, n)) > 1:
        yield Variant("option-ignored", {"ignored": "dilation"}, shown_by="any input")
    yield from pool_variants(params, n)


def avg_variants(params: AvgPoolParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Sums instead of means, another number of elements, and the variants of both kinds of pools."""
    lengths, n = shapes["x"][2:], len(shapes["x"]) - 2
    if max(each(params.kernel_size, n)) > 1:
        yield Variant("mean-vs-sum", {"summed": True}, shown_by="any input")
    size, own = size_of(params, lengths), "padding" if params.count_include_pad else "x"
    seen = [counts(params, lengths, size, own)]
    for other in ("x", "padding", "kernel"):
        numbers = counts(params, lengths, size, other)
        if not any(np.array_equal(numbers, known) for known in seen):
            seen.append(numbers)
            yield Variant("count-include-pad", {"counted": other}, shown_by="a window over the border")
    yield from narrow_variants(counts(params, lengths, size, own))
    yield from pool_variants(params, n)


def narrow_variants(count: int | NDArray[np.float64]) -> Iterable[Variant]:
    """A factor in float32, where one of the numbers of elements is no power of 2."""
    if (np.frexp(np.asarray(count, np.float64))[0] != 0.5).any():
        yield Variant("attribute-precision", {"narrow": True}, shown_by="float64, windows of 3, 5, 6, 7, ... elements")


def pool_variants(params: Any, n: int) -> Iterable[Variant]:
    """Padding at other positions, a stride ignored."""
    for less in (-1, 1) if max(each(params.padding, n)) > 0 else ():
        yield Variant("padding-offset", {"less": less}, shown_by="a border that is not 0")
    if max(each(stride_of(params), n)) > 1:
        yield Variant("option-ignored", {"ignored": "stride"}, shown_by="several windows")


# Adaptive pools, one axis after the other.


def adaptive_shapes(params: AdaptivePoolParams, given: Mapping[str, Shape], *, axes: int) -> TensorShapes:
    """x: (N, C, *axes); y: (N, C, *output_size)."""
    checked(params, axes, LEAST)
    x = images(given, axes)
    return TensorShapes(inputs={"x": x}, outputs={"y": (*x[:2], *each(params.output_size, axes))})


def adaptive_windows(n: int, m: int, bounds: str = "") -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The elements [m, k] of each of m windows of n elements, and which of them belong to it.

    The `bounds` may be those of windows of `equal` length (as a pool with one kernel and stride has), the same with the
    rest `cut` off, or those of windows that lie `apart`: each ends where the next begins.
    """
    windows = np.arange(m)
    starts, ends = windows * n // m, -(-(windows + 1) * n // m)
    if bounds in ("equal", "cut"):
        starts = windows * (n // m)
        ends = starts + (n - starts[-1] if bounds == "equal" else n // m)
    elif bounds == "apart":
        ends = (windows + 1) * n // m
    index = starts[:, None] + np.arange(int((ends - starts).max()))
    return np.minimum(index, n - 1), index < ends[:, None]


def along_axes(x: Any, size: Shape, pooled: Callable[[Any, Any], Any], bounds: str = "") -> Any:
    """`pooled(windows [m, k, ...], inside [m, k, 1 ...])` along each axis of an image, the last one first."""
    for axis, m in reversed(tuple(enumerate(size, 2))):
        index, inside = adaptive_windows(x.shape[axis], m, bounds)
        windows = rows_of(anp.swapaxes(x, 0, axis), index)
        x = anp.swapaxes(pooled(windows, inside.reshape(*inside.shape, *(1,) * (x.ndim - 1))), 0, axis)
    return x


def sum_inside(windows: Any, inside: NDArray[np.bool_]) -> Any:
    """The sums [m, ...] of the elements inside."""
    values = windows if inside.all() else anp.where(inside, windows, 0.0)
    return anp.reshape(total(values, (1,)), (windows.shape[0], *windows.shape[2:]))


def max_inside(windows: Any, inside: NDArray[np.bool_]) -> Any:
    """The first largest [m, ...] of the elements inside."""
    last = anp.moveaxis(anp.where(inside, windows, -np.inf), 1, -1)
    rows = anp.reshape(last, (-1, last.shape[-1]))
    return anp.reshape(entries(rows, anp.argmax(getval(rows), axis=1)), last.shape[:-1])


def adaptive_max_pool(tensors: Mapping[str, Any], params: AdaptivePoolParams, *, bounds: str = "") -> dict[str, Any]:
    """The first largest elements of as many windows as asked for (torch.nn.functional.adaptive_max_pool1d, 2d); the
    `bounds` are those of `adaptive_windows`."""
    return {"y": along_axes(tensors["x"], each(params.output_size, tensors["x"].ndim - 2), max_inside, bounds)}


def adaptive_avg_pool(
    tensors: Mapping[str, Any], params: AdaptivePoolParams, *, bounds: str = "", narrow: bool = False
) -> dict[str, Any]:
    """The means of such windows (torch.nn.functional.adaptive_avg_pool1d, 2d); `narrow` is that of `mean_of`."""
    return {"y": adaptive_mean(tensors["x"], each(params.output_size, tensors["x"].ndim - 2), bounds, narrow)}


def adaptive_mean(x: Any, size: Shape, bounds: str = "", narrow: bool = False) -> Any:
    """The means of `size` windows."""
    return mean_of(along_axes(x, size, sum_inside, bounds), adaptive_counts(x.shape[2:], size, bounds), narrow)


def adaptive_counts(lengths: Shape, size: Shape, bounds: str = "") -> int | NDArray[np.float64]:
    """The number of elements of each window, or of all."""
    return number_or_all(adaptive_windows(n, m, bounds)[1].sum(axis=1) for n, m in zip(lengths, size, strict=True))


def adaptive_avg_variants(params: AdaptivePoolParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Windows with other bounds, a factor in float32."""
    lengths = shapes["x"][2:]
    yield from narrow_variants(adaptive_counts(lengths, each(params.output_size, len(lengths))))
    yield from adaptive_variants(params, shapes)


def adaptive_variants(params: AdaptivePoolParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Windows with other bounds."""
    lengths = shapes["x"][2:]
    pairs = tuple(zip(lengths, each(params.output_size, len(lengths)), strict=True))
    for bounds in ("equal", "cut", "apart"):
        others = ((adaptive_windows(n, m), adaptive_windows(n, m, bounds)) for n, m in pairs)
        if all(m <= n for n, m in pairs) and not all(np.array_equal(a[1], b[1]) for a, b in others):
            yield Variant("window-bounds", {"bounds": bounds}, shown_by="a size that the output's does not divide")


def flat_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, *); y: (N, the product of the others)."""
    x = require_x(given, (), "")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis")
    return TensorShapes(inputs={"x": x}, outputs={"y": (x[0], prod(x[1:]))})


def flatten(tensors: Mapping[str, Any], _params: Any) -> dict[str, Any]:
    """torch.flatten from axis 1."""
    x = tensors["x"]
    return {"y": anp.reshape(x, (x.shape[0], prod(x.shape[1:])))}


KINDS: Mapping[str, tuple[str, type[Any], Any, Any, Any, Sequence[int]]] = {
    "max_pool": ("the largest elements", MaxPoolParams, pool_shapes, max_pool, max_variants, (1, 2, 3)),
    "avg_pool": ("means", AvgPoolParams, pool_shapes, avg_pool, avg_variants, (1, 2, 3)),
    "adaptive_avg_pool": (
        "means",
        AdaptivePoolParams,
        adaptive_shapes,
        adaptive_avg_pool,
        adaptive_avg_variants,
        (1, 2),
    ),
    "adaptive_max_pool": (
        "the largest elements",
        AdaptivePoolParams,
        adaptive_shapes,
        adaptive_max_pool,
        adaptive_variants,
        (1, 2),
    ),
}
"""The pools: a summary, params, shapes, reference, variants, and along how many axes."""
FLATTEN = Op(
    name="flatten",
    summary="all axes but the first into one",
    params=NoParams,
    inputs=X,
    infer_shapes=flat_shapes,
    reference=flatten,
)
POOLS = tuple(
    Op(
        name=f"{name}{n}d",
        summary=f"{what} of windows of {('a sequence', 'an image', 'a volume')[n - 1]}",
        params=params,
        inputs=X,
        infer_shapes=partial(shapes, axes=n),
        reference=reference,
        variants=variants,
    )
    for name, (what, params, shapes, reference, variants, ranks) in KINDS.items()
    for n in ranks
)
OPS = (*POOLS, FLATTEN)
