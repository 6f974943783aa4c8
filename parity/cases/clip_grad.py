"""clip_grad_norm and clip_grad_value: gradient clipping (Pascanu et al. 2013; torch.nn.utils.clip_grad_norm_)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.op import CaseError, Input, Layout, Op
from parity.cases.summation import total

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
    """The shapes of `grads`, of which there must be one at least."""
    if not given:
        raise CaseError("inputs.grads", "a list of tensors is needed, for example [{shape: [3, 4]}, {shape: [4]}]")
    return dict(given)


def norm_layout(params: ClipGradNormParams, given: Mapping[str, Shape]) -> Layout:
    """grads: any shapes; the outputs are the clipped gradients and `total_norm`, a scalar."""
    if not 0.0 < params.max_norm < float("inf"):
        raise CaseError("params.max_norm", f"max_norm must be a finite number above 0, not {params.max_norm}")
    if not params.norm_type >= 1.0:
        raise CaseError("params.norm_type", f"norm_type must be 1, 2, ... or .inf, not {params.norm_type}")
    grads = require_grads(given)
    return Layout(inputs=grads, outputs={**grads, "total_norm": ()})


def value_layout(params: ClipGradValueParams, given: Mapping[str, Shape]) -> Layout:
    """grads: any shapes; the outputs are the clipped gradients."""
    if not 0.0 < params.clip_value < float("inf"):
        raise CaseError("params.clip_value", f"clip_value must be a finite number above 0, not {params.clip_value}")
    grads = require_grads(given)
    return Layout(inputs=grads, outputs=grads)


def vector_norm(values: Sequence[Any], norm_type: float) -> Any:
    """The norm of all elements of all tensors together, in their dtype."""
    flat = np.abs(np.concatenate([np.ravel(v) for v in values]))
    if norm_type == float("inf"):
        return flat.max(initial=0)
    power = flat.dtype.type(norm_type)
    return np.ravel(total(flat**power, (0,)))[0] ** (1 / power)


def coefficient(norm: Any, max_norm: float, denominator_eps: float) -> Any:
    """min(1, max_norm / (norm + denominator_eps)), nan where the norm is nan."""
    return np.minimum(norm.dtype.type(max_norm) / (norm + norm.dtype.type(denominator_eps)), norm.dtype.type(1))


def clip_norm(
    tensors: Mapping[str, Any],
    params: ClipGradNormParams,
    *,
    denominator_eps: float = 1e-6,
    scope: str | None = None,
    norm_type: float | None = None,
) -> dict[str, Any]:
    """The oracle; `total_norm` is the norm over all tensors before clipping, in either scope.

    `denominator_eps` is PyTorch's 1e-6; `scope` and `norm_type` override the params, as hypotheses.
    """
    grads, kind = tensors["grads"], norm_type or params.norm_type
    total = vector_norm(grads, kind)
    per_tensor = (scope or params.scope) == "per_tensor"
    norms = [vector_norm([g], kind) if per_tensor else total for g in grads]
    clipped = [g * coefficient(n, params.max_norm, denominator_eps) for g, n in zip(grads, norms, strict=True)]
    return {"grads": clipped, "total_norm": total}


def clip_value(tensors: Mapping[str, Any], params: ClipGradValueParams) -> dict[str, Any]:
    """The oracle."""
    return {
        "grads": [
            np.clip(g, g.dtype.type(-params.clip_value), g.dtype.type(params.clip_value)) for g in tensors["grads"]
        ]
    }


CLIP_GRAD_NORM = Op(
    name="clip_grad_norm",
    summary="scale gradients down to a norm, over all tensors or per tensor",
    params=ClipGradNormParams,
    inputs=(GRADS,),
    layout=norm_layout,
    forward=clip_norm,
    upstream=(),
)

CLIP_GRAD_VALUE = Op(
    name="clip_grad_value",
    summary="clamp every gradient element",
    params=ClipGradValueParams,
    inputs=(GRADS,),
    layout=value_layout,
    forward=clip_value,
    upstream=(),
)
