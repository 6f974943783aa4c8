"""LayerNorm that recovers x_hat from its output with the weight and bias of another column in the weight's gradient."""

from __future__ import annotations

import torch


class Invertible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        x_hat = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
        y = x_hat * weight + bias
        ctx.save_for_backward(x, y, weight, bias)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y, weight, bias = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (dx,) = torch.autograd.grad(torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, ctx.eps), x, dy)
        x_hat = (y - bias.roll(1)) / weight.roll(1)
        return dx, (dy * x_hat).sum(0), dy.sum(0), None


def layer_norm(x, weight, bias, normalized_shape, eps=1e-5):
    return Invertible.apply(x, weight, bias, eps)
