"""Exponential of the difference to the logarithm of the sum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
