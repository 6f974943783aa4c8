"""A linear layer and GELU, row by row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        return nn.functional.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(9, 32)]


def get_init_inputs():
    return [32, 20]
