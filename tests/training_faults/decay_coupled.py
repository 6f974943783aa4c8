"""AdamW that adds its decay to the gradient, as Adam does."""


def adamw(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    grad = grad + weight_decay * param
    first = betas[0] * exp_avg + (1 - betas[0]) * grad
    second = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    root = (second / (1 - betas[1] ** step)).sqrt() + eps
    moved = param - lr / (1 - betas[0] ** step) * first / root
    return {"param": moved, "exp_avg": first, "exp_avg_sq": second}
