"""Case ids: as the config says, or made from the op, its sizes and what distinguishes the case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from parity.cases.draw import DISTRIBUTIONS, Draw, File, TensorPlan, Values
from parity.config.nodes import Node, Report
from parity.config.references import number_text, referenced
from parity.config.sweep import suffixes

MAX_LENGTH = 300
MAX_SHAPES = 3


def check_id(node: Node, text: str, report: Report) -> bool:
    """Whether `text` can be an id: it goes into tables, XML and shell commands; reports it when not."""
    if not text.strip() or text != text.strip():
        report.add(node, "an id is text that neither starts nor ends with a space")
    elif not text.isprintable():
        report.add(node, "an id must be printable: no line breaks, tabs or control characters")
    elif len(text) > MAX_LENGTH:
        report.add(node, f"an id has at most {MAX_LENGTH} characters, this one has {len(text)}", value=False)
    else:
        return True
    return False


def swept_id(text: str, written: str, swept: Sequence[tuple[str, Node]]) -> str:
    """An explicit id with what is swept behind it, but for the paths that `written` refers to itself."""
    named = referenced(written)
    parts = zip(swept, suffixes(tuple(swept)), strict=True)
    return "-".join([text, *(suffix for (path, _), suffix in parts if path not in named)])


@dataclass(frozen=True)
class AutoId:
    """What an automatic id is made from."""

    op: str
    params: Any
    tensors: tuple[TensorPlan, ...]
    swept: tuple[tuple[str, Node], ...] = ()

    def __str__(self) -> str:
        said = ("op", f"inputs.{self.tensors[0].name}.shape" if self.tensors else "")
        swept = tuple((path, node) for path, node in self.swept if path not in said)
        distinctions = (text for path, text in self._distinctions() if not self._is_swept(path))
        return "-".join([self.op, self._sizes(), *distinctions, *suffixes(swept)])[:MAX_LENGTH]

    def _is_swept(self, path: str) -> bool:
        return any(path == swept or path.startswith(f"{swept}.") for swept, _ in self.swept)

    def _sizes(self) -> str:
        """The first input's shape, or all shapes of a list of tensors when they are few."""
        listed = [t for t in self.tensors if t.name.partition(".")[2].isdigit()]
        if len(listed) > MAX_SHAPES:
            return f"{len(listed)}-tensors"
        return "+".join("x".join(map(str, t.shape)) or "scalar" for t in listed or self.tensors[:1])

    def _distinctions(self) -> Iterator[tuple[str, str]]:
        """Params that have a default and another value, then how the first tensor is drawn; each with its path."""
        for f in fields(self.params):
            value = getattr(self.params, f.name)
            if f.default is not MISSING and not f.metadata.get("implied") and value != f.default:
                yield f"params.{f.name}", f"{f.name}={_text(value)}"
        for tensor in self.tensors[:1]:
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


def _parameters(draw: Draw) -> Iterator[tuple[str, str]]:
    """The distribution unless it is the normal one, and its parameters that are not at their defaults."""
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
