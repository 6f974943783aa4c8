"""The running variance gets the biased variance of the batch."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        norm = self.norm
        if not self.training:
            return norm(x)
        mean, var = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(var, norm.momentum)
            norm.num_batches_tracked += 1
        return (x - mean) * torch.rsqrt(var + norm.eps) * norm.weight + norm.bias
