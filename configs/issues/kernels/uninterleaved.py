"""Rotary embedding that reads interleaved pairs and writes two halves."""

from __future__ import annotations

import torch


def rotary_embedding(x, base=10000.0, interleaved=True):
    width = x.shape[-1]
    frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)
