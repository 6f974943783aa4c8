"""Exponential linear unit of a difference."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.elu(x - y)


def get_inputs():
    return [torch.randn(12, 16), torch.randn(12, 16)]


def get_init_inputs():
    return []
