"""Losses of two tensors of values: torch's decompositions and derivatives.yaml, Optax, Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms.written import written

Array = NDArray[Any]


def share_of(x: Array, reduction: str) -> float:
    """What the gradient of a reduction is multiplied with."""
    return {"mean": 1.0 / x.size, "batchmean": 1.0 / x.shape[0]}.get(reduction, 1.0)


def reduced_as(losses: Array, reduction: str) -> Any:
    """The losses, or their sum, or a mean."""
    if reduction == "none":
        return losses
    divisor = {"mean": losses.size, "batchmean": losses.shape[0]}.get(reduction, 1)
    return np.sum(losses) / divisor


TABLE: Mapping[str, Sequence[str]] = {
    "l1_loss": (
        """
        d = x - target
        y = reduced_as(np.abs(d), reduction)
        grad_x = np.sign(d) * grad_y * share_of(x, reduction)
        """,
        """
        losses = np.maximum(x, target) - np.minimum(x, target)
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = x.size if reduction == "mean" else 1
        grad_x = np.where(x > target, grad_y, np.where(x < target, -grad_y, 0)) / count
        """,
    ),
    "smooth_l1_loss": (
        """
        d = x - target
        size = np.abs(d)
        y = reduced_as(np.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta), reduction)
        grad_x = np.where(size < beta, d / beta, np.sign(d)) * grad_y * share_of(x, reduction)
        """,
        """
        d = x - target
        inner = np.clip(d, -beta, beta)
        losses = inner / beta * (d - 0.5 * inner)
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = x.size if reduction == "mean" else 1
        grad_x = inner / beta * (grad_y / count)
        """,
    ),
    "huber_loss": (
        """
        d = x - target
        size = np.abs(d)
        y = reduced_as(np.where(size <= delta, 0.5 * d * d, delta * (size - 0.5 * delta)), reduction)
        grad_x = np.where(size <= delta, d, delta * np.sign(d)) * grad_y * share_of(x, reduction)
        """,
        """
        d = x - target
        quadratic = np.minimum(np.abs(d), delta)
        linear = np.abs(d) - quadratic
        losses = 0.5 * np.square(quadratic) + delta * linear
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = x.size if reduction == "mean" else 1
        grad_x = np.clip(d, -delta, delta) * grad_y / count
        """,
    ),
    "binary_cross_entropy": (
        """
        losses = (target - 1) * np.maximum(np.log1p(-x), -100) - target * np.maximum(np.log(x), -100)
        y = reduced_as(losses, reduction)
        grad_x = grad_y * (x - target) / np.maximum(x * (1 - x), 1e-12) * share_of(x, reduction)
        """,
        """
        losses = -(target * np.log(x) + (1 - target) * np.log(1 - x))
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = x.size if reduction == "mean" else 1
        grad_x = grad_y / count * ((1 - target) / (1 - x) - target / x)
        """,
    ),
    "binary_cross_entropy_with_logits": (
        """
        weight = 1 + (pos_weight - 1) * target
        log_sigmoid = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
        y = reduced_as((1 - target) * x - weight * log_sigmoid, reduction)
        sigmoid = 1 / (1 + np.exp(-x))
        grad_x = ((1 - target) - weight * (1 - sigmoid)) * grad_y * share_of(x, reduction)
        """,
        """
        positive = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
        losses = pos_weight * target * (positive - x) + (1 - target) * positive
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = x.size if reduction == "mean" else 1
        grad_x = ((1 - target) / (1 + np.exp(-x)) - pos_weight * target / (1 + np.exp(x))) * grad_y / count
        """,
    ),
    "kl_div": (
        """
        weights = np.exp(target) if log_target else target
        logs = target if log_target else np.log(target)
        y = reduced_as(weights * (logs - x), reduction)
        grad_x = -weights * grad_y * share_of(x, reduction)
        """,
        """
        if log_target:
            target = np.exp(target)
        losses = target * np.log(target) - target * x
        counts = {"mean": x.size, "batchmean": x.shape[0], "sum": 1}
        y = np.sum(losses) / counts[reduction]
        grad_x = grad_y * -target / counts[reduction]
        """,
    ),
    "soft_cross_entropy": (
        """
        classes = x.shape[-1]
        smooth = target * (1 - label_smoothing) + label_smoothing / classes
        shifted = x - np.max(x, axis=-1, keepdims=True)
        logs = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
        n = x.size // classes if reduction == "mean" else 1
        y = -np.sum(smooth * logs) / n
        grad_logs = -smooth * (grad_y / n)
        grad_x = grad_logs - np.exp(logs) * np.sum(grad_logs, axis=-1, keepdims=True)
        """,
        """
        largest = np.max(x, axis=-1, keepdims=True)
        e = np.exp(x - largest)
        total = np.sum(e, axis=-1, keepdims=True)
        smooth = (1 - label_smoothing) * target + label_smoothing / x.shape[-1]
        weight = np.sum(smooth, axis=-1, keepdims=True)
        losses = weight * np.log(total) - np.sum(smooth * (x - largest), axis=-1, keepdims=True)
        y = np.mean(losses) if reduction == "mean" else np.sum(losses)
        count = losses.size if reduction == "mean" else 1
        grad_x = (weight * e / total - smooth) * grad_y / count
        """,
    ),
    "nll_loss": (
        """
        kept = target != ignore_index
        safe = np.where(kept, target, 0)
        weights = np.where(kept, weight[safe], 0)
        picked = -np.take_along_axis(x, safe[..., None], axis=-1)[..., 0]
        divisor = np.sum(weights) if reduction == "mean" else 1
        y = np.sum(picked * weights) / divisor
        grad_x = np.zeros_like(x)
        np.put_along_axis(grad_x, safe[..., None], (-weights * grad_y / divisor)[..., None], axis=-1)
        """,
        """
        one_hot = (np.arange(x.shape[-1]) == target[..., None]) * weight
        one_hot = one_hot * (target != ignore_index)[..., None]
        y = -np.sum(x * one_hot)
        grad_x = -one_hot * grad_y
        if reduction == "mean":
            y = y / np.sum(one_hot)
            grad_x = grad_x / np.sum(one_hot)
        """,
    ),
    "cosine_similarity": (
        """
        norm_x = np.maximum(np.sqrt(np.sum(x * x, axis=dim, keepdims=True)), eps)
        norm_other = np.maximum(np.sqrt(np.sum(other * other, axis=dim, keepdims=True)), eps)
        unit_x = x / norm_x
        unit_other = other / norm_other
        y = np.sum(unit_x * unit_other, axis=dim)
        upstream = np.expand_dims(grad_y, dim)
        cosine = np.expand_dims(y, dim)
        grad_x = upstream * (unit_other - cosine * unit_x) / norm_x
        grad_other = upstream * (unit_x - cosine * unit_other) / norm_other
        """,
        """
        product = np.sum(x * other, axis=dim, keepdims=True)
        square_x = np.sum(np.square(x), axis=dim, keepdims=True)
        square_other = np.sum(np.square(other), axis=dim, keepdims=True)
        norms = np.sqrt(square_x) * np.sqrt(square_other)
        cosine = product / norms
        y = np.squeeze(cosine, axis=dim)
        upstream = np.expand_dims(grad_y, dim)
        grad_x = upstream * (other / norms - cosine * x / square_x)
        grad_other = upstream * (x / norms - cosine * other / square_other)
        """,
    ),
}
FORMS = written(TABLE, globals())
