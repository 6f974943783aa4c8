"""A comparison's result: a row for every tensor, the report of all rows, and the error that carries it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from parity.config.tolerances import Tolerance
from parity.judge.compare.metrics import Metrics
from parity.outcome import Judgement

Index = tuple[int, ...]


class Agreement(Judgement):
    """Whether two tensors agree, worst last. The words are those of a run's verdicts.

    Only here: `outside`, a difference that exceeds the tolerance. Its kind is unknown, because without an op there is
    neither an exact answer nor an error bound.
    """

    EQUAL = "equal"
    CLOSE = "close"
    OUTSIDE = "outside"
    NONFINITE = "nonfinite"
    STRUCTURE = "structure"

    @property
    def passes(self) -> bool:
        """Whether they agree."""
        return self in (Agreement.EQUAL, Agreement.CLOSE)


SEVERITY = list(Agreement)


@dataclass(frozen=True)
class Hint:
    """What a difference looks like, in words; `diagnosis` is its id for `parity explain`, empty if it has none."""

    text: str
    diagnosis: str = ""


@dataclass(frozen=True)
class Element:
    """One element: its index, its actual and expected value (NumPy scalars), and their difference in tolerances.

    `exact` is None where it is not known.
    """

    index: Index
    actual: Any
    expected: Any
    excess: float
    exact: Any = None


@dataclass(frozen=True)
class ExactErrors:
    """The errors of actual and expected from the exact answer: root mean squares over the finite elements, and maxima.

    `ratio` is the error of `actual` over that of `expected`, each at least a unit roundoff of the exact answer.
    """

    actual_rms: float
    expected_rms: float
    actual_max: float
    expected_max: float
    ratio: float


@dataclass(frozen=True)
class Row:
    """One tensor, actual and expected.

    `path` is its location (`layers[2].weight`; empty if two tensors were compared), `shape` and `dtype` are what both
    have, or what each has. `metrics` and `tolerance` are None if nothing could be measured (`message` says why).
    `excess` is the worst element's difference in tolerances, 1 being the limit. `worst_elements` exceed the tolerance
    most, the worst first. `suspect` says why a pass proves little: zeros would have passed too, no element is finite,
    or there are no elements. `notes` say how the values were read.
    """

    path: str
    verdict: Agreement
    shape: str = ""
    dtype: str = ""
    tolerance: Tolerance | None = None
    metrics: Metrics | None = None
    excess: float = math.inf
    worst_elements: tuple[Element, ...] = ()
    errors: ExactErrors | None = None
    suspect: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class Report:
    """All tensors of a comparison, in the order of `expected`; `str()` is the message. It has no truth value."""

    rows: tuple[Row, ...]
    names: tuple[str, str] = ("actual", "expected")

    @property
    def passes(self) -> bool:
        """Whether every tensor agrees, and there is one."""
        return bool(self.rows) and all(row.verdict.passes for row in self.rows)

    @property
    def failing(self) -> tuple[Row, ...]:
        """The tensors that do not agree, the worst first: missing entries, then different structures."""
        failing = [row for row in self.rows if not row.verdict.passes]
        return tuple(sorted(failing, key=lambda row: (-SEVERITY.index(row.verdict), row.dtype != "", -row.excess)))

    @property
    def suspects(self) -> tuple[Row, ...]:
        """The tensors whose pass proves little."""
        return tuple(row for row in self.rows if row.suspect)

    def __bool__(self) -> NoReturn:
        raise TypeError("a Report has no truth value; ask for its .passes")

    def __str__(self) -> str:
        from parity.library.message import message

        return message(self)


class ParityError(AssertionError):
    """Tensors differ; `report` has all of them, and the message those that differ."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        return str(self.report)


class ParityWarning(UserWarning):
    """A comparison passes, but proves little."""


for public in (Agreement, Hint, Row, Report, ParityError, ParityWarning):
    # A traceback names the module from which users import them.
    public.__module__ = "parity"
