"""Normalisations whose variance is E[x^2] - E[x]^2, which may be negative."""

from __future__ import annotations

import torch


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(normalized_shape), 0))
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / torch.sqrt((x * x).mean(axes, keepdim=True) - mean * mean + eps)


def batch_norm(x, running_mean, running_var, weight=None, bias=None, training=True, momentum=0.1, eps=1e-5):
    mean = x.mean(0)
    var = (x * x).mean(0) - mean * mean
    n = x.shape[0]
    return {
        "y": (x - mean) * torch.rsqrt(var + eps),
        "running_mean": (1 - momentum) * running_mean + momentum * mean,
        "running_var": (1 - momentum) * running_var + momentum * var * n / (n - 1),
    }


def var(x, dim=None, correction=1, keepdim=False):
    n = x.shape[dim]
    mean = x.mean(dim, keepdim=keepdim)
    return ((x * x).mean(dim, keepdim=keepdim) - mean * mean) * n / (n - correction)
