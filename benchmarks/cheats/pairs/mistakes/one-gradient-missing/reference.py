"""Two projections that gate each other."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.value = nn.Linear(features, features)
        self.gate = nn.Linear(features, features)

    def forward(self, x):
        return self.value(x) * torch.sigmoid(self.gate(x))


def get_inputs():
    return [torch.randn(6, 16)]


def get_init_inputs():
    return [16]
