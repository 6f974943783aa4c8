"""A run as one table: ops down, backends across, a verdict with its cause in each cell, and the evidence below.

One self-contained page: no script, no request, everything escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from markupsafe import Markup

from parity.cases.dtypes import COARSENESS
from parity.outcome import Outcome
from parity.reporting.html.summary import marked_up
from parity.reporting.html.templates import rendered, source
from parity.reporting.results.cells import LABELS, CellResult, Status, cells
from parity.reporting.results.rows import SEVERITY, Results
from parity.reporting.text.findings import Difference, Finding, by_cause
from parity.reporting.text.words import grouped, plural, unique

GAPS: Mapping[Status, str] = {
    Status.UNSUPPORTED: "–",
    Status.ERROR: "no result",
    Status.NOT_RUN: "not run",
}
"""What a cell of the table says if no tensor could be compared."""


@dataclass(frozen=True)
class Entry:
    """All results of an op on one backend: its cells, and its findings with the worst first."""

    op: str
    backend: str
    anchor: str
    cells: Sequence[CellResult]
    findings: Sequence[Finding]

    @cached_property
    def marks(self) -> list[tuple[str, Status]]:
        """The worst status by dtype, from the narrowest dtype on, of the cases that it can compute, if any."""
        by_dtype = grouped((cell.dtype, status_of(cell)) for cell in self.cells)
        having = {dtype: [s for s in found if s not in GAPS] or found for dtype, found in by_dtype.items()}
        return [(dtype, min(having[dtype], key=urgency)) for dtype in sorted(having, key=COARSENESS.index)]

    @property
    def status(self) -> Status:
        """The worst status of a dtype that the backend has, or that of its gaps."""
        having = [status for _, status in self.marks if status not in GAPS]
        return min(having or [status for _, status in self.marks], key=urgency)

    @property
    def verdict(self) -> str:
        """The worst verdict and its cause, `semantic: running-var-ddof`; the cause alone if the tolerance hides it."""
        if not self.findings:
            return GAPS.get(self.status, "")
        worst = self.findings[0]
        verdict = worst.worst.row.verdict if worst.worst.row.fails else ""
        return ": ".join(filter(None, (verdict, worst.id)))

    @property
    def gaps(self) -> list[str]:
        """What the backend says of the dtypes that it lacks."""
        without = [cell for cell in self.cells if status_of(cell) in GAPS]
        told = grouped((text, c) for c in without for text in c.reasons or [c.message or LABELS[c.status]])
        return [f"{', '.join(dict.fromkeys(c.dtype for c in having))}: {text}" for text, having in told.items()]


def status_of(cell: CellResult) -> Status:
    """A cell's status; without a result that of its gap, even if it is accepted."""
    return Status.UNSUPPORTED if cell.outcome == Outcome.UNSUPPORTED.value else cell.status


def urgency(status: Status) -> int:
    """Orders statuses, the most urgent first."""
    return list(Status).index(status)


def census(results: Results) -> list[list[Entry]]:
    """The entries of every op, backend by backend."""
    differing = [row for row in results.comparisons if row.fails or row.hides]
    found = by_cause(results, differing)
    made, anchors = grouped(((cell.op, cell.backend), cell) for cell in cells(results)), set[str]()
    ops = dict.fromkeys(case.op for case in results.cases)
    return [
        [
            Entry(op, name, unique(f"{op}.{name}", anchors), made[op, name], findings_of(found, op, name))
            for name in results.backend_names
            if (op, name) in made
        ]
        for op in ops
    ]


def findings_of(found: Sequence[Finding], op: str, backend: str) -> list[Finding]:
    """The findings of an op that belong to a backend, with its differences only."""
    mine = []
    for finding in found:
        own = tuple(d for d in finding.differences if d.backend == backend)
        if finding.op == op and own:
            mine.append(replace(finding, differences=own))
    return sorted(mine, key=weight, reverse=True)


def weight(finding: Finding) -> tuple[float, ...]:
    """Orders findings: by verdict, then by size; of causes of the same tensor, by how many dtypes have them."""
    worst = finding.worst.row
    return SEVERITY[worst.verdict], finding.report.excess(worst), len(finding.dtypes), finding.n_tensors


def shown_by(finding: Finding) -> Difference:
    """The difference that a script shows: the worst one outside the tolerance, where there is one."""
    return next((d for d in finding.differences if d.row.fails), finding.worst)


def to_script(results: Results) -> list[CellResult]:
    """The cells that deserve a script: one for each finding of the table."""
    shown = (shown_by(finding) for row in census(results) for entry in row for finding in entry.findings)
    wanted = {(d.row.case, d.row.dtype, d.backend) for d in shown}
    return [cell for cell in cells(results) if (cell.id, cell.dtype, cell.backend) in wanted]


def census_page(results: Results, scripts: Collection[str] = ()) -> str:
    """The page; `scripts` are the names of the scripts in the folder `repro` beside it, without their ending."""
    style = source("census.css")
    names = {(cell.id, cell.dtype, cell.backend): cell.anchor for cell in cells(results)}
    rows = census(results)
    entries = [entry for row in rows for entry in row]
    return str(
        rendered(
            "census",
            style=Markup(style),  # noqa: S704 - a file of this package
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
            run=results.run,
            backends=results.backends,
            rows=rows,
            told=[(entry, [told(f, names, scripts) for f in entry.findings]) for entry in entries],
            size=f"{plural(len(rows), 'op')}, {plural(len(results.cases), 'case')}, "
            f"{plural(sum(len(entry.cells) for entry in entries), 'cell')}",
        )
    )


def told(
    finding: Finding, names: Mapping[tuple[str, str, str], str], scripts: Collection[str]
) -> Mapping[str, Markup | str]:
    """A finding in lines, with its script if there is one."""
    worst = shown_by(finding)
    script = names[worst.row.case, worst.row.dtype, worst.backend]
    return {
        "sentence": marked_up(finding.line()),
        "formula": finding.formula(),
        "values": finding.values(),
        "known": next((d.row.known for d in finding.differences if d.row.known), None) or "",
        "script": script if script in scripts else "",
    }
