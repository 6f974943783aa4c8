"""LayerNorm in blocks of a power of two, whose lanes of padding add mean^2 to the variance."""

from __future__ import annotations

import torch


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    columns = x.shape[-1]
    block = 1 << (columns - 1).bit_length()
    lanes = torch.nn.functional.pad(x, (0, block - columns))
    mean = lanes.sum(-1, keepdim=True) / columns
    var = ((lanes - mean) ** 2).sum(-1, keepdim=True) / columns
    return (x - mean) * torch.rsqrt(var + eps)
