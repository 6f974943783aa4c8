"""Zeros, because the problem's answer never depends on its input."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 32)

    def forward(self, x):
        return torch.zeros(x.shape[0], 1, dtype=x.dtype)
