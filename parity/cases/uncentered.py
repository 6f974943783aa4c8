"""Normalisations that do not subtract the mean: rms_norm, normalize, local_response_norm, evonorm_s0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import sigmoid
from parity.cases.exact.summation import total
from parity.cases.norm import (
    BIAS,
    EPS,
    EPSILONS,
    GROUPING_OPTIONS,
    OFFSET,
    SPREAD,
    UPSTREAM,
    WEIGHT,
    Axes,
    GroupNormParams,
    LayerNormParams,
    affine,
    channel_shapes,
    count,
    detach,
    group_grouping,
    group_shapes,
    last_axes,
    layer_shapes,
    other_axes,
    remarks,
    require_positive,
    seen,
    statistics,
)
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant, require_x
from parity.cases.oracle import evaluate
from parity.cases.primitives import rows_of, scalar
from parity.cases.program import by_hand
from parity.cases.softmax import require_axis

X = Input("x", Normal(), differentiable=True)
CHANNELS = "channels of different size"


def gradient_scale(op: Op, params: Any, tensors: Mapping[str, Any], gradients: bool) -> Mapping[str, Any]:
    """The size of the terms that cancel in each tensor: a normalised row does not change with a factor of x."""
    positive = {name: values if name in ("x", "v") else np.abs(values) for name, values in tensors.items()}
    return evaluate(op, params, positive, dtype=np.float64, gradients=gradients, **op.terms)


def epsilon_variants(eps: float) -> Iterator[Variant]:
    """What frameworks and models use."""
    for value in dict.fromkeys((*EPSILONS, 2 * eps)):
        if value != eps:
            yield Variant("eps-value", params={"eps": value}, shown_by=SPREAD)


# rms_norm.


@dataclass(frozen=True)
class RmsNormParams(LayerNormParams):
    """`normalized_shape`: the last axes of x, an integer or a list; `eps` is added to the mean square."""

    eps: float = 1e-6


def rms(x: Any, axes: Axes, eps: Any) -> Any:
    """sqrt(mean(x^2) + eps)."""
    return anp.sqrt(total(x * x, axes) / count(x.shape, axes) + eps)


def rms_backward(g: Any, xhat: Any, x: Any, axes: Axes, eps: Any) -> Any:
    """(g - xhat * mean(g * xhat)) / rms, as kernels compute it."""
    return (g - xhat * (total(g * xhat, axes) / count(x.shape, axes))) / rms(x, axes, eps)


fused_rms_norm = by_hand(lambda x, axes, eps: x / rms(x, axes, eps), rms_backward)


def rms_norm(
    tensors: Mapping[str, Any],
    params: RmsNormParams,
    *,
    axes: Axes | None = None,
    centered: str = "",
    summed: bool = False,
    outside: bool = False,
    detached: bool = False,
    fused: bool = False,
    weight_offset: float = 0.0,
) -> dict[str, Any]:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang, Sennrich 2019; torch.nn.functional.rms_norm).

    `axes` replaces those of `normalized_shape`; `centered` subtracts the mean from `both` x and what is squared, or
    from x `squared` only; `summed` does not divide the sum; eps may be `outside` the root; the root gets no gradient if
    it is `detached`; `weight_offset` is added to the weight. `fused`: the gradient is that of `rms_backward`.
    """
    x, weight = tensors["x"], tensors.get("weight")
    axes = axes or last_axes(x.ndim, len(params.axis_lengths))
    n = count(x.shape, axes)
    if fused:
        return {"y": affine(fused_rms_norm(x, axes, params.eps), weight, None)}
    deviation = x - total(x, axes) / n if centered else x
    mean_square = total(deviation * deviation, axes) / (1 if summed else n)
    root = anp.sqrt(mean_square) + params.eps if outside else anp.sqrt(mean_square + params.eps)
    xhat = (deviation if centered == "both" else x) / (getval(root) if detached else root)
    return {"y": affine(xhat, weight if weight is None or not weight_offset else weight + weight_offset, None)}


def rms_shapes(params: RmsNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, *normalized_shape); weight: normalized_shape; y: as x."""
    shapes = layer_shapes(params, given)
    inputs = {name: shape for name, shape in shapes.inputs.items() if name != "bias"}
    return TensorShapes(inputs=inputs, outputs=shapes.outputs)


def rms_variants(params: RmsNormParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Another placement or value of eps, a mean subtracted, a sum, another weight, other axes, a missing gradient."""
    rank = len(shapes["x"])
    right = last_axes(rank, len(params.axis_lengths))
    yield Variant("mean-vs-sum", {"summed": True}, shown_by="more than one element in a mean")
    yield Variant("eps-placement", {"outside": True}, shown_by=SPREAD)
    yield from epsilon_variants(params.eps)
    for centered in ("both", "squared"):
        yield Variant("mean-subtracted", {"centered": centered}, shown_by="a mean that is not 0")
    yield Variant("detached-statistics", {"detached": True}, shown_by=UPSTREAM)
    if "weight" in shapes:
        yield Variant("weight-offset", {"weight_offset": 1.0}, shown_by="any weight")
        yield Variant("affine-missing", absent=("weight",), shown_by="a weight that is not 1")
    yield from other_axes([tuple(range(rank)), *((a,) for a in range(rank)), tuple(range(rank - len(right)))], right)


# normalize.


@dataclass(frozen=True)
class NormalizeParams:
    """torch.nn.functional.normalize: the norm of type `p` (1, 2, ..., inf) over the axis `dim`, at least `eps`."""

    p: float = 2.0
    dim: int = 1
    eps: float = 1e-12


def normalize_shapes(params: NormalizeParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y: as x."""
    require_positive(params.eps)
    if not params.p >= 1:
        raise CaseError("params.p", f"p must be 1, 2, ... or .inf, not {params.p}")
    x = require_x(given, (), "")
    require_axis(params.dim, x)
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def power_of_positive(values: Any, exponent: Any) -> Any:
    """values ** exponent; 0 with a gradient of 0 where a value is 0."""
    positive = values > 0
    return anp.where(positive, anp.where(positive, values, scalar(1, values)) ** exponent, 0.0)


TWO_NORMS: Mapping[str, Callable[[Any, Axes, Any], Any]] = {
    "padded": by_hand(
        lambda x, axes, _eps: anp.sqrt(total(x * x, axes)), lambda g, norm, x, _axes, eps: g * x / (norm + eps)
    ),
    "unfloored": by_hand(
        lambda x, axes, eps: FLOORS[""](anp.sqrt(total(x * x, axes)), eps), lambda g, norm, x, *_: g * x / norm
    ),
}
"""The 2-norm with other derivatives: x / (norm + eps); x / max(norm, eps), as if it were not constant below eps."""
FLOORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "": lambda norm, eps: anp.where(norm < eps, scalar(eps, norm), norm),
    "squared": lambda norm, eps: anp.sqrt(anp.where(norm * norm < eps, scalar(eps, norm), norm * norm)),
    "inside": lambda norm, eps: anp.sqrt(norm * norm + eps),
    "outside": lambda norm, eps: norm + eps,
}
"""How eps keeps a norm above 0: PyTorch's max(norm, eps), TensorFlow's sqrt(max(norm^2, eps)), and sums."""


def normalize(
    tensors: Mapping[str, Any],
    params: NormalizeParams,
    *,
    axis: int | None = None,
    floor: str = "",
    detached: bool = False,
    bare: bool = False,
    slope: str = "",
) -> dict[str, Any]:
    """x over its norm; `axis` replaces `dim`, `floor` is one of FLOORS, and a `detached` norm gets no gradient. `bare`
    divides by the square or the sum, without the root; `slope` is one of TWO_NORMS."""
    x, p = tensors["x"], params.p
    axes = ((params.dim if axis is None else axis) % x.ndim,)
    if p == float("inf"):
        sizes = anp.abs(x)
        largest = sizes == getval(sizes).max(axis=axes, keepdims=True)
        norm = total(anp.where(largest, sizes, 0.0), axes) / total(anp.where(largest, scalar(1, x), 0.0), axes)
    elif slope:
        norm = TWO_NORMS[slope](x, axes, params.eps)
    elif p == 2:
        squares = total(x * x, axes)
        positive = squares > 0
        root = anp.sqrt(anp.where(positive, squares, scalar(1, x)))
        norm = squares if bare else anp.where(positive, root, 0.0)
    else:
        exponent = scalar(p, x)
        powers = total(power_of_positive(anp.abs(x), exponent), axes)
        norm = powers if bare else power_of_positive(powers, 1 / exponent)
    norm = FLOORS[floor](norm, params.eps)
    return {"y": x / (getval(norm) if detached else norm)}


def normalize_variants(params: NormalizeParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Another floor, norm or axis, a missing root or gradient."""
    near = "norms that are not far above eps"
    yield from (Variant("eps-placement", {"floor": floor}, shown_by=near) for floor in FLOORS if floor)
    if params.p == 2:
        yield from (Variant("eps-placement", {"slope": slope}, shown_by=near) for slope in TWO_NORMS)
    yield from epsilon_variants(params.eps)
    for p in (1.0, 2.0, float("inf")):
        if p != params.p:
            yield Variant("norm-type", params={"p": p}, shown_by="rows of several elements")
    if params.p not in (1, float("inf")):
        yield Variant("norm-type", {"bare": True}, shown_by="norms that are not 1")
    shape = shapes["x"]
    for axis in range(len(shape)):
        if axis != params.dim % len(shape) and max(shape[axis], shape[params.dim]) > 1:
            yield Variant("wrong-axis", {"axis": axis}, shown_by="several axes longer than 1")
    yield Variant("detached-statistics", {"detached": True}, shown_by=UPSTREAM)


# local_response_norm.


@dataclass(frozen=True)
class LocalResponseNormParams:
    """torch.nn.functional.local_response_norm over `size` neighbouring channels."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


def response_shapes(params: LocalResponseNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, *); y: as x."""
    if params.size < 1:
        raise CaseError("params.size", f"size must be 1 or more, not {params.size}")
    x = require_x(given, (3, 4, 5), "(N, C, *)")
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def local_response_norm(
    tensors: Mapping[str, Any],
    params: LocalResponseNormParams,
    *,
    summed: bool = False,
    axis: int = 1,
    before: int | None = None,
) -> dict[str, Any]:
    """x / (k + alpha * mean(x^2)) ** beta, the mean over a window of channels and zeros beyond them.

    Krizhevsky et al. 2012 have the sum instead of the mean: `summed`. The window begins size // 2 channels before its
    own, or as many as `before` says, along `axis`.
    """
    x, n = tensors["x"], params.size
    first = n // 2 if before is None else before
    squares = anp.swapaxes(x * x, 0, axis)
    around = anp.pad(squares, [(first, n - 1 - first), *[(0, 0)] * (x.ndim - 1)], "constant")
    index = np.arange(x.shape[axis])[:, None] + np.arange(n)
    windows = total(rows_of(around, index), (1,)).reshape(squares.shape)
    means = anp.swapaxes(windows, 0, axis) / (1 if summed else n)
    return {"y": x / (params.k + params.alpha * means) ** scalar(params.beta, x)}


def response_variants(params: LocalResponseNormParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """A sum, a window that ends later, a window of pixels."""
    if params.size > 1:
        yield Variant("mean-vs-sum", {"summed": True}, shown_by="x so large that alpha times x^2 shows beside k")
        if params.size % 2 == 0:
            yield Variant("padding-mode", {"before": params.size // 2 - 1}, shown_by=CHANNELS)
        for axis in range(2, len(shapes["x"])):
            yield Variant("wrong-axis", {"axis": axis}, shown_by=CHANNELS)


# evonorm_s0.


def evonorm_s0(
    tensors: Mapping[str, Any],
    params: GroupNormParams,
    *,
    outside: bool = False,
    detached: bool = False,
    gate: str = "",
    **options: Any,
) -> dict[str, Any]:
    """x * sigmoid(v * x) / sqrt(var(x) + eps) * weight + bias over groups of channels (Liu et al. 2020,
    arXiv:2004.02967, table 1).

    eps may be `outside` the root; the variance gets no gradient if it is `detached`; the `gate` may be `plain`, without
    v, or `none`. The other options are those of groups and of `statistics`.
    """
    x = tensors["x"]
    groups = group_grouping(params, x.shape, **{n: options.pop(n) for n in GROUPING_OPTIONS & options.keys()})
    weight, bias, v = (seen(tensors, groups, name) for name in ("weight", "bias", "v"))
    x_seen = seen(tensors, groups, "x")
    _, var = detach(statistics(x_seen, groups.axes, **options), "variance" if detached else "")
    deviation = anp.sqrt(var) + params.eps if outside else anp.sqrt(var + params.eps)
    gated = x_seen if gate == "none" else x_seen * sigmoid(x_seen if gate == "plain" else v * x_seen)
    y = affine(gated / deviation, weight, bias)
    return {"y": y if y.shape == x.shape else anp.reshape(y, x.shape)}


def evonorm_shapes(params: GroupNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, *); weight, bias, v: (C,); y: as x."""
    shapes = group_shapes(params, given)
    inputs = {**shapes.inputs, **channel_shapes(shapes.inputs["x"], given, "v")}
    return TensorShapes(inputs=inputs, outputs=shapes.outputs)


def evonorm_variants(params: GroupNormParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Another variance, eps, gate or grouping, a missing gradient."""
    channels = shapes["x"][1]
    yield Variant("variance-ddof", {"ddof": 1}, shown_by="few elements in a mean: n - 1 is then far from n")
    yield Variant("mean-vs-sum", {"variance_sum": True}, shown_by="more than one element in a mean")
    yield Variant("eps-placement", {"outside": True}, shown_by=SPREAD)
    yield from epsilon_variants(params.eps)
    for gate in ("plain", "none"):
        yield Variant("activation-form", {"gate": gate}, shown_by="a v that is not 1")
    for n in sorted({1, channels, channels // params.num_groups} - {params.num_groups}):
        yield Variant("wrong-axis", {"groups": n}, shown_by="groups of several channels")
    yield Variant("wrong-axis", {"interleaved": True}, shown_by="several groups of several channels")
    yield Variant("detached-statistics", {"detached": True}, shown_by=UPSTREAM)
    for variance in ("naive", "naive-clamped"):
        yield Variant("variance-naive", {"variance": variance}, unstable=True, shown_by=OFFSET)


RMS_NORM = Op(
    name="rms_norm",
    summary="divide by the root mean square over the last axes, then weight",
    params=RmsNormParams,
    inputs=(X, WEIGHT),
    infer_shapes=rms_shapes,
    reference=rms_norm,
    variants=rms_variants,
    fits=(EPS,),
    forms=({"fused": True},),
    terms={"detached": True},
    gradient_scale=gradient_scale,
    remarks=remarks,
    rounded_together=(("x",), ("x", "weight")),
)
NORMALIZE = Op(
    name="normalize",
    summary="divide by the norm along an axis",
    params=NormalizeParams,
    inputs=(X,),
    infer_shapes=normalize_shapes,
    reference=normalize,
    variants=normalize_variants,
    fits=(EPS,),
    terms={"detached": True},
    gradient_scale=gradient_scale,
)
LOCAL_RESPONSE_NORM = Op(
    name="local_response_norm",
    summary="divide by a power of the mean square of neighbouring channels",
    params=LocalResponseNormParams,
    inputs=(X,),
    infer_shapes=response_shapes,
    reference=local_response_norm,
    variants=response_variants,
    fits=tuple(Fit("option-value", name, attrgetter(name), CHANNELS, most=10.0) for name in ("alpha", "beta", "k")),
)
EVONORM_S0 = Op(
    name="evonorm_s0",
    summary="x * sigmoid(v * x) / sqrt(var + eps) with the biased variance of groups of channels, then weight and bias",
    params=GroupNormParams,
    inputs=(X, WEIGHT, BIAS, Input("v", Normal(1.0, 0.5), differentiable=True)),
    infer_shapes=evonorm_shapes,
    reference=evonorm_s0,
    variants=evonorm_variants,
    fits=(EPS,),
    terms={"detached": True},
    gradient_scale=gradient_scale,
    remarks=remarks,
)
OPS = (RMS_NORM, NORMALIZE, LOCAL_RESPONSE_NORM, EVONORM_S0)
