"""A bilinear form of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, w, y):
        return torch.einsum("bi,ij,bj->b", x, w, y)


def get_inputs():
    return [torch.randn(10, 7), torch.randn(7, 5), torch.randn(10, 5)]


def get_init_inputs():
    return []
