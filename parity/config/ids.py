"""Case ids: from the config, or made from the op, its sizes and what distinguishes the case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

from parity.cases.draw import DISTRIBUTIONS, Draw, File, TensorPlan, Values
from parity.config.nodes import Node, Problems
from parity.config.references import number_text, referenced
from parity.config.sweep import suffixes

MAX_LENGTH = 300
MAX_SHAPES = 3


def check_id(node: Node, text: str, report: Problems) -> bool:
    """Whether `text` can be an id, which appears in tables, XML and shell commands; reports it if not."""
    if not text.strip() or text != text.strip():
        report.add(node, "an id must not be empty, nor start or end with a space")
    elif not text.isprintable():
        report.add(node, "an id must be printable: no line breaks, tabs or control characters")
    elif len(text) > MAX_LENGTH:
        report.add(node, f"an id may have at most {MAX_LENGTH} characters; this one has {len(text)}", value=False)
    else:
        return True
    return False


def swept_id(text: str, written: str, swept: Sequence[tuple[str, Node]]) -> str:
    """An explicit id followed by the swept values, except those of paths that `written` refers to."""
    named = referenced(written)
    parts = zip(swept, suffixes(tuple(swept)), strict=True)
    return "-".join([text, *(suffix for (path, _), suffix in parts if path not in named)])


def automatic_id(op: str, params: Any, tensors: tuple[TensorPlan, ...], swept: tuple[tuple[str, Node], ...]) -> str:
    """The op, its sizes, what distinguishes the case, and the swept values."""
    said = ("op", f"inputs.{tensors[0].name}.shape" if tensors else "")
    paths = tuple(path for path, _ in swept)
    distinctions = [
        text
        for path, text in _distinctions(params, tensors)
        if not any(path == other or path.startswith(f"{other}.") for other in paths)
    ]
    rest = suffixes(tuple((path, node) for path, node in swept if path not in said))
    return "-".join([op, _sizes(tensors), *distinctions, *rest])[:MAX_LENGTH]


def _sizes(tensors: tuple[TensorPlan, ...]) -> str:
    """The first input's shape, or all shapes of a short list of tensors."""
    listed = [t for t in tensors if t.name.partition(".")[2].isdigit()]
    if len(listed) > MAX_SHAPES:
        return f"{len(listed)}-tensors"
    return "+".join("x".join(map(str, t.shape)) or "scalar" for t in listed or tensors[:1])


def _distinctions(params: Any, tensors: tuple[TensorPlan, ...]) -> Iterator[tuple[str, str]]:
    """Params that differ from their defaults, then how the first tensor is drawn; each with its path."""
    for f in fields(params):
        value = getattr(params, f.name)
        if f.default is not MISSING and not f.metadata.get("implied") and value != f.default:
            yield f"params.{f.name}", f"{f.name}={_text(value)}"
    for tensor in tensors[:1]:
        for path, text in _drawn(tensor):
            yield f"inputs.{tensor.name}.{path}", text


def _drawn(tensor: TensorPlan) -> Iterator[tuple[str, str]]:
    draw: Any = tensor.draw
    if isinstance(draw, Values):
        yield "values", "values"
    elif isinstance(draw, File):
        yield "file", draw.path.stem
    else:
        yield from _parameters(draw)
    for key, default in (("scale", 1.0), ("offset", 0.0)):
        if getattr(tensor, key) != default:
            yield key, f"{key}={_text(getattr(tensor, key))}"
    if tensor.special is not None:
        yield "special", "special"
    if tensor.layout:
        yield "layout", tensor.layout
    if tensor.storage:
        yield "storage", tensor.storage


def _parameters(draw: Draw) -> Iterator[tuple[str, str]]:
    """The distribution unless it is normal, and its parameters that differ from their defaults."""
    key = next((key for key, cls in DISTRIBUTIONS.items() if isinstance(draw, cls)), "drawn")
    if key != "normal":
        yield key, key
    for f in fields(draw):  # type: ignore[arg-type]
        value = getattr(draw, f.name)
        if value != f.default:
            yield f"{key}.{f.name}", f"{f.name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, tuple):
        return "x".join(_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
