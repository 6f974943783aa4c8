"""The report's top and its last sections: the answer, the matrix, what gave no result, the ledger, the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec.structs import asdict
from rich.text import Text

from parity.config.nodes import printable
from parity.exit_codes import FAIL_ON
from parity.reporting.results.cells import LABELS, CellResult, Status
from parity.reporting.results.rows import BackendRow, KnownRow, Results, RunRow
from parity.reporting.text.answer import answer, causes_found

STYLES = {"bold": "b", "bold red": "b", "red": "code", "yellow": "b", "dim": "small"}
"""The elements for the styles in which the console prints its lines."""

EXIT_CODES = {
    0: "everything asked for was compared and agrees",
    1: "something differs",
    3: "nothing differs, but something could not be compared",
    130: "interrupted",
}
GATES = {
    "mismatch": "any difference beyond the tolerance fails the run",
    "degraded": "what is only rounding does not fail the run",
    "unstable": "what is rounding or degraded does not fail the run",
    "semantic": "only semantic differences, NaN on one side and another structure fail the run",
}
DIFFERING = (Status.FAILED, Status.KNOWN, Status.BELOW, Status.SUSPECT)
"""The statuses of cells in which something was found, the worst first."""
MISSING = "—"
MAX_LISTED = 8


@dataclass(frozen=True)
class AnswerParts:
    """The verdict line in its parts: the word, the first clause, and what follows it."""

    word: str
    first: str
    rest: str


@dataclass(frozen=True)
class MatrixEntry:
    """An entry of the matrix: its worst verdict, how many cells have each status, and the filter that shows them.

    A difference comes before what has no result, so that three cells that are unsupported do not hide the findings.
    """

    status: Status
    verdict: str
    numbers: Mapping[Status, int]
    link: str

    @property
    def total(self) -> int:
        """How many cells there are."""
        return sum(self.numbers.values())

    @property
    def told(self) -> tuple[tuple[Status, int, str], ...]:
        """2 failed, 1 no result: the worst first, what passed only where all did."""
        told = [(status, n, LABELS[status]) for status, n in self.numbers.items()]
        return tuple(row for row in told if row[0] is not Status.PASSED) or tuple(told)


@dataclass(frozen=True)
class Matrix:
    """Ops by backends and dtypes; an entry is None where nothing was asked."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    rows: tuple[tuple[str, tuple[MatrixEntry | None, ...]], ...]


@dataclass(frozen=True)
class NoResult:
    """A reason for which a backend gave no result, or a note, with the cells that it is about."""

    backend: str
    outcome: str
    lines: tuple[str, ...]
    cells: tuple[CellResult, ...]

    @property
    def listed(self) -> tuple[CellResult, ...]:
        """The cells that are named."""
        return self.cells[:MAX_LISTED]

    @property
    def link(self) -> str:
        """The filter that shows these cells and others of the same backend and outcome."""
        wanted = (
            {"backend": self.backend} if self.outcome == "note" else {"backend": self.backend, "verdict": self.outcome}
        )
        return filter_link(**wanted)


@dataclass(frozen=True)
class Fact:
    """A row of the environment table: what `same` says is `differs`, `same` or who alone has it."""

    name: str
    values: tuple[str, ...]
    same: str


def answer_parts(results: Results) -> AnswerParts:
    """The verdict line, taken apart."""
    word, _, said = answer(results).plain.partition("  ")
    first, _, rest = said.partition("; ")
    return AnswerParts(word, first, rest)


def marked_up(line: Text) -> Markup:
    """A line of the console as HTML, with its styles as elements."""
    cuts = sorted({0, len(line.plain), *(edge for span in line.spans for edge in (span.start, span.end))})
    parts = []
    for start, end in pairwise(cuts):
        piece = escape(printable(line.plain[start:end]))
        styles = [str(span.style) for span in line.spans if span.start <= start and end <= span.end]
        tag = STYLES.get(styles[-1]) if styles else None
        parts.append(f"<{tag}>{piece}</{tag}>" if tag else piece)
    return Markup("".join(parts))  # noqa: S704 - every piece is escaped above


def causes(results: Results) -> list[tuple[Markup, str]]:
    """The lines about causes, all of them, each with the filter that shows its cells."""
    return [
        (marked_up(cause.line()), filter_link(backend=cause.backend, cause=cause.id, op=cause.op))
        for cause in causes_found(results)
    ]


def matrix(found: Sequence[CellResult], results: Results) -> Matrix:
    """The cells by op, backend and dtype; `found` has the most urgent first."""
    groups: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in found:
        groups.setdefault((cell.op, cell.backend, cell.dtype), []).append(cell)
    dtypes = sorted({cell.dtype for cell in found})
    ops = dict.fromkeys(case.op for case in results.cases)
    names = results.backend_names
    columns = tuple((name, tuple(d for d in dtypes if any((o, name, d) in groups for o in ops))) for name in names)
    keys = [(name, dtype) for name, its in columns for dtype in its]
    return Matrix(columns, tuple((op, tuple(entry(groups.get((op, *key)), op, *key) for key in keys)) for op in ops))


def entry(group: Sequence[CellResult] | None, op: str, backend: str, dtype: str) -> MatrixEntry | None:
    """What an entry of the matrix says."""
    if not group:
        return None
    numbers = Counter(cell.status for cell in group)
    order = [status for status in dict.fromkeys((*DIFFERING, *Status)) if numbers[status]]
    worst = next(cell for cell in group if cell.status is order[0])
    word = LABELS[order[0]] if order[0] is Status.NOT_RUN else worst.outcome
    verdict = worst.verdict if worst.compared else word
    link = filter_link(op=op, backend=backend, dtype=dtype)
    return MatrixEntry(order[0], verdict, {status: numbers[status] for status in order}, link)


def gate_facts(results: Results) -> list[tuple[str, str, str]]:
    """The level that fails the run and the exit code, each with what it means."""
    level, code = results.run.fail_on or FAIL_ON[0], results.summary.exit_code
    return [
        ("Fails on", level, GATES.get(level, "")),
        ("Exit code", str(code), EXIT_CODES.get(code, "")),
    ]


def filter_link(**wanted: str) -> str:
    """The part of an address that filters the cells."""
    return f"#?{urlencode({key: printable(value) for key, value in wanted.items()})}"


def no_results(found: Sequence[CellResult]) -> list[NoResult]:
    """The reasons for which cells have no result, and notes on cells that have one; the most frequent first."""
    groups: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in found:
        if cell.message or cell.status in (Status.ERROR, Status.UNSUPPORTED):
            outcome = "note" if cell.outcome == "ok" else cell.outcome
            groups.setdefault((cell.backend, outcome, cell.message), []).append(cell)
    ranked = sorted(groups.items(), key=lambda item: (item[0][1] == "note", -len(item[1])))
    return [NoResult(b, o, tuple(message.strip().split("\n")), tuple(cells)) for (b, o, message), cells in ranked]


def environment(backends: Sequence[BackendRow]) -> list[Fact]:
    """What is known about the backends, what differs between them first."""
    rows = [flattened(row) for row in backends]
    names = dict.fromkeys(key for row in rows for key in row)
    facts = [fact(name, [row.get(name, MISSING) for row in rows], backends) for name in names]
    order = {"differs": 0, "same": 1}
    return sorted(facts, key=lambda item: order.get(item.same, 2))


def flattened(row: BackendRow) -> dict[str, str]:
    """A backend's fields and flags as texts; what is unknown or empty is left out.

    Where its interpreter lies says nothing to a reviewer, and something about the machine.
    """
    fields = {key: value for key, value in asdict(row).items() if key not in ("name", "flags", "executable")}
    fields |= row.flags
    return {key: text(value) for key, value in fields.items() if value not in (None, "", {})}


def text(value: Any) -> str:
    """A value of a JSON document for reading."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def fact(name: str, values: Sequence[str], backends: Sequence[BackendRow]) -> Fact:
    """A row of the table, with whether those that have it agree."""
    having = [row.name for row, value in zip(backends, values, strict=True) if value != MISSING]
    if len({value for value in values if value != MISSING}) > 1:
        return Fact(name, tuple(values), "differs")
    return Fact(name, tuple(values), "same" if len(having) == len(backends) else f"only {', '.join(having)}")


def facts_of_run(run: RunRow) -> Iterator[tuple[str, str]]:
    """When, where and how the run was made."""
    known = {
        "command": " ".join(run.command),
        "started": run.started,
        "took": None if run.seconds is None else f"{run.seconds} s",
        "seed": run.seed,
        "parity": run.parity,
        **{f"host, {key}": value for key, value in run.host.items()},
    }
    yield from ((key, text(value)) for key, value in known.items() if value not in (None, ""))


def ledger(results: Results) -> list[KnownRow]:
    """The entries of the ledger, those that have to be mended first."""
    order = ("stale", "expired", "worse", "matched")
    return sorted(results.known, key=lambda row: order.index(row.state) if row.state in order else len(order))
