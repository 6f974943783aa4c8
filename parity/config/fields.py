"""Fills a frozen dataclass from a mapping: its fields are the keys, its type hints say what may stand there."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from parity.config.errors import nearest
from parity.config.nodes import Node, Report

SWEPT_VALUE = re.compile(r"(\.sweep\..*)\[[0-9]+\]$")
"""One value of a swept path: an unknown key is wrong in the path, whatever the value."""

STRICT = ConfigDict(strict=True)
PHRASES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "anything",
}


@dataclass(frozen=True)
class FieldSpec:
    """One field of a dataclass: how it is validated and how it is described to people."""

    name: str
    required: bool
    adapter: TypeAdapter[Any]
    phrase: str


_SPECS: dict[type[Any], Mapping[str, FieldSpec]] = {}


def field_specs(cls: type[Any]) -> Mapping[str, FieldSpec]:
    """The fields of a dataclass by name; built once, for building a validator is what costs."""
    if cls not in _SPECS:
        hints = get_type_hints(cls)
        _SPECS[cls] = {f.name: _spec(f, hints[f.name]) for f in fields(cls) if f.init}
    return _SPECS[cls]


def _spec(f: Field[Any], hint: Any) -> FieldSpec:
    required = f.default is MISSING and f.default_factory is MISSING
    return FieldSpec(f.name, required, TypeAdapter(hint, config=STRICT), describe(hint))


def describe(hint: Any) -> str:
    """A type as people say it: `int | None` is "a whole number or null"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is tuple:
        items = dict.fromkeys(describe(arg).removeprefix("a ") for arg in args if arg is not Ellipsis)
        length = "" if Ellipsis in args else f"{len(args)} "
        return f"a list of {length}{' and '.join(f'{item}s' for item in items)}"
    return PHRASES.get(hint, getattr(hint, "__name__", str(hint)))


def check_keys(
    node: Node, allowed: Iterable[str], report: Report, what: str, required: Mapping[str, str] | None = None
) -> bool:
    """Reports every key of a mapping that is not allowed, and every required one (key: phrase) that is missing.

    A missing key that an unknown one was probably meant to be is not reported twice.
    """
    words = tuple(allowed)
    unknown = [key for key in node.mapping if key not in words]
    for key in unknown:
        entry = node.mapping[key]
        place = SWEPT_VALUE.sub(r"\1", entry.key)
        message = f'{what} has no "{key}"' if words else f"{what} takes nothing"
        report.add(entry, message, key=place, allowed=words, near=key, value=place == entry.key)
    missing = [key for key in required or () if key not in node.mapping]
    for key in set(missing) - {nearest(key, words) for key in unknown}:
        place = SWEPT_VALUE.sub(r"\1", node.key)
        report.add(node, f'{what} needs "{key}": {(required or {})[key]}', key=f"{place}.{key}")
    return not unknown and not missing


def require_mapping(node: Node, report: Report, what: str) -> bool:
    """Whether `node` is a mapping; reports it when not."""
    if not node.is_mapping:
        report.add(node, f"{what} must be a mapping (key: value)")
    return node.is_mapping


def fill(cls: type[Any], node: Node, report: Report, what: str) -> Any | None:
    """An instance of `cls` with the values of `node`, or None after reporting everything that is wrong.

    What a dataclass refuses by itself (ValueError from `__post_init__`) is reported at `node`, or at the key that
    the error names.
    """
    if not require_mapping(node, report, node.key.rpartition(".")[2]):
        return None
    specs = field_specs(cls)
    required = {name: spec.phrase for name, spec in specs.items() if spec.required}
    complete = check_keys(node, specs, report, what, required)
    values = {key: _validated(specs[key], entry, report) for key, entry in node.mapping.items() if key in specs}
    if not complete or any(value is _WRONG for value in values.values()):
        return None
    try:
        return cls(**values)
    except ValueError as error:
        key = str(getattr(error, "key", "")).rpartition(".")[2]
        report.add(node.get(key) or node, str(error))
        return None


_WRONG = object()


def _validated(spec: FieldSpec, node: Node, report: Report) -> Any:
    try:
        return spec.adapter.validate_python(node.plain())
    except (ValidationError, OverflowError) as error:
        report.add(_culprit(error, node), f"{spec.name} must be {spec.phrase}{_aside(node)}")
        return _WRONG


def _culprit(error: Exception, node: Node) -> Node:
    """The item of a list that is wrong, where only items are; else the whole value."""
    if not isinstance(error, ValidationError):
        return node
    index = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][:1]
    if node.is_list and len(error.errors()) == 1 and index and isinstance(index[0], int) and index[0] < len(node.items):
        return node.items[index[0]]
    return node


def _aside(node: Node) -> str:
    """What people stumble over: a number in quotes, or 1e-5 that YAML 1.1 tools write as text."""
    if isinstance(node.value, str):
        try:
            float(node.value)
        except ValueError:
            return ""
        return "; this is text, leave out the quotes"
    return ""
