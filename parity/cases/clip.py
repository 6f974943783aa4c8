"""clip_grad_norm and clip_grad_value: gradient clipping (Pascanu et al. 2013; torch.nn.utils.clip_grad_norm_)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant
from parity.cases.primitives import narrow, scalar

TORCH_EPS = 1e-6
GRADS = Input("grads", default=Normal(), listed=True)


@dataclass(frozen=True)
class ClipGradNormParams:
    """Gradients are scaled so that their norm of type `norm_type` (1, 2, ..., inf) is at most `max_norm`.

    `scope`: `global` takes one norm over all tensors, `per_tensor` one for each.
    """

    max_norm: float
    norm_type: float = 2.0
    scope: Literal["global", "per_tensor"] = "global"


@dataclass(frozen=True)
class ClipGradValueParams:
    """Every element is clamped into [-clip_value, clip_value]."""

    clip_value: float


def require_grads(given: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes of `grads`, at least one."""
    if not given:
        raise CaseError("inputs.grads", "a list of tensors is needed, for example [{shape: [3, 4]}, {shape: [4]}]")
    return dict(given)


def norm_layout(params: ClipGradNormParams, given: Mapping[str, Shape]) -> TensorShapes:
    """grads: any shapes; the outputs are the clipped gradients and `total_norm`, a scalar."""
    if not 0.0 < params.max_norm < float("inf"):
        raise CaseError("params.max_norm", f"max_norm must be a finite number above 0, not {params.max_norm}")
    if not params.norm_type >= 1.0:
        raise CaseError("params.norm_type", f"norm_type must be 1, 2, ... or .inf, not {params.norm_type}")
    grads = require_grads(given)
    return TensorShapes(inputs=grads, outputs={**grads, "total_norm": ()})


def value_layout(params: ClipGradValueParams, given: Mapping[str, Shape]) -> TensorShapes:
    """grads: any shapes; the outputs are the clipped gradients."""
    if not 0.0 < params.clip_value < float("inf"):
        raise CaseError("params.clip_value", f"clip_value must be a finite number above 0, not {params.clip_value}")
    grads = require_grads(given)
    return TensorShapes(inputs=grads, outputs=grads)


def vector_norm(values: Sequence[Any], norm_type: Any, *, mean: bool = False) -> Any:
    """The norm of all elements of all tensors together, in their dtype; `mean` divides the sum by their number."""
    flat = np.concatenate([np.ravel(v) for v in values])
    if norm_type == float("inf"):
        return np.max(np.abs(flat), initial=0)
    n = max(1, flat.size) if mean else 1
    if norm_type == 2:
        return np.sqrt(np.sum(np.square(flat), axis=(0,)) / n)
    exponent = scalar(norm_type, flat)
    return (np.sum(np.abs(flat) ** exponent, axis=(0,)) / n) ** (1 / exponent)


def coefficient(norm: Any, max_norm: Any, denominator_eps: float, *, clamped: bool = True) -> Any:
    """min(1, max_norm / (norm + denominator_eps)), nan if the norm is nan; without the 1 if not `clamped`."""
    factor = max_norm / (norm + denominator_eps)
    return np.minimum(factor, 1) if clamped else factor


def clip_norm(
    tensors: Mapping[str, Any],
    params: ClipGradNormParams,
    *,
    denominator_eps: float = TORCH_EPS,
    scope: str | None = None,
    norm_type: float | None = None,
    mean: bool = False,
    clamped: bool = True,
    coefficient_dtype: str | None = None,
    by_value: bool = False,
    added: bool = False,
    nested: bool = False,
    without: tuple[int, ...] = (),
    spared: bool = False,
) -> dict[str, Any]:
    """torch.nn.utils.clip_grad_norm_; `total_norm` is the norm over all tensors before clipping, in either scope.

    `denominator_eps` is PyTorch's 1e-6; `scope` and `norm_type` override the params; `mean` and `clamped` are those of
    `vector_norm` and `coefficient`, which is rounded to `coefficient_dtype`; `by_value` clamps elements instead;
    `added` uses the sum of the tensors' norms as the norm, `nested` their norm, as PyTorch computes it. The norm is one
    `without` the tensors with these numbers, which are not scaled either if they are `spared`.
    """
    grads, kind = tensors["grads"], norm_type or params.norm_type
    total_norm = vector_norm([g for i, g in enumerate(grads) if i not in without], kind, mean=mean)
    if nested:
        total_norm = vector_norm([vector_norm([g], kind) for g in grads], kind)
    if added:
        total_norm = sum(vector_norm([g], kind) for g in grads)
    if by_value:
        return {"grads": [np.clip(g, -params.max_norm, params.max_norm) for g in grads], "total_norm": total_norm}
    per_tensor = (scope or params.scope) == "per_tensor"
    norms = [vector_norm([g], kind, mean=mean) if per_tensor else total_norm for g in grads]
    factors = [coefficient(n, params.max_norm, denominator_eps, clamped=clamped) for n in norms]
    if coefficient_dtype is not None:
        factors = [narrow(factor, coefficient_dtype) for factor in factors]
    kept = without if spared else ()
    clipped = [g if i in kept else g * factor for i, (g, factor) in enumerate(zip(grads, factors, strict=True))]
    return {"grads": clipped, "total_norm": total_norm}


def clip_value(tensors: Mapping[str, Any], params: ClipGradValueParams, *, by_norm: bool = False) -> dict[str, Any]:
    """torch.nn.utils.clip_grad_value_; `by_norm` scales all tensors to the norm `clip_value` instead."""
    grads, limit = tensors["grads"], params.clip_value
    if by_norm:
        factor = coefficient(vector_norm(grads, 2.0), limit, TORCH_EPS)
        return {"grads": [g * factor for g in grads]}
    return {"grads": [np.minimum(np.maximum(g, -limit), limit) for g in grads]}


NORM_TYPES = (1.0, 2.0, float("inf"))
EPSILONS = (0.0, 1e-12, 1e-8, 1e-5, 1e-4, 1e-3)


def norm_variants(params: ClipGradNormParams, shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about clipping by norm."""
    other = "per_tensor" if params.scope == "global" else "global"
    scope = [
        Variant("clip-per-tensor", {"scope": other}, shown_by="several tensors"),
        Variant("norms-added", {"added": True}, shown_by="several tensors"),
    ]
    small = "a norm so small, or a dtype so precise, that adding 1e-6 matters"
    return (
        *(scope if len(shapes) > 1 else []),
        *(Variant("clip-denominator-eps", {"denominator_eps": eps}, shown_by=small) for eps in EPSILONS),
        Variant("clip-by-value", {"by_value": True}, shown_by="elements above and below max_norm"),
        Variant("clip-unclamped", {"clamped": False}, shown_by="a norm below max_norm"),
        *(
            Variant("norm-type", {"norm_type": kind}, shown_by=SEVERAL)
            for kind in NORM_TYPES
            if kind != params.norm_type
        ),
        Variant("mean-vs-sum", {"mean": True}, shown_by=SEVERAL),
        Variant("attribute-precision", {"coefficient_dtype": "float32"}, shown_by="float64"),
        Variant("attribute-precision", {"denominator_eps": float(np.float32(TORCH_EPS))}, shown_by="float64"),
    )


SEVERAL = "tensors of several elements"


def value_variants(_params: ClipGradValueParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about clipping by value."""
    return (Variant("clip-by-norm", {"by_norm": True}, shown_by="elements above and below clip_value"),)


def norm_remarks(_op: Op, _params: Any, tensors: Mapping[str, Any]) -> Iterable[str]:
    """With one tensor, the total norm is its own."""
    one = "there is one gradient tensor: a norm per tensor and a global norm are the same"
    return [one] if len(tensors) == 1 else []


CLIP_GRAD_NORM = Op(
    name="clip_grad_norm",
    summary="scale gradients down to a norm, over all tensors or per tensor",
    params=ClipGradNormParams,
    inputs=(GRADS,),
    infer_shapes=norm_layout,
    reference=clip_norm,
    variants=norm_variants,
    fits=(Fit("clip-denominator-eps", "denominator_eps", lambda _: TORCH_EPS, shown_by="float64", most=0.05),),
    grad_outputs=(),
    remarks=norm_remarks,
    forms=({"nested": True},),
)

CLIP_GRAD_VALUE = Op(
    name="clip_grad_value",
    summary="clamp every gradient element",
    params=ClipGradValueParams,
    inputs=(GRADS,),
    infer_shapes=value_layout,
    reference=clip_value,
    variants=value_variants,
    grad_outputs=(),
)
OPS = (CLIP_GRAD_NORM, CLIP_GRAD_VALUE)
