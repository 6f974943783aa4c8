"""What became of a cell, one case in one dtype on one backend, and what a training shows of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

from numpy.typing import NDArray


class Judgement(Enum):
    """A kind of answer that has no truth value: `if outcome` would take a crash for a success."""

    def __bool__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has no truth value; compare it with a member")


class Outcome(Judgement):
    """Did it run."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Output:
    """One output as a backend returned it; `values` is None where NumPy has no such dtype."""

    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any] | None


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell; `outputs` is empty unless the outcome is ok. `seconds` is the op's own time.

    `lacking` are the tensors that the backend cannot give, with the reason.
    """

    case: str
    dtype: str
    backend: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    outputs: Mapping[str, Output] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)


Arrays = Mapping[str, NDArray[Any]]


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
