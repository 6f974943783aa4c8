"""The weight first, and a product with the reciprocal root."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return (self.weight * x) * torch.rsqrt(torch.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1] + 1e-5)
