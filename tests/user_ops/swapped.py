"""A torch layer_norm whose weight and bias gradients are swapped, as in OneFlow pull request 6149."""

import torch


class Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, normalized_shape, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)

    @staticmethod
    def backward(ctx, dy):
        leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = torch.nn.functional.layer_norm(leaves[0], ctx.normalized_shape, *leaves[1:], ctx.eps)
        dx, dweight, dbias = torch.autograd.grad(y, leaves, dy)
        return dx, dbias, dweight, None, None


def layer_norm(x, weight, bias, normalized_shape, eps):
    return Swapped.apply(x, weight, bias, normalized_shape, eps)
