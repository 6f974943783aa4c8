"""The outcome of a cell: one case in one dtype on one backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
"""Tensors by name."""
NOT_A_TENSOR = " (not a tensor)"
"""What the dtype of an output ends with if the worker found no tensor."""


class Judgement(StrEnum):
    """An enum of words without a truth value, since `if outcome` would treat a crash as a success."""

    def __bool__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has no truth value; compare it with a member")


class Outcome(Judgement):
    """Whether a cell ran."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Output:
    """One output of a backend; `values` are float32 for bfloat16, and None for other dtypes that NumPy lacks."""

    dtype: str
    shape: tuple[int, ...]
    values: Array | None


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell; `outputs` is empty unless the outcome is ok. `seconds` is the op's own time.

    `lacking` maps each tensor that the backend cannot provide to the reason. `again` has outputs that another call
    returned differently, `overwritten` those that a later call has changed, `others` those of calls on other inputs
    (empty for a call that failed), `changed` the new values of inputs that the op has changed in place. `composed`:
    it is parity's own composition of the framework's calls.
    """

    case: str
    dtype: str
    backend: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    outputs: Mapping[str, Output] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    again: Mapping[str, Output] = field(default_factory=dict)
    changed: Mapping[str, Output] = field(default_factory=dict)
    composed: bool = False
    overwritten: Mapping[str, Output] = field(default_factory=dict)
    others: Sequence[Mapping[str, Output]] = ()

    def copied(self) -> CellOutcome:
        """The outcome with copied arrays."""
        return replace(
            self,
            outputs=copied(self.outputs),
            again=copied(self.again),
            changed=copied(self.changed),
            overwritten=copied(self.overwritten),
            others=tuple(map(copied, self.others)),
        )


def copied(outputs: Mapping[str, Output]) -> dict[str, Output]:
    """The outputs with copied arrays."""
    return {name: replace(o, values=None if o.values is None else o.values.copy()) for name, o in outputs.items()}
