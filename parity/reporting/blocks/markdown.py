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
    CodeLines,
    Folded,
    Grid,
    GridColumn,
    Listed,
    Sentence,
    cell_of,
    in_every_format,
)
from parity.reporting.text.safe import arrowed, code, fenced, html_code, line, prose, table_row
from parity.reporting.text.words import cut, plural

MAX_BYTES = 56_000
"""A comment on GitHub is limited to 65,536 characters; this leaves room for other text."""
MAX_CELL = 160
"""Characters of a text in a table."""
ROOM_FOR_NOTE = 200


def comment(report: BlockReport) -> str:
    """A whole report, below 60,000 bytes."""
    head = [f"### {report.heading}: {report.word}", sentence(report.sentence)]
    return "\n\n".join([*head, *block_texts(report.blocks, MAX_BYTES - size(head))]) + "\n"


def answer_text(answer: CaseAnswer) -> str:
    """An answer; of one that passes, only its sentences."""
    texts = block_texts(answer.blocks, math.inf) if answer.fails else ()
    return "\n\n".join([f"{code(answer.title)}: {sentence('; '.join(answer.sentences))}", *texts])


def block_texts(blocks: Iterable[Block], room: float) -> Iterator[str]:
    """The blocks that Markdown has, in at most `room` bytes."""
    for block in blocks:
        if text := block_text(block, room):
            room -= size([text])
            yield text


def block_text(block: Block, room: float) -> str:
    """A block in at most `room` bytes; nothing for what only pages and consoles have."""
    match block:
        case Sentence(style="quiet"):
            return f"<sub>{sentence(block.whole)}</sub>"
        case Sentence():
            return sentence(block.whole)
        case Listed():
            return sentence(block.text)
        case CodeLines():
            return fenced(block.lines)
        case Bullets(lines=[_, *_]):
            return listing([f"- {sentence(text)}" for text in block.lines], room, "line")
        case Grid() if len(block.columns) == 1:
            return listing([f"- {sentence(cell_of(row[0]).text)}" for row in block.rows], room, "line", block.elsewhere)
        case Grid() if block.rows:
            return listing(rows(block), room, "row", block.elsewhere, head(block))
        case Folded(asked=False):
            return folded(block, room)
        case CaseAnswer():
            return answer_text(block)
    return ""


def folded(block: Folded, room: float) -> str:
    """Blocks below a title, as many as fit."""
    begin, end = opened(block) if block.is_open else closed(block)
    room -= size([begin, end])
    texts = list(block_texts(block.blocks, room if len(block.blocks) == 1 else math.inf))
    inner = texts[0] if len(texts) == 1 else listing(texts, room, block.what, between="\n\n")
    return f"{begin}{inner}{end}" if inner else ""


def opened(block: Folded) -> tuple[str, str]:
    """What stands before and after blocks that are not folded."""
    return f"**{prose(block.title)}**{block.note and f': {prose(block.note)}'}\n\n", ""


def closed(block: Folded) -> tuple[str, str]:
    """What stands before and after folded blocks; Markdown does not apply in a summary."""
    title = f"{prose(block.title, html_code)}{block.note and f': {prose(block.note, html_code)}'}"
    return f"<details><summary>{title}</summary>\n\n", "\n\n</details>"


def listing(
    texts: Sequence[str],
    room: float,
    what: str,
    elsewhere: str = "the report has all",
    above: Sequence[str] = (),
    between: str = "\n",
) -> str:
    """The first texts that fit, below what is `above` them, and how many do not."""
    shown = list(fitting(texts, room - size(above) - ROOM_FOR_NOTE))
    n = len(texts) - len(shown) if room >= ROOM_FOR_NOTE else 0
    note = [f"... and {plural(n, f'more {what}')} left out to keep this short; {sentence(elsewhere)}"] if n else []
    return "\n\n".join([*([between.join([*above, *shown])] if shown else []), *note])


def sentence(text: str) -> str:
    """A sentence of others, with arrows."""
    return line(arrowed(text))


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
    shown = cut(printable(arrowed(text)), MAX_CELL)
    return prose(shown) if column.prose or column.number else code(shown)


def size(lines: Iterable[str]) -> int:
    """The size of some lines in bytes, with separators."""
    return sum(len(text.encode()) + 2 for text in lines)
