"""batch_norm that normalises with its running statistics while it trains."""


def batch_norm(x, running_mean, running_var, training, momentum, eps, weight=None, bias=None):
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    mean, var = running_mean.clone().view(shape), running_var.clone().view(shape)
    y = (x - mean) / (var + eps).sqrt() * weight.view(shape) + bias.view(shape)
    seen = x.detach()
    new_mean = (1 - momentum) * running_mean + momentum * seen.mean(axes)
    new_var = (1 - momentum) * running_var + momentum * seen.var(axes)
    return {"y": y, "running_mean": new_mean, "running_var": new_var}
