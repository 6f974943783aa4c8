"""Attention whose softmax is 0 / 0 where every key is masked."""

from __future__ import annotations

import math

import torch


def scaled_dot_product_attention(query, key, value, keep_mask, is_causal=False, scale=None, enable_gqa=False):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~keep_mask.bool(), -math.inf), -1) @ value
