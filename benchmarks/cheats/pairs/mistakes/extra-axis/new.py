"""The result has one more axis, of length 1."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, x):
        return (a @ x[..., None])[None, ..., 0]
