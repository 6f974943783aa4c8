"""A config file with its includes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le, MinLen
from pydantic import ConfigDict, Field, SkipValidation, WithJsonSchema

from parity.config.backends import ADAPTERS, BackendKeys, ShortBackend
from parity.config.case_models import DefaultKeys, Dtypes
from parity.config.files import existing_file
from parity.config.grammar import Allowed, ConfigModel, Text, model_of, read_partly
from parity.config.known import KnownEntry
from parity.config.nodes import Node, Problems
from parity.config.plan import ConfigFile
from parity.config.tolerance_grammar import Tolerances
from parity.config.tree import merge, only
from parity.config.yaml_lines import YamlFile, read_yaml

VERSION = 1
MAX_SEED = 2**63 - 1
REPLACED = ("backends", "baseline", "subject", "dtypes", "seed")
"""Keys that a file inherits from its includes unless it sets them."""
MERGED = ("tolerance", "defaults")


class _File(ConfigModel):
    model_config = ConfigDict(title="parity config", json_schema_extra={"required": ["version"]})


Backends = Annotated[
    tuple[SkipValidation[ShortBackend | BackendKeys], ...],
    MinLen(1),
    Allowed(tuple(ADAPTERS)),
    Field(description="a list, for example [torch, paddle]"),
]
Subject = Annotated[Text | tuple[Text, ...], Field(description="the name of a backend, or a list of names")]
FileName = Annotated[str, MinLen(1)]
Files = Annotated[tuple[FileName, ...], MinLen(1), Field(description="a list of files, for example [common.yaml]")]
CONFIG_KEYS: Mapping[str, Any] = {
    "version": (Annotated[Any, WithJsonSchema({"const": VERSION})], VERSION),
    "backends": (Backends, ()),
    "baseline": (Annotated[Text, Field(description="the name of a backend, or oracle")], ""),
    "subject": (Subject, ()),
    "dtypes": (Dtypes, ()),
    "seed": (Annotated[int, Ge(0), Le(MAX_SEED), Field(description="a whole number, 0 or more, below 2**63")], 0),
    "tolerance": (Tolerances, None),
    "defaults": (Annotated[DefaultKeys, SkipValidation()], None),  # type: ignore[type-arg]
    "include": (Files, ()),
    "cases": (Annotated[tuple[Any, ...], Field(description="a list (- ...)")], ()),
    "known": (Annotated[tuple[SkipValidation[KnownEntry], ...], Field(description="a list (- ...)")], ()),
}
ConfigKeys = model_of("config", "a config", CONFIG_KEYS, base=_File)
"""One file. List entries are read one by one; defaults are read as parts of the cases that use them."""


@dataclass(frozen=True)
class Document:
    """The keys of a config and its includes: own keys win, included cases come first.

    `complete`: all files could be read, so a missing key is really missing.
    """

    path: Path
    settings: dict[str, Node] = field(default_factory=dict)
    cases: tuple[Node, ...] = ()
    known: tuple[Node, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    complete: bool = True

    def get(self, key: str) -> Node | None:
        """A setting, None if no file has it."""
        return self.settings.get(key)

    def keys(self, report: Problems) -> Any:
        """The settings with their types; invalid ones are reported and set to their defaults."""
        root = Node(self.settings, str(self.path), 1, "")
        return read_partly(ConfigKeys, root, report) or ConfigKeys()


def read_document(path: Path, report: Problems) -> Document:
    """The config at `path` with its includes; unreadable files are reported and left out."""
    n_before = len(report)
    document = _read(path, None, (), set(), report)
    return replace(document, complete=len(report) == n_before)


def _read(path: Path, include: Node | None, open_files: tuple[str, ...], seen: set[str], report: Problems) -> Document:
    real = _identity(path)
    if include is not None and real in open_files:
        report.add(include, "circular include: this file is already being read")
        return Document(path)
    if real in seen:
        return Document(path)
    seen.add(real)
    read = read_yaml(path, report, include)
    if read is None or not _version_ok(read, report):
        return Document(path)
    keys = read_partly(ConfigKeys, read.root, report)
    included = []
    for node in read.root.mapping["include"].items if keys is not None and keys.include else ():
        inner = existing_file(node, report, "an included file")
        if inner is not None:
            included.append(_read(inner, node, (*open_files, real), seen, report))
    return _joined(read, included)


def _identity(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # not a usable path; reading it reports that
        return str(path)


def _version_ok(read: YamlFile, report: Problems) -> bool:
    """Whether this parity reads the file's version; a missing version is reported, and the rest is still checked."""
    node = read.root.get("version")
    if node is None:
        report.add(read.root, f'a config must start with "version: {VERSION}"', key="version")
        return True
    if node.value == VERSION and isinstance(node.value, int) and not isinstance(node.value, bool):
        return True
    report.add(node, f"this version of parity reads only configs of version {VERSION}", allowed=[str(VERSION)])
    return False


def _joined(read: YamlFile, included: Sequence[Document]) -> Document:
    settings: dict[str, Node] = {}
    own = only(read.root, (*REPLACED, *MERGED)).mapping
    for layer in [document.settings for document in included] + [own]:
        for key, node in layer.items():
            settings[key] = merge(settings.get(key) if key in MERGED else None, node)
    listed = {key: entry.items for key, entry in read.root.mapping.items()}
    return Document(
        read.path,
        settings,
        tuple(node for document in included for node in document.cases) + listed.get("cases", ()),
        tuple(node for document in included for node in document.known) + listed.get("known", ()),
        (*(file for document in included for file in document.files), ConfigFile(str(read.path), read.sha256)),
    )
