"""A comparison's result: a row for every tensor, the report of all rows and its message, the error that has it.

The message is the answer in one line, then every tensor that differs, the worst first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from parity.config.tolerances import Tolerance
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.metrics import Metrics
from parity.outcome import Judgement
from parity.reporting.text.words import few, grouped

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
MAX_SHOWN = 20
MAX_NAMED = 6
MANY_ULPS = 10**6
SAID = {
    Agreement.OUTSIDE: "outside the tolerance",
    Agreement.NONFINITE: "in NaN or Inf",
    Agreement.STRUCTURE: "in structure",
}


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


def message(report: Report) -> str:
    """What differs, or that all tensors agree."""
    failing = report.failing
    lines = [headline(report)]
    lines += [""] if failing and not failing[0].dtype and not lone(report) else []
    if lone(report):
        lines += [line for row in failing for line in detail_lines(row, report.names)]
    else:
        lines += [line for row in failing[:MAX_SHOWN] for line in row_lines(row, report.names)]
    hidden = [title(row) for row in failing[MAX_SHOWN:]]
    if hidden:
        lines += ["", f"and {len(hidden)} more: {few(hidden, MAX_NAMED)}"]
    lines += [] if report.passes else remaining(report)
    lines += ["", f"suspect: {suspects_text(report)}"] if report.suspects else []
    return "\n".join(lines)


def lone(report: Report) -> bool:
    """Whether two tensors were compared, not structures of tensors."""
    return [row.path for row in report.rows] == [""]


def headline(report: Report) -> str:
    """`2 of 5 tensors differ: 1 outside the tolerance, 1 another structure`."""
    n = len(report.rows)
    tensors = "1 tensor" if n == 1 else f"{n} tensors"
    if report.passes:
        n_equal = sum(row.verdict is Agreement.EQUAL for row in report.rows)
        return f"{tensors} agree{'s' if n == 1 else ''} ({n_equal} bit for bit)"
    counts = Counter(row.verdict for row in report.failing)
    kinds = ", ".join(f"{counts[verdict]} {SAID[verdict]}" for verdict in reversed(Agreement) if verdict in counts)
    if lone(report):
        return f"{report.names[0]} differs from {report.names[1]}: {kind(report.rows[0])}"
    return f"{len(report.failing)} of {tensors} differ: {kinds}"


def remaining(report: Report) -> Iterator[str]:
    """How close to its tolerance the rest is."""
    passing = [row for row in report.rows if row.verdict.passes]
    if passing:
        n_equal = sum(row.verdict is Agreement.EQUAL for row in passing)
        nearest = max(passing, key=lambda row: row.excess)
        used = f"; at most {brief(nearest.excess)} of a tolerance is used" if nearest.excess > 0 else ""
        yield ""
        yield f"the other {len(passing)} agree{'s' if len(passing) == 1 else ''} ({n_equal} bit for bit{used})"


def row_lines(row: Row, names: tuple[str, str]) -> Iterator[str]:
    """One tensor that differs, below its name."""
    if row.dtype:
        yield ""
        yield f"{title(row)}: {kind(row)}"
        yield from detail_lines(row, names)
    else:
        yield f"{title(row)}: {row.verdict.value}, {row.message}"


def kind(row: Row) -> str:
    """`outside, float32, [8, 6]`."""
    return ", ".join(part for part in (row.verdict.value, row.dtype, row.shape) if part)


def detail_lines(row: Row, names: tuple[str, str]) -> Iterator[str]:
    """The lines about one tensor that differs."""
    lines = [row.message] if row.message else []
    if row.metrics is not None and row.metrics.n_mismatched:
        lines += measured(row)
    lines += element_table(row, names)
    if row.errors is not None:
        lines.append(larger_error(row.errors, names))
    lines += row.notes
    for hint in row.hints:
        lines.append(f"looks like: {hint.text}" + (f" (parity explain {hint.diagnosis})" if hint.diagnosis else ""))
    yield from (f"  {line}" for line in lines)


def title(row: Row) -> str:
    """The path, or a title if two tensors were compared."""
    return row.path or "the tensor"


def measured(row: Row) -> list[str]:
    """How many elements exceed the tolerance, by how much at most, and which tolerance would let them pass."""
    m, tolerance = row.metrics, row.tolerance
    assert m is not None and tolerance is not None  # noqa: S101 - the caller looked
    share = f"{m.n_mismatched} of {m.n_elements} elements ({percent(m.n_mismatched, m.n_elements)})"
    verb = "is" if m.n_mismatched == 1 else "are"
    limits = f"outside rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"
    first = f"{share} {verb} {limits}" if m.n_elements > 1 else limits
    if m.n_nonfinite_mismatched == m.n_mismatched:
        return [f"{share} {'differs' if verb == 'is' else 'differ'} by a NaN or Inf; no tolerance lets it pass"]
    if m.n_nonfinite_mismatched:
        first += f", {m.n_nonfinite_mismatched} of them by a NaN or Inf"
    return [first] if row.dtype == "bool" else [first, f"{largest(m)}; {needed(row)}"]


def largest(m: Metrics) -> str:
    """The largest differences: absolute, relative to the expected value, and in representable numbers."""
    parts = [f"abs {brief(m.max_abs_diff)}", f"rel {brief(m.max_rel_diff)}"]
    if m.max_ulp_diff:
        parts.append(f"{m.max_ulp_diff if m.max_ulp_diff < MANY_ULPS else brief(m.max_ulp_diff)} ulp")
    finite = " where both are finite" if m.n_nonfinite_mismatched else ""
    return f"largest difference{finite}: {', '.join(parts)}"


def needed(row: Row) -> str:
    """The tolerance that would let the tensor pass."""
    m = row.metrics
    assert m is not None  # noqa: S101 - the caller looked
    if m.n_nonfinite_mismatched:
        return "no tolerance lets it pass"
    if math.isinf(m.required_rtol):
        return f"atol={above(m.max_abs_diff)} would let it pass, no rtol does"
    return f"rtol={above(m.required_rtol)} or atol={above(m.max_abs_diff)} would let it pass"


def above(value: float) -> str:
    """Three digits, rounded up, so that the printed tolerance suffices."""
    if not 0 < value < math.inf:
        return brief(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit) * unit:.3g}"


def element_table(row: Row, names: tuple[str, str]) -> list[str]:
    """The worst elements as a small table."""
    if not row.worst_elements:
        return []
    exact = row.errors is not None
    lines = [["worst at" if row.worst_elements[0].index else "", *names, *(["exact"] if exact else []), "× tol"]]
    for element in row.worst_elements:
        values = (element.actual, element.expected, *((element.exact,) if exact else ()))
        lines.append(
            [str(list(element.index)) if element.index else "value", *map(spelled, values), brief(element.excess)]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def spelled(value: Any) -> str:
    """The shortest text that identifies a value in its dtype."""
    return str(value if isinstance(value, np.generic) else np.asarray(value)[()])


def larger_error(errors: ExactErrors, names: tuple[str, str]) -> str:
    """Which error is larger, and by how much."""
    sizes = f"error from exact: {names[0]} {brief(errors.actual_rms)}, {names[1]} {brief(errors.expected_rms)} (rms)"
    actual, expected = names
    for ratio, wrong, other in ((errors.ratio, actual, expected), (inverse(errors.ratio), expected, actual)):
        if ratio >= ERROR_BOUND:
            times = brief(ratio) if math.isfinite(ratio) else "infinitely many"
            return f"{sizes}: {wrong} is wrong, its error is {times} times that of {other}"
    return f"{sizes}: both errors are about the same"


def inverse(ratio: float) -> float:
    """1/ratio, infinite for 0."""
    return 1.0 / ratio if ratio else math.inf


def suspects_text(report: Report) -> str:
    """The passes that prove little, by the reason."""
    if lone(report):
        return report.rows[0].suspect
    titles = grouped((row.suspect, title(row)) for row in report.suspects)
    return "; ".join(f"{reason}: {few(names, MAX_NAMED)}" for reason, names in titles.items())


def brief(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def percent(part: int, whole: int) -> str:
    """`50%`, and never 0% of something nor 100% of less than all."""
    share = 100 * part / whole
    if part == whole:
        return "100%"
    return f"{min(max(share, 0.01), 99.99):.3g}%"


for public in (Agreement, Hint, Row, Report, ParityError, ParityWarning):
    # A traceback names the module from which users import them.
    public.__module__ = "parity"
