"""The normalisations: layer_norm, group_norm, instance_norm, batch_norm.

They differ in the axes that they normalise over, a `Grouping`; statistics, normalising and the affine step are shared.
A keyword argument is a convention: its default is PyTorch's documented one, other values are variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.draw import Constant, Shape, Uniform
from parity.cases.exact.summation import total
from parity.cases.op import (
    CaseError,
    Fit,
    Implied,
    IncompatibleError,
    Input,
    Op,
    Statistics,
    TensorShapes,
    Variant,
    affine_remarks,
    require_shape,
    require_x,
)
from parity.cases.oracle import evaluate
from parity.cases.primitives import scalar
from parity.cases.program import by_hand, primitive

Axes = tuple[int, ...]
Array = NDArray[Any]

WEIGHT = Input("weight", Uniform(0.5, 1.5), differentiable=True, optional=True, start=Constant(1.0))
BIAS = Input("bias", Uniform(-1.0, 1.0), differentiable=True, optional=True, start=Constant(0.0))
X = Input("x", differentiable=True)


@dataclass(frozen=True)
class Grouping:
    """What is normalised over: `axes` of x reshaped to `shape`; weight and bias are reshaped to `affine`."""

    shape: Shape
    axes: Axes
    affine: Shape


def statistics(
    x: Any,
    axes: Axes,
    *,
    variance: str = "two-pass",
    ddof: int = 0,
    variance_sum: bool = False,
    errors: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Mean and variance over `axes`, kept as axes of length 1.

    `variance`: `two-pass` is mean((x - m)^2), `naive` is mean(x^2) - m^2 (Chan, Golub, LeVeque 1983), `naive-clamped`
    the same and at least 0, `welford` adds the rounding errors of Welford's updates to both moments. The variance is
    divided by n - `ddof`, or with `variance_sum` not at all. `errors` are added to mean and variance.
    """
    n = count(x.shape, axes)
    mean = total(x, axes) / n
    if variance in ("two-pass", "welford"):
        var = total(anp.square(x - mean), axes) / n
    elif variance in ("naive", "naive-clamped"):
        var = total(x * x, axes) / n - mean * mean
        var = anp.where(var < 0, 0.0, var) if variance == "naive-clamped" else var
    else:
        raise ValueError(f"unknown variance algorithm {variance!r}")
    if variance == "welford":
        moments = welford(getval(x), axes)
        mean, var = mean + (moments[0] - getval(mean)), var + (moments[1] - getval(var))
    if variance_sum or ddof:
        var = var * (n if variance_sum else unbiasing(n, ddof, x))
    if errors is None:
        return mean, var
    if any(np.shape(error) not in ((), mean.shape) for error in errors):
        raise IncompatibleError("the errors belong to the statistics of other groups")
    return mean + errors[0], var + errors[1]


@primitive
def welford(x: Array, axes: Axes) -> Array:
    """Mean and variance, stacked, by Welford's updates (1962), in the dtype of `x`.

    Of more elements than MAX_UPDATES, that many, evenly spaced, are updated. Their errors grow as a random walk, with
    the root of n, so they are scaled and added to the moments of all elements.
    """
    n = count(x.shape, axes)
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(n, -1)
    updated = rows[:: -(-n // MAX_UPDATES)]
    mean, squares = updated[0].copy(), np.zeros_like(updated[0])
    for k, row in enumerate(updated[1:], start=2):
        delta = row - mean
        mean += delta / x.dtype.type(k)
        squares += delta * (row - mean)
    var = squares / x.dtype.type(len(updated))
    if len(updated) < n:
        wide = updated.astype(np.longdouble)
        growth = (n / len(updated)) ** 0.5
        mean_error, var_error = mean - wide.mean(axis=0), var - wide.var(axis=0)
        mean, var = rows.mean(axis=0) + mean_error * growth, rows.var(axis=0) + var_error * growth
    kept = [1 if axis in axes else length for axis, length in enumerate(x.shape)]
    return np.stack([mean.astype(x.dtype).reshape(kept), var.astype(x.dtype).reshape(kept)])


MAX_UPDATES = 2048


def unbiasing(n: int, ddof: int, like: Any) -> Any:
    """n / (n - ddof) in the dtype of `like`; nan for n == ddof, where the unbiased variance does not exist."""
    return scalar(n, like) / (n - ddof or np.nan)


def count(shape: Shape, axes: Axes) -> int:
    """The number of elements in one mean over `axes`."""
    n = 1
    for axis in axes:
        n *= shape[axis]
    return n


STATISTICS_OPTIONS = frozenset(("variance", "ddof", "variance_sum", "errors"))


def normalize(
    x: Any, axes: Axes, eps: Any, weight: Any, bias: Any, *, detached: str = "", backward: str = "", **options: Any
) -> Any:
    """`x` normalised over `axes`, then weight and bias; the other options are those of `statistics` and `apply`.

    `detached`: `mean`, `variance` or `both` get no gradient. `backward`: the gradient is one of `BY_HAND`.
    """
    if backward:
        return affine(BY_HAND[backward](x, axes, eps), weight, bias)
    own = {name: options.pop(name) for name in STATISTICS_OPTIONS & options.keys()}
    return apply(x, detach(statistics(x, axes, **own), detached), eps, weight, bias, **options)


def apply(
    x: Any,
    moments: tuple[Any, Any],
    eps: Any,
    weight: Any,
    bias: Any,
    *,
    eps_placement: str = "inside",
    centered: bool = True,
    root_mean_square: bool = False,
    folded: bool = False,
    affine_order: str = "weight-first",
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias.

    `eps_placement="outside"` divides by sqrt(var) + eps; `centered=False` does not subtract the mean, with
    `root_mean_square` neither does the variance (Zhang, Sennrich 2019); `folded` is x * scale + (bias - mean * scale);
    `affine_order="bias-first"` is (xhat + bias) * weight.
    """
    mean, var = moments
    if root_mean_square:
        mean, var = 0 * getval(mean), var + mean * mean
    deviation = anp.sqrt(var + eps) if eps_placement == "inside" else anp.sqrt(var) + eps
    if folded:
        if not centered:
            raise IncompatibleError("the folded form always subtracts the mean")
        scale = 1 / deviation if weight is None else weight / deviation
        return x * scale + (-mean * scale if bias is None else bias - mean * scale)
    xhat = (x - mean if centered else x) / deviation
    if affine_order == "bias-first" and bias is not None:
        xhat, bias = xhat + bias, None
    return affine(xhat, weight, bias)


def affine(xhat: Any, weight: Any, bias: Any) -> Any:
    """xhat * weight + bias, of which both may be None."""
    scaled = xhat if weight is None else xhat * weight
    return scaled if bias is None else scaled + bias


def forward(x: Any, axes: Axes, eps: Any) -> Any:
    """(x - mean) / sqrt(var + eps)."""
    mean, var = statistics(x, axes)
    return (x - mean) / anp.sqrt(var + eps)


def fused_backward(g: Any, xhat: Any, x: Any, axes: Axes, eps: Any) -> Any:
    """rstd * (g - mean(g) - xhat * mean(g * xhat)), as kernels compute it."""
    n = count(x.shape, axes)
    _, var = statistics(x, axes)
    rstd = 1 / anp.sqrt(var + eps)
    mean_g, mean_gx = total(g, axes) / n, total(g * xhat, axes) / n
    return rstd * (g - mean_g - xhat * mean_gx)


def textbook_backward(g: Any, _xhat: Any, x: Any, axes: Axes, eps: Any) -> Any:
    """By the gradients of variance and mean (Ioffe, Szegedy 2015, section 3)."""
    n = count(x.shape, axes)
    mean, var = statistics(x, axes)
    centered, std = x - mean, anp.sqrt(var + eps)
    grad_var = total(g * centered, axes) * -0.5 / (std * std * std)
    grad_mean = total(-g / std, axes) + grad_var * total(-2.0 * centered, axes) / n
    return g / std + 2.0 * grad_var * centered / n + grad_mean / n


BY_HAND = {"fused": by_hand(forward, fused_backward), "textbook": by_hand(forward, textbook_backward)}
"""(x - mean) / sqrt(var + eps) with hand-written gradients."""


def stored(x: Any, mean: Any, var: Any, _axes: Axes, eps: Any) -> Any:
    """`forward` with stored statistics."""
    return (x - mean) / anp.sqrt(var + eps)


def stored_backward(g: Any, xhat: Any, x: Any, _mean: Any, var: Any, axes: Axes, eps: Any) -> Any:
    """`fused_backward` with stored statistics; since they do not depend on x, its means are wrong there."""
    n = count(x.shape, axes)
    return 1 / anp.sqrt(var + eps) * (g - total(g, axes) / n - xhat * total(g * xhat, axes) / n)


as_in_training = by_hand(stored, stored_backward)


def detach(pair: tuple[Any, Any], which: str) -> tuple[Any, Any]:
    """Mean and variance; the gradient treats `mean`, `variance` or `both` as constants."""
    mean, var = pair
    return getval(mean) if which in ("mean", "both") else mean, getval(var) if which in ("variance", "both") else var


# The axes of each op.


def last_axes(rank: int, n: int) -> Axes:
    """The last `n` of `rank` axes."""
    return tuple(range(rank - n, rank))


def layer_grouping(params: Any, shape: Shape, *, axes: Axes | None = None) -> Grouping:
    """The last axes, those of weight and bias."""
    return Grouping(shape, axes or last_axes(len(shape), len(params.axis_lengths)), params.axis_lengths)


def channel_grouping(over: Callable[[int], Axes]) -> Callable[..., Grouping]:
    """Axes by the rank; weight and bias are per channel."""

    def grouping(_params: Any, shape: Shape, *, axes: Axes | None = None) -> Grouping:
        return Grouping(shape, axes or over(len(shape)), (1, -1) + (1,) * (len(shape) - 2))

    return grouping


def batch_axes(rank: int) -> Axes:
    """All but the channels'."""
    return (0, *range(2, rank))


def spatial_axes(rank: int) -> Axes:
    """Those behind the channels'."""
    return tuple(range(2, rank))


batch_grouping, instance_grouping = channel_grouping(batch_axes), channel_grouping(spatial_axes)


def group_grouping(
    params: Any, shape: Shape, *, groups: int | None = None, interleaved: bool = False, across_batch: bool = False
) -> Grouping:
    """Groups of neighbouring channels.

    `groups` replaces the number of groups, `interleaved` puts channel c into group c % groups, `across_batch` takes
    the statistics over the batch too.
    """
    n, channels = shape[:2]
    k = groups or params.num_groups
    axes: Axes = (1, 3) if interleaved else (2, 3)
    seen = (n, channels // k, k, -1) if interleaved else (n, k, channels // k, -1)
    return Grouping(seen, (0, *axes) if across_batch else axes, (1, -1, k, 1) if interleaved else (1, k, -1, 1))


GROUPING_OPTIONS = frozenset(("axes", "groups", "interleaved", "across_batch"))


def seen(tensors: Mapping[str, Any], grouping: Grouping, name: str) -> Any:
    """x, weight or bias in the shape of the grouping; None if the tensor is absent."""
    values = tensors.get(name)
    if values is None:
        return None
    shape = grouping.shape if name == "x" else grouping.affine
    return values if values.shape == shape else anp.reshape(values, shape)


def reference(
    tensors: Mapping[str, Any], params: Any, *, grouping: Callable[..., Grouping], **options: Any
) -> dict[str, Any]:
    """x normalised over the axes of the grouping; the options are those of the grouping and of `normalize`."""
    x = tensors["x"]
    own = {name: options.pop(name) for name in GROUPING_OPTIONS & options.keys()}
    groups = grouping(params, x.shape, **own)
    weight, bias = (seen(tensors, groups, name) for name in ("weight", "bias"))
    y = normalize(seen(tensors, groups, "x"), groups.axes, params.eps, weight, bias, **options)
    return {"y": y if y.shape == x.shape else anp.reshape(y, x.shape)}


def batch_reference(
    tensors: Mapping[str, Any],
    params: BatchNormParams,
    *,
    running_ddof: int = 1,
    momentum_complement: bool = False,
    axes: Axes | None = None,
    batch_statistics: bool | None = None,
    gradient_of_training: bool = False,
    detached: str = "",
    backward: str = "",
    **options: Any,
) -> dict[str, Any]:
    """batch_norm; `running_ddof` and `momentum_complement` are the conventions of the running statistics.

    `axes` replaces the axes of y's statistics, `batch_statistics` chooses the statistics (by default the batch's in
    training), `gradient_of_training` differentiates stored statistics as if they were the batch's. The other options
    are those of `statistics`, `apply` and `normalize`.
    """
    x = tensors["x"]
    groups = batch_grouping(params, x.shape)
    own = {name: options.pop(name) for name in STATISTICS_OPTIONS & options.keys()}
    running = tensors["running_mean"], tensors["running_var"]
    moments = (anp.reshape(running[0], groups.affine), anp.reshape(running[1], groups.affine))
    if params.training or batch_statistics:
        mean, var = statistics(x, groups.axes, **own)
    if params.training:
        unbiased = var * unbiasing(count(x.shape, groups.axes), running_ddof, x)
        share = scalar(1 - params.momentum if momentum_complement else params.momentum, x)
        batch = anp.reshape(getval(mean), (-1,)), anp.reshape(getval(unbiased), (-1,))
        running = (1 - share) * running[0] + share * batch[0], (1 - share) * running[1] + share * batch[1]
    if params.training if batch_statistics is None else batch_statistics:
        moments = detach(statistics(x, axes, **own) if axes else (mean, var), detached)
    weight, bias = (seen(tensors, groups, name) for name in ("weight", "bias"))
    if backward and params.training:
        y = affine(BY_HAND[backward](x, groups.axes, params.eps), weight, bias)
    elif gradient_of_training and not params.training:
        y = affine(as_in_training(x, *detach(moments, "both"), groups.axes, params.eps), weight, bias)
    else:
        y = apply(x, moments, params.eps, weight, bias, **options)
    return {"y": y, "running_mean": running[0], "running_var": running[1]}


# The statistics that an output implies.


def implied(tensors: Mapping[str, Any], params: Any, y: Any, *, grouping: Callable[..., Grouping]) -> Implied | None:
    """The mean and variance with which a kernel returns `y`, by least squares in each group.

    y - bias = weight * ((x - mean) * scale + shift): scale is 1 / sqrt(variance + eps) as the kernel had it, and -shift
    / scale the error of its mean. None if a group has no spread, or if they are not those of the batch.
    """
    if not getattr(params, "training", True):
        return None
    groups = grouping(params, y.shape)
    x, weight, bias = (seen(tensors, groups, name) for name in ("x", "weight", "bias"))
    axes = groups.axes
    mean, variance = statistics(x, axes)
    gain = np.broadcast_to(np.asarray(1 if weight is None else weight, x.dtype), x.shape)
    deviation, rest = (x - mean) * gain, y.reshape(x.shape) - (0 if bias is None else bias)
    a, b, c = (np.sum(v, axes, keepdims=True) for v in (deviation * deviation, deviation * gain, gain * gain))
    d, e = (np.sum(v, axes, keepdims=True) for v in (deviation * rest, gain * rest))
    determinant = a * c - b * b
    if not np.all(determinant > 0):
        return None
    scale, shift = (c * d - b * e) / determinant, (a * e - b * d) / determinant
    if not np.all(scale > 0):
        return None
    return Implied(count(x.shape, axes), mean, variance, -shift / scale, 1 / (scale * scale) - (variance + params.eps))


def gradient_scale(op: Op, params: Any, tensors: Mapping[str, Array], gradients: bool) -> dict[str, Array]:
    """The size of the terms that cancel in each tensor; for grad.x, times x's mean over its spread."""
    positive = {name: values if name == "x" else np.abs(values) for name, values in tensors.items()}
    terms = evaluate(op, params, positive, dtype=np.float64, gradients=gradients, **op.terms)
    bare = {name: values for name, values in tensors.items() if name not in ("weight", "bias")}
    normalized = evaluate(op, params, bare, dtype=np.float64, gradients=False, **op.terms)["y"]
    normalized = normalized[np.isfinite(normalized)]
    condition = float(np.sqrt(np.mean(np.square(normalized)))) if normalized.size else 0.0
    return {name: values * (1.0 + condition) if name == "grad.x" else values for name, values in terms.items()}


# Blind spots.

FAINT_EPS = 1e-3


def remarks(op: Op, params: Any, tensors: Mapping[str, Array]) -> Iterator[str]:
    """Weights and biases that hide faults, and an eps far below every variance."""
    yield from affine_remarks(tensors)
    bare = {name: values for name, values in tensors.items() if name not in ("weight", "bias")}
    if params.eps and eps_is_faint(op, params, bare):
        yield f"eps is below {FAINT_EPS:g} of every variance: errors in its placement or value hardly show"


def eps_is_faint(op: Op, params: Any, tensors: Mapping[str, Array]) -> bool:
    """Whether eps is small beside every variance: (y0 / y)^2 is 1 + eps / variance for the y0 without eps."""
    y = evaluate(op, params, tensors, gradients=False)["y"]
    y0 = evaluate(op, replace(params, eps=0.0), tensors, gradients=False)["y"]
    usable = np.isfinite(y0) & (y != 0)
    share = (y0[usable] / y[usable]) ** 2 - 1
    return bool(share.size) and bool(np.max(share) < FAINT_EPS)


# Variants.

EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-2)
"""What frameworks and models use: BERT 1e-12, Flax 1e-6, PyTorch 1e-5, Keras 1e-3."""
UPSTREAM = "a grad_output that is not constant"
OFFSET = (
    "an offset of x that is large beside its spread, up to where its square times the unit roundoff is its variance"
)
SPREAD = "several rows of different variance, some of it not far above eps"


def norm_variants(params: Any, shapes: Mapping[str, Shape], others: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants of all normalisations, and `others`, which normalise over other axes."""
    epsilons = [value for value in (*EPSILONS, 2 * params.eps) if value != params.eps]
    affine_inputs = [name for name in ("weight", "bias") if name in shapes]
    return (
        Variant("variance-ddof", {"ddof": 1}, shown_by="few elements in a mean: n - 1 is then far from n"),
        Variant("mean-vs-sum", {"variance_sum": True}, shown_by="more than one element in a mean"),
        Variant("eps-placement", {"eps_placement": "outside"}, shown_by=SPREAD),
        *(Variant("eps-value", params={"eps": value}, shown_by=SPREAD) for value in dict.fromkeys(epsilons)),
        Variant(
            "affine-order", {"affine_order": "bias-first"}, shown_by="a weight that is not 1 and a bias that is not 0"
        ),
        *(Variant("affine-missing", absent=(name,), shown_by="a weight not 1, a bias not 0") for name in affine_inputs),
        *(
            Variant("detached-statistics", {"detached": which}, shown_by=UPSTREAM)
            for which in ("both", "mean", "variance")
        ),
        Variant("mean-not-subtracted", {"centered": False}, shown_by="a mean that is not 0"),
        Variant("mean-not-subtracted", {"root_mean_square": True}, shown_by="a mean that is not 0"),
        *others,
        Variant("variance-naive", {"variance": "naive"}, unstable=True, shown_by=OFFSET),
        Variant("variance-naive", {"variance": "naive-clamped"}, unstable=True, shown_by=OFFSET),
        Variant("affine-folding", {"folded": True}, unstable=True, shown_by=OFFSET),
    )


def other_axes(candidates: Sequence[Axes], right: Axes) -> list[Variant]:
    """The variants that normalise over one of `candidates`."""
    others = [axes for axes in dict.fromkeys(candidates) if axes and axes != right]
    return [Variant("wrong-axis", {"axes": axes}, shown_by="axes of different lengths") for axes in others]


def layer_variants(params: LayerNormParams, shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """layer_norm over other axes."""
    rank = len(shapes["x"])
    right = last_axes(rank, len(params.axis_lengths))
    candidates = [tuple(range(rank)), *((axis,) for axis in range(rank)), *(last_axes(rank, k) for k in range(1, rank))]
    return norm_variants(params, shapes, other_axes([*candidates, tuple(range(rank - len(right)))], right))


def channel_variants(params: Any, shapes: Mapping[str, Shape], right: Callable[[int], Axes]) -> tuple[Variant, ...]:
    """A normalisation of (N, C, *spatial) over other axes."""
    rank = len(shapes["x"])
    spatial = spatial_axes(rank)
    candidates = [(0, *spatial), (1, *spatial), spatial, (0,), (1,), (rank - 1,), tuple(range(rank))]
    return norm_variants(params, shapes, other_axes(candidates, right(rank)))


def group_variants(params: GroupNormParams, shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """group_norm with other groups."""
    channels = shapes["x"][1]
    counts = {1, channels, channels // params.num_groups} - {params.num_groups}
    others = [
        *(Variant("wrong-axis", {"groups": n}, shown_by="groups of several channels") for n in sorted(counts)),
        Variant("wrong-axis", {"interleaved": True}, shown_by="several groups of several channels"),
        Variant("wrong-axis", {"across_batch": True}, shown_by="several samples"),
    ]
    shared = norm_variants(params, shapes, ())
    return (*shared, *others)


def batch_variants(params: BatchNormParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """batch_norm over other axes, with other statistics, or other conventions of the running ones."""
    yield from channel_variants(params, shapes, batch_axes)
    yield Variant(
        "statistics-source",
        {"batch_statistics": not params.training},
        shown_by="running statistics other than the batch's",
    )
    if not params.training:
        constant = "a grad_output that is not constant"
        yield Variant("statistics-source", {"gradient_of_training": True}, shown_by=constant)
    if params.training:
        yield Variant(
            "running-var-ddof", {"running_ddof": 0}, shown_by="few elements in a mean: n - 1 is then far from n"
        )
        yield Variant("momentum-complement", {"momentum_complement": True}, shown_by="a momentum that is not 0.5")


# The ops.


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
        """`normalized_shape` as a tuple."""
        return (self.normalized_shape,) if isinstance(self.normalized_shape, int) else self.normalized_shape


@dataclass(frozen=True)
class GroupNormParams:
    """`num_groups` divides the channels; `eps` is added to the variance."""

    num_groups: int
    eps: float = 1e-5


@dataclass(frozen=True)
class InstanceNormParams:
    """`eps` is added to the variance."""

    eps: float = 1e-5


@dataclass(frozen=True)
class BatchNormParams:
    """`training` normalises with the batch's statistics and updates the running ones; else the running ones are used.

    `momentum` is PyTorch's: the weight of the new statistic in running = (1 - momentum) * running + momentum * batch.
    """

    training: bool = True
    momentum: float = 0.1
    eps: float = 1e-5


def require_positive(eps: float) -> None:
    """Reject an eps that is negative or not finite."""
    if not (0.0 <= eps < float("inf")):
        raise CaseError("params.eps", f"eps must be a finite number of at least 0, not {eps}")


def channel_shapes(x: Shape, given: Mapping[str, Shape], *names: str) -> dict[str, Shape]:
    """The shapes of the per-channel tensors `names`: (C,) each, checked against what the config states."""
    return {name: require_shape(given, name, (x[1],), f"x with {x[1]} channels") for name in names}


def layer_shapes(params: LayerNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, *normalized_shape); weight, bias: normalized_shape; y: as x."""
    require_positive(params.eps)
    x = require_x(given, (), "layer_norm")
    normalized = params.axis_lengths
    if not normalized or x[-len(normalized) :] != normalized:
        message = f"{list(normalized)} must be the last axes of x, whose shape is {list(x)}"
        raise CaseError("params.normalized_shape", message)
    why = f"normalized_shape {list(normalized)}"
    affine = {name: require_shape(given, name, normalized, why) for name in ("weight", "bias")}
    return TensorShapes(inputs={"x": x, **affine}, outputs={"y": x})


def group_shapes(params: GroupNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, *); weight, bias: (C,); y: as x."""
    require_positive(params.eps)
    x = require_x(given, (2, 3, 4, 5), "(N, C, *)")
    if params.num_groups < 1 or x[1] % params.num_groups:
        raise CaseError("params.num_groups", f"{params.num_groups} does not divide the {x[1]} channels of x {list(x)}")
    return TensorShapes(inputs={"x": x, **channel_shapes(x, given, "weight", "bias")}, outputs={"y": x})


def instance_shapes(params: InstanceNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, L), (N, C, H, W) or (N, C, D, H, W); weight, bias: (C,); y: as x."""
    require_positive(params.eps)
    x = require_x(given, (3, 4, 5), "(N, C, *spatial)")
    return TensorShapes(inputs={"x": x, **channel_shapes(x, given, "weight", "bias")}, outputs={"y": x})


def batch_shapes(params: BatchNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C), (N, C, L) or (N, C, H, W); all others (C,); y: as x."""
    require_positive(params.eps)
    if not 0.0 <= params.momentum <= 1.0:
        raise CaseError("params.momentum", f"momentum must be from 0 to 1, not {params.momentum}")
    x = require_x(given, (2, 3, 4, 5), "(N, C) or (N, C, *spatial)")
    inputs = {"x": x, **channel_shapes(x, given, "weight", "bias", "running_mean", "running_var")}
    return TensorShapes(inputs=inputs, outputs={"y": x, "running_mean": (x[1],), "running_var": (x[1],)})


EPS = Fit("eps-value", "eps", lambda params: params.eps, shown_by="rows of different variance")
MOMENTUM = Fit(
    "momentum-value", "momentum", lambda params: params.momentum, "running statistics other than the batch's"
)

LAYER_NORM = Op(
    name="layer_norm",
    summary="normalise over the last axes, then weight and bias",
    params=LayerNormParams,
    inputs=(X, WEIGHT, BIAS),
    infer_shapes=layer_shapes,
    reference=partial(reference, grouping=layer_grouping),
    variants=layer_variants,
    fits=(EPS,),
    terms={"detached": "both", "centered": False},
    gradient_scale=gradient_scale,
    careful=({"variance": "welford"},),
    forms=({"backward": "fused"}, {"backward": "textbook"}),
    statistics=Statistics("y", partial(implied, grouping=layer_grouping)),
    remarks=remarks,
    rounded_together=(("x",), ("x", "weight")),
)
"""Ba, Kiros, Hinton 2016; torch.nn.functional.layer_norm."""

GROUP_NORM = replace(
    LAYER_NORM,
    name="group_norm",
    summary="normalise over groups of channels, then weight and bias per channel",
    params=GroupNormParams,
    infer_shapes=group_shapes,
    reference=partial(reference, grouping=group_grouping),
    variants=group_variants,
    statistics=Statistics("y", partial(implied, grouping=group_grouping)),
)
"""Wu, He 2018; torch.nn.functional.group_norm."""

INSTANCE_NORM = replace(
    LAYER_NORM,
    name="instance_norm",
    summary="normalise each channel of each sample, then weight and bias per channel",
    params=InstanceNormParams,
    infer_shapes=instance_shapes,
    reference=partial(reference, grouping=instance_grouping),
    variants=partial(channel_variants, right=spatial_axes),
    statistics=Statistics("y", partial(implied, grouping=instance_grouping)),
)
"""Ulyanov et al. 2016; torch.nn.functional.instance_norm."""

BATCH_NORM = replace(
    LAYER_NORM,
    name="batch_norm",
    summary="normalise each channel over the batch; the running statistics are outputs too",
    params=BatchNormParams,
    inputs=(
        X,
        WEIGHT,
        BIAS,
        Input("running_mean", Uniform(-0.5, 0.5), state=True, start=Constant(0.0)),
        Input("running_var", Uniform(0.5, 1.5), state=True, start=Constant(1.0)),
    ),
    infer_shapes=batch_shapes,
    reference=batch_reference,
    variants=batch_variants,
    fits=(EPS, MOMENTUM),
    statistics=Statistics("y", partial(implied, grouping=batch_grouping)),
)
"""Ioffe, Szegedy 2015; torch.nn.functional.batch_norm."""
OPS = (LAYER_NORM, GROUP_NORM, INSTANCE_NORM, BATCH_NORM)
