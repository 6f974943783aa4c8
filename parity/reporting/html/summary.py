"""The report's top and its last sections: the answer, the matrix, what gave no result, the ledger, the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec.structs import asdict
from rich.text import Text

from parity.config.nodes import printable
from parity.exit_codes import DEFAULT_FAIL_ON
from parity.reporting.results.cells import LABELS, CellResult, Status
from parity.reporting.results.rows import BackendRow, KnownRow, Results, RunRow
from parity.reporting.text.answer import answer
from parity.reporting.text.findings import Finding, findings
from parity.reporting.text.words import grouped

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


def answer_parts(results: Results) -> dict[str, str]:
    """The verdict line in its parts: the word, the first clause, and what follows it."""
    word, _, clauses = answer(results).plain.partition("  ")
    first, _, rest = clauses.partition("; ")
    return {"word": word, "first": first, "rest": rest}


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
    """The findings in a line each, with the filter that shows their cells."""
    return [(marked_up(finding.line()), filter_link(**cells_of(finding))) for finding in findings(results)]


def cells_of(finding: Finding) -> dict[str, str]:
    """The filter of the cells that a finding is about."""
    first = finding.worst
    why = {"verdict": first.row.verdict} if first.diagnosis is None else {"cause": first.diagnosis.id}
    return {"op": finding.op, **why} | ({"backend": first.backend} if len(finding.backends) == 1 else {})


def matrix(cells: Sequence[CellResult], results: Results) -> dict[str, Any]:
    """Ops by backends and dtypes, None where nothing was asked; `cells` has the most urgent first."""
    groups = grouped(((cell.op, cell.backend, cell.dtype), cell) for cell in cells)
    dtypes = sorted({cell.dtype for cell in cells})
    ops = dict.fromkeys(case.op for case in results.cases)
    asked = {key[1:] for key in groups}
    columns = [(name, [dtype for dtype in dtypes if (name, dtype) in asked]) for name in results.backend_names]
    keys = [(name, dtype) for name, its_dtypes in columns for dtype in its_dtypes]
    rows = [(op, [entry(group) if (group := groups.get((op, *key))) else None for key in keys]) for op in ops]
    return {"columns": columns, "rows": rows}


def entry(group: Sequence[CellResult]) -> dict[str, Any]:
    """The worst verdict of some cells, how many have each status, and the filter that shows them.

    A difference comes before what has no result, so that three cells that are unsupported do not hide the findings.
    The worst status comes first, what passed only where all did.
    """
    counts = Counter(cell.status for cell in group)
    order = [status for status in dict.fromkeys((*DIFFERING, *Status)) if counts[status]]
    worst = next(cell for cell in group if cell.status is order[0])
    word = LABELS[order[0]] if order[0] is Status.NOT_RUN else worst.outcome
    return {
        "status": order[0].value,
        "verdict": worst.verdict if worst.compared else word,
        "numbers": [(s.value, counts[s], LABELS[s]) for s in order if s is not Status.PASSED or len(order) == 1],
        "mixed": len(order) > 1,
        "total": len(group),
        "link": filter_link(op=worst.op, backend=worst.backend, dtype=worst.dtype),
    }


def gate_facts(results: Results) -> list[tuple[str, str, str]]:
    """The level that fails the run and the exit code, each with what it means."""
    level, code = results.run.fail_on or DEFAULT_FAIL_ON, results.summary.exit_code
    return [
        ("Fails on", level, GATES.get(level, "")),
        ("Exit code", str(code), EXIT_CODES.get(code, "")),
    ]


def filter_link(**wanted: str) -> str:
    """The part of an address that filters the cells."""
    return f"#?{urlencode({key: printable(value) for key, value in wanted.items()})}"


def no_results(cells: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The reasons for which cells have no result, and notes on cells that have one; the most frequent first."""
    groups = grouped(
        ((cell.backend, "note" if cell.outcome == "ok" else cell.outcome, cell.message), cell)
        for cell in cells
        if cell.message or cell.status in (Status.ERROR, Status.UNSUPPORTED)
    )
    ranked = sorted(groups.items(), key=lambda item: (item[0][1] == "note", -len(item[1])))
    return [
        {
            "backend": backend,
            "outcome": outcome,
            "status": "note" if outcome == "note" else group[0].status.value,
            "lines": message.strip().split("\n"),
            "cells": group,
            "link": filter_link(backend=backend, **({} if outcome == "note" else {"verdict": outcome})),
        }
        for (backend, outcome, message), group in ranked
    ]


def environment(backends: Sequence[BackendRow]) -> list[tuple[str, list[str], str]]:
    """What is known about each backend, and whether it is the same: `differs`, `same` or who alone has it."""
    rows = [flattened(row) for row in backends]
    facts = []
    for name in dict.fromkeys(key for row in rows for key in row):
        having = [backend.name for backend, row in zip(backends, rows, strict=True) if name in row]
        differs = len({row[name] for row in rows if name in row}) > 1
        same = "differs" if differs else "same" if len(having) == len(rows) else f"only {', '.join(having)}"
        facts.append((name, [row.get(name, MISSING) for row in rows], same))
    return sorted(facts, key=lambda fact: {"differs": 0, "same": 1}.get(fact[2], 2))


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
