"""The state of a run: events of the engine go to the judge, and what it finds to the store."""

from __future__ import annotations

import contextlib
import datetime
import errno
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from parity import exit_codes
from parity.clients import JudgedCase
from parity.config.plan import ORACLE, CasePlan, Plan
from parity.engine import BackendStarted, CasePrepared, CellFinished, EngineOptions, Event, Judging, ShardFinished
from parity.engine.inputs import save_array
from parity.engine.inputs import stored as stored_inputs
from parity.engine.logs import RunLog
from parity.engine.shards import shards
from parity.judge import known as deviations
from parity.judge.bound.envelope import dtype_of
from parity.judge.case import Judged, OtherCall
from parity.judge.compare.verdict import Comparison
from parity.judge.contained import ContainedJudge
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.memory import Memory, Revision
from parity.judge.failures import LOG, Failures, logged
from parity.judge.other_inputs import FIRST_OTHER
from parity.judge.subject import marked
from parity.outcome import CellOutcome
from parity.reporting.results import record
from parity.reporting.results.directory import Losses
from parity.reporting.results.results import as_json, write_atomically
from parity.reporting.results.resume import Finished, ResumeError, going_on
from parity.reporting.results.rows import FILE_NAME, BackendRow, Results, TrainingRow
from parity.reporting.results.store import BACKENDS, CASES, LARGE, RUN, STORE, TRAININGS, Store, placed
from parity.reporting.results.stored_tensors import backend_folders, file_name, folder_of_call, folder_of_results
from parity.reporting.results.summary import settle

CHECKPOINT_S = 4.0
CHECKPOINT_SHARE = 20.0
"""Results are written every four seconds; writing takes at most a twentieth of the run's time."""


class Observer(Protocol):
    """Receives the events of a run."""

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """An engine's event; for a finished cell, with its comparisons."""


@dataclass
class RunState:
    """The state of a run so far."""

    plan: Plan
    run_dir: Path
    command: Sequence[str]
    options: EngineOptions
    fail_on: str = exit_codes.DEFAULT_FAIL_ON
    exitfirst: bool = False
    stopped: bool = False
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    clock: float = field(default_factory=time.monotonic)
    backends: dict[str, BackendRow] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    n_outcomes: int = 0
    trainings: list[TrainingRow] = field(default_factory=list)
    judging_s: float = 0.0
    memories: dict[int, Memory] = field(default_factory=dict)
    judges: dict[str, ContainedJudge] = field(default_factory=dict)
    finished: Finished = field(default_factory=Finished)
    losses: Losses = field(default_factory=Losses)
    store: Store = field(default_factory=Store)

    def open(self) -> None:
        """Open the store of the run directory, with the cases, and with the rows of a run that is resumed."""
        if self.finished.started is None:
            self.store = Store(self.run_dir / STORE, self.lose)
        else:
            self.store = going_on(self.run_dir, self.finished.cells, self.lose)
        self.n_outcomes = self.store.n_outcomes
        self.trainings = list(self.store.rows(TRAININGS))
        folders = self.finished.folders
        self.store.put(CASES, (record.case_row(case, folders.get(case.id)) for case in self.plan.cases))

    def lose(self, error: OSError) -> None:
        """Note that the store could not be written."""
        self.losses.reasons[self.run_dir / STORE] = error

    @property
    def is_large(self) -> bool:
        """Whether it has too many rows for results.json."""
        cells = sum(len(case.dtypes) * (len(case.backends) or len(self.plan.backends)) for case in self.plan.cases)
        return cells >= LARGE

    def resume(self, finished: Finished) -> None:
        """Start from the finished results of an interrupted run."""
        self.finished = finished
        self.started = finished.started or self.started
        self.clock -= finished.seconds
        self.judging_s = finished.judge_seconds
        self.backends.update(finished.backends)

    def take(self, judged: JudgedCase) -> Sequence[Comparison]:
        """Record a case that a client has run and judged; returns its comparisons, the accepted ones marked."""
        self.take_outcomes(judged.outcomes)
        self.trainings += judged.rows
        self.store.add(judged.rows)
        self.judging_s += judged.judge_seconds
        return self.take_judged(judged.case, judged.comparisons, judged.diagnoses)

    def take_outcomes(self, outcomes: Sequence[CellOutcome]) -> None:
        """Record the outcomes of a cell."""
        self.n_outcomes += len(outcomes)
        self.store.add(map(record.outcome_row, outcomes))

    def take_judged(
        self,
        case: CasePlan,
        comparisons: Sequence[Comparison],
        diagnoses: Sequence[Diagnosis],
        revisions: Sequence[Revision] = (),
    ) -> Sequence[Comparison]:
        """Record a case; returns its comparisons, the accepted ones marked. A finding may stop the run."""
        comparisons = list(marked(comparisons, self.plan.of(case).subject))
        diagnoses = list(map(record.diagnosis_row, diagnoses))
        # In one transaction, since a resumed run assumes that a case with comparisons was diagnosed.
        self.store.add([*comparisons, *diagnoses])
        for revision in revisions:
            self.store.revise(revision.cell, revision.replaced, list(map(record.diagnosis_row, revision.diagnoses)))
        self.log(diagnoses)
        return self.accepted(case, comparisons, diagnoses)

    def take_shard(self, shard: ShardFinished) -> Sequence[Comparison]:
        """Record cases that were run and judged elsewhere; returns the comparisons of those that fail."""
        for row in shard.backends:
            self.take_backend(row)
        for name, content in shard.tensors.items():
            with self.losses.at(self.run_dir / name):
                (self.run_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (self.run_dir / name).write_bytes(content)
        self.losses.reasons |= {self.run_dir / name: OSError(errno.EIO, why) for name, why in shard.lost.items()}
        for case, folder in shard.folders.items():
            self.store.change(*placed(record.case_row(self.cases[case], Path(folder))))
        self.n_outcomes += len(shard.outcomes)
        self.judging_s += shard.judge_seconds
        self.store.add([*shard.outcomes, *shard.comparisons, *shard.diagnoses])
        self.log(shard.diagnoses)
        held: list[Comparison] = []
        for case in dict.fromkeys(row.case for row in shard.comparisons if row.fails):
            mine = [row for row in shard.comparisons if row.case == case]
            held += self.accepted(self.cases[case], mine, [row for row in shard.diagnoses if row.case == case])
        return held

    def log(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Write the tracebacks of what has failed in parity itself to the log."""
        if texts := list(logged(diagnoses)):
            write_log(self.run_dir, texts)

    def take_backend(self, row: BackendRow) -> None:
        """Record a backend that has started; raises ResumeError if a resumed run would mix two of its releases."""
        earlier = self.finished.backends.get(row.name)
        if earlier is not None and earlier.version != row.version:
            raise ResumeError(f"{row.name} was {row.framework} {earlier.version} and is now {row.version}")
        self.backends[row.name] = row
        # Members of a training's ensemble are not backends of the plan.
        spec = next((spec for spec in self.plan.backends if spec.name == row.name), None)
        if spec is None or spec.ops is None:
            return
        copy = self.run_dir / record.ops_copy(spec)
        if not copy.exists():
            with self.losses.at(copy):
                copy.parent.mkdir(exist_ok=True)
                write_atomically(copy, spec.ops.read_bytes())

    def accepted(
        self, case: CasePlan, comparisons: Sequence[Comparison], diagnoses: Sequence[Diagnosis]
    ) -> Sequence[Comparison]:
        """The comparisons of a case, the accepted ones marked. A finding may stop the run."""
        if not any(c.verdict.fails for c in comparisons):
            return comparisons
        known = tuple(entry for entry in self.plan.known if deviations.means(entry, case.id))
        alone = replace(self.plan, cases=(case,), known=known, asked=None)
        held = deviations.apply(alone, comparisons, diagnoses, datetime.date.today()).comparisons
        has_findings = exit_codes.exit_code(held, fail_on=self.fail_on) == exit_codes.MISMATCH
        self.stopped = self.stopped or (self.exitfirst and has_findings)
        return held

    @cached_property
    def cases(self) -> Mapping[str, CasePlan]:
        """The cases by id."""
        return {case.id: case for case in self.plan.cases}

    @cached_property
    def shard_of(self) -> Mapping[str, int]:
        """The number of each case's shard."""
        return {case.id: number for number, shard in enumerate(shards(self.plan)) for _, case in shard}

    def memory_of(self, case: CasePlan) -> Memory:
        """What explained earlier cases of the same shard; others may have run on another machine."""
        return self.memories.setdefault(self.shard_of[case.id], Memory())

    @property
    def is_complete(self) -> bool:
        """Whether every cell has an outcome."""
        answered = set(self.store.select("SELECT DISTINCT case_id, dtype FROM outcomes"))
        return all((case.id, dtype) in answered for case in self.plan.cases for dtype in case.dtypes)

    def settle(self, *, interrupted: bool) -> None:
        """Write the rows about the run as a whole to the store."""
        run = record.run_row(self.plan, self.run_dir.name, self.started.isoformat(), self.command, self.options)
        seconds = {"seconds": time.monotonic() - self.clock, "judge_seconds": self.judging_s}
        seconds = {name: round(s, 3) for name, s in seconds.items()}
        self.store.put(RUN, [structs.replace(run, fail_on=self.fail_on, stopped=self.stopped, **seconds)])
        rows = [self.backends.get(spec.name) or record.backend_row(spec) for spec in self.plan.backends]
        self.store.put(BACKENDS, rows)
        settle(self.store, self.plan, self.fail_on, interrupted=interrupted)

    def save(self) -> None:
        """Make the results so far readable, marked as interrupted, so that a killed run never reads as passed."""
        if self.is_large and self.n_outcomes:
            self.store.flush()
        else:
            self.write(interrupted=True)

    def write(self, *, interrupted: bool = False) -> Results:
        """Write the results; returns those that reports show. Only a small run has a results.json."""
        self.settle(interrupted=interrupted)
        results = self.store.shown()
        if not self.is_large:
            with self.losses.at(self.run_dir / FILE_NAME):
                write_atomically(self.run_dir / FILE_NAME, as_json(results))
        return results


def with_lost_reports(results: Results, failures: Failures, run_dir: Path) -> Results:
    """The results, which have not passed if parity has failed to make a report; the log says where."""
    if not failures:
        return results
    write_log(run_dir, [f"parity failed, {failure.doing}\n{failure.traceback}" for failure in failures])
    code = results.summary.exit_code or exit_codes.INCOMPLETE
    return structs.replace(results, summary=structs.replace(results.summary, exit_code=code))


def write_log(run_dir: Path, texts: Sequence[str]) -> None:
    """Add texts to the run's log."""
    log = RunLog(run_dir / LOG)
    for text in texts:
        log.line(text)
    log.close()


def follow(state: RunState, events: Iterator[Event], observer: Observer) -> Iterator[None]:
    """Process all events; yields whenever a checkpoint is due."""
    due, n_written = time.monotonic() + CHECKPOINT_S, 0
    with contextlib.closing(events):  # type: ignore[type-var]
        for event in events:
            if isinstance(event, CellFinished) and event.last_of_case:
                observer.on_event(Judging(event.prepared.case.id), ())
            observer.on_event(event, take_in(state, event))
            state.store.flush_if_due()
            if state.stopped:
                return
            if time.monotonic() > due and state.n_outcomes > n_written:
                began, n_written = time.monotonic(), state.n_outcomes
                yield
                due = time.monotonic() + max(CHECKPOINT_S, CHECKPOINT_SHARE * (time.monotonic() - began))


def take_in(state: RunState, event: Event) -> Sequence[Comparison]:
    """Process one event; returns the comparisons of a case when its last cell is finished."""
    if isinstance(event, BackendStarted):
        state.take_backend(record.backend_row(event.info.spec, event.info))
    elif isinstance(event, CasePrepared):
        prepared = event.prepared
        memory = state.memory_of(prepared.case)
        with timed(state):
            state.judges[prepared.case.id] = ContainedJudge(
                prepared.case,
                prepared.arrays,
                state.plan.of(prepared.case).baseline,
                memory,
                ask=event.ask,
                others=[other.arrays for other in prepared.others],
                ask_new=event.ask.in_new_process,
            )
        if prepared.lost is None:
            state.folders[prepared.case.id] = prepared.folder.relative_to(state.run_dir)
            state.store.change(*placed(record.case_row(prepared.case, state.folders[prepared.case.id])))
        else:
            state.losses.reasons[state.run_dir / "tensors" / prepared.folder.name] = prepared.lost
    elif isinstance(event, CellFinished):
        return take_cell(state, event)
    elif isinstance(event, ShardFinished):
        return state.take_shard(event)
    return ()


def take_cell(state: RunState, event: CellFinished) -> Sequence[Comparison]:
    """Record a finished cell; its outputs are kept until the last cell of the case is finished."""
    case_id = event.prepared.case.id
    state.take_outcomes(event.outcomes)
    with timed(state):
        kept = event.outcomes if event.last_of_case else [outcome.copied() for outcome in event.outcomes]
        state.judges[case_id].take(event.dtype, kept)
    return judge(state, state.judges.pop(case_id)) if event.last_of_case else ()


def judge(state: RunState, case: ContainedJudge, *, diagnose: bool = True) -> Sequence[Comparison]:
    """The comparisons of a case, the accepted ones marked; its tensors are stored if it fails."""
    with timed(state):
        judged = case.judged(diagnose=diagnose)
    return keep(state, case, judged)


def keep(state: RunState, case: ContainedJudge, judged: Judged) -> Sequence[Comparison]:
    """Record a judged case, and store its tensors if it fails."""
    compared = state.take_judged(case.case, judged.comparisons, judged.diagnoses, judged.revisions)
    folder = state.folders.pop(case.case.id, None)
    if folder is None:
        return compared
    for dtype, cell in case.cells.items():
        wanted = {c.tensor for c in judged.comparisons if c.dtype == dtype and (c.verdict.fails or c.culprit)}
        keep_tensors(state.run_dir / folder / dtype, case.oracle, cell.outcomes, wanted, state)
    for key, call in case.other_calls.items():
        wanted = {c.tensor for c in judged.comparisons if (c.dtype, c.actual) == key and c.call == call.ordinal}
        keep_call(state.run_dir / folder, key[0], call, case, wanted, state)
    return compared


def keep_call(
    folder: Path, dtype: str, call: OtherCall, case: ContainedJudge, tensors: Collection[str], state: RunState
) -> None:
    """Store `tensors` of a call on other inputs, with the inputs of all calls from the second one on up to it."""
    for number in range(FIRST_OTHER, call.ordinal + 1) if tensors else ():
        own = folder / folder_of_call(number)
        with state.losses.at(own):
            stored_inputs(case.inputs_of_call(number), own)
    results = folder / folder_of_results(dtype, call.ordinal)
    keep_tensors(results, call.cell.oracle, call.cell.outcomes, tensors, state)


def judge_rest(state: RunState) -> None:
    """Judge partly finished cases after an interrupt, without diagnoses, which may take long."""
    for case in state.judges.values():
        if case.began:
            judge(state, case, diagnose=False)


@contextlib.contextmanager
def timed(state: RunState) -> Iterator[None]:
    """Add the time in this context to the judge's time."""
    began = time.monotonic()
    try:
        yield
    finally:
        state.judging_s += time.monotonic() - began


def keep_tensors(
    folder: Path,
    oracle: Mapping[str, Any],
    outcomes: Mapping[str, CellOutcome],
    tensors: Collection[str],
    state: RunState,
) -> None:
    """Store `tensors` of a cell as computed by every backend and the oracle."""
    folders = backend_folders(spec.name for spec in state.plan.backends)
    exact = {n: values.astype(dtype_of(values, "float64"), copy=False) for n, values in oracle.items()}
    given: dict[str, Mapping[str, Any]] = {ORACLE: exact}
    given |= {name: {n: o.values for n, o in outcome.outputs.items()} for name, outcome in outcomes.items()}
    for name, outputs in given.items():
        for tensor in outputs.keys() & tensors:
            if outputs[tensor] is not None:
                path = folder / folders[name] / file_name(tensor)
                with state.losses.at(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    save_array(path, outputs[tensor])
