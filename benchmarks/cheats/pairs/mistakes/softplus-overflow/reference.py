"""Softplus."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x)


def get_inputs():
    return [torch.randn(8, 24)]


def get_init_inputs():
    return []
