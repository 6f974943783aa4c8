"""Losses of values: l1_loss, mse_loss, smooth_l1_loss, huber_loss, binary_cross_entropy (with logits), kl_div are rows
of a table; cosine_similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Draw, LogUniform, Normal, Shape, Uniform
from parity.cases.exact.summation import total
from parity.cases.loss import KERAS_EPSILON, SEVERAL, Reduction, X, log_softmax, reductions, shifted_logits
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import scalar
from parity.cases.program import by_hand

LOG_FLOOR = -100.0
"""The smallest logarithm in torch.nn.functional.binary_cross_entropy, so that no loss is infinite."""
SLOPE_FLOOR = 1e-12
"""The smallest divisor x * (1 - x) in its gradient (`EPSILON` in aten/src/ATen/native/Loss.cpp)."""
NORMAL = Normal()
PROBABILITIES = LogUniform(0.02, 0.98)
LOG_PROBABILITIES = Uniform(-5.0, -0.05)
DIFFERENCES = "differences of several sizes"
EXTREME = "probabilities near 0 or 1"


@dataclass(frozen=True)
class LossParams:
    """The reduction of a loss: of no elements, to their mean, or to their sum."""

    reduction: Reduction = "mean"


@dataclass(frozen=True)
class SmoothL1Params(LossParams):
    """torch.nn.functional.smooth_l1_loss: differences below `beta` are squared."""

    beta: float = 1.0


@dataclass(frozen=True)
class HuberParams(LossParams):
    """torch.nn.functional.huber_loss: differences up to `delta` are squared."""

    delta: float = 1.0


@dataclass(frozen=True)
class KlDivParams:
    """torch.nn.functional.kl_div: `batchmean` divides by the first size; `log_target`: targets are logarithms."""

    reduction: Literal["none", "mean", "batchmean", "sum"] = "mean"
    log_target: bool = False


@dataclass(frozen=True)
class CosineSimilarityParams:
    """torch.nn.functional.cosine_similarity along `dim`; a norm counts as `eps` at least."""

    dim: int = 1
    eps: float = 1e-8


def require_positive(params: Any) -> None:
    """CaseError for a number that is not above 0."""
    for name, value in vars(params).items():
        if isinstance(value, float) and not value > 0:
            raise CaseError(f"params.{name}", f"{name} must be above 0, not {value:g}")


Formula = Callable[[Any, Any, Any], Any]
"""The losses of the elements, from x, target and `Given`."""


@dataclass(frozen=True)
class Given:
    """What a formula takes beside x and target: the op's params, and `pos_weight` if there is one."""

    params: Any
    pos_weight: Any = None


def l1(x: Any, target: Any, _given: Given) -> Any:
    """|x - target|."""
    return anp.abs(x - target)


def l1_slope(x: Any, target: Any, _given: Given) -> Any:
    """The sign of the difference."""
    return np.sign(x - target)


def square(x: Any, target: Any, _given: Given) -> Any:
    """(x - target)^2."""
    difference = x - target
    return difference * difference


def square_slope(x: Any, target: Any, _given: Given) -> Any:
    """2 (x - target)."""
    return 2.0 * (x - target)


def smooth_l1(x: Any, target: Any, given: Given, *, scaled: bool = False) -> Any:
    """d^2 / (2 beta) for |d| < beta, |d| - beta / 2 elsewhere (Girshick 2015, arXiv:1504.08083); `scaled` by beta."""
    size, beta = anp.abs(x - target), given.params.beta
    losses = anp.where(size < beta, size * size * 0.5 / beta, size - 0.5 * beta)
    return losses * beta if scaled else losses


def smooth_l1_slope(x: Any, target: Any, given: Given) -> Any:
    """d / beta, at most 1 in size."""
    difference, beta = x - target, given.params.beta
    return np.where(np.abs(difference) < beta, difference / beta, np.sign(difference))


def huber(x: Any, target: Any, given: Given, *, scaled: bool = True) -> Any:
    """d^2 / 2 for |d| <= delta, delta (|d| - delta / 2) elsewhere (Huber 1964); over delta unless `scaled`."""
    size, delta = anp.abs(x - target), given.params.delta
    losses = anp.where(size <= delta, size * size * 0.5, (size - 0.5 * delta) * delta)
    return losses if scaled else losses / delta


def huber_slope(x: Any, target: Any, given: Given) -> Any:
    """d, at most delta in size."""
    difference, delta = x - target, given.params.delta
    return np.where(np.abs(difference) <= delta, difference, np.sign(difference) * delta)


def pseudo_huber(x: Any, target: Any, given: Given) -> Any:
    """delta^2 (sqrt(1 + (d / delta)^2) - 1)."""
    delta = given.params.delta
    ratio = (x - target) / delta
    return (anp.sqrt(1 + ratio * ratio) - 1) * (delta * delta)


def chained_bce(x: Any, target: Any, _given: Given, *, floor: float = LOG_FLOOR) -> Any:
    """-target log(x) - (1 - target) log(1 - x), with logarithms of at least `floor`."""
    yes, no = anp.log(x), anp.log1p(-x)
    low = scalar(floor, x)
    return (target - 1) * anp.where(no < low, low, no) - target * anp.where(yes < low, low, yes)


def bce_backward(g: Any, _losses: Any, x: Any, target: Any, _given: Given) -> Any:
    """(x - target) / (x (1 - x)), as torch.nn.functional.binary_cross_entropy computes it."""
    product, low = (1 - x) * x, scalar(SLOPE_FLOOR, x)
    return g * (x - target) / np.where(product < low, low, product)


bce = by_hand(chained_bce, bce_backward)


def clipped_bce(x: Any, target: Any, given: Given) -> Any:
    """The loss of probabilities that are clipped as Keras does."""
    low = scalar(KERAS_EPSILON, x)
    return chained_bce(anp.where(x < low, low, anp.where(x > 1 - low, 1 - low, x)), target, given)


def shifted_bce(x: Any, target: Any, _given: Given) -> Any:
    """-target log(x + eps) - (1 - target) log(1 - x + eps)."""
    eps = scalar(KERAS_EPSILON, x)
    return (target - 1) * anp.log(1 - x + eps) - target * anp.log(x + eps)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + anp.exp(-x))


softplus = by_hand(
    lambda x: anp.where(x > 0, x, 0.0) + anp.log1p(anp.exp(-anp.abs(x))), lambda g, _y, x: g * sigmoid(x)
)
"""log(1 + exp(x))."""


def logit_weights(target: Any, given: Given) -> Any:
    """The weights of log(sigmoid(x)) beyond those of -x: 1 + (pos_weight - 1) target."""
    return 1 if given.pos_weight is None else (given.pos_weight - 1) * target + 1


def logit_bce(x: Any, target: Any, given: Given) -> Any:
    """-pos_weight target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x))."""
    return (1 - target) * x + logit_weights(target, given) * softplus(-x)


def logit_bce_slope(x: Any, target: Any, given: Given) -> Any:
    """(1 + (pos_weight - 1) target) sigmoid(x) - pos_weight target."""
    positive = target if given.pos_weight is None else target * given.pos_weight
    return logit_weights(target, given) * sigmoid(x) - positive


def unstable_bce(x: Any, target: Any, given: Given) -> Any:
    """The logarithms of sigmoid(x) and of 1 - sigmoid(x)."""
    p = sigmoid(x)
    positive = target if given.pos_weight is None else target * given.pos_weight
    return (target - 1) * anp.log(1 - p) - positive * anp.log(p)


def kl(x: Any, target: Any, given: Given, *, entropy: bool = True, log_target: bool | None = None) -> Any:
    """target (log(target) - x), 0 for a target of 0; without the `entropy` -target x."""
    if given.params.log_target if log_target is None else log_target:
        return anp.exp(target) * ((target if entropy else 0.0) - x)
    own = anp.where(target == 0, 0.0, target * anp.log(target))
    return (own if entropy else 0.0) - target * x


def kl_slope(_x: Any, target: Any, given: Given) -> Any:
    """-target."""
    return -np.exp(target) if given.params.log_target else -target


def kl_of_logits(x: Any, target: Any, given: Given) -> Any:
    """The loss of log_softmax(x) along the last axis."""
    logs = log_softmax(shifted_logits(anp.reshape(x, (-1, x.shape[-1]))))
    return kl(anp.reshape(logs, x.shape), target, given)


def clipped_kl(x: Any, target: Any, given: Given) -> Any:
    """The loss of targets that are clipped as Keras does."""
    p = np.exp(target) if given.params.log_target else target
    low = scalar(KERAS_EPSILON, x)
    p = np.where(p < low, low, p)
    return p * (np.log(p) - x)


@dataclass(frozen=True)
class Other:
    """A formula that a kernel may use instead: the diagnosis, and the input that shows it."""

    id: str
    formula: Formula
    shown_by: str
    unstable: bool = False


@dataclass(frozen=True)
class ValueLoss:
    """A loss of every element: its formula, the slope d loss / d x as kernels compute it (or the formula with gradients
    by the chain rule), and the formulas it is confused with."""

    summary: str
    formula: Formula
    slope: Formula | None = None
    chained: Formula | None = None
    params: type[Any] = LossParams
    x: Draw = NORMAL
    target: Draw = NORMAL
    others: Mapping[str, Other] = field(default_factory=dict)

    def forms(self) -> dict[str, Formula]:
        """The same loss with gradients computed in another way, by name."""
        slope = self.slope
        if slope is None:
            return {} if self.chained is None else {"chained": self.chained}
        return {"fused": by_hand(self.formula, lambda g, _y, x, target, given: slope(x, target, given) * g)}


def swapped(formula: Formula) -> Other:
    """The target for x, and x for the target."""
    return Other("operands-swapped", lambda x, target, given: formula(target, x, given), "any target")


HALF = Other("scaled", lambda x, target, given: square(x, target, given) * 0.5, "any target")
TABLE: Mapping[str, ValueLoss] = {
    "l1_loss": ValueLoss("the mean of |x - target|", l1, l1_slope),
    "mse_loss": ValueLoss("the mean of (x - target)^2", square, square_slope, others={"half": HALF}),
    "smooth_l1_loss": ValueLoss(
        "the mean of d^2 / (2 beta) where |d| < beta, else |d| - beta / 2; d = x - target",
        smooth_l1,
        smooth_l1_slope,
        params=SmoothL1Params,
        others={
            "huber": Other("huber-form", lambda x, t, given: smooth_l1(x, t, given, scaled=True), "beta other than 1")
        },
    ),
    "huber_loss": ValueLoss(
        "the mean of d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2); d = x - target",
        huber,
        huber_slope,
        params=HuberParams,
        others={
            "smooth-l1": Other(
                "huber-form", lambda x, t, given: huber(x, t, given, scaled=False), "delta other than 1"
            ),
            "pseudo": Other("huber-form", pseudo_huber, DIFFERENCES),
        },
    ),
    "binary_cross_entropy": ValueLoss(
        "the mean of -target log(x) - (1 - target) log(1 - x)",
        bce,
        chained=chained_bce,
        x=PROBABILITIES,
        target=PROBABILITIES,
        others={
            "swapped": swapped(chained_bce),
            "sigmoid": Other(
                "probability-form", lambda x, t, given: chained_bce(sigmoid(x), t, given), "any probabilities"
            ),
            "clipped": Other("log-floor", clipped_bce, EXTREME),
            "added": Other("log-floor", shifted_bce, EXTREME),
            "unclamped": Other(
                "log-floor", lambda x, t, given: chained_bce(x, t, given, floor=-np.inf), "probabilities of 0 or 1"
            ),
        },
    ),
    "binary_cross_entropy_with_logits": ValueLoss(
        "the mean of -pos_weight target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x))",
        logit_bce,
        logit_bce_slope,
        target=PROBABILITIES,
        others={
            "unstable": Other("log-of-probability", unstable_bce, "logits far from 0", unstable=True),
            "sigmoid": Other("probability-form", lambda x, t, given: logit_bce(sigmoid(x), t, given), "any logits"),
            "added": Other("log-floor", lambda x, t, given: shifted_bce(sigmoid(x), t, given), "logits far from 0"),
        },
    ),
    "kl_div": ValueLoss(
        "the mean of target (log(target) - x), for log-probabilities x",
        kl,
        kl_slope,
        params=KlDivParams,
        x=LOG_PROBABILITIES,
        target=PROBABILITIES,
        others={
            "swapped": Other(
                "operands-swapped", lambda x, t, _given: anp.exp(x) * (x - np.log(t)), "targets that are not exp(x)"
            ),
            "probabilities": Other(
                "probability-form", lambda x, t, given: kl(anp.log(anp.abs(x)), t, given), "log-probabilities x"
            ),
            "logits": Other("probability-form", kl_of_logits, "rows that are no log-probabilities"),
            "log_target": Other(
                "probability-form",
                lambda x, t, given: kl(x, t, given, log_target=not given.params.log_target),
                "any target",
            ),
            "cross-entropy": Other(
                "entropy-included", lambda x, t, given: kl(x, t, given, entropy=False), "targets between 0 and 1"
            ),
            "clipped": Other("log-floor", clipped_kl, "targets near 0"),
        },
    ),
}


def loss_variants(row: ValueLoss, params: Any, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Formulas that are confused with the loss, another divisor, targets paired with every x, no weights."""
    for key, other in row.others.items():
        yield Variant(other.id, {"form": key}, unstable=other.unstable, shown_by=other.shown_by)
    if prod(shapes["x"]) > 1:
        others = {"mean": SEVERAL, "sum": SEVERAL, "batchmean": SEVERAL}
        yield from reductions(params.reduction, others if len(shapes["x"]) < 3 else {**others, "rows": SEVERAL})
        if params.reduction != "none" and "pos_weight" not in shapes:
            yield Variant("broadcast-pairs", {"paired": True}, shown_by="targets that differ")
    if "pos_weight" in shapes:
        yield Variant("affine-missing", absent=("pos_weight",), shown_by="weights that are not 1")


def value_loss(name: str, row: ValueLoss) -> Op:
    """The op of a row."""
    forms = row.forms()
    formulas = {"": row.formula, **forms, **{key: other.formula for key, other in row.others.items()}}
    weighted = name == "binary_cross_entropy_with_logits"

    def reference(
        tensors: Mapping[str, Any], params: Any, *, reduction: str = "", form: str = "", paired: bool = False
    ) -> dict[str, Any]:
        x, target = tensors["x"], tensors["target"]
        if paired:
            target = np.reshape(target, (1, -1))
            x = anp.reshape(x, (-1, 1)) * np.ones_like(target)
        losses = formulas[form](x, target, Given(params, tensors.get("pos_weight")))
        how = reduction or params.reduction
        if how == "none":
            return {"y": losses}
        losses = anp.reshape(losses, (-1,))
        shape, n = tensors["x"].shape, losses.shape[0]
        divisors = {
            "mean": n,
            "sum": 1,
            "batchmean": shape[0] if shape else 1,
            "rows": max(n // (shape or (1,))[-1], 1),
        }
        return {"y": anp.reshape(total(losses, (0,)), ()) / divisors[how]}

    def infer(params: Any, given: Mapping[str, Shape]) -> TensorShapes:
        """x and target: any shape; y: a scalar, or as x."""
        require_positive(params)
        x = require_x(given, (), "")
        inputs = {"x": x, "target": require_shape(given, "target", x, f"x {list(x)}")}
        if weighted:
            inputs["pos_weight"] = require_shape(given, "pos_weight", x[-1:], f"x {list(x)}")
        return TensorShapes(inputs=inputs, outputs={"y": x if params.reduction == "none" else ()})

    pos_weight = Input("pos_weight", Uniform(0.5, 3.0), optional=True, opt_in=True)
    return Op(
        name=name,
        summary=row.summary,
        params=row.params,
        inputs=(Input("x", row.x, differentiable=True), Input("target", row.target), *([pos_weight] * weighted)),
        infer_shapes=infer,
        reference=reference,
        variants=partial(loss_variants, row),
        forms=tuple({"form": form} for form in forms),
    )


def norm(x: Any, dim: int, eps: Any) -> Any:
    """The 2-norm along `dim`, at least `eps`; its gradient is 0 below that."""
    squared = total(x * x, (dim,))
    small = squared < eps * eps
    return anp.where(small, eps, anp.sqrt(anp.where(small, 1.0, squared)))


def product_of_norms(x: Any, other: Any, dim: int, eps: Any) -> Any:
    """sqrt(max(sum x^2 sum other^2, eps^2)): PyTorch until 1.11, Paddle 3.3.1."""
    squared = total(x * x, (dim,)) * total(other * other, (dim,))
    small = squared < eps * eps
    return anp.where(small, eps, anp.sqrt(anp.where(small, 1.0, squared)))


def length(x: Any, dim: int) -> Any:
    """The 2-norm along `dim`."""
    return anp.sqrt(total(x * x, (dim,)))


def norm_with_slope(x: Any, dim: int, eps: Any) -> Any:
    """The 2-norm along `dim`, at least `eps`; its gradient is that of the norm all the same (PyTorch 2.13.0)."""
    size = length(x, dim)
    value = getval(size)
    return size - value + np.maximum(value, eps)


DENOMINATORS: Mapping[str, Callable[[Any, Any, int, Any], Any]] = {
    "": lambda x, other, dim, eps: norm(x, dim, eps) * norm(other, dim, eps),
    "in-values": lambda x, other, dim, eps: norm_with_slope(x, dim, eps) * norm_with_slope(other, dim, eps),
    "product": product_of_norms,
    "added": lambda x, other, dim, eps: length(x, dim) * length(other, dim) + eps,
    "added-to-each": lambda x, other, dim, eps: (length(x, dim) + eps) * (length(other, dim) + eps),
    "added-to-squares": lambda x, other, dim, eps: (
        anp.sqrt(total(x * x, (dim,)) + eps) * anp.sqrt(total(other * other, (dim,)) + eps)
    ),
}
"""The placement of eps: under each norm (for gradients too, or in values only), under their product, or added."""


def cosine_similarity(
    tensors: Mapping[str, Any],
    params: CosineSimilarityParams,
    *,
    placement: str = "",
    dim: int | None = None,
    detached: bool = False,
) -> dict[str, Any]:
    """sum(x * other) over the product of the norms along `dim`, which may be replaced.

    eps has one of the placements in `DENOMINATORS`; the norms get no gradient if they are `detached`.
    """
    x, other = tensors["x"], tensors["other"]
    axis = (params.dim if dim is None else dim) % x.ndim
    denominator = DENOMINATORS[placement](x, other, axis, params.eps)
    product = total(x * other, (axis,)) / (getval(denominator) if detached else denominator)
    return {"y": anp.reshape(product, tuple(n for i, n in enumerate(x.shape) if i != axis))}


def cosine_shapes(params: CosineSimilarityParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x and other: the same shape; y: that without `dim`."""
    require_positive(params)
    x = require_x(given, (), "")
    if not -len(x) <= params.dim < len(x):
        raise CaseError("params.dim", f"x {list(x)} has no axis {params.dim}")
    y = tuple(n for i, n in enumerate(x) if i != params.dim % len(x))
    return TensorShapes(inputs={"x": x, "other": require_shape(given, "other", x, f"x {list(x)}")}, outputs={"y": y})


def cosine_variants(params: CosineSimilarityParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another placement of eps, another axis, norms without gradients."""
    for placement in DENOMINATORS:
        if placement:
            yield Variant(
                "eps-placement", {"placement": placement}, shown_by="vectors that are not much longer than eps"
            )
    yield Variant("detached-statistics", {"detached": True}, shown_by="any vectors")
    shape = shapes["x"]
    for dim, n in enumerate(shape):
        # Another size would give y another shape.
        if dim != params.dim % len(shape) and n == shape[params.dim]:
            yield Variant("wrong-axis", {"dim": dim}, shown_by="any vectors")


COSINE_SIMILARITY = Op(
    name="cosine_similarity",
    summary="sum(x * other) over the product of their norms",
    params=CosineSimilarityParams,
    inputs=(X, Input("other", Normal(), differentiable=True)),
    infer_shapes=cosine_shapes,
    reference=cosine_similarity,
    variants=cosine_variants,
    fits=(Fit("eps-value", "eps", lambda p: p.eps, shown_by="vectors that are not much longer than eps"),),
)
OPS = (*(value_loss(name, row) for name, row in TABLE.items()), COSINE_SIMILARITY)
