"""Sums whose order can be chosen: in pairs, as NumPy does, or in sequence, as a plain loop does.

Both are careful implementations: the larger error of either is rounding, not a fault of a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import autograd.numpy as anp
import numpy as np

from parity.cases.program import Program, Step

Axes = tuple[int, ...]


def total(x: Any, axes: Axes) -> Any:
    """The sum over `axes`, kept as axes of length 1."""
    return anp.sum(x, axis=axes, keepdims=True)


def sum_in_sequence(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """np.sum, one element after the other."""
    if not np.ndim(x):
        return np.sum(x, axis=axis, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % x.ndim)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if not axes or not x.size:
        return np.sum(x, axis=axis, keepdims=keepdims)
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(prod(x.shape[i] for i in axes), -1)
    result = np.cumsum(rows, axis=0)[-1].reshape(kept)
    return result if keepdims else result.reshape([n for i, n in enumerate(x.shape) if i not in axes])


def in_one_chain(program: Program) -> Program:
    """The program with sums of sums merged: autograd sums the gradient of a bias axis by axis; a loop over all rows is
    one chain of additions, with a correspondingly larger error."""
    sums: dict[int, Step] = {}
    for step in program.steps:
        if step.function is np.sum and step.keywords.get("axis") is not None:
            inner = sums.get(step.refs[0])
            sums[step.index] = step if inner is None else joined(inner, step)
    return replace(program, steps=tuple(sums.get(step.index, step) for step in program.steps)).needed()


def joined(inner: Step, outer: Step) -> Step:
    """The sum over the axes of both; `outer` unchanged if their axes depend on a shape."""
    first, second = (list(np.atleast_1d(step.keywords["axis"])) for step in (inner, outer))
    kept = inner.keywords.get("keepdims", False)
    if kept != outer.keywords.get("keepdims", False) or min(first + second) < 0:
        return outer
    left = [axis for axis in range(max(second) + len(first) + 1) if kept or axis not in first]
    axes = tuple(sorted({*first, *(left[axis] for axis in second)}))
    return replace(outer, operands=inner.operands, keywords={"axis": axes, "keepdims": kept})
