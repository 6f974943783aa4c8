"""Rows less their mean, by their standard deviation."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        return centred / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)


def get_inputs():
    return [torch.randn(8, 40)]


def get_init_inputs():
    return []
