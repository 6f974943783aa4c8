"""group_norm: normalise over groups of channels (Wu, He 2018; torch.nn.functional.group_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp

from parity.cases.draw import Shape
from parity.cases.normalization import (
    BIAS,
    WEIGHT,
    X,
    affine,
    channel_shapes,
    normalize,
    per_channel,
    require_positive,
)
from parity.cases.op import CaseError, Layout, Op, require_x


@dataclass(frozen=True)
class GroupNormParams:
    """`num_groups` divides the channels; `eps` is added to the variance."""

    num_groups: int
    eps: float = 1e-5


def layout(params: GroupNormParams, given: Mapping[str, Shape]) -> Layout:
    """x: (N, C, *); weight, bias: (C,); y: as x."""
    require_positive(params.eps)
    x = require_x(given, (2, 3, 4, 5), "(N, C, *)")
    if params.num_groups < 1 or x[1] % params.num_groups:
        raise CaseError("params.num_groups", f"{params.num_groups} does not divide the {x[1]} channels of x {list(x)}")
    return Layout(inputs={"x": x, **channel_shapes(x, given, "weight", "bias")}, outputs={"y": x})


def forward(
    tensors: Mapping[str, Any], params: GroupNormParams, *, affine_order: str = "weight-first", **knobs: Any
) -> dict[str, Any]:
    """The oracle; knobs are those of `normalize` and `affine`."""
    x = tensors["x"]
    groups = anp.reshape(x, (x.shape[0], params.num_groups, -1))
    xhat = anp.reshape(normalize(groups, (2,), params.eps, **knobs), x.shape)
    weight, bias = (per_channel(tensors.get(name), x.ndim) for name in ("weight", "bias"))
    return {"y": affine(xhat, weight, bias, affine_order=affine_order)}


GROUP_NORM = Op(
    name="group_norm",
    summary="normalise over groups of channels, then weight and bias per channel",
    params=GroupNormParams,
    inputs=(X, WEIGHT, BIAS),
    layout=layout,
    forward=forward,
)
