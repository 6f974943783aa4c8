"""The 1e-5 is added after the root, which shows where a row hardly varies."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        return centred / (torch.sqrt(centred.square().mean(1, keepdim=True)) + 1e-5)
