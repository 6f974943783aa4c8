"""Cosine similarity that divides by the product of the norms, each at least eps."""

from __future__ import annotations

import torch


def cosine_similarity(x, other, dim=1, eps=1e-8):
    norms = [torch.linalg.vector_norm(values, dim=dim).clamp(min=eps) for values in (x, other)]
    return (x * other).sum(dim) / (norms[0] * norms[1])
