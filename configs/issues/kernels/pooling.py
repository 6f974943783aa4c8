"""Average pooling: 1-d as in ONNX Runtime before 1.16, 2-d without the padding."""

from __future__ import annotations

from torch.nn import functional


def avg_pool1d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Every window is divided by the kernel's size, also the last one, which ends outside the padding."""
    stride = stride or kernel_size
    length = x.shape[-1] + 2 * padding
    windows = -(-(length - kernel_size) // stride) + 1
    padded = functional.pad(x, (padding, padding + (windows - 1) * stride + kernel_size - length))
    return padded.unfold(-1, kernel_size, stride).sum(-1) / kernel_size


def avg_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    return functional.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, False)
