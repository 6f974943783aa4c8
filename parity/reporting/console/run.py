"""A run on the console: the verdict, the findings, then one table per op with the worst tensors first."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.text import Text

from parity.config.nodes import printable
from parity.judge.compare.verdict import Comparison
from parity.reporting.blocks.console import block_parts, chapter_parts, print_parts
from parity.reporting.kinds import CaseReport, chapters_of, leads_of, report_of, reports_of
from parity.reporting.results.cells import tally_text
from parity.reporting.results.rows import NOT_COMPARED, PASSING, SEVERITY, Results
from parity.reporting.text.answer import MAX_CAUSES, answer, known_lines, warnings
from parity.reporting.text.evidence import called
from parity.reporting.text.findings import Finding, findings
from parity.reporting.text.values import values_text
from parity.reporting.text.words import cut, factor, grouped, plural

ROWS_PER_OP = 16
PIPED_WIDTH = 200
LEAST_WIDTH = 30
N_TEXTS = 3
"""The number of leading text columns of a table; numbers follow, and the last column is text again."""
MAX_MESSAGE = 300
STYLES = {
    "equal": "green",
    "close": "green",
    "rounding": "yellow",
    "choice": "yellow",
    "degraded": "magenta",
    "unstable": "red",
    "semantic": "bold red",
    "nonfinite": "bold red",
    "structure": "bold red",
    "not-compared": "yellow",
}


def stdout_console() -> Console:
    """The console of stdout; a pipe has no width and gets a comfortable one."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=PIPED_WIDTH)


def show(results: Results, *, verbosity: int = 0) -> None:
    """Print results as tables on stdout."""
    render(results, stdout_console(), verbosity=verbosity)


def render(results: Results, console: Console, *, verbosity: int = 0) -> None:
    """Print the results, the causes before the numbers.

    `verbosity` -1 prints the verdict line only, 1 every tensor with its three values.
    """
    console.print(answer(results), soft_wrap=True)
    if verbosity >= 0:
        render_rest(results, console, verbosity=verbosity)


def render_rest(results: Results, console: Console, *, verbosity: int) -> None:
    """Print everything but the verdict line."""
    leads = block_parts(leads_of(results), console.width, verbose=verbosity > 0)
    tallied = Text(tally_text(results), style="dim")
    for text in (*leads, lineup(results), tallied):
        console.print(text, soft_wrap=True)
    if results.left_out:
        console.print(Text(left_out(results), style="dim"), soft_wrap=True)
    all_findings = findings(results)
    shown = all_findings if verbosity > 0 else all_findings[:MAX_CAUSES]
    for i, finding in enumerate(shown, 1):
        console.print()
        for line in finding_lines(finding, i, console.width):
            console.print(line, soft_wrap=True)
    if len(all_findings) > len(shown):
        console.print(f"\nand {plural(len(all_findings) - len(shown), 'more finding')} (-v shows them)", style="dim")
    notes = [
        *remarks(results, verbose=verbosity > 0),
        *warnings(results),
        *known_lines(results.known, verbose=verbosity > 0),
    ]
    for line in [Text(), *notes] if notes else []:
        console.print(line, soft_wrap=True)
    for chapter in chapters_of(results):
        print_parts(chapter_parts(chapter, console.width, verbose=verbosity > 0), console)
    if results.comparisons:
        print_tables(results, console, verbose=verbosity > 0)


def left_out(results: Results) -> str:
    """What a report of a large run does not have; empty if it has all."""
    if not results.left_out:
        return ""
    total = sum(results.summary.cells.values())
    return f"The rows of {results.left_out} of {plural(total, 'cell')} are only in results.sqlite (parity query)."


def finding_lines(finding: Finding, n: int, width: int) -> Iterator[Text]:
    """A finding: its sentence, place, releases, formula, values at the worst element, and where to look."""
    number = f"{n}. "
    yield Text.assemble((number, "bold"), finding.sentence())
    for text, style in (
        (finding.scope(), ""),
        (finding.history(), ""),
        (finding.formula(), "bold"),
        (finding.values(), ""),
        (finding.advice(), ""),
    ):
        yield from indented(text, width, len(number), style)


def indented(text: str, width: int, indent: int, style: str = "") -> Iterator[Text]:
    """A text in lines of at most `width` characters; words are never broken, so ids stay whole."""
    room = max(width - indent, LEAST_WIDTH)
    for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
        yield Text(f"{' ' * indent}{line}", style=style)


def print_tables(results: Results, console: Console, *, verbose: bool) -> None:
    """A table for each op with findings or warnings, and a line for the tensors that agree."""
    lines = tensor_lines(results)
    shown = {op: rows if verbose else [row for row in rows if row.open] for op, rows in lines.items()}
    tables = {op: OpTable(rows[: None if verbose else ROWS_PER_OP], results) for op, rows in shown.items() if rows}
    for op, table in tables.items():
        console.print(Text(f"\n{printable(op)}", style="bold"))
        for line in table.lines(console.width):
            console.print(line, soft_wrap=True)
        if n_more := len(shown[op]) - len(table.rows):
            console.print(f"  and {plural(n_more, 'tensor')} that differ less (-v shows them)", style="dim")
        for text in details(lines[op], report_of(op)) if verbose else ():
            console.print(text, soft_wrap=True)
    if tables:
        wanted = max(table.width for table in tables.values())
        console.print(
            Text(f"\n{legend(results, wanted if wanted > console.width else 0)}", style="dim"), soft_wrap=True
        )
    n_passing = sum(row.verdict in PASSING and not row.partial for rows in lines.values() for row in rows)
    if n_passing and not verbose:
        passing = plural(n_passing, "tensor is", "tensors are")
        console.print(Text(f"{passing} within rtol/atol (-v shows {'it' if n_passing == 1 else 'them'})", style="dim"))


def lineup(results: Results) -> Text:
    """The backends with their versions, the baseline and the subject."""
    parts, baselines = [], {results.run.baseline, *(case.baseline for case in results.cases)}
    judged = {*results.run.subject, *(name for case in results.cases for name in case.subject)}
    for row in results.backends:
        shown = row.name if row.version and row.version in row.name else f"{row.name} {row.version}".strip()
        behind = [] if row.name.startswith(row.framework) else [row.framework]
        behind += [f"{name} {version}" for name, version in row.library.items()]
        behind += ["baseline"] if row.name in baselines else []
        behind += ["subject"] if row.name in judged else []
        parts.append(printable(shown + (f" ({', '.join(behind)})" if behind else "")))
    return Text(" · ".join(parts), style="dim")


def remarks(results: Results, *, verbose: bool = True) -> Iterator[Text]:
    """One line for each reason why something was not compared, and for each remark on what was compared.

    Without `verbose`, messages are cut, and accepted ones are left out.
    """
    missing = [row for row in results.comparisons if not row.compared and row.known is not None]
    accepted = set() if verbose else {(row.case, row.dtype, row.actual) for row in missing}
    messages = [row for row in results.outcomes if row.message and row.key not in accepted]
    groups = grouped(((row.backend, row.outcome, row.message), row) for row in messages)
    for (backend, outcome, message), rows in sorted(groups.items(), key=lambda item: -len(item[1])):
        label = "note" if outcome == "ok" else outcome
        cases, dtypes = list(dict.fromkeys(row.case for row in rows)), sorted({row.dtype for row in rows})
        which = cases[0] if len(cases) == 1 else f"{len(cases)} cases, for example {cases[0]}"
        where = printable(f" in {which} ({', '.join(dtypes)}): ")
        text = printable(message.replace("\n", " | "))
        yield Text.assemble(
            (printable(f"{backend}: {label}"), "yellow"), printable(where), text if verbose else cut(text, MAX_MESSAGE)
        )


@dataclass(frozen=True)
class OpTable:
    """Tensors of one op, the worst first, grouped below the id of their case, which is never cut."""

    rows: Sequence[TensorLine]
    results: Results

    @cached_property
    def why(self) -> Mapping[tuple[str, str, str, str], str]:
        """The causes of each tensor."""
        return reasons(self.results)

    @cached_property
    def measured(self) -> list[str]:
        """The backends, if anything is known of their errors from an exact answer."""
        return self.results.backend_names if any(row.errors for row in self.rows) else []

    @cached_property
    def width(self) -> int:
        """The width with a column for each backend."""
        return max(line.cell_len for line in self._lines(self.measured))

    def lines(self, width: int) -> list[Text]:
        """The lines; without the backends' columns if they do not fit into `width`."""
        return self._lines(self.measured if self.width <= width else [])

    def _lines(self, backends: Sequence[str]) -> list[Text]:
        names = ("", "", "verdict", "× tol", *map(printable, backends), "root cause")
        heads = [Text(name, style="bold") for name in names]
        cells = [self._cells(row, backends) for row in self.rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(heads, *cells, strict=True)]
        made = [aligned_row(heads, widths)]
        pairs = ((row.worst.case, line) for row, line in zip(self.rows, cells, strict=True))
        for case, group in grouped(pairs).items():
            made += [Text(f"  {printable(case)}"), *(aligned_row(line, widths) for line in group)]
        return made

    def _cells(self, row: TensorLine, backends: Sequence[str]) -> list[Text]:
        """Dtype, tensor, verdict, excess, an error for each backend, the root cause."""
        cause = Text(printable(who(row, self.results.backend_names, self.why)), style="red")
        return [*lead(row), *(error_text(row, name) for name in backends), cause]


def aligned_row(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """A row with aligned columns: texts to the left, numbers to the right, no trailing spaces."""
    *inner, last = zip(cells, widths, strict=True)
    rooms = [(cell, Text(" " * (width - cell.cell_len))) for cell, width in inner]
    parts = [(cell, room) if i < N_TEXTS else (room, cell) for i, (cell, room) in enumerate(rooms)]
    line = Text.assemble("  ", *(part for pair in parts for part in ("  ", *pair)), "  ", last[0])
    line.rstrip()
    return line


@dataclass(frozen=True)
class TensorLine:
    """The summary of a tensor's comparisons; `errors` are those against the exact answer, by backend."""

    worst: Comparison
    excess: float
    partial: bool
    culprit: tuple[str, ...]
    errors: Mapping[str, Comparison]

    @property
    def verdict(self) -> str:
        """The worst verdict."""
        return self.worst.verdict

    @property
    def open(self) -> bool:
        """Whether it differs, is not accepted, and counts."""
        return self.worst.fails and self.worst.known is None and self.worst.counts


def tensor_lines(results: Results) -> dict[str, list[TensorLine]]:
    """A line for each case, dtype and tensor, by op, the worst first."""
    ops = {case.id: case.op for case in results.cases}
    tensors = grouped((row.tensor_key, row) for row in results.comparisons)
    named = ((ops[case], rows) for (case, _, _), rows in tensors.items())
    lines = grouped((op, tensor_line(rows, report_of(op))) for op, rows in named)
    for part in lines.values():
        part.sort(key=lambda line: (SEVERITY[line.verdict], line.excess), reverse=True)
    return lines


def tensor_line(group: Sequence[Comparison], report: CaseReport) -> TensorLine:
    """The summary of a tensor's comparisons."""
    made = [row for row in group if row.compared]
    worst = max(
        made or group,
        key=lambda row: (row.fails and not row.known, row.counts, SEVERITY[row.verdict], report.excess(row)),
    )
    return TensorLine(
        worst=worst,
        excess=report.excess(worst),
        partial=len(made) < len(group),
        culprit=tuple(dict.fromkeys(name for row in group for name in row.culprit)),
        errors={row.actual: row for row in group if row.with_oracle},
    )


def lead(line: TensorLine) -> list[Text]:
    """The columns of every table."""
    _, dtype, tensor = line.worst.tensor_key
    return [
        Text(printable(dtype), style="dim"),
        Text(printable(tensor)),
        Text(line.verdict, style=STYLES[line.verdict]),
        Text(
            "" if line.verdict in ("structure", NOT_COMPARED) else factor(line.excess),
            style="bold" if line.excess > 1 else "",
        ),
    ]


def error_text(line: TensorLine, backend: str) -> Text:
    """A backend's largest error against the exact answer, marked if it exceeds the tolerance."""
    row = line.errors.get(backend)
    if row is None or not row.compared:
        return Text("-", style="dim")
    if row.max_abs_diff is None or row.verdict == "nonfinite":
        return Text(f"{'NaN/Inf' if row.verdict == 'nonfinite' else row.verdict} ✗", style="red")
    error = f"{row.max_abs_diff:.1e}"
    return Text(f"{error} ✗", style="red") if row.fails else Text(f"{error}  ", style="dim")


def reasons(results: Results) -> Mapping[tuple[str, str, str, str], str]:
    """The first cause found for each case, dtype, tensor and backend."""
    causes: dict[tuple[str, str, str, str], str] = {}
    for row in results.diagnoses:
        for tensor in row.tensors:
            causes.setdefault((row.case, row.dtype, tensor, row.backend), called(row))
    return causes


def who(line: TensorLine, backends: Sequence[str], why: Mapping[tuple[str, str, str, str], str]) -> str:
    """The backends that exceed the error bound, with causes; `all` if every backend does for the same cause."""
    causes = {name: why.get((*line.worst.tensor_key, name), "") for name in line.culprit}
    if len(backends) > 1 and set(causes) == set(backends) and len(set(causes.values())) == 1:
        return f"all: {next(iter(causes.values()))}".removesuffix(": ")
    known = "" if line.worst.known is None else " (known)"
    known = known if line.worst.counts or not line.worst.fails else " (not counted)"
    return ", ".join(f"{name}: {cause}" if cause else name for name, cause in causes.items()) + known


def details(lines: Sequence[TensorLine], report: CaseReport) -> Iterator[Text]:
    """A line for each tensor that is not bitwise equal: its worst element and the values there."""
    for line in lines:
        worst = line.worst
        text = worst.message
        if not text and worst.worst_index is not None:
            ratios = ", ".join(f"{name} {factor(ratio)}" for name, ratio in worst.ratios.items())
            text = values_text(worst, report) + (
                f" (error over that of a careful implementation: {ratios})" if ratios else ""
            )
        if text and line.verdict != "equal":
            yield Text.assemble((printable(f"{' '.join(worst.tensor_key)}: "), "bold"), printable(text))


def legend(results: Results, wanted: int) -> str:
    """The meaning of the columns; `wanted` is the width that shows all of them, 0 if they are shown."""
    text = "× tol: the worst element's difference in units of its tolerance (1 is the limit). "
    text += "".join(report.legend for report in reports_of(results))
    if not any(row.with_oracle for row in results.comparisons):
        return text.rstrip()
    if wanted:
        return f"{text}COLUMNS={wanted} also shows each backend's error."
    return f"{text}Under a backend's name: its largest error |x - exact|; ✗ means that it exceeds the tolerance."
