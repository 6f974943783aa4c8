"""A diff as one HTML page that stands alone: no script, no request, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity.config.nodes import printable
from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.text import (
    ARROW,
    COLUMNS,
    GROUPED,
    LEGEND,
    MEANINGS,
    columns,
    count_text,
    differences,
    groups,
    headline,
    runs_text,
)
from parity.reporting.text.cell_text import commands

MAX_ROWS = 2000
"""Rows of one kind, and cases with their commands; a browser takes its time for more."""


def html(diff: Diff) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("parity.reporting.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = environment.get_template("diff.css").render()
    word, said = headline(diff)
    cases = cases_named(diff)
    links = {name: f"case-{i}" for i, name in enumerate(cases)}
    return environment.get_template("diff.html.j2").render(
        style=style,
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        word=word,
        said=said,
        runs=shown(runs_text(diff)),
        differences=[shown(line) for line in differences(diff)],
        sections=[section(kind, diff.of(kind), links) for kind in ChangeKind if diff.of(kind)],
        cases=zip(links.values(), map(shown, cases), case_commands(diff, cases), strict=True),
        legend=LEGEND,
    )


def section(kind: ChangeKind, changes: Sequence[Change], links: Mapping[str, str]) -> dict[str, Any]:
    """All changes of one kind, as the template shows them; `links` are the anchors of the cases' commands."""
    head: Sequence[str] = COLUMNS
    rows: list[Sequence[str]] = [[shown(text) for text in columns(change)] for change in changes]
    anchors = [links.get(change.case, "") for change in changes]
    if kind in GROUPED:
        head = ("cells", "failed in A", "reason")
        rows = [[str(group.n_cells), str(group.n_findings), shown(group.text)] for group in groups(changes)]
        anchors = [links.get(group.changes[0].case, "") for group in groups(changes)]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return {
        "kind": kind.value,
        "title": count_text(kind, len(changes)),
        "meaning": MEANINGS[kind],
        "open": kind in (ChangeKind.NEW, ChangeKind.WORSE, ChangeKind.VANISHED),
        "head": [head[i] for i in used],
        "rows": [([row[i] for i in used], anchor) for row, anchor in zip(rows[:MAX_ROWS], anchors, strict=False)],
        "hidden": max(len(rows) - MAX_ROWS, 0),
    }


def cases_named(diff: Diff) -> list[str]:
    """The cases that the page names, each once, in the order of their changes."""
    listed = (change for change in diff.changes if change.kind not in GROUPED)
    grouped = (group.changes[0] for kind in GROUPED for group in groups(diff.of(kind)))
    return list(dict.fromkeys(change.case for change in (*listed, *grouped)))[:MAX_ROWS]


def case_commands(diff: Diff, names: Sequence[str]) -> Iterator[list[str]]:
    """What tells all of each case, in B where B has it; a script only where there is a finding to show."""
    stored = {name: (side, case) for side in (diff.a, diff.b) for name, case in side.cases.items()}
    found = {side.run_dir: {cell.id for cell in side.cells.values() if cell.finding} for side in (diff.a, diff.b)}
    for name in names:
        side, case = stored[name]
        explain, *repro = commands(case, str(side.run_dir))
        yield [explain, *repro] if name in found[side.run_dir] else [explain]


def shown(text: str) -> str:
    """Text for the page, which has arrows of its own."""
    return printable(text).replace(f" {ARROW} ", " → ")
