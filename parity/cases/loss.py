"""Losses: cross_entropy, mse_loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Shape
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import entries, scalar
from parity.cases.program import by_hand

X = Input("x", Normal(), differentiable=True)
SEVERAL = "more than one target"
USUAL_SMOOTHING = 0.1
PADDLE_FLOOR = -64.0
"""`ValueClip` in paddle/phi/kernels/funcs/softmax_impl.h."""


@dataclass(frozen=True)
class CrossEntropyParams:
    """torch.nn.functional.cross_entropy over the last axis; targets equal to `ignore_index` are ignored."""

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
    """(softmax - onehot) * g, as kernels compute it."""
    powers = anp.exp(shifted)
    softmax = powers / total(powers, (1,))
    onehot = np.arange(shifted.shape[1]) == np.reshape(target, (-1, 1))
    return (softmax - anp.where(onehot, scalar(1, shifted), 0.0)) * g


fused_log_loss = by_hand(log_loss, log_loss_backward)


def log_softmax(shifted: Any) -> Any:
    """shifted - log(sum(exp(shifted)))."""
    return shifted - anp.log(total(anp.exp(shifted), (1,)))


chained_log_softmax = by_hand(log_softmax, lambda g, y, _x: g - anp.exp(y) * total(g, (1,)))
LOG_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "": log_loss,
    "fused": fused_log_loss,
    "chained": lambda shifted, target: -entries(chained_log_softmax(shifted), target),
}
"""The reference, and forms with gradients as kernels compute them: in one step, or by log_softmax."""


def cross_entropy(
    tensors: Mapping[str, Any],
    params: CrossEntropyParams,
    *,
    reduction: str = "",
    backward: str = "",
    shift: bool = True,
    smoothing: float = 0.0,
    floor: float = 0.0,
) -> dict[str, Any]:
    """The mean of -log softmax(x)[target] over the targets that are not ignored; x [..., C], target [...].

    `reduction` replaces that of the params: `sum` does not divide, `all` divides by the number of all targets.
    `backward`: the gradient is one of `LOG_LOSSES`; without `shift` the maximum is not subtracted. `smoothing` is the
    part of a target spread over all classes (Szegedy et al. 2016, arXiv:1512.00567, section 7); shifted logits are
    clipped at `floor` if that is below 0.
    """
    x, target = tensors["x"], np.reshape(tensors["target"], (-1,))
    logits = anp.reshape(x, (target.shape[0], -1))
    counted = target != params.ignore_index
    shifted = logits - getval(logits).max(axis=1, keepdims=True) if shift else logits
    if floor:
        shifted = anp.where(shifted < floor, scalar(floor, x), shifted)
    losses = LOG_LOSSES[backward](shifted, np.where(counted, target, 0))
    if smoothing:
        spread = -total(log_softmax(shifted), (1,)) / shifted.shape[1]
        losses = (1 - smoothing) * losses + smoothing * spread
    kept = anp.where(np.reshape(counted, (-1, 1)), losses, 0.0)
    n_counted = np.sum(np.where(counted, scalar(1, x), 0.0))
    divisors = {"mean": n_counted, "sum": 1, "all": target.shape[0]}
    return {"y": total(kept, (0, 1)).reshape(()) / divisors[reduction or params.reduction]}


def mean_square(x: Any, target: Any, n: int) -> Any:
    """The sum of (x - target)^2 over n."""
    residual = anp.reshape(x - target, (-1,))
    return anp.reshape(total(residual * residual, (0,)), ()) / n


fused_mean_square = by_hand(mean_square, lambda g, _y, x, target, n: 2.0 / n * (x - target) * g)


def mse_loss(
    tensors: Mapping[str, Any],
    params: MseLossParams,
    *,
    reduction: str = "",
    fused: bool = False,
    paired: bool = False,
) -> dict[str, Any]:
    """The mean of (x - target)^2; `reduction` replaces that of the params: `half` divides by 2 n.

    `fused`: the gradient is 2 / n * (x - target) * g. `paired` subtracts every target from every x, as [N, 1] - [N]
    does.
    """
    if fused:
        size = tensors["x"].size if params.reduction == "mean" else 1
        return {"y": fused_mean_square(tensors["x"], tensors["target"], size)}
    x, target = tensors["x"], tensors["target"]
    if paired:
        x, target = anp.reshape(x, (-1, 1)), np.reshape(target, (1, -1))
    difference = anp.reshape(x - target, (-1,))
    n = difference.shape[0]
    squares = anp.reshape(total(difference * difference, (0,)), ())
    return {"y": squares / {"mean": n, "sum": 1, "half": 2 * n}[reduction or params.reduction]}


def class_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, C); target: integers of shape (*); y: a scalar."""
    x = require_x(given, (), "")
    if len(x) < 2:
        raise CaseError("inputs.x", f"shape {list(x)} has {len(x)} axes; (*, classes) needs at least two")
    target = require_shape(given, "target", x[:-1], f"x {list(x)}")
    return TensorShapes(inputs={"x": x, "target": target}, outputs={"y": ()}, integers={"target": (0, x[-1])})


def value_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x and target: any shape; y: a scalar."""
    x = require_x(given, (), "")
    return TensorShapes(inputs={"x": x, "target": require_shape(given, "target", x, f"x {list(x)}")}, outputs={"y": ()})


def class_variants(params: CrossEntropyParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor, logits clipped, no maximum subtracted."""
    others = {"mean": ("sum", "all"), "sum": ("mean", "all")}[params.reduction]
    shown_by = {"sum": SEVERAL, "mean": SEVERAL, "all": "targets that are ignored"}
    if prod(shapes["target"]) > 1:
        yield from (Variant("mean-vs-sum", {"reduction": other}, shown_by=shown_by[other]) for other in others)
    yield Variant("logits-clipped", {"floor": PADDLE_FLOOR}, shown_by="logits more than 64 below the largest")
    yield Variant("softmax-unshifted", {"shift": False}, unstable=True, shown_by="logits so large that exp overflows")


def value_variants(params: MseLossParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor."""
    if prod(shapes["x"]) > 1:
        other = "sum" if params.reduction == "mean" else "mean"
        yield Variant("mean-vs-sum", {"reduction": other}, shown_by=SEVERAL)
        yield Variant("broadcast-pairs", {"paired": True}, shown_by="targets that differ")
    yield Variant("scaled", {"reduction": "half"}, shown_by="any target")


CROSS_ENTROPY = Op(
    name="cross_entropy",
    summary="the mean of -log softmax(x)[target]",
    params=CrossEntropyParams,
    inputs=(X, Input("target", integers=True)),
    infer_shapes=class_shapes,
    reference=cross_entropy,
    variants=class_variants,
    forms=({"backward": "fused"}, {"backward": "chained"}),
    fits=(Fit("label-smoothing", "smoothing", lambda _: USUAL_SMOOTHING, shown_by="logits that are not equal"),),
)
MSE_LOSS = Op(
    name="mse_loss",
    summary="the mean of (x - target)^2",
    params=MseLossParams,
    inputs=(X, Input("target", Normal())),
    infer_shapes=value_shapes,
    reference=mse_loss,
    variants=value_variants,
    forms=({"fused": True},),
)
OPS = (CROSS_ENTROPY, MSE_LOSS)
