"""Turns what the engine and the judge say into the rows of results.json."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from parity import __version__
from parity.cases.draw import Draw, TensorPlan, Values
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine import BackendInfo, EngineOptions
from parity.engine.inputs import slug
from parity.judge.bound.envelope import OFF
from parity.judge.compare.metrics import Metrics
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results.results import Row
from parity.training.judge.judge import TrainingFinding
from parity.training.report import record as training_record
from parity.training.report.rows import VALUES
from parity.training.spec import TRAIN, Training

MAX_LITERAL = 8
DIGITS = {"float16": 5, "float32": 9, "float64": 17}
"""What it takes to tell two values of a dtype apart."""
RATIO_DIGITS = 4


def run_row(plan: Plan, run_id: str, started: str, command: Sequence[str], options: EngineOptions) -> Row:
    """The `run` object, but for what is measured."""
    return {
        "id": run_id,
        "started": started,
        "parity": __version__,
        "command": list(command),
        "configs": [asdict(config) for config in plan.configs],
        "seed": plan.seed,
        "baseline": plan.baseline,
        "timeout_s": options.timeout_s,
        "host": {"cpu": cpu_model(), "os": platform.platform(), "threads": options.threads, "cores": os.cpu_count()},
    }


def cpu_model() -> str:
    """The processor's name as Linux spells it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def backend_row(spec: BackendSpec, info: BackendInfo | None = None) -> Row:
    """A row of `backends`; empty strings where the backend never answered. `ops` is the copy of the user's file."""
    found = info or BackendInfo(spec)
    named = {} if spec.ops is None else {"ops": spec.ops.name}
    return {
        "name": spec.name,
        "framework": spec.adapter,
        "version": found.version,
        "python": found.python,
        "mode": spec.mode,
        "device": spec.device,
        "numpy": found.numpy,
        "flags": {**found.flags, **named},
        "executable": found.executable,
        "ops": None if spec.ops is None else ops_copy(spec),
        **({"library": found.library} if found.library else {}),
    }


def ops_copy(spec: BackendSpec) -> str:
    """Where a run keeps the user's ops of a backend, relative to its directory."""
    return f"ops/{slug(spec.name)}.py"


def case_row(case: CasePlan, folder: Path | None) -> Row:
    """A row of `cases`; `folder` is where its inputs are stored, relative to the run directory."""
    if isinstance(case.params, Training):
        params, inputs = training_record.params(case.params), training_record.inputs(case.params, folder)
    else:
        params, inputs = asdict(case.params), {tensor.name: input_row(tensor, folder) for tensor in case.tensors}
    return {
        "id": case.id,
        "op": case.op,
        "params": params,
        "dtypes": list(case.dtypes),
        "inputs": inputs,
        "source": {"file": case.source.file, "line": case.source.line},
    }


def input_row(tensor: TensorPlan, folder: Path | None) -> Row:
    """What is known about one input."""
    file = None if folder is None else str(folder / f"{tensor.name}.npy")
    return {"shape": list(tensor.shape), "draw": describe_draw(tensor), "file": file}


def describe_draw(tensor: TensorPlan) -> str:
    """`normal(mean=0.0, std=1.0) * 10 + 100`, as a person would write it."""
    text = f"{type(tensor.draw).__name__.lower()}({', '.join(arguments(tensor.draw))})"
    text += f" * {tensor.scale:g}" if tensor.scale != 1.0 else ""
    text += f" + {tensor.offset:g}" if tensor.offset != 0.0 else ""
    return text + (f" with {tensor.special.count} special values" if tensor.special else "")


def arguments(draw: Draw) -> list[str]:
    """What a distribution is given; of literal values the first ones."""
    if isinstance(draw, Values):
        numbers = np.ravel(draw.values)
        return [f"{number:.9g}" for number in numbers[:MAX_LITERAL]] + ["..."] * (numbers.size > MAX_LITERAL)
    return [f"{f.name}={getattr(draw, f.name)}" for f in fields(draw)]  # type: ignore[arg-type]


def outcome_row(outcome: CellOutcome) -> Row:
    """A row of `outcomes`."""
    return {
        "case": outcome.case,
        "dtype": outcome.dtype,
        "backend": outcome.backend,
        "outcome": outcome.outcome.value,
        "seconds": outcome.seconds,
        "message": outcome.message,
    }


def unsupported(outcomes: Sequence[Row]) -> frozenset[tuple[str, str, str]]:
    """Case, dtype and backend of what a backend cannot compute at all."""
    return frozenset(
        (row["case"], row["dtype"], row["backend"]) for row in outcomes if row["outcome"] == Outcome.UNSUPPORTED.value
    )


def diagnosis_row(diagnosis: Diagnosis) -> Row:
    """A row of `diagnoses`."""
    return {**asdict(diagnosis), "tensors": list(diagnosis.tensors)}


MEASURES = tuple(f.name for f in fields(Metrics) if f.name not in ("n_nonfinite_mismatched", "cosine", "equal"))


def comparison_row(comparison: Comparison) -> Row:
    """A row of `comparisons`; what was not measured is null."""
    metrics, envelope = comparison.metrics, comparison.envelope
    measured = {name: None if metrics is None else getattr(metrics, name) for name in MEASURES}
    if metrics is not None and metrics.worst_index is not None:
        measured["worst_index"] = list(metrics.worst_index)
    return {
        "case": comparison.case,
        "dtype": comparison.dtype,
        "tensor": comparison.tensor,
        "actual": comparison.actual,
        "expected": comparison.expected,
        "verdict": comparison.verdict.value,
        "culprit": list(comparison.culprit),
        "suspect": comparison.suspect,
        "known": comparison.known,
        **measured,
        "rtol": comparison.rtol,
        "atol": comparison.atol,
        "oracle_value": comparison.oracle_value,
        "error_ratio": dict(zip(("actual", "expected"), comparison.error_ratio, strict=True)),
        "envelope": None if envelope is None else dict(zip(("rms", "max"), envelope, strict=True)),
        "message": comparison.message,
    }


def training_row(finding: TrainingFinding) -> Row:
    """A row of `trainings`, with as many digits as its numbers have."""
    row = asdict(finding)
    curves = row["curves"]
    digits = DIGITS.get(finding.dtype, max(DIGITS.values()))
    told = {name: [shortened(value, digits) for value in curves[name]] for name in VALUES}
    ratios = {
        name: {key: [shortened(value, RATIO_DIGITS) for value in values] for key, values in curves[name].items()}
        for name in ("ratio", "envelope")
    }
    return {**row, "curves": {**told, **ratios}}


def shortened(value: float, digits: int) -> float:
    """A number with so many digits."""
    return float(f"{value:.{digits}g}")


def excess(row: Row, op: str = "") -> float:
    """By how many tolerances the worst element of a comparison is off; inf for what no tolerance lets pass.

    What of a training is judged without a tolerance may be OFF envelopes away.
    """
    if row["verdict"] in ("structure", "nonfinite"):
        return math.inf
    if op == TRAIN and not row["rtol"] and not row["atol"]:
        return max((r for r in row["error_ratio"].values() if r is not None and r == r), default=0.0) / OFF
    if row["worst_index"] is None:
        return 0.0
    allowed = row["atol"] + row["rtol"] * abs(row["expected_value"])
    off = abs(row["actual_value"] - row["expected_value"])
    if math.isnan(off) or off == 0.0:
        return 0.0
    return float(off / allowed) if allowed else math.inf
