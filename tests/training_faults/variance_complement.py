"""The running variance is updated with 1 - momentum, the running mean rightly."""

import torch


def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    axes = (0, *range(2, x.ndim))
    n = x.numel() // x.shape[1]
    mean, var = x.mean(axes), x.var(axes, correction=0)
    shape = (1, -1, *(1 for _ in axes[1:]))
    scaled = (x - mean.view(shape)) / (var + eps).sqrt().view(shape)
    with torch.no_grad():
        new_mean = (1 - momentum) * running_mean + momentum * mean
        new_var = momentum * running_var + (1 - momentum) * var * n / (n - 1)
    y = scaled * weight.view(shape) + bias.view(shape)
    return {"y": y, "running_mean": new_mean, "running_var": new_var}
