"""A convolution of images, example by example."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(3, 4, 9, 11)]


def get_init_inputs():
    return [4, 6]
