"""Leaky ReLU of inputs from [0, 1)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return nn.functional.leaky_relu(x, self.slope)


def get_inputs():
    return [torch.rand(16, 64)]


def get_init_inputs():
    return [0.01]
