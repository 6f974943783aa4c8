"""A row of zeros is divided by zero."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x / x.square().sum(1, keepdim=True).sqrt()
