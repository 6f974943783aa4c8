"""Blocks in Markdown: names and values in code spans, sentences with what is no plain word in one (`safe.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from parity.config.nodes import printable
from parity.reporting.blocks import (
    Block,
    BlockReport,
    Bullets,
    CaseAnswer,
    Folded,
    Grid,
    GridColumn,
    Listed,
    Sentence,
    cell_of,
    in_every_format,
)
from parity.reporting.text.safe import code, line, prose, table_row
from parity.reporting.text.words import cut

MAX_BYTES = 56_000
"""A comment on GitHub is limited to 65,536 characters; this leaves room for other text."""
MAX_CELL = 160
"""Characters of a text in a table."""
MAX_LINES = 20


def comment(report: BlockReport) -> str:
    """A whole report, below 60,000 bytes."""
    head = [f"### {report.heading}: {report.word}", line(report.sentence)]
    return "\n\n".join([*head, *block_texts(report.blocks, MAX_BYTES - size(head))]) + "\n"


def answer_text(answer: CaseAnswer) -> str:
    """An answer; of one that passes, only its sentences."""
    texts = block_texts(answer.blocks, math.inf) if answer.fails else ()
    return "\n" + "\n\n".join([f"{code(answer.title)}: {line('; '.join(answer.sentences))}", *texts]) + "\n"


def block_texts(blocks: Iterable[Block], room: float) -> Iterator[str]:
    """The blocks that Markdown has, in at most `room` bytes."""
    for block in blocks:
        if text := block_text(block, room):
            room -= size([text])
            yield text


def block_text(block: Block, room: float) -> str:
    """A block; nothing for what only pages and consoles have."""
    match block:
        case Sentence(style="quiet"):
            return f"<sub>{line(block.whole)}</sub>"
        case Sentence():
            return line(block.whole)
        case Listed():
            return line(block.text)
        case Bullets(lines=[_, *_]):
            return listing([f"- {line(text)}" for text in block.lines], MAX_LINES, room)
        case Grid() if len(block.columns) == 1:
            return listing([f"- {line(cell_of(row[0]).text)}" for row in block.rows], None, room, block.elsewhere)
        case Grid() if block.rows:
            return "\n".join(head(block)) + "\n" + listing(rows(block), None, room - size(head(block)), block.elsewhere)
        case Folded(asked=False):
            return folded(block, room)
    return ""


def folded(block: Folded, room: float) -> str:
    """Blocks below a title."""
    title = f"<b>{line(block.title)}</b>: {line(block.note)}"
    inner = "\n\n".join(block_texts(block.blocks, room - size([title])))
    return f"{title}\n\n{inner}" if block.is_open else f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"


def listing(lines: Sequence[str], most: int | None, room: float, elsewhere: str = "") -> str:
    """The first lines that fit, and how many do not."""
    shown = list(fitting(lines[:most], room))
    n = len(lines) - len(shown)
    return "\n".join(shown) + (f"\n\n... and {n} more{elsewhere and f': {line(elsewhere)}'}" if n else "")


def fitting(lines: Iterable[str], room: float) -> Iterator[str]:
    """The first lines that fit."""
    for text in lines:
        room -= size([text])
        if room < 0:
            return
        yield text


def head(grid: Grid) -> list[str]:
    """The two rows above a table."""
    columns = [grid.columns[i] for i in in_every_format(grid)]
    rule = ["---:" if column.number else "---" for column in columns]
    return [table_row([column.title for column in columns]).rstrip(), table_row(rule).rstrip()]


def rows(grid: Grid) -> list[str]:
    """The rows of a table."""
    used = in_every_format(grid)
    return [table_row([entry(grid.columns[i], cell_of(row[i]).text) for i in used]).rstrip() for row in grid.rows]


def entry(column: GridColumn, text: str) -> str:
    """A text in a table."""
    shown = cut(printable(text), MAX_CELL)
    return prose(shown) if column.prose or column.number else code(shown)


def size(lines: Iterable[str]) -> int:
    """The size of some lines in bytes, with separators."""
    return sum(len(text.encode()) + 2 for text in lines)
