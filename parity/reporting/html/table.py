"""The report's table of cells: its rows, and what it can be filtered by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.config.nodes import printable
from parity.reporting.results.cells import LABELS, CellResult, Status
from parity.reporting.text.words import factor, few

MAX_TENSORS = 4
MAX_MESSAGE = 90
ZEROS = "zeros would have passed too"
NOT_FINITE = "nothing finite exceeds the tolerance"


@dataclass(frozen=True)
class TableRow:
    """A row; `link` is the anchor of a finding, or else of the training; `anchor` that of the row itself where it has
    no finding."""

    status: str
    label: str
    verdict: str
    case: str
    op: str
    dtype: str
    backend: str
    tensors: str
    excess: str
    ratio: str
    causes: str
    link: str
    anchor: str


def table_row(cell: CellResult, training: str = "") -> TableRow:
    """The row of a cell; `training` is the anchor of its training."""
    return TableRow(
        status=cell.status.value,
        label=LABELS[cell.status],
        verdict=cell.verdict if cell.compared else cell.outcome,
        case=cell.id,
        op=cell.op,
        dtype=cell.dtype,
        backend=cell.backend,
        tensors=shortened(cell.tensors),
        excess=factor(cell.excess) if cell.compared else "",
        ratio="" if cell.ratio is None else factor(cell.ratio),
        causes=because(cell),
        link=cell.anchor if cell.finding else training,
        anchor="" if cell.finding else cell.anchor,
    )


def because(cell: CellResult) -> str:
    """The causes; where there are none, why it is suspect, or why it was not compared."""
    if cell.status is Status.SUSPECT and not cell.hidden:
        return vacuous(cell)
    if cell.finding or cell.compared:
        return ", ".join(cell.causes)
    said = (cell.message, *(f"accepted: {reason}" for reason in cell.reasons))
    return "; ".join(brief(text) for text in said if text)


def vacuous(cell: CellResult) -> str:
    """Why passes are suspect that hide no error; where a value is not finite, zeros would not have passed for it."""
    values = [row.expected_value for row in cell.rows if row.suspect]
    return ZEROS if any(value is not None and math.isfinite(value) for value in values) else NOT_FINITE


def shortened(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return few(names, MAX_TENSORS if len(names) > MAX_TENSORS + 1 else len(names))


def brief(message: str) -> str:
    """The beginning of a message's last line."""
    line = message.strip().rpartition("\n")[2]
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"


@dataclass(frozen=True)
class Filter:
    """A column that the table is filtered by, with its values and how many cells have each."""

    key: str
    options: tuple[tuple[str, int], ...]


def filters(found: Sequence[CellResult]) -> list[Filter]:
    """The choices that there are; a column in which all cells are alike is left out."""
    columns: dict[str, Iterable[str]] = {
        "op": (cell.op for cell in found),
        "backend": (cell.backend for cell in found),
        "dtype": (cell.dtype for cell in found),
        "verdict": (table_row(cell).verdict for cell in found),
        "cause": (cause for cell in found if cell.finding for cause in cell.causes),
    }
    counted = {key: Counter(map(printable, values)) for key, values in columns.items()}
    telling = {key: numbers for key, numbers in counted.items() if numbers and set(numbers.values()) != {len(found)}}
    return [Filter(key, tuple(sorted(numbers.items()))) for key, numbers in telling.items()]


def statuses(numbers: dict[str, int]) -> list[tuple[str, str, int]]:
    """Each status with its words and its number of cells."""
    return [(status, LABELS[Status(status)], n) for status, n in numbers.items()]
