"""The gate has no gradient."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.value = nn.Linear(features, features)
        self.gate = nn.Linear(features, features)

    def forward(self, x):
        with torch.no_grad():
            gate = torch.sigmoid(self.gate(x))
        return self.value(x) * gate
