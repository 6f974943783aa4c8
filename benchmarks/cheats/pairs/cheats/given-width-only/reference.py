"""Sum of the absolute values of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.abs().sum(1, keepdim=True)


def get_inputs():
    return [torch.randn(8, 128)]


def get_init_inputs():
    return []
