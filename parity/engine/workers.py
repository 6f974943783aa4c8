"""Workers for clients: a process for each participant, asked one request at a time, and kept warm between cases."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity import environments
from parity.config.plan import BackendSpec
from parity.engine.buffers import Scratch, SharedBuffers
from parity.engine.logs import RunLog
from parity.engine.process import Message, WorkerError, WorkerProcess, kill_children, kill_strays
from parity.engine.starting import BackendError, greet, load_ops, resolve, spawn
from parity.engine.supervision import Announced, BackendStarted, EngineOptions
from parity.outcome import Outcome

Reply = tuple[Message, dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Worker:
    """A process that serves `spec`, with the shared buffer for its tensors."""

    spec: BackendSpec
    process: WorkerProcess
    buffers: SharedBuffers
    buffer: Path

    def ask(self, request: Message, timeout_s: float) -> Reply:
        """The reply, and copies of its tensors. If there is none, the process has ended and WorkerError is raised."""
        reply = self.process.request({**request, "buffer": str(self.buffer)}, timeout_s)
        with self.reading():
            Outcome(reply["outcome"])
            outputs = self.buffers.outputs(self.buffer, reply.get("tensors", []))
        return reply, {name: np.array(output.values) for name, output in outputs.items() if output.values is not None}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context that reads a reply: if it is invalid, ends the worker and raises WorkerError."""
        try:
            yield
        except (KeyError, TypeError, ValueError, OSError) as error:
            self.process.kill()
            raise WorkerError(Outcome.CRASH, f"sent an invalid reply: {error!r}") from error


class Workers:
    """Provides workers of backends, and ends all of them; `post` takes the events of their starts.

    `threads` send the requests to workers, at most `n_computing` at the same time. They must outlive the workers, which
    Linux ends together with the thread that started them.
    """

    def __init__(self, options: EngineOptions, ops: Sequence[str], log: RunLog, post: Callable[[Any], None]) -> None:
        self.options = options
        self.n_computing = options.jobs or os.cpu_count() or 1
        self.threads = ThreadPoolExecutor(self.n_computing, thread_name_prefix="parity-client")
        self.scratch = Scratch()
        self._ops = ops
        self._log = log
        self._post = post
        self._idle: dict[BackendSpec, list[Worker]] = {}
        self._interpreters: dict[BackendSpec, environments.Interpreter | BackendError] = {}
        self._announced: set[BackendSpec] = set()
        self._processes: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._resolving = threading.Lock()
        self._stopped = threading.Event()

    def take(self, spec: BackendSpec) -> Worker:
        """A worker that serves `spec`; raises BackendError if none starts."""
        interpreter = self._interpreter(spec)
        with self._lock:
            idle = self._idle.get(spec, [])
            while idle:
                worker = idle.pop()
                if worker.process.alive:
                    return worker
                worker.process.kill()
        return self._new(spec, interpreter)

    def give_back(self, worker: Worker) -> None:
        """Make the worker available for other cases."""
        with self._lock:
            self._idle.setdefault(worker.spec, []).append(worker)

    def stop(self) -> None:
        """End every process now; pending requests fail."""
        self._stopped.set()
        with self._lock:
            for process in self._processes:
                process.kill()
        if self._resolving.locked():
            # Only an installer of an environment can still be running.
            kill_children()

    def close(self) -> None:
        """End every process and its descendants."""
        for worker in (worker for idle in self._idle.values() for worker in idle):
            worker.process.close()
        self.stop()
        self.threads.shutdown(cancel_futures=True)
        kill_strays(process.cookie for process in self._processes)
        self.scratch.remove()

    def _interpreter(self, spec: BackendSpec) -> environments.Interpreter:
        with self._resolving:
            if spec not in self._interpreters:
                try:
                    self._interpreters[spec] = resolve(spec, provision=self.options.provision, announce=self._announce)
                except BackendError as error:
                    self._interpreters[spec] = error
        interpreter = self._interpreters[spec]
        if isinstance(interpreter, BackendError):
            raise BackendError(str(interpreter), interpreter.outcome)
        return interpreter

    def _announce(self, text: str) -> None:
        if self._stopped.is_set():
            raise BackendError("stopped")
        self._post(Announced(text))

    def _new(self, spec: BackendSpec, interpreter: environments.Interpreter) -> Worker:
        with self._lock:
            if self._stopped.is_set():
                raise BackendError("stopped")
            process = spawn(spec.adapter, interpreter, self.options.threads, self._log, self.options.launch)
            buffers = SharedBuffers(self.scratch.folder, f"client-{len(self._processes)}", 1)
            self._processes.append(process)
        info = greet(process, spec, interpreter, self.options.threads)
        try:
            info = load_ops(process, info, self._ops, self.options.timeout_s)
        finally:
            if spec not in self._announced:
                self._announced.add(spec)
                self._post(BackendStarted(info))
        return Worker(spec, process, buffers, buffers.take())
