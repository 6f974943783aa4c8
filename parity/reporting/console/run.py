"""The console: first the answer, then one table per op with the worst tensors first and who is off from the oracle."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from parity.config.nodes import printable
from parity.config.plan import ORACLE
from parity.judge.bound.envelope import OFF
from parity.reporting.results.cells import cells, counts, counts_text
from parity.reporting.results.known_rows import ledger_lines
from parity.reporting.results.record import excess
from parity.reporting.results.results import Results, Row
from parity.reporting.text.answer import FAILING, answer, causes, plural, suspects
from parity.reporting.text.reasons import SEVERITY, enveloped, factor, place_text
from parity.training.report.console import training_tables

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
    for line in [*remarks(results), *causes(results), *suspects(results), *ledger_lines(results.known)]:
        console.print(line, soft_wrap=True)
    for part in training_tables(results, console.width, verbose=verbosity > 0):
        console.print(part, soft_wrap=isinstance(part, Text))
    if results.comparisons:
        for op, comparisons in by_op(results).items():
            console.print()
            rows = tensor_rows(comparisons, op)
            console.print(op_table(op, rows, results, narrow=narrow, verbose=verbosity > 0))
            for line in details(rows, op) if verbosity > 0 else ():
                console.print(line, soft_wrap=True)
        console.print()
        console.print(Text(legend(results, narrow=narrow), style="dim"), soft_wrap=True)


def width_of(results: Results) -> int:
    """What a table with a column for each backend takes."""
    return FIXED_WIDTH + COLUMN_WIDTH * len(results.backends)


def lineup(results: Results) -> Text:
    """Who took part, and who is the baseline."""
    parts = []
    for row in results.backends:
        shown = (
            row["name"]
            if row["version"] and row["version"] in row["name"]
            else f"{row['name']} {row['version']}".strip()
        )
        behind = [] if row["name"].startswith(row["framework"]) else [row["framework"]]
        behind += [f"{name} {version}" for name, version in row.get("library", {}).items()]
        framework = f" ({', '.join(behind)})" if behind else ""
        parts.append(printable(shown + framework) + (" = baseline" if row["name"] == results.run["baseline"] else ""))
    return Text(" · ".join(parts), style="dim")


def remarks(results: Results) -> Iterator[Text]:
    """One line for each reason why cells were not compared, and for what is worth knowing about cells that were."""
    reasons = Counter((row["backend"], row["outcome"], row["message"]) for row in results.outcomes if row["message"])
    for (backend, outcome, message), n in reasons.most_common():
        label = "note" if outcome == "ok" else outcome
        yield Text.assemble(
            (printable(f"{backend}: {label}"), "yellow"),
            f" in {plural(n, 'cell')}: ",
            printable(message.replace("\n", " | ")),
        )


def op_table(op: str, rows: Sequence[Row], results: Results, *, narrow: bool, verbose: bool) -> Table | Text:
    """The tensors of one op, the worst first; a line where there is nothing to show."""
    shown = rows if verbose else [row for row in rows if row["verdict"] != "not-compared"][:ROWS_PER_OP]
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
    backends = [row["name"] for row in results.backends]
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


def title(op: str, rows: Sequence[Row]) -> str:
    """`linear: 3 of 8 tensors differ, 2 not compared with everyone`."""
    n_failing = sum(row["verdict"] in FAILING for row in rows)
    n_partial = sum(row["partial"] for row in rows)
    n_made = sum(row["verdict"] != "not-compared" for row in rows)
    parts = [f"{n_failing} of {len(rows)} tensors differ"] if n_failing else []
    parts += [f"{plural(n_made, 'tensor')} agree"] if n_made and not n_failing else []
    parts += [f"{n_partial} not compared with everyone"] if n_partial else []
    return f"{printable(op)}: {', '.join(parts)}"


def by_op(results: Results) -> dict[str, list[Row]]:
    """The comparisons of each op."""
    ops = {case["id"]: str(case["op"]) for case in results.cases}
    found: dict[str, list[Row]] = {}
    for row in results.comparisons:
        found.setdefault(ops[row["case"]], []).append(row)
    return found


def tensor_rows(comparisons: Iterable[Row], op: str) -> list[Row]:
    """One row per case, dtype and tensor: worst verdict, excess, culprits, every backend's error; worst first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in comparisons:
        groups.setdefault((row["case"], row["dtype"], row["tensor"]), []).append(row)
    rows = [tensor_row(*key, group, op) for key, group in groups.items()]
    return sorted(rows, key=lambda row: (row["severity"], row["excess"]), reverse=True)


def tensor_row(case: str, dtype: str, tensor: str, group: Sequence[Row], op: str) -> Row:
    """What the comparisons of one tensor come to."""
    made = [row for row in group if row["verdict"] != "not-compared"]
    worst = max(made or group, key=lambda row: (SEVERITY[row["verdict"]], excess(row, op)))
    against_oracle = [row for row in group if row["expected"] == ORACLE]
    return {
        "case": case,
        "dtype": dtype,
        "tensor": tensor,
        "verdict": worst["verdict"],
        "severity": SEVERITY[worst["verdict"]],
        "excess": excess(worst, op),
        "worst": worst,
        "partial": len(made) < len(group),
        "known": isinstance(worst["known"], str),
        "culprit": list(dict.fromkeys(side for row in group for side in row["culprit"])),
        "errors": {row["actual"]: row["max_abs_diff"] for row in against_oracle},
        "off": {row["actual"]: row["verdict"] for row in against_oracle},
    }


def lead(row: Row) -> list[Text]:
    """The columns that every table has."""
    verdict = row["verdict"]
    off = "" if verdict in ("structure", "not-compared") else factor(row["excess"])
    return [
        Text(printable(row["case"])),
        Text(printable(row["dtype"]), style="dim"),
        Text(printable(row["tensor"])),
        Text(verdict, style=STYLES[verdict]),
        Text(off, style="bold" if row["excess"] > 1 else ""),
    ]


def error_text(row: Row, backend: str) -> Text:
    """A backend's largest error from the oracle, marked where it is outside the tolerance."""
    verdict = row["off"].get(backend)
    if verdict is None or verdict == "not-compared":
        return Text("-", style="dim")
    if verdict in ("structure", "nonfinite"):
        return Text(f"{'NaN/Inf' if verdict == 'nonfinite' else verdict} ✗", style="red")
    error = row["errors"][backend]
    return Text(f"{error:.1e} ✗", style="red") if verdict in FAILING else Text(f"{error:.1e}  ", style="dim")


def reasons(results: Results) -> Mapping[tuple[str, str, str, str], str]:
    """The first cause found for each case, dtype, tensor and backend."""
    found: dict[tuple[str, str, str, str], str] = {}
    for row in results.diagnoses:
        for tensor in row["tensors"]:
            found.setdefault((row["case"], row["dtype"], tensor, row["backend"]), row["id"])
    return found


def who(row: Row, backends: Sequence[str], why: Mapping[tuple[str, str, str, str], str]) -> str:
    """The sides that are off with their causes; `all` says it shorter where it is everyone for the same cause."""
    causes = {side: why.get((row["case"], row["dtype"], row["tensor"], side), "") for side in row["culprit"]}
    if len(backends) > 1 and set(causes) == set(backends) and len(set(causes.values())) == 1:
        return f"all: {next(iter(causes.values()))}".removesuffix(": ")
    known = " (known)" if row["known"] else ""
    return ", ".join(f"{side}: {cause}" if cause else side for side, cause in causes.items()) + known


def details(rows: Sequence[Row], op: str) -> Iterator[Text]:
    """A line for each tensor that is not bit for bit equal: its worst element and the values there."""
    for row in rows:
        text = row["worst"]["message"] or describe_worst(row["worst"], op)
        if text and row["verdict"] != "equal":
            yield Text.assemble((printable(f"{row['case']} {row['dtype']} {row['tensor']}: "), "bold"), printable(text))


def describe_worst(worst: Row, op: str) -> str:
    """`paddle -0.84543 against torch -0.84544 at [0, 0], oracle -0.84543; needs rtol 1e-5`."""
    if worst["worst_index"] is None:
        return ""
    parts = [f"{worst['actual']} {worst['actual_value']:.9g} against {worst['expected']} {worst['expected_value']:.9g}"]
    parts.append(f"at {place_text(worst, op)}")
    if worst["expected"] != ORACLE and worst["oracle_value"] is not None:
        parts.append(f"(oracle {worst['oracle_value']:.9g})")
    if not enveloped(worst, op):
        parts.append(f"rtol {worst['rtol']:g} atol {worst['atol']:g}, needs rtol {worst['required_rtol']:.2g}")
    ratios = zip(("actual", "expected"), worst["error_ratio"].values(), strict=True)
    known = [f"{worst[side]} {factor(ratio)}" for side, ratio in ratios if ratio is not None]
    if known:
        parts.append(f"(error over that of careful code: {', '.join(known)})")
    return " ".join(parts)


def legend(results: Results, *, narrow: bool) -> str:
    """What the columns mean, where there is something to explain."""
    text = "× tol: the worst element's difference in tolerances (1 is the limit). "
    text += f"Of a training, {OFF:g} envelopes are the tolerance. " if results.trainings else ""
    text += f"A wider console (COLUMNS={width_of(results)}) shows each backend's error. " if narrow else ""
    failing = any(row["verdict"] in FAILING for row in results.comparisons)
    if not narrow:
        mark = ", ✗ where that is outside the tolerance" if failing else ""
        text += f"Under a backend's name: its largest |x − oracle|{mark}. "
    if not failing:
        return text
    return text + f"off: whose error is {OFF:g} times what careful code loses in this dtype, or more."
