"""Reads YAML 1.2 into nodes with their lines. Safe: no tags, no objects, bounded in size, depth and aliases.

The parser of events is libyaml's, through PyYAML; scalars are resolved here by the YAML 1.2 core schema, so `1e-5` is a
number, `on` is a word, and a scalar's own text is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from yaml.reader import ReaderError

from parity.config.nodes import Node, Problems

# libyaml is fifty times as fast; builds without it use PyYAML's own parser.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 10 * 2**20
MAX_DEPTH = 60
MAX_ALIASED = 200_000
"""How many values the aliases of a file may expand to: a few lines of nested aliases can mean billions."""

CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), nan),
}
INTEGER = re.compile(r"[-+]?[0-9]{1,400}")
PREFIXED_INTEGER = re.compile(r"0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

VERSION_LINE = re.compile(rb"""^\s*\{?\s*["']?version["']?\s*:\s*["']?[0-9]""", re.MULTILINE)
"""Every config has this; a file without it is not a config."""

HINTS = {
    "did not find expected key": "look at the indentation of this line and the one before",
    "mapping values are not allowed": 'two ": " in one line, a ":" without its space above, or a wrong indentation',
    "could not find expected ':'": 'a key is written "key: value", with a space',
    "while parsing a flow": "a comma or a bracket may be missing",
}
"""The usual causes of the parser's messages."""


@dataclass(frozen=True)
class YamlFile:
    """A file's top-level mapping and the digest of its bytes."""

    path: Path
    sha256: str
    root: Node


class _YamlProblem(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_yaml(
    path: Path,
    report: Problems,
    included: Node | None = None,
    start: str = 'a config must start with "version: 1"',
) -> YamlFile | None:
    """The file's content; None and a report, with the line that a config starts with, if it cannot be read. Nothing is
    shown of an included file (at the node `included`) that is not a config."""
    # Files in /proc report a size of 0, and reading some of them never ends.
    data = b"" if included is not None and not path.stat().st_size else _read_bytes(path, report)
    if data is None:
        return None
    if included is not None and VERSION_LINE.search(data) is None:
        report.add(included, 'an included file must be a config, but this one has no line "version: 1"')
        return None
    try:
        root, problems = _parse(data, str(path))
    except _YamlProblem as problem:
        report.add_file(str(path), problem.message, problem.line)
        return None
    for twice in problems:
        report.add_file(str(path), twice.message, twice.line)
    if not root.is_mapping:
        empty = root.value is None
        message = "the file is empty" if empty else "the file must be a mapping at its top level"
        report.add_file(str(path), f"{message}; {start}", 0 if empty else root.line)
        return None
    return YamlFile(path, hashlib.sha256(data).hexdigest(), root)


def _read_bytes(path: Path, report: Problems) -> bytes | None:
    try:
        if path.is_dir():
            report.add_file(str(path), "this is a directory; name a config file in it")
            return None
        if path.exists() and not path.is_file():  # A pipe may have no writer, and a device no end.
            report.add_file(str(path), "this is not a file")
            return None
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        report.add_file(str(path), f"cannot be read: {reason}")
        return None
    if len(data) > MAX_BYTES:
        report.add_file(str(path), f"larger than {MAX_BYTES // 2**20} MiB; put large tensors into .npy files (`file:`)")
        return None
    return data


def _parse(data: bytes, file: str) -> tuple[Node, list[_YamlProblem]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _YamlProblem(f"not UTF-8: byte 0x{data[error.start]:02x}", line) from None
    reader = _Reader(file, yaml.parse(text, Loader=LOADER))
    try:
        root = reader.read()
    except _YamlProblem:
        raise
    except MarkedYAMLError as error:
        raise _YamlProblem(*_explained(error, text)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _YamlProblem(f"the character {chr(error.character)!a} is not allowed in YAML", line) from None
    except YAMLError as error:
        raise _YamlProblem(f"not valid YAML: {error}", 0) from None
    except Exception as error:
        # A malformed text must give a clear message, whatever the parser raises.
        raise _YamlProblem(f"not valid YAML ({type(error).__name__} in the parser)", 0) from None
    return root, reader.problems


def _explained(error: MarkedYAMLError, text: str) -> tuple[str, int]:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 0
    lines = text.split("\n")
    if 0 < line <= len(lines) and "\t" in lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]:
        return "not valid YAML: a tab in the indentation; use spaces", line
    parts = [str(part) for part in (error.context, error.problem) if part]
    begins = error.context_mark.line + 1 if error.context_mark is not None else line
    aside = f" (it begins in line {begins})" if begins != line else ""
    said = ", ".join(parts) or "syntax error"
    if "maximum nesting depth" in said:  # of PyYAML 6.0.4 and later
        return f"nested more than {MAX_DEPTH} levels deep", line
    hint = next((f"; {hint}" for words, hint in HINTS.items() if words in said), "")
    return f"not valid YAML: {said}{aside}{hint}", line


@dataclass(frozen=True)
class _Sized:
    """A node with its number of values and its depth."""

    node: Node
    size: int = 1
    height: int = 0


class _Reader:
    """Turns parser events into nodes; `problems` (duplicate keys) do not stop the parsing."""

    def __init__(self, file: str, events: Iterator[Any]) -> None:
        self.file = file
        self.events = events
        self.problems: list[_YamlProblem] = []
        self.anchors: dict[str, _Sized] = {}
        self.n_aliased = 0

    def read(self) -> Node:
        root, n_documents = Node(None, self.file, 1, ""), 0
        for event in self.events:
            if type(event) is DocumentStartEvent:
                n_documents += 1
                if n_documents > 1:
                    raise _YamlProblem("a second document starts here; a file must have one config", _line(event))
            elif isinstance(event, NodeEvent):
                root = self._node(event, "", _line(event), 0).node
        return root

    def _node(self, event: Any, key: str, line: int, depth: int) -> _Sized:
        """The value that begins with `event`, at `line`; an entry's line is that of its key."""
        if type(event) is AliasEvent:
            return self._alias(event, line, depth)
        _refuse_tag(event)
        if type(event) is ScalarEvent:
            value = resolve(event.value) if event.implicit[0] else event.value
            sized = _Sized(Node(value, self.file, line, key, event.value))
        elif depth >= MAX_DEPTH:
            raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        else:
            below = list(self._entries(key, depth) if type(event) is MappingStartEvent else self._items(key, depth))
            nodes: Any = tuple(item.node for _, item in below)
            if type(event) is MappingStartEvent:
                nodes = _mapping([(name, item.node) for name, item in below])
            size, height = sum(item.size for _, item in below), max((item.height for _, item in below), default=0)
            sized = _Sized(Node(nodes, self.file, line, key), size + 1, height + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = sized
        return sized

    def _items(self, key: str, depth: int) -> Iterator[tuple[str | None, _Sized]]:
        for i, event in enumerate(iter(self.events.__next__, None)):
            if type(event) is SequenceEndEvent:
                return
            yield None, self._node(event, f"{key}[{i}]", _line(event), depth + 1)

    def _entries(self, key: str, depth: int) -> Iterator[tuple[str | None, _Sized]]:
        """The entries of a mapping; those merged by `<<` have no name."""
        lines: dict[str, int] = {}
        for event in iter(self.events.__next__, None):
            if type(event) is MappingEndEvent:
                return
            name, line = _key(event), _line(event)
            merges = event.implicit[0] and name == "<<"
            if name in lines:
                message = f'duplicate key "{name}" (first in line {lines[name]})'
                self.problems.append(_YamlProblem(message, line))
            value = self._node(next(self.events), f"{key}.{name}" if key else name, line, depth + 1)
            if not merges:
                lines.setdefault(name, line)
            yield (None if merges else name), value

    def _alias(self, event: Any, line: int, depth: int) -> _Sized:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            message = f"the alias *{event.anchor} has no complete anchor &{event.anchor} above it"
            raise _YamlProblem(message, _line(event))
        self.n_aliased += anchored.size
        if self.n_aliased > MAX_ALIASED:
            raise _YamlProblem(f"the aliases up to here expand to more than {MAX_ALIASED} values", _line(event))
        if depth + anchored.height > MAX_DEPTH:
            raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        return replace(anchored, node=replace(anchored.node, line=line))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _key(event: Any) -> str:
    if type(event) is not ScalarEvent:
        what = "an alias" if type(event) is AliasEvent else "a list or a mapping"
        raise _YamlProblem(f"a key must be a word, not {what}", _line(event))
    _refuse_tag(event)
    return str(event.value)


def _mapping(entries: list[tuple[str | None, Node]]) -> dict[str, Node]:
    """The entries of a mapping and those that `<<: *base` merges into it; the first one of a name wins."""
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for name, node in entries:
        if name is not None:
            own.setdefault(name, node)
            continue
        for base in node.items or (node,):
            if not base.is_mapping:
                raise _YamlProblem('"<<" merges a mapping or a list of mappings', node.line)
            merged = {**base.mapping, **merged}
    return {**merged, **own}


def _refuse_tag(event: Any) -> None:
    if event.tag is not None:
        tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
        raise _YamlProblem(f"the tag {tag} is not allowed: a config may have only plain values", _line(event))


def resolve(text: str) -> bool | int | float | str | None:
    """A plain scalar's value by the YAML 1.2 core schema."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    if PREFIXED_INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if FLOAT.fullmatch(text) else text
