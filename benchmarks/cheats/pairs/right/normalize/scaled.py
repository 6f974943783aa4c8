"""Lengths of rows that are scaled by their largest element first, so that squares neither overflow nor vanish."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        size = x.detach().abs().amax(1, keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
        length = size * torch.linalg.vector_norm(x / size, dim=1, keepdim=True)
        return x / length.clamp(min=1e-12)
