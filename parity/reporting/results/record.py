"""Converts events of the engine and the judge into rows of results.json."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from parity.cases.op import default_params
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine import BackendInfo, EngineOptions
from parity.engine.inputs import slug
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failures, with_failures
from parity.judge.known import AppliedEntry
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results.measures import measures_of
from parity.reporting.results.rows import (
    BackendRow,
    BroughtRow,
    CaseRow,
    CellKey,
    ConfigRow,
    KnownRow,
    OutcomeRow,
    RunRow,
    SourceLocation,
)
from parity.reporting.results.strict_json import encode
from parity.version import __version__


def run_row(plan: Plan, run_id: str, started: str, command: Sequence[str], options: EngineOptions) -> RunRow:
    """The `run` object, without measured fields."""
    return RunRow(
        id=run_id,
        started=started,
        parity=__version__,
        command=list(command),
        configs=[ConfigRow(**asdict(config)) for config in plan.configs],
        seed=plan.seed,
        baseline=plan.baseline,
        subject=list(plan.subject),
        timeout_s=options.timeout_s,
        host={"cpu": cpu_model(), "os": platform.platform(), "threads": options.threads, "cores": os.cpu_count()},
    )


def cpu_model() -> str:
    """The processor's name from Linux, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def backend_row(spec: BackendSpec, info: BackendInfo | None = None) -> BackendRow:
    """A row of `backends`; empty texts if the backend never answered. `ops` is the copy of the user's file."""
    known = info or BackendInfo(spec)
    return BackendRow(
        name=spec.name,
        framework=spec.adapter,
        version=known.version,
        python=known.python,
        mode=spec.mode,
        device=spec.device,
        numpy=known.numpy,
        flags={**known.flags, **({} if spec.ops is None else {"ops": spec.ops.name})},
        executable=known.executable,
        ops=None if spec.ops is None else ops_copy(spec),
        library=known.library,
    )


def ops_copy(spec: BackendSpec) -> str:
    """The path of the copy of a backend's ops file, relative to the run directory."""
    suffix = ".onnx" if spec.ops is not None and spec.ops.suffix == ".onnx" else ".py"
    return f"ops/{slug(spec.name)}{suffix}"


def case_row(case: CasePlan, folder: Path | None) -> CaseRow:
    """A row of `cases`; `folder` holds its inputs, relative to the run directory."""
    params, inputs = measures_of(case.op).recorded(case, folder)
    source = SourceLocation(case.source.file, case.source.line)
    return CaseRow(
        id=case.id,
        op=case.op,
        params=params,
        dtypes=list(case.dtypes),
        inputs=inputs,
        source=source,
        backends=list(case.backends),
        baseline=case.baseline,
        brought=brought_row(case),
        subject=list(case.subject),
    )


def brought_row(case: CasePlan) -> BroughtRow | None:
    """The row of a user's own op."""
    if case.brought is None:
        return None
    source = case.brought.source
    text = source.text.decode("utf-8", "backslashreplace")
    return BroughtRow(str(source.path), text, list(case.brought.differentiable), sorted(default_params(case.params)))


def outcome_row(outcome: CellOutcome) -> OutcomeRow:
    """A row of `outcomes`."""
    return OutcomeRow(
        case=outcome.case,
        dtype=outcome.dtype,
        backend=outcome.backend,
        outcome=outcome.outcome.value,
        seconds=outcome.seconds,
        message=outcome.message,
        composed=outcome.composed,
    )


def unsupported(outcomes: Sequence[OutcomeRow]) -> frozenset[CellKey]:
    """Case, dtype and backend of each unsupported cell."""
    return frozenset(row.key for row in outcomes if row.outcome == Outcome.UNSUPPORTED.value)


def diagnosis_row(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with evidence as JSON values; NumPy's numbers become Python's. One with anything else that JSON
    lacks is an error of parity instead, in the same tensors."""
    failures = Failures()
    with failures.contained("recording the cause"):
        values = msgspec.to_builtins(diagnosis, enc_hook=as_python)
        encode(values)
        return msgspec.convert(values, Diagnosis)
    of = (diagnosis.case, diagnosis.dtype, diagnosis.backend)
    return with_failures(of, (), failures, diagnosis.tensors)[0]


def as_python(value: Any) -> Any:
    """A scalar or an array of NumPy as Python's numbers; raises TypeError for others."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufSU":
        return value.tolist()
    raise TypeError(f"no JSON value: {type(value).__name__}")


def known_row(entry: AppliedEntry) -> KnownRow:
    """A row of `known`; keys that the config leaves out are None."""
    known = entry.deviation
    return KnownRow(
        case=known.case,
        backend=known.backend,
        dtype=known.dtype,
        tensor=known.tensor,
        diagnosis=known.diagnosis,
        error_ratio=known.error_ratio,
        outcome=Outcome.UNSUPPORTED.value if known.unsupported else None,
        until=None if known.until is None else known.until.isoformat(),
        reason=known.reason,
        source=SourceLocation(known.source.file, known.source.line),
        state=entry.state.value,
        n_matched=entry.n_matched,
        worst_ratio=entry.worst_ratio,
        message=entry.message,
    )
