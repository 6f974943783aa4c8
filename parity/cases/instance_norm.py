"""instance_norm: normalise each channel of each sample (Ulyanov et al. 2016; torch.nn.functional.instance_norm)."""

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
    channel_axes,
    channel_shapes,
    implied_statistics,
    norm_knobs,
    normalize,
    per_channel,
    require_positive,
)
from parity.cases.op import Knob, Layout, Op, require_x


@dataclass(frozen=True)
class InstanceNormParams:
    """`eps` is added to the variance."""

    eps: float = 1e-5


def layout(params: InstanceNormParams, given: Mapping[str, Shape]) -> Layout:
    """x: (N, C, L), (N, C, H, W) or (N, C, D, H, W); weight, bias: (C,); y: as x."""
    require_positive(params.eps)
    x = require_x(given, (3, 4, 5), "(N, C, *spatial)")
    return Layout(inputs={"x": x, **channel_shapes(x, given, "weight", "bias")}, outputs={"y": x})


def forward(
    tensors: Mapping[str, Any], params: InstanceNormParams, *, axes: Axes | None = None, **knobs: Any
) -> dict[str, Any]:
    """The oracle; `axes` replaces the axes to normalise over, the other knobs are those of `normalize`."""
    x = tensors["x"]
    weight, bias = (per_channel(tensors.get(name), x.ndim) for name in ("weight", "bias"))
    return {"y": normalize(x, axes or tuple(range(2, x.ndim)), params.eps, weight, bias, **knobs)}


def implied(tensors: Mapping[str, Any], params: InstanceNormParams, y: Any) -> Implied | None:
    """The statistics that an output implies."""
    weight, bias = (per_channel(tensors.get(name), y.ndim) for name in ("weight", "bias"))
    return implied_statistics(tensors["x"], y, tuple(range(2, y.ndim)), params.eps, weight, bias)


def knobs(params: InstanceNormParams, shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about instance_norm kernels."""
    return norm_knobs(params, shapes, channel_axes(len(shapes["x"]), tuple(range(2, len(shapes["x"])))))


INSTANCE_NORM = Op(
    name="instance_norm",
    summary="normalise each channel of each sample, then weight and bias per channel",
    params=InstanceNormParams,
    inputs=(X, WEIGHT, BIAS),
    layout=layout,
    forward=forward,
    knobs=knobs,
    fits=(EPS,),
    terms=TERMS,
    careful=CAREFUL,
    implied=implied,
)
