"""ReLU6."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.relu6(x)


def get_inputs():
    return [4 * torch.randn(8, 32)]


def get_init_inputs():
    return []
