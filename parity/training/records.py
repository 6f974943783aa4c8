"""The data that all participants of a training share, and the records of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.outcome import Array, Arrays

CURVES_AXES = {"loss": 1, "grad_norm": 1, "lr": 2, "rows": 2, "norms": 2, "sketches": 2}
"""The arrays of `Curves`, and how many axes each has; the first axis is the steps."""


@dataclass(frozen=True)
class Curves:
    """The curves of `n` consecutive steps from `first` on (counted from 1).

    `loss` [n] and `grad_norm` [n], the 2-norm of all gradients before clipping, in float64, NaN if the mode does not
    expose it; `lr` [n, groups]; `rows` [n, batch], the examples that were used; `norms` [n, tracked], the 2-norm, and
    `sketches` [n, tracked], a fixed random projection, of every tensor in `tracked` after the step.
    """

    first: int
    loss: Array
    grad_norm: Array
    lr: Array
    rows: Array
    norms: Array
    sketches: Array
    tracked: tuple[str, ...] = ()

    @property
    def n_steps(self) -> int:
        """The number of steps."""
        return len(self.loss)

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in CURVES_AXES}

    def between(self, after: int, last: int) -> Curves:
        """The steps from `after` + 1 to `last`."""
        steps = slice(after + 1 - self.first, last + 1 - self.first)
        return Curves(after + 1, **{name: array[steps] for name, array in self.arrays.items()}, tracked=self.tracked)

    def check_like(self, earlier: Curves) -> None:
        """Raise ValueError if earlier curves have another number of rows, groups or tensors and cannot be joined."""
        for name, array in self.arrays.items():
            own, before = array.shape[1:], getattr(earlier, name).shape[1:]
            if own != before:
                raise ValueError(f"{name} of step {self.first} has {list(own)} numbers and had {list(before)} before")


def read_curves(first: int, n_steps: int, arrays: Arrays, tracked: Sequence[str]) -> Curves:
    """The curves of `n_steps` steps from their arrays; raises ValueError if the arrays do not fit."""
    checked = {}
    for name, n_axes in CURVES_AXES.items():
        if name not in arrays:
            raise ValueError(f"{name} is missing")
        if arrays[name].ndim != n_axes or len(arrays[name]) != n_steps:
            raise ValueError(f"{name} has shape {arrays[name].shape} after {n_steps} steps")
        checked[name] = arrays[name].astype(np.int64 if name == "rows" else np.float64)
    for name in ("norms", "sketches"):
        if checked[name].shape[1] != len(tracked):
            raise ValueError(f"{name} are of {checked[name].shape[1]} tensors and not of {len(tracked)}")
    return Curves(first, **checked, tracked=tuple(tracked))


def joined(parts: Sequence[Curves]) -> Curves | None:
    """Consecutive curves as one; None if there are none."""
    if not parts:
        return None
    arrays = {name: np.concatenate([curves.arrays[name] for curves in parts]) for name in CURVES_AXES}
    return Curves(parts[0].first, **arrays, tracked=parts[0].tracked)


@dataclass(frozen=True)
class StepRecord:
    """Every tensor of one step, as the framework computed it.

    `before` has `param.<name>`, `state.<state>.<name>` and `buffer.<name>` before the step. `tensors` has them after
    it, and also `output` (all micro-batches, in the order of `rows`), `loss`, `lr` [groups], `grad.<name>` before
    clipping, `clipped.<name>` after it, and `norm`. Tensors that a mode does not expose are missing. `previous` has the
    gradients of the step before, if known.
    """

    step: int
    rows: Array
    before: Arrays
    tensors: Arrays
    previous: StepRecord | None = None


@dataclass(frozen=True)
class Setting:
    """The data that all participants of a training share, in the case's coarsest dtype.

    `x` and `target` [rows, ...] are the data set, `order` [steps, batch] (int32) the rows of every step, and `tensors`
    the initial parameters and buffers by name.
    """

    x: Array
    target: Array
    order: Array
    tensors: Arrays


@dataclass(frozen=True)
class Ensemble:
    """The runs that give the envelope of the curves: `base` names the unperturbed run, `members` the perturbed ones.

    `of` is `oracle` or a backend's name.
    """

    of: str
    base: str
    members: tuple[str, ...]
