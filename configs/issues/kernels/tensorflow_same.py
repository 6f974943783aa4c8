"""Convolution with the `SAME` padding of TensorFlow, which has its odd element at the end."""

from __future__ import annotations

from torch.nn import functional


def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    kernel, n = weight.shape[-1], x.shape[-1]
    total = max((-(-n // stride) - 1) * stride + kernel - n, 0)
    before, after = total // 2, total - total // 2
    return functional.conv2d(functional.pad(x, (before, after, before, after)), weight, bias, stride)
