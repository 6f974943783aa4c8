"""A gated sum of two inputs."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        gate = torch.sigmoid(x - y)
        return gate * x + (1 - gate) * y


def get_inputs():
    return [torch.randn(8, 20), torch.randn(8, 20)]


def get_init_inputs():
    return []
