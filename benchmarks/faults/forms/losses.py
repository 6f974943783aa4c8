"""Losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def cross_entropy_log_softmax(x: Array, target: Array, grad_y: Array, ignore_index: int, reduction: str) -> Tensors:
    """torch/_decomp: _log_softmax, nll_loss_forward by gather, nll_loss_backward and _log_softmax_backward_data."""
    rows = x.reshape(-1, x.shape[-1])
    labels = target.reshape(-1)
    shifted = rows - np.max(rows, axis=1, keepdims=True)
    log_probs = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    kept = labels != ignore_index
    safe = np.where(kept, labels, 0)[:, None]
    picked = -np.take_along_axis(log_probs, safe, axis=1)[:, 0]
    total = np.sum(np.where(kept, picked, 0.0))
    count = np.sum(kept)
    upstream = grad_y
    y = total
    if reduction == "mean":
        y = total / count
        upstream = grad_y / count
    grad_log_probs = np.zeros_like(rows)
    np.put_along_axis(grad_log_probs, safe, -1.0, axis=1)
    grad_log_probs = np.where(kept[:, None], grad_log_probs * upstream, 0.0)
    grad_x = grad_log_probs - np.exp(log_probs) * np.sum(grad_log_probs, axis=1, keepdims=True)
    return {"y": y, "grad.x": grad_x.reshape(x.shape)}


def cross_entropy_logsumexp(x: Array, target: Array, grad_y: Array, ignore_index: int, reduction: str) -> Tensors:
    """optax.softmax_cross_entropy_with_integer_labels: shifted logits, the normalizer subtracted from the label's only."""
    classes = x.shape[-1]
    valid = (target != ignore_index).astype(x.dtype)
    one_hot = (target[..., None] == np.arange(classes)).astype(x.dtype)
    highest = np.max(x, axis=-1, keepdims=True)
    shifted = x - highest
    exponentials = np.exp(shifted)
    normalizer = np.sum(exponentials, axis=-1, keepdims=True)
    label_logits = np.sum(shifted * one_hot, axis=-1)
    losses = (np.log(normalizer[..., 0]) - label_logits) * valid
    softmax = exponentials / normalizer
    grad_x = (softmax - one_hot) * valid[..., None] * grad_y
    y = np.sum(losses)
    if reduction == "mean":
        y = np.sum(losses) / np.sum(valid)
        grad_x = grad_x / np.sum(valid)
    return {"y": y, "grad.x": grad_x}


def cross_entropy_online(x: Array, target: Array, grad_y: Array, ignore_index: int, reduction: str) -> Tensors:
    """Liger's kernel: row after row, blocks of classes with a running maximum and sum, gradient in a second pass.

    The label's logit is shifted before the logarithm is added, as https://github.com/ml-explore/mlx/pull/4169 asks.
    """
    rows = x.reshape(-1, x.shape[-1])
    labels = target.reshape(-1)
    classes = rows.shape[1]
    n_valid = int(np.sum(labels != ignore_index))
    grad_x = np.zeros_like(rows)
    loss = np.zeros_like(rows[:, 0])
    for row in range(rows.shape[0]):
        label = labels[row]
        if label == ignore_index:
            continue
        m = np.max(rows[row, :16])
        d = np.zeros_like(m)
        for start in range(0, classes, 16):
            block = rows[row, start : start + 16]
            m_new = np.maximum(m, np.max(block))
            d = d * np.exp(m - m_new) + np.sum(np.exp(block - m_new))
            m = m_new
        loss[row] = np.log(d) - (rows[row, label] - m)
        grad_x[row] = np.exp(rows[row] - m) / d
        grad_x[row, label] = grad_x[row, label] - 1.0
    y = np.sum(loss)
    grad_x = grad_x * grad_y
    if reduction == "mean":
        y = y / n_valid
        grad_x = grad_x / n_valid
    return {"y": y, "grad.x": grad_x.reshape(x.shape)}


def mse_loss_textbook(x: Array, target: Array, grad_y: Array, reduction: str) -> Tensors:
    """The mean (or sum) of squared differences."""
    difference = x - target
    squares = difference**2
    y = np.mean(squares)
    grad_x = 2.0 * difference / x.size * grad_y
    if reduction == "sum":
        y = np.sum(squares)
        grad_x = 2.0 * difference * grad_y
    return {"y": y, "grad.x": grad_x}


def mse_loss_decomposition(x: Array, target: Array, grad_y: Array, reduction: str) -> Tensors:
    """torch/_decomp: mse_loss and mse_loss_backward."""
    norm = 2.0 / x.size if reduction == "mean" else 2.0
    loss = (x - target) * (x - target)
    y = loss.mean() if reduction == "mean" else loss.sum()
    grad_x = norm * (x - target) * grad_y
    return {"y": y, "grad.x": grad_x}


def mse_loss_by_rows(x: Array, target: Array, grad_y: Array, reduction: str) -> Tensors:
    """Partial sums of the rows, then their sum; the scale applied to the upstream gradient."""
    rows = x.reshape(x.shape[0], -1)
    wanted = target.reshape(x.shape[0], -1)
    partial = np.einsum("ij,ij->i", rows - wanted, rows - wanted)
    count = rows.size if reduction == "mean" else 1
    y = np.sum(partial) / count
    upstream = grad_y / count
    grad_x = (rows - wanted) * (upstream + upstream)
    return {"y": y, "grad.x": grad_x.reshape(x.shape)}
