"""`${path}`: replaced by another value of the same case."""

from __future__ import annotations

import re
from dataclasses import replace

from parity.config.nodes import Node, Problems
from parity.config.tree import find, paths, split_path

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
MAX_TEXT = 10_000
MAX_ITEMS = 10_000
MAX_PLAIN = 1e9
"""Whole numbers up to this one are written without an exponent."""


def referenced(text: str) -> tuple[str, ...]:
    """The paths that a text refers to."""
    return tuple(path.strip() for path in REFERENCE.findall(text))


def as_text(node: Node) -> str:
    """A value inside a text, such as an id: numbers in their shortest form, lists as 64x128."""
    if node.is_list:
        return "x".join(as_text(item) for item in node.items)
    if isinstance(node.value, float):
        return number_text(node.value)
    return node.shown() if node.is_mapping else node.text


def number_text(value: float) -> str:
    """The shortest form of a number, however it was written: 10000, 0.5, 1e-5, inf."""
    if value.is_integer() and abs(value) < MAX_PLAIN:
        return str(int(value))
    return repr(value).replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


class _Unresolved(Exception):  # noqa: N818 - never leaves this module
    pass


def substitute(case: Node, report: Problems) -> Node | None:
    """The case with every reference replaced; None and a report if any has no target."""
    resolver = _Resolver(case, report)
    n_before = len(report)
    resolved = resolver.walk(case, ())
    return resolved if len(report) == n_before and not resolver.failed else None


class _Resolver:
    """Replaces references; `open_paths` are those being followed, to detect circles."""

    def __init__(self, case: Node, report: Problems) -> None:
        self.case = case
        self.report = report
        self.failed = False
        self.known: dict[str, Node] = {}

    def walk(self, node: Node, open_paths: tuple[str, ...]) -> Node:
        value = node.value
        if isinstance(value, str):
            return self._text(node, value, open_paths) if "${" in value else node
        if isinstance(value, dict):
            walked = {key: self.walk(item, open_paths) for key, item in value.items()}
            return node.with_value(walked) if any(walked[k] is not value[k] for k in value) else node
        if isinstance(value, tuple):
            return self._list(node, value, open_paths)
        return node

    def _list(self, node: Node, items: tuple[Node, ...], open_paths: tuple[str, ...]) -> Node:
        walked: list[Node] = []
        changed = False
        for item in items:
            new = self.walk(item, open_paths)
            changed = changed or new is not item
            spliced = new.is_list and isinstance(item.value, str)
            walked.extend(new.items if spliced else (new,))
        return node.with_value(tuple(walked)) if changed else node

    def _text(self, node: Node, text: str, open_paths: tuple[str, ...]) -> Node:
        try:
            whole = REFERENCE.fullmatch(text)
            if whole:
                target = self._follow(node, whole[1].strip(), open_paths)
                return replace(target, file=node.file, line=node.line, key=node.key)
            new = REFERENCE.sub(lambda m: as_text(self._follow(node, m[1].strip(), open_paths)), text)
        except _Unresolved:
            self.failed = True
            return node
        if "${" in REFERENCE.sub("", text):
            self.report.add(node, 'a reference must be written "${path}", for example "${params.normalized_shape}"')
        return replace(node, value=new[:MAX_TEXT], text=new[:MAX_TEXT])

    def _follow(self, node: Node, path: str, open_paths: tuple[str, ...]) -> Node:
        if path in open_paths:
            circle = " -> ".join((*open_paths[open_paths.index(path) :], path))
            self.report.add(node, f"circular reference: {circle}")
            raise _Unresolved
        if path not in self.known:
            self.known[path] = self._resolve(node, path, open_paths)
        return self.known[path]

    def _resolve(self, node: Node, path: str, open_paths: tuple[str, ...]) -> Node:
        target = find(self.case, split_path(path))
        if target is None:
            message = f'unknown reference "${{{path}}}": the case has no {path}'
            self.report.add(node, message, allowed=[p for p in paths(self.case) if "." in p], near=path)
            raise _Unresolved
        value = self.walk(target, (*open_paths, path))
        if value.is_mapping or any(item.is_mapping or item.is_list for item in value.items):
            self.report.add(node, f"{path} cannot be referenced: it is neither a single value nor a flat list")
            raise _Unresolved
        if len(value.items) > MAX_ITEMS:
            self.report.add(node, f"{path} expands to more than {MAX_ITEMS} items")
            raise _Unresolved
        return value
