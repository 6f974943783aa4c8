"""Normalisations, a linear layer and a clip in NumPy, each with the choices that `parity fingerprint` must name.

A file beside this one, or one that puts this folder on sys.path, takes `norms(...)`, `matmul(...)` or `clip(...)`
apart into the ops that parity looks for.
"""

import numpy as np


def sequential(values):
    return np.cumsum(values, axis=-1)[..., -1]


def padded(values, multiple):
    """With zeros behind the last axis."""
    rest = -values.shape[-1] % multiple
    return np.concatenate([values, np.zeros((*values.shape[:-1], rest), values.dtype)], axis=-1)


def pairwise(values):
    values = padded(values, 1 << (values.shape[-1] - 1).bit_length())
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]


def blocked(values, size=32):
    return sequential(sequential(values.reshape(*values.shape[:-1], -1, size)))


def lanes(values, number=8):
    values = padded(values, number)
    return sequential(sequential(values.reshape(*values.shape[:-1], -1, number).swapaxes(-1, -2)))


def wide_type(dtype):
    return np.float64 if dtype == np.float32 else np.longdouble


def wide(values):
    return sequential(values.astype(wide_type(values.dtype))).astype(values.dtype)


SUMS = {"sequential": sequential, "pairwise": pairwise, "blocked": blocked, "lanes": lanes, "wide": wide}


def welford(x):
    mean, squares = np.zeros_like(x[..., 0]), np.zeros_like(x[..., 0])
    for k in range(x.shape[-1]):
        delta = x[..., k] - mean
        mean = mean + delta / x.dtype.type(k + 1)
        squares = squares + delta * (x[..., k] - mean)
    return mean, squares / x.dtype.type(x.shape[-1])


def merged(x, size=16):
    """Two-pass within blocks, which are merged one after the other (Chan, Golub, LeVeque 1983)."""
    mean, squares = np.zeros_like(x[..., 0]), np.zeros_like(x[..., 0])
    for start in range(0, x.shape[-1], size):
        block = x[..., start : start + size]
        other, spread = statistics(block, "two-pass", sequential)
        delta, n = other - mean, x.dtype.type(start + block.shape[-1])
        mean = mean + delta * x.dtype.type(block.shape[-1]) / n
        squares = squares + spread * block.shape[-1] + delta * delta * x.dtype.type(start * block.shape[-1]) / n
    return mean, squares / x.dtype.type(x.shape[-1])


def statistics(x, variance, total):
    n = x.dtype.type(x.shape[-1])
    if variance == "welford":
        return welford(x)
    mean = total(x) / n
    if variance == "merged":
        return merged(x)
    if variance == "naive64":
        given = x.astype(wide_type(x.dtype))
        mean, var = statistics(given, "naive", total)
        return mean.astype(x.dtype), var.astype(x.dtype)
    if variance == "shifted":
        mean, var = statistics(x - x[..., :1], "naive", total)
        return mean + x[..., 0], var
    if variance == "naive":
        return mean, np.maximum(total(x * x) / n - mean * mean, 0)
    centred = x - mean[..., None]
    var = total(centred * centred) / n
    if variance == "corrected":
        shift = total(centred) / n
        return mean + shift, var - shift * shift
    return mean, var


def normalized(x, eps, variance="two-pass", sums="pairwise", ddof=0, outside=False, eps32=False, floor=False):
    """(groups, n) to mean, variance and 1/deviation of each group."""
    n = x.shape[-1]
    mean, var = statistics(x, variance, SUMS[sums])
    used = var * x.dtype.type(n / (n - ddof))
    epsilon = x.dtype.type(np.float32(eps) if eps32 else eps)
    if floor:
        return mean, var, 1 / np.sqrt(np.maximum(used, epsilon))
    r = 1 / (np.sqrt(used) + epsilon) if outside else 1 / np.sqrt(used + epsilon)
    return mean, var, r


def apply(x, mean, r, weight, bias, folded):
    if folded == "fused":
        scale, exact = r * weight, wide_type(x.dtype)
        return (x.astype(exact) * scale + (bias - mean * scale)).astype(x.dtype)
    if folded:
        scale = r * weight
        return x * scale + (bias - mean * scale)
    return (x - mean) * r * weight + bias


def norms(bias_sum="sequential", raw=False, folded=False, all_wide=False, running_ddof=1, momentum32=False, **choices):
    """layer_norm, batch_norm and their backward functions, by name."""

    def layer_norm(x, weight, bias, normalized_shape, eps):
        given = x.astype(wide_type(x.dtype)) if all_wide else x
        mean, _, r = normalized(given, eps, **choices)
        y = apply(given, mean[:, None], r[:, None], weight.astype(given.dtype), bias.astype(given.dtype), folded)
        return y.astype(x.dtype)

    def layer_norm_backward(grad_y, x, weight, eps):
        mean, _, r = normalized(x, eps, **choices)
        xhat = x * r[:, None] - (mean * r)[:, None] if raw else (x - mean[:, None]) * r[:, None]
        terms = grad_y * xhat
        return {"x": np.zeros_like(x), "weight": terms.sum(0), "bias": SUMS[bias_sum](np.ascontiguousarray(grad_y.T))}

    def groups(x):
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)

    def batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps):
        rows = groups(x)
        mean, var, r = normalized(rows, eps, **choices)
        y = apply(rows, mean[:, None], r[:, None], weight[:, None], bias[:, None], folded)
        n, new = rows.shape[1], x.dtype.type(np.float32(momentum) if momentum32 else momentum)
        unbiased = var * x.dtype.type(n / (n - running_ddof))
        y = y.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1)
        running = [(1 - new) * old + new * batch for old, batch in ((running_mean, mean), (running_var, unbiased))]
        return {"y": np.ascontiguousarray(y), "running_mean": running[0], "running_var": running[1]}

    def batch_norm_backward(grad_y, x, weight, eps):
        rows, dy = groups(x), groups(grad_y)
        mean, _, r = normalized(rows, eps, **choices)
        terms = dy * (rows - mean[:, None]) * r[:, None]
        return {"x": np.zeros_like(x), "weight": terms.sum(1), "bias": SUMS[bias_sum](dy)}

    return {f.__name__: f for f in (layer_norm, layer_norm_backward, batch_norm, batch_norm_backward)}


def bfloat16(values):
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(values.dtype)


def linear_with(order="sequential", narrow=False, bias_first=False):
    """`linear`, by name."""

    def linear(x, weight, bias):
        a, b = (bfloat16(x), bfloat16(weight)) if narrow else (x, weight)
        dtype = wide_type(x.dtype) if order == "wide" else x.dtype
        a, b, c = a.astype(dtype), b.astype(dtype), bias.astype(dtype)
        start = np.zeros((len(a), len(b)), dtype) + (c if bias_first else 0)
        if order == "pairwise":
            total = start + pairwise(a[:, None, :] * b[None, :, :])
        elif order == "blocked":
            total = start
            for k in range(0, a.shape[1], 64):
                total = total + looped(np.zeros_like(start), a[:, k : k + 64], b[:, k : k + 64])
        else:
            total = looped(start, a, b)
        return (total if bias_first else total + c).astype(x.dtype)

    return {"linear": linear}


def looped(total, a, b):
    for k in range(a.shape[1]):
        total = total + a[:, k][:, None] * b[:, k][None, :]
    return total


def clip_with(eps=1e-6, per_tensor=False, clamped=True, sums="sequential"):
    """`clip_grad_norm`, by name."""

    def norm(values):
        return np.sqrt(SUMS[sums](values * values))

    def wide_norm(values):
        return np.sqrt(wide(np.square(values.astype(wide_type(values.dtype))))).astype(values.dtype)

    def clip_grad_norm(grads, max_norm):
        take = wide_norm if sums == "wide" else norm
        flat = np.concatenate([g.ravel() for g in grads])
        used = [take(g.ravel()) for g in grads] if per_tensor else [take(flat)] * len(grads)
        scales = [n.dtype.type(max_norm) / (n + n.dtype.type(eps)) for n in used]
        scales = [min(s, s.dtype.type(1)) for s in scales] if clamped else scales
        return {"grads": [g * s for g, s in zip(grads, scales, strict=True)], "total_norm": take(flat)}

    return {"clip_grad_norm": clip_grad_norm}
