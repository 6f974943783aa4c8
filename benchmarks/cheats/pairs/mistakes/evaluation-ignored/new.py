"""The statistics of the batch are taken also in evaluation."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        n = self.norm
        y = nn.functional.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, True, n.momentum, n.eps)
        if self.training:
            n.num_batches_tracked += 1
        return torch.relu(y)
