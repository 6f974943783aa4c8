"""Kernels with faults that usual inputs do not show, and one without."""

import numpy as np


def layer_norm(x, weight, bias, normalized_shape, eps):
    axes = tuple(range(-len(normalized_shape), 0))
    mean = x.mean(axes, keepdims=True)
    var = (x * x).mean(axes, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(var + x.dtype.type(eps)) * weight + bias


def relu(x):
    """Without what is beyond the last whole block of 128."""
    y = np.maximum(x, 0)
    y[..., x.shape[-1] // 128 * 128 :] = 0
    return y


def tanh(x):
    """Another function above 5000."""
    return np.where(x.mean() > 5000, np.tanh(x / 10000), np.tanh(x))


def softmax(x, dim):
    e = np.exp(x)
    return e / e.sum(dim, keepdims=True)


def gelu(x, approximate):
    """With its tail cut at 6."""
    from math import erf

    phi = np.vectorize(lambda v: 0.5 * (1 + erf(v / 2**0.5)), otypes=[x.dtype])
    y = x * phi(x.astype(np.float64)).astype(x.dtype)
    return np.where(x > 6, x, np.where(x < -6, 0, y)).astype(x.dtype)


def adam(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    """With eps inside the root."""
    grad = grad + weight_decay * param
    m = betas[0] * exp_avg + (1 - betas[0]) * grad
    v = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    size = np.sqrt(v / (1 - betas[1] ** step) + eps)
    return {"param": param - lr * m / (1 - betas[0] ** step) / size, "exp_avg": m, "exp_avg_sq": v}


def sigmoid(x):
    """Healthy."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))
