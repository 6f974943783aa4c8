"""Attention whose mask is True where a position is left out, as in nn.MultiheadAttention."""

from __future__ import annotations

import torch


def scaled_dot_product_attention(query, key, value, keep_mask, is_causal=False, scale=None, enable_gqa=False):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, ~keep_mask.bool())
