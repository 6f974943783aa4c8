"""Stored runs for the tests of what reads them, built as results.json has them and without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.reporting.results import FILE_NAME, Results, Row, write_atomically

CASE = "group-norm-offset=10000"


def case_row(case: str = CASE, **changed: Any) -> Row:
    folder = "tensors/0000-x"
    inputs = {
        "x": {"shape": [2, 8, 6, 6], "draw": "uniform(low=0.0, high=1.0) + 10000", "file": f"{folder}/x.npy"},
        "weight": {"shape": [8], "draw": "uniform(low=0.5, high=1.5)", "file": f"{folder}/weight.npy"},
    }
    row = {"id": case, "op": "group_norm", "params": {"num_groups": 4, "eps": 1e-5}, "dtypes": ["float32", "float64"]}
    return {**row, "inputs": inputs, "source": {"file": "configs/groupnorm.yaml", "line": 14}, **changed}


def comparison(verdict: str = "close", culprit: Sequence[str] = (), **changed: Any) -> Row:
    """A comparison of paddle with torch in float32."""
    return {
        "case": CASE, "dtype": "float32", "tensor": "y", "actual": "paddle", "expected": "torch", "verdict": verdict,
        "culprit": list(culprit), "suspect": False, "known": None, "n_elements": 576, "n_mismatched": 0,
        "max_abs_diff": 1e-6, "max_rel_diff": 1e-6, "max_ulp_diff": 3, "rmse": 1e-7, "rtol": 1.3e-6, "atol": 1e-5,
        "required_rtol": 0.0, "worst_index": [0, 1, 2, 3], "actual_value": 0.530002, "expected_value": 0.530001,
        "oracle_value": 0.53, "error_ratio": {"actual": None, "expected": None}, "message": "",
    } | changed  # fmt: skip


def diagnosis(name: str = "variance-naive", **changed: Any) -> Row:
    """A cause in paddle's float32."""
    return {
        "case": CASE, "dtype": "float32", "backend": "paddle", "id": name, "title": "the variance is E[x^2] - E[x]^2",
        "tensors": ["y", "grad.x"], "explained": True, "residual_before": 81234.0, "residual_after": 0.91, "evidence": {},
    } | changed  # fmt: skip


def unstable(**changed: Any) -> Row:
    values = {"max_abs_diff": 162.4, "required_rtol": 306.0, "actual_value": 162.93, "n_mismatched": 570}
    ratio = {"actual": 81234.0, "expected": 0.31}
    return comparison("unstable", **{**values, "culprit": ["paddle"], "error_ratio": ratio, **changed})


def finding() -> list[Row]:
    """paddle's y is unstable in float32 and right in float64; torch is healthy."""
    oracle = {"expected": "oracle", "expected_value": 0.53, "error_ratio": {"actual": 81234.0, "expected": None}}
    return [
        unstable(),
        unstable(**oracle),
        comparison(
            "rounding",
            actual="torch",
            **{**oracle, "error_ratio": {"actual": 0.31, "expected": None}},
            required_rtol=2.04e-5,
        ),
        comparison(tensor="grad.x"),
        comparison(dtype="float64", expected="oracle", max_abs_diff=3e-7),
        comparison(dtype="float64"),
    ]


def stored(
    run_dir: Path, comparisons: list[Row], diagnoses: list[Row] = (), cases: list[Row] = (), outcomes: list[Row] = ()
) -> Path:
    """A run directory with these rows."""
    backends = [
        {
            "name": name,
            "framework": name,
            "version": "1.2.3",
            "python": "/py",
            "mode": "eager",
            "device": "cpu",
            "numpy": "2.1.0",
            "flags": {},
        }
        for name in ("torch", "paddle")
    ]
    results = Results(
        run={"baseline": "torch", "started": "2027-01-31T10:00:00+00:00"},
        backends=backends,
        cases=list(cases) or [case_row()],
        outcomes=list(outcomes),
        comparisons=comparisons,
        diagnoses=list(diagnoses),
        summary={"outcomes": {}, "verdicts": {}, "exit_code": 1},
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / FILE_NAME, results.as_json())
    return run_dir
