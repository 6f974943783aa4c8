"""What a config says about one tensor: its shape, where its numbers come from, and what is done to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.cases.draw import (
    DISTRIBUTIONS,
    Constant,
    Draw,
    File,
    LogUniform,
    NearConstant,
    Normal,
    Shape,
    Special,
    Uniform,
    Values,
)
from parity.config.fields import check_keys, fill
from parity.config.files import existing_file
from parity.config.nodes import Node, Report
from parity.config.tree import DRAW_KEYS

KEYS = ("shape", *DISTRIBUTIONS, "values", "file", "scale", "offset", "special")
MAX_ELEMENTS = 2**31 - 1
MAX_AXES = 32


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as written; None where the config says nothing."""

    shape: Shape | None = None
    draw: Draw | None = None
    scale: float = 1.0
    offset: float = 0.0
    special: Special | None = None


def parse_tensor(node: Node, report: Report) -> TensorSpec | None:
    """One tensor of `inputs`, or None after reporting what is wrong."""
    if not node.is_mapping:
        report.add(node, "a tensor is a mapping, for example {shape: [2, 3], normal: {mean: 0, std: 1}}")
        return None
    n_before = len(report)
    check_keys(node, KEYS, report, "a tensor")
    draw = _draw(node, report)
    shape = _shape(node, draw, report)
    scale, offset = (_modifier(node, key, default, report) for key, default in (("scale", 1.0), ("offset", 0.0)))
    special = _special(node.get("special"), report)
    if len(report) > n_before:
        return None
    return TensorSpec(shape, draw, scale, offset, special)


def check_size(shape: Shape, node: Node, report: Report, what: str = "a tensor", key: str | None = None) -> bool:
    """Whether a shape can be allocated and compared at all; reports it when not."""
    n_elements = math.prod(shape)
    if n_elements < 1:
        report.add(node, f"{what} of shape {list(shape)} has no elements, so there is nothing to compare", key=key)
    elif n_elements > MAX_ELEMENTS:
        message = f"{what} of shape {list(shape)} would have {n_elements} elements; at most 2**31 - 1 are possible"
        report.add(node, message, key=key)
    return 1 <= n_elements <= MAX_ELEMENTS


def _shape(node: Node, draw: Draw | None, report: Report) -> Shape | None:
    """The shape as stated, or as the literal values or the file have it."""
    entry = node.get("shape")
    stated = _stated_shape(entry, report) if entry is not None else None
    own = getattr(draw, "shape", None)
    if own is None:
        return stated
    source = node.get("values") or node.get("file") or node
    if not check_size(own, source, report):
        return None
    if entry is not None and stated is not None and stated != own:
        report.add(entry, f"the shape does not fit: the {source.key.rpartition('.')[2]} are {list(own)}")
    return tuple(own)


def _stated_shape(node: Node, report: Report) -> Shape | None:
    if not node.is_list:
        report.add(node, "a shape is a list of whole numbers, for example [2, 3]")
        return None
    for item in node.items:
        if not isinstance(item.value, int) or isinstance(item.value, bool) or item.value < 0:
            report.add(item, "an entry of a shape must be a whole number, 1 or more")
            return None
    if len(node.items) > MAX_AXES:
        report.add(node, f"{len(node.items)} axes; at most {MAX_AXES} are possible")
        return None
    shape = tuple([int(str(item.value)) for item in node.items])
    return shape if check_size(shape, node, report) else None


def _modifier(node: Node, key: str, default: float, report: Report) -> float:
    entry = node.get(key)
    if entry is None:
        return default
    if not _is_number(entry) or not math.isfinite(_float(entry)):
        report.add(entry, f"{key} must be a finite number")
        return default
    return _float(entry)


def _is_number(node: Node) -> bool:
    return isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _float(node: Node) -> float:
    """The number in `node`; whole numbers beyond float64 are infinite, as 1e999 is."""
    try:
        return float(node.value) if isinstance(node.value, int | float) else math.nan
    except OverflowError:
        return math.inf


def _special(node: Node | None, report: Report) -> Special | None:
    if node is None:
        return None
    special: Special | None = fill(Special, node, report, "special")
    if special is None:
        return None
    if not special.values:
        report.add(node.mapping["values"], "special needs at least one value")
    if special.count < 1:
        report.add(node.mapping["count"], "count must be 1 or more")
    return special


def _draw(node: Node, report: Report) -> Draw | None:
    """The one place that the numbers come from, if the config names any."""
    named = [key for key in node.mapping if key in DRAW_KEYS]
    if len(named) > 1:
        report.add(node.mapping[named[1]], f"numbers come from one place, but here are {' and '.join(named)}")
        return None
    if not named:
        return None
    entry = node.mapping[named[0]]
    if named[0] == "values":
        return _values(entry, report)
    if named[0] == "file":
        return _file(entry, report)
    return _distribution(named[0], entry, report)


def _distribution(name: str, node: Node, report: Report) -> Draw | None:
    if name == "constant" and _is_number(node):
        return Constant(_float(node))
    if not node.is_mapping:
        example = "a number, or a mapping: {value: 3}" if name == "constant" else "a mapping; {} is all defaults"
        report.add(node, f"{name} must be {example}")
        return None
    cls = DISTRIBUTIONS[name]
    draw: Draw | None = fill(cls, node, report, name)
    if draw is None:
        return None
    complaint = SANE[cls](draw) if cls in SANE else None
    if complaint is not None:
        report.add(node, complaint)
        return None
    return draw


def _sane_normal(draw: Any) -> str | None:
    return None if math.isfinite(draw.mean) and 0 <= draw.std < math.inf else "normal wants a finite mean and std >= 0"


def _sane_uniform(draw: Any) -> str | None:
    return None if math.isfinite(draw.high - draw.low) and draw.low <= draw.high else "uniform wants finite low <= high"


def _sane_log_uniform(draw: Any) -> str | None:
    return None if draw.high < math.inf else "log_uniform wants a finite high"


def _sane_near_constant(draw: Any) -> str | None:
    if math.isfinite(draw.value) and 0 <= draw.relative < math.inf:
        return None
    return "near_constant wants a finite value and relative >= 0"


SANE: Mapping[type[Any], Callable[[Any], str | None]] = {
    Normal: _sane_normal,
    Uniform: _sane_uniform,
    LogUniform: _sane_log_uniform,
    NearConstant: _sane_near_constant,
}
"""What NumPy's generators would refuse only once the case runs."""


def _values(node: Node, report: Report) -> Values | None:
    """A nested list of numbers; every list of a level has the same length."""
    shape = _nesting(node)
    if len(shape) > MAX_AXES:
        report.add(node, f"{len(shape)} levels; at most {MAX_AXES} are possible")
        return None
    try:
        return Values(_nested(node, shape, report))
    except _Refused:
        return None


class _Refused(Exception):  # noqa: N818 - never leaves this module
    pass


def _nesting(node: Node) -> Shape:
    """The shape along the first items."""
    shape: list[int] = []
    while node.is_list:
        shape.append(len(node.items))
        if not node.items:
            break
        node = node.items[0]
    return tuple(shape)


def _nested(node: Node, shape: Shape, report: Report) -> Any:
    if not shape:
        if not _is_number(node):
            wanted = "this is a list where others are numbers" if node.is_list else "every value must be a number"
            report.add(node, wanted)
            raise _Refused
        return _float(node)
    if not node.is_list or len(node.items) != shape[0]:
        count = f"{len(node.items)} items" if node.is_list else "a single value"
        report.add(node, f"the lists differ in length: here is {count} where the first one has {shape[0]}")
        raise _Refused
    return tuple([_nested(item, shape[1:], report) for item in node.items])


def _file(node: Node, report: Report) -> File | None:
    path = existing_file(node, report, "file")
    if path is None:
        return None
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:
        # numpy's header parser raises ValueError, EOFError, SyntaxError, OSError and more for what it cannot read.
        array = None
    if not isinstance(array, np.ndarray):
        report.add(node, "this is not a .npy file of numbers")
    elif array.dtype.kind not in "fiub":
        report.add(node, f"the numbers in it are of type {array.dtype}; real numbers are wanted")
    else:
        return File(path.absolute())
    return None
