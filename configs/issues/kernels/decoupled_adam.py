"""Adam with the weight decay of AdamW."""

from __future__ import annotations

import math


def adam(param, grad, exp_avg, exp_avg_sq, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, step=2):
    param = param * (1 - lr * weight_decay)
    m = betas[0] * exp_avg + (1 - betas[0]) * grad
    v = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    denominator = v.sqrt() / math.sqrt(1 - betas[1] ** step) + eps
    return {"param": param - lr / (1 - betas[0] ** step) * m / denominator, "exp_avg": m, "exp_avg_sq": v}
