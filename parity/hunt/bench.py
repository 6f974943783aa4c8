"""Computes and judges many small cases on warm workers, without diagnoses."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType

import numpy as np

from parity.config.plan import ORACLE, BackendSpec, CasePlan, Plan
from parity.engine.asking import CaseQuestions, stored
from parity.engine.backend import BackendLost, BackendStarted, EngineOptions, OutcomeArrived
from parity.engine.cells import CellRequest
from parity.engine.engine import IDLE_S, Crew
from parity.engine.logs import RunLog
from parity.hunt import HuntError
from parity.judge.bound.envelope import OFF
from parity.judge.case import CaseJudge, Cell
from parity.judge.compare.cell import consult_oracle
from parity.outcome import Arrays, CellOutcome, Outcome

Fault = tuple[str, str]
"""A backend and a tensor."""


class TimeUp(BaseException):
    """The time or the trials of a hunt are used up; no Exception, so that Hypothesis does not take it for a failure."""


@dataclass(frozen=True)
class Trial:
    """A case in one dtype, with its inputs by tensor name (`grad.<output>` for grad_outputs)."""

    case: CasePlan
    dtype: str
    inputs: Arrays


@dataclass(frozen=True)
class Seen:
    """What a trial showed: the error ratio of every wrong tensor, and the largest one of each backend.

    `outcomes` have arrays of their own. Nothing is wrong where the reference cannot take the inputs.
    """

    trial: Trial
    outcomes: tuple[CellOutcome, ...]
    faults: Mapping[Fault, float] = field(default_factory=dict)
    nearest: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[CellOutcome, ...]:
        """The outcomes without a result."""
        return tuple(outcome for outcome in self.outcomes if outcome.outcome is not Outcome.OK)


class Bench:
    """The workers of some backends, as a context manager; `ops` are cases of all ops that will be tried."""

    def __init__(self, specs: Sequence[BackendSpec], ops: Sequence[CasePlan], options: EngineOptions, log: Path) -> None:
        plan = Plan("hunt", (), tuple(specs), ORACLE, 0, tuple(ops))
        self.names = tuple(spec.name for spec in specs)
        self.versions: dict[str, str] = {}
        self.n_trials = 0
        self.until = float("inf")
        self.most_trials = float("inf")
        self._lost: dict[str, str] = {}
        self._numbers = count()
        self._crew = Crew(plan, ops, options, RunLog(log))

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._crew.dismiss()

    def ask(self) -> CaseQuestions:
        """Calls for the diagnosis of one case."""
        return CaseQuestions(self._crew.asking)

    def seen(self, trials: Sequence[Trial]) -> list[Seen]:
        """The judged trials, in their order. Raises TimeUp, and HuntError if no backend can be used."""
        with tempfile.TemporaryDirectory(dir=self._crew.asking.folder) as folder, np.errstate(all="ignore"):
            numbered = {next(self._numbers): trial for trial in trials}
            for number, trial in numbered.items():
                self._put(number, trial, Path(folder))
            judged = dict(self._judged(numbered))
        return [judged[number] for number in numbered]

    def _put(self, number: int, trial: Trial, folder: Path) -> None:
        if self.n_trials >= self.most_trials:
            raise TimeUp
        self.n_trials += 1
        own = folder / str(number)
        own.mkdir()
        self._crew.put(CellRequest(number, stored(trial.case, trial.inputs, own), trial.dtype))

    def _judged(self, numbered: Mapping[int, Trial]) -> Iterator[tuple[int, Seen]]:
        arrived: dict[int, list[OutcomeArrived]] = {number: [] for number in numbered}
        while arrived:
            if time.monotonic() > self.until:
                raise TimeUp
            try:
                event = self._crew.events.get(timeout=IDLE_S)
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
                yield event.cell.number, judged(numbered[event.cell.number], [each.outcome for each in answers])
                for each in answers:
                    each.release()
                del arrived[event.cell.number]

    def _notice(self, event: object) -> None:
        if isinstance(event, BackendStarted):
            self.versions[event.info.spec.name] = event.info.version
        elif isinstance(event, BackendLost):
            self._lost[event.spec.name] = event.message
            raise HuntError(f"{event.spec.name} cannot be used: {event.message}")


def judge_of(trial: Trial, outcomes: Sequence[CellOutcome]) -> CaseJudge:
    """The judge of a trial, with the outcomes taken in."""
    judge = CaseJudge(trial.case, trial.inputs, consult_oracle(trial.case, trial.inputs), ORACLE)
    judge.take(trial.dtype, outcomes)
    return judge


def judged(trial: Trial, outcomes: Sequence[CellOutcome]) -> Seen:
    """What the outcomes of a trial show."""
    own = tuple(outcome.copied() for outcome in outcomes)
    try:
        cell = judge_of(trial, own).cells[trial.dtype]
        nearest = {name: max(cell.ratios(name).values(), default=0.0) for name in cell.off}
        return Seen(trial, own, dict(wrong(cell)), nearest)
    except (ValueError, TypeError, IndexError, ArithmeticError):
        return Seen(trial, own)


def wrong(cell: Cell) -> Iterator[tuple[Fault, float]]:
    """The error ratios beyond the bound; infinite where NaN, a structure or a changed input is wrong."""
    for backend, ratios in cell.off.items():
        yield from (((backend, tensor), ratio) for tensor, ratio in ratios.items() if ratio >= OFF)
    for backend, outcome in cell.outcomes.items():
        yield from (((backend, f"input.{name}"), float("inf")) for name in outcome.changed)
