"""Maximum and sum in one pass over blocks of columns."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        largest = torch.full_like(x[..., :1], torch.finfo(x.dtype).min)
        total = torch.zeros_like(largest)
        for block in x.split(8, -1):
            top = torch.maximum(largest, block.amax(-1, keepdim=True))
            total = total * torch.exp(largest - top) + torch.exp(block - top).sum(-1, keepdim=True)
            largest = top
        return torch.exp(x - largest) / total
