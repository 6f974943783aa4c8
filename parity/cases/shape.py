"""Ops that rearrange elements: pad, pixel_shuffle, flip, roll."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.indexing import axis_of, with_axes
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import take

X = (Input("x", Normal(), differentiable=True),)
MODES: Mapping[str, Literal["reflect", "edge", "wrap", "symmetric"]] = {
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
    "symmetric": "symmetric",
}
"""PyTorch's names of padding modes, and np.pad's; PyTorch has no `symmetric`, which repeats the border."""


@dataclass(frozen=True)
class PadParams:
    """torch.nn.functional.pad: two numbers for each axis, the last axis first. Negative ones crop."""

    pad: tuple[int, ...]
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant"
    value: float = 0.0


@dataclass(frozen=True)
class PixelShuffleParams:
    """torch.nn.functional.pixel_shuffle."""

    upscale_factor: int


@dataclass(frozen=True)
class FlipParams:
    """torch.flip."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class RollParams:
    """torch.roll: elements move by `shifts` along `dims`, around the end."""

    shifts: tuple[int, ...]
    dims: tuple[int, ...]


def pairs_of(pad: Sequence[int], ndim: int, first: bool = False) -> list[tuple[int, int]]:
    """The widths before and after each axis; pairs are those of the last axes in reverse, or of the `first`."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    rest = [(0, 0)] * (ndim - len(pairs))
    return [*pairs, *rest] if first else [*rest, *pairs[::-1]]


def pad(
    tensors: Mapping[str, Any],
    params: PadParams,
    *,
    mode: str = "",
    order: str = "last",
    ignored: bool = False,
) -> dict[str, Any]:
    """x with a border. `mode` replaces that of the params; `order` of the pairs: `last` axis first, `first`, or
    `swapped` with before and after exchanged; `ignored`: the border is 0 instead of `value`."""
    x, how = tensors["x"], mode or params.mode
    pairs = pairs_of(params.pad, x.ndim, order == "first")
    inside = np.ones((), np.bool_)
    for axis, (before, after) in enumerate((b, a)[:: -1 if order == "swapped" else 1] for b, a in pairs):
        n = x.shape[axis]
        index = np.arange(-before, n + after)
        if how == "constant":
            within = ((index >= 0) & (index < n)).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
            inside, index = inside & within, np.clip(index, 0, n - 1)
        elif before or after:
            index = np.pad(np.arange(n), (before, after), mode=MODES[how])
        if index.shape != (n,) or before:
            x = take(x, index, axis)
    return {"y": x if inside.all() else anp.where(inside, x, 0.0 if ignored else params.value)}


def pad_shapes(params: PadParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape, with 1 or 2 more axes than are padded unless the mode is `constant`; y: x with its border."""
    x = with_axes(given)
    if len(params.pad) % 2 or not 0 < len(params.pad) <= 2 * len(x):
        raise CaseError("params.pad", f"pad needs two numbers for each of 1 to {len(x)} axes")
    pairs = pairs_of(params.pad, len(x))
    if params.mode != "constant":
        require_x(given, [len(params.pad) // 2 + more for more in (1, 2)], f"mode {params.mode} with this pad")
        for n, pair in zip(x, pairs, strict=True):
            limit = {"reflect": n - 1, "circular": n}.get(params.mode, max(pair))
            if not 0 <= min(pair) <= max(pair) <= limit:
                raise CaseError("params.pad", f"mode {params.mode} cannot add {list(pair)} to an axis of {n}")
    y = tuple(before + n + after for n, (before, after) in zip(x, pairs, strict=True))
    return TensorShapes(inputs={"x": x}, outputs={"y": y})


def pad_variants(params: PadParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another mode, value or order of the pairs."""
    x = shapes["x"]
    pairs = pairs_of(params.pad, len(x))
    limits = {"constant": 1.0e9, "replicate": 1.0e9, "reflect": -1, "symmetric": 0, "circular": 0}
    for mode, more in limits.items():
        fits = all(0 <= min(pair) <= max(pair) <= n + more for n, pair in zip(x, pairs, strict=True))
        if mode != params.mode and fits and min(x) > 0:
            yield Variant("padding-mode", {"mode": mode}, shown_by="values that differ")
    if params.mode == "constant" and params.value:
        yield Variant("padding-mode", {"ignored": True}, shown_by="a value that is not 0")
    orders = {"swapped": [pair[::-1] for pair in pairs], "first": pairs_of(params.pad, len(x), first=True)}
    for order, other in orders.items():
        if other != pairs and [sum(pair) for pair in other] == [sum(pair) for pair in pairs]:
            yield Variant("padding-order", {"order": order}, shown_by="a pad that is not symmetric")


def pixel_shuffle(tensors: Mapping[str, Any], params: PixelShuffleParams, *, order: str = "channels") -> dict[str, Any]:
    """y[n, c, h r + i, w r + j] = x[n, c r^2 + i r + j, h, w] (Shi et al. 2016, arXiv:1609.05158).

    `order` of the factors of x's channels: `channels`, rows, columns; `blocks` has the channels last (DCR), `columns`
    exchanges rows and columns.
    """
    x, r = tensors["x"], params.upscale_factor
    *lead, c, h, w = x.shape
    n, channels = int(np.prod(lead, dtype=np.int64)), c // r**2
    split, axes = {
        "channels": ((n, channels, r, r, h, w), (0, 1, 4, 2, 5, 3)),
        "blocks": ((n, r, r, channels, h, w), (0, 3, 4, 1, 5, 2)),
        "columns": ((n, channels, r, r, h, w), (0, 1, 4, 3, 5, 2)),
    }[order]
    y = anp.transpose(anp.reshape(x, split), axes)
    return {"y": anp.reshape(y, (*lead, channels, h * r, w * r))}


def shuffle_shapes(params: PixelShuffleParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, C r^2, H, W); y: (*, C, H r, W r)."""
    x, r = require_x(given, (), ""), params.upscale_factor
    if len(x) < 3:
        raise CaseError("inputs.x", f"shape {list(x)} has {len(x)} axes; (*, channels, H, W) needs at least 3")
    if r < 1 or x[-3] % r**2:
        raise CaseError("params.upscale_factor", f"{r} squared must divide the {x[-3]} channels of x")
    return TensorShapes(inputs={"x": x}, outputs={"y": (*x[:-3], x[-3] // r**2, x[-2] * r, x[-1] * r)})


def shuffle_variants(params: PixelShuffleParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Other orders of the factors of the channels."""
    if params.upscale_factor > 1:
        if shapes["x"][-3] > params.upscale_factor**2:
            yield Variant("channel-order", {"order": "blocks"}, shown_by="more than one channel of y")
        yield Variant("channel-order", {"order": "columns"}, shown_by="channels that differ")


def flip(tensors: Mapping[str, Any], params: FlipParams, *, dims: tuple[int, ...] | None = None) -> dict[str, Any]:
    """x in reverse order along `dims`."""
    x = tensors["x"]
    for dim in params.dims if dims is None else dims:
        x = take(x, np.arange(x.shape[dim])[::-1], axis_of(dim, x.shape))
    return {"y": x}


def roll(
    tensors: Mapping[str, Any], params: RollParams, *, sign: int = 1, dims: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """x moved around; with a `sign` of -1 in the other direction, along other `dims`."""
    x = tensors["x"]
    for shift, dim in zip(params.shifts, params.dims if dims is None else dims, strict=True):
        x = take(x, np.roll(np.arange(x.shape[dim]), sign * shift), axis_of(dim, x.shape))
    return {"y": x}


def dims_shapes(params: FlipParams | RollParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y: as x."""
    x = with_axes(given)
    axes = [axis_of(dim, x, "dims") for dim in params.dims]
    if isinstance(params, RollParams) and len(params.shifts) != len(axes):
        raise CaseError("params.shifts", f"{len(params.shifts)} shifts for {len(axes)} dims")
    if isinstance(params, FlipParams) and len(set(axes)) < len(axes):
        raise CaseError("params.dims", "each of dims may come once")
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def other_dims(params: FlipParams | RollParams, x: Shape) -> Iterator[Variant]:
    """Another axis instead of one of them."""
    axes = tuple(axis_of(dim, x) for dim in params.dims)
    for i in range(len(axes)):
        for other in sorted(set(range(len(x))) - set(axes)):
            changed = (*axes[:i], other, *axes[i + 1 :])
            yield Variant("wrong-axis", {"dims": changed}, shown_by="axes that differ")


def flip_variants(params: FlipParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Other axes, or one of them only."""
    yield from other_dims(params, shapes["x"])
    if len(params.dims) > 1:
        yield from (Variant("wrong-axis", {"dims": (dim,)}, shown_by="axes that differ") for dim in params.dims)


def roll_variants(params: RollParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The other direction, other axes, shifts exchanged."""
    yield Variant("permuted-elements", {"sign": -1}, shown_by="values that differ")
    yield from other_dims(params, shapes["x"])
    if len(params.dims) > 1:
        yield Variant("wrong-axis", {"dims": params.dims[::-1]}, shown_by="shifts that differ")


PAD = Op(
    name="pad",
    summary="x with a border",
    params=PadParams,
    inputs=X,
    infer_shapes=pad_shapes,
    reference=pad,
    variants=pad_variants,
)
PIXEL_SHUFFLE = Op(
    name="pixel_shuffle",
    summary="channels as the pixels of larger images",
    params=PixelShuffleParams,
    inputs=X,
    infer_shapes=shuffle_shapes,
    reference=pixel_shuffle,
    variants=shuffle_variants,
)
FLIP = Op(
    name="flip",
    summary="x in reverse order along axes",
    params=FlipParams,
    inputs=X,
    infer_shapes=dims_shapes,
    reference=flip,
    variants=flip_variants,
)
ROLL = Op(
    name="roll",
    summary="x moved along axes, around the end",
    params=RollParams,
    inputs=X,
    infer_shapes=dims_shapes,
    reference=roll,
    variants=roll_variants,
)
OPS = (PAD, PIXEL_SHUFFLE, FLIP, ROLL)
