"""Losses as reported."""

from __future__ import annotations

import torch
from torch.nn import functional


def smooth_l1_loss(x, target, reduction="mean", beta=1.0):
    """The quadratic part is not divided by beta, and the linear part starts where beta is 1."""
    d = (x - target).abs()
    return torch.where(d < beta, 0.5 * d * d, d - 0.5).mean()


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """The mean of weighted rows is over their number."""
    return functional.cross_entropy(x, target.long(), weight, reduction="none").mean()


def kl_div(x, target, reduction="mean", log_target=False):
    """The mean is over all elements."""
    return functional.kl_div(x, target, reduction="none").mean()


def ctc_loss(x, target, input_lengths, target_lengths, blank=0, reduction="mean"):
    """The mean over the batch, without a division by the targets' lengths."""
    log_probs = functional.log_softmax(x, -1)
    return functional.ctc_loss(log_probs, target, input_lengths, target_lengths, blank, "none").mean()


def binary_cross_entropy(x, target, reduction="mean"):
    """Keras: clipped to [eps, 1 - eps], and eps is added once more before the logarithm."""
    eps = 1e-7
    p = x.clamp(eps, 1 - eps)
    return -(target * torch.log(p + eps) + (1 - target) * torch.log(1 - p + eps)).mean()


def binary_cross_entropy_with_logits(x, target, pos_weight=None, reduction="mean"):
    """The derivative of |x| and of max(-x, 0) is 0 at 0."""
    return (functional.relu(x) - x * target + torch.log1p(torch.exp(-x.abs()))).mean()


def cosine_similarity(x, other, dim=1, eps=1e-8):
    """Optax: the squared norms are at least eps."""
    norms = [torch.sqrt((values * values).sum(dim).clamp(min=eps)) for values in (x, other)]
    return (x * other).sum(dim) / norms[0] / norms[1]
