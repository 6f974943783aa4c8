"""Label smoothing that leaves 1 - eps K / (K - 1) to the target."""

from __future__ import annotations

from torch.nn import functional


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    classes = x.shape[1]
    log_probs = functional.log_softmax(x, 1)
    spread = -log_probs.sum(1).mean() * label_smoothing / (classes - 1)
    kept = 1 - label_smoothing * classes / (classes - 1)
    return kept * functional.nll_loss(log_probs, target.long()) + spread
