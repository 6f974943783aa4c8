"""A backward pass by hand, with weight and bias."""

import torch
from torch import nn


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normal = centred * scale
        ctx.save_for_backward(normal, weight, scale)
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normal, weight, scale = ctx.saved_tensors
        rows = tuple(range(grad.ndim - 1))
        g = grad * weight
        dx = scale * (g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True))
        return dx, (grad * normal).sum(rows), grad.sum(rows), None


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x):
        return Norm.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)
