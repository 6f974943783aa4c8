"""Losses: cross_entropy, mse_loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Shape
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import entries, scalar
from parity.cases.program import by_hand

X = Input("x", Normal(), differentiable=True)
SEVERAL = "more than one target"


@dataclass(frozen=True)
class CrossEntropyParams:
    """torch.nn.functional.cross_entropy over the last axis; targets equal to `ignore_index` do not count."""

    ignore_index: int = -100
    reduction: Literal["mean", "sum"] = "mean"


@dataclass(frozen=True)
class MseLossParams:
    """torch.nn.functional.mse_loss."""

    reduction: Literal["mean", "sum"] = "mean"


def log_loss(shifted: Any, target: Any) -> Any:
    """-log softmax(shifted)[target], [rows, 1]."""
    return anp.log(total(anp.exp(shifted), (1,))) - entries(shifted, target)


def log_loss_backward(g: Any, _losses: Any, shifted: Any, target: Any) -> Any:
    """(softmax - onehot) * g, as kernels have it."""
    powers = anp.exp(shifted)
    softmax = powers / total(powers, (1,))
    onehot = np.arange(shifted.shape[1]) == np.reshape(target, (-1, 1))
    return (softmax - anp.where(onehot, scalar(1, shifted), 0.0)) * g


fused_log_loss = by_hand(log_loss, log_loss_backward)


def cross_entropy(
    tensors: Mapping[str, Any], params: CrossEntropyParams, *, reduction: str = "", fused: bool = False
) -> dict[str, Any]:
    """The mean of -log softmax(x)[target] over the targets that count; x [..., C], target [...].

    `reduction` replaces that of the params: `sum` does not divide, `all` divides by the number of all targets. `fused`:
    the gradient is that of `log_loss_backward`.
    """
    x, target = tensors["x"], np.reshape(tensors["target"], (-1,))
    logits = anp.reshape(x, (target.shape[0], -1))
    counted = target != params.ignore_index
    shifted = logits - getval(logits).max(axis=1, keepdims=True)
    losses = (fused_log_loss if fused else log_loss)(shifted, np.where(counted, target, 0))
    kept = anp.where(np.reshape(counted, (-1, 1)), losses, 0.0)
    n_counted = np.sum(np.where(counted, scalar(1, x), 0.0))
    divisors = {"mean": n_counted, "sum": 1, "all": target.shape[0]}
    return {"y": total(kept, (0, 1)).reshape(()) / divisors[reduction or params.reduction]}


def mse_loss(tensors: Mapping[str, Any], params: MseLossParams, *, reduction: str = "") -> dict[str, Any]:
    """The mean of (x - target)^2; `reduction` replaces that of the params: `half` divides by 2 n."""
    difference = anp.reshape(tensors["x"] - tensors["target"], (-1,))
    n = difference.shape[0]
    squares = anp.reshape(total(difference * difference, (0,)), ())
    return {"y": squares / {"mean": n, "sum": 1, "half": 2 * n}[reduction or params.reduction]}


def class_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, C); target: integers of shape (*); y: a scalar."""
    x = require_x(given, (), "")
    if len(x) < 2:
        raise CaseError("inputs.x", f"shape {list(x)} has {len(x)} axes; (*, classes) has two or more")
    target = require_shape(given, "target", x[:-1], f"x {list(x)}")
    return TensorShapes(inputs={"x": x, "target": target}, outputs={"y": ()}, integers={"target": (0, x[-1])})


def value_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x and target: any shape; y: a scalar."""
    x = require_x(given, (), "")
    return TensorShapes(inputs={"x": x, "target": require_shape(given, "target", x, f"x {list(x)}")}, outputs={"y": ()})


def class_variants(params: CrossEntropyParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor."""
    others = {"mean": ("sum", "all"), "sum": ("mean", "all")}[params.reduction]
    shown_by = {"sum": SEVERAL, "mean": SEVERAL, "all": "targets that are ignored"}
    if prod(shapes["target"]) > 1:
        yield from (Variant("mean-vs-sum", {"reduction": other}, shown_by=shown_by[other]) for other in others)


def value_variants(params: MseLossParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor."""
    if prod(shapes["x"]) > 1:
        other = "sum" if params.reduction == "mean" else "mean"
        yield Variant("mean-vs-sum", {"reduction": other}, shown_by=SEVERAL)
    yield Variant("scaled", {"reduction": "half"}, shown_by="any target")


CROSS_ENTROPY = Op(
    name="cross_entropy",
    summary="the mean of -log softmax(x)[target]",
    params=CrossEntropyParams,
    inputs=(X, Input("target", integers=True)),
    infer_shapes=class_shapes,
    reference=cross_entropy,
    variants=class_variants,
    forms=({"fused": True},),
)
MSE_LOSS = Op(
    name="mse_loss",
    summary="the mean of (x - target)^2",
    params=MseLossParams,
    inputs=(X, Input("target", Normal())),
    infer_shapes=value_shapes,
    reference=mse_loss,
    variants=value_variants,
)
