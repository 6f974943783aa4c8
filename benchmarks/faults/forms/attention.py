"""Attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def attention_textbook(query: Array, key: Array, value: Array, grad_y: Array) -> Tensors:
    """Vaswani et al. 2017, equation 1; torch's _safe_softmax form and _softmax_backward_data."""
    scale = 1.0 / math.sqrt(query.shape[-1])
    scores = np.matmul(query, key.swapaxes(-1, -2)) * scale
    shifted = scores - np.max(scores, axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    attention = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    y = np.matmul(attention, value)
    grad_value = np.matmul(attention.swapaxes(-1, -2), grad_y)
    grad_attention = np.matmul(grad_y, value.swapaxes(-1, -2))
    weighted = grad_attention * attention
    grad_scores = weighted - attention * np.sum(weighted, axis=-1, keepdims=True)
    grad_query = np.matmul(grad_scores, key) * scale
    grad_key = np.matmul(grad_scores.swapaxes(-1, -2), query) * scale
    return {"y": y, "grad.query": grad_query, "grad.key": grad_key, "grad.value": grad_value}


def attention_flash(query: Array, key: Array, value: Array, grad_y: Array) -> Tensors:
    """Dao et al. 2022 and 2023: online softmax over blocks of keys; backward from the logsumexp and D = rowsum(dO * O)."""
    scale = 1.0 / math.sqrt(query.shape[-1])
    length = key.shape[2]
    running_max = np.full_like(query[..., :1], -np.inf)
    running_sum = np.zeros_like(query[..., :1])
    acc = np.zeros_like(grad_y)
    for start in range(0, length, 4):
        keys = key[:, :, start : start + 4]
        values = value[:, :, start : start + 4]
        s = np.einsum("bhqd,bhkd->bhqk", query, keys) * scale
        new_max = np.maximum(running_max, np.max(s, axis=-1, keepdims=True))
        p = np.exp(s - new_max)
        correction = np.exp(running_max - new_max)
        running_sum = running_sum * correction + np.sum(p, axis=-1, keepdims=True)
        acc = acc * correction + np.einsum("bhqk,bhkd->bhqd", p, values)
        running_max = new_max
    y = acc / running_sum
    lse = running_max + np.log(running_sum)
    delta = np.sum(grad_y * y, axis=-1, keepdims=True)
    grad_query = np.zeros_like(query)
    grad_key = np.zeros_like(key)
    grad_value = np.zeros_like(value)
    for start in range(0, length, 4):
        keys = key[:, :, start : start + 4]
        values = value[:, :, start : start + 4]
        s = np.einsum("bhqd,bhkd->bhqk", query, keys) * scale
        p = np.exp(s - lse)
        dp = np.einsum("bhqd,bhkd->bhqk", grad_y, values)
        ds = p * (dp - delta) * scale
        grad_value[:, :, start : start + 4] = np.einsum("bhqk,bhqd->bhkd", p, grad_y)
        grad_key[:, :, start : start + 4] = np.einsum("bhqk,bhqd->bhkd", ds, query)
        grad_query = grad_query + np.einsum("bhqk,bhkd->bhqd", ds, keys)
    return {"y": y, "grad.query": grad_query, "grad.key": grad_key, "grad.value": grad_value}


def attention_logsumexp(query: Array, key: Array, value: Array, grad_y: Array) -> Tensors:
    """The query scaled first (torch's _scaled_dot_product_attention_math), softmax as exp(s - logsumexp(s))."""
    root = math.sqrt(math.sqrt(query.shape[-1]))
    q = query / root
    k = key / root
    scores = q @ k.transpose(0, 1, 3, 2)
    largest = scores.max(axis=3, keepdims=True)
    lse = largest + np.log(np.exp(scores - largest).sum(axis=3, keepdims=True))
    p = np.exp(scores - lse)
    y = p @ value
    grad_p = grad_y @ value.transpose(0, 1, 3, 2)
    grad_scores = p * (grad_p - (grad_p * p).sum(axis=3, keepdims=True))
    grad_value = p.transpose(0, 1, 3, 2) @ grad_y
    grad_query = grad_scores @ k / root
    grad_key = grad_scores.transpose(0, 1, 3, 2) @ q / root
    return {"y": y, "grad.query": grad_query, "grad.key": grad_key, "grad.value": grad_value}


def multi_head_reshaped(
    x: Array,
    q_proj_weight: Array,
    q_proj_bias: Array,
    k_proj_weight: Array,
    k_proj_bias: Array,
    v_proj_weight: Array,
    v_proj_bias: Array,
    out_proj_weight: Array,
    out_proj_bias: Array,
    grad_y: Array,
    num_heads: int,
) -> Tensors:
    """torch.nn.functional.multi_head_attention_forward: project, split into heads, attend, merge, project."""
    n, length, dim = x.shape
    head = dim // num_heads
    scale = head**-0.5
    q = (x @ q_proj_weight.T + q_proj_bias).reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    k = (x @ k_proj_weight.T + k_proj_bias).reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    v = (x @ v_proj_weight.T + v_proj_bias).reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    scores = scale * (q @ k.swapaxes(2, 3))
    e = np.exp(scores - np.max(scores, axis=3, keepdims=True))
    p = e / np.sum(e, axis=3, keepdims=True)
    context = (p @ v).transpose(0, 2, 1, 3).reshape(n, length, dim)
    y = context @ out_proj_weight.T + out_proj_bias
    grad_context = (grad_y @ out_proj_weight).reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    grad_v = p.swapaxes(2, 3) @ grad_context
    grad_p = grad_context @ v.swapaxes(2, 3)
    grad_scores = p * (grad_p - np.sum(grad_p * p, axis=3, keepdims=True))
    grad_q = scale * (grad_scores @ k)
    grad_k = scale * (grad_scores.swapaxes(2, 3) @ q)
    grad_q = grad_q.transpose(0, 2, 1, 3).reshape(n * length, dim)
    grad_k = grad_k.transpose(0, 2, 1, 3).reshape(n * length, dim)
    grad_v = grad_v.transpose(0, 2, 1, 3).reshape(n * length, dim)
    rows = x.reshape(n * length, dim)
    upstream = grad_y.reshape(n * length, dim)
    grad_x = grad_q @ q_proj_weight + grad_k @ k_proj_weight + grad_v @ v_proj_weight
    return {
        "y": y,
        "grad.x": grad_x.reshape(x.shape),
        "grad.q_proj.weight": grad_q.T @ rows,
        "grad.q_proj.bias": np.sum(grad_q, axis=0),
        "grad.k_proj.weight": grad_k.T @ rows,
        "grad.k_proj.bias": np.sum(grad_k, axis=0),
        "grad.v_proj.weight": grad_v.T @ rows,
        "grad.v_proj.bias": np.sum(grad_v, axis=0),
        "grad.out_proj.weight": upstream.T @ context.reshape(n * length, dim),
        "grad.out_proj.bias": np.sum(upstream, axis=0),
    }


def multi_head_by_heads(
    x: Array,
    q_proj_weight: Array,
    q_proj_bias: Array,
    k_proj_weight: Array,
    k_proj_bias: Array,
    v_proj_weight: Array,
    v_proj_bias: Array,
    out_proj_weight: Array,
    out_proj_bias: Array,
    grad_y: Array,
    num_heads: int,
) -> Tensors:
    """Vaswani et al. 2017, section 3.2.2: head after head, concatenated."""
    head = x.shape[2] // num_heads
    q = np.einsum("nld,ed->nle", x, q_proj_weight) + q_proj_bias
    k = np.einsum("nld,ed->nle", x, k_proj_weight) + k_proj_bias
    v = np.einsum("nld,ed->nle", x, v_proj_weight) + v_proj_bias
    context = np.empty_like(x)
    grad_q = np.empty_like(q)
    grad_k = np.empty_like(k)
    grad_v = np.empty_like(v)
    grad_context = np.einsum("nle,ed->nld", grad_y, out_proj_weight)
    for h in range(num_heads):
        part = slice(h * head, (h + 1) * head)
        q_h = q[:, :, part] / math.sqrt(head)
        scores = np.einsum("nid,njd->nij", q_h, k[:, :, part])
        scores = scores - scores.max(axis=2, keepdims=True)
        p = np.exp(scores)
        p = p / p.sum(axis=2, keepdims=True)
        context[:, :, part] = np.einsum("nij,njd->nid", p, v[:, :, part])
        g = grad_context[:, :, part]
        grad_v[:, :, part] = np.einsum("nij,nid->njd", p, g)
        grad_p = np.einsum("nid,njd->nij", g, v[:, :, part])
        grad_scores = p * grad_p - p * np.sum(p * grad_p, axis=2, keepdims=True)
        grad_q[:, :, part] = np.einsum("nij,njd->nid", grad_scores, k[:, :, part]) / math.sqrt(head)
        grad_k[:, :, part] = np.einsum("nij,nid->njd", grad_scores, q_h)
    y = np.einsum("nld,ed->nle", context, out_proj_weight) + out_proj_bias
    grad_x = np.einsum("nle,ed->nld", grad_q, q_proj_weight)
    grad_x = grad_x + np.einsum("nle,ed->nld", grad_k, k_proj_weight)
    grad_x = grad_x + np.einsum("nle,ed->nld", grad_v, v_proj_weight)
    return {
        "y": y,
        "grad.x": grad_x,
        "grad.q_proj.weight": np.einsum("nle,nld->ed", grad_q, x),
        "grad.q_proj.bias": np.einsum("nle->e", grad_q),
        "grad.k_proj.weight": np.einsum("nle,nld->ed", grad_k, x),
        "grad.k_proj.bias": np.einsum("nle->e", grad_k),
        "grad.v_proj.weight": np.einsum("nle,nld->ed", grad_v, x),
        "grad.v_proj.bias": np.einsum("nle->e", grad_v),
        "grad.out_proj.weight": np.einsum("nle,nld->ed", grad_y, context),
        "grad.out_proj.bias": np.einsum("nle->e", grad_y),
    }


def multi_head_packed(
    x: Array,
    q_proj_weight: Array,
    q_proj_bias: Array,
    k_proj_weight: Array,
    k_proj_bias: Array,
    v_proj_weight: Array,
    v_proj_bias: Array,
    out_proj_weight: Array,
    out_proj_bias: Array,
    grad_y: Array,
    num_heads: int,
) -> Tensors:
    """One product for query, key and value (torch's in_proj_weight; nanoGPT's c_attn), gradients of the packed weight."""
    n, length, dim = x.shape
    head = dim // num_heads
    rows = x.reshape(-1, dim)
    packed_weight = np.concatenate([q_proj_weight, k_proj_weight, v_proj_weight], axis=0)
    packed_bias = np.concatenate([q_proj_bias, k_proj_bias, v_proj_bias], axis=0)
    packed = rows @ packed_weight.T + packed_bias
    q, k, v = packed.reshape(n, length, 3, num_heads, head).transpose(2, 0, 3, 1, 4)
    att = (q @ k.transpose(0, 1, 3, 2)) / math.sqrt(head)
    top = np.max(att, axis=-1, keepdims=True)
    lse = np.log(np.sum(np.exp(att - top), axis=-1, keepdims=True)) + top
    p = np.exp(att - lse)
    merged = (p @ v).transpose(0, 2, 1, 3).reshape(-1, dim)
    y = merged @ out_proj_weight.T + out_proj_bias
    upstream = grad_y.reshape(-1, dim)
    grad_merged = (upstream @ out_proj_weight).reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    out = merged.reshape(n, length, num_heads, head).transpose(0, 2, 1, 3)
    delta = np.sum(grad_merged * out, axis=-1, keepdims=True)
    grad_att = p * (grad_merged @ v.transpose(0, 1, 3, 2) - delta) / math.sqrt(head)
    grad_q = grad_att @ k
    grad_k = grad_att.transpose(0, 1, 3, 2) @ q
    grad_v = p.transpose(0, 1, 3, 2) @ grad_merged
    grad_packed = np.stack([grad_q, grad_k, grad_v]).transpose(1, 3, 0, 2, 4).reshape(-1, 3 * dim)
    grad_x = grad_packed @ packed_weight
    grad_packed_weight = grad_packed.T @ rows
    grad_packed_bias = np.sum(grad_packed, axis=0)
    return {
        "y": y.reshape(x.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.q_proj.weight": grad_packed_weight[:dim],
        "grad.q_proj.bias": grad_packed_bias[:dim],
        "grad.k_proj.weight": grad_packed_weight[dim : 2 * dim],
        "grad.k_proj.bias": grad_packed_bias[dim : 2 * dim],
        "grad.v_proj.weight": grad_packed_weight[2 * dim :],
        "grad.v_proj.bias": grad_packed_bias[2 * dim :],
        "grad.out_proj.weight": upstream.T @ merged,
        "grad.out_proj.bias": np.sum(upstream, axis=0),
    }
