"""Runs as one table: ops down, backends across, a mark per dtype and a cause in each cell, and the evidence below.

One self-contained page: no script, no request, everything escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from parity.cases.dtypes import COARSENESS
from parity.judge.compare.verdict import Verdict
from parity.outcome import Outcome
from parity.reporting.finding_kinds import LABELS as KIND_LABELS
from parity.reporting.finding_kinds import FindingKind, KindRow
from parity.reporting.html.summary import marked_up
from parity.reporting.html.templates import rendered, source
from parity.reporting.results.cells import LABELS, CellResult, Status, cells
from parity.reporting.results.rows import FINDINGS, SEVERITY, CellKey, Results
from parity.reporting.text.findings import Difference, Finding, by_cause
from parity.reporting.text.words import grouped, plural, unique

Mark = Status | FindingKind
"""What a cell is marked with: the kind of its differences beyond rounding, if kinds are asked for, else its status."""
MARKS: Sequence[Mark] = [
    *(Status.FAILED, FindingKind.BUG, FindingKind.UNCLASSIFIED, Status.ERROR, Status.NOT_RUN, Status.UNSUPPORTED),
    *(FindingKind.CONVENTION, FindingKind.PRECISION, FindingKind.COMPOSITION),
    *(Status.KNOWN, Status.BELOW, Status.SUSPECT, Status.PASSED),
]
"""The most urgent first."""
GAPS: Mapping[Mark, str] = {Status.UNSUPPORTED: "", Status.ERROR: "no result", Status.NOT_RUN: "not run"}
"""What a cell of the table says if no tensor could be compared."""


@dataclass(frozen=True)
class ClassifiedFinding:
    """Differences of one op and backend with one cause and of one kind; `row` says why, if a person did.

    `kind` is None for what is no difference beyond rounding, and where kinds are not asked for.
    """

    finding: Finding
    kind: FindingKind | None = None
    row: KindRow | None = None


@dataclass(frozen=True)
class CensusEntry:
    """All results of an op on one backend: its cells, and its findings with the worst first."""

    op: str
    backend: str
    anchor: str
    cells: Sequence[CellResult]
    classified: Sequence[ClassifiedFinding]

    @property
    def findings(self) -> list[Finding]:
        """The findings without their kinds."""
        return [item.finding for item in self.classified]

    @cached_property
    def kinds(self) -> dict[tuple[str, str], FindingKind]:
        """The most urgent kind of each cell that has one, by case and dtype."""
        pairs = grouped(
            ((d.row.case, d.row.dtype), item.kind)
            for item in self.classified
            for d in item.finding.differences
            if item.kind is not None and d.row.verdict in FINDINGS
        )
        return {key: min(kinds, key=urgency) for key, kinds in pairs.items()}

    def mark_of(self, cell: CellResult) -> Mark:
        """The kind of a cell that has one, else its status."""
        return self.kinds.get((cell.id, cell.dtype)) or status_of(cell)

    @cached_property
    def marks(self) -> list[tuple[str, Mark]]:
        """The most urgent mark by dtype, from the narrowest dtype on, of the cases that it can compute, if any."""
        by_dtype = grouped((cell.dtype, self.mark_of(cell)) for cell in self.cells)
        having = {dtype: [s for s in statuses if s not in GAPS] or statuses for dtype, statuses in by_dtype.items()}
        return [(dtype, min(having[dtype], key=urgency)) for dtype in sorted(having, key=COARSENESS.index)]

    @property
    def status(self) -> Mark:
        """The most urgent mark of a dtype that the backend has, or that of its gaps."""
        having = [status for _, status in self.marks if status not in GAPS]
        return min(having or [status for _, status in self.marks], key=urgency)

    @property
    def cause(self) -> str:
        """The id of the worst finding, else its verdict; nothing for rounding."""
        if not self.findings:
            return GAPS.get(self.status, "")
        return "" if is_rounding(self.findings[0]) else self.findings[0].id or self.findings[0].worst.row.verdict

    @property
    def differs(self) -> bool:
        """Whether it differs by more than rounding, accepted or not."""
        return any(shown_by(finding).row.verdict in FINDINGS for finding in self.findings)

    @property
    def gaps(self) -> list[str]:
        """The backend's messages about the dtypes that it lacks."""
        without = [cell for cell in self.cells if status_of(cell) in GAPS]
        by_text = grouped(
            (text, c) for c in without for text in ([c.message] if c.message else c.reasons or [LABELS[c.status]])
        )
        return [f"{', '.join(dict.fromkeys(c.dtype for c in having))}: {text}" for text, having in by_text.items()]


def status_of(cell: CellResult) -> Status:
    """A cell's status; without a result that of its gap, even if it is accepted."""
    return Status.UNSUPPORTED if cell.outcome == Outcome.UNSUPPORTED.value else cell.status


def urgency(mark: Mark) -> int:
    """Orders marks, the most urgent first."""
    return MARKS.index(mark)


def census(results: Results, kinds: Sequence[KindRow] | None = None) -> list[dict[str, CensusEntry]]:
    """The entries of every op by backend; without `kinds` nothing is classified."""
    differing = [row for row in results.comparisons if row.fails or row.hides]
    findings = by_cause(results, differing)
    made, anchors = grouped(((cell.op, cell.backend), cell) for cell in cells(results)), set[str]()
    ops = dict.fromkeys(case.op for case in results.cases)
    own = {row.key for row in results.outcomes if row.composed}
    return [
        {
            name: CensusEntry(
                op,
                name,
                unique(f"{op}.{name}", anchors),
                made[op, name],
                sorted(
                    (item for f in findings_of(findings, op, name) for item in classified(f, kinds, own)),
                    key=lambda item: urgency(item.kind or Status.PASSED),
                ),
            )
            for name in results.backend_names
            if (op, name) in made
        }
        for op in ops
    ]


def findings_of(findings: Sequence[Finding], op: str, backend: str) -> list[Finding]:
    """The findings of an op that belong to a backend, with its differences only."""
    mine = []
    for finding in findings:
        own = tuple(d for d in finding.differences if d.backend == backend)
        if finding.op == op and own:
            mine.append(replace(finding, differences=own))
    return sorted(mine, key=weight, reverse=True)


def classified(
    finding: Finding, kinds: Sequence[KindRow] | None, composed: Collection[CellKey]
) -> list[ClassifiedFinding]:
    """A finding by kind and row of `kinds`; what is within the tolerance, or rounding, has no kind.

    `composed` are the cells of compositions, nothing in which is the framework's.
    """
    telling = [d for d in finding.differences if d.row.verdict in FINDINGS]
    if kinds is None or not telling:
        return [ClassifiedFinding(finding)]
    cause = finding.id or finding.worst.row.verdict

    def grounds(difference: Difference) -> tuple[FindingKind, KindRow | None]:
        if (difference.row.case, difference.row.dtype, difference.backend) in composed:
            return FindingKind.COMPOSITION, None
        row = next((row for row in kinds if row.covers(finding.op, cause, difference)), None)
        return (FindingKind.UNCLASSIFIED, None) if row is None else (FindingKind(row.kind), row)

    parts = grouped((grounds(d) if d.row.verdict in FINDINGS else (None, None), d) for d in finding.differences)
    return [ClassifiedFinding(replace(finding, differences=tuple(d)), *key) for key, d in parts.items()]


def weight(finding: Finding) -> tuple[float, ...]:
    """Orders findings: rounding last, then by verdict and size; of causes of a tensor, by how many dtypes have them."""
    worst = finding.worst.row
    return (
        not is_rounding(finding),
        SEVERITY[worst.verdict],
        finding.report.excess(worst),
        len(finding.dtypes),
        finding.n_tensors,
    )


def is_rounding(finding: Finding) -> bool:
    """Whether a finding is rounding alone, which a cell leaves to its marks."""
    return (finding.id or finding.worst.row.verdict) == Verdict.ROUNDING


def shown_by(finding: Finding) -> Difference:
    """The difference that stands for a finding: the worst one beyond rounding, where there is one."""
    return next((d for d in finding.differences if d.row.verdict in FINDINGS), finding.worst)


def to_script(results: Results) -> list[CellResult]:
    """The cells that deserve a script: one for each finding outside the tolerance that is more than rounding."""
    shown = (shown_by(finding) for row in census(results) for entry in row.values() for finding in entry.findings)
    wanted = {(d.row.case, d.row.dtype, d.backend) for d in shown if d.row.verdict in FINDINGS}
    return [cell for cell in cells(results) if (cell.id, cell.dtype, cell.backend) in wanted]


def sampled(runs: Sequence[Sequence[CellResult]]) -> list[list[CellResult]]:
    """Of the cells of all runs only the first of each backend."""
    first = {cell.backend: cell for chosen in reversed(runs) for cell in reversed(chosen)}
    return [[cell for cell in chosen if first[cell.backend] is cell] for chosen in runs]


FindingLines = Mapping[str, Markup | str | bool | KindRow | None]
"""What the page shows of a finding, by name."""


@dataclass(frozen=True)
class CensusSection:
    """The ops of a config file: its name, their entries, and the findings of each entry in lines."""

    name: str
    rows: Sequence[Mapping[str, CensusEntry]]
    findings: Sequence[tuple[CensusEntry, Sequence[FindingLines]]]


def sections(results: Results, scripts: Collection[str], kinds: Sequence[KindRow] | None = None) -> list[CensusSection]:
    """The sections of a run."""
    names = {(cell.id, cell.dtype, cell.backend): cell.anchor for cell in cells(results)}
    files = {case.op: Path(case.source.file).stem for case in results.cases}
    by_file = []
    for name, rows in grouped((files[next(iter(row.values())).op], row) for row in census(results, kinds)).items():
        entries = [entry for row in rows for entry in row.values()]
        lines = [(entry, [finding_row(f, names, scripts) for f in entry.classified]) for entry in entries]
        by_file.append(CensusSection(name, rows, lines))
    return by_file


def unclassified(runs: Sequence[Results], kinds: Sequence[KindRow]) -> list[str]:
    """The findings that no row covers, in words."""
    items = [item for entry in entries_of(runs, kinds) for item in entry.classified]
    return [f"no row covers {item.finding.line()}" for item in items if item.kind is FindingKind.UNCLASSIFIED]


def unused(runs: Sequence[Results], kinds: Sequence[KindRow]) -> list[str]:
    """The rows that cover nothing in these runs, in words."""
    used = {id(item.row) for entry in entries_of(runs, kinds) for item in entry.classified}
    return [
        f"row {i} ({row.kind} in {', '.join(row.ops)} of {', '.join(row.frameworks)}) covers nothing"
        for i, row in enumerate(kinds, 1)
        if id(row) not in used
    ]


def entries_of(runs: Sequence[Results], kinds: Sequence[KindRow] | None) -> list[CensusEntry]:
    """All entries of some runs."""
    return [entry for results in runs for row in census(results, kinds) for entry in row.values()]


def census_page(runs: Sequence[Results], scripts: Collection[str] = (), kinds: Sequence[KindRow] | None = None) -> str:
    """The page; `scripts` are the names of the scripts in the folder `repro` beside it, without their ending.

    With `kinds`, differences are marked and counted by kind.
    """
    backends = {row.name: row for results in runs for row in results.backends}
    style = source("census.css") + "".join(
        f"main:has(#only-{i}:checked) tr.op:not(.differs-{i}) {{ display: none }}\n" for i in range(len(backends))
    )
    style += "".join(
        f"main:has(#kind-{kind}:checked) :is(tr.op, .finding):not(.kind-{kind}) {{ display: none }}\n"
        f"main:has(#kind-{kind}:checked) section:not(:has(.kind-{kind})) {{ display: none }}\n"
        for kind in FindingKind
    )
    all_sections = [section for results in runs for section in sections(results, scripts, kinds)]
    entries = [entry for section in all_sections for row in section.rows for entry in row.values()]
    counted = Counter(entry.mark_of(cell) for entry in entries for cell in entry.cells)
    return str(
        rendered(
            "census",
            style=Markup(style),  # noqa: S704 - a file of this package
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
            backends=list(backends.values()),
            sections=all_sections,
            size=f"{plural(sum(len(section.rows) for section in all_sections), 'op')}, "
            f"{plural(sum(len(results.cases) for results in runs), 'case')}, "
            f"{plural(counted.total(), 'cell')}",
            counts={mark.value: counted[mark] for mark in MARKS},
            kinds={} if kinds is None else {kind: label for kind, label in KIND_LABELS.items() if counted[kind]},
        )
    )


def finding_row(item: ClassifiedFinding, names: Mapping[CellKey, str], scripts: Collection[str]) -> FindingLines:
    """A finding in lines, with its script if there is one."""
    finding = item.finding
    worst = shown_by(finding)
    script = names[worst.row.case, worst.row.dtype, worst.backend]
    return {
        "sentence": marked_up(finding.line()),
        "formula": finding.formula(),
        "values": finding.values(),
        "known": next((d.row.known for d in finding.differences if d.row.known), None) or "",
        "within": all(d.row.hides for d in finding.differences),
        "script": script if script in scripts and worst.row.verdict in FINDINGS else "",
        "kind": item.kind,
        "label": KIND_LABELS[item.kind] if item.kind else "",
        "grounds": item.row,
    }
