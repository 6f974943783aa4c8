"""Text that others wrote, made safe for Markdown: it can neither be markup nor mention, link or refer to anything.

In a code span nothing is markup, and forges turn neither `@name` nor `#1` nor an address in it into a link. A span
needs a fence that is longer than any run of backticks in it (CommonMark 0.31, section 6.1), and a bar in a table needs
a backslash even there (GitHub Flavored Markdown, section 4.10).
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence

from parity.config.nodes import printable

HARMLESS = re.compile(r"[A-Za-z]+(?:[-'][a-z]+)*|[0-9]{1,6}(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|[∞…–→×%-]")
"""A word or a number that is no markup and refers to nothing in any dialect."""

WORD = re.compile(r"(\(?)(.*?)([),;:.]*)")
"""A word between the punctuation that a sentence sets around it."""

TICKS = re.compile(r"`+")


def code(text: str) -> str:
    """A code span with the text in one line; nothing for an empty text."""
    said = printable(text)
    if not said.strip():
        return ""
    fence = "`" * (longest_run(said) + 1)
    space = " " if said[0] in "` " or said[-1] in "` " else ""
    return f"{fence}{space}{said}{space}{fence}".replace("|", "\\|")


def prose(text: str, span: Callable[[str], str] = code) -> str:
    """A sentence in which each word that is not plainly a word or a number stands in a code span."""
    words = (WORD.fullmatch(word) for word in printable(text).split())
    return " ".join(f"{w[1]}{w[2] if HARMLESS.fullmatch(w[2]) else span(w[2])}{w[3]}" for w in words if w)


def arrowed(text: str) -> str:
    """A text with arrows as a page has them."""
    return text.replace(" -> ", " → ")


def fenced(lines: Iterable[str]) -> str:
    """A code block with the lines as they are."""
    text = "\n".join(map(printable, lines))
    fence = "`" * max(3, longest_run(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def html_code(text: str) -> str:
    """The text as code inside an HTML block, where Markdown does not apply."""
    return f"<code>{html.escape(printable(text))}</code>"


def line(text: str, limit: int = 600) -> str:
    """A sentence of at most `limit` bytes, safe in Markdown."""
    return prose(bounded([printable(text)], limit))


def table_row(values: Sequence[str]) -> str:
    """A row of a Markdown table; the values are safe already."""
    return f"| {' | '.join(values)} |\n"


def longest_run(text: str) -> int:
    """The length of the longest run of backticks."""
    return max(map(len, TICKS.findall(text)), default=0)


def bounded(lines: Iterable[str], limit: int) -> str:
    """Lines as one text of at most `limit` bytes, cut after a whole line where there are several, and said so."""
    text = "\n".join(lines)
    if len(text.encode()) <= limit:
        return text
    note = f"... cut after {limit} bytes"
    kept = text.encode()[: limit - len(note)].decode(errors="ignore")
    whole, newline, _ = kept.rpartition("\n")
    return (whole + newline if newline else kept) + note
