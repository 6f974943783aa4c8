"""What a comparison found: a row for every tensor, all of them in a report, and the error that carries it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from parity.config.plan import Tolerance
from parity.judge.compare.metrics import Metrics
from parity.outcome import Judgement

Index = tuple[int, ...]


class Agreement(Judgement):
    """Do two tensors agree, worst last. The words are those of a run's verdicts.

    `outside` is new here: outside the tolerance, and nobody can say of what kind, since there is no op whose exact
    answer and rounding could be known.
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
    """What a difference looks like, in words; `diagnosis` is its id for `parity explain`, empty where it has none."""

    text: str
    diagnosis: str = ""


@dataclass(frozen=True)
class Place:
    """One element: its index, its value on each side (NumPy scalars), and their difference in tolerances.

    `exact` is None where it is not known.
    """

    index: Index
    actual: Any
    expected: Any
    excess: float
    exact: Any = None


@dataclass(frozen=True)
class ExactErrors:
    """How far each side is from the exact answer: root mean squares over the finite elements, and maxima.

    `ratio` is the error of `actual` over that of `expected`, neither taken for less than a unit roundoff of the
    exact answer.
    """

    actual_rms: float
    expected_rms: float
    actual_max: float
    expected_max: float
    ratio: float


@dataclass(frozen=True)
class Row:
    """One tensor of both sides.

    `path` says where it is (`layers[2].weight`; empty for the two tensors themselves), `shape` and `dtype` are what
    both have, or what each has. `metrics` and `tolerance` are None where nothing could be measured (`message` says
    why). `excess` is the worst element's difference in tolerances, 1 being the limit. `places` are the worst elements
    that are outside the tolerance, the worst first. `suspect` says why a pass says little: zeros would have passed too,
    no element is finite, or there is none. `notes` say what was done to get at the values.
    """

    path: str
    verdict: Agreement
    shape: str = ""
    dtype: str = ""
    tolerance: Tolerance | None = None
    metrics: Metrics | None = None
    excess: float = math.inf
    places: tuple[Place, ...] = ()
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
        """The tensors that do not agree, the worst first: entries that only one side has, then the other structures."""
        failing = [row for row in self.rows if not row.verdict.passes]
        return tuple(sorted(failing, key=lambda row: (-SEVERITY.index(row.verdict), row.dtype != "", -row.excess)))

    @property
    def suspects(self) -> tuple[Row, ...]:
        """The tensors whose pass says little."""
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
    """A comparison passes and says little."""


for public in (Agreement, Hint, Row, Report, ParityError, ParityWarning):
    # A traceback names the place from which users import them.
    public.__module__ = "parity"
