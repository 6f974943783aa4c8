"""YAML values with their locations, and the report of problems with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from parity.config.errors import COMMAND_LINE, Problem, nearest

MAX_VALUE_SHOWN = 70
SPECIAL = re.compile(r"""^[!&*%@`|>-]|["'{}\[\],]|: | #|:$""")
"""A word with any of these needs quotes in YAML."""


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list or a mapping of a configuration.

    `line` is the line of its key, or of a list's item; `key` is its path in the file (`cases[2].params.eps`);
    `text` is a scalar as it was written, so that `1.0e-5` and `2.10` are shown, and used in names, as such.
    """

    value: bool | int | float | str | tuple[Node, ...] | dict[str, Node] | None
    file: str
    line: int
    key: str
    text: str = ""

    @property
    def mapping(self) -> dict[str, Node]:
        """The entries of a mapping; empty for any other value."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """The items of a list; empty for any other value."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def is_mapping(self) -> bool:
        """Whether this is a mapping."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.value, tuple)

    def get(self, key: str) -> Node | None:
        """The entry `key` of a mapping, None if it is missing."""
        return self.mapping.get(key)

    def with_value(self, value: Any) -> Node:
        """This node with another value (dataclasses.replace takes five times as long)."""
        return Node(value, self.file, self.line, self.key, self.text)

    def plain(self) -> Any:
        """The plain value; lists become tuples."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return tuple([node.plain() for node in self.value])
        return self.value

    def shown(self) -> str:
        """The value as one short line of YAML."""
        text = ""
        for piece in _pieces(self):
            text += piece
            if len(text) > MAX_VALUE_SHOWN:
                return text[: MAX_VALUE_SHOWN - 4] + " ..."
        return text


def _pieces(node: Node) -> Iterator[str]:
    if isinstance(node.value, dict):
        yield from _enclosed("{", "}", ((f"{printable(key)}: ", item) for key, item in node.value.items()))
    elif isinstance(node.value, tuple):
        yield from _enclosed("[", "]", (("", item) for item in node.value))
    elif isinstance(node.value, str):
        yield _quoted(node.value)
    else:
        yield node.text if node.text.isprintable() and node.text else "null"


def _enclosed(start: str, end: str, entries: Iterable[tuple[str, Node]]) -> Iterator[str]:
    yield start
    for i, (prefix, item) in enumerate(entries):
        yield (", " if i else "") + prefix
        yield from _pieces(item)
    yield end


def _quoted(text: str) -> str:
    head = text[: 2 * MAX_VALUE_SHOWN]
    bare = head.isprintable() and head == head.strip() and not SPECIAL.search(head) and not _looks_typed(head)
    return head if bare else '"' + printable(head).replace('"', '\\"') + '"'


def _looks_typed(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.casefold() in ("", "~", "null", "true", "false")
    return True


def printable(text: str) -> str:
    """The text with line breaks, control characters and the like escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Problems:
    """Collects problems; each is reported once, however many cases of a sweep have it."""

    _unique: dict[Problem, None] = field(default_factory=dict)

    def add(
        self,
        node: Node,
        message: str,
        *,
        key: str | None = None,
        allowed: Iterable[str] = (),
        near: str | None = None,
        value: bool | None = None,
    ) -> None:
        """Reports a problem at `node`.

        `near` is the wrong word, for which the nearest allowed one is offered. `key` is the path if it is not the
        node's own (something is missing in it); its value is then shown only if `value` is true.
        """
        words = tuple(allowed)
        hint = nearest(near, words) if near is not None else None
        shown = node.shown() if (key is None if value is None else value) else ""
        # All of these quote the user, and may contain line breaks or escape sequences.
        problem = Problem(
            node.file,
            node.line,
            printable(key or node.key),
            printable(shown),
            printable(message),
            tuple(printable(word) for word in words),
            None if hint is None else printable(hint),
        )
        self._unique.setdefault(problem)

    def has(self, message: str) -> bool:
        """Whether a problem with this message is known, wherever it is."""
        return any(problem.message == printable(message) for problem in self._unique)

    def add_command_line(self, option: str, message: str, allowed: Iterable[str] = (), near: str | None = None) -> None:
        """Reports a problem with an option, given as it was typed."""
        self.add(Node(None, COMMAND_LINE, 0, option), message, allowed=allowed, near=near, value=False)

    def add_file(self, file: str, message: str, line: int = 0) -> None:
        """Reports a problem with a whole file, or with its syntax at `line`."""
        self.add(Node(None, file, line, ""), message, value=False)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, by file in reading order, then by line."""
        order = {file: i for i, file in enumerate(dict.fromkeys(p.file for p in self._unique))}
        return tuple(sorted(self._unique, key=lambda p: (order[p.file], p.line)))

    def __len__(self) -> int:
        return len(self._unique)


def child(parent: Node, key: str, value: Any = None, text: str = "") -> Node:
    """A node for something that the config leaves out below `parent`."""
    return replace(parent, key=f"{parent.key}.{key}" if parent.key else key, value=value, text=text)
