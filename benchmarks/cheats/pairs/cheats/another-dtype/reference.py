"""Cumulative sum of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.randn(6, 30)]


def get_init_inputs():
    return []
