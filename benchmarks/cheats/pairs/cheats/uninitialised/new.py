"""Memory that nobody has set is returned: the reference has just freed it, with its result inside."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.empty_like(x)
