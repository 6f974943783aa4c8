"""LayerNorm with weight and bias, row by row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(8, 40)]


def get_init_inputs():
    return [40]
