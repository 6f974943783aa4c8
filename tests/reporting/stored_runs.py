"""Stored runs for the tests of what reads them, built as results.json has them and without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from parity.reporting.results.results import encode_part, results_of, write_atomically
from parity.reporting.results.rows import FILE_NAME, Results

Row = dict[str, Any]
"""A row as JSON has it."""

CASE = "group-norm-offset=10000"
TRAINING = "perceptron"
PARTING = {
    "step": 1, "stage": "update", "tensor": "param.linear0.weight", "ratio": 81234.0, "diagnosis": "dampening-first-step",
    "seen": "probe",
}  # fmt: skip


def plain(part: Any) -> Any:
    """A part of results as JSON has it, but for numbers that are not finite."""
    return msgspec.to_builtins(part)


def changed(results: Results, **parts: Any) -> Results:
    """Results with other parts, which are rows as JSON has them."""
    return results_of({**plain(results), **plain(parts)})


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


def training_case(case: str = TRAINING, **changed: Any) -> Row:
    """A training of a small classifier."""
    params = {
        "model": "linear0 8 → 16, activation1 tanh, linear2 16 → 4", "weights": 212, "loss": "cross_entropy",
        "optimizer": "sgd", "groups": [{"parameters": 4, "lr": 0.05, "momentum": 0.9, "dampening": 0.5}],
        "schedule": {"name": "step", "step_size": 5}, "clip": None, "accumulation": 1, "batch_size": 16, "steps": 12,
        "data": {"name": "classification", "rows": 128, "order": "shuffled"},
    }  # fmt: skip
    inputs = {"x": {"shape": [128, 8], "draw": "classification(classes=4)", "file": None}}
    source = {"file": "configs/train.yaml", "line": 7}
    row = {"id": case, "op": "train", "params": params, "dtypes": ["float32"], "inputs": inputs, "source": source}
    return {**row, **changed}


def training(backend: str = "paddle", n_steps: int = 12, gain: float = 0.0, **changed: Any) -> Row:
    """A backend's row of `trainings`: its loss falls, and from step 1 on it is `gain` of it too high."""
    steps = np.arange(1, n_steps + 1)
    loss = 2.3 * np.exp(-2.5 * steps / n_steps) + 0.02 * np.sin(37.0 * steps)
    drift = 1e-7 * np.exp(5 * steps / n_steps)
    ratio = gain * loss / drift + 0.5 + 0.2 * np.cos(11.0 * steps)
    curves = {
        "loss": (loss * (1 + gain)).tolist(), "grad_norm": (0.4 * loss + 0.05 * np.cos(7.0 * steps)).tolist(),
        "lr": (0.05 * 0.5 ** (steps // max(n_steps // 3, 1))).tolist(),
        "ratio": {} if backend == "torch" else {"loss": ratio.tolist(), "param": (2 * ratio).tolist()},
        "envelope": {"loss": drift.tolist(), "grad_norm": drift.tolist()},
    }  # fmt: skip
    stages = ("data", "forward", "loss", "gradient", "schedule", "update")
    probes = [{"step": n, "ratios": dict.fromkeys(stages, 0.4) | {"data": 0.0}} for n in (1, 2, 3, n_steps)]
    row = {
        "case": TRAINING, "dtype": "float32", "backend": backend, "expected": "torch", "steps": n_steps,
        "planned": n_steps, "ensemble": {"of": "oracle", "members": 4}, "parting": None, "probes": probes,
        "curves": curves, "norms": None,
    }  # fmt: skip
    return {**row, **changed}


def parted(backend: str = "paddle", n_steps: int = 12, **changed: Any) -> Row:
    """A backend that dampens the first step too."""
    row = training(backend, n_steps, gain=0.08)
    first = {"step": 1, "ratios": row["probes"][0]["ratios"] | {"update": PARTING["ratio"]}}
    return {**row, "probes": [first, *row["probes"][1:]], "parting": PARTING, **changed}


def training_finding() -> list[Row]:
    """The comparisons of a training in which paddle's first update is off."""
    here = {"case": TRAINING, "actual": "paddle", "n_elements": 12, "oracle_value": None, "max_ulp_diff": None}
    off = {"culprit": ["paddle"], "error_ratio": {"actual": 81234.0, "expected": None}, "max_abs_diff": 0.17}
    values = {"worst_index": [0], "actual_value": 2.0, "expected_value": 1.83, "required_rtol": 0.09, "rtol": 0.0}
    return [
        comparison("semantic", **{**here, **off, **values, "tensor": "stage.update", "expected": "oracle"}),
        comparison("semantic", **{**here, **off, **values, "tensor": "loss", "n_mismatched": 12}),
        comparison("semantic", **{**here, **off, **values, "tensor": "param", "n_mismatched": 12}),
        comparison(**{**here, "tensor": "stage.forward", "expected": "oracle"}),
        comparison(**{**here, "tensor": "stage.forward", "actual": "torch", "expected": "oracle"}),
    ]


def trained(run_dir: Path, rows: Sequence[Row] | None = None, **changed: Any) -> Path:
    """A run directory of one training in which paddle parts from torch; `changed` are the parts of the results."""
    outcomes = [
        {"case": TRAINING, "dtype": "float32", "backend": name, "outcome": "ok", "seconds": 0.2, "message": ""}
        for name in ("torch", "paddle")
    ]
    evidence = {"step": 1, "stage": "update"}
    cause = {"case": TRAINING, "tensors": ["stage.update", "loss", "param"], "evidence": evidence}
    told = diagnosis("dampening-first-step", title="the first step is dampened too", **cause)
    document = {
        "cases": [training_case()],
        "outcomes": outcomes,
        "comparisons": training_finding(),
        "diagnoses": [told],
        "trainings": [training("torch"), parted()] if rows is None else list(rows),
    }
    return written(run_dir, **{**document, **changed})


def written(run_dir: Path, **parts: Any) -> Path:
    """A run directory with these parts, as they are."""
    run = {"baseline": "torch", "started": "2027-01-31T10:00:00+00:00", "fail_on": "mismatch"}
    backends = [backend_row(name) for name in ("torch", "paddle")]
    summary = {"outcomes": {}, "verdicts": {}, "exit_code": 1}
    document = {
        "format": 1,
        "run": run,
        "backends": backends,
        "diagnoses": [],
        "known": [],
        "summary": summary,
        **parts,
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / FILE_NAME, encode_part(document))
    return run_dir


def backend_row(name: str) -> Row:
    """A backend that ran eagerly on the CPU."""
    row = {"name": name, "framework": name, "version": "1.2.3", "python": "/py", "mode": "eager", "device": "cpu"}
    return {**row, "numpy": "2.1.0", "flags": {}}


def stored(
    run_dir: Path, comparisons: list[Row], diagnoses: list[Row] = (), cases: list[Row] = (), outcomes: list[Row] = ()
) -> Path:
    """A run directory with these rows."""
    return written(
        run_dir,
        cases=list(cases) or [case_row()],
        outcomes=list(outcomes),
        comparisons=comparisons,
        diagnoses=list(diagnoses),
    )
