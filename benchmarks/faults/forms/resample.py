"""interpolate and grid_sample: torch's UpSample.h and GridSampler.h, ONNX's reference Resize, the matrix of a resize."""

from __future__ import annotations

import math  # noqa: F401 - the statements below use it
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms.windows import taps  # noqa: F401 - and this
from benchmarks.faults.forms.written import written

Array = NDArray[Any]


def keys(t: Array, a: float = -0.75) -> Array:
    """The cubic convolution kernel of Keys (1981) at a distance."""
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def mirrored(place: Array, n: int, corners: bool) -> Array:
    """A place reflected at the borders until it lies between them."""
    low, length = (0.0, n - 1.0) if corners else (-0.5, float(n))
    if length == 0:
        return np.zeros_like(place)
    rest = np.mod(place - low, 2 * length)
    return np.minimum(rest, 2 * length - rest) + low


TABLE: Mapping[str, Sequence[str]] = {
    "interpolate": (
        """
        y = x
        grad_x = grad_y
        for axis in range(2, x.ndim):
            n, m = x.shape[axis], grad_y.shape[axis]
            factor = scale_factor[axis - 2] if isinstance(scale_factor, tuple) else scale_factor
            ratio = n / m if factor is None else 1 / factor
            i = np.arange(m)
            weight = np.zeros((m, n))
            if mode == "nearest":
                weight[i, np.minimum(np.floor(i * ratio).astype(int), n - 1)] = 1
            elif mode == "nearest-exact":
                weight[i, np.minimum(np.floor((i + 0.5) * ratio).astype(int), n - 1)] = 1
            elif mode == "area":
                start = i * n // m
                end = ((i + 1) * n + m - 1) // m
                inside = (np.arange(n) >= start[:, None]) & (np.arange(n) < end[:, None])
                weight = inside / (end - start)[:, None]
            else:
                if align_corners:
                    place = i * (n - 1) / max(m - 1, 1)
                else:
                    place = (i + 0.5) * ratio - 0.5
                if mode == "bicubic":
                    below = np.floor(place).astype(int)
                    for k in range(-1, 3):
                        np.add.at(weight, (i, np.clip(below + k, 0, n - 1)), keys(place - below - k))
                else:
                    place = np.clip(place, 0, n - 1)
                    weight = np.maximum(1 - np.abs(place[:, None] - np.arange(n)), 0)
            weight = weight.astype(x.dtype)
            y = np.moveaxis(np.tensordot(y, weight, axes=(axis, 1)), -1, axis)
            grad_x = np.moveaxis(np.tensordot(grad_x, weight, axes=(axis, 0)), -1, axis)
        """,
        """
        axes = x.ndim - 2
        along = []
        for a in range(axes):
            n, m = x.shape[2 + a], grad_y.shape[2 + a]
            factor = scale_factor[a] if isinstance(scale_factor, tuple) else scale_factor
            ratio = n / m if factor is None else 1 / factor
            i = np.arange(m)
            if mode == "nearest":
                along.append([(np.minimum((i * ratio).astype(int), n - 1), np.ones(m))])
            elif mode == "nearest-exact":
                along.append([(np.minimum(((i + 0.5) * ratio).astype(int), n - 1), np.ones(m))])
            elif mode == "area":
                start = np.floor(i * n / m).astype(int)
                end = np.ceil((i + 1) * n / m).astype(int)
                steps = range(np.max(end - start))
                along.append([(np.minimum(start + k, n - 1), (start + k < end) / (end - start)) for k in steps])
            else:
                place = i * ((n - 1) / max(m - 1, 1)) if align_corners else ratio * (i + 0.5) - 0.5
                if mode != "bicubic":
                    place = np.maximum(place, 0)
                low = np.floor(place).astype(int)
                share = place - low
                if mode == "bicubic":
                    weights = [keys(share + 1), keys(share), keys(1 - share), keys(2 - share)]
                    along.append([(np.clip(low - 1 + k, 0, n - 1), weights[k]) for k in range(4)])
                else:
                    low = np.minimum(low, n - 1)
                    along.append([(low, 1 - share), (np.minimum(low + 1, n - 1), share)])
        y = np.zeros_like(grad_y)
        grad_x = np.zeros_like(x)
        for corner in taps([len(pairs) for pairs in along]):
            index = np.ix_(*[along[a][corner[a]][0] for a in range(axes)])
            weight = math.prod(np.ix_(*[along[a][corner[a]][1] for a in range(axes)])).astype(x.dtype)
            at = (slice(None), slice(None), *index)
            y += x[at] * weight
            np.add.at(grad_x, at, grad_y * weight)
        """,
    ),
    "grid_sample": (
        """
        axes = x.ndim - 2
        batch = np.arange(len(x)).reshape(-1, *[1] * axes)
        places, slopes = [], []
        for a in range(axes):
            n = x.shape[2 + a]
            along = grid[..., axes - 1 - a]
            slope = (n - 1) / 2 if align_corners else n / 2
            place = (along + 1) * slope if align_corners else (along + 1) * slope - 0.5
            slope = slope + 0 * place
            if padding_mode == "reflection":
                turned = mirrored(place + 0.0009765625, n, align_corners) - mirrored(place, n, align_corners)
                slope = slope * np.sign(turned)
                place = mirrored(place, n, align_corners)
            if padding_mode != "zeros":
                slope = np.where((place < 0) | (place > n - 1), 0, slope)
                place = np.clip(place, 0, n - 1)
            places.append(place)
            slopes.append(slope)
        upstream = np.moveaxis(grad_y, 1, -1)
        result = np.zeros_like(upstream)
        grad_x = np.zeros_like(x)
        grad_grid = np.zeros_like(grid)
        if mode == "nearest":
            corners = [(0,) * axes]
            lows = [np.rint(place).astype(int) for place in places]
        else:
            corners = list(taps([2] * axes))
            lows = [np.floor(place).astype(int) for place in places]
        for corner in corners:
            index = [low + step for low, step in zip(lows, corner)]
            inside = np.ones(grid.shape[:-1], bool)
            for a in range(axes):
                inside = inside & (index[a] >= 0) & (index[a] < x.shape[2 + a])
            index = [np.clip(index[a], 0, x.shape[2 + a] - 1) for a in range(axes)]
            values = x[(batch, slice(None), *index)] * inside[..., None]
            shares = [np.ones_like(place) for place in places]
            if mode != "nearest":
                shares = [1 - np.abs(places[a] - lows[a] - corner[a]) for a in range(axes)]
            weight = math.prod(shares)
            result += values * weight[..., None]
            np.add.at(grad_x, (batch, slice(None), *index), upstream * (weight * inside)[..., None])
            if mode != "nearest":
                dot = np.sum(values * upstream, axis=-1)
                for a in range(axes):
                    others = math.prod([shares[b] for b in range(axes) if b != a])
                    grad_grid[..., axes - 1 - a] += (2 * corner[a] - 1) * dot * others * slopes[a]
        y = np.moveaxis(result, -1, 1)
        """,
        """
        axes = x.ndim - 2
        y = np.zeros_like(grad_y)
        grad_x = np.zeros_like(x)
        grad_grid = np.zeros_like(grid)
        for number in range(len(x)):
            for pixel in taps(grid.shape[1:-1]):
                weights, slopes = [], []
                for a in range(axes):
                    n = x.shape[2 + a]
                    along = grid[(number, *pixel, axes - 1 - a)]
                    place = (along + 1) / 2 * (n - 1) if align_corners else ((along + 1) * n - 1) / 2
                    slope = (n - 1) / 2 if align_corners else n / 2
                    if padding_mode == "reflection":
                        if mirrored(place + 0.0009765625, n, align_corners) < mirrored(place, n, align_corners):
                            slope = -slope
                        place = mirrored(place, n, align_corners)
                    if padding_mode != "zeros" and (place < 0 or place > n - 1):
                        slope = 0
                        place = min(max(place, 0), n - 1)
                    distance = place - np.arange(n)
                    if mode == "nearest":
                        weights.append((np.arange(n) == np.rint(place)).astype(x.dtype))
                        slopes.append(np.zeros(n, x.dtype))
                    else:
                        weights.append(np.maximum(1 - np.abs(distance), 0).astype(x.dtype))
                        low = np.floor(place)
                        side = (np.arange(n) == low + 1).astype(x.dtype) - (np.arange(n) == low)
                        slopes.append((side * slope).astype(x.dtype))
                at = (number, slice(None), *pixel)
                full = weights[0]
                for a in range(1, axes):
                    full = np.multiply.outer(full, weights[a])
                y[at] = np.sum((x[number] * full).reshape(x.shape[1], -1), axis=1)
                upstream = grad_y[at].reshape(-1, *[1] * axes)
                grad_x[number] += upstream * full
                for a in range(axes):
                    part = slopes[0] if a == 0 else weights[0]
                    for b in range(1, axes):
                        part = np.multiply.outer(part, slopes[b] if a == b else weights[b])
                    grad_grid[(number, *pixel, axes - 1 - a)] = np.sum(x[number] * upstream * part)
        """,
    ),
}
FORMS = written(TABLE, globals())
