"""Position of the first largest element of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        best = torch.where(x == x.amax(1, keepdim=True), torch.arange(x.shape[1]), x.shape[1])
        return best.amin(1).to(x.dtype)


def get_inputs():
    return [torch.randn(16, 20)]


def get_init_inputs():
    return []
