"""Convolution, pooling and flattening."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def conv2d_im2col(
    x: Array, weight: Array, bias: Array, grad_y: Array, stride: int, padding: int, dilation: int, groups: int
) -> Tensors:
    """Unfold, one matrix product per group, fold (Chellapilla et al. 2006; Caffe's im2col and col2im)."""
    n, c = x.shape[0], x.shape[1]
    o, in_group, k = weight.shape[0], weight.shape[1], weight.shape[2]
    out_h, out_w = grad_y.shape[2], grad_y.shape[3]
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    columns = np.empty((n, c, k, k, out_h, out_w), x.dtype)
    for i in range(k):
        for j in range(k):
            top, left = i * dilation, j * dilation
            columns[:, :, i, j] = padded[
                :, :, top : top + stride * out_h : stride, left : left + stride * out_w : stride
            ]
    columns = columns.reshape(n, groups, in_group * k * k, out_h * out_w)
    kernels = weight.reshape(groups, o // groups, in_group * k * k)
    upstream = grad_y.reshape(n, groups, o // groups, out_h * out_w)
    y = np.matmul(kernels, columns).reshape(grad_y.shape) + bias.reshape(1, o, 1, 1)
    grad_weight = np.einsum("ngop,ngkp->gok", upstream, columns).reshape(weight.shape)
    grad_bias = np.sum(grad_y, axis=(0, 2, 3))
    grad_columns = np.matmul(kernels.transpose(0, 2, 1), upstream).reshape(n, c, k, k, out_h, out_w)
    grad_padded = np.zeros_like(padded)
    for i in range(k):
        for j in range(k):
            top, left = i * dilation, j * dilation
            grad_padded[:, :, top : top + stride * out_h : stride, left : left + stride * out_w : stride] += (
                grad_columns[:, :, i, j]
            )
    grad_x = grad_padded[:, :, padding : padding + x.shape[2], padding : padding + x.shape[3]]
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def conv2d_by_taps(
    x: Array, weight: Array, bias: Array, grad_y: Array, stride: int, padding: int, dilation: int, groups: int
) -> Tensors:
    """The sum of one product for every tap of the kernel (shift and add; the form of NNPACK's direct kernels)."""
    o, in_group, k = weight.shape[0], weight.shape[1], weight.shape[2]
    out_group = o // groups
    rows, columns = grad_y.shape[2], grad_y.shape[3]
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    y = np.zeros_like(grad_y) + bias[None, :, None, None]
    grad_padded = np.zeros_like(padded)
    grad_weight = np.zeros_like(weight)
    for g in range(groups):
        channels = slice(g * in_group, (g + 1) * in_group)
        filters = slice(g * out_group, (g + 1) * out_group)
        upstream = grad_y[:, filters]
        for i in range(k):
            for j in range(k):
                height = slice(i * dilation, i * dilation + stride * rows, stride)
                width = slice(j * dilation, j * dilation + stride * columns, stride)
                tap = weight[filters, :, i, j]
                window = padded[:, channels, height, width]
                y[:, filters] += np.einsum("nchw,oc->nohw", window, tap)
                grad_padded[:, channels, height, width] += np.einsum("nohw,oc->nchw", upstream, tap)
                grad_weight[filters, :, i, j] = np.einsum("nohw,nchw->oc", upstream, window)
    end_h, end_w = padding + x.shape[2], padding + x.shape[3]
    grad_x = grad_padded[:, :, padding:end_h, padding:end_w]
    grad_bias = grad_y.sum(axis=3).sum(axis=2).sum(axis=0)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def conv2d_by_pixels(
    x: Array, weight: Array, bias: Array, grad_y: Array, stride: int, padding: int, dilation: int, groups: int
) -> Tensors:
    """Every pixel of the output from its window; gradients scattered from the same pixel (ONNX's reference Conv)."""
    n, c = x.shape[0], x.shape[1]
    o, in_group, k = weight.shape[0], weight.shape[1], weight.shape[2]
    span = dilation * (k - 1) + 1
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kernels = weight.reshape(groups, o // groups, -1)
    y = np.empty_like(grad_y)
    grad_padded = np.zeros_like(padded)
    grad_kernels = np.zeros_like(kernels)
    for i in range(grad_y.shape[2]):
        for j in range(grad_y.shape[3]):
            top, left = i * stride, j * stride
            window = padded[:, :, top : top + span : dilation, left : left + span : dilation].reshape(
                n, groups, in_group * k * k
            )
            pixel = grad_y[:, :, i, j].reshape(n, groups, o // groups)
            y[:, :, i, j] = np.einsum("gok,ngk->ngo", kernels, window).reshape(n, o) + bias
            grad_kernels += np.einsum("ngo,ngk->gok", pixel, window)
            spread = np.einsum("gok,ngo->ngk", kernels, pixel).reshape(n, c, k, k)
            grad_padded[:, :, top : top + span : dilation, left : left + span : dilation] += spread
    grad_x = grad_padded[:, :, padding : padding + x.shape[2], padding : padding + x.shape[3]]
    grad_bias = np.sum(grad_y, axis=(0, 2, 3))
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_kernels.reshape(weight.shape), "grad.bias": grad_bias}


def avg_pool2d_reshaped(x: Array, grad_y: Array, kernel_size: int) -> Tensors:
    """Blocks as axes of their own; what does not fill a square is cut off, and gets no gradient."""
    n, c, h, w = grad_y.shape
    blocks = x[:, :, : h * kernel_size, : w * kernel_size].reshape(n, c, h, kernel_size, w, kernel_size)
    y = np.mean(blocks, axis=(3, 5))
    spread = np.repeat(np.repeat(grad_y, kernel_size, axis=2), kernel_size, axis=3)
    grad_x = np.zeros_like(x)
    grad_x[:, :, : h * kernel_size, : w * kernel_size] = spread / kernel_size**2
    return {"y": y, "grad.x": grad_x}


def avg_pool2d_by_taps(x: Array, grad_y: Array, kernel_size: int) -> Tensors:
    """The sum of strided slices, divided by their number (torch's avg_pool2d kernels, window by window)."""
    h, w = grad_y.shape[2], grad_y.shape[3]
    area = kernel_size * kernel_size
    total = np.zeros_like(grad_y)
    grad_x = np.zeros_like(x)
    for i in range(kernel_size):
        for j in range(kernel_size):
            total += x[:, :, i : i + kernel_size * h : kernel_size, j : j + kernel_size * w : kernel_size]
            grad_x[:, :, i : i + kernel_size * h : kernel_size, j : j + kernel_size * w : kernel_size] = grad_y / area
    y = total / area
    return {"y": y, "grad.x": grad_x}


def avg_pool2d_by_windows(x: Array, grad_y: Array, kernel_size: int) -> Tensors:
    """lax.reduce_window in Flax's avg_pool: sums of windows, every kernel_size-th of them, times 1 / count."""
    windows = sliding_window_view(x, (kernel_size, kernel_size), axis=(2, 3))[:, :, ::kernel_size, ::kernel_size]
    scale = 1.0 / (kernel_size * kernel_size)
    y = np.sum(windows, axis=(4, 5)) * scale
    grad_x = np.zeros_like(x)
    for i in range(grad_y.shape[2]):
        for j in range(grad_y.shape[3]):
            top, left = i * kernel_size, j * kernel_size
            grad_x[:, :, top : top + kernel_size, left : left + kernel_size] += (
                grad_y[:, :, i : i + 1, j : j + 1] * scale
            )
    return {"y": y, "grad.x": grad_x}


def flatten_reshape(x: Array, grad_y: Array) -> Tensors:
    """A view; its gradient is the view back."""
    y = x.reshape(x.shape[0], -1)
    grad_x = grad_y.reshape(x.shape)
    return {"y": y, "grad.x": grad_x}


def flatten_rows(x: Array, grad_y: Array) -> Tensors:
    """A copy, row by row."""
    y = np.empty_like(grad_y)
    grad_x = np.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i].ravel()
        grad_x[i] = grad_y[i].reshape(x.shape[1:])
    return {"y": y, "grad.x": grad_x}
