"""Average pooling along time."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.avg_pool1d(x, 3, stride=2)


def get_inputs():
    return [torch.randn(4, 6, 31)]


def get_init_inputs():
    return []
