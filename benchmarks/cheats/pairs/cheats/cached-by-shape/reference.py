"""GELU of a projection."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return nn.functional.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(8, 24)]


def get_init_inputs():
    return [24]
