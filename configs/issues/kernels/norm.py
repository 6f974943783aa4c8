"""RMSNorm that squares in the dtype of x, and L2 normalisation by rsqrt."""

from __future__ import annotations

import torch


def rms_norm(x, normalized_shape, weight=None, eps=1e-6):
    axes = tuple(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + eps)
    return y if weight is None else y * weight


def normalize(x, p=2.0, dim=1, eps=1e-12):
    square_sum = (x * x).sum(dim, keepdim=True)
    return x * torch.minimum(torch.rsqrt(square_sum), torch.full_like(square_sum, 1 / eps))
