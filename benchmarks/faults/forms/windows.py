"""Convolutions and pools along any number of axes, by taps and by windows: ONNX's reference operators, torch's kernels."""

from __future__ import annotations

import math  # noqa: F401 - the statements below use it
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms.written import written

Array = NDArray[Any]


def each(value: Any, n: int) -> tuple[int, ...]:
    """A number for each of n axes."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def taps(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All indices of a kernel, or of an image."""
    return product(*map(range, sizes))


def strided(start: Sequence[int], step: Sequence[int], count: Sequence[int]) -> tuple[Any, ...]:
    """`count` elements of each of the last axes, from `start` on, `step` apart; all of batch and channels."""
    slices = (slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(start, step, count, strict=True))
    return (slice(None), slice(None), *slices)


def bordered(x: Array, padding: Sequence[int], more: Sequence[int] = (), fill: float = 0.0) -> Array:
    """x with a border on its last axes, `more` behind."""
    pairs = [(p, p + extra) for p, extra in zip(padding, more or (0,) * len(padding), strict=True)]
    return np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=fill)


def missing(shape: Sequence[int], count: Sequence[int], kernel: Any, step: Any, padding: Any, dilation: Any) -> Any:
    """How much border the last windows need behind the padding (with ceil_mode)."""
    ends = [(m - 1) * s + d * (k - 1) + 1 for m, s, d, k in zip(count, step, dilation, kernel, strict=True)]
    return [max(0, end - n - 2 * p) for end, n, p in zip(ends, shape, padding, strict=True)]


def inner(x: Array, padding: Sequence[int], shape: Sequence[int]) -> Array:
    """What is left without the border."""
    return x[(slice(None), slice(None), *(slice(p, p + n) for p, n in zip(padding, shape[2:], strict=True)))]


CONV = (
    """
    axes = x.ndim - 2
    step, border, spread = each(stride, axes), each(padding, axes), each(dilation, axes)
    kernel, count = weight.shape[2:], grad_y.shape[2:]
    padded = bordered(x, border)
    batch, out_channels = len(x), len(weight)
    upstream = grad_y.reshape(batch, groups, out_channels // groups, *count)
    y = np.zeros_like(upstream)
    grad_padded = np.zeros_like(padded)
    grad_weight = np.zeros_like(weight)
    for tap in taps(kernel):
        at = strided([t * d for t, d in zip(tap, spread)], step, count)
        seen = padded[at].reshape(batch, groups, -1, *count)
        part = weight[(slice(None), slice(None), *tap)].reshape(groups, out_channels // groups, -1)
        y += np.einsum("goc,ngc...->ngo...", part, seen)
        grad_padded[at] += np.einsum("goc,ngo...->ngc...", part, upstream).reshape(batch, -1, *count)
        product = upstream[:, :, :, None] * seen[:, :, None]
        flow = np.sum(product, axis=(0, *range(4, product.ndim)))
        grad_weight[(slice(None), slice(None), *tap)] = flow.reshape(out_channels, -1)
    y = y.reshape(grad_y.shape) + bias.reshape(-1, *[1] * axes)
    grad_x = inner(grad_padded, border, x.shape)
    grad_bias = np.sum(grad_y, axis=(0, *range(2, grad_y.ndim)))
    """,
    """
    axes = x.ndim - 2
    step, border, spread = each(stride, axes), each(padding, axes), each(dilation, axes)
    kernel, count = weight.shape[2:], grad_y.shape[2:]
    padded = bordered(x, border)
    batch = len(x)
    columns = np.stack([padded[strided([t * d for t, d in zip(tap, spread)], step, count)] for tap in taps(kernel)])
    columns = np.moveaxis(columns, 0, 2).reshape(batch, groups, -1, int(np.prod(count)))
    kernels = weight.reshape(groups, len(weight) // groups, -1)
    upstream = grad_y.reshape(batch, groups, len(weight) // groups, -1)
    y = np.matmul(kernels, columns).reshape(grad_y.shape) + bias.reshape(1, -1, *[1] * axes)
    grad_weight = np.sum(np.matmul(upstream, columns.swapaxes(-1, -2)), axis=0).reshape(weight.shape)
    flows = np.matmul(kernels.swapaxes(-1, -2), upstream).reshape(batch, x.shape[1], -1, *count)
    grad_padded = np.zeros_like(padded)
    for number, tap in enumerate(taps(kernel)):
        grad_padded[strided([t * d for t, d in zip(tap, spread)], step, count)] += flows[:, :, number]
    grad_x = inner(grad_padded, border, x.shape)
    grad_bias = np.sum(upstream, axis=(0, 3)).reshape(-1)
    """,
)
TRANSPOSED = (
    """
    axes = x.ndim - 2
    step, border, spread = each(stride, axes), each(padding, axes), each(dilation, axes)
    kernel, count = weight.shape[2:], x.shape[2:]
    batch, channels = len(x), x.shape[1]
    images = x.reshape(batch, groups, channels // groups, *count)
    flows = bordered(grad_y, border, missing(grad_y.shape[2:], count, kernel, step, border, spread))
    full = np.zeros_like(flows)
    grad_x = np.zeros_like(images)
    grad_weight = np.zeros_like(weight)
    for tap in taps(kernel):
        at = strided([t * d for t, d in zip(tap, spread)], step, count)
        part = weight[(slice(None), slice(None), *tap)].reshape(groups, channels // groups, -1)
        full[at] += np.einsum("gio,ngi...->ngo...", part, images).reshape(batch, -1, *count)
        seen = flows[at].reshape(batch, groups, -1, *count)
        grad_x += np.einsum("gio,ngo...->ngi...", part, seen)
        product = images[:, :, :, None] * seen[:, :, None]
        flow = np.sum(product, axis=(0, *range(4, product.ndim)))
        grad_weight[(slice(None), slice(None), *tap)] = flow.reshape(channels, -1)
    y = inner(full, border, grad_y.shape) + bias.reshape(-1, *[1] * axes)
    grad_x = grad_x.reshape(x.shape)
    grad_bias = np.sum(grad_y, axis=(0, *range(2, grad_y.ndim)))
    """,
    """
    axes = x.ndim - 2
    step, border, spread = each(stride, axes), each(padding, axes), each(dilation, axes)
    kernel = weight.shape[2:]
    batch, channels = len(x), x.shape[1]
    flows = bordered(grad_y, border, missing(grad_y.shape[2:], x.shape[2:], kernel, step, border, spread))
    full = np.zeros_like(flows)
    grad_x = np.zeros_like(x)
    kernels = weight.reshape(groups, channels // groups, -1)
    grad_kernels = np.zeros_like(kernels)
    for pixel in taps(x.shape[2:]):
        at = strided([p * s for p, s in zip(pixel, step)], spread, kernel)
        values = x[(slice(None), slice(None), *pixel)].reshape(batch, groups, -1)
        full[at] += np.einsum("ngi,gik->ngk", values, kernels).reshape(full[at].shape)
        seen = flows[at].reshape(batch, groups, -1)
        grad_x[(slice(None), slice(None), *pixel)] = np.einsum("ngk,gik->ngi", seen, kernels).reshape(batch, channels)
        grad_kernels += np.einsum("ngi,ngk->gik", values, seen)
    y = inner(full, border, grad_y.shape) + bias.reshape(1, -1, *[1] * axes)
    grad_weight = grad_kernels.reshape(weight.shape)
    grad_bias = np.sum(grad_y.reshape(batch, len(bias), -1), axis=(0, 2))
    """,
)
MAX_POOL = (
    """
    axes, count = x.ndim - 2, grad_y.shape[2:]
    kernel, border, spread = each(kernel_size, axes), each(padding, axes), each(dilation, axes)
    step = kernel if stride is None else each(stride, axes)
    padded = bordered(x, border, missing(x.shape[2:], count, kernel, step, border, spread), -np.inf)
    windows = np.stack([padded[strided([t * d for t, d in zip(tap, spread)], step, count)] for tap in taps(kernel)])
    y = np.max(windows, axis=0)
    best = np.argmax(windows, axis=0)
    grad_padded = np.zeros_like(padded)
    for number, tap in enumerate(taps(kernel)):
        at = strided([t * d for t, d in zip(tap, spread)], step, count)
        grad_padded[at] += np.where(best == number, grad_y, 0)
    grad_x = inner(grad_padded, border, x.shape)
    """,
    """
    axes, count = x.ndim - 2, grad_y.shape[2:]
    kernel, border, spread = each(kernel_size, axes), each(padding, axes), each(dilation, axes)
    step = kernel if stride is None else each(stride, axes)
    padded = bordered(x, border, missing(x.shape[2:], count, kernel, step, border, spread), -np.inf)
    grad_padded = np.zeros_like(padded)
    flat = grad_padded.reshape(len(x) * x.shape[1], -1)
    number = np.arange(flat.shape[1]).reshape(1, 1, *padded.shape[2:])
    y = np.empty_like(grad_y)
    for window in taps(count):
        at = strided([w * s for w, s in zip(window, step)], spread, kernel)
        seen = padded[at].reshape(len(flat), -1)
        best = np.argmax(seen, axis=1)
        place = (slice(None), slice(None), *window)
        y[place] = np.take_along_axis(seen, best[:, None], axis=1).reshape(x.shape[:2])
        flat[np.arange(len(flat)), number[at].ravel()[best]] += grad_y[place].ravel()
    grad_x = inner(flat.reshape(padded.shape), border, x.shape)
    """,
)
AVG_POOL = (
    """
    axes, count = x.ndim - 2, grad_y.shape[2:]
    kernel, border = each(kernel_size, axes), each(padding, axes)
    step = kernel if stride is None else each(stride, axes)
    more = missing(x.shape[2:], count, kernel, step, border, (1,) * axes)
    padded = bordered(x, border, more)
    valid = np.ones_like(x)
    if count_include_pad:
        valid = bordered(valid, border, fill=1.0)
        valid = bordered(valid, (0,) * axes, more)
    else:
        valid = bordered(valid, border, more)
    total = np.zeros_like(grad_y)
    area = np.zeros_like(grad_y)
    for tap in taps(kernel):
        at = strided(tap, step, count)
        total += padded[at]
        area += valid[at]
    y = total / area
    grad_padded = np.zeros_like(padded)
    for tap in taps(kernel):
        grad_padded[strided(tap, step, count)] += grad_y / area
    grad_x = inner(grad_padded, border, x.shape)
    """,
    """
    axes, count = x.ndim - 2, grad_y.shape[2:]
    kernel, border = each(kernel_size, axes), each(padding, axes)
    step = kernel if stride is None else each(stride, axes)
    y = np.empty_like(grad_y)
    grad_x = np.zeros_like(x)
    for window in taps(count):
        start = [w * s - p for w, s, p in zip(window, step, border)]
        end = [min(a + k, n + p) for a, k, n, p in zip(start, kernel, x.shape[2:], border)]
        low = [max(a, 0) for a in start]
        high = [min(e, n) for e, n in zip(end, x.shape[2:])]
        counted = zip(start, end) if count_include_pad else zip(low, high)
        area = math.prod(e - a for a, e in counted)
        at = (slice(None), slice(None), *map(slice, low, high))
        place = (slice(None), slice(None), *window)
        y[place] = np.sum(x[at].reshape(*x.shape[:2], -1), axis=-1) / area
        grad_x[at] += grad_y[place].reshape(*x.shape[:2], *[1] * axes) / area
    """,
)
ADAPTIVE_AVG = (
    """
    y = np.empty_like(grad_y)
    grad_x = np.zeros_like(x)
    for window in taps(grad_y.shape[2:]):
        start = [i * n // m for i, n, m in zip(window, x.shape[2:], grad_y.shape[2:])]
        end = [-((-(i + 1) * n) // m) for i, n, m in zip(window, x.shape[2:], grad_y.shape[2:])]
        at = (slice(None), slice(None), *map(slice, start, end))
        place = (slice(None), slice(None), *window)
        area = math.prod(e - a for a, e in zip(start, end))
        y[place] = np.mean(x[at].reshape(*x.shape[:2], -1), axis=-1)
        grad_x[at] += grad_y[place].reshape(*x.shape[:2], *[1] * len(window)) / area
    """,
    """
    y = x
    grad_x = grad_y
    for axis in range(2, x.ndim):
        n, m = x.shape[axis], grad_y.shape[axis]
        start = np.arange(m) * n // m
        end = (np.arange(1, m + 1) * n + m - 1) // m
        inside = (np.arange(n) >= start[:, None]) & (np.arange(n) < end[:, None])
        weight = (inside / (end - start)[:, None]).astype(x.dtype)
        y = np.moveaxis(np.tensordot(y, weight, axes=(axis, 1)), -1, axis)
        grad_x = np.moveaxis(np.tensordot(grad_x, weight, axes=(axis, 0)), -1, axis)
    """,
)
ADAPTIVE_MAX = (
    """
    y = np.empty_like(grad_y)
    grad_x = np.zeros_like(x)
    for window in taps(grad_y.shape[2:]):
        start = [i * n // m for i, n, m in zip(window, x.shape[2:], grad_y.shape[2:])]
        end = [-((-(i + 1) * n) // m) for i, n, m in zip(window, x.shape[2:], grad_y.shape[2:])]
        at = (slice(None), slice(None), *map(slice, start, end))
        place = (slice(None), slice(None), *window)
        part = x[at].reshape(*x.shape[:2], -1)
        best = np.argmax(part, axis=-1)
        y[place] = np.max(part, axis=-1)
        chosen = np.arange(part.shape[-1]) == best[..., None]
        grad_x[at] += (chosen * grad_y[place][..., None]).reshape(x[at].shape)
    """,
    """
    y = np.empty_like(grad_y)
    grad_x = np.zeros_like(x)
    images = x.reshape(-1, *x.shape[2:])
    best = y.reshape(-1, *y.shape[2:])
    flows = grad_x.reshape(-1, *x.shape[2:])
    upstream = grad_y.reshape(best.shape)
    for image in range(len(images)):
        for window in taps(best.shape[1:]):
            start = [i * n // m for i, n, m in zip(window, images.shape[1:], best.shape[1:])]
            end = [((i + 1) * n + m - 1) // m for i, n, m in zip(window, images.shape[1:], best.shape[1:])]
            part = images[(image, *map(slice, start, end))]
            place = np.unravel_index(np.argmax(part), part.shape)
            best[(image, *window)] = part[place]
            flows[(image, *(a + i for a, i in zip(start, place)))] += upstream[(image, *window)]
    """,
)
TABLE: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("conv1d", "conv3d"), CONV),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), TRANSPOSED),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), MAX_POOL),
    **dict.fromkeys(("avg_pool1d", "avg_pool3d"), AVG_POOL),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), ADAPTIVE_AVG),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), ADAPTIVE_MAX),
}
FORMS = written(TABLE, globals())
