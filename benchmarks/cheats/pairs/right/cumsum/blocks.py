"""Sums within blocks of eight, plus what is before each."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        before, parts = torch.zeros_like(x[:, :1]), []
        for block in x.split(8, 1):
            parts.append(before + torch.cumsum(block, 1))
            before = parts[-1][:, -1:]
        return torch.cat(parts, 1)
