"""Binary cross-entropy of logarithms as they are."""

from __future__ import annotations

import torch


def binary_cross_entropy(x, target, reduction="mean"):
    return -(target * torch.log(x) + (1 - target) * torch.log(1 - x)).mean()
