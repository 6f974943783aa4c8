"""Rows and features padded with zeros to blocks of 16, and cut again."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        rows, inside = x.shape
        x = nn.functional.pad(x, (0, -inside % 16, 0, -rows % 16))
        weight = nn.functional.pad(self.linear.weight, (0, -inside % 16))
        return nn.functional.gelu((x @ weight.T)[:rows] + self.linear.bias)
