"""Hyperbolic tangent of a sum along channels."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x.sum(1))


def get_inputs():
    return [torch.randn(16, 6, 10)]


def get_init_inputs():
    return []
