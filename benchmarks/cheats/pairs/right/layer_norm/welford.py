"""Mean and variance by Welford's update, a column at a time."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x):
        mean = torch.zeros_like(x[..., 0])
        squares = torch.zeros_like(mean)
        for count, column in enumerate(x.unbind(-1), 1):
            difference = column - mean
            mean = mean + difference / count
            squares = squares + difference * (column - mean)
        scale = torch.rsqrt(squares / x.shape[-1] + self.norm.eps)
        return (x - mean[..., None]) * scale[..., None] * self.norm.weight + self.norm.bias
