"""layer_norm: normalise over the last axes (Ba, Kiros, Hinton 2016; torch.nn.functional.layer_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.cases.draw import Shape
from parity.cases.normalization import (
    BIAS,
    CAREFUL,
    EPS,
    TERMS,
    WEIGHT,
    Axes,
    Implied,
    X,
    implied_statistics,
    norm_knobs,
    normalize,
    require_positive,
)
from parity.cases.op import CaseError, Knob, Layout, Op, require_shape, require_x


@dataclass(frozen=True)
class LayerNormParams:
    """`normalized_shape`: the last axes of x, an integer or a list; `eps` is added to the variance."""

    normalized_shape: int | tuple[int, ...]
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if isinstance(self.normalized_shape, int):
            object.__setattr__(self, "normalized_shape", (self.normalized_shape,))

    @property
    def axis_lengths(self) -> tuple[int, ...]:
        """`normalized_shape` as the list that it has become."""
        return (self.normalized_shape,) if isinstance(self.normalized_shape, int) else self.normalized_shape


def layout(params: LayerNormParams, given: Mapping[str, Shape]) -> Layout:
    """x: (*, *normalized_shape); weight, bias: normalized_shape; y: as x."""
    require_positive(params.eps)
    x = require_x(given, (), "layer_norm")
    normalized = params.axis_lengths
    if not normalized or x[-len(normalized) :] != normalized:
        raise CaseError(
            "params.normalized_shape",
            f"{list(normalized)} must be the last axes of x, whose shape is {list(x)}",
        )
    why = f"normalized_shape {list(normalized)}"
    affine_shapes = {name: require_shape(given, name, normalized, why) for name in ("weight", "bias")}
    return Layout(inputs={"x": x, **affine_shapes}, outputs={"y": x})


def forward(
    tensors: Mapping[str, Any], params: LayerNormParams, *, axes: Axes | None = None, **knobs: Any
) -> dict[str, Any]:
    """The oracle; `axes` replaces the axes to normalise over, the other knobs are those of `normalize`."""
    x = tensors["x"]
    over = axes if axes is not None else last_axes(x.ndim, len(params.axis_lengths))
    return {"y": normalize(x, over, params.eps, tensors.get("weight"), tensors.get("bias"), **knobs)}


def implied(tensors: Mapping[str, Any], params: LayerNormParams, y: Any) -> Implied | None:
    """The statistics that an output implies."""
    axes = last_axes(y.ndim, len(params.axis_lengths))
    return implied_statistics(tensors["x"], y, axes, params.eps, tensors.get("weight"), tensors.get("bias"))


def last_axes(rank: int, count: int) -> Axes:
    """The last `count` of `rank` axes."""
    return tuple(range(rank - count, rank))


def knobs(params: LayerNormParams, shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about layer_norm kernels."""
    rank = len(shapes["x"])
    right = last_axes(rank, len(params.axis_lengths))
    candidates = [tuple(range(rank)), *((axis,) for axis in range(rank)), *(last_axes(rank, k) for k in range(1, rank))]
    candidates += [tuple(range(rank - len(right)))]
    others = [axes for axes in dict.fromkeys(candidates) if axes and axes != right]
    return norm_knobs(params, shapes, others)


LAYER_NORM = Op(
    name="layer_norm",
    summary="normalise over the last axes, then weight and bias",
    params=LayerNormParams,
    inputs=(X, WEIGHT, BIAS),
    layout=layout,
    forward=forward,
    knobs=knobs,
    fits=(EPS,),
    terms=TERMS,
    careful=CAREFUL,
    implied=implied,
)
