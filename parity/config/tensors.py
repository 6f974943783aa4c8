"""One tensor in a config: its shape, the source of its numbers, and their transformations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, MinLen
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    WithJsonSchema,
    model_validator,
)

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
from parity.cases.dtypes import STORAGES
from parity.cases.layout import LAYOUTS
from parity.config.files import existing_file
from parity.config.grammar import CaseModel, literal_of, model_of, options, refusal
from parity.config.nodes import Node, Problems
from parity.config.tree import DRAW_KEYS

MAX_ELEMENTS = 2**31 - 1
MAX_AXES = 32
MAX_HEADER_BYTES = 1 << 16
"""NumPy refuses headers of more than 10,000 characters, after reading them."""


def size_problem(shape: Shape, what: str = "a tensor") -> str | None:
    """Why a shape cannot be allocated and compared, None if it can."""
    n_elements = math.prod(shape)
    if n_elements < 1:
        return f"{what} of shape {list(shape)} has no elements, so nothing can be compared"
    if n_elements > MAX_ELEMENTS:
        return f"{what} of shape {list(shape)} has {n_elements} elements; at most 2**31 - 1 are possible"
    return None


def _sized(shape: Shape) -> Shape:
    n_axes = len(shape)
    problem = f"{n_axes} axes; at most {MAX_AXES} are possible" if n_axes > MAX_AXES else size_problem(shape)
    if problem is not None:
        raise refusal(problem)
    return shape


SANE: Mapping[type[Any], tuple[Callable[[Any], bool], str]] = {
    Normal: (lambda d: math.isfinite(d.mean) and 0 <= d.std < math.inf, "normal needs a finite mean and std >= 0"),
    Uniform: (lambda d: math.isfinite(d.high - d.low) and d.low <= d.high, "uniform needs finite low <= high"),
    LogUniform: (lambda d: d.high < math.inf, "log_uniform needs a finite high"),
    NearConstant: (
        lambda d: math.isfinite(d.value) and 0 <= d.relative < math.inf,
        "near_constant needs a finite value and relative >= 0",
    ),
}
"""Checks of parameters that NumPy's generators would reject only when the case runs."""


def _check_draw(draw: Any) -> None:
    accepts, complaint = SANE.get(type(draw), (lambda _: True, ""))
    if not accepts(draw):
        raise ValueError(complaint)


class _Distribution(CaseModel):
    wanted: ClassVar[str] = "a mapping; {} is all defaults"


def _drawn(name: str, cls: type[Any]) -> Any:
    """The mapping of a distribution's parameters; a constant may be its number alone."""
    mapping = options(cls, name, name, _check_draw, base=_Distribution)
    if cls is not Constant:
        return mapping
    number = Annotated[float, AfterValidator(Constant), Field(description="a number, or a mapping: {value: 3}")]
    return Annotated[
        Annotated[number, Tag("number")] | Annotated[mapping, Tag("mapping")],
        Discriminator(lambda value: "mapping" if isinstance(value, dict) else "number"),
        Field(description="a number, or a mapping: {value: 3}"),
    ]


def _values(written: Any) -> Values:
    """A nested list of numbers; every list of a level has the same length."""
    shape: list[int] = []
    first = written
    while isinstance(first, tuple):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > MAX_AXES:
        raise refusal(f"nested {len(shape)} levels deep; at most {MAX_AXES} are possible")
    values = Values(_nested(written, tuple(shape), ()))
    _sized(values.shape)
    return values


def _nested(value: Any, shape: Shape, at: tuple[int, ...]) -> Any:
    if not shape:
        if isinstance(value, bool) or not isinstance(value, int | float):
            listed = isinstance(value, tuple)
            message = "this is a list among numbers" if listed else "every value must be a number"
            raise refusal(message, at=at)
        return as_float(value)
    if not isinstance(value, tuple) or len(value) != shape[0]:
        count = f"{len(value)} items" if isinstance(value, tuple) else "a single value"
        message = f"the lists differ in length: {count} here, {shape[0]} in the first one"
        raise refusal(message, at=at)
    return tuple([_nested(item, shape[1:], (*at, i)) for i, item in enumerate(value)])


def as_float(value: float) -> float:
    """A number in float64; whole numbers that are too large are infinite, like 1e999."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


SPECIAL = {
    "values": (Annotated[tuple[float, ...], MinLen(1)], Field(description="a list of one or more numbers")),
    "count": (Annotated[int, Ge(1)], 1),
}


class _Tensor(CaseModel):
    """A tensor; its keys are those of `KEYS`, None if the config omits them."""

    model_config = ConfigDict(
        json_schema_extra={"not": {"anyOf": [{"required": list(pair)} for pair in combinations(sorted(DRAW_KEYS), 2)]}}
    )
    what: ClassVar[str] = "a tensor"
    wanted: ClassVar[str] = "a mapping, for example {shape: [2, 3], normal: {mean: 0, std: 1}}"

    @model_validator(mode="after")
    def _one_source(self) -> _Tensor:
        named = [key for key in KEYS if key in DRAW_KEYS & self.model_fields_set]
        if len(named) > 1:
            raise refusal(f"a tensor has one source of numbers, but here are {' and '.join(named)}", at=(named[1],))
        return self


ShapeKey = Annotated[
    tuple[Annotated[int, Ge(1)], ...],
    AfterValidator(_sized),
    Field(
        description="a list of whole numbers, for example [2, 3]",
        json_schema_extra={"maxItems": MAX_AXES},
    ),
]
ValuesKey = Annotated[Any, BeforeValidator(_values), WithJsonSchema({"type": ["array", "number", "string"]})]
FileKey = Annotated[str, Field(description="a path to a .npy file, relative to the config")]
KEYS: Mapping[str, Any] = {
    "shape": (ShapeKey, None),
    **{name: (_drawn(name, cls), None) for name, cls in DISTRIBUTIONS.items()},
    "values": (ValuesKey, None),
    "file": (FileKey, None),
    "scale": (FiniteFloat, 1.0),
    "offset": (FiniteFloat, 0.0),
    "special": (options(Special, "special", "special", keys=SPECIAL), None),
    "layout": (literal_of(LAYOUTS), ""),
    "storage": (literal_of(STORAGES), ""),
}
TENSOR = model_of("tensor", "a tensor", KEYS, base=_Tensor)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as written; None for what the config omits."""

    shape: Shape | None = None
    draw: Draw | None = None
    scale: float = 1.0
    offset: float = 0.0
    special: Special | None = None
    layout: str = ""
    storage: str = ""


def tensor_spec(written: Any, node: Node, report: Problems) -> TensorSpec:
    """A tensor that its model accepts, with the shape of its values or its file."""
    draws = (getattr(written, key) for key in (*DISTRIBUTIONS, "values"))
    draw = next((draw for draw in draws if draw is not None), None)
    source = node.get("values") or node.get("file")
    if written.file is not None:
        draw = _file(node.mapping["file"], report)
    own, shape = getattr(draw, "shape", None), written.shape
    problem = None if own is None else size_problem(own)
    if source is not None and problem is not None:
        report.add(source, problem)
    elif source is not None and own is not None and shape not in (None, own):
        message = f"wrong shape: `{source.key.rpartition('.')[2]}` has {list(own)}"
        report.add(node.mapping["shape"], message)
    keys = ("scale", "offset", "special", "layout", "storage")
    return TensorSpec(own if shape is None else shape, draw, *(getattr(written, key) for key in keys))


def _file(node: Node, report: Problems) -> File | None:
    path = existing_file(node, report, "file")
    if path is None:
        return None
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False) if _has_npy_header(path) else None
    except Exception:
        # numpy's header parser raises ValueError, EOFError, SyntaxError, OSError and more.
        array = None
    if not isinstance(array, np.ndarray):
        report.add(node, "this is not a .npy file of numbers")
    elif array.dtype.kind not in "fiub":
        report.add(node, f"its numbers have the type {array.dtype.name}; they must be real numbers")
    else:
        return File(path.absolute())
    return None


def _has_npy_header(path: Path) -> bool:
    """Whether a file begins like a `.npy` file with a header of a sane size (NumPy checks only after reading it)."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file:
        start = file.read(12)
    length = start[8:10] if start[6:7] == b"\x01" else start[8:12]
    return start.startswith(b"\x93NUMPY") and int.from_bytes(length, "little") <= MAX_HEADER_BYTES
