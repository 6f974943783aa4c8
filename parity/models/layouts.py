"""How frameworks name and lay out a layer's tensors, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.models.ports import LayerInfo

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A tensor's name in PyTorch, and the conversion to PyTorch's layout: the order of axes, and how many of them are
    merged into each axis (empty if none)."""

    name: str
    axes: tuple[int, ...] = ()
    merged: tuple[int, ...] = ()

    def ordered(self, shape: Shape) -> Shape:
        """A framework's shape with its axes in PyTorch's order."""
        return tuple(shape[i] for i in self.axes) if self.axes else shape

    def shape(self, shape: Shape) -> Shape:
        """A framework's shape as PyTorch's."""
        rest, lengths = list(self.ordered(shape)), []
        for n in self.merged:
            lengths.append(prod(rest[:n]))
            del rest[:n]
        return tuple(lengths + rest)

    def there(self, array: Array) -> Array:
        """A framework's tensor in PyTorch's layout."""
        return (array.transpose(self.axes) if self.axes else array).reshape(self.shape(array.shape))

    def back(self, array: Array, shape: Shape) -> Array:
        """A tensor of PyTorch's layout in its framework's layout and shape. Raises ValueError."""
        split = array.reshape(self.ordered(shape))
        return np.ascontiguousarray(split.transpose(inverse(self.axes)) if self.axes else split)


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The inverse permutation of axes."""
    return tuple(int(i) for i in np.argsort(axes))


SCALED = {"gamma": Layout("weight"), "beta": Layout("bias")}
"""The parameters of Keras's norms."""
CONVENTIONS: Mapping[str, Mapping[str, Mapping[str, Layout]]] = {
    "paddle": {
        "Linear": {"weight": Layout("weight", (1, 0))},
        **{
            name: {"_mean": Layout("running_mean"), "_variance": Layout("running_var")}
            for name in ("BatchNorm1D", "BatchNorm2D", "BatchNorm3D", "BatchNorm", "SyncBatchNorm")
        },
        **{f"InstanceNorm{d}D": {"scale": Layout("weight")} for d in (1, 2, 3)},
    },
    "keras": {
        "Dense": {"kernel": Layout("weight", (1, 0))},
        **{
            f"Conv{d}D{kind}": {"kernel": Layout("weight", (d + 1, d, *range(d)))}
            for d in (1, 2, 3)
            for kind in ("", "Transpose")
        },
        # The kernel [h, w, in, multiplier] is PyTorch's [in * multiplier, 1, h, w].
        **{
            f"DepthwiseConv{d}D": {"kernel": Layout("weight", (d, d + 1, *range(d)), (2, 0, *(1,) * d))} for d in (1, 2)
        },
        "BatchNormalization": {
            **SCALED,
            "moving_mean": Layout("running_mean"),
            "moving_variance": Layout("running_var"),
        },
        **{f"{kind}Normalization": SCALED for kind in ("Layer", "Group")},
        "RMSNormalization": {"scale": Layout("weight")},
        **{name: {"embeddings": Layout("weight")} for name in ("Embedding", "ReversibleEmbedding")},
        "PositionEmbedding": {"position_embeddings": Layout("weight")},
    },
}
"""By framework and class. Source: the classes' documentation (paddle.nn.Linear: `y = xW + b`)."""


def layout_of(adapter: str, layer: LayerInfo, name: str) -> Layout:
    """The layout of a layer's tensor."""
    if adapter == "keras" and layer.kind == "EinsumDense":
        return einsum_layout(str(layer.options.get("equation", "")), name)
    return CONVENTIONS.get(adapter, {}).get(layer.extends or layer.kind, {}).get(name, Layout(name))


def einsum_layout(equation: str, name: str) -> Layout:
    """Keras's EinsumDense as a Linear: the kernel's output axes, then those that are summed over."""
    inputs, _, output = equation.partition("->")
    x, _, kernel = inputs.partition(",")
    stay, summed = [c for c in output if c in kernel], [c for c in x if c in kernel]
    if name == "kernel" and len(stay) + len(summed) == len(kernel):
        axes = tuple(kernel.index(c) for c in (*stay, *summed))
        return Layout("weight", axes, merging(len(stay), len(summed)))
    return Layout("bias", (), merging(len(stay))) if name == "bias" and stay else Layout(name)


def merging(*counts: int) -> tuple[int, ...]:
    """How many axes become one; empty if none are merged."""
    return counts if max(counts) > 1 else ()
