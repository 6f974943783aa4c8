"""GELU by its approximation with tanh."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x, approximate="tanh")
