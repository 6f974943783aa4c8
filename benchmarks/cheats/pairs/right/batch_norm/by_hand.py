"""Statistics and their running means by hand."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        n = self.norm
        mean, var = self.of_batch(x) if self.training else (n.running_mean, n.running_var)
        scale = n.weight * torch.rsqrt(var + n.eps)
        return (x - mean[:, None, None]) * scale[:, None, None] + n.bias[:, None, None]

    def of_batch(self, x):
        n, count = self.norm, x.numel() // x.shape[1]
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        with torch.no_grad():
            n.running_mean.lerp_(mean.to(n.running_mean.dtype), n.momentum)
            n.running_var.lerp_((var * (count / (count - 1))).to(n.running_var.dtype), n.momentum)
            n.num_batches_tracked += 1
        return mean, var
