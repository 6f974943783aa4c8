"""Backends as a config names them: short strings `NAME[==VERSION][:MODE]` and mappings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from pydantic import Field, WithJsonSchema

from parity.config.files import beside, existing_file
from parity.config.grammar import ConfigModel, Text, read_partly
from parity.config.nodes import Node, Problems
from parity.config.plan import ORACLE, BackendSpec


@dataclass(frozen=True)
class AdapterTraits:
    """The modes and devices of an adapter, and whether its tensors have strides."""

    modes: tuple[str, ...] = ("eager",)
    devices: tuple[str, ...] = ("cpu",)
    max_ranks: int = 1
    strided: bool = False


MAX_RANKS = 16
"""Each rank is a process with a framework of its own."""

ADAPTERS: Mapping[str, AdapterTraits] = {
    "torch": AdapterTraits(
        ("eager", "compile", "script", "channels_last", "amp-bf16", "tf32", "triton-interpret"),
        ("cpu", "cuda"),
        MAX_RANKS,
        strided=True,
    ),
    "paddle": AdapterTraits(("eager", "static", "amp-bf16"), max_ranks=MAX_RANKS, strided=True),
    "oneflow": AdapterTraits(("eager", "graph", "amp-bf16"), max_ranks=MAX_RANKS, strided=True),
    "jax": AdapterTraits(("eager", "jit")),
    "tensorflow": AdapterTraits(("eager", "xla")),
    "mindspore": AdapterTraits(("eager", "graph")),
    "onnxruntime": AdapterTraits(),
    "keras": AdapterTraits(("eager", "tensorflow", "jax", "torch")),
    "mlx": AdapterTraits(),
    "numpy": AdapterTraits(strided=True),
}
"""The adapters that a config may name."""

SHORT = re.compile(r"(?P<name>[^=:\s]+)(==(?P<version>[^=:\s]+))?(:(?P<mode>[^=:\s]+))?")
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([._+-]?[A-Za-z0-9]+)*")
MAX_NAME = 80

PATTERNS = (rf"{name}(==[^=:\s]+)?(:({'|'.join(traits.modes)}))?" for name, traits in ADAPTERS.items())
ShortBackend = Annotated[str, Field(pattern=f"^({'|'.join(PATTERNS)})$", description="NAME[==VERSION][:MODE]")]
MODES = sorted({mode for traits in ADAPTERS.values() for mode in traits.modes})
DEVICES = sorted({device for traits in ADAPTERS.values() for device in traits.devices})


TEXTS = ("name", "adapter", "version", "mode", "device")


class BackendKeys(ConfigModel):
    """A backend that is a mapping. Its mode and device are checked against the adapter after all keys are read."""

    what: ClassVar[str] = "a backend"
    name: Text
    adapter: Annotated[Text, WithJsonSchema({"enum": list(ADAPTERS)})] = ""
    ops: Annotated[Any, WithJsonSchema({"type": "string"})] = None
    python: Annotated[Any, WithJsonSchema({"type": "string"})] = None
    version: Text = ""
    mode: Annotated[Text, WithJsonSchema({"enum": MODES})] = "eager"
    device: Annotated[Text, WithJsonSchema({"enum": DEVICES})] = "cpu"
    ranks: Annotated[int, Ge(1), Le(MAX_RANKS)] = 1


DOOR = "for a kernel of your own: {name: mine, adapter: torch, ops: ./my_kernel.py}, see docs/own-kernel.md"


def parse_backends(node: Node, report: Problems) -> tuple[tuple[BackendSpec, Node], ...]:
    """The backends of a config with their nodes; invalid ones are reported and left out."""
    specs: dict[str, tuple[BackendSpec, Node]] = {}
    for item in node.items:
        spec = _from_mapping(item, report) if item.is_mapping else _from_string(item, report)
        if spec is None:
            continue
        if spec.name in specs:
            report.add(item, f'two backends are named "{spec.name}"; rename one of them')
        specs.setdefault(spec.name, (spec, item))
    return tuple(specs.values())


def _from_string(node: Node, report: Problems) -> BackendSpec | None:
    match = SHORT.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        report.add(node, "a backend must be NAME[==VERSION][:MODE], for example torch==2.4.1, or a mapping with a name")
        return None
    adapter, version, mode = match["name"], match["version"], match["mode"] or "eager"
    if adapter == ORACLE:
        report.add(node, '"oracle" is always included and is not a backend; it may be the baseline')
        return None
    if adapter not in ADAPTERS:
        report.add(node, f'there is no adapter "{adapter}" ({DOOR})', allowed=ADAPTERS, near=adapter)
        return None
    if not _version_ok(version, node, report) or not _supported(adapter, "mode", mode, node, report):
        return None
    return BackendSpec(name=node.text, adapter=adapter, version=version, mode=mode)


def _from_mapping(node: Node, report: Problems) -> BackendSpec | None:
    n_before = len(report)
    keys = read_partly(BackendKeys, node, report)
    if keys is None or "name" not in keys.model_fields_set:
        return None
    words = {key: node.mapping[key].text for key in TEXTS if key in keys.model_fields_set}
    name, mode, device = words["name"], words.get("mode", "eager"), words.get("device", "cpu")
    _check_name(name, node.mapping["name"], report)
    adapter = _adapter(name, node, report) if "adapter" in words or "adapter" not in node.mapping else None
    _version_ok(words.get("version"), node.get("version") or node, report)
    if adapter is not None:
        _supported(adapter, "mode", mode, node.get("mode") or node, report)
        _supported(adapter, "device", device, node.get("device") or node, report)
        _check_ranks(keys.ranks, adapter, (mode, device), node, report)
    python, ops = _python(node.get("python"), report), _ops(node.get("ops"), report)
    if ops is not None and ops.suffix == ".onnx" and adapter not in ("onnxruntime", None):
        report.add(node.mapping["ops"], "an ONNX file needs `adapter: onnxruntime`")
    if adapter is None or len(report) > n_before:
        return None
    return BackendSpec(name, adapter, words.get("version"), mode, device, python, ops, keys.ranks)


def _check_ranks(ranks: int, adapter: str, run: tuple[str, str], node: Node, report: Problems) -> None:
    """Reports `ranks` if the adapter, its mode or its device has no data-parallel training."""
    if ranks > ADAPTERS[adapter].max_ranks:
        report.add(node.mapping["ranks"], f"{adapter} has no data-parallel training; leave ranks out")
    elif ranks > 1 and run != ("eager", "cpu"):
        report.add(node.mapping["ranks"], "ranks need mode eager on device cpu; leave out the other")


def _check_name(name: str, node: Node, report: Problems) -> None:
    if name == ORACLE:
        report.add(node, '"oracle" is reserved for the exact answer; choose another name')
    elif not name or not name.isprintable() or name != name.strip() or len(name) > MAX_NAME:
        report.add(
            node,
            f"a backend's name must be printable, of at most {MAX_NAME} characters, without leading or trailing spaces",
        )


def _adapter(name: str, node: Node, report: Problems) -> str | None:
    entry = node.get("adapter")
    adapter = name if entry is None else entry.text
    if adapter in ADAPTERS:
        return adapter
    if entry is None:
        message = f'"{name}" needs an "adapter", because there is no adapter of that name'
        report.add(node, message, key=f"{node.key}.adapter", allowed=ADAPTERS, near=name)
    else:
        report.add(entry, f'there is no adapter "{adapter}" ({DOOR})', allowed=ADAPTERS, near=adapter)
    return None


def _version_ok(version: str | None, node: Node, report: Problems) -> bool:
    if version is None or VERSION.fullmatch(version[:100]):
        return True
    report.add(node, "a version must be one exact release, for example 2.4.1")
    return False


def _supported(adapter: str, what: str, word: str, node: Node, report: Problems) -> bool:
    """Whether `word` is a mode (or a device) of the adapter."""
    traits = ADAPTERS[adapter]
    allowed = traits.modes if what == "mode" else traits.devices
    if word in allowed:
        return True
    message = f'{adapter} has no {what} "{word}"'
    if what == "mode" and word in traits.devices:
        message += f"; write a device as a mapping: {{name: {adapter}-{word}, adapter: {adapter}, device: {word}}}"
    report.add(node, message, allowed=allowed, near=word)
    return False


def _python(node: Node | None, report: Problems) -> Path | None:
    """An interpreter: a path, or a command on PATH such as python3.10."""
    if node is None:
        return None
    if isinstance(node.value, str) and _is_bare(node):
        command = shutil.which(node.text)
        if command is None:
            report.add(node, f'there is no command "{node.text}" on PATH and no such file beside the config')
        return None if command is None else _absolute(Path(command))
    path = existing_file(node, report, "python")
    if path is not None and not os.access(path, os.X_OK):
        report.add(node, "not executable; name an interpreter such as ./venv/bin/python")
    return _absolute(path)


def _is_bare(node: Node) -> bool:
    return bool(node.text) and node.text.isprintable() and "/" not in node.text and not beside(node).exists()


def _ops(node: Node | None, report: Problems) -> Path | None:
    return None if node is None else _absolute(existing_file(node, report, "ops"))


def _absolute(path: Path | None) -> Path | None:
    """Absolute and without dots; symlinks are kept, since a venv's python is one."""
    return None if path is None else Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow them
