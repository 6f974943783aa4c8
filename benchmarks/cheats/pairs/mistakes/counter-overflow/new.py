"""The counter has eight bits, and begins again after 255."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x > 0).sum(1, dtype=torch.uint8).to(x.dtype)
