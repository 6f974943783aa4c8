"""Reductions over axes: sums and means, moments, extremes, norms, cumulative sums.

`dim` is PyTorch's: one axis, several, or all for None; `keepdim` keeps them with length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from math import prod as product
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.draw import Draw, LogUniform, Normal, Shape
from parity.cases.elementwise import USUAL_EPS, magnitude, raised, sqrt
from parity.cases.exact.summation import total
from parity.cases.norm import OFFSET, statistics
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import scalar
from parity.cases.program import by_hand, primitive

Axes = tuple[int, ...]
Dim = int | tuple[int, ...] | None
SEVERAL = "more than one element in a reduction"
UNEQUAL = "axes of the same length with different values"
FEW = "few elements in a reduction: n - 1 is then far from n"
INFINITY = float("inf")
NORM_TYPES = (1.0, 2.0, INFINITY)
NORMAL = Normal()
PADDLE_EPS = 1e-12
"""What the backward pass of PaddlePaddle 3.3.1 adds to the norm, measured on a CPU."""
EPS = Fit("eps-value", "eps", lambda _: USUAL_EPS, shown_by="a result near 0")


@dataclass(frozen=True)
class ReductionParams:
    """`dim`: the axes, null for all; `keepdim`: they stay, with length 1."""

    dim: Dim = None
    keepdim: bool = False


@dataclass(frozen=True)
class MomentParams:
    """`dim`: the axes, null for all; the sum of squares is divided by n - `correction` (torch.var)."""

    dim: Dim = None
    correction: int = 1
    keepdim: bool = False


@dataclass(frozen=True)
class NormParams:
    """`dim`: the axes, null for all; `ord`: .inf and -.inf are the extremes (torch.linalg.vector_norm)."""

    ord: float = 2.0
    dim: Dim = None
    keepdim: bool = False


@dataclass(frozen=True)
class AxisParams:
    """`dim`: the axis."""

    dim: int = -1


def axes_of(dim: Dim, rank: int) -> Axes:
    """The axes of `dim`, from 0 on; CaseError for one that x does not have, or that is given twice."""
    given = tuple(range(rank)) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = tuple(axis + rank if axis < 0 else axis for axis in given)
    if not all(0 <= axis < rank for axis in axes) or len({*axes}) < len(axes) or not (axes or dim is None):
        raise CaseError("params.dim", f"{dim} must be different axes of x, from {-rank} to {rank - 1}")
    return axes


def without(shape: Shape, axes: Axes, keepdim: bool) -> Shape:
    """The shape after a reduction over `axes`."""
    kept = [1 if axis in axes else length for axis, length in enumerate(shape)]
    return tuple(kept if keepdim else (length for axis, length in enumerate(shape) if axis not in axes))


# What is computed over axes, which are kept with length 1.


def count(x: Any, axes: Axes) -> int:
    """The number of elements in a reduction."""
    return product(x.shape[axis] for axis in axes)


def summed(x: Any, axes: Axes, *, divided: bool = False) -> Any:
    """The sum; `divided` by the number of elements."""
    return total(x, axes) / count(x, axes) if divided else total(x, axes)


def mean(x: Any, axes: Axes, *, divided: bool = True) -> Any:
    """The mean; the sum if it is not `divided`."""
    return summed(x, axes, divided=divided)


def var(x: Any, axes: Axes, correction: int = 1, *, fused: bool = False, **options: Any) -> Any:
    """The sum of the squares of x - mean over n - correction; the options are those of `norm.statistics`.

    `fused`: its gradient is 2 / (n - correction) * (x - mean).
    """
    if fused:
        return fused_var(x, axes, correction)
    return statistics(x, axes, ddof=correction, **options)[1]


fused_var = by_hand(
    lambda x, axes, ddof: statistics(x, axes, ddof=ddof)[1],
    lambda g, _y, x, axes, ddof: 2.0 / (count(x, axes) - ddof or np.nan) * g * (x - total(x, axes) / count(x, axes)),
)


def std(x: Any, axes: Axes, correction: int = 1, *, eps: float = 0.0, **options: Any) -> Any:
    """The root of `var`, with `eps` under it."""
    return sqrt(var(x, axes, correction, **options), eps=eps)


def prod(x: Any, axes: Axes, *, backward: str = "") -> Any:
    """The product; `backward`: its gradient is y / x, `divided` by 0 too, or `safe`."""
    return PRODUCTS[backward](x, axes)


def plain_product(x: Any, axes: Axes) -> Any:
    """np.prod."""
    return np.prod(x, axis=axes, keepdims=True)


def safe_backward(g: Any, y: Any, x: Any, axes: Axes) -> Any:
    """y / x, where x is not 0."""
    return anp.where(x == 0, g * other_factors(x, axes), g * y / anp.where(x == 0, scalar(1, x), x))


PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "": by_hand(plain_product, lambda g, _y, x, axes: g * other_factors(x, axes)),
    "divided": by_hand(plain_product, lambda g, y, x, _axes: g * y / x),
    "safe": by_hand(plain_product, safe_backward),
}


@primitive
def factors_before(x: NDArray[Any], axes: Axes) -> NDArray[Any]:
    """Of each element, the product of those before it in its reduction."""
    rows = np.moveaxis(x, axes, range(len(axes)))
    flat = rows.reshape(product(rows.shape[: len(axes)]), -1)
    before = np.cumprod(np.concatenate([np.ones_like(flat[:1]), flat[:-1]]), axis=0)
    return np.moveaxis(before.reshape(rows.shape), range(len(axes)), axes)


def other_factors(x: Any, axes: Axes) -> Any:
    """Of each element, the product of all others in its reduction: those before it times those after it."""
    after = anp.flip(factors_before(anp.flip(x, axes), axes), axes)
    return factors_before(x, axes) * after


def shared(g: Any, y: Any, x: Any, axes: Axes) -> Any:
    """The gradient of an extreme, equal parts for the elements that have it."""
    chosen = x == y
    return anp.where(chosen, g / total(np.where(chosen, scalar(1, x), scalar(0, x)), axes), 0.0)


amax = by_hand(lambda x, axes: np.max(x, axis=axes, keepdims=True), shared)
amin = by_hand(lambda x, axes: np.min(x, axis=axes, keepdims=True), shared)


def logsumexp(x: Any, axes: Axes, *, shift: bool = True, divided: bool = False, fused: bool = False) -> Any:
    """log(sum(exp(x))); of the mean if it is `divided`.

    Without `shift`, the maximum is not subtracted before. `fused`: its gradient is exp(x - y).
    """
    if fused:
        return fused_logsumexp(x, axes)
    largest = np.max(getval(x), axis=axes, keepdims=True)
    offset = np.where(np.isfinite(largest), largest, 0.0) if shift else 0.0
    return anp.log(summed(anp.exp(x - offset), axes, divided=divided)) + offset


fused_logsumexp = by_hand(lambda x, axes: logsumexp(x, axes), lambda g, y, x, _axes: g * anp.exp(x - y))


def vector_norm(
    x: Any,
    axes: Axes,
    ord: float = 2.0,  # noqa: A002 - PyTorch's name
    *,
    eps: float = 0.0,
    backward_eps: float = 0.0,
    divided: bool = False,
) -> Any:
    """(sum |x|^ord)^(1/ord), with the mean if it is `divided`.

    At 2, `eps` is under the root, and `backward_eps` is added to the norm that the gradient is divided by.
    """
    if ord in (INFINITY, -INFINITY):
        return (amax if ord > 0 else amin)(magnitude(x), axes)
    if ord == 2:
        return root_mean_square(x, axes, eps, backward_eps, divided)
    size = magnitude(x)
    return summed(size, axes, divided=divided) if ord == 1 else raised(summed(raised(size, ord), axes), 1 / ord)


def root_of_squares(x: Any, axes: Axes, eps: float, _backward_eps: float, divided: bool) -> Any:
    """The root of the sum, or mean, of squares."""
    return sqrt(summed(x * x, axes, divided=divided), eps=eps)


def root_backward(g: Any, y: Any, x: Any, axes: Axes, _eps: float, backward_eps: float, divided: bool) -> Any:
    """x / norm, and 0 for a norm of 0."""
    quotient = x / (y + backward_eps if backward_eps else y)
    return anp.where(y == 0, 0.0, quotient * g / count(x, axes) if divided else quotient * g)


root_mean_square = by_hand(root_of_squares, root_backward)


def running(x: Any, axis: int, backwards: bool) -> Any:
    """The sums up to each element, from the start or the end."""
    sums = np.cumsum(np.flip(x, axis) if backwards else x, axis=axis)
    return np.flip(sums, axis) if backwards else sums


running_sums = by_hand(running, lambda g, _y, _x, axis, backwards: running(g, axis, not backwards))


def cumsum(x: Any, axes: Axes, *, exclusive: bool = False, backwards: bool = False) -> Any:
    """The sums up to each element; `exclusive` without it, `backwards` from the end (tf.math.cumsum)."""
    sums = running_sums(x, axes[0], backwards)
    return sums - x if exclusive else sums


def argmax(x: Any, axes: Axes) -> Any:
    """The index of the largest element, of the first where several are."""
    return np.argmax(x, axis=axes[0])


# Ops.


def reduction(
    name: str,
    function: Callable[..., Any],
    summary: str,
    *,
    params: type[Any] = ReductionParams,
    draw: Draw = NORMAL,
    hypotheses: Callable[[Any], Iterable[Variant]] = lambda _: (),
    differentiable: bool = True,
    whole: bool = False,
    **given: Any,
) -> Op:
    """The op y = function(x, axes, ...), whose result keeps the axes with length 1, or all of x if it is `whole`.

    `hypotheses(params)` are its own variants, `given` further fields of the op.
    """
    numbers = [field.name for field in fields(params) if field.name not in ("dim", "keepdim")]

    def infer_shapes(params: Any, given: Mapping[str, Shape]) -> TensorShapes:
        """x: any shape; y: x without the reduced axes, or as x."""
        x = require_x(given, (), "")
        axes = axes_of(params.dim, len(x))
        return TensorShapes({"x": x}, {"y": x if whole else without(x, axes, getattr(params, "keepdim", False))})

    def reference(
        tensors: Mapping[str, Any], params: Any, *, axes: Axes | None = None, **options: Any
    ) -> dict[str, Any]:
        x = tensors["x"]
        y = function(x, axes or axes_of(params.dim, x.ndim), **{n: getattr(params, n) for n in numbers}, **options)
        shape = infer_shapes(params, {"x": x.shape}).outputs["y"]
        return {"y": y if y.shape == shape else anp.reshape(y, shape)}

    def variants(params: Any, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
        x = shapes["x"]
        axes = axes_of(params.dim, len(x))
        if product(x[axis] for axis in axes) > 1:
            yield from hypotheses(params)
        for others in combinations(range(len(x)), len(axes)):
            if {*others} != {*axes} and (whole or without(x, others, False) == without(x, axes, False)):
                yield Variant("wrong-axis", {"axes": others}, shown_by=UNEQUAL)

    return Op(
        name=name,
        summary=summary,
        params=params,
        inputs=(Input("x", draw, differentiable=differentiable),),
        infer_shapes=infer_shapes,
        reference=reference,
        variants=variants,
        grad_outputs=("y",) if differentiable else (),
        **given,
    )


def mean_or_sum(divided: bool) -> Callable[[Any], Iterable[Variant]]:
    """With, or without, the division by the number of elements."""
    return lambda _: [Variant("mean-vs-sum", {"divided": divided}, shown_by=SEVERAL)]


def moment_variants(params: MomentParams) -> Iterable[Variant]:
    """Another divisor, another algorithm."""
    others = [correction for correction in (0, 1) if correction != params.correction]
    yield from (Variant("variance-ddof", params={"correction": n}, shown_by=FEW) for n in others)
    yield Variant("mean-vs-sum", {"variance_sum": True}, shown_by=SEVERAL)
    for algorithm in ("naive", "naive-clamped"):
        yield Variant("variance-naive", {"variance": algorithm}, unstable=True, shown_by=OFFSET)


def logsumexp_variants(_params: ReductionParams) -> Iterable[Variant]:
    """The logarithm of the mean, no maximum subtracted."""
    yield Variant("mean-vs-sum", {"divided": True}, shown_by=SEVERAL)
    yield Variant("softmax-unshifted", {"shift": False}, unstable=True, shown_by="inputs so large that exp overflows")


def norm_variants(params: NormParams) -> Iterable[Variant]:
    """Other norms, the root of a mean."""
    others = [kind for kind in NORM_TYPES if kind != params.ord]
    yield from (Variant("norm-type", params={"ord": kind}, shown_by=SEVERAL) for kind in others)
    if params.ord in (1, 2):
        yield Variant("mean-vs-sum", {"divided": True}, shown_by=SEVERAL)
    if params.ord == 2:
        yield Variant("eps-value", {"backward_eps": PADDLE_EPS}, shown_by="float64")


def cumsum_variants(_params: AxisParams) -> Iterable[Variant]:
    """Without the element itself, from the end."""
    for options in ({"exclusive": True}, {"backwards": True}, {"exclusive": True, "backwards": True}):
        yield Variant("cumulative-form", options, shown_by=SEVERAL)


MOMENT: Mapping[str, Any] = {
    "params": MomentParams,
    "hypotheses": moment_variants,
    "careful": ({"variance": "welford"},),
    "forms": ({"fused": True},),
}
OPS = (
    reduction("sum", summed, "sum over axes", hypotheses=mean_or_sum(divided=True)),
    reduction("mean", mean, "mean over axes", hypotheses=mean_or_sum(divided=False)),
    reduction(
        "prod",
        prod,
        "product over axes",
        draw=LogUniform(0.5, 2.0, signed=True),
        hypotheses=lambda _: [
            Variant("gradient-by-division", {"backward": "divided"}, shown_by="an element that is 0")
        ],
        forms=({"backward": "safe"},),
    ),
    reduction("amax", amax, "the largest; equal ones share the gradient"),
    reduction("amin", amin, "the smallest; equal ones share the gradient"),
    reduction("logsumexp", logsumexp, "log(sum(exp(x)))", hypotheses=logsumexp_variants, forms=({"fused": True},)),
    reduction("var", var, "variance, over n - correction", **MOMENT),
    reduction("std", std, "root of the variance", fits=(EPS,), **MOMENT),
    reduction(
        "vector_norm", vector_norm, "(sum |x|^ord)^(1/ord)", params=NormParams, hypotheses=norm_variants, fits=(EPS,)
    ),
    reduction("cumsum", cumsum, "sums up to each element", params=AxisParams, hypotheses=cumsum_variants, whole=True),
    reduction(
        "argmax",
        argmax,
        "index of the largest, an integer",
        params=AxisParams,
        differentiable=False,
        exact=True,
        indexes={"y": "x"},
    ),
)
