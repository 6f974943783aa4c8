"""By pairs, as a tree."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        while x.shape[1] > 1:
            x = nn.functional.pad(x, (0, x.shape[1] % 2))
            x = x[:, ::2] + x[:, 1::2]
        return x[:, 0] if x.shape[1] else torch.zeros(x.shape[0], dtype=x.dtype)
