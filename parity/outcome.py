"""What became of a cell: one case in one dtype on one backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

    def copied(self) -> CellOutcome:
        """The outcome with arrays of its own."""
        outputs = {
            name: replace(o, values=None if o.values is None else o.values.copy()) for name, o in self.outputs.items()
        }
        return replace(self, outputs=outputs)


Arrays = Mapping[str, NDArray[Any]]
