"""Resampling of sequences, images and volumes: interpolate, grid_sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import floor, prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from parity.cases.draw import Normal, Shape, Uniform
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_x
from parity.cases.pooling import adaptive_mean
from parity.cases.primitives import each, narrow, part, rows_of, scalar, whole
from parity.cases.program import concrete

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
"""The name of linear interpolation by the number of axes of x."""
NEAREST = ("nearest", "nearest-exact")
CUBIC = -0.75
"""The coefficient a of Keys's cubic convolution in PyTorch and ONNX; his own is -0.5, as in Pillow."""


@dataclass(frozen=True)
class InterpolateParams:
    """Either `size` or `scale_factor`; `align_corners` belongs to the linear and cubic modes."""

    size: int | tuple[int, ...] | None = None
    scale_factor: float | tuple[float, ...] | None = None
    mode: Literal["nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area"] = "nearest"
    align_corners: bool | None = None


@dataclass(frozen=True)
class GridSampleParams:
    """`align_corners`: -1 and 1 are the centres of the outermost elements, not their outer edges."""

    mode: Literal["bilinear", "nearest", "bicubic"] = "bilinear"
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros"
    align_corners: bool = False


def interpolate_shapes(params: InterpolateParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, *axes); y: (N, C, *size), where a scale factor gives floor(length * factor)."""
    x = require_x(given, (3, 4, 5), "(N, C, *axes)")
    if params.mode in ("linear", "bilinear", "trilinear", "bicubic"):
        wanted = 4 if params.mode == "bicubic" else next(n for n, name in LINEAR.items() if name == params.mode)
        if len(x) != wanted:
            raise CaseError("params.mode", f"{params.mode} takes {wanted} axes; x {list(x)} has {len(x)}")
    elif params.align_corners is not None:
        raise CaseError("params.align_corners", f"{params.mode} has no align_corners")
    return TensorShapes(inputs={"x": x}, outputs={"y": (*x[:2], *size_of(params, x[2:]))})


def size_of(params: InterpolateParams, lengths: Shape) -> Shape:
    """The lengths of the result; CaseError unless exactly one param states them."""
    n = len(lengths)
    if (params.size is None) is (params.scale_factor is None):
        raise CaseError("params.size", "either size or scale_factor is needed, and only one of them")
    name = "scale_factor" if params.size is None else "size"
    stated = getattr(params, name)
    if isinstance(stated, tuple) and len(stated) != n:
        raise CaseError(f"params.{name}", f"{name} must be one number, or {n}, not {list(stated)}")
    if params.size is not None:
        size = each(params.size, n)
    else:
        size = tuple(floor(length * factor) for length, factor in zip(lengths, factors(params, n), strict=True))
    if min(size) < 1:
        raise CaseError(f"params.{name}", f"with this {name}, y has the axes {list(size)}")
    return size


def factors(params: Any, n: int) -> tuple[float, ...]:
    """The scale factor of each axis."""
    stated = params.scale_factor
    return tuple(map(concrete, stated if isinstance(stated, tuple) else (stated,) * n))


Tap = tuple[Any, Any]
"""The index of an element along an axis, a whole number, and its weight (None: 1)."""


def nearest_taps(point: Any, n: int, rounding: Callable[[Any], Any] = anp.floor) -> list[Tap]:
    """The one of n elements that a rounding selects."""
    return [(whole(rounding(point), n), None)]


ROUNDINGS: Mapping[str, Callable[[Any], Any]] = {
    "floor": anp.floor,
    "round_prefer_ceil": lambda point: anp.floor(point + 0.5),
    "round_prefer_floor": lambda point: anp.ceil(point - 0.5),
}
"""ONNX's nearest_mode (Resize)."""


def linear_taps(point: Any, n: int, narrowed: bool = False) -> list[Tap]:
    """The two elements around a point; with `narrowed` weights they are in float32."""
    low = anp.floor(point)
    share, first = point - low, whole(low, n)
    return [(first, narrow(1 - share, "float32") if narrowed else 1 - share), (first + 1, share)]


def cubic_taps(point: Any, n: int, a: float = CUBIC, within: bool = False) -> list[Tap]:
    """The four elements around a point (Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981,
    equation 4); with `within` those outside have no weight, and the others' sum is 1 (ONNX's exclude_outside)."""
    low = anp.floor(point)
    share, first = point - low, whole(low, n)

    def near(t: Any) -> Any:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Any) -> Any:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    indices = [first + k for k in (-1, 0, 1, 2)]
    weights = [far(share + 1), near(share), near(1 - share), far(2 - share)]
    if within:
        weights = [anp.where((p < 0) | (p >= n), 0.0, w) for p, w in zip(indices, weights, strict=True)]
        total = sum(weights[1:], weights[0])
        weights = [weight / total for weight in weights]
    return list(zip(indices, weights, strict=True))


def interpolate(
    tensors: Mapping[str, Any],
    params: InterpolateParams,
    *,
    transform: str = "",
    rounding: str = "floor",
    a: float = CUBIC,
    within: bool = False,
    by_size: bool = False,
    narrowed: str = "",
) -> dict[str, Any]:
    """torch.nn.functional.interpolate, one axis after the other.

    `transform` is where an element of y lies in x (a key of `TRANSFORMS`), by default what `mode` and `align_corners`
    say; `rounding` is a key of `ROUNDINGS`, `a` and `within` are those of `cubic_taps`. With `by_size` the ratio of
    the lengths is used where a scale factor is given; `narrowed` is that of `AxisScale`.
    """
    x, kind = tensors["x"], kind_of(params)
    size = size_of(params, x.shape[2:])
    if kind == "area":
        return {"y": adaptive_mean(x, size, narrow=bool(narrowed))}
    taps: Callable[..., list[Tap]] = {
        "nearest": partial(nearest_taps, rounding=ROUNDINGS[rounding]),
        "linear": partial(linear_taps, narrowed=narrowed == "place"),
        "cubic": partial(cubic_taps, a=a, within=within),
    }[kind]
    scales = params.scale_factor if isinstance(params.scale_factor, tuple) else (params.scale_factor,) * len(size)
    for axis, (m, scale) in enumerate(zip(size, scales, strict=True), 2):
        n = x.shape[axis]
        ratio = (n, m) if scale is None or by_size else (1 / scale, 1)
        point = TRANSFORMS[transform or own_transform(params)](np.arange(m) * 1.0, AxisScale(x, n, m, ratio, narrowed))
        if kind == "linear":
            point = anp.where(point < 0, 0.0, point)
        x = sampled(x, axis, taps(point, n))
    return {"y": x}


def kind_of(params: InterpolateParams) -> str:
    """`nearest`, `linear`, `cubic` or `area`, whatever the number of axes."""
    if params.mode in NEAREST:
        return "nearest"
    return {"area": "area", "bicubic": "cubic"}.get(params.mode, "linear")


def sampled(x: Any, axis: int, taps: Sequence[Tap]) -> Any:
    """The weighted sum of elements along an axis; those outside are the outermost ones."""
    rows, y = anp.swapaxes(x, 0, axis), None
    for index, weight in taps:
        values = rows_of(rows, anp.clip(index, 0, x.shape[axis] - 1))
        values = values if weight is None else values * anp.reshape(weight, (-1, *(1,) * (x.ndim - 1)))
        y = values if y is None else y + values
    return anp.swapaxes(y, 0, axis)


TABLE = 1024
"""TensorFlow's bicubic weights are those of points in 1024ths (kTableSize,
core/kernels/image/resize_bicubic_op.cc)."""


@dataclass(frozen=True)
class AxisScale:
    """How points along an axis are scaled: by `ratio` (two factors), or from m - 1 to n - 1; in the dtype of `like`.

    What is `narrowed` to float32: nothing, the `ratio`, or the point too (`place`), or that to the next entry of a
    `table`.
    """

    like: Any
    n: int
    m: int
    ratio: tuple[Any, Any]
    narrowed: str = ""

    def scaled(self, points: Any, ratio: tuple[Any, Any], shift: float = 0.0) -> Any:
        """points * ratio - shift."""
        one = scalar(1, self.like)
        if self.narrowed:
            point = points * narrow(one * ratio[0] / ratio[1], "float32")
        else:
            point = points * one * ratio[0] / ratio[1]
        point = point - shift if shift else point
        if self.narrowed == "table":
            return anp.floor(point * TABLE + 0.5) / TABLE
        return narrow(point, "float32") if self.narrowed == "place" else point


def half_pixel(points: Any, scale: AxisScale) -> Any:
    """Centres at halves: both images cover the same area."""
    return scale.scaled(points + 0.5, scale.ratio, 0.5)


def asymmetric(points: Any, scale: AxisScale) -> Any:
    """Both images begin with the same centre."""
    return scale.scaled(points, scale.ratio)


def align_corners(points: Any, scale: AxisScale) -> Any:
    """Both images begin and end with the same centres."""
    return scale.scaled(points, (scale.n - 1, max(scale.m - 1, 1)))


def half_pixel_exact(points: Any, scale: AxisScale) -> Any:
    """The element that contains a centre."""
    return scale.scaled(points + 0.5, scale.ratio)


TRANSFORMS: Mapping[str, Callable[..., Any]] = {
    "half_pixel": half_pixel,
    "asymmetric": asymmetric,
    "align_corners": align_corners,
    "half_pixel_exact": half_pixel_exact,
}
"""Where an element of y lies in x: ONNX's coordinate_transformation_mode (Resize)."""


def own_transform(params: InterpolateParams) -> str:
    """The transform that the params ask for."""
    if params.mode in NEAREST:
        return "asymmetric" if params.mode == "nearest" else "half_pixel_exact"
    return "align_corners" if params.align_corners else "half_pixel"


def interpolate_variants(params: InterpolateParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another transform, rounding or coefficient, the ratio of the lengths for the scale factor."""
    kind, lengths = kind_of(params), shapes["x"][2:]
    size = size_of(params, lengths)
    if size == lengths:
        return
    for narrowed in ("ratio", "place"):
        yield Variant("attribute-precision", {"narrowed": narrowed}, shown_by="float64, and a size that is no multiple")
    if kind == "area":
        return
    if kind == "nearest":
        yield from nearest_variants(own_transform(params), lengths, size)
    else:
        others = (name for name in tuple(TRANSFORMS)[:3] if name != own_transform(params))
        yield from (Variant("coordinate-transform", {"transform": name}, shown_by=OTHER_SIZE) for name in others)
    if kind == "cubic":
        yield Variant("cubic-coefficient", {"a": -0.5}, shown_by=OTHER_SIZE)
        yield Variant("padding-mode", {"within": True}, shown_by=OTHER_SIZE)
        yield Variant("attribute-precision", {"narrowed": "table"}, shown_by=OTHER_SIZE)
    if params.scale_factor is not None and not params.align_corners:
        exact = zip(lengths, factors(params, len(lengths)), size, strict=True)
        if any(n * factor != m for n, factor, m in exact):
            yield Variant("coordinate-transform", {"by_size": True}, shown_by=OTHER_SIZE)


def nearest_variants(own: str, lengths: Shape, size: Shape) -> Iterable[Variant]:
    """The transforms and roundings that select other elements than `own` and than each other."""

    def elements(transform: str, rounding: str) -> str:
        pairs = zip(lengths, size, strict=True)
        points = ((TRANSFORMS[transform](np.arange(m) * 1.0, AxisScale(np.ones(1), n, m, (n, m))), n) for n, m in pairs)
        return repr([np.clip(whole(ROUNDINGS[rounding](point), n), 0, n - 1).tolist() for point, n in points])

    seen = {elements(own, "floor")}
    for rounding, transform in product(ROUNDINGS, TRANSFORMS):
        if (taken := elements(transform, rounding)) not in seen:
            seen.add(taken)
            if rounding == "floor":
                yield Variant("coordinate-transform", {"transform": transform}, shown_by=OTHER_SIZE)
            else:
                yield Variant("nearest-mode", {"transform": transform, "rounding": rounding}, shown_by=OTHER_SIZE)


OTHER_SIZE = "a size that is no multiple of the input's"


# Samples at any point.


def grid_sample_shapes(params: GridSampleParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, *axes), two or three; grid: (N, *axes', number of axes), from -1 to 1, the last axis of x first; y:
    (N, C, *axes')."""
    x = require_x(given, (4, 5), "(N, C, H, W) or (N, C, D, H, W)")
    n = len(x) - 2
    grid = given.get("grid", (x[0], *x[2:], n))
    if len(grid) != len(x) or grid[0] != x[0] or grid[-1] != n:
        raise CaseError("inputs.grid", f"shape {list(grid)} must be [{x[0]}, {'..., ' * n}{n}] for x {list(x)}")
    if params.mode == "bicubic" and n != 2:
        raise CaseError("params.mode", f"bicubic takes 4 axes; x {list(x)} has {len(x)}")
    return TensorShapes(inputs={"x": x, "grid": grid}, outputs={"y": (*x[:2], *grid[1:-1])})


def grid_sample(
    tensors: Mapping[str, Any],
    params: GridSampleParams,
    *,
    align: bool | None = None,
    padding: str = "",
    mirror: bool | None = None,
    swapped: bool = False,
    a: float = CUBIC,
) -> dict[str, Any]:
    """torch.nn.functional.grid_sample.

    `align` and `padding` replace align_corners and padding_mode, `mirror` align_corners in a reflection, which is about
    the centres of the outermost elements, not about their outer edges; `swapped` takes the coordinates of grid in the
    order of x's axes; `a` is that of `cubic_taps`.
    """
    x, grid = tensors["x"], tensors["grid"]
    axes, padding = x.shape[2:], padding or params.padding_mode
    aligned = params.align_corners if align is None else align
    mirror = aligned if mirror is None else mirror
    samplers: Mapping[str, Callable[..., list[Tap]]] = {
        "bilinear": linear_taps,
        "nearest": partial(nearest_taps, rounding=anp.rint),
        "bicubic": partial(cubic_taps, a=a),
    }
    taps = []
    for axis, n in enumerate(axes):
        along = coordinate(grid, axis if swapped else len(axes) - 1 - axis)
        point = (along + 1) * (n - 1) * 0.5 if aligned else ((along + 1) * n - 1) * 0.5
        if params.mode != "bicubic":
            point = inside_of(point, n, padding, mirror)
        axis_taps = samplers[params.mode](point, n)
        if params.mode == "bicubic":
            axis_taps = [(whole(inside_of(at, n, padding, mirror), n), weight) for at, weight in axis_taps]
        taps.append([(at, weight, n) for at, weight in axis_taps])
    rows = anp.reshape(anp.moveaxis(x, 1, -1), (x.shape[0] * prod(axes), x.shape[1]))
    y = None
    for corner in product(*taps):
        index: Any = np.arange(x.shape[0]).reshape(-1, *(1,) * len(axes))
        for at, _, n in corner:
            index = index * n + anp.clip(at, 0, n - 1)
        values = rows_of(rows, index)
        for at, weight, n in corner:
            inside = (at >= 0) & (at <= n - 1)
            values = anp.where(anp.reshape(inside, (*at.shape, 1)), values, 0.0)
            values = values if weight is None else values * anp.reshape(weight, (*at.shape, 1))
        y = values if y is None else y + values
    return {"y": anp.moveaxis(y, -1, 1)}


def coordinate(grid: Any, which: int) -> Any:
    """One of the coordinates along the last axis of grid."""
    return anp.reshape(part(grid, (slice(None),) * (grid.ndim - 1) + (slice(which, which + 1),)), grid.shape[:-1])


def inside_of(point: Any, n: int, padding: str, aligned: bool) -> Any:
    """A point among n elements: the border's if it is outside, its mirror image, or with `zeros` itself."""
    if padding == "zeros":
        return point
    if padding == "reflection":
        point = reflected(point, *((0, n - 1) if aligned else (-0.5, n)))
    return anp.where(point < 0, 0.0, anp.where(point > n - 1, scalar(n - 1, point), point))


def reflected(point: Any, low: float, length: int) -> Any:
    """A point reflected at both ends of an interval until it lies inside."""
    if length == 0:
        return point * 0
    far = anp.abs(point - low)
    turns = anp.floor(far / length)
    rest = far - turns * length
    return anp.where(turns / 2 == anp.floor(turns / 2), rest, length - rest) + low


FAR = "a grid that leaves [-1, 1]"


def grid_sample_variants(params: GridSampleParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Other corners, another padding, exchanged coordinates, another coefficient."""
    yield Variant("coordinate-transform", {"align": not params.align_corners}, shown_by="any grid")
    for padding in ("zeros", "border", "reflection"):
        if padding != params.padding_mode:
            yield Variant("padding-mode", {"padding": padding}, shown_by=FAR)
    if params.padding_mode == "reflection":
        yield Variant("padding-mode", {"mirror": not params.align_corners}, shown_by=FAR)
    yield Variant("permuted-axes", {"swapped": True}, shown_by="a grid whose coordinates differ")
    if params.mode == "bicubic":
        yield Variant("cubic-coefficient", {"a": -0.5}, shown_by="any grid")


INTERPOLATE = Op(
    name="interpolate",
    summary="sequences, images or volumes of another size",
    params=InterpolateParams,
    inputs=(Input("x", Normal(), differentiable=True),),
    infer_shapes=interpolate_shapes,
    reference=interpolate,
    variants=interpolate_variants,
)
GRID_SAMPLE = Op(
    name="grid_sample",
    summary="images or volumes at the points of a grid",
    params=GridSampleParams,
    inputs=(Input("x", Normal(), differentiable=True), Input("grid", Uniform(-1.2, 1.2), differentiable=True)),
    infer_shapes=grid_sample_shapes,
    reference=grid_sample,
    variants=grid_sample_variants,
)
OPS = (INTERPOLATE, GRID_SAMPLE)
