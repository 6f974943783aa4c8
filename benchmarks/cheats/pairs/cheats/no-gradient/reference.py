"""Softplus of a projection."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 8)

    def forward(self, x):
        return nn.functional.softplus(self.linear(x))


def get_inputs():
    return [torch.randn(10, 16)]


def get_init_inputs():
    return [16]
