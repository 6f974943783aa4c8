"""The product in blocks of eight features, added up."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        y = self.linear.bias
        for part, weight in zip(x.split(8, -1), self.linear.weight.split(8, -1), strict=True):
            y = y + part @ weight.T
        return nn.functional.gelu(y)
