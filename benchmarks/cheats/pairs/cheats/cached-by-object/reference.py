"""Mean of the squares of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.square().mean(1)


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
