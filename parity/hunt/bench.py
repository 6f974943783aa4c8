"""Computes and judges many small cases on warm workers, without diagnoses."""

from __future__ import annotations

import math
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from parity.cases.draw import generator
from parity.cases.dtypes import as_dtype
from parity.cases.oracle import evaluate, program_of
from parity.config.plan import ORACLE, BackendSpec, CasePlan, Plan
from parity.engine.cells import CellRequest
from parity.engine.engine import IDLE_S, RunnerPool
from parity.engine.extra_cells import CaseQuestions, stored
from parity.engine.logs import RunLog
from parity.engine.starting import BackendInfo
from parity.engine.supervision import BackendLost, BackendStarted, EngineOptions, OutcomeArrived
from parity.hunt import HuntError
from parity.judge.bound.envelope import ERROR_BOUND, FIRST_RUNS, Array, Envelope, EnvelopeRuns, error_ratio, size
from parity.judge.case import CaseJudge, Cell
from parity.judge.compare.cell import Oracle, consult_oracle
from parity.judge.failures import Failures
from parity.outcome import Arrays, CellOutcome, Outcome

NEIGHBOURS, NEAR = 2, 1 / 64
REFUSED = (ValueError, TypeError, LookupError, ArithmeticError)
"""What a reference or a shape inference raises for inputs and params that it cannot take."""
Fault = tuple[str, str]
"""A backend and a tensor."""


class TimeUp(BaseException):
    """The hunt's time or trials are used up; not an Exception, which Hypothesis would count as a failure."""


@dataclass(frozen=True)
class TrialCase:
    """A case in one dtype, with its inputs by tensor name (`grad.<output>` for grad_outputs)."""

    case: CasePlan
    dtype: str
    inputs: Arrays


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed: the error ratio of every wrong tensor, and the largest one of each backend.

    `nonfinite`: those that are infinite or NaN where the exact value is finite, or the reverse, or have no value or
    another shape. `outcomes` have arrays of their own. Nothing is wrong where the reference cannot take the inputs, or
    where parity itself fails: then there are `failures`.
    """

    trial: TrialCase
    outcomes: tuple[CellOutcome, ...]
    faults: Mapping[Fault, float] = field(default_factory=dict)
    nonfinite: frozenset[Fault] = frozenset()
    nearest: Mapping[str, float] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)

    @property
    def failed(self) -> tuple[CellOutcome, ...]:
        """The outcomes without a result."""
        return tuple(outcome for outcome in self.outcomes if outcome.outcome is not Outcome.OK)


class Bench:
    """The workers of some backends, as a context manager; `ops` are cases of all ops that will be tried.

    `local`: a tensor is wrong where the judge says so, else only if it is wrong as a whole.
    """

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        ops: Sequence[CasePlan],
        options: EngineOptions,
        log: Path,
        *,
        local: bool = False,
    ) -> None:
        plan = Plan("hunt", (), tuple(specs), ORACLE, 0, tuple(ops))
        self.names = tuple(spec.name for spec in specs)
        self.infos: dict[str, BackendInfo] = {}
        self.n_trials = 0
        self.until = float("inf")
        self.most_trials = float("inf")
        self._local = local
        self._numbers = count()
        self.log = RunLog(log)
        self._pool = RunnerPool(plan, sum(len(case.dtypes) for case in ops), options, self.log)
        self._asking = self._pool.asking()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.dismiss()

    @property
    def spare(self) -> Path:
        """A folder for inputs that the hunt's own cannot hold."""
        return self._pool.spare

    def ask(self) -> CaseQuestions:
        """Calls for the diagnosis of one case."""
        return CaseQuestions(self._asking)

    def seen(self, trials: Sequence[TrialCase]) -> list[TrialResult]:
        """The judged trials, in their order. Raises TimeUp, and HuntError if no backend can be used."""
        if time.monotonic() > self.until:
            raise TimeUp
        with tempfile.TemporaryDirectory(dir=self._asking.folder) as folder, np.errstate(all="ignore"):
            numbered = {next(self._numbers): trial for trial in trials}
            for number, trial in numbered.items():
                self._put(number, trial, Path(folder))
            judged = dict(self._judged(numbered))
        return [judged[number] for number in numbered]

    def _put(self, number: int, trial: TrialCase, folder: Path) -> None:
        if self.n_trials >= self.most_trials:
            raise TimeUp
        self.n_trials += 1
        own = folder / str(number)
        own.mkdir()
        self._pool.put(CellRequest(number, stored(trial.case, trial.inputs, own), trial.dtype))

    def _judged(self, numbered: Mapping[int, TrialCase]) -> Iterator[tuple[int, TrialResult]]:
        arrived: dict[int, list[OutcomeArrived]] = {number: [] for number in numbered}
        while arrived:
            if time.monotonic() > self.until:
                raise TimeUp
            try:
                event = self._pool.events.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            self._notice(event)
            if not isinstance(event, OutcomeArrived):
                continue
            if event.cell.number not in arrived:
                event.release()
                continue
            answers = arrived[event.cell.number]
            answers.append(event)
            if len(answers) == len(self.names):
                yield event.cell.number, self._seen(numbered[event.cell.number], answers)
                for each in answers:
                    each.release()
                del arrived[event.cell.number]

    def _seen(self, trial: TrialCase, answers: Sequence[OutcomeArrived]) -> TrialResult:
        return judged(trial, [each.outcome for each in answers], whole_ratios if not self._local else Cell.ratios)

    def _notice(self, event: object) -> None:
        if isinstance(event, BackendStarted):
            self.infos[event.info.spec.name] = event.info
        elif isinstance(event, BackendLost):
            raise HuntError(f"{event.spec.name} cannot be used: {event.message}")


def judge_of(trial: TrialCase, outcomes: Sequence[CellOutcome], oracle: Oracle | None = None) -> CaseJudge:
    """The judge of a trial, with the outcomes taken in."""
    exact = consult_oracle(trial.case, trial.inputs) if oracle is None else oracle
    judge = CaseJudge(trial.case, trial.inputs, exact, ORACLE)
    judge.take(trial.dtype, outcomes)
    return judge


def judged(
    trial: TrialCase, outcomes: Sequence[CellOutcome], ratios_of: Callable[[Cell, str], Mapping[str, float]]
) -> TrialResult:
    """What the outcomes of a trial show."""
    own, failures = tuple(outcome.copied() for outcome in outcomes), Failures()
    with failures.contained("judging a trial"):
        try:
            oracle = consult_oracle(trial.case, trial.inputs)
        except REFUSED:
            return TrialResult(trial, own)
        return measured(trial, own, ratios_of, oracle)
    return TrialResult(trial, own, failures=failures)


def measured(
    trial: TrialCase,
    outcomes: tuple[CellOutcome, ...],
    ratios_of: Callable[[Cell, str], Mapping[str, float]],
    oracle: Oracle,
) -> TrialResult:
    """The same, beside the exact answer; raises what the judge raises."""
    cell = judge_of(trial, outcomes, oracle).cells[trial.dtype]
    ratios = {(name, tensor): ratio for name in cell.wrong for tensor, ratio in ratios_of(cell, name).items()}
    nearest = {name: max((r for (n, _), r in ratios.items() if n == name), default=0.0) for name in cell.wrong}
    faults = {fault: ratio for fault, ratio in ratios.items() if ratio >= ERROR_BOUND}
    nonfinite = frozenset(fault for fault in faults if not is_finite(cell, *fault))
    return TrialResult(trial, outcomes, faults, nonfinite, nearest)


def is_finite(cell: Cell, backend: str, tensor: str) -> bool:
    """Whether a backend's tensor is finite wherever the exact one is, and nowhere else."""
    values, exact = cell.observed(backend).get(tensor), cell.oracle.get(tensor)
    if values is None or exact is None or values.shape != exact.shape:
        return False
    return bool(np.array_equal(np.isfinite(values), np.isfinite(as_dtype(exact, str(values.dtype)))))


def whole_ratios(cell: Cell, backend: str) -> dict[str, float]:
    """The error ratios of a backend's tensors that may be wrong; infinite where NaN, a structure or an input is wrong.

    They cover whole tensors: in a few elements a reference may be exact by luck, and a search would find such inputs.
    For the same reason the envelope includes those of nearby inputs.
    """
    ratios = dict.fromkeys((f"input.{name}" for name in cell.outcomes[backend].changed), math.inf)
    observed = cell.observed(backend)
    for tensor, local in cell.ratios(backend).items():
        values, exact, envelope = observed[tensor], cell.oracle[tensor], cell.envelope_at(backend, tensor).whole
        if local < ERROR_BOUND or values is None or values.shape != exact.shape or exact.dtype.kind == "i":
            ratios[tensor] = local
            continue
        if flushed(values, exact, cell.dtype):
            continue
        ratio = error_ratio(values, exact, envelope)
        ratios[tensor] = ratio if ratio < ERROR_BOUND else error_ratio(values, exact, widened(cell, tensor, envelope))
    return ratios


def flushed(values: Array, exact: Array, dtype: str) -> bool:
    """Whether all errors are below the dtype's normal numbers, which many kernels flush to zero."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(values - exact) < smallest_normal(dtype)
        exact = as_dtype(exact, dtype)
        return bool((near | (values == exact) | (np.isnan(values) & np.isnan(exact))).all())


def smallest_normal(dtype: str) -> float:
    """The smallest normal number; bfloat16 has float32's."""
    return float(np.finfo("float32" if dtype == "bfloat16" else dtype).tiny)


def widened(cell: Cell, tensor: str, envelope: Envelope) -> Envelope:
    """A tensor's envelope, or that of nearby inputs or the error of flushing values to zero on the way, if larger."""
    exact = cell.oracle[tensor]
    error = size(np.where(np.isfinite(as_dtype(exact, cell.dtype)), np.abs(underflown(cell, tensor) - exact), 0))
    envelope = replace(envelope, rms=max(envelope.rms, error.rms), max=max(envelope.max, error.max))
    for number in range(NEIGHBOURS):
        inputs = {name: nearby(values, name, number) for name, values in cell.inputs.items()}
        held = {n: v if v.dtype.kind == "i" else as_dtype(v, cell.dtype) for n, v in inputs.items()}
        other = EnvelopeRuns(cell.case, cell.dtype, held, consult_oracle(cell.case, held)).envelopes(
            FIRST_RUNS, [tensor]
        )
        envelope = replace(envelope, rms=max(envelope.rms, other[tensor].rms), max=max(envelope.max, other[tensor].max))
    return envelope


def underflown(cell: Cell, tensor: str) -> Array:
    """A tensor in float64 whose steps have errors of the smallest normal number of the cell's dtype, as where that is
    flushed to zero, or kept with the few digits that are left below it. A zero that follows from a zero is one."""
    rng, tiny = generator(0, "underflow", tensor), smallest_normal(cell.dtype)

    def perturbed(values: Any, *operands: Any) -> Any:
        if getattr(values, "dtype", np.dtype(int)).kind != "f":
            return values
        is_zero = values == 0
        numbers = [o for o in operands if np.isscalar(o) or isinstance(o, np.ndarray)]
        if all(np.shape(o) in ((), values.shape) for o in numbers):
            is_zero = is_zero & np.any([np.broadcast_to(np.equal(o, 0), values.shape) for o in numbers], axis=0)
        return values + np.where(is_zero, 0, tiny * rng.uniform(-1, 1, values.shape))

    def with_error(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *operands, **options: perturbed(function(*operands, **options), *operands)

    case = cell.case
    program = program_of(case.definition, case.params, cell.inputs, gradients=case.gradients, labelled=False)
    functions = {step.function: with_error(step.function) for step in program.steps}
    inputs = {name: perturbed(values, values) for name, values in cell.inputs.items()}
    return evaluate(
        case.definition,
        case.params,
        inputs,
        dtype=np.float64,
        gradients=case.gradients,
        functions=functions,
        outputs=[tensor],
    )[tensor]


def nearby(values: Array, name: str, number: int) -> Array:
    """Values changed by about one percent, zeros too where there are others of both signs; integers stay."""
    if values.dtype.kind == "i" or not values.size:
        return values
    rng, wide = generator(number, "nearby", name), values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    scale = np.abs(wide)
    if finite.size and finite.min() < 0 < finite.max():
        scale = np.where(scale == 0, np.sqrt(np.mean(np.square(finite))), scale)
    return np.where(np.isfinite(wide), wide + NEAR * scale * rng.normal(size=wide.shape), wide)
