"""Converts PyTorch's params for frameworks that take them per axis, or lack some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parity.adapters.base import Adapter, Unsupported, composed


def require(held: bool, lacking: str) -> None:
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def each(value: Any, n: int) -> tuple[Any, ...]:
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pads(padding: Any, n: int) -> list[tuple[int, int]]:
    """Elements before and after each of `n` axes, for a padding that is no word."""
    return [(p, p) for p in each(padding, n)]


def conv_pads(padding: Any, kernel: Sequence[int], dilation: Any) -> list[tuple[int, int]]:
    """`pads` of a convolution without stride, also for "same" (an odd element goes after) and "valid"."""
    n = len(kernel)
    if padding == "valid":
        return pads(0, n)
    if padding != "same":
        return pads(padding, n)
    totals = [d * (k - 1) for k, d in zip(kernel, each(dilation, n))]
    return [(total // 2, total - total // 2) for total in totals]


def pool_pads(
    sizes: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> list[tuple[int, int]]:
    """`pads` of a pooling. With `ceil_mode` a last window may reach beyond the padding, but must begin before it."""
    n = len(sizes)
    result = []
    for size, k, s, p, d in zip(sizes, each(kernel, n), each(stride, n), each(padding, n), each(dilation, n)):
        rest = size + 2 * p - d * (k - 1) - 1
        count = -(-rest // s) if ceil_mode else rest // s
        if ceil_mode and count * s >= size + p:
            count -= 1
        result.append((p, max(p, p + count * s - rest)))
    return result


def resized(sizes: Sequence[int], size: Any, scale_factor: Any) -> tuple[int, ...]:
    """The sizes after an interpolation, for a framework that takes nothing else."""
    if size is not None:
        return each(size, len(sizes))
    scaled = [old * factor for old, factor in zip(sizes, each(scale_factor, len(sizes)))]
    require(all(new == int(new) for new in scaled), "it takes sizes, but these factors give no whole numbers")
    return tuple(map(int, scaled))


def channels_last(framework: Any, x: Any) -> Any:
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def channels_first(framework: Any, x: Any) -> Any:
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


class AttentionAdapter(Adapter):
    """The base of adapters that project, and attend, by their own ops."""

    heads_first: Callable[..., Any]
    linear: Callable[..., Any]
    scaled_dot_product_attention: Callable[..., Any]

    @composed
    def multi_head_attention(self, x: Any, num_heads: int, **tensors: Any) -> Any:
        n, length, _ = x.shape
        query, key, value = (
            self.heads_first(self.reshaped(self.projected(x, name, tensors), (n, length, num_heads, -1)))
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = self.heads_first(self.scaled_dot_product_attention(query=query, key=key, value=value))
        return self.projected(self.reshaped(mixed, (n, length, -1)), "out_proj", tensors)

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(shape)

    def projected(self, x: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        return self.linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))


SHARED = {
    **{f"conv{n}d": "convolution" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": "transposed_convolution" for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": f"{kind}_pool" for n in (1, 2, 3) for kind in ("max", "avg")},
}
"""Op to the method of AnyAxesAdapter that computes it."""


class AnyAxesAdapter(Adapter):
    """The base of adapters whose convolutions and pools are the same calls for sequences, images and volumes."""

    @classmethod
    def declared(cls, op: str) -> Mapping[str, Any] | None:
        return super().declared(SHARED.get(op, op))

    convolution: Callable[..., Any]
    transposed_convolution: Callable[..., Any]
    max_pool: Callable[..., Any]
    avg_pool: Callable[..., Any]

    def conv1d(self, **given: Any) -> Any:
        return self.convolution(**given)

    def conv2d(self, **given: Any) -> Any:
        return self.convolution(**given)

    def conv3d(self, **given: Any) -> Any:
        return self.convolution(**given)

    def conv_transpose1d(self, **given: Any) -> Any:
        return self.transposed_convolution(**given)

    def conv_transpose2d(self, **given: Any) -> Any:
        return self.transposed_convolution(**given)

    def conv_transpose3d(self, **given: Any) -> Any:
        return self.transposed_convolution(**given)

    def max_pool1d(self, **given: Any) -> Any:
        return self.max_pool(**given)

    def max_pool2d(self, **given: Any) -> Any:
        return self.max_pool(**given)

    def max_pool3d(self, **given: Any) -> Any:
        return self.max_pool(**given)

    def avg_pool1d(self, **given: Any) -> Any:
        return self.avg_pool(**given)

    def avg_pool2d(self, **given: Any) -> Any:
        return self.avg_pool(**given)

    def avg_pool3d(self, **given: Any) -> Any:
        return self.avg_pool(**given)
