"""Lets tests fork their workers, in place of starting each one; see `tests.fork_server`.

A worker whose framework cannot be forked, or whose environment a test has changed, starts as it does for users.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from parity.engine import process
from parity.environments.interpreter import THREAD_VARIABLES
from tests.fork_server import FRAMEWORKS

SERVER = Path(__file__).parent / "fork_server.py"
LAUNCHED, BOOTSTRAP = process.launched, process.BOOTSTRAP
OF_A_TEST = (process.COOKIE, "PYTEST_CURRENT_TEST")
"""Variables that differ from worker to worker; they are read when a worker runs."""


class ForkedWorker:
    """A forked process, with what `WorkerProcess` uses of `subprocess.Popen`."""

    pid: int

    def __init__(self) -> None:
        pairs = os.pipe(), os.pipe()[::-1], os.pipe()[::-1]
        self.given = [theirs for theirs, _ in pairs]
        self.stdin, self.stdout, self.stderr = (
            FileIO(ours, mode) for (_, ours), mode in zip(pairs, "wrr", strict=True)
        )
        self._status: int | None = None
        self._has_ended = threading.Event()

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout: float | None = None) -> int | None:
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self._status

    def end(self, status: int) -> None:
        self._status = status
        self._has_ended.set()


class ForkServer:
    """The client of a fork server; `usable` is False if its framework cannot be forked."""

    def __init__(self, python: Path, adapter: str, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [str(python), str(SERVER), str(theirs.fileno()), str(process.PACKAGE), adapter],
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._replies = self._channel.makefile("r")
        self._lock = threading.Lock()
        self._new: ForkedWorker | None = None
        self._forked: dict[int, ForkedWorker] = {}
        self._answered = threading.Event()
        self.usable = self._replies.readline() == "ready\n"
        self._listener = threading.Thread(target=self._listen, daemon=True) if self.usable else None
        if self._listener is not None:
            self._listener.start()
        else:
            self.close()

    def fork(self, environment: Mapping[str, str]) -> ForkedWorker:
        """A new worker with unbuffered pipes. Raises RuntimeError if the server has ended."""
        sys.audit("subprocess.Popen", "worker", [], None, None)
        message = json.dumps({"environment": dict(environment), "folder": str(Path.cwd())}).encode()
        with self._lock:
            self._new = worker = ForkedWorker()
            self._answered.clear()
            socket.send_fds(self._channel, [struct.pack("I", len(message))], worker.given)
            self._channel.sendall(message)
            for descriptor in worker.given:
                os.close(descriptor)
            self._answered.wait()
        if not hasattr(worker, "pid"):
            raise RuntimeError("the fork server has ended")
        return worker

    def close(self) -> None:
        """End the server; workers that it has forked end with it."""
        self._process.kill()
        self._process.wait()
        if self._listener is not None:
            self._listener.join()
        self._replies.close()
        self._channel.close()

    def _listen(self) -> None:
        for line in self._replies:
            kind, pid, *status = line.split()
            if kind == "ended":
                self._forked.pop(int(pid)).end(int(*status))
            elif self._new is not None:
                self._new.pid, self._forked[int(pid)] = int(pid), self._new
                self._answered.set()
        self._process.wait()
        self._answered.set()
        for worker in self._forked.values():
            worker.end(-signal.SIGKILL)


class ForkServers:
    """In place of `parity.engine.process.launched`: forks a worker where it can, and starts it otherwise."""

    def __init__(self) -> None:
        self._environment = named(os.environ)
        self._servers: dict[tuple[Any, ...], ForkServer] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Let all workers of this process be launched here, as a plugin of a session of tests."""
        process.launched = self.launched

    def pytest_unconfigure(self) -> None:
        """End all servers with the session."""
        process.launched = LAUNCHED
        for server in self._servers.values():
            server.close()

    def launched(self, python: Path, adapter: str, environment: Mapping[str, str]) -> Any:
        given = named(environment)
        threads = {name: value for name, value in given.items() if name in THREAD_VARIABLES}
        own = {name: value for name, value in self._environment.items() if name in given} | threads
        if given != own or adapter not in FRAMEWORKS or process.BOOTSTRAP != BOOTSTRAP:
            return LAUNCHED(python, adapter, environment)
        key = (python, adapter, *sorted(threads.items()))
        with self._lock:
            if key not in self._servers:
                self._servers[key] = ForkServer(python, adapter, given)
        server = self._servers[key]
        return server.fork(environment) if server.usable else LAUNCHED(python, adapter, environment)


def named(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold for a whole session of tests."""
    return {name: value for name, value in environment.items() if name not in OF_A_TEST}
