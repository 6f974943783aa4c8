"""Losses of classes: cross_entropy, soft_cross_entropy, nll_loss; the classes are the last axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Probabilities, Shape, Uniform
from parity.cases.exact.summation import total
from parity.cases.op import (
    CaseError,
    Fit,
    IncompatibleError,
    Input,
    Op,
    TensorShapes,
    Variant,
    require_shape,
    require_x,
)
from parity.cases.primitives import entries, narrow, rows_of, scalar
from parity.cases.program import by_hand

Reduction = Literal["none", "mean", "sum"]
X = Input("x", Normal(), differentiable=True)
TARGET = Input("target", integers=True)
WEIGHT = Input("weight", Uniform(0.5, 2.0), optional=True, opt_in=True)
SEVERAL = "more than one target"
UNEQUAL_COUNTS = "sequences with different numbers of targets that count"
USUAL_SMOOTHING = 0.1
PADDLE_FLOOR = -64.0
"""`ValueClip` in paddle/phi/kernels/funcs/softmax_impl.h."""
KERAS_EPSILON = 1e-7
"""keras.config.epsilon(): Keras clips probabilities this far from 0 and 1."""


@dataclass(frozen=True)
class NllLossParams:
    """torch.nn.functional.nll_loss over the last axis; targets equal to `ignore_index` are ignored."""

    ignore_index: int = -100
    reduction: Reduction = "mean"


@dataclass(frozen=True)
class CrossEntropyParams(NllLossParams):
    """torch.nn.functional.cross_entropy over the last axis; targets equal to `ignore_index` are ignored.

    `label_smoothing` is the part of a target spread over all classes.
    """

    label_smoothing: float = 0.0


@dataclass(frozen=True)
class SoftCrossEntropyParams:
    """torch.nn.functional.cross_entropy over the last axis with probabilities as targets."""

    reduction: Reduction = "mean"
    label_smoothing: float = 0.0


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


def probabilities(shifted: Any) -> Any:
    """softmax(shifted)."""
    powers = anp.exp(shifted)
    return powers / total(powers, (1,))


def clipped_probabilities(shifted: Any) -> Any:
    """softmax(shifted), at least Keras's epsilon and at most 1 less that."""
    p, low = probabilities(shifted), scalar(KERAS_EPSILON, shifted)
    return anp.where(p < low, low, anp.where(p > 1 - low, 1 - low, p))


chained_log_softmax = by_hand(log_softmax, lambda g, y, _x: g - anp.exp(y) * total(g, (1,)))
LOG_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "": log_loss,
    "fused": fused_log_loss,
    "chained": lambda shifted, target: -entries(chained_log_softmax(shifted), target),
    "two-steps": lambda shifted, target: -anp.log(entries(probabilities(shifted), target)),
    "clipped": lambda shifted, target: -anp.log(entries(clipped_probabilities(shifted), target)),
    "twice": lambda shifted, target: log_loss(probabilities(shifted), target),
}
"""The reference, and forms with gradients as kernels compute them: in one step, or by log_softmax. Others take the
logarithm of a probability, of one that Keras clipped, or take probabilities for logits."""


def soft_loss(shifted: Any, target: Any) -> Any:
    """-sum(target * log softmax(shifted)), [rows, 1]."""
    return -total(target * log_softmax(shifted), (1,))


def soft_backward(g: Any, _losses: Any, shifted: Any, target: Any) -> Any:
    """(softmax * sum(target) - target) * g."""
    return (probabilities(shifted) * total(target, (1,)) - target) * g


def entropy(target: Any) -> Any:
    """-sum(target * log(target)), [rows, 1]; a target of 0 has none."""
    return -total(np.where(target == 0, 0.0, target * np.log(target)), (1,))


SOFT_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "": soft_loss,
    "fused": by_hand(soft_loss, soft_backward),
    "sum-is-one": by_hand(soft_loss, lambda g, _losses, shifted, target: (probabilities(shifted) - target) * g),
    "two-steps": lambda shifted, target: -total(target * anp.log(probabilities(shifted)), (1,)),
    "twice": lambda shifted, target: soft_loss(probabilities(shifted), target),
    "divergence": lambda shifted, target: soft_loss(shifted, target) - entropy(target),
}
"""The reference, its gradient as kernels compute it, and as those do that take the sum of a target for 1. Others take
the logarithm of a probability, take probabilities for logits, or subtract the entropy of the target."""


def flat(x: Any, n_rows: int) -> Any:
    """x as [rows, classes]."""
    return anp.reshape(x, (n_rows, -1))


def shifted_logits(logits: Any) -> Any:
    """The logits less the largest of their row."""
    return logits - getval(logits).max(axis=1, keepdims=True)


def class_losses(
    tensors: Mapping[str, Any], params: Any, losses: Any, reduction: str, weighed: Any = None
) -> dict[str, Any]:
    """The reduction of the `losses` [rows, 1] of the targets that are not ignored.

    A mean divides by their total weight; `reduction` replaces that of the params: `count` divides by their number,
    `all` by that of all targets, `entries` by that of all entries of x; `sequences` is the mean of the means along the
    first axis of the targets. `weighed` replaces their weights [rows].
    """
    x, target = tensors["x"], np.reshape(tensors["target"], (-1,))
    counted = target != params.ignore_index
    weights = weights_of(tensors, np.where(counted, target, 0)) if weighed is None else weighed
    kept = anp.where(np.reshape(counted, (-1, 1)), losses, 0.0)
    n_counted = np.sum(np.where(counted, weights, 0.0))
    how = reduction or params.reduction
    if how == "none":
        return {"y": anp.reshape(kept, tensors["target"].shape)}
    if how == "sequences":
        return {"y": mean_of_means(kept, np.where(counted, weights, 0.0), tensors["target"].shape[0])}
    n_rows, number = target.shape[0], np.sum(np.where(counted, scalar(1, x), 0.0))
    divisors = {"mean": n_counted, "count": number, "sum": 1, "all": n_rows, "entries": x.size}
    return {"y": total(kept, (0, 1)).reshape(()) / divisors[how]}


def mean_of_means(losses: Any, weights: Any, n: int) -> Any:
    """The mean of the means of `n` sequences of losses [rows, 1], each by the weights [rows] in it."""
    means = total(anp.reshape(losses, (n, -1)), (1,)) / total(np.reshape(weights, (n, -1)), (1,))
    return total(means, (0, 1)).reshape(()) / n


def weights_of(tensors: Mapping[str, Any], target: Any) -> Any:
    """The weight of every target [rows]; without weights, 1."""
    return rows_of(tensors["weight"], target) if "weight" in tensors else scalar(1, tensors["x"])


def smoothed_target(index: Any, part: Any, shifted: Any, dtype: str) -> Any:
    """The probabilities [rows, classes] of smoothed targets, `exact` or rounded to a dtype."""
    n_classes = shifted.shape[1]
    low = part / n_classes
    high = 1 - part + low
    if dtype != "exact":
        low, high = narrow(low, dtype), narrow(high, dtype)
    return np.where(np.arange(n_classes) == np.reshape(index, (-1, 1)), scalar(high, shifted), scalar(low, shifted))


def weighed_rows(
    tensors: Mapping[str, Any], params: Any, shifted: Any, probable: Any, reduction: str, dtype: str
) -> dict[str, Any]:
    """The loss of targets with the probabilities `probable`, each row weighed by the mean weight of its target; their
    sum is taken for 1 where they are rounded."""
    weighed = total(probable * np.reshape(tensors["weight"], (1, -1)), (1,))
    losses = SOFT_LOSSES["" if dtype == "exact" else "sum-is-one"](shifted, probable) * weighed
    return class_losses(tensors, params, losses, reduction, np.reshape(weighed, (-1,)))


def cross_entropy(
    tensors: Mapping[str, Any],
    params: CrossEntropyParams,
    *,
    reduction: str = "",
    backward: str = "",
    shift: bool = True,
    smoothing: float | None = None,
    others: bool = False,
    by_row: str = "",
    floor: float = 0.0,
) -> dict[str, Any]:
    """The mean of -log softmax(x)[target] over the targets that are not ignored; x [..., C], target [...].

    With a weight [C], a row is weighed by that of its target, and so is the mean. `reduction` as in `class_losses`.
    `backward` is one of `LOG_LOSSES`; without `shift` the maximum is not subtracted. `smoothing` replaces
    `label_smoothing`, the part of a target spread over all classes (Szegedy et al. 2016, arXiv:1512.00567, section 7),
    or over all `others`; its weights are those of the classes, or (`by_row`) a row has the mean weight of its smoothed
    target, which is `exact` or in a dtype. Shifted logits are clipped at `floor` if that is below 0.
    """
    x, target = tensors["x"], np.reshape(tensors["target"], (-1,))
    index = np.where(target != params.ignore_index, target, 0)
    logits = flat(x, target.shape[0])
    shifted = shifted_logits(logits) if shift else logits
    if floor:
        shifted = anp.where(shifted < floor, scalar(floor, x), shifted)
    losses = LOG_LOSSES[backward](shifted, index)
    part = params.label_smoothing if smoothing is None else smoothing
    weighted = "weight" in tensors
    weights = np.reshape(weights_of(tensors, index), (-1, 1)) if weighted else None
    if not part:
        return class_losses(tensors, params, losses * weights if weighted else losses, reduction)
    logs, n_classes = log_softmax(shifted), shifted.shape[1]
    if others:
        part = part * n_classes / (n_classes - 1)
    if by_row and not weighted:
        raise IncompatibleError("without weights, a row has none")
    if by_row:
        return weighed_rows(tensors, params, shifted, smoothed_target(index, part, shifted, by_row), reduction, by_row)
    if weighted:
        losses, logs = losses * weights, logs * np.reshape(tensors["weight"], (1, -1))
    spread = -total(logs, (1,)) / n_classes
    return class_losses(tensors, params, (1 - part) * losses + part * spread, reduction)


def nll_loss(
    tensors: Mapping[str, Any], params: NllLossParams, *, reduction: str = "", taken_for: str = ""
) -> dict[str, Any]:
    """The mean of -x[target] over the targets that are not ignored; log-probabilities x [..., C], target [...].

    With a weight [C], a row is weighed by that of its target, and so is the mean. `reduction` as in `class_losses`;
    x may be `taken_for` logits, or for the logarithms' probabilities.
    """
    target = np.reshape(tensors["target"], (-1,))
    index = np.where(target != params.ignore_index, target, 0)
    x = flat(tensors["x"], target.shape[0])
    if taken_for:
        x = log_softmax(shifted_logits(x)) if taken_for == "logits" else anp.exp(x)
    losses = -entries(x, index)
    if "weight" in tensors:
        losses = losses * np.reshape(weights_of(tensors, index), (-1, 1))
    return class_losses(tensors, params, losses, reduction)


def soft_cross_entropy(
    tensors: Mapping[str, Any],
    params: SoftCrossEntropyParams,
    *,
    reduction: str = "",
    backward: str = "",
    smoothing: float | None = None,
) -> dict[str, Any]:
    """The mean over rows of -sum(target * log softmax(x)); x and probabilities target [..., C].

    `reduction` replaces that of the params: `entries` divides by their number. `backward` is one of `SOFT_LOSSES`.
    `smoothing` replaces `label_smoothing`, as in `cross_entropy`.
    """
    x, n_classes = tensors["x"], tensors["x"].shape[-1]
    n_rows, how = x.size // n_classes, reduction or params.reduction
    target, part = flat(tensors["target"], n_rows), params.label_smoothing if smoothing is None else smoothing
    if part:
        target = target * (1 - part) + scalar(1, x) * part / n_classes
    losses = SOFT_LOSSES[backward](shifted_logits(flat(x, n_rows)), target)
    if how == "none":
        return {"y": anp.reshape(losses, x.shape[:-1])}
    return {"y": total(losses, (0, 1)).reshape(()) / {"mean": n_rows, "sum": 1, "entries": x.size}[how]}


def class_x(params: Any, given: Mapping[str, Shape]) -> Shape:
    """The shape (*, C) of x; CaseError too for a smoothing that is no part of 1."""
    part = getattr(params, "label_smoothing", 0.0)
    if not 0.0 <= part <= 1.0:
        raise CaseError("params.label_smoothing", f"{part:g} is no part of 1")
    x = require_x(given, (), "")
    if len(x) < 2:
        raise CaseError("inputs.x", f"shape {list(x)} has {len(x)} axes; (*, classes) needs at least two")
    return x


def class_shapes(params: NllLossParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, C); target: integers of shape (*); weight: (C,); y: a scalar, or as target."""
    x = class_x(params, given)
    target = require_shape(given, "target", x[:-1], f"x {list(x)}")
    inputs = {"x": x, "target": target, "weight": require_shape(given, "weight", x[-1:], f"x {list(x)}")}
    y = target if params.reduction == "none" else ()
    return TensorShapes(inputs=inputs, outputs={"y": y}, integers={"target": (0, x[-1])})


def soft_shapes(params: SoftCrossEntropyParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x and target: (*, C); y: a scalar, or (*)."""
    x = class_x(params, given)
    y = x[:-1] if params.reduction == "none" else ()
    return TensorShapes(inputs={"x": x, "target": require_shape(given, "target", x, f"x {list(x)}")}, outputs={"y": y})


def reductions(reduction: str, shown_by: Mapping[str, str]) -> Iterator[Variant]:
    """Other reductions than that of the params."""
    if reduction != "none":
        for other, shown in shown_by.items():
            if other != reduction:
                yield Variant("mean-vs-sum", {"reduction": other}, shown_by=shown)


def target_variants(params: NllLossParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Another divisor, no weights."""
    if prod(shapes["target"]) > 1:
        weighted = {"count": "weights that differ"} if "weight" in shapes else {}
        ignored = {"all": "targets that are ignored"}
        by_sequence = {"sequences": UNEQUAL_COUNTS} if len(shapes["target"]) > 1 else {}
        others = {"mean": SEVERAL, "sum": SEVERAL, **ignored, **by_sequence, **weighted}
        yield from reductions(params.reduction, others)
    if "weight" in shapes:
        yield Variant("affine-missing", absent=("weight",), shown_by="weights that differ")


def cross_entropy_variants(params: CrossEntropyParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor, other probabilities, another smoothing, logits clipped, no maximum subtracted."""
    yield from target_variants(params, shapes)
    yield from probability_variants()
    yield Variant("log-floor", {"backward": "clipped"}, shown_by="logits that are far apart")
    yield Variant("logits-clipped", {"floor": PADDLE_FLOOR}, shown_by="logits more than 64 below the largest")
    yield Variant("softmax-unshifted", {"shift": False}, unstable=True, shown_by="logits so large that exp overflows")
    if params.label_smoothing:
        yield Variant("label-smoothing", {"smoothing": 0.0}, shown_by=UNEQUAL)
        yield Variant("label-smoothing", {"others": True}, shown_by=UNEQUAL)
        if "weight" in shapes:
            for dtype in ("exact", "float32"):
                yield Variant("label-smoothing", {"by_row": dtype}, shown_by="weights that differ")


UNEQUAL = "logits that are not equal"


def probability_variants() -> Iterator[Variant]:
    """A softmax in front of the loss, or the logarithm of its result."""
    yield Variant("probability-form", {"backward": "twice"}, shown_by=UNEQUAL)
    far = "a target whose probability is tiny"
    yield Variant("log-of-probability", {"backward": "two-steps"}, unstable=True, shown_by=far)


def nll_variants(params: NllLossParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor, logits or probabilities for their logarithms."""
    yield from target_variants(params, shapes)
    for other in ("logits", "probabilities"):
        yield Variant("probability-form", {"taken_for": other}, shown_by="rows that are no log-probabilities")


def soft_variants(params: SoftCrossEntropyParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another divisor, other probabilities, targets whose sum is taken for 1."""
    yield from reductions(params.reduction, {"mean": SEVERAL, "sum": SEVERAL, "entries": "any target"})
    yield from probability_variants()
    yield Variant("probability-form", {"backward": "sum-is-one"}, shown_by="targets whose sum is not 1")
    if not params.label_smoothing:
        yield Variant("entropy-included", {"backward": "divergence"}, shown_by="targets between 0 and 1")
    else:
        yield Variant("label-smoothing", {"smoothing": 0.0}, shown_by=UNEQUAL)


SMOOTHING = Fit("label-smoothing", "smoothing", lambda _: USUAL_SMOOTHING, shown_by=UNEQUAL)
CROSS_ENTROPY = Op(
    name="cross_entropy",
    summary="the mean of -log softmax(x)[target]",
    params=CrossEntropyParams,
    inputs=(X, TARGET, WEIGHT),
    infer_shapes=class_shapes,
    reference=cross_entropy,
    variants=cross_entropy_variants,
    forms=({"backward": "fused"}, {"backward": "chained"}),
    fits=(SMOOTHING,),
)
SOFT_CROSS_ENTROPY = Op(
    name="soft_cross_entropy",
    summary="the mean of -sum(target * log softmax(x))",
    params=SoftCrossEntropyParams,
    inputs=(X, Input("target", Probabilities())),
    infer_shapes=soft_shapes,
    reference=soft_cross_entropy,
    variants=soft_variants,
    forms=({"backward": "fused"},),
    fits=(SMOOTHING,),
)
NLL_LOSS = Op(
    name="nll_loss",
    summary="the mean of -x[target]",
    params=NllLossParams,
    inputs=(Input("x", Uniform(-5.0, -0.05), differentiable=True), TARGET, WEIGHT),
    infer_shapes=class_shapes,
    reference=nll_loss,
    variants=nll_variants,
)
OPS = (CROSS_ENTROPY, SOFT_CROSS_ENTROPY, NLL_LOSS)
