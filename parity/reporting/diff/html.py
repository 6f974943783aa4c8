"""A diff as one self-contained HTML page: no script, no request, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.text import (
    ARROW,
    GROUPED,
    LEGEND,
    MEANINGS,
    OPEN,
    change_table,
    count_text,
    differences,
    groups,
    headline,
    runs_text,
    sections,
)
from parity.reporting.html.templates import rendered, source
from parity.reporting.text.cell_text import commands

MAX_ROWS = 2000
"""The most rows of one kind, and cases with their commands; a browser is slow with more."""


def html(diff: Diff) -> str:
    """The page."""
    style = source("diff.css")
    word, said = headline(diff)
    cases = cases_named(diff)
    links = {name: f"case-{i}" for i, name in enumerate(cases)}
    page = rendered(
        "diff",
        style=Markup(style),  # noqa: S704 - a file of this package
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        word=word,
        said=said,
        runs=arrowed(runs_text(diff)),
        differences=map(arrowed, differences(diff)),
        sections=[section(kind, changes, links) for kind, changes in sections(diff)],
        cases=zip(links.values(), cases, case_commands(diff, cases), strict=True),
        legend=LEGEND,
    )
    return str(page)


def section(kind: ChangeKind, changes: Sequence[Change], links: Mapping[str, str]) -> dict[str, Any]:
    """All changes of one kind, as the template shows them; `links` are the anchors of the cases' commands."""
    head, rows = change_table(changes)
    cases = [change.case for change in changes]
    if kind in GROUPED:
        grouped = groups(changes)
        head = ["cells", "failed in A", "reason"]
        rows = [[str(group.n_cells), str(group.n_findings), group.text] for group in grouped]
        cases = [group.changes[0].case for group in grouped]
    shown = zip(rows[:MAX_ROWS], cases, strict=False)
    return {
        "kind": kind.value,
        "title": count_text(kind, len(changes)),
        "meaning": MEANINGS[kind],
        "open": kind in OPEN,
        "head": head,
        "rows": [(list(map(arrowed, row)), links.get(case, "")) for row, case in shown],
        "hidden": max(len(rows) - MAX_ROWS, 0),
    }


def cases_named(diff: Diff) -> list[str]:
    """The cases that the page names, each once, in the order of their changes."""
    listed = (change for change in diff.changes if change.kind not in GROUPED)
    grouped = (group.changes[0] for kind in GROUPED for group in groups(diff.of(kind)))
    return list(dict.fromkeys(change.case for change in (*listed, *grouped)))[:MAX_ROWS]


def case_commands(diff: Diff, names: Sequence[str]) -> Iterator[list[str]]:
    """The commands that show each case, in B if B has it; a script only for a finding."""
    stored = {name: (run, case) for run in (diff.a, diff.b) for name, case in run.cases.items()}
    with_finding = {run.run_dir: {cell.id for cell in run.cells.values() if cell.finding} for run in (diff.a, diff.b)}
    for name in names:
        run, case = stored[name]
        explain, *repro = commands(case, str(run.run_dir))
        yield [explain, *repro] if name in with_finding[run.run_dir] else [explain]


def arrowed(text: str) -> str:
    """Text for the page, with its arrows."""
    return text.replace(f" {ARROW} ", " → ")
