"""What reports say, in blocks: whoever has something to say yields blocks, and each format renders them once.

The texts are as they are known, with whatever a config or a framework put into them: a renderer (`console`, `markdown`,
`html`) makes them safe for its format, and knows its room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup


class Plot(Protocol):
    """What can be drawn."""

    def drawn(self) -> Markup:
        """The plot as an SVG element."""


@dataclass(frozen=True)
class Sentence:
    """A line in a style of `STYLES`; where it has a `label`, that is before it and alone in the style."""

    text: str
    style: str = ""
    label: str = ""

    @property
    def whole(self) -> str:
        """The line without a style."""
        return f"{self.label}: {self.text}" if self.label else self.text


@dataclass(frozen=True)
class Listed:
    """A sentence, and lines that belong to it: the console shows the first ones, Markdown none, a page folds them."""

    text: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class GridColumn:
    """A column: of names and values, of numbers (to the right), or of prose, which is wrapped where the room is little.

    `from_width`: only consoles that are so wide have the column, and no other format has it. `share` of the room that
    other columns leave; `least` characters.
    """

    title: str
    number: bool = False
    prose: bool = False
    style: str = ""
    from_width: int = 0
    share: int | None = None
    least: int | None = None


@dataclass(frozen=True)
class GridCell:
    """A text with a style of `STYLES`; on a page with a link to an anchor, and `key` before it."""

    text: str
    style: str = ""
    link: str = ""
    key: str | Markup = ""


@dataclass(frozen=True)
class Grid:
    """A table. `note` says how to read it; a page shows the first `most` rows, and has `kind` as its class. `elsewhere`
    says where all rows are.

    Where it does not fit a console, each row becomes lines, and begins with its first `n_names` texts.
    """

    columns: Sequence[GridColumn]
    rows: Sequence[Sequence[str | GridCell]]
    title: str = ""
    note: str = ""
    kind: str = ""
    most: int | None = None
    elsewhere: str = "parity explain -v has all"
    n_names: int = 1


@dataclass(frozen=True)
class Figures:
    """Plots, which only pages show: side by side, or a wide one that is called `label`."""

    plots: Sequence[Plot]
    label: str = ""


@dataclass(frozen=True)
class Bullets:
    """Lines, each of its own; `style` is one of `STYLES`."""

    lines: Sequence[str]
    style: str = ""


@dataclass(frozen=True)
class CodeLines:
    """Lines as they are, for copying."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Commands:
    """The commands that show more of cases: an anchor, a name, and lines; only pages have them."""

    title: str
    cases: Sequence[tuple[str, str, Sequence[str]]]


@dataclass(frozen=True)
class Folded:
    """Blocks below a title and a note on what they are; a page folds them unless `is_open`, and so does Markdown.

    `what` is each of them, where there are many. `asked`: only who asks for more reads them, with -v on the console,
    and not in Markdown.
    """

    title: str
    note: str
    blocks: Sequence[Block]
    is_open: bool = False
    kind: str = ""
    style: str = "strong"
    what: str = "part"
    asked: bool = False


@dataclass(frozen=True)
class CaseAnswer:
    """What a run says about a case in a dtype, or about a backend there: sentences, then blocks with the numbers.

    Pages show the `facts` of what was computed, and `badge` in the colour of `status`.
    """

    case: str
    dtype: str
    title: str
    anchor: str
    sentences: Sequence[str]
    blocks: Sequence[Block]
    fails: bool
    badge: str = ""
    status: str = ""
    facts: Sequence[tuple[str, str]] = ()


Block = Sentence | Listed | Bullets | CodeLines | Grid | Figures | Commands | Folded | CaseAnswer


@dataclass(frozen=True)
class Chapter:
    """The answers about all cases of a kind, those that fail first; `kind` is their class in a page."""

    title: str
    kind: str
    lead: str
    answers: Sequence[CaseAnswer]

    @property
    def anchor(self) -> str:
        """The id of its heading in a page."""
        return self.title.lower()


@dataclass(frozen=True)
class BlockReport:
    """A report that is blocks and nothing else, below a verdict in a word and a sentence."""

    heading: str
    word: str
    style: str
    sentence: str
    blocks: Sequence[Block]


STYLES = {
    "off": "red",
    "first": "bold red",
    "bad": "bold red",
    "doubtful": "bold yellow",
    "well": "bold green",
    "warning": "yellow",
    "good": "green",
    "quiet": "dim",
    "strong": "bold",
    "": "",
}
"""The styles of texts, with those of the console; a page has them as classes."""


def cell_of(value: str | GridCell) -> GridCell:
    """An entry of a row as a cell."""
    return value if isinstance(value, GridCell) else GridCell(value)


def in_every_format(grid: Grid) -> list[int]:
    """The columns that do not depend on the width of a console."""
    return [i for i, column in enumerate(grid.columns) if not column.from_width]
