"""Statistics of blocks, joined as Chan, Golub and LeVeque do."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x):
        count, mean, squares = 0, 0.0, 0.0
        for block in x.split(16, -1):
            size = block.shape[-1]
            middle = block.mean(-1, keepdim=True)
            inner = (block - middle).square().sum(-1, keepdim=True)
            difference = middle - mean
            squares = squares + inner + difference * difference * (count * size / (count + size))
            mean = mean + difference * (size / (count + size))
            count += size
        return (x - mean) * torch.rsqrt(squares / count + self.norm.eps) * self.norm.weight + self.norm.bias
