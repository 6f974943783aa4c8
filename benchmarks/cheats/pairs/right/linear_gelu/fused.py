"""`addmm`, and GELU by the error function."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        y = torch.addmm(self.linear.bias, x, self.linear.weight.T)
        return 0.5 * y * torch.erfc(-y * 0.7071067811865476)
