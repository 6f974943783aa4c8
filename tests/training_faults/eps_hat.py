"""AdamW with eps beside the uncorrected root."""

import math


def adamw(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    first = betas[0] * exp_avg + (1 - betas[0]) * grad
    second = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    rate = lr * math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
    moved = param * (1 - lr * weight_decay) - rate * first / (second.sqrt() + eps)
    return {"param": moved, "exp_avg": first, "exp_avg_sq": second}
