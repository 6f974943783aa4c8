"""Mish."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.mish(x)


def get_inputs():
    return [torch.randn(12, 25)]


def get_init_inputs():
    return []
