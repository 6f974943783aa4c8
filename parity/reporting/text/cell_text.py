"""A cell in JUnit, Markdown and annotations: the cause first, in plain lines without control characters."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from parity.config.nodes import printable
from parity.judge.compare.verdict import Comparison
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import CellResult, Status
from parity.reporting.results.rows import CaseRow, CellKey, KnownRow, Results, SourceLocation
from parity.reporting.text.evidence import HARMLESS, residual_text
from parity.reporting.text.findings import Difference, Finding, by_cause
from parity.reporting.text.reasons import CaseRows
from parity.reporting.text.values import values_text
from parity.reporting.text.words import Key, factor, few, grouped

COMPOSED = ", parity's own composition of its calls"
NO_RESULT = (Status.ERROR, Status.NOT_RUN, Status.UNSUPPORTED)


def failing_entries(results: Results) -> list[KnownRow]:
    """The entries of `known` that fail the run."""
    return [row for row in results.known if row.fails]


def config_location(source: SourceLocation | None) -> tuple[str, int]:
    """File and line of a case or an entry of `known` in its config."""
    return ("", 1) if source is None else (source.file, max(source.line, 1))


def headline(cell: CellResult) -> str:
    """One line: who, why, in which tensors, by how much; or why there is no result."""
    who = f"{cell.backend} {cell.dtype}{COMPOSED if cell.composed else ''}"
    aside = "" if cell.counts or not (cell.finding or cell.status is Status.BELOW) else "; not counted"
    if not cell.compared or cell.status in NO_RESULT:
        return printable(f"{who}: {no_result(cell)}{aside}")
    if not cell.finding:
        return printable(f"{who}: {cell.verdict}")
    said = f"{report_of(cell.op).headline(cell)}{cause(cell)}{tensors_text(cell)}{size_text(cell)}"
    return printable(f"{who}: {said}{aside}")


def cause(cell: CellResult) -> str:
    """`the variance is E[x^2] - E[x]^2 (variance-naive): `, or nothing."""
    titles = {row.id: row.title for row in reversed(cell.diagnoses)}
    names = [name for name in cell.causes if name not in HARMLESS] or cell.causes
    said = [f"{titles[name]} ({name})" for name in names]
    return f"{few(said)}: " if said else ""


def tensors_text(cell: CellResult) -> str:
    """`nonfinite in y; unstable in grad.x; close in grad.bias only because the tolerance is loose`."""
    worst = {row.tensor: row.verdict for row in reversed(cell.failing)}
    failing = grouped((worst[row.tensor], row.tensor) for row in cell.failing)
    hidden = dict.fromkeys(row.tensor for row in cell.hidden if row.tensor not in worst)
    texts = [f"{verdict} in {few(dict.fromkeys(tensors))}" for verdict, tensors in failing.items()]
    verb = "passes" if len(hidden) == 1 else "pass"
    texts += [f"{few(hidden)} {verb} only because the tolerance is loose"] if hidden else []
    return "; ".join(texts)


def size_text(cell: CellResult) -> str:
    """`, error ratio 81234`; where none was measured, `, 12 × tol`."""
    if cell.ratio is not None and math.isfinite(cell.ratio):
        return f", error ratio {factor(cell.ratio)}"
    measured = math.isfinite(cell.excess) and not all(map(report_of(cell.op).enveloped, cell.failing))
    return f", {factor(cell.excess)} × tol" if measured else ""


def no_result(cell: CellResult) -> str:
    """`crash: it was killed by SIGSEGV`, in one line."""
    if not cell.outcome:
        return "not run: the run ended before it was compared"
    message = " | ".join(cell.message.splitlines()) or "no reason was given"
    return f"{cell.outcome}: {message}"


def narrowed(findings: Iterable[Finding], key: Callable[[Difference], Key]) -> dict[Key, list[Finding]]:
    """Findings split by case or by cell."""
    parts = (
        (
            name,
            replace(
                finding, differences=tuple(part), cases=tuple(c for c in finding.cases if c.id == part[0].row.case)
            ),
        )
        for finding in findings
        for name, part in grouped((key(d), d) for d in finding.differences).items()
    )
    return grouped(parts)


def cell_findings(results: Results) -> dict[CellKey, list[Finding]]:
    """The findings of each cell, whether they fail the run or not."""
    findings = by_cause(results, [row for row in results.comparisons if row.fails or row.hides])
    return narrowed(findings, lambda d: (d.row.case, d.row.dtype, d.backend))


def details(cell: CellResult, rows: CaseRows, findings: Sequence[Finding]) -> Iterator[str]:
    """The lines below the headline: each cause with its formula, then each tensor with values and reason."""
    if not cell.compared:
        lines = cell.message.splitlines()
        yield from map(printable, lines if len(lines) > 1 else ())
        return
    yield from map(printable, report_of(cell.op).details(cell))
    for finding in findings:
        yield from [finding.sentence().plain] if len(findings) > 1 else []
        yield from (f"  {line}" for line in (finding.history(), finding.formula(), finding.advice()) if line)
    explained: set[tuple[str, bool]] = set()
    for tensor in cell.tensors:
        worst = next(row for row in (*cell.failing, *cell.hidden) if row.tensor == tensor)
        yield from map(printable, tensor_lines(worst, cell, rows, explained))
    for diagnosis in cell.diagnoses:
        yield printable(f"{diagnosis.id} ({', '.join(diagnosis.tensors)}): {residual_text(diagnosis)}")


def tensor_lines(
    worst: Comparison, cell: CellResult, rows: CaseRows, explained: set[tuple[str, bool]]
) -> Iterator[str]:
    """One tensor: the values at its worst element, and the reason for its verdict unless it is in `explained`."""
    yield f"{worst.tensor}: {worst.verdict}; {values_text(worst, report_of(cell.op))}"
    if (kind := (worst.verdict, worst.fails)) not in explained:
        yield f"  why: {report_of(cell.op).reason(worst, rows)}"
        explained.add(kind)
    if worst.known is not None:
        yield f"  accepted: {worst.known}"


def commands(case: CaseRow, run_dir: str) -> tuple[str, ...]:
    """The commands that show more of a case."""
    arguments = f"{shlex.quote(printable(run_dir))} {shlex.quote(printable(case.id))}"
    return tuple(f"parity {name} {arguments}" for name in ("explain", *scripts(case)))


def scripts(case: CaseRow) -> tuple[str, ...]:
    """The command that writes a script of a case, if there can be one."""
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
    known = {"parity": run.parity, "baseline": run.baseline, "subject": ", ".join(run.subject), "seed": run.seed}
    known |= versions(results)
    known |= {f"host {key}": value for key, value in run.host.items()}
    known |= {"fail-on": run.fail_on, "exit code": results.summary.exit_code}
    return {printable(key): printable(str(value)) for key, value in known.items() if value not in (None, "")}
