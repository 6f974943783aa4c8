"""AdamW without bias correction."""


def adamw(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    first = betas[0] * exp_avg + (1 - betas[0]) * grad
    second = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    moved = param * (1 - lr * weight_decay) - lr * first / (second.sqrt() + eps)
    return {"param": moved, "exp_avg": first, "exp_avg_sq": second}
