"""The console: first the answer, then one table per op with the worst tensors first and who is off from the oracle."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from parity.config.nodes import printable
from parity.judge.bound.envelope import OFF
from parity.reporting.kinds import CaseReport, report_of, reports_of
from parity.reporting.results.cells import cells, counts, counts_text
from parity.reporting.results.rows import FAILING, NOT_COMPARED, SEVERITY, ComparisonRow, Results
from parity.reporting.text.answer import answer, causes, known_lines, suspects
from parity.reporting.text.evidence import called
from parity.reporting.text.values import values_text
from parity.reporting.text.words import factor, grouped, plural

ROWS_PER_OP = 16
PIPED_WIDTH = 200
FIXED_WIDTH = 84
"""What a table takes without its columns per backend."""
COLUMN_WIDTH = 11
STYLES = {
    "equal": "green",
    "close": "green",
    "rounding": "yellow",
    "degraded": "magenta",
    "unstable": "red",
    "semantic": "bold red",
    "nonfinite": "bold red",
    "structure": "bold red",
    "not-compared": "yellow",
}


class PipeConsole(Console):
    """A console that falls silent, and does not end the program, when its reader has gone."""

    def on_broken_pipe(self) -> None:
        """Nobody reads any more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stdout_console() -> Console:
    """The console of stdout; a pipe has no width of its own and gets a comfortable one."""
    console = PipeConsole()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return PipeConsole(width=PIPED_WIDTH)


def render(results: Results, console: Console, *, verbosity: int = 0) -> None:
    """Print the results; `verbosity` -1 prints the answer only, 1 every tensor with its three values."""
    console.print(answer(results), soft_wrap=True)
    if verbosity < 0:
        return
    narrow = console.width < width_of(results)
    console.print(lineup(results), soft_wrap=True)
    console.print(Text(f"cells: {counts_text(counts(cells(results)))}", style="dim"), soft_wrap=True)
    for line in [*remarks(results), *causes(results), *suspects(results), *known_lines(results.known)]:
        console.print(line, soft_wrap=True)
    for report in reports_of(results):
        for part in report.console_parts(results, console.width, verbose=verbosity > 0):
            console.print(part, soft_wrap=isinstance(part, Text))
    if results.comparisons:
        for op, lines in tensor_lines(results).items():
            console.print()
            console.print(op_table(op, lines, results, narrow=narrow, verbose=verbosity > 0))
            for text in details(lines, report_of(op)) if verbosity > 0 else ():
                console.print(text, soft_wrap=True)
        console.print()
        console.print(Text(legend(results, narrow=narrow), style="dim"), soft_wrap=True)


def width_of(results: Results) -> int:
    """What a table with a column for each backend takes."""
    return FIXED_WIDTH + COLUMN_WIDTH * len(results.backends)


def lineup(results: Results) -> Text:
    """Who took part, and who is the baseline."""
    parts, baselines = [], {results.run.baseline, *(case.baseline for case in results.cases)}
    for row in results.backends:
        shown = row.name if row.version and row.version in row.name else f"{row.name} {row.version}".strip()
        behind = [] if row.name.startswith(row.framework) else [row.framework]
        behind += [f"{name} {version}" for name, version in row.library.items()]
        framework = f" ({', '.join(behind)})" if behind else ""
        parts.append(printable(shown + framework) + (" = baseline" if row.name in baselines else ""))
    return Text(" · ".join(parts), style="dim")


def remarks(results: Results) -> Iterator[Text]:
    """One line for each reason why cells were not compared, and for what is worth knowing about cells that were."""
    reasons = Counter((row.backend, row.outcome, row.message) for row in results.outcomes if row.message)
    for (backend, outcome, message), n in reasons.most_common():
        label = "note" if outcome == "ok" else outcome
        yield Text.assemble(
            (printable(f"{backend}: {label}"), "yellow"),
            f" in {plural(n, 'cell')}: ",
            printable(message.replace("\n", " | ")),
        )


def op_table(op: str, rows: Sequence[TensorLine], results: Results, *, narrow: bool, verbose: bool) -> Table | Text:
    """The tensors of one op, the worst first; a line where there is nothing to show."""
    shown = rows if verbose else [row for row in rows if row.verdict != NOT_COMPARED][:ROWS_PER_OP]
    if not shown:
        return Text(f"{title(op, rows)} (-v shows them)")
    hidden = len(rows) - len(shown)
    caption = f"{hidden} more, none of them worse (-v shows them)" if hidden else None
    table = Table(
        title=Text(title(op, rows)),
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    backends = results.backend_names
    for name in ("case", "dtype", "tensor", "verdict"):
        table.add_column(name, no_wrap=name != "case", overflow="fold", min_width=12 if name == "case" else None)
    table.add_column("× tol", justify="right", no_wrap=True)
    for name in [] if narrow else backends:
        table.add_column(escape(printable(name)), justify="right", no_wrap=True)
    table.add_column("off, and why", overflow="fold")
    why = reasons(results)
    for row in shown:
        errors = [] if narrow else [error_text(row, name) for name in backends]
        table.add_row(*lead(row), *errors, Text(printable(who(row, backends, why)), style="red"))
    return table


def title(op: str, rows: Sequence[TensorLine]) -> str:
    """`linear: 3 of 8 tensors differ, 2 not compared with everyone`."""
    n_failing = sum(row.verdict in FAILING for row in rows)
    n_partial = sum(row.partial for row in rows)
    n_made = sum(row.verdict != NOT_COMPARED for row in rows)
    parts = [f"{n_failing} of {len(rows)} tensors differ"] if n_failing else []
    parts += [f"{plural(n_made, 'tensor')} agree"] if n_made and not n_failing else []
    parts += [f"{n_partial} not compared with everyone"] if n_partial else []
    return f"{printable(op)}: {', '.join(parts)}"


@dataclass(frozen=True)
class TensorLine:
    """What the comparisons of one tensor come to; `errors` are those with the oracle, by backend."""

    worst: ComparisonRow
    excess: float
    partial: bool
    culprit: tuple[str, ...]
    errors: Mapping[str, ComparisonRow]

    @property
    def verdict(self) -> str:
        """The worst verdict."""
        return self.worst.verdict


def tensor_lines(results: Results) -> dict[str, list[TensorLine]]:
    """A line for each case, dtype and tensor, by op, the worst first."""
    ops = {case.id: case.op for case in results.cases}
    tensors = grouped((row.tensor_key, row) for row in results.comparisons)
    named = ((ops[case], rows) for (case, _, _), rows in tensors.items())
    lines = grouped((op, tensor_line(rows, report_of(op))) for op, rows in named)
    for part in lines.values():
        part.sort(key=lambda line: (SEVERITY[line.verdict], line.excess), reverse=True)
    return lines


def tensor_line(group: Sequence[ComparisonRow], report: CaseReport) -> TensorLine:
    """What the comparisons of one tensor come to."""
    made = [row for row in group if row.compared]
    worst = max(made or group, key=lambda row: (SEVERITY[row.verdict], report.excess(row)))
    return TensorLine(
        worst=worst,
        excess=report.excess(worst),
        partial=len(made) < len(group),
        culprit=tuple(dict.fromkeys(name for row in group for name in row.culprit)),
        errors={row.actual: row for row in group if row.with_oracle},
    )


def lead(line: TensorLine) -> list[Text]:
    """The columns that every table has."""
    case, dtype, tensor = line.worst.tensor_key
    return [
        Text(printable(case)),
        Text(printable(dtype), style="dim"),
        Text(printable(tensor)),
        Text(line.verdict, style=STYLES[line.verdict]),
        Text(
            "" if line.verdict in ("structure", NOT_COMPARED) else factor(line.excess),
            style="bold" if line.excess > 1 else "",
        ),
    ]


def error_text(line: TensorLine, backend: str) -> Text:
    """A backend's largest error from the oracle, marked where it is outside the tolerance."""
    row = line.errors.get(backend)
    if row is None or not row.compared:
        return Text("-", style="dim")
    if row.max_abs_diff is None or row.verdict == "nonfinite":
        return Text(f"{'NaN/Inf' if row.verdict == 'nonfinite' else row.verdict} ✗", style="red")
    error = f"{row.max_abs_diff:.1e}"
    return Text(f"{error} ✗", style="red") if row.fails else Text(f"{error}  ", style="dim")


def reasons(results: Results) -> Mapping[tuple[str, str, str, str], str]:
    """The first cause found for each case, dtype, tensor and backend."""
    found: dict[tuple[str, str, str, str], str] = {}
    for row in results.diagnoses:
        for tensor in row.tensors:
            found.setdefault((row.case, row.dtype, tensor, row.backend), called(row))
    return found


def who(line: TensorLine, backends: Sequence[str], why: Mapping[tuple[str, str, str, str], str]) -> str:
    """The backends that exceed the error bound with their causes; `all` where it is everyone for the same cause."""
    causes = {name: why.get((*line.worst.tensor_key, name), "") for name in line.culprit}
    if len(backends) > 1 and set(causes) == set(backends) and len(set(causes.values())) == 1:
        return f"all: {next(iter(causes.values()))}".removesuffix(": ")
    known = "" if line.worst.known is None else " (known)"
    return ", ".join(f"{name}: {cause}" if cause else name for name, cause in causes.items()) + known


def details(lines: Sequence[TensorLine], report: CaseReport) -> Iterator[Text]:
    """A line for each tensor that is not bit for bit equal: its worst element and the values there."""
    for line in lines:
        worst = line.worst
        text = worst.message
        if not text and worst.worst_index is not None:
            ratios = ", ".join(f"{name} {factor(ratio)}" for name, ratio in worst.ratios.items())
            text = values_text(worst, report) + (f" (error over that of careful code: {ratios})" if ratios else "")
        if text and line.verdict != "equal":
            yield Text.assemble((printable(f"{' '.join(worst.tensor_key)}: "), "bold"), printable(text))


def legend(results: Results, *, narrow: bool) -> str:
    """What the columns mean, where there is something to explain."""
    text = "× tol: the worst element's difference in tolerances (1 is the limit). "
    text += "".join(report.legend for report in reports_of(results))
    text += f"A wider console (COLUMNS={width_of(results)}) shows each backend's error. " if narrow else ""
    failing = any(row.fails for row in results.comparisons)
    if not narrow:
        mark = ", ✗ where that is outside the tolerance" if failing else ""
        text += f"Under a backend's name: its largest |x − oracle|{mark}. "
    if not failing:
        return text
    return text + f"off: whose error is {OFF:g} times what careful code loses in this dtype, or more."
