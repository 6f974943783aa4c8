"""A diff on the console: the verdict, differences between the runs, then a table for each kind of change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.config.nodes import printable
from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.text import (
    COLUMNS,
    GROUPED,
    LEGEND,
    MEANINGS,
    change_table,
    columns,
    count_text,
    differences,
    groups,
    headline,
    runs_text,
    sections,
)
from parity.reporting.text.words import plural

MAX_ROWS = 16
TABLE_WIDTH = 110
NAMING = 4
"""The number of columns that say what changed; the others say how."""
MIN_WIDTHS = {"case": 26, "note": 20, "cause": 14}
"""The columns that would become too narrow first."""
NOTE = COLUMNS.index("note")
MAX_NOTE = 40
"""A longer note would fill a column with many short lines."""
STYLES = {"WORSE": "bold red", "INCOMPLETE": "bold yellow", "CHANGED": "bold yellow"}
ROW_STYLES = {
    ChangeKind.NEW: "red",
    ChangeKind.WORSE: "red",
    ChangeKind.VANISHED: "yellow",
    ChangeKind.FIXED: "green",
    ChangeKind.BETTER: "green",
}


def render(diff: Diff, console: Console, *, verbosity: int = 0) -> None:
    """Print a diff; `verbosity` -1 prints the verdict line only, 1 every change."""
    word, said = headline(diff)
    console.print(Text.assemble((word, STYLES.get(word, "bold green")), f"  {said}"), soft_wrap=True)
    if verbosity < 0:
        return
    limit = None if verbosity > 0 else MAX_ROWS
    console.print(Text(printable(runs_text(diff)), style="dim"), soft_wrap=True)
    notes = list(differences(diff))
    for line in notes[:limit]:
        console.print(Text(printable(line), style="yellow"), soft_wrap=True)
    more(len(notes), limit, console)
    for kind, changes in sections(diff):
        section(kind, changes, console, limit)
    if any(kind not in GROUPED for kind, _ in sections(diff)):
        console.print(Text(f"\n{LEGEND}", style="dim"), soft_wrap=True)


def section(kind: ChangeKind, changes: Sequence[Change], console: Console, limit: int | None) -> None:
    """All changes of one kind."""
    console.print()
    title = (count_text(kind, len(changes)), ROW_STYLES.get(kind, "bold"))
    console.print(Text.assemble(title, f": {MEANINGS[kind]}"), soft_wrap=True)
    if kind in GROUPED:
        all_groups = groups(changes)
        for group in all_groups[:limit]:
            console.print(Text(f"  {printable(group.text)}"), soft_wrap=True)
        more(len(all_groups), limit, console)
        return
    if console.width < TABLE_WIDTH or any(len(columns(change)[NOTE]) > MAX_NOTE for change in changes[:limit]):
        for change in changes[:limit]:
            console.print(Text(stacked(change)), soft_wrap=True)
    else:
        console.print(table(changes[:limit]))
    more(len(changes), limit, console)


def stacked(change: Change) -> str:
    """A change on two lines, for consoles that are too narrow for a table."""
    texts = [printable(text) for text in columns(change)]
    named = dict(zip(COLUMNS[NAMING:], texts[NAMING:], strict=True))
    said = [text if name in ("verdict", "cause", "note") else f"{name} {text}" for name, text in named.items() if text]
    return f"  {' '.join(texts[:NAMING])}\n    {' · '.join(said)}"


def more(n: int, limit: int | None, console: Console) -> None:
    """Print how many lines are not shown."""
    if limit is not None and n > limit:
        console.print(Text(f"  and {plural(n - limit, 'more line')} (-v shows all)", style="dim"))


def table(changes: Sequence[Change]) -> Table:
    """One row for each change, without empty columns."""
    heads, rows = change_table(changes)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in heads:
        shown.add_column(name, overflow="fold", min_width=MIN_WIDTHS.get(name))
    for row in rows:
        shown.add_row(*(Text(printable(text)) for text in row))
    return shown
