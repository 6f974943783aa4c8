"""Rows to tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.faults.measure import RULES
from benchmarks.faults.predict import Right
from benchmarks.faults.published import Published
from benchmarks.faults.score import CRASHED, UNDECIDED, UNEXPLAINED, Row

FAULT_COLUMNS: Mapping[str, Callable[[Row], bool]] = {
    "detected": lambda r: r.detected,
    "diagnosed": lambda r: r.status == "diagnosed",
    "not-identifiable": lambda r: r.status == UNDECIDED,
    "unexplained": lambda r: r.status == UNEXPLAINED,
    "crashed": lambda r: r.status == CRASHED,
    "right": lambda r: r.right is Right.EXACT,
    "right size": lambda r: r.right is Right.SIZE,
    "wrong": lambda r: r.right is Right.NO and r.status == "diagnosed",
    "assert_close": lambda r: not r.passes["assert_close"],
    "dynamo": lambda r: not r.passes["dynamo"],
    "2x": lambda r: not r.passes["2x"],
}
HEALTHY_COLUMNS: Mapping[str, Callable[[Row], bool]] = {
    "alarms": lambda r: r.detected,
    **{name: (lambda r, name=name: not r.passes[name]) for name in RULES},  # type: ignore[misc]
}


def tables(faults: Sequence[Row], healthy: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """Everything that was counted, per op and in total, then by dtype and by kind of edit, with the facts of the run."""
    counted = [r for r in faults if r.counts]
    lines = ["  ".join(f"{k}: {v}" for k, v in facts.items()), ""]
    if counted:
        lines.append(
            f"{len(counted)} cells of {len({r.case for r in counted})} faults that can be detected there; in percent of them"
        )
        lines += grouped(counted, FAULT_COLUMNS, lambda r: [r.op], percent=True)
        lines += ["", *grouped(counted, FAULT_COLUMNS, lambda r: [r.dtype], percent=True)]
        lines += ["", *grouped(counted, FAULT_COLUMNS, lambda r: [" + ".join(r.kinds) if len(r.kinds) < 2 else "pairs"], percent=True)]  # fmt: skip
        slow = sorted(r.seconds for r in counted)
        lines += ["", f"seconds per fault (both dtypes): median {slow[len(slow) // 2]:.2f}, largest {slow[-1]:.1f}"]
    if healthy:
        lines += ["", f"{len(healthy)} cells of healthy forms; alarms, and what other rules reject"]
        lines += grouped(healthy, HEALTHY_COLUMNS, lambda r: [r.op], percent=False)
    return "\n".join(lines)


def published_table(rows: Sequence[Row], cases: Sequence[Published], facts: Mapping[str, Any]) -> str:
    """A line for each published case and dtype, and how many come out as was concluded."""
    wrong = {case.name: case.wrong for case in cases}
    lines = ["  ".join(f"{k}: {v}" for k, v in facts.items()), ""]
    lines.append(f"{'':34}{'dtype':9}{'effect':>9}  {'status':17}{'right':7}{'rejected by':27}said")
    for row in rows:
        rejected = ", ".join(name for name, passes in row.passes.items() if not passes) or "-"
        said = ", ".join(d["id"] for d in row.diagnoses) or "-"
        right = row.right or "-"
        lines.append(f"{row.form:34}{row.dtype:9}{row.effect:9.2g}  {row.status:17}{right:7}{rejected:27}{said}")
    fit = [r.detected if wrong[r.form] and r.counts else not r.detected for r in rows if r.counts or not wrong[r.form]]
    named = [r.status == "diagnosed" for r in rows if wrong[r.form] and r.counts]
    lines += ["", f"{len(wrong)} cases, {len(fit)} cells: {sum(fit)} are blamed, or not, as was concluded; of {len(named)} that are, {sum(named)} are diagnosed"]  # fmt: skip
    return "\n".join(lines)


def grouped(
    rows: Sequence[Row],
    columns: Mapping[str, Callable[[Row], bool]],
    keys: Callable[[Row], list[str]],
    *,
    percent: bool,
) -> list[str]:
    """A line for each group and one for all."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for key in keys(row):
            groups.setdefault(key, []).append(row)
    head = f"{'':30}{'cells':>7}" + "".join(f"{name:>{width(name)}}" for name in columns)
    table = {**groups, "all": list(rows)}
    return [head, *(table_line(name, mine, columns, percent) for name, mine in table.items())]


def table_line(name: str, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], bool]], percent: bool) -> str:
    cells = []
    for column, test in columns.items():
        n = sum(map(test, rows))
        unasked = column in ("right", "right size", "wrong") and all(r.right is None for r in rows)
        text = "-" if unasked else f"{100 * n / len(rows):.1f}" if percent else str(n)
        cells.append(f"{text:>{width(column)}}")
    return f"{name:30}{len(rows):7}" + "".join(cells)


def width(name: str) -> int:
    return max(9, len(name) + 2)


def json_lines(rows: Iterable[Row]) -> str:
    """A line of JSON for each row."""
    return "".join(json.dumps(plain(asdict(row))) + "\n" for row in rows)


def plain(value: Any) -> Any:
    """A value as JSON has it; infinity and NaN as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
