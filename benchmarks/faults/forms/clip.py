"""Clipping of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Any]


def clip_grad_norm_stacked(grads: Sequence[Array], max_norm: float, norm_type: float, scope: str) -> Tensors:
    """torch.nn.utils.clip_grad_norm_: the norm of the tensors' norms, a coefficient clamped to 1."""
    clipped = []
    if norm_type == float("inf"):
        norms = np.stack([np.max(np.abs(g)) for g in grads])
        total_norm = np.max(norms)
    else:
        norms = np.stack([np.sum(np.abs(g) ** norm_type) ** (1.0 / norm_type) for g in grads])
        total_norm = np.sum(norms**norm_type) ** (1.0 / norm_type)
    for g, own in zip(grads, norms, strict=True):
        norm = total_norm if scope == "global" else own
        clip_coef = max_norm / (norm + 1e-6)
        clip_coef_clamped = np.minimum(clip_coef, 1.0)
        clipped.append(g * clip_coef_clamped)
    return {"grads": clipped, "total_norm": total_norm}


def clip_grad_norm_concatenated(grads: Sequence[Array], max_norm: float, norm_type: float, scope: str) -> Tensors:
    """One vector of all gradients, scaled only where its norm is larger (the form of optax.clip_by_global_norm)."""
    flat = np.concatenate([g.reshape(-1) for g in grads])
    total_norm = np.linalg.norm(flat, norm_type)
    clipped = []
    for g in grads:
        g_norm = total_norm
        if scope == "per_tensor":
            g_norm = np.linalg.norm(g.reshape(-1), norm_type)
        factor = max_norm / (g_norm + 1e-6)
        clipped.append(np.where(factor < 1.0, g * factor, g))
    return {"grads": clipped, "total_norm": total_norm}


def clip_grad_norm_scaled(grads: Sequence[Array], max_norm: float, norm_type: float, scope: str) -> Tensors:
    """Norms of data divided by their largest magnitude, so that no square overflows (LAPACK's lassq)."""
    tiny = np.finfo(grads[0].dtype).tiny
    largest = max(max(np.max(np.abs(g)) for g in grads), tiny)
    total_norm = largest
    if norm_type != float("inf"):
        total_norm = largest * sum(np.sum(np.abs(g / largest) ** norm_type) for g in grads) ** (1.0 / norm_type)
    clipped = []
    for g in grads:
        norm = total_norm
        if scope == "per_tensor":
            peak = np.maximum(np.max(np.abs(g)), tiny)
            norm = peak
            if norm_type != float("inf"):
                norm = peak * np.sum(np.abs(g / peak) ** norm_type) ** (1.0 / norm_type)
        scale = max_norm / np.maximum(norm + 1e-6, max_norm)
        clipped.append(g * scale)
    return {"grads": clipped, "total_norm": total_norm}


def clip_grad_value_clip(grads: Sequence[Array], clip_value: float) -> Tensors:
    """torch.nn.utils.clip_grad_value_: a clamp of every tensor."""
    clipped = [np.clip(g, -clip_value, clip_value) for g in grads]
    return {"grads": clipped}


def clip_grad_value_where(grads: Sequence[Array], clip_value: float) -> Tensors:
    """Two comparisons; NaN stays."""
    clipped = []
    for g in grads:
        below = np.where(g > clip_value, clip_value, g)
        clipped.append(np.where(below < -clip_value, -clip_value, below))
    return {"grads": clipped}


def clip_grad_value_sign(grads: Sequence[Array], clip_value: float) -> Tensors:
    """The sign times the smaller magnitude."""
    clipped = []
    for g in grads:
        magnitude = np.minimum(np.abs(g), clip_value)
        clipped.append(np.copysign(magnitude, g))
    return {"grads": clipped}
