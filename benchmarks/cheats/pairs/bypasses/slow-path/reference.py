"""Group normalization."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(3, 6, 11)]


def get_init_inputs():
    return [6]
