"""Sums whose order can be chosen: in pairs, as NumPy does, or in sequence, as a plain loop does.

Both are careful code. What one of them loses more than the other is rounding, and no fault of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import autograd.numpy.numpy_wrapper as wrapped
import numpy as np
from autograd.extend import defvjp, primitive

Axes = tuple[int, ...]

_sum_in_pairs = wrapped.sum


@primitive  # type: ignore[untyped-decorator]
def _sum_in_sequence(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % max(x.ndim, 1))
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if not axes:
        return x
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(prod(x.shape[i] for i in axes), -1)
    total = np.cumsum(rows, axis=0)[-1].reshape(kept)
    return total if keepdims else total.reshape([n for i, n in enumerate(x.shape) if i not in axes])


def _vjp(_: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % max(x.ndim, 1))
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return lambda g: np.broadcast_to(g if keepdims else np.reshape(g, kept), x.shape).copy()


defvjp(_sum_in_sequence, _vjp)


def total(x: Any, axes: Axes) -> Any:
    """The sum over `axes`, kept as axes of length 1, in the order that is in force."""
    return wrapped.sum(x, axis=axes, keepdims=True)


def sequential() -> bool:
    """Whether sums run in sequence now."""
    return wrapped.sum is _sum_in_sequence


@contextmanager
def in_sequence() -> Iterator[None]:
    """Inside, every sum of the oracle's lines, those of its gradients included, runs in sequence.

    The name is changed where HIPS autograd looks it up, since the sums of a gradient are taken in its own rules.
    """
    wrapped.sum = _sum_in_sequence
    try:
        yield
    finally:
        wrapped.sum = _sum_in_pairs
