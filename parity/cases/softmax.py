"""softmax and log_softmax over one axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Shape
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant, require_x
from parity.cases.oracle import evaluate
from parity.cases.program import by_hand

USUAL_EPS = 1e-6
"""A number that kernels add to avoid a division by 0."""


@dataclass(frozen=True)
class SoftmaxParams:
    """`dim`: the axis over which the probabilities sum to 1."""

    dim: int = -1


def require_axis(dim: int, shape: Shape) -> int:
    """`dim` counted from the front; CaseError if x has no such axis."""
    if not -len(shape) <= dim < len(shape):
        raise CaseError("params.dim", f"x of shape {list(shape)} has no axis {dim}")
    return dim % len(shape)


def other_axes(dim: int, shape: Shape) -> Iterator[int]:
    """The other axes, without those that reveal nothing: both have length 1."""
    return (axis for axis in range(len(shape)) if axis != dim % len(shape) and max(shape[axis], shape[dim]) > 1)


def softmax_shapes(params: SoftmaxParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape with at least one axis; y: as x."""
    x = require_x(given, (), "")
    require_axis(params.dim, x)
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def softmax(
    x: Any, axis: int = -1, *, detached: bool = False, fused: bool = False, shifted: bool = True, eps: float = 0.0
) -> Any:
    """exp(x) over its sum along `axis`, `shifted` by the maximum; the sum gets no gradient if it is `detached`.

    `fused`: the gradient is that of `softmax_backward`. `eps` is added to the sum.
    """
    if fused:
        return fused_softmax(x, axis)
    axis %= x.ndim
    powers = anp.exp(x - getval(x).max(axis=axis, keepdims=True) if shifted else x)
    sums = total(powers, (axis,)) + eps if eps else total(powers, (axis,))
    return powers / (getval(sums) if detached else sums)


def softmax_backward(g: Any, y: Any, x: Any, axis: int) -> Any:
    """y * (g - sum(g * y)), as kernels compute it."""
    return y * (g - total(g * y, (axis % x.ndim,)))


fused_softmax = by_hand(lambda x, axis: softmax(x, axis), softmax_backward)


def log_softmax(
    x: Any,
    axis: int = -1,
    *,
    detached: bool = False,
    fused: bool = False,
    shifted: bool = True,
    logged: bool = False,
    eps: float = 0.0,
) -> Any:
    """x - log(sum(exp(x))) along `axis`; `logged` takes the logarithm of the softmax, to which `eps` is added. The
    other options are those of `softmax`; the `fused` gradient is g - exp(y) * sum(g)."""
    if fused:
        return fused_log_softmax(x, axis)
    if logged or eps:
        return anp.log(softmax(x, axis, detached=detached, shifted=shifted) + eps)
    x = x - getval(x).max(axis=axis, keepdims=True) if shifted else x
    sums = total(anp.exp(x), (axis % x.ndim,))
    return x - anp.log(getval(sums) if detached else sums)


fused_log_softmax = by_hand(
    lambda x, axis: log_softmax(x, axis), lambda g, y, x, axis: g - anp.exp(y) * total(g, (axis % x.ndim,))
)
positive_gradient = by_hand(lambda y: y, lambda g, *_: anp.abs(g))


def reference_of(function: Any) -> Any:
    """The reference of softmax or log_softmax: `axis` replaces `dim`, with `positive` the absolute values of
    grad_outputs arrive, and the other options are those of `function`."""

    def reference(
        tensors: Mapping[str, Any],
        params: SoftmaxParams,
        *,
        axis: int | None = None,
        positive: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        y = function(tensors["x"], params.dim if axis is None else axis, **options)
        return {"y": positive_gradient(y) if positive else y}

    return reference


def gradient_scale(op: Op, params: Any, tensors: Mapping[str, Any], gradients: bool) -> Mapping[str, Any]:
    """The size of the terms that cancel in each tensor: a softmax does not change with a constant added to x."""
    return evaluate(op, params, tensors, dtype=np.float64, gradients=gradients, **op.terms)


def shared_variants(axes: Iterable[int], shown_by: str) -> Iterator[Variant]:
    """Another axis, a sum without a gradient, no maximum subtracted."""
    yield from (Variant("wrong-axis", {"axis": axis}, shown_by=shown_by) for axis in axes)
    yield Variant("detached-statistics", {"detached": True}, shown_by="a grad_output that is not constant")
    yield Variant("softmax-unshifted", {"shifted": False}, unstable=True, shown_by="scores so large that exp overflows")


def softmax_variants(params: SoftmaxParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """The variants of a softmax over any axis."""
    return shared_variants(other_axes(params.dim, shapes["x"]), "several axes longer than 1")


def log_softmax_variants(params: SoftmaxParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """The logarithm of a softmax, and the variants of softmax."""
    yield from softmax_variants(params, shapes)
    yield Variant("log-of-softmax", {"logged": True}, unstable=True, shown_by="x far below its maximum, or far above")


def softmax_op(name: str, function: Any, summary: str, variants: Any) -> Op:
    """softmax or log_softmax."""
    return Op(
        name=name,
        summary=summary,
        params=SoftmaxParams,
        inputs=(Input("x", Normal(), differentiable=True),),
        infer_shapes=softmax_shapes,
        reference=reference_of(function),
        variants=variants,
        forms=({"fused": True},),
        terms={"detached": True, "positive": True},
        gradient_scale=gradient_scale,
        fits=(Fit("eps-value", "eps", lambda _: USUAL_EPS, shown_by="probabilities that are not far above eps"),),
    )


SOFTMAX = softmax_op("softmax", softmax, "exp(x) / sum(exp(x)) along an axis", softmax_variants)
LOG_SOFTMAX = softmax_op("log_softmax", log_softmax, "x - log(sum(exp(x))) along an axis", log_softmax_variants)
OPS = (SOFTMAX, LOG_SOFTMAX)
"""torch.nn.functional.softmax, log_softmax."""
