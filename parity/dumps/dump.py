"""A dump: one file, or all files below a folder that hold tensors."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.cases.options import in_words_of_pytorch
from parity.config.nodes import printable
from parity.dumps import checkpoints, tensor_files
from parity.dumps.tensors import Dump, DumpError, Stored
from parity.reporting.text.words import few

READERS = {**tensor_files.READERS, **checkpoints.READERS}
"""The reader of a file, by its suffix."""
INDEX = "index.json"
"""What `parity capture` writes beside its tensors."""
MAX_INDEX = 256 << 20
DIGITS = re.compile(r"(\d+)")


def open_dump(path: Path) -> Dump:
    """The tensors of a file or folder, read lazily. Raises DumpError."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror or error}") from error
    if stat.S_ISDIR(kind):
        return of_folder(path)
    if not stat.S_ISREG(kind):
        raise DumpError(f"{path}: neither a file nor a folder")
    if path.suffix.lower() not in READERS:
        raise DumpError(f"{path}: parity reads {', '.join(READERS)}, and folders of them")
    tensors, notes = READERS[path.suffix.lower()](path)
    return checked(Dump(path, tuple(tensors), path.suffix.lower() != ".safetensors", tuple(notes)))


def of_folder(path: Path) -> Dump:
    """All tensors below a folder. An array's name is its path; tensors in containers keep theirs, unless two files have
    the same one: then all get their file's path before them."""
    groups: list[tuple[str, list[Stored]]] = []
    notes, ignored, suffixes = list[str](), list[str](), set[str]()
    index = captured(path / INDEX)
    for file in files_below(path):
        suffix = file.suffix.lower()
        if suffix not in READERS or suffix == ".json":
            ignored += [] if file == path / INDEX and index else [file.name]
            continue
        tensors, more = READERS[suffix](file)
        stem = ".".join(file.relative_to(path).with_suffix("").parts)
        if suffix == ".npy":
            groups.append(("", [replace(tensor, name=stem) for tensor in tensors]))
        else:
            groups.append((f"{stem}.", list(tensors)))
        suffixes.add(suffix)
        notes += more
    counts = Counter(tensor.name for _, tensors in groups for tensor in tensors)
    prefixed = max(counts.values(), default=0) > 1
    named = [replace(t, name=prefix * prefixed + t.name) for prefix, tensors in groups for t in tensors]
    tensors = [replace(tensor, order=i) for i, tensor in enumerate(named)]
    if ignored:
        notes.append(f"{path.name}: {few(map(printable, ignored))}")
    if index and not index.get("complete"):
        notes.append(f"{path.name}: the rest of a capture that was interrupted")
    ordered = bool(index) or is_numbered(named) or not suffixes & {".npy", ".safetensors"}
    return checked(Dump(path, tuple(tensors), ordered, tuple(notes), options_of(index), in_out(index)))


def options_of(index: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of a capture's layers by name, in PyTorch's words, as far as they can be read."""
    frameworks, layers = index.get("frameworks"), index.get("layers")
    named = list(frameworks) if isinstance(frameworks, dict) else []
    framework = "keras" if "keras" in named else next(iter(named), "")
    by_layer = {}
    for row in layers if isinstance(layers, list) else ():
        options = row.get("options") if isinstance(row, dict) else None
        if isinstance(options, dict) and isinstance(row.get("name"), str):
            try:
                by_layer[row["name"]] = in_words_of_pytorch(framework, str(row.get("class")), options)
            except (TypeError, ValueError, KeyError):
                by_layer[row["name"]] = options
    return by_layer


TRANSPOSED = {"paddle": "Linear"}
"""The class of layers whose weight a framework stores as [in, out], where others have [out, in]."""


def in_out(index: Mapping[str, Any]) -> frozenset[str]:
    """The layers of a capture whose weight is stored as [in, out]."""
    frameworks, layers = index.get("frameworks"), index.get("layers")
    kinds = {TRANSPOSED[name] for name in frameworks if name in TRANSPOSED} if isinstance(frameworks, dict) else set()
    rows = [row for row in layers if isinstance(row, dict)] if isinstance(layers, list) else []
    return frozenset(str(row.get("name")) for row in rows if row.get("class") in kinds)


def captured(index: Path) -> dict[str, Any]:
    """The index of a capture, whose tensors are in the order of the calls; empty if there is none."""
    try:
        with index.open("rb") as file:
            content = json.loads(file.read(MAX_INDEX))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and str(content.get("format")).startswith("parity.capture/") else {}


def is_numbered(tensors: list[Stored]) -> bool:
    """Whether all names begin with a number, as of calls."""
    return bool(tensors) and all(tensor.name[:1].isdigit() for tensor in tensors)


def files_below(path: Path) -> Iterator[Path]:
    """The files below a folder, `layer2` before `layer10`; raises DumpError for a link that leads out of it."""
    root = path.resolve()
    paths = []
    for folder, _, names in os.walk(path, onerror=refuse):
        paths += [Path(folder) / name for name in names if not name.startswith(".")]
    for file in sorted(paths, key=lambda file: natural(str(file.relative_to(path)))):
        if not file.resolve().is_relative_to(root):
            raise DumpError(f"{file}: a link out of the folder, which parity does not follow; name the file itself")
        if not stat.S_ISREG(file.stat().st_mode):
            raise DumpError(f"{file}: neither a file nor a folder")
        yield file


def refuse(error: OSError) -> None:
    """A folder that cannot be listed."""
    raise DumpError(f"{error.filename}: {error.strerror or error}") from error


def natural(text: str) -> list[tuple[int, str]]:
    """The order of names that have numbers in them."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in DIGITS.split(text) if part]


def checked(dump: Dump) -> Dump:
    """A dump that has tensors, each name once; raises DumpError."""
    if not dump.tensors:
        raise DumpError(f"{dump.path}: no tensor is in it{''.join(f'; {note}' for note in dump.notes)}")
    name, n = Counter(tensor.name for tensor in dump.tensors).most_common(1)[0]
    if n > 1:
        raise DumpError(f"{dump.path}: {n} tensors are named {printable(name)}")
    return dump
