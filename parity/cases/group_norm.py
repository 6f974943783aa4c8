"""group_norm: normalise over groups of channels (Wu, He 2018; torch.nn.functional.group_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp

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
    channel_shapes,
    implied_statistics,
    norm_knobs,
    normalize,
    require_positive,
)
from parity.cases.op import CaseError, Knob, Layout, Op, require_x


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
    tensors: Mapping[str, Any],
    params: GroupNormParams,
    *,
    groups: int | None = None,
    interleaved: bool = False,
    across_batch: bool = False,
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle. The other knobs are those of `normalize`.

    `groups` replaces the number of groups, `interleaved` puts channel c into group c % groups, `across_batch` takes
    the statistics over the batch too.
    """
    x = tensors["x"]
    n, c = x.shape[:2]
    count = groups or params.num_groups
    split = anp.reshape(x, (n, c // count, count, -1) if interleaved else (n, count, c // count, -1))
    over: Axes = (1, 3) if interleaved else (2, 3)
    weight, bias = (split_channels(tensors.get(name), count, interleaved=interleaved) for name in ("weight", "bias"))
    y = normalize(split, (0, *over) if across_batch else over, params.eps, weight, bias, **knobs)
    return {"y": anp.reshape(y, x.shape)}


def split_channels(values: Any | None, groups: int, *, interleaved: bool) -> Any | None:
    """A (C,) tensor by group, ready to broadcast over (N, groups, C / groups, -1), or the first two exchanged."""
    if values is None:
        return None
    return anp.reshape(values, (1, -1, groups, 1) if interleaved else (1, groups, -1, 1))


def implied(tensors: Mapping[str, Any], params: GroupNormParams, y: Any) -> Implied | None:
    """The statistics that an output implies."""
    n, c = y.shape[:2]
    shape = (n, params.num_groups, c // params.num_groups, -1)
    weight, bias = (split_channels(tensors.get(k), params.num_groups, interleaved=False) for k in ("weight", "bias"))
    x, y = tensors["x"].reshape(shape), y.reshape(shape)
    return implied_statistics(x, y, (2, 3), params.eps, weight, bias)


def knobs(params: GroupNormParams, shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about group_norm kernels."""
    channels = shapes["x"][1]
    counts = {1, channels, channels // params.num_groups} - {params.num_groups}
    return (
        *norm_knobs(params, shapes, ()),
        *(Knob("wrong-axis", {"groups": count}, told_by="groups of several channels") for count in sorted(counts)),
        Knob("wrong-axis", {"interleaved": True}, told_by="several groups of several channels"),
        Knob("wrong-axis", {"across_batch": True}, told_by="several samples"),
    )


GROUP_NORM = Op(
    name="group_norm",
    summary="normalise over groups of channels, then weight and bias per channel",
    params=GroupNormParams,
    inputs=(X, WEIGHT, BIAS),
    layout=layout,
    forward=forward,
    knobs=knobs,
    fits=(EPS,),
    terms=TERMS,
    careful=CAREFUL,
    implied=implied,
)
