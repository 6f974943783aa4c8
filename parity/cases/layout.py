"""How a tensor lies in memory: its strides and where it starts, in elements of a larger buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from parity.cases.draw import Shape


@dataclass(frozen=True)
class Placement:
    """Strides and offset in elements, and the size of the buffer."""

    strides: tuple[int, ...]
    offset: int
    size: int


def in_order(shape: Shape, axes: Sequence[int]) -> Placement:
    """A tensor stored with its axes in this order, the last one contiguous."""
    strides = dict(zip(axes, (prod(shape[a] for a in axes[i + 1 :]) for i in range(len(axes))), strict=True))
    return Placement(tuple(strides[axis] for axis in range(len(shape))), 0, prod(shape))


def transposed(shape: Shape) -> Placement | None:
    """The first axis contiguous, as after a transpose."""
    return in_order(shape, range(len(shape))[::-1]) if len(shape) > 1 else None


def channels_last(shape: Shape) -> Placement | None:
    """Axis 1 contiguous, as PyTorch's memory format of images."""
    return in_order(shape, (0, *range(2, len(shape)), 1)) if len(shape) in (4, 5) else None


def strided(shape: Shape) -> Placement | None:
    """Every second element of a buffer, as `x[..., ::2]`."""
    dense = in_order(shape, range(len(shape)))
    return Placement(tuple(2 * stride for stride in dense.strides), 0, 2 * dense.size) if shape else None


def unaligned(shape: Shape) -> Placement | None:
    """Contiguous, but one element after the start of the buffer: no address is a multiple of a vector's size."""
    dense = in_order(shape, range(len(shape)))
    return Placement(dense.strides, 1, dense.size + 1)


LAYOUTS: Mapping[str, Callable[[Shape], Placement | None]] = {
    "transposed": transposed,
    "channels_last": channels_last,
    "strided": strided,
    "unaligned": unaligned,
}
"""Layout by name to the placement of a tensor of some shape; None if such a tensor is contiguous anyway."""
