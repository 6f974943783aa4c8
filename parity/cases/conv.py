"""Convolutions along one, two or three axes (conv1d, conv2d, conv3d), and their transposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.exact.matmul import matmul
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape
from parity.cases.primitives import each, from_patches, part, patches, take
from parity.cases.windows import checked, common, images, n_windows, reaches

IMPLIED = {"implied": True}
LEAST = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


@dataclass(frozen=True)
class ConvParams:
    """`out_channels` and `kernel_size` may be left out where a shape of weight is given."""

    out_channels: int | None = field(default=None, metadata=IMPLIED)
    kernel_size: int | tuple[int, ...] | None = field(default=None, metadata=IMPLIED)
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | Literal["same", "valid"] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1


@dataclass(frozen=True)
class ConvTransposeParams:
    """`out_channels` and `kernel_size` may be left out where a shape of weight is given."""

    out_channels: int | None = field(default=None, metadata=IMPLIED)
    kernel_size: int | tuple[int, ...] | None = field(default=None, metadata=IMPLIED)
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    output_padding: int | tuple[int, ...] = 0
    groups: int = 1
    dilation: int | tuple[int, ...] = 1


def conv_shapes(params: ConvParams, given: Mapping[str, Shape], *, axes: int) -> TensorShapes:
    """x: (N, C, *axes); weight: (O, C / groups, *kernel); bias: (O,); y: (N, O, *axes'), for `out_channels` O."""
    checked(params, axes, LEAST)
    x = images(given, axes)
    weight = given.get("weight", ())
    n_out, kernel = kernel_of(params, weight, axes, weight[:1], "[out, in / groups, *kernel]")
    divided(params.groups, x[1], n_out)
    if params.padding == "same" and max(each(params.stride, axes)) > 1:
        raise CaseError("params.padding", "padding `same` needs a stride of 1")
    around = tuple(map(sum, padding_of(params, kernel)))
    after = n_windows(x[2:], kernel, params.stride, around, params.dilation)
    return with_bias(given, x, (n_out, x[1] // params.groups, *kernel), (x[0], n_out, *after))


def conv_transpose_shapes(params: ConvTransposeParams, given: Mapping[str, Shape], *, axes: int) -> TensorShapes:
    """x: (N, C, *axes); weight: (C, O / groups, *kernel); bias: (O,); y: (N, O, *axes'), for `out_channels` O."""
    checked(params, axes, LEAST)
    x = images(given, axes)
    weight, many = given.get("weight", ()), max(1, params.groups)
    n_out, kernel = kernel_of(params, weight, axes, [n * many for n in weight[1:2]], "[in, out / groups, *kernel]")
    divided(params.groups, x[1], n_out)
    limits = zip(*(each(value, axes) for value in (params.output_padding, params.stride, params.dilation)), strict=True)
    if any(extra >= max(stride, dilation) for extra, stride, dilation in limits):
        raise CaseError("params.output_padding", "output_padding must be smaller than the stride or the dilation")
    sizes = zip(
        x[2:],
        reaches(kernel, params.dilation),
        *(each(value, axes) for value in (params.stride, params.padding, params.output_padding)),
        strict=True,
    )
    after = tuple((n - 1) * stride - 2 * p + reach + extra for n, reach, stride, p, extra in sizes)
    if min(after) < 1:
        raise CaseError("params.padding", f"with a padding of {params.padding}, y has the shape {list(after)}")
    return with_bias(given, x, (x[1], n_out // params.groups, *kernel), (x[0], n_out, *after))


def kernel_of(params: Any, weight: Shape, axes: int, outs: Iterable[int], layout: str) -> tuple[int, Shape]:
    """Output channels and kernel, from the params, else from the shape of weight."""
    stated = len(weight) == axes + 2
    n_out = params.out_channels or (next(iter(outs)) if stated else None)
    size = params.kernel_size or (weight[2:] if stated else None)
    if n_out is None or size is None:
        name = "kernel_size" if n_out else "out_channels"
        raise CaseError(f"params.{name}", f"{name} is needed, or a shape for weight: {layout}")
    return n_out, each(size, axes)


def divided(groups: int, *channels: int) -> None:
    """Raise CaseError unless the groups divide the channels evenly."""
    if groups < 1:
        raise CaseError("params.groups", f"groups must be 1 or more, not {groups}")
    if any(n % groups for n in channels):
        raise CaseError(
            "params.groups", f"{groups} groups do not divide {' and '.join(map(str, channels))} channels evenly"
        )


def with_bias(given: Mapping[str, Shape], x: Shape, weight: Shape, y: Shape) -> TensorShapes:
    """The shapes of all tensors."""
    why = f"x {list(x)} and {y[1]} output channels"
    inputs = {
        "x": x,
        "weight": require_shape(given, "weight", weight, why),
        "bias": require_shape(given, "bias", y[1:2], why),
    }
    return TensorShapes(inputs=inputs, outputs={"y": y})


def padding_of(params: ConvParams, kernel: Shape) -> tuple[tuple[int, int], ...]:
    """The zeros before and behind x along each axis; for `same` with an odd one behind, as in PyTorch."""
    if params.padding == "valid":
        return ((0, 0),) * len(kernel)
    if params.padding == "same":
        return tuple(((r - 1) // 2, r // 2) for r in reaches(kernel, params.dilation))
    return tuple((p, p) for p in each(params.padding, len(kernel)))


def conv(
    tensors: Mapping[str, Any],
    params: ConvParams,
    *,
    flipped: bool = False,
    around: str = "zeros",
    less: int = 0,
    ignored: str = "",
    centred: bool = False,
    interleaved: tuple[str, ...] = (),
    layout: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The correlation of x with the kernel (torch.nn.functional.conv1d, conv2d, conv3d).

    `flipped` is the convolution as defined in mathematics. The padding `around` images is zeros, or one of `PADDINGS`;
    `less` zeros before them are behind them instead. `ignored` is a param with the value 1 (`stride`, `dilation`),
    `centred`: around the same centre. `interleaved`: the channels of `x` or `y` take turns in the groups, or those of
    `y` with their rows of `weight`. `layout` are two axes of weight that are exchanged.
    """
    x, weight, bias = tensors["x"], tensors["weight"], tensors.get("bias")
    axes, groups = x.ndim - 2, params.groups
    weight = weight if layout is None else anp.swapaxes(weight, *layout)
    kernel = weight.shape[2:]
    pads = padding_of(params, kernel)
    size = n_windows(x.shape[2:], kernel, params.stride, tuple(map(sum, pads)), params.dilation)
    stride, dilation = (1 if ignored == name else getattr(params, name) for name in ("stride", "dilation"))
    if around != "zeros":
        x, pads = around_by(x, pads, PADDINGS[around]), ((0, 0),) * axes
    margin = [(a - b) // 2 for a, b in zip(reaches(kernel, params.dilation), reaches(kernel, dilation), strict=True)]
    padding = common(tuple(p - less - m * centred for (p, _), m in zip(pads, margin, strict=True)))
    if flipped:
        weight = part(weight, (slice(None),) * 2 + (slice(None, None, -1),) * axes)
    x = in_turn(x, groups) if "x" in interleaved else x
    if "weight" in interleaved:
        weight, bias = (None if v is None else in_turn(v[None], groups)[0] for v in (weight, bias))
    seen = patches(x, kernel, stride, padding, dilation, size)
    n_out, k = weight.shape[0], prod(weight.shape[1:])
    if groups == 1:
        y = matmul(anp.reshape(seen, (x.shape[0], *size, k)), anp.transpose(anp.reshape(weight, (n_out, k))))
    else:
        by_group = anp.swapaxes(anp.reshape(weight, (groups, n_out // groups, k)), 1, 2)
        y = in_groups(anp.reshape(seen, (x.shape[0], *size, groups * k)), by_group)
    y = y if bias is None else y + bias
    y = anp.transpose(y, (0, axes + 1, *range(1, axes + 1)))
    return {"y": in_turn(y, n_out // groups) if "y" in interleaved else y}


def conv_transpose(
    tensors: Mapping[str, Any],
    params: ConvTransposeParams,
    *,
    flipped: bool = False,
    less: int = 0,
    ignored: str = "",
    interleaved: tuple[str, ...] = (),
    layout: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Every element of x times the kernel, added up where kernels overlap: the gradient of `conv` for its x
    (torch.nn.functional.conv_transpose1d, 2d, 3d). The options are those of `conv`; the input channels of `weight` may
    be `interleaved` too."""
    x, weight, bias = tensors["x"], tensors["weight"], tensors.get("bias")
    axes, groups = x.ndim - 2, params.groups
    weight = weight if layout is None else anp.swapaxes(weight, *layout)
    n_in, n_out, *kernel = weight.shape
    sizes = {"x": x.shape, "weight": tensors["weight"].shape}
    lengths = conv_transpose_shapes(params, sizes, axes=axes).outputs["y"][2:]
    stride, dilation = (1 if ignored == name else getattr(params, name) for name in ("stride", "dilation"))
    if flipped:
        weight = part(weight, (slice(None),) * 2 + (slice(None, None, -1),) * axes)
    x = in_turn(x, groups) if "x" in interleaved else x
    weight = in_turn(weight[None], groups)[0] if "weight" in interleaved else weight
    rows, k = anp.transpose(x, (0, *range(2, axes + 2), 1)), n_out * prod(kernel)
    if groups == 1:
        seen = matmul(rows, anp.reshape(weight, (n_in, k)))
    else:
        seen = in_groups(rows, anp.reshape(weight, (groups, n_in // groups, k)))
    seen = anp.reshape(seen, (x.shape[0], *x.shape[2:], groups * n_out, *kernel))
    padding = common(tuple(p - less for p in each(params.padding, axes)))
    y = from_patches(seen, lengths, stride, padding, dilation)
    y = in_turn(y, n_out) if "y" in interleaved else y
    return {"y": y if bias is None else y + anp.reshape(bias, (-1, *(1,) * axes))}


def in_groups(rows: Any, weights: Any) -> Any:
    """[..., groups * k] times [groups, k, o] as [..., groups * o]: each group with a matrix of its own."""
    groups, k, n_out = weights.shape
    lead = rows.shape[:-1]
    apart = anp.transpose(anp.reshape(rows, (prod(lead), groups, k)), (1, 0, 2))
    return anp.reshape(anp.transpose(matmul(apart, weights), (1, 0, 2)), (*lead, groups * n_out))


def in_turn(x: Any, n: int) -> Any:
    """The channels [a, n] of x in the order [n, a]."""
    apart = anp.reshape(x, (x.shape[0], x.shape[1] // n, n, *x.shape[2:]))
    return anp.reshape(anp.swapaxes(apart, 1, 2), x.shape)


PADDINGS: Mapping[str, Literal["edge", "reflect", "wrap"]] = {
    "replicate": "edge",
    "reflect": "reflect",
    "circular": "wrap",
}
"""PyTorch's names of padding modes, and np.pad's."""


def around_by(x: Any, pads: Iterable[tuple[int, int]], mode: Literal["edge", "reflect", "wrap"]) -> Any:
    """Images padded with their own elements."""
    for axis, pad in enumerate(pads, 2):
        x = take(x, np.pad(np.arange(x.shape[axis]), pad, mode=mode), axis)
    return x


def conv_variants(params: ConvParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another padding, and the variants of both kinds of convolution."""
    x, kernel = shapes["x"], shapes["weight"][2:]
    pads = padding_of(params, kernel)
    if 0 < max(map(max, pads)) < min(x[2:]):
        yield from (Variant("padding-mode", {"around": mode}, shown_by=BORDER) for mode in PADDINGS)
        yield from (
            Variant("padding-offset", {"less": n}, shown_by=BORDER) for n in sorted({1, -1, max(map(max, pads))})
        )
    if max(each(params.dilation, len(kernel))) > 1:
        yield from (
            Variant("option-ignored", {"ignored": "dilation", "centred": centred}, shown_by="a kernel larger than 1")
            for centred in (False, True)
        )
    yield from kernel_variants(params, shapes, shapes["weight"][0], (*TURNS, ("weight", "y")))


def conv_transpose_variants(params: ConvTransposeParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another padding, and the variants of both kinds of convolution."""
    if max(each(params.padding, len(shapes["x"]) - 2)) > 0:
        yield from (Variant("padding-offset", {"less": n}, shown_by=BORDER) for n in (-1, 1))
    if max(each(params.dilation, len(shapes["x"]) - 2)) > 1:
        yield Variant("option-ignored", {"ignored": "dilation"}, shown_by="a kernel larger than 1")
    turns = (*TURNS, ("x", "weight"), ("x", "weight", "y"))
    yield from kernel_variants(params, shapes, shapes["weight"][1] * params.groups, turns)


BORDER = "a border that is not 0"


TURNS = (("x",), ("y",), ("x", "y"))
"""The tensors whose channels may take turns in the groups."""


def kernel_variants(
    params: Any, shapes: Mapping[str, Shape], n_out: int, turns: Iterable[tuple[str, ...]]
) -> Iterable[Variant]:
    """A stride or a bias left out, a flipped or a transposed kernel, groups with interleaved channels."""
    weight, kernel = shapes["weight"], shapes["weight"][2:]
    if max(each(params.stride, len(kernel))) > 1:
        yield Variant("option-ignored", {"ignored": "stride"}, shown_by="several windows")
    if "bias" in shapes:
        yield Variant("affine-missing", absent=("bias",), shown_by="a bias that is not 0")
    if max(kernel) > 1:
        yield Variant("kernel-flipped", {"flipped": True}, shown_by="a kernel that is not symmetric")
    for one, other in ((0, 1), (-2, -1)):
        if (one == 0 or len(kernel) > 1) and weight[one] == weight[other] > 1:
            yield Variant("transposed", {"layout": (one, other)}, shown_by="a weight that is not symmetric")
    for which in turns:
        channels = {"x": shapes["x"][1], "weight": weight[0], "y": n_out}
        if params.groups > 1 and all(channels[name] > params.groups for name in which):
            yield Variant("groups-interleaved", {"interleaved": which}, shown_by="channels that differ")


def convolution(axes: int, *, transposed: bool = False) -> Op:
    """The op with this many axes."""
    kinds = ("sequences", "images", "volumes")
    summary = "the gradient of a convolution for its input" if transposed else "correlate {} with kernels"
    return Op(
        name=f"conv{'_transpose' * transposed}{axes}d",
        summary=f"{summary.format(kinds[axes - 1])}, plus bias",
        params=ConvTransposeParams if transposed else ConvParams,
        inputs=(
            Input("x", Normal(), differentiable=True),
            Input("weight", Normal(), differentiable=True),
            Input("bias", Normal(), differentiable=True, optional=True),
        ),
        infer_shapes=partial(conv_transpose_shapes if transposed else conv_shapes, axes=axes),
        reference=conv_transpose if transposed else conv,
        variants=conv_transpose_variants if transposed else conv_variants,
        rounded_together=(("x",), ("x", "weight")),
    )


OPS = (*(convolution(n) for n in (1, 2, 3)), *(convolution(n, transposed=True) for n in (1, 2, 3)))
