"""Runs and judges the trainings of a plan; `parity/run.py` calls it as a client."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from parity.adapters.base import parts_of
from parity.clients import Client, JudgedCase, or_failed
from parity.config.plan import ORACLE, CasePlan, Plan
from parity.engine import Announced, EngineOptions, Event, Judging, TrainingAdvanced
from parity.engine.extra_cells import CaseQuestions
from parity.engine.logs import RunLog
from parity.engine.starting import replaceable
from parity.engine.workers import Workers
from parity.judge.audit import CaseAudit
from parity.judge.failures import Failures, unjudged, unknown, with_failures
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results.rows import TrainingRow
from parity.reporting.results.stored_tensors import backend_folders
from parity.training.config.models import CLIPS, LOSSES, OPTIMIZERS
from parity.training.cost import LONGDOUBLE, cost
from parity.training.judge.audit import audit_training
from parity.training.judge.judge import FirstRatios, JudgedTraining, TrainingJudge
from parity.training.layers import LAYER_OPS
from parity.training.lockstep.extra_ops import ParticipantAsking
from parity.training.lockstep.session import (
    CHECKPOINT,
    WIDE,
    DrawnTraining,
    TrainingSession,
    chunk_ends,
    draw,
    roles,
    setting_of,
    training_folder,
)
from parity.training.spec import TRAIN, Training
from parity.training.worker.job import HOOKS

SAVE_S = 30.0
SAVE_SHARE = 20.0
"""A training is saved every half minute; saving takes at most a twentieth of the time."""
QUICK_S = 60.0
"""The oracle runs the ensemble if that takes at most so long."""


def trainings(
    plan: Plan,
    options: EngineOptions,
    run_dir: Path,
    observe: Callable[[Event], None],
    rows: Sequence[TrainingRow] = (),
    done: Collection[tuple[str, str]] = (),
) -> Iterator[JudgedCase]:
    """Run the trainings of a plan, except the (case, dtype) that are `done`; `rows` are those of earlier trainings.

    On an interrupt, the steps so far are judged and yielded before it is raised again. A training continues from its
    checkpoint in `run_dir`, if any, which is removed once the result has been recorded. If `run_dir` cannot be written,
    the training starts again in a scratch folder, and OSError is raised at the end.
    """
    asked = [(i, case, [d for d in case.dtypes if (case.id, d) not in done]) for i, case in enumerate(plan.cases)]
    asked = [(i, case, dtypes) for i, case, dtypes in asked if case.op == TRAIN and dtypes]
    if not asked:
        return
    lost: OSError | None = None
    log, posted = RunLog(run_dir / "log.txt"), queue.SimpleQueue[Event]()

    def pass_on(*events: Event) -> None:
        """Show the observer, in this thread, the events that other threads have posted, and `events`."""
        while not posted.empty():
            observe(posted.get())
        for event in events:
            observe(event)

    workers = Workers(options, replaceable(plan.cases), log, posted.put)

    def run_in(home: Path, index: int, case: CasePlan, left: list[str]) -> Iterator[JudgedCase]:
        """Run a training in the remaining dtypes, and remove each from the list."""
        folder = training_folder(home, index, case)
        drawn = draw(case, plan.seed, home / "tensors" / folder.name)
        while left:
            run = LockstepRun(plan, case, left[0], drawn, workers, folder / left[0], pass_on, rows)
            with contextlib.closing(run.session):
                yield from run.judged()
            shutil.rmtree(folder / left.pop(0) / CHECKPOINT, ignore_errors=True)

    try:
        for index, case, left in asked:
            try:
                yield from or_failed(run_in(run_dir, index, case, left), plan, case, left, passing=(OSError,))
            except OSError as error:
                lost = error
                shutil.rmtree(training_folder(run_dir, index, case) / left[0], ignore_errors=True)
                pass_on(Announced(f"{case.id}: begins again, without a checkpoint: {error.strerror or error}"))
                yield from or_failed(run_in(workers.scratch.folder, index, case, left), plan, case, left)
        if lost is not None:
            raise lost
    finally:
        workers.close()
        log.close()


def functions_of_a_step(_case: CasePlan) -> list[str]:
    """The functions of a user's file that a training calls: ops, those that composed ops call, and hooks."""
    parts = (part for op in LAYER_OPS for part in parts_of(op))
    clips = (f"clip_grad_{clip}" for clip in CLIPS)
    return sorted({*LAYER_OPS, *parts, *LOSSES, *OPTIMIZERS, *clips, *HOOKS})


def audited(case: CasePlan, plan: Plan) -> CaseAudit:
    """What a training reveals with the data that a run would draw."""
    n_ranks = max((spec.ranks for spec in plan.of(case).backends), default=1)
    return audit_training(case, setting_of(case, plan.seed), n_ranks)


CLIENT = Client(trainings, replaceable=functions_of_a_step, audit=audited)


def ensemble_of(case: CasePlan, dtype: str, plan: Plan, n_computing: int) -> str:
    """What makes the perturbed runs: the oracle if it is fast enough or the case asks for it, else the baseline."""
    training: Training = case.params
    if ORACLE in (training.ensemble, plan.baseline):
        return ORACLE
    n_runs = training.members + 1 + (LONGDOUBLE if WIDE.get(dtype) else 1)
    seconds = training.steps * cost(training) * n_runs / n_computing
    return ORACLE if training.ensemble == "auto" and seconds <= QUICK_S else plan.baseline


class LockstepRun:
    """One training in one dtype, from its first step to its verdicts; `folder` holds its files."""

    def __init__(
        self,
        plan: Plan,
        case: CasePlan,
        dtype: str,
        drawn: DrawnTraining,
        workers: Workers,
        folder: Path,
        pass_on: Callable[..., None],
        rows: Sequence[TrainingRow],
    ) -> None:
        self._folder_names = backend_folders(spec.name for spec in plan.backends)
        plan = plan.of(case)
        self.plan, self.case, self.dtype, self.folder = plan, case, dtype, folder
        participants, self.ensemble = roles(case, dtype, plan, ensemble_of(case, dtype, plan, workers.n_computing))
        (folder / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        self.session = TrainingSession(case, drawn, participants, workers, folder / CHECKPOINT, self._tick)
        asking = ParticipantAsking(workers.scratch.folder, (), participants=self.session.participants)
        ask = partial(CaseQuestions, asking)
        self.judge = TrainingJudge(case, dtype, drawn.setting, plan.backends, plan.baseline, self.ensemble, ask)
        self.judge_seconds, self._failures = 0.0, Failures()
        self._pass_on = pass_on
        self._rows = rows
        self._last = self._observed = 0
        self._wanted: dict[str, tuple[int, ...]] = {}
        self._lost: set[str] = set()
        self._due = time.monotonic() + SAVE_S

    def judged(self) -> Iterator[JudgedCase]:
        """Run all steps and judge them; on an interrupt, judge the steps so far, and raise it again."""
        try:
            self._advance()
            self._pass_on(Judging(self.case.id))
            result = self._result()
        except KeyboardInterrupt:
            self._finish_chunk()
            yield self._result(interrupted=True)
            raise
        yield result

    def _advance(self) -> None:
        """Take all steps, in chunks; after each, the judge gets the curves, and the records that it requests."""
        self.session.begin()
        for last in chunk_ends(self.case.params.steps, self.session.keeps):
            self._last = last
            self._observe_curves()
            for name, record in self.session.records(self._wanted):
                with self._judging(), self._failures.contained(f"measuring a step of {name}"):
                    self.judge.take(name, record)
            self._wanted = {}
            self._announce_lost()
            if all(self.session.outcomes[spec.name].outcome is not Outcome.OK for spec in self.plan.backends):
                break
            self._save_if_due()

    def _observe_curves(self) -> None:
        curves = self.session.advance(self._last)
        self._wanted = {}
        with self._judging(), self._failures.contained("measuring the curves"):
            self._wanted = self.judge.observe(curves)
        self._observed = self._last

    def _finish_chunk(self) -> None:
        """After an interrupt: finish the current chunk if that is quick, and save."""
        if self.session.comes_to_rest(self._last):
            if self._observed < self._last:
                self._observe_curves()
            # The records are kept with the checkpoint, and judged when the run is resumed.
            for _ in self.session.records(self._wanted):
                pass
            self.session.save()

    def _save_if_due(self) -> None:
        if time.monotonic() >= self._due:
            began = time.monotonic()
            self.session.save()
            self._due = time.monotonic() + max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))

    def _tick(self) -> None:
        """Pass on what threads have posted, and the progress of the training."""
        step, loss = self.session.position, self.session.participants[self.plan.baseline].loss
        steps, diverged = self.case.params.steps, dict(self.judge.diverged)
        self._pass_on(TrainingAdvanced(self.case.id, self.dtype, step, steps, loss, diverged))

    def _announce_lost(self) -> None:
        """Announce each participant that dropped out once, and the progress."""
        for name, outcome in self.session.outcomes.items():
            if outcome.outcome is not Outcome.OK and name not in self._lost:
                self._lost.add(name)
                self._pass_on(Announced(f"{self.case.id} {self.dtype}: {name} drops out: {outcome.message}"))
        self._tick()

    def _result(self, *, interrupted: bool = False) -> JudgedCase:
        """Verdicts and causes, with their files. After an interrupt there are no causes, as the search may take long,
        and unfinished participants have no outcome."""
        outcomes = self._outcomes()
        with self._judging():
            judged = self._judged(outcomes, diagnose=not interrupted)
        norms = self._keep_norms()
        rows = [structs.replace(row, norms=norms.get(row.backend)) for row in judged.rows]
        for row in rows:
            if row.parting is not None:
                self._keep_step(row.parting.step)
        shown = [outcomes[spec.name] for spec in self.plan.backends]
        shown = [outcome for outcome in shown if not interrupted or outcome.outcome is not Outcome.OK]
        return JudgedCase(self.case, self.dtype, shown, judged.comparisons, judged.diagnoses, rows, self.judge_seconds)

    def _judged(self, outcomes: Mapping[str, CellOutcome], *, diagnose: bool) -> JudgedTraining:
        """Verdicts and causes. Where parity fails, they lack causes, or at last verdicts, and what passes is not
        compared."""
        judged = None
        for searched in dict.fromkeys((diagnose, False)):
            if judged is None:
                with self._failures.contained("judging the training" if searched else "judging it without causes"):
                    judged = self.judge.judged(outcomes, self._other_dtypes(), diagnose=searched)
        names = [spec.name for spec in self.plan.backends]
        if judged is None:
            judged = JudgedTraining(tuple(unknown(self.case, self.dtype, names, self._failures[-1])), (), ())
        if not self._failures:
            return judged
        rows = [unjudged(c, self._failures[-1]) if c.verdict.passes else c for c in judged.comparisons]
        diagnoses = []
        for name in names:
            mine = [d for d in judged.diagnoses if d.backend == name]
            tensors = tuple(c.tensor for c in rows if c.actual == name)
            diagnoses += with_failures((self.case.id, self.dtype, name), mine, self._failures, tensors)
        return replace(judged, comparisons=tuple(rows), diagnoses=tuple(diagnoses))

    def _other_dtypes(self) -> Mapping[str, FirstRatios]:
        """The ratios of first divergences in the case's dtypes that were judged before."""
        ratios: dict[str, dict[str, float | None]] = {}
        for row in self._rows:
            if row.case == self.case.id and row.dtype != self.dtype:
                at = row.parting
                ratios.setdefault(row.dtype, {})[row.backend] = None if at is None else at.ratio or math.nan
        return ratios

    def _outcomes(self) -> dict[str, CellOutcome]:
        """The outcomes of all participants. If every perturbed run failed, no curve can be judged, and every backend's
        outcome is an error."""
        outcomes = self.session.outcomes
        runs = [outcomes[name] for name in self.ensemble.members]
        going = outcomes[self.plan.baseline].outcome is Outcome.OK
        if not runs or not going or any(run.outcome is Outcome.OK for run in runs):
            return outcomes
        why = f"every perturbed run of {self.ensemble.of} failed; {runs[0].backend}: {runs[0].message}"
        names = [spec.name for spec in self.plan.backends if outcomes[spec.name].outcome is Outcome.OK]
        failed = {name: replace(outcomes[name], outcome=Outcome.ERROR, message=why) for name in names}
        return {**outcomes, **failed}

    @property
    def _folders(self) -> dict[str, str]:
        """A folder name for each backend that takes part, and for the oracle."""
        return {name: folder for name, folder in self._folder_names.items() if name in self.session.participants}

    def _keep_norms(self) -> dict[str, str]:
        """Store the norms [steps, tracked] of every backend; returns their files, relative to the run directory."""
        files, tracked = {}, {}
        for name, folder in self._folders.items():
            curves = self.session.participants[name].shown
            if curves is not None:
                path = self.folder / f"{folder}.npy"
                np.save(path, curves.norms, allow_pickle=False)
                files[name], tracked[folder] = str(path.relative_to(self.folder.parents[2])), list(curves.tracked)
        (self.folder / "tracked.json").write_text(json.dumps(tracked), encoding="utf-8")
        return files

    def _keep_step(self, step: int) -> None:
        """Keep the records of a step for after the training."""
        for name, folder in self._folders.items():
            self.session.participants[name].checkpoints.copy(step, self.folder / f"step-{step}" / folder)

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Adds the time in this context to the judge's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.judge_seconds += time.monotonic() - began
