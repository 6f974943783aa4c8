"""A linear layer of 64 features with a sigmoid."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 16)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))


def get_inputs():
    return [torch.rand(8, 64)]


def get_init_inputs():
    return [64]
