"""Sums whose order can be chosen: in pairs, as NumPy does, or in sequence, as a plain loop does.

Both are careful implementations: what one of them loses more than the other is rounding, and no fault of a kernel.
"""

from __future__ import annotations

from math import prod
from typing import Any

import autograd.numpy as anp
import numpy as np

Axes = tuple[int, ...]


def total(x: Any, axes: Axes) -> Any:
    """The sum over `axes`, kept as axes of length 1."""
    return anp.sum(x, axis=axes, keepdims=True)


def sum_in_sequence(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """np.sum, one element after the other."""
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % max(x.ndim, 1))
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if not axes or not x.size:
        return np.sum(x, axis=axis, keepdims=keepdims)
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(prod(x.shape[i] for i in axes), -1)
    result = np.cumsum(rows, axis=0)[-1].reshape(kept)
    return result if keepdims else result.reshape([n for i, n in enumerate(x.shape) if i not in axes])
