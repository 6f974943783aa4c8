"""Blocks on the console."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from parity.config.nodes import printable
from parity.reporting.blocks import (
    STYLES,
    Block,
    BlockReport,
    Bullets,
    CaseAnswer,
    Chapter,
    CodeLines,
    Folded,
    Grid,
    GridCell,
    GridColumn,
    Listed,
    Sentence,
    cell_of,
)
from parity.reporting.text.words import plural

MAX_ROWS = 16
"""The number of rows and lines of a block, without -v."""
MAX_LED = 8
"""The number of lines below a sentence, without -v."""
PROSE_ROOM = 24
"""A column of prose may be so narrow before a table becomes lines."""
GAP = 2
NOTHING = ("", "-", "–")
"""Texts that a line leaves out."""


def chapter_parts(chapter: Chapter, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The answers of a chapter."""
    for answer in chapter.answers:
        yield from answer_parts(answer, width, verbose=verbose)


def answer_parts(answer: CaseAnswer, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """An answer: its title, its sentences below it, then its blocks."""
    yield Text()
    yield line(": ".join(filter(None, (answer.title, answer.badge))), "bold red" if answer.fails else "bold")
    yield from (line(f"  {text}") for text in answer.sentences)
    yield from block_parts(answer.blocks, width, verbose=verbose)


def show(report: BlockReport, console: Console, *, verbosity: int = 0) -> None:
    """Print a report; `verbosity` -1 prints its first line only, 1 all rows."""
    head = Text.assemble((report.word, STYLES[report.style]), f"  {printable(report.sentence)}")
    blocks = report.blocks if verbosity >= 0 else ()
    print_parts([head, *block_parts(blocks, console.width, verbose=verbosity > 0, most=MAX_ROWS)], console)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Print lines, which may be copied and are not wrapped, and tables."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def block_parts(
    blocks: Iterable[Block], width: int, *, verbose: bool, most: int | None = None
) -> Iterator[RenderableType]:
    """Blocks as lines and tables; `most` rows of each without `verbose`."""
    limit = None if verbose else most
    for before, block in pairwise([None, *blocks]):
        match block:
            case Sentence():
                yield from [Text()] if isinstance(before, Folded) else []
                yield labelled(block)
            case Listed():
                yield from listed_lines(block, verbose=verbose)
            case Bullets():
                yield from (line(text, STYLES[block.style]) for text in block.lines[:limit])
                yield from more(len(block.lines), limit)
            case CodeLines():
                yield from (line(f"  {text}") for text in block.lines)
            case Grid():
                yield from grid_parts(block, width, verbose=verbose, most=limit)
            case CaseAnswer():
                yield from answer_parts(block, width, verbose=verbose)
            case Folded() if verbose or not block.asked:
                yield Text()
                yield Text.assemble((printable(block.title), STYLES[block.style]), f": {printable(block.note)}")
                yield from block_parts(block.blocks, width, verbose=verbose, most=most)


def line(text: str, style: str = "") -> Text:
    """One line, whatever is in the text."""
    return Text(printable(text), style=style)


def labelled(block: Sentence) -> Text:
    """A line, or one with a label."""
    style = STYLES[block.style]
    return line(block.label, style) + line(f": {block.text}") if block.label else line(block.text, style)


def listed_lines(block: Listed, *, verbose: bool) -> Iterator[Text]:
    """A sentence with its first lines, or all."""
    yield line(block.text)
    shown = block.lines if verbose else block.lines[:MAX_LED]
    n_hidden = len(block.lines) - len(shown)
    yield from (line(f"  {text}", "dim") for text in shown)
    yield from [line(f"  and {n_hidden} more (-v shows them)", "dim")] if n_hidden else []


def more(n: int, limit: int | None) -> Iterator[Text]:
    """How many lines are not shown, if any."""
    if limit is not None and n > limit:
        yield line(f"  and {plural(n - limit, 'more line')} (-v shows all)", "dim")


def grid_parts(grid: Grid, width: int, *, verbose: bool = False, most: int | None = None) -> Iterator[RenderableType]:
    """A table; lines where it has one column only, or would be too narrow. The note is for who asked for more."""
    used = [i for i, column in enumerate(grid.columns) if column.from_width <= width]
    rows = [[cell_of(row[i]) for i in used] for row in grid.rows[:most]]
    if grid.title:
        yield line(grid.title, "bold")
    if grid.note and verbose:
        yield line(grid.note, "dim")
    if len(used) > 1 and fits(grid, used, rows, width):
        yield table(grid, used, rows)
    else:
        yield from (text for row in rows for text in stacked(grid, used, row))
    yield from more(len(grid.rows), most)


def fits(grid: Grid, used: Sequence[int], rows: Sequence[Sequence[GridCell]], width: int) -> bool:
    """Whether names and numbers fit without a break, and prose in columns that are not too narrow."""
    needed = -GAP
    for position, i in enumerate(used):
        column = grid.columns[i]
        longest = max((len(printable(row[position].text)) for row in rows), default=0)
        room = min(longest, column.least or PROSE_ROOM) if column.prose else longest
        needed += GAP + max(room, len(column.title))
    return needed <= width


def table(grid: Grid, used: Sequence[int], rows: Sequence[Sequence[GridCell]]) -> Table:
    """A table without lines."""
    titled = any(grid.columns[i].title for i in used)
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=titled)
    for i in used:
        column = grid.columns[i]
        justify = "right" if column.number else "left"
        made.add_column(
            column.title,
            justify=justify,  # type: ignore[arg-type] # mypy widens the literals
            style=STYLES[column.style],
            overflow="fold",
            no_wrap=not column.prose,
            ratio=column.share,
            min_width=column.least if column.prose else None,
        )
    for row in rows:
        made.add_row(*(line(cell.text, STYLES[cell.style]) for cell in row))
    return made


def stacked(grid: Grid, used: Sequence[int], row: Sequence[GridCell]) -> Iterator[Text]:
    """A row as lines: its names, then what is known of it."""
    names = (line(cell.text, STYLES[cell.style]) for cell in row[: grid.n_names])
    rest = list(zip(used, row, strict=True))[grid.n_names :]
    known = [entry(grid.columns[i], cell) for i, cell in rest if cell.text not in NOTHING]
    yield Text("  ") + Text(" ").join(names)
    yield from [Text("    ") + Text(" · ").join(known)] if known else []


def entry(column: GridColumn, cell: GridCell) -> Text:
    """`error ratio 10`; prose as it is."""
    return Text("" if column.prose else f"{column.title} ") + line(cell.text, STYLES[cell.style])
