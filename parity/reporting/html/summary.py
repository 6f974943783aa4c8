"""The report's top and its last sections: the answer, the findings, the matrix, what gave no result, the machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec.structs import asdict
from rich.text import Text

from parity.config.nodes import printable
from parity.exit_codes import DEFAULT_FAIL_ON
from parity.reporting.blocks import Grid, GridCell, GridColumn
from parity.reporting.html.templates import source
from parity.reporting.results.cells import LABELS as CELLS
from parity.reporting.results.cells import TENSOR_LABELS, CellResult, Status, failing_level, tensor_status
from parity.reporting.results.rows import NOT_COMPARED, BackendRow, KnownRow, MatrixRow, Results, RunRow
from parity.reporting.text.answer import answer, known_lines, warnings
from parity.reporting.text.findings import Finding, findings
from parity.reporting.text.words import few, grouped, listed, plural

STYLES = {"bold": "b", "bold red": "b", "red": "code", "yellow": "b", "dim": "small"}
"""The elements for the styles in which the console prints its lines."""

GATES = {
    "mismatch": "every difference outside rtol/atol fails",
    "degraded": "findings fail, rounding warns",
    "unstable": "rounding and degraded results pass",
    "semantic": "only semantic differences, NaN in one backend and another structure fail",
}
LABELS = {**TENSOR_LABELS, Status.UNSUPPORTED: "unsupported", Status.NOT_RUN: "not run"}
DIFFERING = (Status.FAILED, Status.KNOWN, Status.BELOW, Status.SUSPECT)
"""The statuses of cells with findings, the worst first."""
PREFIX = "warning: "
MISSING, SAME, DIFFERS = "—", "same", "differs"
KNOWN_STYLES = {"stale": "bad", "expired": "bad", "worse": "bad", "matched": "good", "not-checked": "quiet"}
"""The states of entries of `known`, in the order in which they are shown."""
MAX_LISTED = 8

ROOM, LEAST_ROOM, OP = 480, 300, 40
"""Pixels that findings, warnings and the matrix have on a screen of 1280 x 800 below the answer; pixels that findings
and warnings have at least, which are open as far as they fit; pixels of an op in the matrix."""
FOLDED, LINE, LETTERS = 31, 21, 150
"""Pixels of a folded cause, pixels of a line of text, letters of a line."""
MAX_GROUPS, MAX_OPEN = 9, 2
"""Number of visible causes, and of visible findings of each; the others are folded away."""


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


def top(results: Results, cells: Sequence[CellResult]) -> dict[str, Any]:
    """The findings by cause and the warnings, as many of them open as fit on the first screen."""
    anchors = {(cell.id, cell.dtype, cell.backend): cell.anchor for cell in cells}
    remarks = warning_lines(results)
    groups = list(grouped(((finding.id, finding.title), finding) for finding in findings(results)).values())
    made: list[dict[str, Any]] = [
        {
            "sentence": cause_sentence(group),
            "findings": [finding_row(finding, anchors, several=len(group) > 1) for finding in group],
            "open": False,
        }
        for group in groups
    ]
    left = max(ROOM - OP * len({case.op for case in results.cases}), LEAST_ROOM)
    left -= sum(FOLDED - LINE + height([cause["sentence"].striptags()]) for cause in made[:MAX_GROUPS])
    for cause in made[:MAX_GROUPS]:
        wanted = sum(height(finding["lines"]) for finding in cause["findings"][:MAX_OPEN])
        cause["open"] = wanted <= left
        left -= wanted if cause["open"] else 0
    wanted = height([line.striptags() for line, _ in remarks]) + LINE * sum(len(more) for _, more in remarks)
    return {
        "causes": made,
        "max_causes": MAX_GROUPS,
        "max_open": MAX_OPEN,
        "warnings": remarks,
        "warnings_open": FOLDED + wanted <= left,
    }


def height(lines: Sequence[str]) -> int:
    """The approximate height of these lines in pixels."""
    return LINE * sum(1 + len(line) // LETTERS for line in lines)


def cause_sentence(group: Sequence[Finding]) -> Markup:
    """Which backend differs, why and where; one sentence for several ops with the same cause."""
    if len(group) == 1:
        return marked_up(group[0].line())
    whole = replace(group[0], differences=tuple(chain.from_iterable(finding.differences for finding in group)))
    where = f" – in {plural(whole.n_tensors, 'tensor')} of {few((finding.op for finding in group), MAX_LISTED)}"
    return marked_up(Text.assemble(whole.sentence(), (where, "dim")))


def finding_row(finding: Finding, anchors: Mapping[tuple[str, str, str], str], *, several: bool) -> dict[str, Any]:
    """A finding in lines: place (where the cause has `several`), releases, formula, values, advice; with the filter of
    its cells and the link to its worst one.
    """
    worst = finding.worst
    scope = finding.scope() if several else ""
    lines = (scope, finding.history(), finding.formula(), finding.values(), finding.advice())
    return {
        "formula": finding.formula(),
        "lines": [line for line in lines if line],
        "filter": filter_link(**cells_of(finding)),
        "anchor": anchors.get((worst.row.case, worst.row.dtype, worst.backend), ""),
    }


def warning_lines(results: Results) -> list[tuple[Markup, list[str]]]:
    """The warnings, each with the lines that belong to it; first the entries of `known` that are out of date."""
    warned: list[tuple[Markup, list[str]]] = []
    for line in (*known_lines([row for row in results.known if row.fails]), *warnings(results)):
        if line.plain.startswith("  "):
            warned[-1][1].append(line.plain.strip())
        else:
            warned.append((marked_up(line[len(PREFIX) :] if line.plain.startswith(PREFIX) else line), []))
    return warned


def cells_of(finding: Finding) -> dict[str, str]:
    """The filter of the cells that a finding is about."""
    first = finding.worst
    why = {"verdict": first.row.verdict} if first.diagnosis is None else {"cause": first.diagnosis.id}
    return {"op": finding.op, **why} | ({"backend": first.backend} if len(finding.backends) == 1 else {})


def matrix(cells: Sequence[CellResult], results: Results) -> dict[str, Any]:
    """Ops by backends and dtypes, None for what the run does not include; `cells` has the most urgent first."""
    if results.left_out:
        return matrix_of_cells(results)
    level = failing_level(results)
    groups = grouped(((cell.op, cell.backend, cell.dtype), cell) for cell in cells)
    dtypes = sorted({cell.dtype for cell in cells})
    ops = dict.fromkeys(case.op for case in results.cases)
    asked = {key[1:] for key in groups}
    columns = [(name, [dtype for dtype in dtypes if (name, dtype) in asked]) for name in results.backend_names]
    keys = [(name, dtype) for name, its_dtypes in columns for dtype in its_dtypes]
    rows = [(op, [entry(group, level) if (group := groups.get((op, *key))) else None for key in keys]) for op in ops]
    return {"columns": columns, "rows": rows, "unit": "tensors"}


def matrix_of_cells(results: Results) -> dict[str, Any]:
    """The matrix of a large run: how many cells have each status."""
    groups = grouped(((row.op, row.backend, row.dtype), row) for row in results.matrix)
    dtypes = sorted({row.dtype for row in results.matrix})
    asked = {key[1:] for key in groups}
    columns = [(name, [dtype for dtype in dtypes if (name, dtype) in asked]) for name in results.backend_names]
    keys = [(name, dtype) for name, its_dtypes in columns for dtype in its_dtypes]
    ops = dict.fromkeys(row.op for row in results.matrix)
    rows = [(op, [counted(group) if (group := groups.get((op, *key))) else None for key in keys]) for op in ops]
    return {"columns": columns, "rows": rows, "unit": "cells"}


def counted(group: Sequence[MatrixRow]) -> dict[str, Any]:
    """An entry of the matrix of cells; the worst status comes first."""
    order = {status: rank for rank, status in enumerate(dict.fromkeys((*DIFFERING, *Status)))}
    rows = sorted(group, key=lambda row: order[Status(row.status)])
    worst, differing = rows[0], [row for row in rows if row.status != Status.PASSED]
    return {
        "status": worst.status,
        "verdict": CELLS[Status(worst.status)] if worst.verdict == NOT_COMPARED else worst.verdict,
        "numbers": [(r.status, r.n_cells, CELLS[Status(r.status)]) for r in differing or rows],
        "mixed": len(rows) > 1,
        "total": sum(row.n_cells for row in rows),
        "link": filter_link(op=worst.op, backend=worst.backend, dtype=worst.dtype),
    }


def entry(group: Sequence[CellResult], level: frozenset[str]) -> dict[str, Any]:
    """The worst verdict of some cells, how many tensors have each status, and the filter that shows them.

    A difference comes before what has no result, so that three cells that are unsupported do not hide the findings.
    The worst status comes first, what agrees only where all do.
    """
    statuses = {cell.anchor: tensor_statuses(cell, level) for cell in group}
    counts = Counter(chain.from_iterable(statuses.values()))
    order = [status for status in dict.fromkeys((*DIFFERING, *Status)) if counts[status]]
    worst = next(cell for cell in group if order[0] in statuses[cell.anchor])
    word = "not run" if order[0] is Status.NOT_RUN else worst.outcome
    return {
        "status": order[0].value,
        "verdict": worst.verdict if worst.compared else word,
        "numbers": [(s.value, counts[s], LABELS[s]) for s in order if s is not Status.PASSED or len(order) == 1],
        "mixed": len(order) > 1,
        "total": counts.total(),
        "link": filter_link(op=worst.op, backend=worst.backend, dtype=worst.dtype),
    }


def tensor_statuses(cell: CellResult, level: frozenset[str]) -> list[Status]:
    """The status of each tensor of a cell; one, that of the cell, where nothing is known of its tensors."""
    rows = grouped((row.tensor, row) for row in cell.rows).values()
    return [tensor_status(each, level) if cell.compared else cell.status for each in rows] or [cell.status]


def gate(results: Results) -> str:
    """`--fail-on degraded: findings fail, rounding warns; exit code 1`."""
    level = results.run.fail_on or DEFAULT_FAIL_ON
    meaning = f": {GATES[level]}" if level in GATES else ""
    return f"--fail-on {level}{meaning}; exit code {results.summary.exit_code}"


def words() -> list[tuple[str, str]]:
    """The terms of the glossary with their meanings."""
    entries = re.findall(r"## (\w+)\n\n(.*?)(?=\n\n|\Z)", source("glossary.md"), re.DOTALL)
    return [(word, " ".join(text.split())) for word, text in entries]


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
            "where": f"{plural(len({cell.id for cell in group}), 'case')}, "
            f"{listed(sorted({cell.dtype for cell in group}))}",
            "cells": group,
            "link": filter_link(backend=backend, **({} if outcome == "note" else {"verdict": outcome})),
        }
        for (backend, outcome, message), group in ranked
    ]


def environment(backends: Sequence[BackendRow]) -> Grid:
    """The properties of each backend, those that differ first, then what all have in common."""
    rows = [(row.name, flattened(row)) for row in backends]
    facts = [fact(name, rows) for name in dict.fromkeys(key for _, row in rows for key in row)]
    facts.sort(key=lambda row: (row[-1].style != "warning", row[-1].text != SAME))
    columns = [GridColumn(title, prose=True) for title in ("what", *(name for name, _ in rows), "the same?")]
    return Grid(columns, facts, note="What each backend ran with; what differs between them first.", kind="env")


def fact(name: str, rows: Sequence[tuple[str, Mapping[str, str]]]) -> list[GridCell]:
    """A property of all backends, and whether it is equal or which backends have it."""
    having = [backend for backend, row in rows if name in row]
    differs = len({row[name] for _, row in rows if name in row}) > 1
    same = DIFFERS if differs else SAME if len(having) == len(rows) else f"only {', '.join(having)}"
    values = (GridCell(row.get(name, MISSING)) for _, row in rows)
    style = "warning" if differs else "quiet" if same == SAME else ""
    return [GridCell(name, "warning" if differs else ""), *values, GridCell(same, style)]


def flattened(row: BackendRow) -> dict[str, str]:
    """A backend's fields and flags as texts; what is unknown or empty is left out.

    The interpreter's path is left out: it tells a reviewer nothing, and reveals something about the machine.
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


def known(results: Results) -> Grid:
    """The entries of `known`, those that are out of date first."""
    order = list(KNOWN_STYLES)
    ranked = sorted(results.known, key=lambda row: order.index(row.state) if row.state in order else len(order))
    titles = ("state", "case", "backend", "dtype", "tensor", "diagnosis", "reason", "until", "what was found")
    note = "The deviations that the configs accept under known:; entries that are out of date come first."
    return Grid([GridColumn(title, prose=True) for title in titles], list(map(known_row, ranked)), note=note)


def known_row(row: KnownRow) -> list[GridCell]:
    """An entry of `known` as a row."""
    texts = (row.case, *(text or "any" for text in (row.backend, row.dtype, row.tensor, row.diagnosis)))
    state = GridCell(row.state, KNOWN_STYLES.get(row.state, "bad"))
    return [state, *map(GridCell, (*texts, row.reason, row.until or "no date", row.message))]
