"""A correct layer_norm with its own backward, for the other fakes to spoil."""

import numpy as np


def layer_norm(x, weight, bias, normalized_shape, eps):
    xhat, _ = normalized(x, eps)
    return (xhat * weight + bias).astype(x.dtype)


def layer_norm_backward(grad_y, x, weight, eps):
    xhat, rstd = normalized(x, eps)
    g = grad_y.astype(np.float64) * weight
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    gradients = {"x": dx, "weight": (grad_y * xhat).sum(0), "bias": grad_y.astype(np.float64).sum(0)}
    return {name: value.astype(x.dtype) for name, value in gradients.items()}


def normalized(x, eps):
    x = x.astype(np.float64)
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) * rstd, rstd
