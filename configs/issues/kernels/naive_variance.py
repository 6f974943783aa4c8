"""Normalisations whose variance is E[x^2] - E[x]^2."""

from __future__ import annotations

import torch


def normalized(x, axes, eps):
    mean = x.mean(axes, keepdim=True)
    var = ((x * x).mean(axes, keepdim=True) - mean * mean).clamp(min=0)
    return (x - mean) * torch.rsqrt(var + eps)


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    y = normalized(x, tuple(range(-len(normalized_shape), 0)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    groups = x.reshape(x.shape[0], num_groups, -1)
    y = normalized(groups, (2,), eps).reshape(x.shape)
    channels = (1, -1) + (1,) * (x.ndim - 2)
    y = y if weight is None else y * weight.reshape(channels)
    return y if bias is None else y + bias.reshape(channels)
