"""The padding is 0 in place of −inf, so that a window of negative inputs has the maximum 0."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.max_pool2d(nn.functional.pad(x, (1, 1, 1, 1)), 3, stride=2)
