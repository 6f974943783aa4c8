"""`parity inspect`: one stored tensor in the terminal: statistics, errors, their locations, a slice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.text import Text

from parity.config.nodes import printable
from parity.config.plan import ORACLE
from parity.errors import UserError
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.reporting.blocks import Grid, GridColumn
from parity.reporting.blocks.console import grid_parts
from parity.reporting.console.explain import case_called, choices, hint
from parity.reporting.plots.tensors import (
    N_LEVELS,
    Errors,
    LogBins,
    PictureError,
    axis_for,
    errors,
    histogram,
    mismatch_map,
    thinned,
)
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import CaseRow, Results
from parity.reporting.results.stored_tensors import backend_folders, kept_path, load
from parity.reporting.text.reasons import worst_first
from parity.reporting.text.words import columns_used, digits_of, factor, few, number

MAX_PLACES = 5
N_TEXTS = 3
"""Columns of the summary before those of numbers."""
MAX_INDICES = 6
MAX_SHOWN = 200
"""The number of printed elements of a slice; numpy abbreviates a larger one."""
BARS = "▁▂▃▄▅▆▇█"
SHADES = " ·░▒▓██!"
"""By the level of a block: 0 is exact, the last is finite in only one of the two."""
INPUT = "inputs."
PIECE = re.compile(r"(?P<index>[+-]?\d{1,18})|(?P<slice>([+-]?\d{1,18})?:([+-]?\d{1,18})?(:([+-]?\d{1,18})?)?)")

Array = NDArray[Any]
Index = tuple[int | slice | EllipsisType, ...]


class InspectError(UserError):
    """The tensor does not exist or was not stored, or the slice does not fit; the message says what to do."""


@dataclass(frozen=True)
class StoredTensor:
    """A stored tensor: `values` of every backend and, under `oracle`, the exact ones; of an input only its own.

    `unit` is the envelope, the largest error of a careful implementation; None where it was not kept.
    """

    case: CaseRow
    dtype: str
    name: str
    values: Mapping[str, Array]
    rows: Sequence[Comparison] = ()
    unit: float | None = None

    @property
    def exact(self) -> Array | None:
        """The exact values."""
        return self.values.get(ORACLE)


def inspect(
    run_dir: Path,
    case: str,
    tensor: str,
    console: Console,
    *,
    dtype: str | None = None,
    backends: Sequence[str] = (),
    slice_text: str | None = None,
) -> None:
    """Print a tensor of a stored run; raises InspectError, ExplainError, KeptError and ResultsError."""
    index = None if slice_text is None else parsed(slice_text)
    results = read_results(run_dir)
    stored_tensor = stored(results, case_called(case, results), tensor, run_dir, dtype, backends)
    # A slice that does not fit is reported before anything is printed.
    parts = list(
        error_parts(stored_tensor) if index is None else sliced(stored_tensor, index, slice_text or "", console.width)
    )
    for part in (heading(stored_tensor), *grid_parts(summary(stored_tensor), console.width), *parts):
        console.print(part, soft_wrap=index is not None and isinstance(part, Text))


def stored(
    results: Results, case: CaseRow, tensor: str, run_dir: Path, dtype: str | None, backends: Sequence[str]
) -> StoredTensor:
    """The tensor of that name: an output, else an input; `inputs.x` is an input only."""
    check("backend", backends, results.backend_names, case)
    check("dtype", [] if dtype is None else [dtype], case.dtypes, case)
    rows = [row for row in results.comparisons if (row.case, row.tensor) == (case.id, tensor)]
    name = tensor.removeprefix(INPUT)
    if not rows and name in case.inputs:
        return StoredTensor(case, "", f"{INPUT}{name}", {"input": input_values(case, name, run_dir)})
    if not rows:
        there = dict.fromkeys(row.tensor for row in results.comparisons if row.case == case.id)
        names = [*there, *(f"{INPUT}{name}" for name in case.inputs)]
        raise InspectError(
            f'{printable(case.id)} has no tensor "{printable(tensor)}"{hint(tensor, names)}{choices(names)}'
        )
    return output(results, case, sorted(rows, key=worst_first), run_dir, dtype, backends)


def check(what: str, asked: Sequence[str], there: Sequence[str], case: CaseRow) -> None:
    """Raises InspectError if a requested name does not exist."""
    for name in asked:
        if name not in there:
            raise InspectError(
                f'{printable(case.id)} has no {what} "{printable(name)}"{hint(name, there)}{choices(there)}'
            )


def input_values(case: CaseRow, name: str, run_dir: Path) -> Array:
    """A stored input."""
    file = case.inputs[name].file
    if file is None:
        raise InspectError(f"the input {printable(name)} of {printable(case.id)} was not stored")
    return load(run_dir, file)


def output(
    results: Results,
    case: CaseRow,
    rows: Sequence[Comparison],
    run_dir: Path,
    dtype: str | None,
    backends: Sequence[str],
) -> StoredTensor:
    """A compared tensor, in the requested dtype, else in the stored dtype with the worst verdict."""
    tensor = rows[0].tensor
    if not case.files:
        raise InspectError(
            f"{printable(case.id)} is a training: it has curves, not stored tensors; `parity explain` shows them"
        )
    for candidate in dict.fromkeys(row.dtype for row in rows if dtype in (None, row.dtype)):
        own = [row for row in rows if row.dtype == candidate]
        own = [row for row in own if {row.actual, row.expected} & {*backends}] or own
        values = dict(kept(results, case, candidate, own[0], run_dir, backends))
        if values.keys() - {ORACLE}:
            if reason := own[0].not_stored:
                raise InspectError(f"{printable(tensor)} of {printable(case.id)}: {reason}")
            units = [row.envelope.max for row in own if row.envelope is not None and row.envelope.max > 0]
            return StoredTensor(case, candidate, tensor, values, own, max(units, default=None))
    raise InspectError(
        f"{printable(tensor)} of {printable(case.id)} was not stored: only tensors that differ, or hide an error, are\n"
        "to store it, run the case again with --rtol 0 --atol 0"
    )


def kept(
    results: Results, case: CaseRow, dtype: str, row: Comparison, run_dir: Path, backends: Sequence[str]
) -> Iterator[tuple[str, Array]]:
    """The stored values of a comparison's tensor, in its call, exact ones first; an unreadable file is an error, a
    missing one is not."""
    folders = backend_folders(results.backend_names)
    for backend in (ORACLE, *(backends or results.backend_names)):
        path = kept_path(case, dtype, backend, row.tensor, folders, row.call)
        if (run_dir / path).exists():
            yield backend, load(run_dir, path)


def heading(tensor: StoredTensor) -> Text:
    """The heading: the tensor, and the unit of its errors."""
    words = " ".join(
        filter(None, (tensor.case.id, tensor.dtype, tensor.name, shape_text(next(iter(tensor.values.values())))))
    )
    text = Text.assemble((printable(words), "bold"))
    if tensor.rows:
        worst = tensor.rows[0]
        text.append(f"\n{worst.verdict}; rtol {number(worst.rtol)} atol {number(worst.atol)}")
        text.append("" if tensor.unit is None else f"; envelope {number(tensor.unit)}")
        text.append("" if worst.call is None else printable(f"; {worst.message}"))
    return text.append("\n")


def shape_text(values: Array) -> str:
    """`4×6`, or `scalar`."""
    return "×".join(map(str, values.shape)) or "scalar"


def summary(tensor: StoredTensor) -> Grid:
    """A line for each backend: range and largest error; shape, dtype and NaN if they are unexpected."""
    heads = ("", "shape", "dtype", "min", "max", "mean", "std", "NaN/Inf", "largest error", "÷ envelope")
    rows = [[name, *described(tensor, name), *error_texts(tensor, name)] for name in tensor.values]
    used = columns_used(rows)
    columns = [GridColumn(heads[i], number=i >= N_TEXTS) for i in used]
    return Grid(columns, [[row[i] for i in used] for row in rows])


def described(tensor: StoredTensor, name: str) -> list[str]:
    """Shape and dtype if they differ from the heading's, statistics of finite values, count of the others."""
    values, first = tensor.values[name], next(iter(tensor.values.values()))
    shape = "" if values.shape == first.shape else shape_text(values)
    dtype = "" if name == ORACLE or values.dtype == tensor.dtype else str(values.dtype)
    if values.dtype.kind not in "biuf":
        return [shape, dtype, *["?"] * 4, ""]
    finite = np.asarray(values)[np.isfinite(values)]
    if not finite.size:
        return [shape, dtype, *["-"] * 4, str(values.size)]
    with np.errstate(over="ignore"):
        measures = (finite.min(), finite.max(), finite.mean(dtype=np.float64), finite.std(dtype=np.float64))
    return [shape, dtype, *(number(float(value), 3) for value in measures), str(values.size - finite.size or "")]


def error_texts(tensor: StoredTensor, name: str) -> list[str]:
    """The largest error of a backend, and its ratio to the envelope; empty for exact values and inputs."""
    error = error_of(tensor, name) if tensor.exact is not None and name != ORACLE else ""
    if isinstance(error, str):
        return ["-" if error else "", ""]
    largest = float(error.values.max())
    return [number(largest), factor(largest / tensor.unit) if tensor.unit else ""]


def error_of(tensor: StoredTensor, backend: str) -> Errors | str:
    """|backend - exact|, or why it cannot be computed."""
    try:
        return errors(tensor.values[backend], tensor.values[ORACLE])
    except PictureError as error:
        return str(error)


def error_parts(tensor: StoredTensor) -> Iterator[RenderableType]:
    """The histogram of the errors, and the locations of the worst backend's errors."""
    if tensor.exact is None:
        return
    every = {name: error_of(tensor, name) for name in tensor.values if name != ORACLE}
    for name, error in every.items():
        if isinstance(error, str):
            yield Text(printable(f"{name} cannot be compared: {error}"))
    many = {name: error for name, error in every.items() if isinstance(error, Errors)}
    if not many:
        return
    yield from histogram_lines(many, tensor.unit or 1.0, measured=tensor.unit is not None)
    name = max(many, key=lambda name: float(many[name].values.max()))
    if float(many[name].values.max()) > 0:
        yield Text.assemble("\n", (f"where {printable(name)} differs most", "bold"))
        yield from worst_elements(tensor, name, many[name])
        yield from axes(many[name])
        yield from picture(many[name], tensor.unit or 1.0)


def histogram_lines(many: Mapping[str, Errors], unit: float, *, measured: bool) -> Iterator[Text]:
    """A histogram per backend over a common axis; heights are square roots, so that one element is visible."""
    axis = axis_for(list(many.values()), unit)
    width = max(len(printable(name)) for name in many) + 2
    said = f" ÷ envelope (a careful implementation's error); {ERROR_BOUND:g} or more is a finding" if measured else ""
    yield Text.assemble("\n", ("errors", "bold"), said)
    for name, one in many.items():
        counted = histogram(one, unit, axis)
        most = max(counted.counts, default=0) or 1
        text = Text(f"{printable(name):<{width}}")
        for i, n in enumerate(counted.counts):
            exceeds = measured and upper_end(axis, i) > ERROR_BOUND
            text.append(BARS[round((len(BARS) - 1) * math.sqrt(n / most))] if n else " ", "red" if exceeds else "")
        sizes = ((counted.n_exact, "exact"), (counted.n_infinite, "NaN or Inf in only one"))
        yield text.append("  " + ", ".join(f"{n} {what}" for n, what in sizes if n), "dim")
    yield Text(" " * width + ticks(axis), style="dim")


def upper_end(axis: LogBins, bar: int) -> float:
    """The largest error in a bar, in units."""
    return float(10 ** (axis.low + (bar + 1) * (axis.high - axis.low) / axis.n))


def ticks(axis: LogBins) -> str:
    """The labels below a histogram: decades at even distances, including 1."""
    wide = axis.n // (axis.high - axis.low)
    labels = {decade: f"{10.0**decade:g}" for decade in range(axis.low, axis.high + 1)}
    step = -(-(max(map(len, labels.values())) + 1) // wide)
    line = ""
    for decade in range(-(-axis.low // step) * step, axis.high + 1, step):
        line = f"{line:<{(decade - axis.low) * wide}}{labels[decade]}"
    return line


def worst_elements(tensor: StoredTensor, name: str, one: Errors) -> Iterator[Text]:
    """The worst elements."""
    steps = [piece.step or 1 for piece in thinned(one.shape)]
    order = np.argsort(one.values, axis=None)[::-1][:MAX_PLACES]
    digits = digits_of(tensor.dtype)
    for flat in order.tolist():
        size = float(one.values.flat[flat])
        if size > 0:
            position = np.unravel_index(flat, one.values.shape)
            index = tuple(int(i) * step for i, step in zip(position, steps, strict=True))
            own, exact = (number(float(tensor.values[backend][index]), digits) for backend in (name, ORACLE))
            yield Text(f"  {list(index)}: {own}, exact {exact}, error {number(size)}")
    if one.sampled:
        yield Text(f"  of {one.values.size:,} of its {one.n_elements:,} elements, evenly spaced", style="dim")


def axes(one: Errors) -> Iterator[Text]:
    """For each axis, the indices with large errors, within a factor of 10 of the largest."""
    steps = [piece.step or 1 for piece in thinned(one.shape)]
    for axis, size in enumerate(one.shape):
        largest = one.values.max(axis=tuple(i for i in range(one.values.ndim) if i != axis))
        high = np.flatnonzero(largest >= largest.max() / 10)
        if len(one.shape) > 1 and high.size < largest.size:
            yield Text(f"  axis {axis} ({size}): at {few([str(i * steps[axis]) for i in high], MAX_INDICES)}")


def picture(one: Errors, unit: float) -> Iterator[Text]:
    """The map of the tensor in blocks; a darker block has a larger maximum error."""
    drawn = mismatch_map(one)
    if drawn.levels.size < 2:
        return
    ends = f"{SHADES[1]} {factor(drawn.low / unit)} to {SHADES[N_LEVELS]} {factor(drawn.high / unit)}"
    layout = f"{drawn.rows or 'one row'} down, {drawn.columns or 'one column'} across"
    yield Text(f"  {layout}: {ends}", style="dim")
    yield from (Text("  |" + "".join(SHADES[level] for level in line) + "|") for line in drawn.levels.tolist())


def parsed(text: str) -> Index:
    """An index as numpy writes it, `0,:5`; integers, slices and one `...` only. Raises InspectError."""
    index: list[int | slice | EllipsisType] = []
    for piece in (part.strip() for part in text.split(",")):
        match = PIECE.fullmatch(piece)
        if piece == "...":
            index.append(...)
        elif match is None:
            raise InspectError(
                f'"{printable(text)}" is not a slice such as 0,:5 or ...,::2 (integers, slices and one ...)'
            )
        elif match["index"]:
            index.append(int(match["index"]))
        else:
            ends = [int(end) if end else None for end in piece.split(":")]
            index.append(slice(*ends))
    if index.count(...) > 1:
        raise InspectError(f'"{printable(text)}" has more than one ...')
    if any(isinstance(piece, slice) and piece.step == 0 for piece in index):
        raise InspectError(f'"{printable(text)}" has a step of 0')
    return tuple(index)


def sliced(tensor: StoredTensor, index: Index, text: str, width: int) -> Iterator[Text]:
    """A slice of the values of each backend."""
    digits = digits_of(tensor.dtype)
    for name, values in tensor.values.items():
        try:
            part = np.asarray(values[index])
        except IndexError as error:
            where = f"{printable(tensor.name)}, {shape_text(values)}"
            raise InspectError(f"[{printable(text)}] is outside {where}: {error}") from error
        yield Text.assemble("\n", (printable(f"{name}[{text}]"), "bold"))
        yield Text(np.array2string(part, precision=digits, threshold=MAX_SHOWN, max_line_width=width - 2))
