"""Runs a Plan: draws inputs, keeps every backend busy, yields events as they happen."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

from parity.clients import CLIENTS
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine.buffers import Scratch, SharedBuffers
from parity.engine.cells import CellQueue, CellRequest
from parity.engine.extra_cells import Asking, CaseQuestions
from parity.engine.inputs import Prepared, prepare_safely
from parity.engine.logs import RunLog
from parity.engine.process import kill_children, kill_strays
from parity.engine.shards import shards
from parity.engine.starting import replaceable
from parity.engine.supervision import (
    Announced,
    BackendLost,
    BackendRunner,
    BackendStarted,
    EngineOptions,
    OutcomeArrived,
    Running,
)
from parity.outcome import CellOutcome, Outcome

MIN_CELLS_AHEAD = 64
MAX_CELLS_AHEAD = 1024
MAX_BYTES_AHEAD = 512 << 20
IDLE_S = 1.0
LEAVE_S = 10.0
SHORT_S = 1.0
MIN_BUFFERS = 4
MAX_BUFFERS = 256
"""Limit over all workers: each buffer is an open file, and 1,024 is a common limit."""


@dataclass(frozen=True)
class Resumed:
    """A run is resumed, with so many remaining op cases and (per dtype) client cases."""

    n_cases: int
    n_models: int


@dataclass(frozen=True)
class WorkBegun:
    """The backends are starting; `running()`, which is thread-safe, returns the cells being computed."""

    running: Callable[[], list[Running]]


@dataclass(frozen=True)
class CasePrepared:
    """A case's inputs are stored and its cells are queued. `ask` is valid until the last cell is judged."""

    prepared: Prepared
    ask: CaseQuestions


@dataclass(frozen=True)
class CellFinished:
    """All backends have answered a cell. The outputs are valid until the next event is requested."""

    prepared: Prepared
    dtype: str
    outcomes: tuple[CellOutcome, ...]
    last_of_case: bool


@dataclass(frozen=True)
class Judging:
    """All cells of a case are computed; it is now compared and diagnosed, which may take long."""

    case: str


@dataclass(frozen=True)
class Idle:
    """There was no event for a second."""


@dataclass(frozen=True)
class TrainingAdvanced:
    """All backends have finished `step` of `steps` steps; `loss` is the baseline's latest.

    `parted` maps each diverged backend to the step of its first divergence.
    """

    case: str
    dtype: str
    step: int
    steps: int
    loss: float
    parted: Mapping[str, int]


@dataclass(frozen=True)
class ModelFinished:
    """A client's case has been run and judged in one dtype."""

    case: str
    dtype: str


@dataclass(frozen=True)
class ShardFinished:
    """Cases were run and judged elsewhere: rows of results.json, and the backends that computed them.

    `folders` are those of the cases that have files, `tensors` the files by name, relative to the run directory, `lost`
    the files that could not be written. `progress` is the state of the run, in words.
    """

    n_cases: int
    backends: Sequence[Any]
    outcomes: Sequence[Any]
    comparisons: Sequence[Any]
    diagnoses: Sequence[Any]
    folders: Mapping[str, str]
    tensors: Mapping[str, bytes]
    lost: Mapping[str, str]
    judge_seconds: float
    progress: str = ""


Event = (
    Idle
    | Resumed
    | WorkBegun
    | CasePrepared
    | CellFinished
    | Judging
    | BackendStarted
    | BackendLost
    | Announced
    | TrainingAdvanced
    | ModelFinished
    | ShardFinished
)


def execute(plan: Plan, options: EngineOptions, run_dir: Path, done: Collection[str] = ()) -> Iterator[Event]:
    """Run the cells of the plan, except the clients' cases and the finished cases (`done`, ids).

    Closing the iterator, or an exception in its consumer, ends every worker.
    """
    with_tensors = run_dir / "tensors"
    cases = [(i, case) for i, case in enumerate(plan.cases) if case.op not in CLIENTS and case.id not in done]
    if not cases:
        return
    n_cells = sum(len(case.dtypes) for _, case in cases)
    pool = RunnerPool(plan, n_cells, options, RunLog(run_dir / "log.txt"))
    try:
        yield WorkBegun(pool.running)
        yield from Dispatcher(plan, cases, pool, with_tensors).events()
        pool.finish()
    finally:
        pool.dismiss()


class RunnerPool:
    """The runners of all backends and their shared resources."""

    def __init__(self, plan: Plan, n_cells: int, options: EngineOptions, log: RunLog) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._log = log
        self._scratch = Scratch()
        per_backend = max(1, min(options.jobs // len(plan.backends), os.cpu_count() or 1, n_cells))
        gate = threading.Semaphore(options.jobs or len(plan.backends))
        n_buffers = max(MIN_BUFFERS, MAX_BUFFERS // (per_backend * len(plan.backends)))
        self._queues = {spec.name: CellQueue(per_backend) for spec in plan.backends}
        self._runners: list[BackendRunner] = []
        self._per_backend = per_backend
        for number, spec in enumerate(plan.backends):
            cells = self._queues[spec.name]
            for copy in range(per_backend):
                buffers = SharedBuffers(self._scratch.folder, f"buffer-{number}-{copy}", n_buffers)
                ops = replaceable(case for case in plan.cases if case.runs_on(spec.name))
                self._runners.append(BackendRunner(spec, options, cells, ops, self.events.put, gate, buffers, log))
        self.spare = self._scratch.folder / "inputs"
        for runner in self._runners:
            runner.start()

    def asking(self) -> Asking:
        """Asks the runners."""
        return Asking(self._scratch.folder, self._runners)

    def running(self) -> list[Running]:
        """The cells that are being computed."""
        return [running for runner in self._runners if (running := runner.running) is not None]

    def put(self, cell: CellRequest) -> None:
        """Queue a cell for every backend that runs it."""
        for name, cells in self._queues.items():
            if cell.case.runs_on(name):
                cells.put(cell)

    def finish(self, wait_s: float = LEAVE_S) -> None:
        """Mark the end of the cells, so that every worker ends."""
        for cells in self._queues.values():
            for _ in range(self._per_backend):
                cells.put(None)
        for runner in self._runners:
            runner.join(wait_s)

    def dismiss(self) -> None:
        """Stop everything that is still running, and clean up."""
        for runner in self._runners:
            runner.stop()
        self.finish(SHORT_S)
        if any(runner.alive for runner in self._runners):
            # Only an installer of an environment can still delay a runner.
            kill_children()
            self.finish()
        kill_strays(cookie for runner in self._runners for cookie in runner.cookies)
        self._log.close()
        self._scratch.remove()


class Dispatcher:
    """Keeps enough cells queued, and collects their outcomes."""

    def __init__(self, plan: Plan, cases: Sequence[tuple[int, CasePlan]], pool: RunnerPool, tensors: Path) -> None:
        self._plan = plan
        self._pool = pool
        self._tensors = tensors
        askings = ((pool.asking(), shard) for shard in shards(plan))
        self._asking = {case.id: asking for asking, shard in askings for _, case in shard}
        self._waiting = list(reversed(cases))
        self._numbers = count()
        self._arrived: dict[int, list[OutcomeArrived]] = {}
        self._left: dict[str, int] = {}
        self._bytes_ahead = 0

    def events(self) -> Iterator[Event]:
        """All events up to the last cell."""
        while self._waiting or self._arrived:
            yield from self._top_up()
            try:
                event = self._pool.events.get(timeout=IDLE_S)
            except queue.Empty:
                event = Idle()
            if isinstance(event, OutcomeArrived):
                yield from self._gather(event)
            else:
                yield event

    def _top_up(self) -> Iterator[Event]:
        while self._waiting and self._room_for(self._waiting[-1][1]):
            index, case = self._waiting.pop()
            prepared = prepare_safely(case, index, self._plan.seed, self._tensors, self._pool.spare)
            self._left[case.id] = len(case.dtypes)
            self._bytes_ahead += self._size_of(case)
            for dtype in case.dtypes:
                cell = CellRequest(next(self._numbers), prepared, dtype)
                self._arrived[cell.number] = []
                self._hand_out(cell)
            yield CasePrepared(prepared, CaseQuestions(self._asking[case.id]))

    def _hand_out(self, cell: CellRequest) -> None:
        """Queue a cell for its backends; if its inputs are unusable, all of them get an error instead."""
        if not cell.prepared.problem:
            self._pool.put(cell)
            return
        for spec in self._plan.of(cell.case).backends:
            outcome = CellOutcome(cell.case.id, cell.dtype, spec.name, Outcome.ERROR, message=cell.prepared.problem)
            self._pool.events.put(OutcomeArrived(cell, outcome, release=lambda: None))

    def _room_for(self, case: CasePlan) -> bool:
        if not self._arrived:
            return True
        # There is time to prepare cells while workers start; later, results come first.
        limit = MAX_CELLS_AHEAD if self._pool.events.empty() else MIN_CELLS_AHEAD
        return len(self._arrived) < limit and self._bytes_ahead + self._size_of(case) <= MAX_BYTES_AHEAD

    def _gather(self, event: OutcomeArrived) -> Iterator[Event]:
        arrived = self._arrived[event.cell.number]
        arrived.append(event)
        case = event.cell.case
        backends = self._plan.of(case).backends
        if len(arrived) < len(backends):
            return
        self._left[case.id] -= 1
        yield CellFinished(
            event.cell.prepared,
            event.cell.dtype,
            in_order(arrived, backends),
            last_of_case=not self._left[case.id],
        )
        for arrival in arrived:
            arrival.release()
        del self._arrived[event.cell.number]
        if not self._left[case.id]:
            self._bytes_ahead -= self._size_of(case)
            prepared = event.cell.prepared
            for stored in (*prepared.others, *([] if prepared.lost is None else [prepared])):
                shutil.rmtree(stored.folder, ignore_errors=True)

    def _size_of(self, case: CasePlan) -> int:
        """Approximate size in bytes of the outputs of a case, on all backends and in all its dtypes."""
        n_elements = sum(prod(tensor.shape) for tensor in case.tensors)
        return 2 * 8 * n_elements * len(case.dtypes) * len(self._plan.of(case).backends)


def in_order(arrived: Sequence[OutcomeArrived], backends: Sequence[BackendSpec]) -> tuple[CellOutcome, ...]:
    """The outcomes in the order of the backends."""
    by_name = {arrival.outcome.backend: arrival.outcome for arrival in arrived}
    return tuple(by_name[spec.name] for spec in backends)
