"""An embedding that gives zeros for an index that is out of range."""

from __future__ import annotations

from torch.nn import functional


def embedding(x, weight, num_embeddings=None, embedding_dim=None):
    inside = (x >= 0) & (x < weight.shape[0])
    return functional.embedding(x * inside, weight) * inside[..., None]
