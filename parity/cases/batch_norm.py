"""batch_norm: normalise each channel over the batch (Ioffe, Szegedy 2015; torch.nn.functional.batch_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autograd.tracer import getval

from parity.cases.draw import Shape, Uniform
from parity.cases.normalization import (
    BIAS,
    WEIGHT,
    X,
    affine,
    channel_shapes,
    count,
    per_channel,
    require_positive,
    standardize,
    statistics,
    unbiasing,
)
from parity.cases.op import CaseError, Input, Layout, Op, require_x


@dataclass(frozen=True)
class BatchNormParams:
    """`training` uses and updates with the batch's statistics, else the running ones are used.

    `momentum` is PyTorch's: the weight of the new statistic in running = (1 - momentum) * running + momentum * batch.
    """

    training: bool = True
    momentum: float = 0.1
    eps: float = 1e-5


def layout(params: BatchNormParams, given: Mapping[str, Shape]) -> Layout:
    """x: (N, C), (N, C, L) or (N, C, H, W); all others (C,); y: as x."""
    require_positive(params.eps)
    if not 0.0 <= params.momentum <= 1.0:
        raise CaseError("params.momentum", f"momentum must lie in 0 .. 1, not {params.momentum}")
    x = require_x(given, (2, 3, 4, 5), "(N, C) or (N, C, *spatial)")
    inputs = {"x": x, **channel_shapes(x, given, "weight", "bias", "running_mean", "running_var")}
    return Layout(inputs=inputs, outputs={"y": x, "running_mean": (x[1],), "running_var": (x[1],)})


def forward(
    tensors: Mapping[str, Any],
    params: BatchNormParams,
    *,
    running_ddof: int = 1,
    momentum_complement: bool = False,
    affine_order: str = "weight-first",
    eps_placement: str = "inside",
    detached_statistics: bool = False,
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle; `running_ddof` and `momentum_complement` are the conventions of the running statistics.

    The other knobs are those of `statistics`, `standardize` and `affine`.
    """
    x = tensors["x"]
    axes = (0, *range(2, x.ndim))
    running = [tensors["running_mean"], tensors["running_var"]]
    mean, var = (per_channel(r, x.ndim) for r in running)
    if params.training:
        mean, var = statistics(getval(x) if detached_statistics else x, axes, **knobs)
        momentum = 1 - params.momentum if momentum_complement else params.momentum
        unbiased = var * unbiasing(count(x.shape, axes), running_ddof, getval(x).dtype)
        running = [
            update(old, new, momentum) for old, new in zip(running, (getval(mean), getval(unbiased)), strict=True)
        ]
    weight, bias = (per_channel(tensors.get(name), x.ndim) for name in ("weight", "bias"))
    xhat = standardize(x, mean, var, params.eps, eps_placement=eps_placement)
    y = affine(xhat, weight, bias, affine_order=affine_order)
    return {"y": y, "running_mean": running[0], "running_var": running[1]}


def update(running: Any, batch: Any, momentum: float) -> Any:
    """(1 - momentum) * running + momentum * batch, per channel, in the dtype of `running`."""
    weight = running.dtype.type(momentum)
    return (1 - weight) * running + weight * batch.reshape(-1)


BATCH_NORM = Op(
    name="batch_norm",
    summary="normalise each channel over the batch; the running statistics are outputs too",
    params=BatchNormParams,
    inputs=(
        X,
        WEIGHT,
        BIAS,
        Input("running_mean", default=Uniform(-0.5, 0.5)),
        Input("running_var", default=Uniform(0.5, 1.5)),
    ),
    layout=layout,
    forward=forward,
)
