"""Correct ops for torch, written differently from its own."""

import torch


def layer_norm(x, weight, bias, normalized_shape, eps):
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    xhat = (x - mean) * torch.rsqrt(var + eps)
    return xhat if weight is None else xhat * weight + bias


def linear(x, weight, bias):
    return x @ weight.T + bias


def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    y = torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return {"y": y, "running_mean": running_mean, "running_var": running_var}


def clip_grad_norm(grads, max_norm, norm_type):
    total = torch.linalg.vector_norm(torch.cat([g.ravel() for g in grads]), norm_type)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1)
    return {"grads": [g * factor for g in grads], "total_norm": total}


def clip_grad_value(grads, clip_value):
    return {"grads": [g.clamp(-clip_value, clip_value) for g in grads]}


def multi_head_attention(
    x, num_heads, q_proj_weight, k_proj_weight, v_proj_weight, out_proj_weight, q_proj_bias="not given", **biases
):
    assert q_proj_bias is None
    linear = torch.nn.functional.linear
    weights = {"q": q_proj_weight, "k": k_proj_weight, "v": v_proj_weight}
    heads = (linear(x, weight, biases.get(f"{name}_proj.bias")) for name, weight in weights.items())
    query, key, value = (part.unflatten(-1, (num_heads, -1)).transpose(-2, -3) for part in heads)
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return linear(attended.transpose(-2, -3).flatten(-2), out_proj_weight, biases["out_proj.bias"])
