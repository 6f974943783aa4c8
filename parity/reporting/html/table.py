"""The report's table of cells: its rows, and the filters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from parity.config.nodes import printable
from parity.reporting.kinds import Anchors
from parity.reporting.results.cells import LABELS, CellResult, Status
from parity.reporting.text.words import factor, few, grouped

MAX_TENSORS = 4
MAX_MESSAGE = 90
ZEROS = "would also match zeros"
NOT_FINITE = "nothing finite exceeds the tolerance"


def table_rows(cells: Iterable[CellResult], links: Anchors) -> list[dict[str, Any]]:
    """The rows of the table: one for each cell; cells that have no result for the same reason share one."""
    groups = grouped((cell.anchor if cell.compared else reason_of(cell), cell) for cell in cells)
    return [
        table_row(group[0], links.get((group[0].id, group[0].dtype), "")) if len(group) == 1 else shared_row(group)
        for group in groups.values()
    ]


def reason_of(cell: CellResult) -> tuple[str, ...]:
    """The properties that cells of a shared row have in common."""
    return cell.status, cell.backend, cell.outcome, cell.message, *cell.reasons


def shared_row(group: Sequence[CellResult]) -> dict[str, Any]:
    """The row of cells that have no result for the same reason; `cells` are their names with their anchors."""
    names = dict.fromkeys(cell.id for cell in group)
    several = {
        "case": few(names, 1) if len(names) == 1 else f"{len(names)} cases: {few(names, 1)}",
        "op": ", ".join(dict.fromkeys(cell.op for cell in group)),
        "dtype": ", ".join(sorted({cell.dtype for cell in group})),
        "cells": [(cell.anchor, f"{cell.id} {cell.dtype}") for cell in group],
        "link": "",
        "anchor": "",
    }
    return table_row(group[0]) | several


def table_row(cell: CellResult, training: str = "") -> dict[str, Any]:
    """The row of a cell.

    `link` is the anchor of its finding, else `training`, that of its training; `anchor` names a row without a finding.
    """
    return {
        "status": cell.status.value,
        "label": LABELS[cell.status],
        "verdict": cell.verdict if cell.compared else cell.outcome,
        "case": cell.id,
        "op": cell.op,
        "dtype": cell.dtype,
        "backend": cell.backend,
        "tensors": few(cell.tensors, MAX_TENSORS if len(cell.tensors) > MAX_TENSORS + 1 else len(cell.tensors)),
        "excess": factor(cell.excess) if cell.compared else "",
        "ratio": "" if cell.ratio is None else factor(cell.ratio),
        "causes": because(cell),
        "link": cell.anchor if cell.finding else training,
        "anchor": "" if cell.finding else cell.anchor,
        "cells": (),
    }


def because(cell: CellResult) -> str:
    """The causes; where there are none, why it is suspect, or why it was not compared."""
    if cell.status is Status.SUSPECT and not cell.hidden:
        return vacuous(cell)
    if cell.finding or cell.compared:
        return ", ".join(cell.causes)
    remarks = (cell.message, *(f"accepted: {reason}" for reason in cell.reasons))
    return "; ".join(brief(text) for text in remarks if text)


def vacuous(cell: CellResult) -> str:
    """Why passes that hide no error are suspect; zeros would not have passed for a value that is not finite."""
    values = [row.expected_value for row in cell.rows if row.suspect]
    return ZEROS if any(value is not None and math.isfinite(value) for value in values) else NOT_FINITE


def brief(message: str) -> str:
    """The beginning of a message's last line."""
    line = message.strip().rpartition("\n")[2]
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"


def filters(cells: Sequence[CellResult]) -> list[tuple[str, list[str]]]:
    """The columns that the table is filtered by, each with its values.

    A column in which all cells are alike is left out.
    """
    columns: dict[str, Iterable[str]] = {
        "op": (cell.op for cell in cells),
        "backend": (cell.backend for cell in cells),
        "dtype": (cell.dtype for cell in cells),
        "verdict": (cell.verdict if cell.compared else cell.outcome for cell in cells),
        "cause": (cause for cell in cells if cell.finding for cause in cell.causes),
    }
    counted = {key: Counter(map(printable, values)) for key, values in columns.items()}
    return [(key, sorted(n)) for key, n in counted.items() if n and set(n.values()) != {len(cells)}]
