"""batch_norm: normalise each channel over the batch (Ioffe, Szegedy 2015; torch.nn.functional.batch_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autograd.tracer import getval

from parity.cases.draw import Shape, Uniform
from parity.cases.normalization import (
    BIAS,
    CAREFUL,
    EPS,
    STATISTICS_KNOBS,
    TERMS,
    WEIGHT,
    Axes,
    Implied,
    X,
    apply,
    channel_axes,
    channel_shapes,
    count,
    detach,
    implied_statistics,
    norm_knobs,
    per_channel,
    require_positive,
    statistics,
    unbiasing,
)
from parity.cases.op import CaseError, Fit, Input, Knob, Layout, Op, require_x


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
    axes: Axes | None = None,
    batch_statistics: bool | None = None,
    detached: str = "",
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle; `running_ddof` and `momentum_complement` are the conventions of the running statistics.

    `axes` replaces the axes that y is normalised over, `batch_statistics` says whose statistics normalise (by default
    the batch's in training). The other knobs are those of `statistics` and `apply`.
    """
    x = tensors["x"]
    right = (0, *range(2, x.ndim))
    own = {name: knobs.pop(name) for name in STATISTICS_KNOBS & knobs.keys()}
    old = [tensors["running_mean"], tensors["running_var"]]
    running, moments = old, [per_channel(r, x.ndim) for r in old]
    if params.training:
        mean, var = statistics(x, right, **own)
        momentum = 1 - params.momentum if momentum_complement else params.momentum
        unbiased = var * unbiasing(count(x.shape, right), running_ddof, getval(x).dtype)
        running = [update(was, now, momentum) for was, now in zip(old, (getval(mean), getval(unbiased)), strict=True)]
    if params.training if batch_statistics is None else batch_statistics:
        moments = list(detach(statistics(x, axes or right, **own), detached))
    weight, bias = (per_channel(tensors.get(name), x.ndim) for name in ("weight", "bias"))
    y = apply(x, (moments[0], moments[1]), params.eps, weight, bias, **knobs)
    return {"y": y, "running_mean": running[0], "running_var": running[1]}


def implied(tensors: Mapping[str, Any], params: BatchNormParams, y: Any) -> Implied | None:
    """The statistics that an output implies, where they are the batch's."""
    if not params.training:
        return None
    weight, bias = (per_channel(tensors.get(name), y.ndim) for name in ("weight", "bias"))
    return implied_statistics(tensors["x"], y, (0, *range(2, y.ndim)), params.eps, weight, bias)


def knobs(params: BatchNormParams, shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about batch_norm kernels."""
    rank = len(shapes["x"])
    source = Knob(
        "statistics-source",
        {"batch_statistics": not params.training},
        told_by="running statistics that are not those of the batch",
    )
    shared = norm_knobs(params, shapes, channel_axes(rank, (0, *range(2, rank))))
    if not params.training:
        return (*shared, source)
    return (
        *shared,
        source,
        Knob("running-var-ddof", {"running_ddof": 0}, told_by="few elements in a mean: n - 1 is then far from n"),
        Knob("momentum-complement", {"momentum_complement": True}, told_by="a momentum that is not 0.5"),
    )


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
    knobs=knobs,
    fits=(EPS, Fit("momentum-value", "momentum", lambda params: params.momentum, "running statistics off the batch's")),
    terms=TERMS,
    careful=CAREFUL,
    implied=implied,
)
