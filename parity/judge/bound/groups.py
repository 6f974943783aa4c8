"""Local error bounds: rows, channels or columns of different conditioning do not excuse each other.

Elements that share a reduction share its error, and lie along the same axes of the output. So every set of axes makes
groups: the slices over which it is averaged (rows, channels, the positions of all batches). An element's scale is the
smallest of its groups' envelopes. Errors and envelope are divided by these scales, and then compared by root mean
square over the tensor, by the worst group, and by the worst element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Axes = tuple[int, ...]
Inflation = Mapping[Axes, float]
"""The factor by which an envelope of few runs may be too small in a group, for every set of averaged axes."""

TAIL = 30.0
"""One in 30 tensors may have a group with a smaller envelope than this allows for, if runs vary as Gaussians."""


def axis_sets(shape: tuple[int, ...]) -> list[Axes]:
    """The sets of axes over which groups are averaged; a tensor with one axis has groups of one element."""
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    if len(axes) == 1:
        return [()]
    return [chosen for n in range(1, len(axes)) for chosen in combinations(axes, n)]


def group_means(squares: Array, axes: Axes) -> Array:
    """The mean of each group, [shape with `axes` of length 1]."""
    return squares.mean(axis=axes, keepdims=True) if axes else squares


def scales(errors: Array, inflation: Inflation, floor: float) -> Array:
    """The scale of every element, [shape of `errors`], from the envelope of every element.

    A group whose envelope is at most `floor` is ignored: the reference is exact there, or values underflow.
    """
    peak = errors.max(initial=0.0)
    squares = np.square((errors / peak).astype(np.float64)) if peak else np.zeros(errors.shape)
    smallest = np.full(errors.shape, squares.mean() if squares.size else 0.0)
    for axes, factor in inflation.items():
        means = group_means(squares, axes)
        np.minimum(smallest, np.where(means > (floor / peak) ** 2, means * factor**2, np.inf), out=smallest)
    result: Array = np.sqrt(smallest) * peak
    return result


def levels(errors: Array, scale: Array, inflation: Inflation) -> NDArray[np.float64]:
    """The size of errors relative to their scale: over the tensor, in the worst group of each kind, at the worst
    element."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.asarray(np.divide(errors, scale).astype(np.float64, copy=False))
    if np.isnan(squares.max(initial=0.0)):
        squares[errors == 0] = 0.0
    np.square(squares, out=squares)
    worst = (group_means(squares, axes).max(initial=0.0) for axes in inflation)
    return np.sqrt([squares.mean() if squares.size else 0.0, *worst, squares.max(initial=0.0)])


class Spread:
    """How much the error of a group varies from run to run, and so by how much the envelope may be too small."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._n_runs = 0
        self._unit = 0.0
        self._sums = {axes: (np.zeros(()), np.zeros(())) for axes in axis_sets(shape)}

    def add(self, errors: Array) -> None:
        """Adds a run."""
        self._n_runs += 1
        self._unit = self._unit or errors.max(initial=0.0)
        squares = np.square((errors / (self._unit or 1.0)).astype(np.float64))
        for axes, (first, second) in self._sums.items():
            means = group_means(squares, axes)
            self._sums[axes] = (first + means, second + means * means)

    @property
    def inflation(self) -> dict[Axes, float]:
        """By axes: one over the lower quantile of a chi distribution with the degrees of freedom that the runs show.

        Axes whose groups vary too much for the number of runs are left out. Wilson and Hilferty, "The distribution of
        chi-square" (PNAS 17, 1931).
        """
        factors = {}
        for axes, (first, second) in self._sums.items() if self._n_runs > 1 else ():
            mean, square = first / self._n_runs, second / self._n_runs
            power = np.square(mean)
            varying = (power > 0) & np.isfinite(power) & np.isfinite(square)
            if not varying.any():
                continue
            relative = square[varying] / power[varying] - 1.0
            variance = max(float(relative.mean()) * self._n_runs / (self._n_runs - 1), 1e-9)
            part = 2.0 / (9.0 * 2.0 * self._n_runs / variance)
            quantile = 1.0 - part - math.sqrt(2.0 * math.log(TAIL * mean.size) * part)
            if quantile > 0:
                factors[axes] = quantile**-1.5
        return factors
