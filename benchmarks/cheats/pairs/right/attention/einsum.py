"""einsum, and the division by the sum at the end."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return torch.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1)[..., None]
