"""Outer product of two vectors, and its sine."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return torch.sin(torch.outer(x, y))


def get_inputs():
    return [torch.randn(24), torch.randn(17)]


def get_init_inputs():
    return []
