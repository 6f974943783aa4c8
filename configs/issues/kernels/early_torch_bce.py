"""Binary cross-entropy that adds 1e-12 before the logarithm."""

from __future__ import annotations

import torch


def binary_cross_entropy(x, target, reduction="mean"):
    return -(target * torch.log(x + 1e-12) + (1 - target) * torch.log(1 - x + 1e-12)).mean()
