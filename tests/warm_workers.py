"""Workers that stay warm between the runs of one test process: importing a framework costs more than most tests.

A worker is lent for a run, like a new one, and greeted anew. It comes back if it has served ops of its framework only;
one that has loaded somebody's file, a model or a training ends with its run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any
from unittest.mock import patch

import pytest

from parity import environments
from parity.engine import supervision, workers
from parity.engine.logs import RunLog
from parity.engine.process import Message, WorkerProcess

MOST_IDLE = 4
HARMLESS = frozenset({"hello", "run"})
"""Requests after which a worker is as good as new once it is greeted."""
Key = tuple[Any, ...]


class WarmWorkers:
    """The idle workers of a test process, the latest last."""

    def __init__(self) -> None:
        self._idle: list[tuple[Key, WorkerProcess]] = []
        self._lock = Lock()
        # Linux ends a worker together with the thread that started it, so this one lives as long as the tests.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="warm-workers")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test's runs, and those of its fixtures, borrow workers here, unless the test is about workers."""
        if item.get_closest_marker("own_workers"):
            return (yield)
        with patch.object(supervision, "spawn", self._lend), patch.object(workers, "spawn", self._lend):
            return (yield)

    def _lend(self, interpreter: environments.Interpreter, threads: int, log: RunLog) -> Borrowed:
        return Borrowed(self, interpreter, environments.worker_environment(interpreter, threads), log)

    def take(self, key: Key, interpreter: environments.Interpreter, environment: Mapping[str, str], log: RunLog) -> Any:
        """An idle worker that was greeted the same way, else a new one."""
        with self._lock:
            position = next((i for i, (other, _) in enumerate(self._idle) if other == key), None)
            process = None if position is None else self._idle.pop(position)[1]
        if process is None or not process.alive:
            return self._starter.submit(WorkerProcess, interpreter.python, environment, log).result()
        process._drain._log = log
        return process

    def keep(self, key: Key, process: WorkerProcess) -> None:
        """Takes a worker back; the one that has been idle longest ends where there are many."""
        with self._lock:
            self._idle.append((key, process))
            ended = self._idle[:-MOST_IDLE]
            del self._idle[:-MOST_IDLE]
        for _, other in ended:
            other.kill()

    def pytest_sessionfinish(self) -> None:
        """Ends all workers."""
        for _, process in self._idle:
            process.kill()
        self._idle.clear()
        self._starter.shutdown()


class Borrowed:
    """A worker for one run, with the methods of `WorkerProcess`; its framework is known from the first request."""

    def __init__(
        self, pool: WarmWorkers, interpreter: environments.Interpreter, environment: Mapping[str, str], log: RunLog
    ) -> None:
        self.cookie = uuid.uuid4().hex
        self._pool, self._interpreter, self._environment, self._log = pool, interpreter, environment, log
        self._key: Key = ()
        self._process: WorkerProcess | None = None
        self._returned = False
        self._own = False
        self._killed = False

    @property
    def alive(self) -> bool:
        return not self._killed and (self._process is None or self._process.alive)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def request(self, message: Message, timeout_s: float) -> Message:
        if self._process is None:
            kept = {name: value for name, value in self._environment.items() if not name.startswith("PYTEST_")}
            self._key = (str(self._interpreter.python), *sorted(message.items()), *sorted(kept.items()))
            self._process = self._pool.take(self._key, self._interpreter, self._environment, self._log)
            if self._killed:
                self._process.kill()
        self._own = self._own or message["do"] not in HARMLESS
        reply = self._process.request(message, timeout_s)
        # A worker that refused its greeting, or takes leave, has nothing to offer.
        self._own = self._own or bool(reply.get("last")) or reply.get("ok") is False
        return reply

    def close(self) -> None:
        if self._process is None or self._returned:
            return
        if self._own or self._key[1:] == () or not self._process.alive:
            self._process.close()
            return
        self._returned = True
        self._pool.keep(self._key, self._process)

    def kill(self) -> None:
        self._killed = True
        if self._process is not None and not self._returned:
            self._process.kill()
