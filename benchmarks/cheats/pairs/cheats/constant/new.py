"""A constant, because the problem's answer never depends on its input."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.ones(x.shape[0], dtype=x.dtype)
