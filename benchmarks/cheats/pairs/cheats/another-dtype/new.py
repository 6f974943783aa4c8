"""The result is float64, where the reference's is float32."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.cumsum(x.double(), dim=1)
