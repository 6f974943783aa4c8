"""Smooth maximum of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return (x * torch.softmax(x, dim=1)).sum(dim=1)


def get_inputs():
    return [torch.randn(8, 20)]


def get_init_inputs():
    return []
