"""What JUnit, Markdown and annotations say about a cell: lines of plain text without control characters."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from parity.config.nodes import printable
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import CellResult, Status
from parity.reporting.results.rows import CaseRow, ComparisonRow, KnownRow, Results, Source
from parity.reporting.text.evidence import diagnosis_lines
from parity.reporting.text.reasons import CaseRows
from parity.reporting.text.values import values_text
from parity.reporting.text.words import factor, few, number, plural

HIDDEN = "hidden by the tolerance"
MAX_PER_TENSOR = 2
"""How many comparisons of one tensor are shown with their values: with the baseline and with the oracle."""

NO_RESULT = (Status.ERROR, Status.NOT_RUN, Status.UNSUPPORTED)


def failing_entries(results: Results) -> list[KnownRow]:
    """The entries of the ledger that fail the run."""
    return [row for row in results.known if row.fails]


def config_location(source: Source | None) -> tuple[str, int]:
    """File and line of the config in which a case or an entry of the ledger stands."""
    return ("", 1) if source is None else (source.file, max(source.line, 1))


def headline(cell: CellResult) -> str:
    """One line: who, in which tensors, by how much and why; or why there is no result."""
    who = f"{cell.backend} {cell.dtype}"
    if not cell.compared:
        return printable(f"{who}: {no_result(cell)}")
    if not cell.finding:
        size = f", {factor(cell.excess)} tolerances off" if cell.training is None else ""
        return printable(f"{who}: {cell.verdict}{size}")
    measured = math.isfinite(cell.excess) and not all(map(cell.report.enveloped, cell.failing))
    size = f", {factor(cell.excess)} tolerances off" if measured else ""
    ratio = f", error ratio {factor(cell.ratio)}" if cell.ratio is not None and math.isfinite(cell.ratio) else ""
    return printable(f"{who}: {cell.report.headline(cell)}{tensors_text(cell)}{size}{ratio}{cause(cell)}")


def tensors_text(cell: CellResult) -> str:
    """`nonfinite in y; unstable in grad.x; hidden by the tolerance in grad.bias`."""
    groups: dict[str, dict[str, None]] = {}
    told = {row.tensor for row in cell.failing}
    hidden = [(HIDDEN, row.tensor) for row in cell.hidden if row.tensor not in told]
    worst = {row.tensor: row.verdict for row in reversed(cell.failing)}
    for verdict, tensor in (*((worst[row.tensor], row.tensor) for row in cell.failing), *hidden):
        groups.setdefault(verdict, {}).setdefault(tensor)
    return "; ".join(f"{verdict} in {few(list(tensors))}" for verdict, tensors in groups.items())


def no_result(cell: CellResult) -> str:
    """`crash: it was killed by SIGSEGV`, in one line."""
    if not cell.outcome:
        return "not run: the run ended before it was compared"
    message = " | ".join(cell.message.splitlines()) or "no reason was given"
    return f"{cell.outcome}: {message}"


def cause(cell: CellResult) -> str:
    """`; cause: variance-naive (the variance is E[x^2] - E[x]^2)`, or nothing."""
    titles = {row.id: row.title for row in reversed(cell.diagnoses)}
    said = [f"{name} ({titles[name]})" for name in cell.causes]
    return f"; cause: {few(said)}" if said else ""


def details(cell: CellResult, rows: CaseRows) -> Iterator[str]:
    """The lines below the headline: every tensor with its values and its verdict's reason, then the causes."""
    if not cell.compared:
        lines = cell.message.splitlines()
        yield from map(printable, lines if len(lines) > 1 else ())
        return
    yield from map(printable, cell.report.details(cell))
    told: set[str] = set()
    for tensor in cell.tensors:
        group = [row for row in (*cell.failing, *cell.hidden) if row.tensor == tensor]
        yield from map(printable, tensor_lines(tensor, group, cell, rows, told))
    for diagnosis in cell.diagnoses:
        first, *rest = (line.plain for line in diagnosis_lines(diagnosis, brief=True))
        yield from (f"cause: {first}", *(f"  {line}" for line in rest))


def tensor_lines(
    tensor: str, group: Sequence[ComparisonRow], cell: CellResult, rows: CaseRows, told: set[str]
) -> Iterator[str]:
    """One tensor: the values at its worst places, every side's error ratio, why it has its verdict.

    `told` takes in the reasons, none of which is said twice.
    """
    worst = group[0]
    yield f"{tensor}: {worst.verdict}{'' if worst in cell.failing else ', and the tolerance hides it'}"
    yield from (f"  {values_text(row, cell.report)}" for row in group[:MAX_PER_TENSOR])
    if len(group) > MAX_PER_TENSOR:
        yield f"  and {plural(len(group) - MAX_PER_TENSOR, 'more comparison')} of it"
    ratios = rows.ratios(cell.dtype, tensor)
    if ratios:
        shown = ", ".join(f"{side} {number(ratio)}" for side, ratio in ratios.items())
        yield f"  error over that of careful {cell.dtype} code: {shown}"
    why = cell.report.reason(worst, rows)
    if why not in told:
        yield f"  why: {why}"
        told.add(why)
    yield from (f"  accepted: {row.known}" for row in group[:1] if row.known is not None)


def commands(case: CaseRow, run_dir: str) -> tuple[str, ...]:
    """What to type to see more of a case."""
    arguments = f"{shlex.quote(printable(run_dir))} {shlex.quote(printable(case.id))}"
    return tuple(f"parity {name} {arguments}" for name in ("explain", *scripts(case)))


def scripts(case: CaseRow) -> tuple[str, ...]:
    """The command that makes a script of a case, where there is one."""
    return () if report_of(case.op).no_script else ("repro",)


def run_dir_of(results: Results) -> str:
    """The run directory as its command named it."""
    for word, following in pairwise([*results.run.command, ""]):
        if word == "--out" or word.startswith("--out="):
            return word.partition("=")[2] or following
    return f"reports/{results.run.id}" if results.run.id else "RUN_DIR"


def accepted_text(cell: CellResult, results: Results) -> str:
    """`known: naive variance, OneFlow 0.9.0 CPU (until 2027-06-30)`."""
    said = []
    for text in cell.reasons:
        dates = dict.fromkeys(row.until for row in results.known if row.until and row.reason in text)
        said.append(text + (f" (until {', '.join(dates)})" if dates else ""))
    return printable(f"known: {'; '.join(said)}")


def versions(results: Results) -> Mapping[str, str]:
    """Each backend with its framework, release and device."""
    parts = {
        b.name: (b.framework, b.version, b.mode, b.device, b.python and f"Python {b.python}") for b in results.backends
    }
    return {name: " ".join(filter(None, texts)) for name, texts in parts.items()}


def environment(results: Results) -> Mapping[str, str]:
    """What the numbers depend on: versions, baseline, seed, machine, by name."""
    run = results.run
    known = {"parity": run.parity, "baseline": run.baseline, "seed": run.seed, **versions(results)}
    known |= {f"host {key}": value for key, value in run.host.items()}
    known |= {"fail-on": run.fail_on, "exit code": results.summary.exit_code}
    return {printable(key): printable(str(value)) for key, value in known.items() if value not in (None, "")}
