"""A diff as one HTML page that stands alone: no script, no request, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from parity.config.nodes import printable
from parity.reporting.diff import Change, Diff, Kind
from parity.reporting.diff_text import (
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

MAX_ROWS = 2000
"""Rows of one kind; a browser takes its time for more."""


def html(diff: Diff) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("parity.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = environment.get_template("diff.css").render()
    word, said = headline(diff)
    return environment.get_template("diff.html.j2").render(
        style=style,
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        word=word,
        said=said,
        runs=shown(runs_text(diff)),
        differences=[shown(line) for line in differences(diff)],
        sections=[section(kind, diff.of(kind)) for kind in Kind if diff.of(kind)],
        legend=LEGEND,
    )


def section(kind: Kind, changes: Sequence[Change]) -> dict[str, Any]:
    """All changes of one kind, as the template shows them."""
    head: Sequence[str] = COLUMNS
    rows: list[Sequence[str]] = [[shown(text) for text in columns(change)] for change in changes]
    if kind in GROUPED:
        head = ("cells", "failed in A", "reason")
        rows = [[str(group.n_cells), str(group.n_findings), shown(group.text)] for group in groups(changes)]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return {
        "kind": kind.value,
        "title": count_text(kind, len(changes)),
        "meaning": MEANINGS[kind],
        "open": kind in (Kind.NEW, Kind.WORSE, Kind.VANISHED),
        "head": [head[i] for i in used],
        "rows": [[row[i] for i in used] for row in rows[:MAX_ROWS]],
        "hidden": max(len(rows) - MAX_ROWS, 0),
    }


def shown(text: str) -> str:
    """Text for the page, which has arrows of its own."""
    return printable(text).replace(f" {ARROW} ", " → ")
