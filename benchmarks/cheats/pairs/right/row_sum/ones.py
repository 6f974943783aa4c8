"""A product with ones."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x @ torch.ones(x.shape[1], dtype=x.dtype)
