"""The result has no gradient: nothing is recorded."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 8)

    @torch.no_grad()
    def forward(self, x):
        return nn.functional.softplus(self.linear(x))
