"""The frameworks' own kernels: every alarm counts, then those that are established findings are told from the rest."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.judge.cases import cases_of
from benchmarks.judge.report import percent, upper_bound
from benchmarks.judge.runs import DTYPES, ZERO, parity
from benchmarks.judge.score import by_cell, causes_of
from parity.cases import OPS
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import Results

BACKENDS = ("torch", "paddle", "oneflow", "numpy")
TABLE = "benchmarks/README.md, table of what reaches 8"
CASES = "measured on the near-constant pair, and in that table"


@dataclass(frozen=True)
class Established:
    """A finding about a released kernel that was measured before: these ids are right for it."""

    backend: str
    op: str
    dtypes: tuple[str, ...]
    ids: tuple[str, ...]
    source: str


BOTH, ONLY64 = ("float32", "float64"), ("float64",)

ESTABLISHED: Sequence[Established] = (
    Established("oneflow", "batch_norm", BOTH, ("variance-naive",), f"{TABLE}: E[x²] − E[x]², NaN"),
    Established("oneflow", "batch_norm", ONLY64, ("attribute-precision",), f"{TABLE}: momentum and eps in float32"),
    Established("paddle", "batch_norm", BOTH, ("running-var-ddof",), f"{TABLE}: the biased running_var"),
    Established("paddle", "batch_norm", ONLY64, ("attribute-precision",), f"{TABLE}: momentum and eps in float32"),
    Established("paddle", "group_norm", BOTH, ("variance-naive",), f"{TABLE}: E[x²] − E[x]²"),
    Established("paddle", "layer_norm", ONLY64, ("attribute-precision",), f"{CASES}: eps in float32"),
    Established("paddle", "instance_norm", ONLY64, ("attribute-precision",), f"{TABLE}: eps in float32"),
    Established("paddle", "clip_grad_norm", BOTH, ("clip-denominator-eps",), f"{TABLE}: no 1e-6 in the denominator"),
)


@dataclass(frozen=True)
class Alarm:
    """A released kernel that the judge calls a culprit in a cell. `established` where all that it names is known."""

    backend: str
    op: str
    case: str
    dtype: str
    said: tuple[str, ...]
    ratios: Mapping[str, Any]
    established: bool


def clean_report(n_cases: int, seed: int, path: Path | None) -> str:
    """Run every op's cases on all backends; the numbers as text, and as JSON where a path is given."""
    cells: Counter[tuple[str, str]] = Counter()
    alarms: list[Alarm] = []
    with tempfile.TemporaryDirectory() as name:
        for op in OPS:
            results = run_op(op, n_cases, seed, Path(name))
            cells.update((row.backend, op) for row in results.outcomes if row.outcome == "ok")
            alarms += alarms_of(results)
    if path:
        document = {"cells": {"/".join(k): n for k, n in cells.items()}, "alarms": [vars(a) for a in alarms]}
        path.write_text(json.dumps(document, indent=1))
    return render(cells, alarms)


def run_op(op: str, n_cases: int, seed: int, folder: Path) -> Results:
    """The results of one op."""
    path, out = folder / f"{op}.yaml", folder / op
    config = {
        "version": 1,
        "backends": list(BACKENDS),
        "dtypes": DTYPES,
        "seed": seed,
        "cases": cases_of(op, n_cases, seed),
    }
    path.write_text(yaml.safe_dump(config))
    parity(path, out, ZERO)
    return read_results(out)


def alarms_of(results: Results) -> list[Alarm]:
    """Every backend that is called a culprit in a cell."""
    ops = {case.id: case.op for case in results.cases}
    diagnoses, comparisons = by_cell(results.diagnoses), by_cell(results.comparisons)
    found = []
    for (case, dtype), rows in comparisons.items():
        for backend in sorted({name for row in rows for name in row.culprit}):
            said = tuple(d.id for d in causes_of(diagnoses[case, dtype], backend))
            ratios = {r.tensor: r.error_ratio.actual for r in rows if (r.actual, r.expected) == (backend, "oracle") and backend in r.culprit}  # fmt: skip
            found.append(
                Alarm(backend, ops[case], case, dtype, said, ratios, is_established(backend, ops[case], dtype, said))
            )
    return found


def is_established(backend: str, op: str, dtype: str, said: Sequence[str]) -> bool:
    """Whether a diagnosis was given, and every one is in the table for this backend, op and dtype."""
    rows = [e for e in ESTABLISHED if (e.backend, e.op) == (backend, op) and dtype in e.dtypes]
    right = {name for row in rows for name in row.ids}
    return bool(said) and set(said) <= right


def render(cells: Mapping[tuple[str, str], int], alarms: Sequence[Alarm]) -> str:
    """Per backend and op: cells, alarms, and those that are not established; then the latter one by one."""
    lines = [f"{'backend':10}{'op':18}{'cells':>8}{'alarms':>8}{'established':>13}{'others':>8}  diagnoses"]
    for (backend, op), n in sorted(cells.items()):
        mine = [a for a in alarms if (a.backend, a.op) == (backend, op)]
        known = sum(a.established for a in mine)
        said = Counter(" + ".join(a.said) or "none" for a in mine)
        names = ", ".join(f"{name} {count}" for name, count in said.most_common(6))
        lines.append(f"{backend:10}{op:18}{n:8}{len(mine):8}{known:13}{len(mine) - known:8}  {names}")
    others = [a for a in alarms if not a.established]
    total = sum(cells.values()) - (len(alarms) - len(others))
    lines += [
        "",
        f"{len(others)} alarms that are not established, of {total} other cells: {percent(len(others) / total if total else None, 3)}, "
        f"at most {percent(upper_bound(len(others), total), 3)} (95 %)",
    ]
    lines += [alarm_line(a) for a in others]
    return "\n".join(lines)


def alarm_line(alarm: Alarm) -> str:
    ratios = ", ".join(f"{name} {value:.3g}" if value is not None else name for name, value in alarm.ratios.items())
    said = ", ".join(alarm.said) or "nothing"
    return f"  {alarm.backend} {alarm.case} {alarm.dtype}: said {said}; error ratios {ratios}"
