"""A diff as Markdown for a pull request: bounded, the worst first, details folded, no active content."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.compared_run import shortened
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
from parity.reporting.text.safe import code, prose

MAX_BYTES = 56_000
"""A comment on GitHub is limited to 65,536 characters; this leaves room for other text."""
MAX_CELL = 160
MAX_LINES = 20
OURS = ("verdict", "× tol", "error ratio")
"""The columns with parity's own words; text from a run is shown as code."""
TOLD = ("cause", "note")
"""The columns that are sentences."""


def markdown(diff: Diff) -> str:
    """The whole comment, below 60,000 bytes."""
    word, numbers = headline(diff)
    parts = [f"### parity diff: {word}", numbers, sentence(runs_text(diff))]
    lines = list(differences(diff))
    listed = [f"- {sentence(line)}" for line in lines[:MAX_LINES]]
    parts += ["\n".join([*listed, *left_out(len(lines) - len(listed))])] if lines else []
    room = MAX_BYTES - size(parts)
    for kind, changes in sections(diff):
        text = section(kind, changes, room)
        parts.append(text)
        room -= size([text])
    parts += [f"<sub>{LEGEND}</sub>"] if any(kind not in GROUPED for kind, _ in sections(diff)) else []
    return "\n\n".join(parts) + "\n"


def section(kind: ChangeKind, changes: Sequence[Change], room: int) -> str:
    """The changes of one kind that fit into `room` bytes, and the number of others."""
    title = f"{count_text(kind, len(changes))}</b>: {MEANINGS[kind]}"
    head, rows = body(kind, changes)
    shown = list(fitting(rows, room - size([title, *head])))
    lines = [*head, *shown] if shown else []
    inner = "\n".join(lines) + "".join(f"\n\n{line}" for line in left_out(len(rows) - len(shown)))
    if kind in OPEN:
        return f"<b>{title}\n\n{inner}"
    return f"<details><summary><b>{title}</summary>\n\n{inner}\n\n</details>"


def body(kind: ChangeKind, changes: Sequence[Change]) -> tuple[list[str], list[str]]:
    """The head of a table and its rows; a list has no head."""
    if kind in GROUPED:
        return [], [f"- {sentence(group.text)}" for group in groups(changes)]
    heads, rows = change_table(changes)
    head = [row_text(heads), row_text("---" for _ in heads)]
    return head, [row_text(map(cell, heads, row)) for row in rows]


def cell(column: str, text: str) -> str:
    """A cell of a table."""
    if column in OURS:
        return html.escape(text.replace(ARROW, "→"))
    return arrowed(shortened(text, MAX_CELL)) if column in TOLD else code(shortened(text, MAX_CELL))


def sentence(text: str) -> str:
    """A line of text from a run."""
    return arrowed(shortened(text, 2 * MAX_CELL))


def arrowed(text: str) -> str:
    """Text from a run, with arrows."""
    return " → ".join(map(prose, text.split(f" {ARROW} ")))


def row_text(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def fitting(lines: Iterable[str], room: int) -> Iterator[str]:
    """The first lines that fit."""
    for line in lines:
        room -= size([line])
        if room < 0:
            return
        yield line


def left_out(n: int) -> list[str]:
    """A line with the number of lines that are left out, if any."""
    return [f"... and {n} more: `parity diff -v` shows them"] if n > 0 else []


def size(lines: Iterable[str]) -> int:
    """The size of some lines in bytes, with separators."""
    return sum(len(line.encode("utf-8", "backslashreplace")) + 2 for line in lines)
