"""How many elements of each row are positive."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return (x > 0).sum(1).to(x.dtype)


def get_inputs():
    return [torch.randn(8, 100)]


def get_init_inputs():
    return []
