"""What the rows of a case mean: how each kind of case is written, resumed and measured, looked up by the case's op."""

# ruff: noqa: ARG002 - what an op does not need, another kind of case does

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from parity.cases.draw import Draw, TensorPlan, Values
from parity.config.plan import CasePlan
from parity.judge.compare.verdict import Comparison
from parity.reporting.results.rows import InputRow

OP = "parity.reporting.kinds:CaseReport"
REPORTS: Mapping[str, str] = {
    "train": "parity.training.report.case:TrainingReport",
    "model": "parity.models.report:ModelReport",
    "decode": "parity.models.decode.report:DecodeReport",
    "dump": "parity.dumps.report:DumpReport",
}
"""The reports of the cases that are not those of an op, by what their rows have as `op`."""

MAX_LITERAL = 8


class CaseMeasures:
    """The meaning of an op's rows; other kinds of cases override what differs, in a subclass of `CaseReport`."""

    resumes_by_dtype = False
    """Whether an interrupted run can resume with some of a case's dtypes."""

    def recorded(self, case: CasePlan, folder: Path | None) -> tuple[dict[str, Any], dict[str, InputRow]]:
        """The params and the inputs of a case, as results.json has them."""
        return asdict(case.params), {tensor.name: input_row(tensor, folder) for tensor in case.tensors}

    def is_going(self, run_dir: Path, index: int, case: CasePlan, dtype: str) -> bool:
        """Whether the `index`-th case of a run was interrupted in the middle of a dtype."""
        return False

    def excess(self, row: Comparison) -> float:
        """The difference of the worst element in tolerances; inf for what no tolerance accepts."""
        if row.verdict in ("structure", "nonfinite"):
            return math.inf
        if row.worst_index is None or row.actual_value is None or row.expected_value is None:
            return 0.0
        allowed = row.atol + row.rtol * abs(row.expected_value)
        difference = abs(row.actual_value - row.expected_value)
        if math.isnan(difference) or difference == 0.0:
            return 0.0
        return float(difference / allowed) if allowed else math.inf


@cache
def measures_of(op: str) -> CaseMeasures:
    """The meaning of the rows of this op's cases."""
    measures: CaseMeasures = resolve_name(REPORTS.get(op, OP))()
    return measures


def input_row(tensor: TensorPlan, folder: Path | None) -> InputRow:
    """A row for one input."""
    file = None if folder is None else str(folder / f"{tensor.name}.npy")
    return InputRow(list(tensor.shape), describe_draw(tensor), file, tensor.layout, tensor.alias, tensor.storage)


def describe_draw(tensor: TensorPlan) -> str:
    """`normal(mean=0.0, std=1.0) * 10 + 100`, for readers."""
    text = f"{type(tensor.draw).__name__.lower()}({', '.join(arguments(tensor.draw))})"
    text += f" * {tensor.scale:g}" if tensor.scale != 1.0 else ""
    text += f" + {tensor.offset:g}" if tensor.offset != 0.0 else ""
    text += f" with {tensor.special.count} special values" if tensor.special else ""
    text += f", {tensor.layout}" if tensor.layout else ""
    text += f", stored in {tensor.storage}" if tensor.storage else ""
    return text + (f", in the memory of {tensor.alias}" if tensor.alias else "")


def arguments(draw: Draw) -> list[str]:
    """The parameters of a distribution; of literal values, only the first ones."""
    if isinstance(draw, Values):
        numbers = np.ravel(draw.values)
        return [f"{number:.9g}" for number in numbers[:MAX_LITERAL]] + ["..."] * (numbers.size > MAX_LITERAL)
    return [f"{f.name}={getattr(draw, f.name)}" for f in fields(draw)]  # type: ignore[arg-type]
