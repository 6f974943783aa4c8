"""Normalisations that subtract no mean: Liger's rms_norm, torch's decompositions, EvoNorm's paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np  # noqa: F401 - the statements below use it

from benchmarks.faults.forms.written import written

TABLE: Mapping[str, Sequence[str]] = {
    "rms_norm": (
        """
        n = weight.size
        rows = x.reshape(-1, n)
        upstream = grad_y.reshape(-1, n)
        rstd = 1 / np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + eps)
        xhat = rows * rstd
        y = (xhat * weight.reshape(n)).reshape(x.shape)
        grad_xhat = upstream * weight.reshape(n)
        flow = rstd * (grad_xhat - xhat * np.mean(grad_xhat * xhat, axis=1, keepdims=True))
        grad_x = flow.reshape(x.shape)
        grad_weight = np.sum(upstream * xhat, axis=0).reshape(weight.shape)
        """,
        """
        n = weight.size
        rows = x.reshape(-1, n)
        scaled = grad_y.reshape(-1, n) * weight.reshape(n)
        mean_square = np.einsum("ij,ij->i", rows, rows) / n
        root = np.sqrt(mean_square + eps)[:, None]
        y = (rows / root).reshape(x.shape) * weight
        projection = np.sum(scaled * rows, axis=1, keepdims=True)
        grad_x = (scaled / root - rows * projection / (n * root**3)).reshape(x.shape)
        grad_weight = np.sum(grad_y.reshape(-1, n) * rows / root, axis=0).reshape(weight.shape)
        """,
    ),
    "normalize": (
        """
        size = np.abs(x)
        if p == np.inf:
            largest = np.max(size, axis=dim, keepdims=True)
            norm = largest
            share = (size == largest).astype(x.dtype)
            slope = np.sign(x) * share / np.sum(share, axis=dim, keepdims=True)
        else:
            norm = np.sum(size**p, axis=dim, keepdims=True) ** (1 / p)
            slope = np.sign(x) * (size / norm) ** (p - 1)
        floor = np.maximum(norm, eps)
        y = x / floor
        flow = np.sum(grad_y * y, axis=dim, keepdims=True)
        grad_x = (grad_y - np.where(norm >= eps, flow, 0) * slope) / floor
        """,
        """
        if p == 2:
            norm = np.sqrt(np.sum(np.square(x), axis=dim, keepdims=True))
            slope = x / norm
        elif p == 1:
            norm = np.sum(np.abs(x), axis=dim, keepdims=True)
            slope = np.sign(x)
        else:
            norm = np.max(np.abs(x), axis=dim, keepdims=True)
            first = np.argmax(np.abs(x), axis=dim, keepdims=True)
            slope = np.zeros_like(x)
            np.put_along_axis(slope, first, np.sign(np.take_along_axis(x, first, dim)), dim)
        scale = 1 / np.where(norm < eps, eps, norm)
        y = x * scale
        grad_norm = -np.sum(grad_y * x, axis=dim, keepdims=True) * scale * scale
        grad_x = grad_y * scale + np.where(norm < eps, 0, grad_norm) * slope
        """,
    ),
    "local_response_norm": (
        """
        channels = x.shape[1]
        before = size // 2
        after = (size - 1) // 2
        squares = x * x
        total = np.zeros_like(x)
        for c in range(channels):
            total[:, c] = np.sum(squares[:, max(0, c - before) : c + after + 1], axis=1)
        scale = k + alpha * total / size
        y = x * scale**-beta
        ratio = grad_y * y / scale
        spread = np.zeros_like(x)
        for c in range(channels):
            spread[:, c] = np.sum(ratio[:, max(0, c - after) : c + before + 1], axis=1)
        grad_x = grad_y * scale**-beta - 2 * alpha * beta / size * x * spread
        """,
        """
        place = np.arange(x.shape[1])
        distance = place - place[:, None]
        band = ((distance >= -(size // 2)) & (distance <= (size - 1) // 2)).astype(x.dtype)
        mean_square = np.einsum("cd,nd...->nc...", band, x * x) / size
        scale = k + alpha * mean_square
        power = scale**beta
        y = x / power
        grad_scale = -beta * grad_y * x / (power * scale)
        grad_x = grad_y / power + 2 * x * np.einsum("cd,nc...->nd...", band, grad_scale) * alpha / size
        """,
    ),
    "evonorm_s0": (
        """
        shape = (len(x), num_groups, -1)
        channel = (1, -1, *[1] * (x.ndim - 2))
        rest = (0, *range(2, x.ndim))
        groups = x.reshape(shape)
        n = groups.shape[2]
        centered = (groups - np.mean(groups, axis=2, keepdims=True)).reshape(x.shape)
        variance = np.mean(np.square(centered.reshape(shape)), axis=2, keepdims=True)
        std = (np.sqrt(variance + eps) + np.zeros_like(groups)).reshape(x.shape)
        gate = 1 / (1 + np.exp(-v.reshape(channel) * x))
        swish = x * gate
        y = swish / std * weight.reshape(channel) + bias.reshape(channel)
        upstream = grad_y * weight.reshape(channel)
        slope = swish * (1 - gate)
        flow = np.sum((upstream * swish / std**3).reshape(shape), axis=2, keepdims=True) / n
        spread = (flow * centered.reshape(shape)).reshape(x.shape)
        grad_x = upstream / std * (gate + v.reshape(channel) * slope) - spread
        grad_weight = np.sum(grad_y * swish / std, axis=rest)
        grad_bias = np.sum(grad_y, axis=rest)
        grad_v = np.sum(upstream / std * slope * x, axis=rest)
        """,
        """
        batch, channels = x.shape[:2]
        rows = x.reshape(batch, num_groups, channels // num_groups, -1)
        flows = grad_y.reshape(rows.shape)
        scale = weight.reshape(1, num_groups, -1, 1)
        swish_rate = v.reshape(1, num_groups, -1, 1)
        n = rows.shape[2] * rows.shape[3]
        mean = np.sum(rows, axis=(2, 3), keepdims=True) / n
        centered = rows - mean
        rstd = 1 / np.sqrt(np.sum(centered * centered, axis=(2, 3), keepdims=True) / n + eps)
        gate = 1 / (1 + np.exp(-swish_rate * rows))
        xhat = rows * gate * rstd
        y = (xhat * scale + bias.reshape(1, num_groups, -1, 1)).reshape(x.shape)
        grad_xhat = flows * scale
        projection = np.sum(grad_xhat * xhat, axis=(2, 3), keepdims=True) / n
        slope = gate * (1 + swish_rate * rows * (1 - gate))
        grad_x = (grad_xhat * slope * rstd - projection * rstd * rstd * centered).reshape(x.shape)
        grad_weight = np.sum(flows * xhat, axis=(0, 3)).reshape(channels)
        grad_bias = np.sum(flows, axis=(0, 3)).reshape(channels)
        grad_v = np.sum(grad_xhat * xhat * rows * (1 - gate), axis=(0, 3)).reshape(channels)
        """,
    ),
}
FORMS = written(TABLE, globals())
