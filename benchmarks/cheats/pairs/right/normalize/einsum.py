"""The length by einsum, and torch's least length of 1e-12."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        squares = torch.einsum("bi,bi->b", x, x)[:, None]
        length = torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt() * (squares > 0)
        return x / length.clamp(min=1e-12)
