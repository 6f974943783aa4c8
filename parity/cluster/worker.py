"""Runs and judges shards in a Dask worker, which keeps the backends' processes warm over the shards of a run.

The backends' processes are the Dask worker's children: Dask is not imported in them, and they end with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker

from parity.cluster.messages import Order, Reply, ShardRows, Work, backend_here, encoded, restored, tensors_of, versions
from parity.config.plan import CasePlan, Plan
from parity.engine import Event
from parity.engine.engine import Dispatcher, RunnerPool
from parity.engine.inputs import folder_name
from parity.engine.logs import RunLog
from parity.engine.shards import SHARD_CELLS
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import BackendRow, OutcomeRow
from parity.run_state import RunState, follow

IDLE_S = 120.0
"""A worker without a shard for so long ends its backends, since the host may have died."""
MAX_LOG_BYTES = 256 << 10
MOST_IN_MEMORY = 64 << 20
"""Inputs of a shard up to this size are in shared memory: on a disk, creating and removing two files takes as long as
a small cell."""


class VersionMismatchError(Exception):
    """This worker has other versions than the host; the message says which."""


class RunEndedError(Exception):
    """The run has ended."""


def run_shard(name: str, work: Work) -> bytes:
    """The task: run the cases, and return the encoded reply; raises VersionMismatchError."""
    plugin: Any = get_worker().plugins[name]
    return encoded(plugin.run(work))


class BackendsPlugin(WorkerPlugin):  # type: ignore[misc]
    """A run's warm backends in one Dask worker."""

    def __init__(self, order: Order) -> None:
        self.name = order.name
        self._order = order

    def setup(self, worker: Any) -> None:
        """Called by Dask when the worker learns of the run."""
        self._address, self._home = str(worker.address), Path(worker.local_directory)
        self._lock = threading.Lock()
        self._pool: _WarmPool | None = None
        self._timer = threading.Timer(0, self._dismiss)
        self._ended = threading.Event()
        atexit.register(self._end)

    async def teardown(self, worker: Any) -> None:  # noqa: ARG002 - Dask's signature
        """Called by Dask when the run or the worker ends."""
        await asyncio.to_thread(self._end)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """End the backends, even within a shard."""
        self._ended.set()
        self._timer.cancel()
        if self._pool is not None:
            self._pool.close()

    def _dismiss(self) -> None:
        """End the backends, between two shards."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def run(self, work: Work) -> Reply:
        """Run a shard; raises VersionMismatchError, or any error of parity itself."""
        for part, version in versions().items():
            if self._order.versions[part] != version:
                raise VersionMismatchError(
                    f"{part} is {version} on the worker {self._address}, {self._order.versions[part]} here"
                )
        self._timer.cancel()
        with self._lock:
            if self._pool is None:
                self._pool = _WarmPool(self._order, self._home)
            try:
                return self._pool.run(work, self._address, self._ended)
            except BaseException:
                # Pending results would be mistaken for results of the next shard.
                self._pool.close()
                self._pool = None
                raise
            finally:
                self._timer = threading.Timer(IDLE_S, self._dismiss)
                self._timer.daemon = True
                self._timer.start()


class _WarmPool:
    """A pool of backends with its own folder."""

    def __init__(self, order: Order, home: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="parity-", dir=home))
        self._options = order.options
        backends = tuple(backend_here(spec, order.files, self._folder) for spec in order.plan.backends)
        self._plan = replace(order.plan, backends=backends)
        self._log = self._folder / "log.txt"
        self._pool = RunnerPool(self._plan, SHARD_CELLS, order.options, RunLog(self._log))
        self._backends: dict[str, BackendRow] = {}

    def run(self, work: Work, address: str, ended: threading.Event) -> Reply:
        """The rows and tensors of a shard, which do not depend on earlier shards."""
        home = self._pool.spare if input_bytes(work) <= MOST_IN_MEMORY else self._folder
        home.mkdir(exist_ok=True)
        run_dir = Path(tempfile.mkdtemp(prefix="shard-", dir=home))
        cases = [(index, restored(case, work.files, self._folder)) for index, case in work.cases]
        plan = replace(self._plan, cases=tuple(case for _, case in cases))
        try:
            rows, state = self._judged(plan, cases, run_dir, ended)
            wanted = {row.case for row in rows.of(Comparison) if row.fails or row.culprit}
            names = {case.id: f"tensors/{folder_name(index, case)}" for index, case in cases if case.id in wanted}
            folders = {case: name for case, name in names.items() if (run_dir / name).is_dir()}
            return self._reply(rows, state, folders, address)
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)

    def _judged(
        self, plan: Plan, cases: Sequence[tuple[int, CasePlan]], run_dir: Path, ended: threading.Event
    ) -> tuple[ShardRows, RunState]:
        rows = ShardRows()
        # It has the methods of a store that recording cases needs.
        state = RunState(plan, run_dir, (), self._options, store=rows)  # type: ignore[arg-type]
        events = Dispatcher(plan, cases, self._pool, run_dir / "tensors").events()
        for _ in follow(state, until(ended, events), NullObserver()):
            pass
        self._backends |= state.backends
        return rows, state

    def _reply(self, rows: ShardRows, state: RunState, folders: dict[str, str], address: str) -> Reply:
        tensors, too_large = tensors_of(state.run_dir, folders.values())
        with contextlib.suppress(OSError), self._log.open("ab") as log:
            log.writelines(f"[parity] {name} is too large to send\n".encode() for name in too_large)
        return Reply(
            worker=address,
            backends=list(self._backends.values()),
            outcomes=rows.of(OutcomeRow),
            comparisons=rows.of(Comparison),
            diagnoses=rows.of(Diagnosis),
            folders=folders,
            tensors=tensors,
            lost={str(path.relative_to(state.run_dir)): str(error) for path, error in state.losses.reasons.items()},
            judge_seconds=state.judging_s,
            log=self._taken_log(),
        )

    def _taken_log(self) -> bytes:
        """The log since the last shard."""
        try:
            text = self._log.read_bytes()[-MAX_LOG_BYTES:]
            self._log.write_bytes(b"")
        except OSError:
            return b""
        return text

    def close(self) -> None:
        """End the backends, and remove the folder."""
        self._pool.dismiss()
        shutil.rmtree(self._folder, ignore_errors=True)


def input_bytes(work: Work) -> int:
    """The size of a shard's inputs."""
    return sum(8 * prod(tensor.shape) for _, case in work.cases for tensor in case.tensors)


def until(ended: threading.Event, events: Iterator[Event]) -> Iterator[Event]:
    """The events; raises RunEndedError as soon as the run has ended, when backends no longer answer."""
    for event in events:
        if ended.is_set():
            raise RunEndedError("the run has ended")
        yield event


class NullObserver:
    """Observes nothing."""

    def on_event(self, event: Event, comparisons: Sequence[Any]) -> None:
        """Nothing: the host hears of whole shards."""
