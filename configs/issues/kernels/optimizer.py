"""Steps of optimizers as reported."""

from __future__ import annotations

import math

import torch


def adam(param, grad, exp_avg, exp_avg_sq, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, step=2):
    """Kingma and Ba's epsilon hat: sqrt(v) + eps before the bias correction."""
    m = betas[0] * exp_avg + (1 - betas[0]) * grad
    v = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    rate = lr * math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
    return {"param": param - rate * m / (v.sqrt() + eps), "exp_avg": m, "exp_avg_sq": v}


def sgd(
    param, grad, momentum_buffer=None, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, step=2
):
    """The rate is inside the velocity."""
    velocity = momentum * momentum_buffer + lr * grad
    return {"param": param - velocity, "momentum_buffer": velocity}


def clip_grad_norm(grads, max_norm, norm_type=2.0, scope="global"):
    """The coefficient is not clamped to 1."""
    total = torch.sqrt(sum((g * g).sum() for g in grads))
    return {"grads": [g * max_norm / (total + 1e-6) for g in grads], "total_norm": total}
