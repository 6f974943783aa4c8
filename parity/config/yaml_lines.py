"""Reads YAML 1.2 into nodes that know their line. Safe: no tags, no objects, bounded in size, depth and aliases.

The parser of events is libyaml's, through PyYAML; scalars are resolved here by the YAML 1.2 core schema, so `1e-5` is a
number, `on` is a word, and a scalar's own text is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from yaml.reader import ReaderError

from parity.config.nodes import Node, Report

# libyaml is fifty times as fast; PyYAML's own parser stands in where a build lacks it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 10 * 2**20
MAX_DEPTH = 60
MAX_ALIASED = 200_000
"""How many values aliases may stand for in one file: a few lines of nested aliases can mean billions."""

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

HINTS = {
    "did not find expected key": "look at the indentation of this line and the one before",
    "mapping values are not allowed": 'two ": " in one line, a ":" without its space above, or a wrong indentation',
    "could not find expected ':'": 'a key is written "key: value", with a space',
    "while parsing a flow": "a comma or a bracket may be missing",
}
"""What the parser's words mostly mean."""


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


def read_yaml(path: Path, report: Report) -> YamlFile | None:
    """The file's content, or None after reporting why there is none."""
    data = _read_bytes(path, report)
    if data is None:
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
        report.add_file(str(path), f'{message}; a config begins with "version: 1"', 0 if empty else root.line)
        return None
    return YamlFile(path, hashlib.sha256(data).hexdigest(), root)


def _read_bytes(path: Path, report: Report) -> bytes | None:
    try:
        if path.is_dir():
            report.add_file(str(path), "this is a directory; name a config file in it")
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
    builder = _Builder(file)
    try:
        builder.read(yaml.parse(text, Loader=LOADER))
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
        # A malformed text must end in a clear message, whatever escapes from a parser.
        raise _YamlProblem(f"not valid YAML ({type(error).__name__} in the parser)", 0) from None
    return builder.root, builder.problems


def _explained(error: MarkedYAMLError, text: str) -> tuple[str, int]:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 0
    lines = text.split("\n")
    if 0 < line <= len(lines) and "\t" in lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]:
        return "not valid YAML: a tab in the indentation; YAML wants spaces", line
    parts = [str(part) for part in (error.context, error.problem) if part]
    begins = error.context_mark.line + 1 if error.context_mark is not None else line
    aside = f" (it begins in line {begins})" if begins != line else ""
    said = ", ".join(parts) or "syntax error"
    hint = next((f"; {hint}" for words, hint in HINTS.items() if words in said), "")
    return f"not valid YAML: {said}{aside}{hint}", line


@dataclass
class _Open:
    """A list or mapping whose end has not come yet; `size` and `height` count what is in it."""

    is_mapping: bool
    key: str
    line: int
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    merged: list[Node] = field(default_factory=list)
    next_key: str | None = None
    next_line: int = 0
    merging: bool = False
    size: int = 1
    height: int = 1


@dataclass(frozen=True)
class _Anchored:
    """An anchored value with how many values it holds and how deep it is."""

    node: Node
    size: int
    height: int


class _Builder:
    """Turns parser events into nodes; `problems` (a key twice) do not keep the rest from being read."""

    def __init__(self, file: str) -> None:
        self.root = Node(None, file, 1, "")
        self.file = file
        self.problems: list[_YamlProblem] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, _Anchored] = {}
        self.n_aliased = 0
        self.n_documents = 0
        self.handlers = {
            ScalarEvent: self._scalar,
            MappingStartEvent: self._start,
            SequenceStartEvent: self._start,
            MappingEndEvent: self._end,
            SequenceEndEvent: self._end,
            AliasEvent: self._alias,
            DocumentStartEvent: self._document,
        }

    def read(self, events: Iterator[Any]) -> None:
        for event in events:
            handler = self.handlers.get(type(event))
            if handler is not None:
                handler(event)

    def _document(self, event: Any) -> None:
        self.n_documents += 1
        if self.n_documents > 1:
            raise _YamlProblem("a second document starts here; one file holds one config", event.start_mark.line + 1)

    def _scalar(self, event: Any) -> None:
        line, text = event.start_mark.line + 1, event.value
        if event.tag is not None:
            _refuse_tag(event, line)
        if self._awaits_key():
            self._set_key(self.stack[-1], text, line, plain=event.implicit[0])
            return
        value = resolve(text) if event.implicit[0] else text
        key, line = self._place(line)
        self._put(Node(value, self.file, line, key, text), 1, 0, event.anchor)

    def _set_key(self, top: _Open, key: str, line: int, *, plain: bool) -> None:
        if key in top.entries:
            first = top.entries[key].line
            self.problems.append(_YamlProblem(f'the key "{key}" stands here twice (first in line {first})', line))
        top.next_key, top.next_line, top.merging = key, line, plain and key == "<<"

    def _start(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if event.tag is not None:
            _refuse_tag(event, line)
        if self._awaits_key():
            raise _YamlProblem("a key must be a word, not a list or a mapping", line)
        if len(self.stack) >= MAX_DEPTH:
            raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", line)
        self.stack.append(_Open(type(event) is MappingStartEvent, *self._place(line), event.anchor))

    def _end(self, _event: Any) -> None:
        done = self.stack.pop()
        value: Any = {**_merged(done), **done.entries} if done.is_mapping else tuple(done.items)
        self._put(Node(value, self.file, done.line, done.key), done.size, done.height, done.anchor)

    def _alias(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if self._awaits_key():
            raise _YamlProblem("a key must be a word, not an alias", line)
        found = self.anchors.get(event.anchor)
        if found is None:
            raise _YamlProblem(f"the alias *{event.anchor} has no anchor &{event.anchor} that ends above it", line)
        self.n_aliased += found.size
        if self.n_aliased > MAX_ALIASED:
            raise _YamlProblem(f"the aliases up to here stand for more than {MAX_ALIASED} values", line)
        if len(self.stack) + found.height > MAX_DEPTH:
            raise _YamlProblem(f"nested more than {MAX_DEPTH} levels deep", line)
        self._put(replace(found.node, line=self._place(line)[1]), found.size, found.height, None)

    def _awaits_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].is_mapping and self.stack[-1].next_key is None

    def _place(self, line: int) -> tuple[str, int]:
        """Path and line of the value that comes next: an entry is where its key is."""
        if not self.stack:
            return "", line
        top = self.stack[-1]
        if top.is_mapping:
            return (f"{top.key}.{top.next_key}" if top.key else str(top.next_key)), top.next_line
        return f"{top.key}[{len(top.items)}]", line

    def _put(self, node: Node, size: int, height: int, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = _Anchored(node, size, height)
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.size += size
        top.height = max(top.height, height + 1)
        if not top.is_mapping:
            top.items.append(node)
            return
        if top.merging:
            top.merged.append(node)
        else:
            top.entries.setdefault(str(top.next_key), node)
        top.next_key = None


def _refuse_tag(event: Any, line: int) -> None:
    tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
    raise _YamlProblem(f"the tag {tag} is not allowed: a config holds plain values only", line)


def _merged(opened: _Open) -> dict[str, Node]:
    """What `<<: *base` brings into a mapping; of several bases the first wins."""
    entries: dict[str, Node] = {}
    for node in opened.merged:
        for base in node.items or (node,):
            if not base.is_mapping:
                raise _YamlProblem('"<<" merges a mapping or a list of mappings', node.line)
            entries = {**base.mapping, **entries}
    return entries


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
