"""What the participants of a training share, and what they show of their steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from parity.outcome import Arrays


@dataclass(frozen=True)
class Curves:
    """What is known of every one of `n` steps in a row, the first of which is `first` (counted from 1).

    `loss` [n] and `grad_norm` [n], the 2-norm of all gradients before clipping, in float64, NaN where a mode does not
    show it; `lr` [n, groups]; `rows` [n, batch], the examples of the data set that were used; `norms` [n, tracked], the
    2-norms, and `sketches` [n, tracked], a fixed random projection of every tensor in `tracked` after the step.
    """

    first: int
    loss: NDArray[Any]
    grad_norm: NDArray[Any]
    lr: NDArray[Any]
    rows: NDArray[Any]
    norms: NDArray[Any]
    sketches: NDArray[Any]
    tracked: tuple[str, ...] = ()

    @property
    def n_steps(self) -> int:
        """How many steps these are."""
        return len(self.loss)


@dataclass(frozen=True)
class StepRecord:
    """Every tensor of one step, in the framework's own numbers.

    `before` has `param.<name>`, `state.<state>.<name>` and `buffer.<name>` as they were before the step. `tensors` has
    them after it, and `output` (all micro-batches, in the order of `rows`), `loss`, `lr` [groups], `grad.<name>` before
    clipping, `clipped.<name>` after it and `norm`. What a mode does not show is missing.
    """

    step: int
    rows: NDArray[Any]
    before: Arrays
    tensors: Arrays


@dataclass(frozen=True)
class Setting:
    """What everybody who takes part in a training shares, in the case's coarsest dtype.

    `x` and `target` [rows, ...] are the data set, `order` [steps, batch] (int32) the rows of every step, and `tensors`
    the parameters and buffers by name, as they start.
    """

    x: NDArray[Any]
    target: NDArray[Any]
    order: NDArray[Any]
    tensors: Arrays


@dataclass(frozen=True)
class Ensemble:
    """Whose runs say what rounding does to a curve: `base` is the unmoved run's name, `members` are the moved ones'.

    `of` is `oracle` or a backend's name.
    """

    of: str
    base: str
    members: tuple[str, ...]
