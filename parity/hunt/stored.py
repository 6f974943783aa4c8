"""`parity reduce`: the smallest case that still shows what a stored run has found."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from parity.cases import OPS
from parity.cases.draw import File, TensorPlan
from parity.config.backends import SHORT
from parity.config.plan import BackendSpec, CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine import EngineOptions
from parity.hunt import HuntError
from parity.hunt.bench import Bench, TrialCase, TrialResult
from parity.hunt.reduce import in_all_dtypes, reduce_case
from parity.hunt.search import HuntFinding
from parity.judge.failures import Failures
from parity.reporting.console.explain import case_called
from parity.reporting.results.cells import CellResult, cells, ratio_of
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import BackendRow, CaseRow
from parity.reporting.results.stored_tensors import KeptError, load
from parity.repro.recipe import known_params, ops_file


def reduce_stored(
    run_dir: Path, name: str | None, options: EngineOptions, *, backend: str | None = None, dtype: str | None = None
) -> tuple[HuntFinding, BackendSpec, Failures]:
    """The smallest case that shows the largest error of a case in a run, the backend that has it, and what failed.

    Raises HuntError, and what reading a run raises: ResultsError, ExplainError, ReproError.
    """
    results = read_results(run_dir)
    case = case_called(name, results)
    candidates = [(ratio_in(cell), cell) for cell in cells(results) if cell.id == case.id and cell.finding]
    candidates = [
        (r, cell) for r, cell in candidates if r and backend in (None, cell.backend) and dtype in (None, cell.dtype)
    ]
    if not candidates:
        of_backend = f" of {backend}" if backend else ""
        command = shlex.join(["parity", "explain", str(run_dir), case.id])
        raise HuntError(f"{case.id} has no finding{of_backend}: `{command}` shows what it has")
    _, cell = max(candidates, key=lambda item: item[0])
    spec = spec_of(next(row for row in results.backends if row.name == cell.backend), run_dir)
    trial = stored_trial(case, cell, run_dir)
    with (
        TemporaryDirectory(prefix="parity-reduce-") as folder,
        Bench([spec], [trial.case], options, Path(folder) / "log.txt", local=True) as bench,
    ):
        failures = Failures()
        return smallest(bench, trial, cell, failures), spec, failures


def smallest(bench: Bench, trial: TrialCase, cell: CellResult, failures: Failures) -> HuntFinding:
    """The finding in its smallest case, and in `failures` the steps that fail; HuntError if it is no longer shown."""

    def look(trial: TrialCase) -> TrialResult:
        return bench.seen([trial])[0]

    seen = look(trial)
    shown = {fault: ratio for fault, ratio in seen.faults.items() if fault[0] == cell.backend}
    if not shown:
        if seen.failures:
            raise HuntError(seen.failures[-1].message)
        ended = "".join(f": {o.outcome.value}: {o.message}" for o in seen.failed)
        raise HuntError(f"{cell.backend} {bench.infos[cell.backend].version} no longer shows it{ended}")
    fault = min(shown, key=lambda f: (f[1].startswith("grad."), -shown[f]))
    original, ratio = trial, shown[fault]
    with failures.contained("trying all dtypes"):
        original = in_all_dtypes(seen, fault, look, tuple(cell.case.dtypes))
    small = reduce_case(replace(seen, trial=original), fault, ratio, look, failures)
    with failures.contained("calling the backend again"):
        ratio = look(small).faults.get(fault, ratio)
    return HuntFinding(small, small, *fault, ratio, cell.diagnoses)


def ratio_in(cell: CellResult) -> float:
    """The largest error ratio of a cell; infinite for NaN or another structure."""
    ratios: Sequence[float] = [ratio for row in cell.rows if (ratio := ratio_of(row, cell.backend)) is not None]
    return max(ratios, default=float("inf"))


def stored_trial(case: CaseRow, cell: CellResult, run_dir: Path) -> TrialCase:
    """The case with the inputs that the run stored; raises HuntError and ReproError."""
    if case.op not in OPS or case.brought is not None:
        raise HuntError(f"{case.id} is {case.op}; only cases of parity's own ops can be reduced")
    op, plans, inputs = OPS[case.op], [], {}
    for name, row in case.inputs.items():
        if row.file is None:
            raise HuntError(f"{case.id}: its inputs were not stored; run it again")
        try:
            values = np.array(load(run_dir, row.file))
        except KeptError as error:
            raise HuntError(f"{case.id}: {error}") from error
        if values.dtype.kind not in "fi":
            raise HuntError(f"{run_dir / row.file} holds no real numbers")
        inputs[name] = values
        item = op.input(name)
        plans.append(
            TensorPlan(name, values.shape, File(run_dir / row.file), integers=item is not None and item.integers)
        )
    gradients = any(op.input(name) is None for name in inputs)
    plan = CasePlan(
        case.id,
        case.op,
        known_params(op, case.params),
        (cell.dtype,),
        tuple(plans),
        DEFAULT_TOLERANCES,
        WrittenAt(str(run_dir), 0),
        gradients,
    )
    return TrialCase(plan, cell.dtype, inputs)


def spec_of(row: BackendRow, run_dir: Path) -> BackendSpec:
    """The backend of a run: in the release that its name states, else the one that is installed now."""
    named = SHORT.fullmatch(row.name)
    version = named["version"] if named is not None and named["name"] == row.framework else None
    ops = ops_file(row, run_dir)
    return BackendSpec(
        row.name, row.framework, version, row.mode or "eager", row.device or "cpu", ops=ops and ops.absolute()
    )
