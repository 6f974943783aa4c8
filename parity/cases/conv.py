"""Convolutions: conv2d."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Normal, Shape
from parity.cases.exact.matmul import matmul
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import part, patches, rows_of


@dataclass(frozen=True)
class Conv2dParams:
    """A square kernel; `out_channels` and `kernel_size` may be left out where a shape of weight is given."""

    out_channels: int | None = field(default=None, metadata={"implied": True})
    kernel_size: int | None = field(default=None, metadata={"implied": True})
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1


def conv_shapes(params: Conv2dParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, H, W); weight: (O, C / groups, k, k); bias: (O,); y: (N, O, H', W'), for `out_channels` O."""
    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)):
        if getattr(params, name) < least:
            raise CaseError(f"params.{name}", f"{name} must be {least} or more, not {getattr(params, name)}")
    x = require_x(given, (4,), "(N, C, H, W)")
    n_out, kernel = kernel_of(params, given)
    if x[1] % params.groups or n_out % params.groups:
        raise CaseError("params.groups", f"{params.groups} groups do not divide {x[1]} and {n_out} channels evenly")
    reach = tuple(params.dilation * (k - 1) + 1 for k in kernel)
    after = tuple((n + 2 * params.padding - r) // params.stride + 1 for n, r in zip(x[2:], reach, strict=True))
    if min(after) < 1 or any(n + 2 * params.padding < r for n, r in zip(x[2:], reach, strict=True)):
        at = f"{list(x[2:])} with a padding of {params.padding}"
        raise CaseError("params.kernel_size", f"a kernel of {kernel[0]} is larger than {at}")
    why = f"x {list(x)} and {n_out} output channels"
    weight = require_shape(given, "weight", (n_out, x[1] // params.groups, *kernel), why)
    bias = require_shape(given, "bias", (n_out,), why)
    return TensorShapes(inputs={"x": x, "weight": weight, "bias": bias}, outputs={"y": (x[0], n_out, *after)})


def kernel_of(params: Conv2dParams, given: Mapping[str, Shape]) -> tuple[int, tuple[int, int]]:
    """Output channels and kernel size, from the params, else from the shape of weight."""
    weight = given.get("weight", ())
    n_out = params.out_channels or (weight[0] if len(weight) == 4 else None)
    size = params.kernel_size or (weight[2] if len(weight) == 4 else None)
    if n_out is None or size is None:
        name = "kernel_size" if n_out else "out_channels"
        raise CaseError(f"params.{name}", f"{name} is needed, or a shape for weight: [out, in / groups, k, k]")
    kernel = weight[2:] if len(weight) == 4 and params.kernel_size is None else (size, size)
    return n_out, (kernel[0], kernel[1])


def conv2d(
    tensors: Mapping[str, Any], params: Conv2dParams, *, flipped: bool = False, around: str = "zeros"
) -> dict[str, Any]:
    """The correlation of x with the kernel (torch.nn.functional.conv2d); `flipped` is the convolution as defined in
    mathematics; the padding `around` images is zeros, with `zeros behind` all at the end, or one of `PADDINGS`."""
    x, weight, bias = tensors["x"], tensors["weight"], tensors.get("bias")
    n_out, n_in, *kernel = weight.shape
    padding = params.padding
    if around == "zeros behind":
        x, padding = with_zeros_behind(x, 2 * padding), 0
    elif around != "zeros":
        x, padding = around_by(x, padding, PADDINGS[around]), 0
    seen = patches(x, tuple(kernel), params.stride, padding, params.dilation)
    if flipped:
        weight = part(weight, (slice(None), slice(None), slice(None, None, -1), slice(None, None, -1)))
    n, high, wide = seen.shape[:3]
    k, groups = n_in * kernel[0] * kernel[1], params.groups
    if groups == 1:
        y = matmul(anp.reshape(seen, (n, high, wide, k)), anp.transpose(anp.reshape(weight, (n_out, k))))
    else:
        rows = anp.transpose(anp.reshape(seen, (n * high * wide, groups, k)), (1, 0, 2))
        by_group = anp.transpose(anp.reshape(weight, (groups, n_out // groups, k)), (0, 2, 1))
        y = anp.reshape(anp.transpose(matmul(rows, by_group), (1, 0, 2)), (n, high, wide, n_out))
    return {"y": anp.transpose(y if bias is None else y + bias, (0, 3, 1, 2))}


PADDINGS: Mapping[str, Literal["edge", "reflect", "wrap"]] = {
    "replicate": "edge",
    "reflect": "reflect",
    "circular": "wrap",
}
"""PyTorch's names of padding modes, and np.pad's."""


def around_by(x: Any, padding: int, mode: Literal["edge", "reflect", "wrap"]) -> Any:
    """Images padded with `padding` of their own pixels."""
    for axis in (2, 3):
        x = taken(x, np.pad(np.arange(x.shape[axis]), padding, mode=mode), axis)
    return x


def taken(x: Any, index: NDArray[np.intp], axis: int) -> Any:
    """np.take along an axis."""
    return anp.swapaxes(rows_of(anp.swapaxes(x, 0, axis), index), 0, axis)


def with_zeros_behind(x: Any, padding: int) -> Any:
    """Images with all their padding below and to the right."""
    for axis in (2, 3):
        n = x.shape[axis]
        places = np.arange(n + padding)
        inside = (places < n).astype(np.int8).reshape([-1 if a == axis else 1 for a in range(4)])
        x = taken(x, np.minimum(places, n - 1), axis) * inside
    return x


def conv_variants(params: Conv2dParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """A bias left out, a flipped kernel, another padding."""
    if 0 < params.padding < min(shapes["x"][2:]):
        modes = (*PADDINGS, "zeros behind")
        yield from (Variant("padding-mode", {"around": mode}, shown_by="a border that is not 0") for mode in modes)
    if "bias" in shapes:
        yield Variant("affine-missing", absent=("bias",), shown_by="a bias that is not 0")
    if max(shapes["weight"][2:]) > 1:
        yield Variant("permuted-elements", {"flipped": True}, shown_by="a kernel that is not symmetric")


CONV2D = Op(
    name="conv2d",
    summary="correlate images with kernels, plus bias",
    params=Conv2dParams,
    inputs=(
        Input("x", Normal(), differentiable=True),
        Input("weight", Normal(), differentiable=True),
        Input("bias", Normal(), differentiable=True, optional=True),
    ),
    infer_shapes=conv_shapes,
    reference=conv2d,
    variants=conv_variants,
    rounded_together=(("x",), ("x", "weight")),
)
OPS = (CONV2D,)
