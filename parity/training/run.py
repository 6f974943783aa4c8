"""The way that a training takes: plan, lockstep, judge, rows; beside `parity/run.py`, which takes them in."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import convert

from parity.config.plan import ORACLE, CasePlan, Plan
from parity.engine import Announced, EngineOptions, Event
from parity.engine.logs import RunLog
from parity.engine.starting import replaceable
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results.kept import side_folders
from parity.reporting.results.rows import TrainingRow
from parity.training.cost import LONGDOUBLE, cost
from parity.training.judge.findings import Parting
from parity.training.judge.judge import JudgedTraining, TrainingJudge
from parity.training.lockstep.session import (
    CHECKPOINT,
    WIDE,
    Drawn,
    TrainingAdvanced,
    TrainingSession,
    chunk_ends,
    draw,
    roles,
    training_folder,
)
from parity.training.lockstep.workers import Workers
from parity.training.spec import TRAIN, Training

SAVE_S = 30.0
SAVE_SHARE = 20.0
"""How far a training is is written down every half minute, but in no more than a twentieth of the time."""
QUICK_S = 60.0
"""The ensemble is one of the oracle's lines where they take no longer than this."""


@dataclass(frozen=True)
class Trained:
    """A training in one dtype, run and judged; `outcomes` are those of the backends."""

    case: CasePlan
    dtype: str
    outcomes: Sequence[CellOutcome]
    comparisons: Sequence[Comparison]
    diagnoses: Sequence[Diagnosis]
    rows: Sequence[TrainingRow]
    judge_seconds: float


def trainings(
    plan: Plan,
    options: EngineOptions,
    run_dir: Path,
    observe: Callable[[Event], None],
    rows: Sequence[TrainingRow] = (),
    done: Collection[tuple[str, str]] = (),
) -> Iterator[Trained]:
    """Run the trainings of a plan but for those (case, dtype) that are `done`; `rows` are those of all up to now.

    An interrupt gives what was run so far before it is raised again. A training goes on from its checkpoint, where
    there is one in `run_dir`; it is removed once what was given has been taken in.
    """
    asked = [(i, case, [d for d in case.dtypes if (case.id, d) not in done]) for i, case in enumerate(plan.cases)]
    asked = [(i, case, dtypes) for i, case, dtypes in asked if case.op == TRAIN and dtypes]
    if not asked:
        return
    log, events = RunLog(run_dir / "log.txt"), queue.SimpleQueue[Event]()
    workers = Workers(options, replaceable(plan.cases), log, events.put)
    try:
        for index, case, dtypes in asked:
            folder = training_folder(run_dir, index, case)
            drawn = draw(case, plan.seed, run_dir / "tensors" / folder.name)
            for dtype in dtypes:
                course = Course(plan, case, dtype, drawn, workers, folder / dtype, Told(events, observe), rows)
                with contextlib.closing(course):
                    yield from course.run()
                shutil.rmtree(folder / dtype / CHECKPOINT, ignore_errors=True)
    finally:
        workers.close()
        log.close()


def ensemble_of(case: CasePlan, dtype: str, plan: Plan, n_computing: int) -> str:
    """Whose runs give the envelope: the oracle's where its lines are quick enough, or where the case says so."""
    training: Training = case.params
    if ORACLE in (training.ensemble, plan.baseline):
        return ORACLE
    n_runs = training.members + 1 + (LONGDOUBLE if WIDE.get(dtype) else 1)
    seconds = training.steps * cost(training) * n_runs / n_computing
    return ORACLE if training.ensemble == "auto" and seconds <= QUICK_S else plan.baseline


@dataclass(frozen=True)
class Told:
    """Events of threads, for who observes them in this one."""

    events: queue.SimpleQueue[Event]
    observe: Callable[[Event], None]

    def __call__(self, *more: Event) -> None:
        """Pass on what has come, and `more`."""
        while not self.events.empty():
            self.observe(self.events.get())
        for event in more:
            self.observe(event)


class Course:
    """One training in one dtype, from its first step to what the judge says of it; `folder` is what is kept of it."""

    def __init__(
        self,
        plan: Plan,
        case: CasePlan,
        dtype: str,
        drawn: Drawn,
        workers: Workers,
        folder: Path,
        told: Told,
        rows: Sequence[TrainingRow],
    ) -> None:
        self.plan, self.case, self.dtype, self.folder = plan, case, dtype, folder
        self.run_dir = folder.parents[2]
        participants, self.ensemble = roles(case, dtype, plan, ensemble_of(case, dtype, plan, workers.n_computing))
        (folder / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        self.session = TrainingSession(case, drawn, participants, workers, folder / CHECKPOINT, self._tick)
        self.judge = TrainingJudge(case, dtype, drawn.setting, plan.backends, plan.baseline, self.ensemble)
        self.judge_seconds = 0.0
        self._told = told
        self._rows = rows
        self._last = self._observed = 0
        self._owed: dict[str, tuple[int, ...]] = {}
        self._lost: set[str] = set()
        self._due = time.monotonic() + SAVE_S

    def run(self) -> Iterator[Trained]:
        """Go all the way; an interrupt gives what there is, and is raised again."""
        try:
            self._advance()
            trained = self._judged()
        except KeyboardInterrupt:
            self._rest()
            yield self._judged(interrupted=True)
            raise
        yield trained

    def close(self) -> None:
        """Let the workers go."""
        self.session.close()

    def _advance(self) -> None:
        self.session.begin()
        for last in chunk_ends(self.case.params.steps, self.session.keeps):
            self._last = last
            self._chunk()
            self._tell()
            if not any(self.session.outcomes[spec.name].outcome is Outcome.OK for spec in self.plan.backends):
                break
            self._save_if_due()

    def _chunk(self) -> None:
        """Steps up to the last of a chunk, what the judge wants to see of them, and what it sees."""
        self._observe_curves()
        for name, found in self.session.records(self._owed):
            with self._judging():
                self.judge.take(name, found)
        self._owed = {}

    def _observe_curves(self) -> None:
        curves = self.session.advance(self._last)
        with self._judging():
            self._owed = dict(self.judge.observe(curves))
        self._observed = self._last

    def _rest(self) -> None:
        """After an interrupt: finish the chunk at hand, where that is quick, and write down how far everybody is."""
        if self.session.comes_to_rest(self._last):
            if self._observed < self._last:
                self._observe_curves()
            # They are kept with the checkpoint, and judged when the run goes on.
            for _ in self.session.records(self._owed):
                pass
            self.session.save()

    def _save_if_due(self) -> None:
        if time.monotonic() >= self._due:
            began = time.monotonic()
            self.session.save()
            self._due = time.monotonic() + max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))

    def _tick(self) -> None:
        """Pass on what threads have said, and how far the training is."""
        step, loss = self.session.position, self.session.loss(self.plan.baseline)
        steps, parted = self.case.params.steps, dict(self.judge.parted)
        self._told(TrainingAdvanced(self.case.id, self.dtype, step, steps, loss, parted))

    def _tell(self) -> None:
        """Say who has dropped out, and how far the training is."""
        for name, outcome in self.session.outcomes.items():
            if outcome.outcome is not Outcome.OK and name not in self._lost:
                self._lost.add(name)
                self._told(Announced(f"{self.case.id} {self.dtype}: {name} drops out: {outcome.message}"))
        self._tick()

    def _judged(self, *, interrupted: bool = False) -> Trained:
        """What the judge says, with what is kept of it stored; after an interrupt without causes, which may take long,
        and without an outcome of those who were to go on."""
        outcomes = self._outcomes()
        with self._judging():
            judged = self.judge.judged(outcomes, self._others(), diagnose=not interrupted)
        norms = self._keep_norms()
        rows = [convert({**vars(row), "norms": norms.get(row.backend)}, TrainingRow) for row in judged.findings]
        for row in rows:
            if row.parting is not None:
                self._keep_step(row.parting.step)
        told = [outcomes[spec.name] for spec in self.plan.backends]
        told = [one for one in told if not interrupted or one.outcome is not Outcome.OK]
        return Trained(self.case, self.dtype, told, judged.comparisons, judged.diagnoses, rows, self.judge_seconds)

    def _others(self) -> dict[str, JudgedTraining]:
        """What was found in the case's dtypes that were judged before: where backends part."""
        rows = [row for row in self._rows if row.case == self.case.id and row.dtype != self.dtype]
        found: dict[str, dict[str, Parting | None]] = {}
        for row in rows:
            at = row.parting
            parting = None if at is None else Parting(at.step, at.stage, at.tensor or "", at.ratio or math.nan)
            found.setdefault(row.dtype, {})[row.backend] = parting
        return {dtype: JudgedTraining((), (), (), partings) for dtype, partings in found.items()}

    def _outcomes(self) -> dict[str, CellOutcome]:
        """Those of all participants. Without an ensemble nothing can be said of a curve: an error of every backend."""
        found = self.session.outcomes
        runs = [found[name] for name in self.ensemble.members]
        lost = next((run for run in runs if run.outcome is not Outcome.OK), None)
        if lost is None or any(run.outcome is Outcome.OK for run in runs) or not self._is_going(found):
            return found
        why = f"no run of the ensemble of {self.ensemble.of} came through; {lost.backend}: {lost.message}"
        names = [spec.name for spec in self.plan.backends if found[spec.name].outcome is Outcome.OK]
        return {**found, **{name: replace(found[name], outcome=Outcome.ERROR, message=why) for name in names}}

    def _is_going(self, found: Mapping[str, CellOutcome]) -> bool:
        return found[self.plan.baseline].outcome is Outcome.OK

    def _keep_norms(self) -> dict[str, str]:
        """Store the norms of every side, [steps, tracked]; their files by side, relative to the run directory."""
        folders = side_folders(spec.name for spec in self.plan.backends)
        shown = {name: self.session.shown(name) for name in folders if name in self.session.outcomes}
        found = {name: curves for name, curves in shown.items() if curves is not None}
        for name, curves in found.items():
            np.save(self.folder / f"{folders[name]}.npy", curves.norms, allow_pickle=False)
        tracked = {folders[name]: list(curves.tracked) for name, curves in found.items()}
        (self.folder / "tracked.json").write_text(json.dumps(tracked), encoding="utf-8")
        return {name: str((self.folder / f"{folders[name]}.npy").relative_to(self.run_dir)) for name in found}

    def _keep_step(self, step: int) -> None:
        """Keep the tensors of a step after the training has ended, of every side of which they were taken."""
        folders = side_folders(spec.name for spec in self.plan.backends)
        for name, folder in folders.items():
            if name in self.session.outcomes:
                self.session.keep(name, step, self.folder / f"step-{step}" / folder)

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Adds to the judge's share of the run's time."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.judge_seconds += time.monotonic() - began
