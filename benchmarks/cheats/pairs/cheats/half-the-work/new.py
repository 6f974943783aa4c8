"""The mean of the first half of each row."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x[:, : x.shape[1] // 2].mean(dim=1)
