"""Hands out the shards of a plan and turns replies into events: each case exactly once, whatever is lost."""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import KilledWorker
from distributed.comm import get_address_host

from parity.cluster.connection import Cluster, ClusterError
from parity.cluster.messages import InvalidReplyError, Reply, decoded, order_of, work_of
from parity.cluster.worker import BackendsPlugin, VersionMismatchError, run_shard
from parity.config.plan import CasePlan, Plan
from parity.engine import Announced, EngineOptions, Event, ShardFinished
from parity.engine.engine import Idle
from parity.engine.shards import Shard, shards
from parity.judge.compare.cell import CellJudge
from parity.judge.compare.verdict import Comparison
from parity.judge.failures import Failure, Failures, of_failed_case
from parity.judge.subject import marked
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results import record
from parity.reporting.results.rows import BackendRow, OutcomeRow
from parity.reporting.text.words import plural

POLL_S = 1.0
AHEAD = 2
"""Tasks per worker that are handed out, so that the next one is there while one is computed."""
NO_WORKER_S = 600.0
"""A cluster without a worker for so long is lost; a restarted batch job may take a while."""
NO_LOCAL_WORKER_S = 20.0
"""The same for processes of this machine, which are started again; Dask replaces one that dies, but not always."""
N_STARTS = 5
"""How often they are started again, as a case may be what ends them."""
LOST = (CancelledError, TimeoutError, OSError)
"""The errors that a call raises if the scheduler is gone."""


@dataclass(frozen=True)
class Part:
    """A shard, or a remaining part of one. `avoid` are hosts that lack one of its backends."""

    cases: Shard
    avoid: frozenset[str] = frozenset()


def events(
    cluster: Cluster, plan: Plan, options: EngineOptions, run_dir: Path, done: Collection[str] = ()
) -> Iterator[Event]:
    """Run the cells of the plan on the cluster, except the clients' cases and the finished cases (`done`, ids).

    Raises ClusterError if the cluster is lost for good.
    """
    left = (tuple((i, case) for i, case in shard if case.id not in done) for shard in shards(plan))
    parts = deque(Part(cases) for cases in left if cases)
    if not parts:
        return
    run = _Run(cluster, plan, options, run_dir / "log.txt", parts)
    try:
        yield from run.events()
    finally:
        run.end()


@dataclass
class _Run:
    cluster: Cluster
    plan: Plan
    options: EngineOptions
    log: Path
    waiting: deque[Part]
    name: str = field(default_factory=lambda: f"parity-{uuid.uuid4().hex}")
    running: dict[str, tuple[Part, Any, set[str]]] = field(default_factory=dict)
    """The parts that are handed out, by key, with their futures and the workers that may run them (empty: all)."""
    finished: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    numbers: Iterator[int] = field(default_factory=count)
    n_done: int = 0
    n_starts: int = 0
    seen: dict[str, tuple[BackendRow, str]] = field(default_factory=dict)
    """Each backend's row, and the host that it came from."""
    broken: set[str] = field(default_factory=set)
    nowhere: set[str] = field(default_factory=set)
    """Hosts that lack a backend that others have, and backends that a second host lacks too."""
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    looked_at: float = -POLL_S
    alive_at: float = field(default_factory=time.monotonic)

    def events(self) -> Iterator[Event]:
        """The events up to the last shard."""
        self.register()
        while self.waiting or self.running:
            try:
                yield from self.look()
                self.hand_out()
                yield from self.wait()
            except LOST:
                yield from self.recover("the scheduler is gone")

    def register(self) -> None:
        """Send the run's order to all workers, including later ones."""
        order = order_of(self.name, self.plan, self.options, with_files=not self.cluster.is_local)
        try:
            self.cluster.client.register_plugin(BackendsPlugin(order), name=self.name)
        except LOST:
            raise
        except Exception as error:  # Dask passes on a worker's error as its text
            raise unlike_the_host(error) from error

    def look(self) -> Iterator[Event]:
        """List the workers, at most once a second; raises ClusterError if there have been none for long."""
        if time.monotonic() < self.looked_at + POLL_S:
            return
        n_before, self.workers = len(self.workers), self.cluster.workers()
        self.looked_at = time.monotonic()
        if len(self.workers) != n_before:
            yield Announced(f"cluster {self.cluster.address}: {plural(len(self.workers), 'worker')}")
        for key, (part, future, fit) in list(self.running.items()):
            if fit and not self.workers.keys() & fit:
                # Dask would wait for the workers that have left.
                del self.running[key]
                future.cancel()
                self.waiting.appendleft(part)
        if self.workers:
            self.alive_at = time.monotonic()
            return
        lost_s = time.monotonic() - self.alive_at
        if self.cluster.is_local and lost_s > NO_LOCAL_WORKER_S and self.n_starts < N_STARTS:
            self.n_starts += 1
            yield from self.recover("no worker is left")
        elif lost_s > NO_WORKER_S:
            raise ClusterError(f"{self.cluster.address}: no worker for {NO_WORKER_S / 60:.0f} minutes")

    def hand_out(self) -> None:
        """Submit as many parts as keep the workers busy."""
        while self.waiting and len(self.running) < AHEAD * max(1, len(self.workers)):
            part = self.waiting[0]
            fit = {address for address in self.workers if get_address_host(address) not in self.broken | part.avoid}
            fit = fit if len(fit) < len(self.workers) else set()
            key = f"{self.name}-{next(self.numbers)}"
            future = self.cluster.client.submit(
                run_shard,
                self.name,
                work_of(part.cases, with_files=not self.cluster.is_local),
                key=key,
                pure=False,
                workers=sorted(fit) or None,
                resources=resources_of(self.plan, part.cases, self.workers.values()) or None,
            )
            self.waiting.popleft()
            self.running[key] = part, future, fit
            future.add_done_callback(self.finished.put)

    def wait(self) -> Iterator[Event]:
        """Wait a moment for a reply, and process it."""
        with contextlib.suppress(queue.Empty):
            future = self.finished.get(timeout=POLL_S)
            if future.key in self.running:
                yield from self.take(future)
            return
        if not self.cluster.is_connected:
            raise OSError("the scheduler is gone")
        yield Idle()

    def take(self, future: Any) -> Iterator[Event]:
        """Process a finished or failed task."""
        if future.status == "error":
            error = future.exception()
            part, _, _ = self.running.pop(future.key)
            yield from self.failed(part, error)
            return
        if future.status != "finished":
            raise OSError("the scheduler is gone")
        data = future.result()
        part, _, _ = self.running.pop(future.key)
        try:
            reply = decoded(data, self.plan, part.cases)
        except InvalidReplyError as error:
            yield from self.failed(part, error)
            return
        self.check(reply)
        if self.tries_elsewhere(part, reply):
            return
        self.keep_log(reply)
        names = ("backends", "outcomes", "comparisons", "diagnoses", "folders", "tensors", "lost", "judge_seconds")
        yield self.done(part, **{name: getattr(reply, name) for name in names})

    def done(self, part: Part, **rows: Any) -> ShardFinished:
        """The event for a finished part."""
        self.n_done += 1
        n_left = len(self.waiting) + len(self.running)
        progress = f"{self.n_done} of {self.n_done + n_left} shards, {plural(len(self.workers), 'Dask worker')}"
        return ShardFinished(len(part.cases), progress=progress, **rows)

    def failed(self, part: Part, error: BaseException | None) -> Iterator[Event]:
        """A part failed: retry its cases one by one; a single case gets an outcome that says how it failed."""
        if isinstance(error, VersionMismatchError | ModuleNotFoundError):
            raise unlike_the_host(error) from error
        if len(part.cases) > 1:
            self.waiting.extendleft(Part((case,)) for case in reversed(part.cases))
            return
        [(_, case)] = part.cases
        if isinstance(error, KilledWorker):
            n = 1 + int(dask.config.get("distributed.scheduler.allowed-failures"))
            message = f"{plural(n, 'Dask worker')} ended while computing this case"
            yield self.done(part, **lost_case(self.plan, case, Outcome.CRASH, message))
        else:
            cause = error if isinstance(error, Exception) else RuntimeError(str(error))
            yield self.done(part, **failed_case(self.plan, case, Failure.of("running the case on the cluster", cause)))

    def check(self, reply: Reply) -> None:
        """Raise ClusterError if two hosts have different releases of a framework."""
        for row in reply.backends:
            known, host = self.seen.setdefault(row.name, (row, reply.host))
            if (known.version, known.library) != (row.version, row.library):
                releases = [" ".join([r.framework, r.version, *map(str, r.library.items())]) for r in (known, row)]
                raise ClusterError(
                    f"{row.name} is {releases[0]} on {host} and {releases[1]} on {reply.host}; "
                    "give all workers the same environment"
                )

    def tries_elsewhere(self, part: Part, reply: Reply) -> bool:
        """Whether to retry a part once on another host, because this one lacks a backend that others may have."""
        lacking = {row.backend for row in reply.outcomes if row.outcome == Outcome.UNAVAILABLE.value}
        here = get_address_host(reply.worker)
        if part.avoid:
            if lacking:
                self.nowhere |= lacking
            elif here not in part.avoid:
                self.broken |= part.avoid
            return False
        others = {get_address_host(address) for address in self.workers} - {here} - self.broken
        if not lacking - self.nowhere or not others:
            return False
        self.waiting.appendleft(replace(part, avoid=frozenset({here})))
        return True

    def keep_log(self, reply: Reply) -> None:
        """Append the output of the workers' backends to the run's log."""
        if reply.log:
            with contextlib.suppress(OSError), self.log.open("ab") as log:
                log.write(f"[parity] on {reply.host}, {reply.worker}\n".encode() + reply.log)

    def recover(self, reason: str) -> Iterator[Event]:
        """Reconnect, and queue all parts without a reply again; raises ClusterError."""
        yield Announced(f"cluster {self.cluster.address}: {reason}; connecting again")
        self.waiting.extendleft(reversed([part for part, _, _ in self.running.values()]))
        self.running.clear()
        self.looked_at = -POLL_S
        self.cluster.reconnect()
        self.alive_at = time.monotonic()
        self.register()

    def end(self) -> None:
        """Cancel what is not computed, and let the workers end their backends."""
        futures, self.running = [future for _, future, _ in self.running.values()], {}
        if self.cluster.is_connected:
            # At the end of a failed run they may be gone; such an error must not hide the first one.
            with contextlib.suppress(Exception):
                self.cluster.client.cancel(futures)
                self.cluster.client.unregister_worker_plugin(self.name)


def unlike_the_host(error: BaseException) -> ClusterError:
    """The error for a scheduler or worker without parity, or with another release."""
    return ClusterError(f"{error}; give the scheduler and all workers the host's environment")


def resources_of(plan: Plan, cases: Shard, workers: Collection[Any]) -> dict[str, float]:
    """The Dask resources for these cases: `framework:NAME` and `GPU`, as far as any worker states them.

    Raises ClusterError if no worker has all of it.
    """
    specs = [spec for spec in plan.backends if any(case.runs_on(spec.name) for _, case in cases)]
    asked = [f"framework:{spec.adapter}" for spec in specs] + ["GPU"] * any(spec.device != "cpu" for spec in specs)
    stated = {name for worker in workers for name in worker["resources"]}
    wanted = {name: 1.0 for name in asked if name in stated}
    if wanted and not any(all(w["resources"].get(n, 0) >= 1 for n in wanted) for w in workers):
        raise ClusterError(
            f"no Dask worker has {' and '.join(wanted)}; start one with --resources "
            f'"{",".join(f"{name}=1" for name in wanted)}", or leave these resources out on all'
        )
    return wanted


def lost_case(plan: Plan, case: CasePlan, outcome: Outcome, message: str) -> dict[str, Any]:
    """The rows of a case that could not be computed; all its comparisons are not-compared."""
    own = plan.of(case)
    oracle = {name: np.zeros(()) for name in compared_in(case)}
    outcomes: list[OutcomeRow] = []
    comparisons: list[Comparison] = []
    for dtype in case.dtypes:
        cell = [CellOutcome(case.id, dtype, spec.name, outcome, message=message) for spec in own.backends]
        outcomes += list(map(record.outcome_row, cell))
        comparisons += marked(CellJudge(case, dtype, oracle).comparisons(cell, own.baseline), own.subject)
    empty: dict[str, Any] = {"backends": [], "diagnoses": [], "folders": {}, "tensors": {}, "lost": {}}
    return empty | {"outcomes": outcomes, "comparisons": comparisons, "judge_seconds": 0.0}


def failed_case(plan: Plan, case: CasePlan, failure: Failure) -> dict[str, Any]:
    """The rows of a case at which parity itself has failed: without outcomes, so that a resumed run runs it again."""
    own, names = plan.of(case), [spec.name for spec in plan.of(case).backends]
    parts = [of_failed_case(case, dtype, names, Failures([failure])) for dtype in case.dtypes]
    rows = [row for comparisons, _ in parts for row in marked(comparisons, own.subject)]
    causes = [cause for _, diagnoses in parts for cause in diagnoses]
    given: dict[str, Any] = {"backends": [], "outcomes": [], "folders": {}, "tensors": {}, "lost": {}}
    return given | {"comparisons": rows, "diagnoses": causes, "judge_seconds": 0.0}


def compared_in(case: CasePlan) -> Sequence[str]:
    """The names of a case's outputs and gradients."""
    op = case.definition
    given = {tensor.name: tensor.shape for tensor in case.tensors if op.input(tensor.name) is not None}
    outputs = op.infer_shapes(case.params, given).outputs
    gradients = [f"grad.{name}" for name in op.differentiable if name in given and case.gradients]
    return [*outputs, *gradients]
