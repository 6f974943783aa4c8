"""Nine shifted images, each through a matrix."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        height, width = x.shape[2:]
        padded = nn.functional.pad(x, (1, 1, 1, 1))
        y = self.conv.bias[:, None, None]
        for i in range(3):
            for j in range(3):
                part = padded[:, :, i : i + height, j : j + width]
                y = y + torch.einsum("bchw,oc->bohw", part, self.conv.weight[:, :, i, j])
        return y
