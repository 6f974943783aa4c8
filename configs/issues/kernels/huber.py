"""smooth_l1_loss that is beta times as large: the Huber loss."""

from __future__ import annotations

from torch.nn import functional


def smooth_l1_loss(x, target, reduction="mean", beta=1.0):
    return functional.huber_loss(x, target, delta=beta)
