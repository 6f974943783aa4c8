"""Huber loss of differences below 1."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.smooth_l1_loss(x, y)


def get_inputs():
    return [torch.rand(8, 24), torch.rand(8, 24)]


def get_init_inputs():
    return []
