"""RMSNorm with a learnt weight."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(8, 32)]


def get_init_inputs():
    return [32]
