"""Resampling: nearest pixels by their centres, corners aligned, and blocks of channels first."""

from __future__ import annotations

from torch.nn import functional


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None):
    return functional.interpolate(x, size, scale_factor, "nearest-exact")


def grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    return functional.grid_sample(x, grid, mode, padding_mode, True)


def pixel_shuffle(x, upscale_factor):
    n, channels, height, width = x.shape
    r, out = upscale_factor, channels // upscale_factor**2
    blocks = x.reshape(n, r, r, out, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, out, height * r, width * r)
