"""The result is written over the input."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.relu_()
