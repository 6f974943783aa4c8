"""Attention whose causal mask ends in the bottom right corner."""

from __future__ import annotations

import torch


def scaled_dot_product_attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    keep = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, keep)
