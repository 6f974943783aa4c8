"""Products of a batch of matrices with vectors."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, x):
        return torch.einsum("bij,bj->bi", a, x)


def get_inputs():
    return [torch.randn(4, 6, 5), torch.randn(4, 5)]


def get_init_inputs():
    return []
