"""Both branches, and a choice."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.where(x.abs() <= 1.5, 0.5 * x * x, 1.5 * (x.abs() - 0.75))
