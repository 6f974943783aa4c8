"""Without a branch: a clamp of the difference."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        size = x.abs()
        near = size.clamp(max=1.5)
        return 0.5 * near * near + 1.5 * (size - near)
