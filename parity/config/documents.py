"""A config file together with what it includes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.config.fields import check_keys
from parity.config.files import existing_file
from parity.config.nodes import Node, Report
from parity.config.plan import ConfigFile
from parity.config.tree import merge, merge_case
from parity.config.yaml_lines import YamlFile, read_yaml

VERSION = 1
REPLACED = ("backends", "baseline", "dtypes", "seed")
"""Keys that a file takes from what it includes unless it has them itself."""
KEYS = ("version", *REPLACED, "tolerance", "defaults", "include", "cases", "known")


@dataclass(frozen=True)
class Document:
    """The keys of a config and of all that it includes: own keys win, included cases come first.

    `complete`: nothing was wrong so far, so that what is missing is missing indeed.
    """

    path: Path
    settings: dict[str, Node] = field(default_factory=dict)
    cases: tuple[Node, ...] = ()
    known: tuple[Node, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    complete: bool = True

    def get(self, key: str) -> Node | None:
        """A setting, None where no file has it."""
        return self.settings.get(key)


def read_document(path: Path, report: Report) -> Document:
    """The config at `path` with its includes; what cannot be read is reported and left out."""
    n_before = len(report)
    document = _read(path, None, (), set(), report)
    return replace(document, complete=len(report) == n_before)


def _read(path: Path, place: Node | None, open_files: tuple[str, ...], seen: set[str], report: Report) -> Document:
    real = _identity(path)
    if place is not None and real in open_files:
        report.add(place, "the includes go in a circle: this file is being read already")
        return Document(path)
    if real in seen:
        return Document(path)
    seen.add(real)
    read = read_yaml(path, report)
    if read is None or not _version_ok(read, report):
        return Document(path)
    check_keys(read.root, KEYS, report, "a config")
    included = [_read(inner, node, (*open_files, real), seen, report) for inner, node in _includes(read.root, report)]
    return _joined(read, included, report)


def _identity(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # no usable path; reading it will say so
        return str(path)


def _version_ok(read: YamlFile, report: Report) -> bool:
    """Whether this parity reads the file; a missing version is reported, but the rest is checked all the same."""
    node = read.root.get("version")
    if node is None:
        report.add(read.root, f'a config begins with "version: {VERSION}"', key="version")
        return True
    if node.value == VERSION and isinstance(node.value, int) and not isinstance(node.value, bool):
        return True
    report.add(node, f"this parity reads configs of version {VERSION} only", allowed=[str(VERSION)])
    return False


def _includes(root: Node, report: Report) -> list[tuple[Path, Node]]:
    node = root.get("include")
    if node is None:
        return []
    if not node.is_list or not all(isinstance(item.value, str) and item.value for item in node.items):
        report.add(node, "include must be a list of files, for example [common.yaml]")
        return []
    found = [(existing_file(item, report, "an included file"), item) for item in node.items]
    return [(path, item) for path, item in found if path is not None]


def _joined(read: YamlFile, included: Sequence[Document], report: Report) -> Document:
    settings: dict[str, Node] = {}
    own = {key: node for key, node in read.root.mapping.items() if key in (*REPLACED, "tolerance", "defaults")}
    for layer in [document.settings for document in included] + [own]:
        for key, node in layer.items():
            settings[key] = _over(settings[key], node) if key in ("tolerance", "defaults") and key in settings else node
    lists = {key: _entries(read.root, key, report) for key in ("cases", "known")}
    return Document(
        read.path,
        settings,
        tuple(node for document in included for node in document.cases) + lists["cases"],
        tuple(node for document in included for node in document.known) + lists["known"],
        (*(file for document in included for file in document.files), ConfigFile(str(read.path), read.sha256)),
    )


def _over(base: Node, over: Node) -> Node:
    """Defaults over included defaults, with the rules for tensors that hold for a case over its defaults."""
    merged = merge(base, over)
    ops = base.get("ops"), over.get("ops")
    if ops[0] is None or ops[1] is None or not (ops[0].is_mapping and ops[1].is_mapping):
        return merged
    joined = {
        name: merge_case(ops[0].mapping[name], node) if name in ops[0].mapping else node
        for name, node in ops[1].mapping.items()
    }
    entries = {**ops[0].mapping, **joined}
    return Node(
        {**merged.mapping, "ops": Node(entries, ops[1].file, ops[1].line, ops[1].key)}, over.file, over.line, over.key
    )


def _entries(root: Node, key: str, report: Report) -> tuple[Node, ...]:
    node = root.get(key)
    if node is None:
        return ()
    if not node.is_list:
        report.add(node, f"{key} must be a list (- ...)")
    return node.items
