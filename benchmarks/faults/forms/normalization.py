"""Normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def layer_norm_textbook(
    x: Array, weight: Array, bias: Array, grad_y: Array, normalized_shape: tuple[int, ...], eps: float
) -> Tensors:
    """Ba, Kiros and Hinton 2016, backward by the chain rule through variance and mean (as in Ioffe and Szegedy 2015)."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    rows = tuple(range(x.ndim - len(normalized_shape)))
    n = np.prod(normalized_shape).item()
    mean = np.mean(x, axis=axes, keepdims=True)
    centered = x - mean
    var = np.mean(np.square(centered), axis=axes, keepdims=True)
    std = np.sqrt(var + eps)
    normalized = centered / std
    y = normalized * weight + bias
    grad_normalized = grad_y * weight
    grad_var = np.sum(grad_normalized * centered, axis=axes, keepdims=True) * -0.5 / (std * std * std)
    grad_mean = -np.sum(grad_normalized / std, axis=axes, keepdims=True)
    grad_x = grad_normalized / std + grad_var * 2.0 * centered / n + grad_mean / n
    grad_weight = np.sum(grad_y * normalized, axis=rows)
    grad_bias = np.sum(grad_y, axis=rows)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def layer_norm_fused(
    x: Array, weight: Array, bias: Array, grad_y: Array, normalized_shape: tuple[int, ...], eps: float
) -> Tensors:
    """torch/_decomp/decompositions.py: native_layer_norm and native_layer_norm_backward."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    rows = tuple(range(x.ndim - len(normalized_shape)))
    n = np.prod(normalized_shape).item()
    mean = np.mean(x, axis=axes, keepdims=True)
    rstd = 1.0 / np.sqrt(np.var(x, axis=axes, keepdims=True) + eps)
    x_hat = (x - mean) * rstd
    y = x_hat * weight + bias
    grad_x_hat = grad_y * weight
    a = grad_x_hat * n
    b = np.sum(grad_x_hat, axis=axes, keepdims=True)
    c1 = grad_x_hat * x_hat
    c2 = np.sum(c1, axis=axes, keepdims=True)
    c3 = x_hat * c2
    inner = a - b - c3
    grad_x = (rstd / n) * inner
    grad_weight = np.sum(grad_y * x_hat, axis=rows)
    grad_bias = np.sum(grad_y, axis=rows)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def layer_norm_shifted(
    x: Array, weight: Array, bias: Array, grad_y: Array, normalized_shape: tuple[int, ...], eps: float
) -> Tensors:
    """One pass over data shifted by their first element (Chan, Golub and LeVeque 1983); backward as in Apex's kernel."""
    n = np.prod(normalized_shape).item()
    rows = x.reshape(-1, n)
    upstream = grad_y.reshape(-1, n)
    gamma = weight.reshape(n)
    beta = bias.reshape(n)
    shift = rows[:, :1]
    moved = rows - shift
    first = np.sum(moved, axis=1, keepdims=True) / n
    second = np.sum(moved * moved, axis=1, keepdims=True) / n
    var = np.maximum(second - first * first, 0.0)
    invvar = 1.0 / np.sqrt(var + eps)
    x_hat = (moved - first) * invvar
    y = gamma * x_hat + beta
    scaled = upstream * gamma
    sum_loss1 = np.mean(scaled, axis=1, keepdims=True)
    sum_loss2 = np.mean(scaled * x_hat, axis=1, keepdims=True)
    grad_x = (scaled - sum_loss1 - x_hat * sum_loss2) * invvar
    grad_weight = np.einsum("ij,ij->j", upstream, x_hat)
    grad_bias = np.einsum("ij->j", upstream)
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight.reshape(weight.shape),
        "grad.bias": grad_bias.reshape(bias.shape),
    }


def layer_norm_moments_by_blocks(
    x: Array, weight: Array, bias: Array, grad_y: Array, normalized_shape: tuple[int, ...], eps: float
) -> Tensors:
    """Moments of blocks combined as in Chan, Golub and LeVeque 1983 (ATen's RowwiseMoments); grads accumulated by rows."""
    n = np.prod(normalized_shape).item()
    rows = x.reshape(-1, n)
    upstream = grad_y.reshape(-1, n)
    count = 0
    mean = np.zeros_like(rows[:, 0])
    m2 = np.zeros_like(rows[:, 0])
    for start in range(0, n, 16):
        block = rows[:, start : start + 16]
        size = block.shape[1]
        block_mean = np.mean(block, axis=1)
        block_m2 = np.sum(np.square(block - block_mean[:, None]), axis=1)
        delta = block_mean - mean
        total = count + size
        mean = mean + delta * (size / total)
        m2 = m2 + block_m2 + delta * delta * (count * size / total)
        count = total
    rstd = 1.0 / np.sqrt(m2 / n + eps)
    x_hat = (rows - mean[:, None]) * rstd[:, None]
    y = x_hat * weight.reshape(n) + bias.reshape(n)
    g = upstream * weight.reshape(n)
    mean_g = np.sum(g, axis=1) / n
    mean_gx = np.sum(g * x_hat, axis=1) / n
    grad_x = rstd[:, None] * (g - mean_g[:, None] - x_hat * mean_gx[:, None])
    grad_weight = np.zeros_like(weight.reshape(n))
    grad_bias = np.zeros_like(bias.reshape(n))
    for start in range(0, rows.shape[0], 8):
        grad_weight = grad_weight + np.sum(upstream[start : start + 8] * x_hat[start : start + 8], axis=0)
        grad_bias = grad_bias + np.sum(upstream[start : start + 8], axis=0)
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight.reshape(weight.shape),
        "grad.bias": grad_bias.reshape(bias.shape),
    }


def group_norm_textbook(x: Array, weight: Array, bias: Array, grad_y: Array, num_groups: int, eps: float) -> Tensors:
    """Wu and He 2018, section 3.2: reshape, moments, normalise; backward by the chain rule."""
    n, c = x.shape[0], x.shape[1]
    grouped = x.reshape(n, num_groups, -1)
    m = grouped.shape[2]
    mean = np.mean(grouped, axis=2, keepdims=True)
    centered = grouped - mean
    var = np.mean(centered * centered, axis=2, keepdims=True)
    std = np.sqrt(var + eps)
    normalized = (centered / std).reshape(n, c, -1)
    gamma = weight.reshape(1, c, 1)
    beta = bias.reshape(1, c, 1)
    y = normalized * gamma + beta
    upstream = grad_y.reshape(n, c, -1)
    grad_normalized = (upstream * gamma).reshape(n, num_groups, -1)
    grad_var = np.sum(grad_normalized * centered, axis=2, keepdims=True) * -0.5 / (std * std * std)
    grad_mean = np.sum(-grad_normalized / std, axis=2, keepdims=True)
    grad_x = grad_normalized / std + 2.0 * grad_var * centered / m + grad_mean / m
    grad_weight = np.sum(upstream * normalized, axis=(0, 2))
    grad_bias = np.sum(upstream, axis=(0, 2))
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def group_norm_decomposition(
    x: Array, weight: Array, bias: Array, grad_y: Array, num_groups: int, eps: float
) -> Tensors:
    """torch/_decomp/decompositions.py: native_group_norm and native_group_norm_backward, on centered data.

    The sums `ds` and `db` are taken per channel first; the centered form avoids their cancellation.
    """
    n, c = x.shape[0], x.shape[1]
    per_group = c // num_groups
    flat = x.reshape(n, c, -1)
    hxw = flat.shape[2]
    grouped = x.reshape(n, num_groups, -1)
    mean = np.mean(grouped, axis=2)
    var = np.var(grouped, axis=2)
    rstd = 1.0 / np.sqrt(var + eps)
    mean_of_channel = np.repeat(mean, per_group, axis=1)[:, :, None]
    rstd_of_channel = np.repeat(rstd, per_group, axis=1)[:, :, None]
    centered = flat - mean_of_channel
    y = centered * rstd_of_channel * weight[None, :, None] + bias[None, :, None]
    upstream = grad_y.reshape(n, c, -1)
    ds = np.sum(upstream * centered, axis=2)
    db = np.sum(upstream, axis=2)
    s = 1.0 / (hxw * per_group)
    ds_val = np.sum((ds * weight).reshape(n, num_groups, per_group), axis=2)
    db_val = np.sum((db * weight).reshape(n, num_groups, per_group), axis=2)
    c1 = rstd_of_channel * weight[None, :, None]
    c2 = np.repeat(-ds_val * rstd * rstd * rstd * s, per_group, axis=1)[:, :, None]
    c3 = np.repeat(-db_val * rstd * s, per_group, axis=1)[:, :, None]
    grad_x = upstream * c1 + centered * c2 + c3
    grad_weight = np.sum(ds * rstd_of_channel[:, :, 0], axis=0)
    grad_bias = np.sum(db, axis=0)
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def group_norm_shifted(x: Array, weight: Array, bias: Array, grad_y: Array, num_groups: int, eps: float) -> Tensors:
    """One pass over shifted data; affine and gradients by broadcasting over channels, group by group."""
    y = np.empty_like(x)
    grad_x = np.empty_like(x)
    grad_weight = np.empty_like(weight)
    grad_bias = np.empty_like(bias)
    per_group = x.shape[1] // num_groups
    channels = (1, per_group) + (1,) * (x.ndim - 2)
    inner = tuple(range(1, x.ndim))
    others = (0, *range(2, x.ndim))
    for group in range(num_groups):
        part = slice(group * per_group, (group + 1) * per_group)
        block = x[:, part]
        g = grad_y[:, part]
        w = weight[part].reshape(channels)
        shift = np.mean(block, axis=inner, keepdims=True)
        moved = block - shift
        rest = np.mean(moved, axis=inner, keepdims=True)
        var = np.mean(moved * moved, axis=inner, keepdims=True) - rest * rest
        inv = 1.0 / np.sqrt(var + eps)
        x_hat = (moved - rest) * inv
        y[:, part] = x_hat * w + bias[part].reshape(channels)
        h = g * w
        grad_x[:, part] = inv * (
            h - np.mean(h, axis=inner, keepdims=True) - x_hat * np.mean(h * x_hat, axis=inner, keepdims=True)
        )
        grad_weight[part] = np.sum(g * x_hat, axis=others)
        grad_bias[part] = np.sum(g, axis=others)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def instance_norm_textbook(x: Array, weight: Array, bias: Array, grad_y: Array, eps: float) -> Tensors:
    """Ulyanov, Vedaldi and Lempitsky 2016; backward by the chain rule."""
    axes = tuple(range(2, x.ndim))
    outer = (0, *axes)
    channels = (1, -1) + (1,) * len(axes)
    n = np.prod(x.shape[2:]).item()
    mean = np.sum(x, axis=axes, keepdims=True) / n
    centered = x - mean
    var = np.sum(centered**2, axis=axes, keepdims=True) / n
    std = np.sqrt(var + eps)
    normalized = centered / std
    y = normalized * weight.reshape(channels) + bias.reshape(channels)
    grad_normalized = grad_y * weight.reshape(channels)
    grad_std = -np.sum(grad_normalized * centered, axis=axes, keepdims=True) / (std * std)
    grad_centered = grad_normalized / std + centered * grad_std / (std * n)
    grad_x = grad_centered - np.sum(grad_centered, axis=axes, keepdims=True) / n
    grad_weight = np.sum(grad_y * normalized, axis=outer)
    grad_bias = np.sum(grad_y, axis=outer)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def instance_norm_fused(x: Array, weight: Array, bias: Array, grad_y: Array, eps: float) -> Tensors:
    """As a batch normalisation of one sample with N * C channels (torch/_refs: instance_norm by reshaping)."""
    n, c = x.shape[0], x.shape[1]
    planes = x.reshape(n * c, -1)
    upstream = grad_y.reshape(n * c, -1)
    gamma = np.tile(weight, n)[:, None]
    beta = np.tile(bias, n)[:, None]
    size = planes.shape[1]
    mean = np.mean(planes, axis=1, keepdims=True)
    invstd = 1.0 / np.sqrt(np.var(planes, axis=1, keepdims=True) + eps)
    x_hat = (planes - mean) * invstd
    y = gamma * x_hat + beta
    norm = 1.0 / size
    grad_output_sum = np.sum(upstream, axis=1, keepdims=True)
    dot_p = np.sum(upstream * (planes - mean), axis=1, keepdims=True)
    grad_mean = grad_output_sum * norm
    proj_scale = dot_p * norm * invstd * invstd
    grad_scale = invstd * gamma
    proj = (planes - mean) * proj_scale
    grad_x = (upstream - proj - grad_mean) * grad_scale
    grad_weight = np.sum((dot_p * invstd).reshape(n, c), axis=0)
    grad_bias = np.sum(grad_output_sum.reshape(n, c), axis=0)
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def instance_norm_by_planes(x: Array, weight: Array, bias: Array, grad_y: Array, eps: float) -> Tensors:
    """One plane at a time, as a kernel's thread block does."""
    y = np.empty_like(x)
    grad_x = np.empty_like(x)
    grad_weight = np.zeros_like(weight)
    grad_bias = np.zeros_like(bias)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            plane = x[i, j]
            g = grad_y[i, j]
            mean = np.mean(plane)
            centered = plane - mean
            rstd = 1.0 / np.sqrt(np.mean(centered * centered) + eps)
            x_hat = centered * rstd
            y[i, j] = x_hat * weight[j] + bias[j]
            sum_g = np.mean(g)
            sum_gx = np.mean(g * x_hat)
            grad_x[i, j] = weight[j] * rstd * (g - sum_g - x_hat * sum_gx)
            grad_weight[j] += np.sum(g * x_hat)
            grad_bias[j] += np.sum(g)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def batch_norm_textbook(
    x: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    grad_y: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """Ioffe and Szegedy 2015, algorithm 1 and the gradients below it; running variance unbiased, as in algorithm 2."""
    axes = (0, *range(2, x.ndim))
    channels = (1, -1) + (1,) * (x.ndim - 2)
    m = x.size // x.shape[1]
    gamma = weight.reshape(channels)
    beta = bias.reshape(channels)
    new_mean = running_mean
    new_var = running_var
    if training:
        mu = np.sum(x, axis=axes) / m
        centered = x - mu.reshape(channels)
        sigma2 = np.sum(centered * centered, axis=axes) / m
        unbiased = sigma2 * m / (m - 1)
        new_mean = (1.0 - momentum) * running_mean + momentum * mu
        new_var = (1.0 - momentum) * running_var + momentum * unbiased
    else:
        centered = x - running_mean.reshape(channels)
        sigma2 = running_var
    std = np.sqrt(sigma2 + eps).reshape(channels)
    x_hat = centered / std
    y = gamma * x_hat + beta
    grad_x_hat = grad_y * gamma
    grad_x = grad_x_hat / std
    if training:
        grad_sigma2 = np.sum(grad_x_hat * centered, axis=axes, keepdims=True) * -0.5 * std**-3
        grad_mu = -np.sum(grad_x_hat / std, axis=axes, keepdims=True)
        grad_x = grad_x_hat / std + grad_sigma2 * 2.0 * centered / m + grad_mu / m
    grad_weight = np.sum(grad_y * x_hat, axis=axes)
    grad_bias = np.sum(grad_y, axis=axes)
    return {
        "y": y,
        "running_mean": new_mean,
        "running_var": new_var,
        "grad.x": grad_x,
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def batch_norm_decomposition(
    x: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    grad_y: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """torch/_decomp/decompositions.py: native_batch_norm_helper and native_batch_norm_backward."""
    axes = (0, *range(2, x.ndim))
    channels = (1, x.shape[1]) + (1,) * (x.ndim - 2)
    num_features = x.size // x.shape[1]
    norm = 1.0 / num_features
    new_running_mean = running_mean
    new_running_var = running_var
    if training:
        mean = np.mean(x, axis=axes)
        biased_var = np.var(x, axis=axes)
        squeezed_var = biased_var * (num_features / (num_features - 1))
        new_running_mean = momentum * mean + (1 - momentum) * running_mean
        new_running_var = momentum * squeezed_var + (1 - momentum) * running_var
    else:
        mean = running_mean
        biased_var = running_var
    invstd = 1.0 / np.sqrt(biased_var + eps)
    centered = x - mean.reshape(channels)
    y = centered * invstd.reshape(channels) * weight.reshape(channels) + bias.reshape(channels)
    grad_output_sum = np.sum(grad_y, axis=axes)
    dot_p = np.sum(grad_y * centered, axis=axes)
    grad_mean = (grad_output_sum * norm).reshape(channels)
    proj_scale = (dot_p * norm * (invstd * invstd)).reshape(channels)
    grad_scale = (invstd * weight).reshape(channels)
    if training:
        proj = centered * proj_scale
        grad_x = ((grad_y - proj) - grad_mean) * grad_scale
    else:
        grad_x = grad_y * grad_scale
    grad_weight = dot_p * invstd
    return {
        "y": y,
        "running_mean": new_running_mean,
        "running_var": new_running_var,
        "grad.x": grad_x,
        "grad.weight": grad_weight,
        "grad.bias": grad_output_sum,
    }


def batch_norm_welford(
    x: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    grad_y: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """Moments of the samples combined one after the other (Welford 1962, in the blocked form of Chan et al.)."""
    n, c = x.shape[0], x.shape[1]
    flat = x.reshape(n, c, -1)
    upstream = grad_y.reshape(n, c, -1)
    size = flat.shape[2]
    batch_mean = np.zeros_like(running_mean)
    m2 = np.zeros_like(running_var)
    count = 0
    for sample in flat:
        sample_mean = np.mean(sample, axis=1)
        sample_m2 = np.sum((sample - sample_mean[:, None]) ** 2, axis=1)
        delta = sample_mean - batch_mean
        batch_mean = batch_mean + delta * size / (count + size)
        m2 = m2 + sample_m2 + delta * delta * (count * size / (count + size))
        count += size
    new_mean = running_mean + momentum * (batch_mean - running_mean) if training else running_mean
    new_var = running_var + momentum * (m2 / (count - 1) - running_var) if training else running_var
    mean = batch_mean if training else running_mean
    var = m2 / count if training else running_var
    rstd = 1.0 / np.sqrt(var + eps)
    x_hat = (flat - mean[:, None]) * rstd[:, None]
    y = x_hat * weight[:, None] + bias[:, None]
    grad_weight = np.zeros_like(weight)
    grad_bias = np.zeros_like(bias)
    for i in range(n):
        grad_weight = grad_weight + np.sum(upstream[i] * x_hat[i], axis=1)
        grad_bias = grad_bias + np.sum(upstream[i], axis=1)
    grad_x = upstream * (weight * rstd)[:, None]
    if training:
        inner = upstream - (grad_bias / count)[:, None] - x_hat * (grad_weight / count)[:, None]
        grad_x = inner * (weight * rstd)[:, None]
    return {
        "y": y.reshape(x.shape),
        "running_mean": new_mean,
        "running_var": new_var,
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }
