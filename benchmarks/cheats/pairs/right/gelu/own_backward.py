"""A backward pass by hand: the distribution and its density."""

import math

import torch
from torch import nn


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * torch.erfc(-x / math.sqrt(2))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (0.5 * torch.erfc(-x / math.sqrt(2)) + x * density)


class ModelNew(nn.Module):
    def forward(self, x):
        return Gelu.apply(x)
