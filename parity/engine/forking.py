"""Forks workers from a process that has imported their framework, which takes a second or more each time.

A worker that is forked is a process of its own like one that is started: it has answered no request and computed
nothing.
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
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

from parity.engine.fork_server import FRAMEWORKS
from parity.engine.process import COOKIE, PACKAGE, kill_strays, launched
from parity.environments.interpreter import THREAD_VARIABLES

SERVER = PACKAGE / "engine" / "fork_server.py"
BOOT = """
import sys
folder, calls = sys.argv[1:3]
sys.argv[1:3] = []
sys.path[:] = [folder, *filter(None, sys.path)]
from parity.engine.fork_server import make_calls
make_calls(calls.split())
"""


@dataclass(frozen=True)
class Script:
    """Functions of parity's modules for workers, such as "parity.program.worker.trail:main", that a process of its own
    calls, with arguments, in a folder, with variables of the environment."""

    calls: Sequence[str]
    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def started(self) -> subprocess.Popen[bytes]:
        """A process in its own session that prints nothing."""
        command = [sys.executable, "-c", BOOT, str(PACKAGE.parent), " ".join(self.calls), *self.arguments]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = {**os.environ, **self.variables}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **quiet)


class ForkedWorker:
    """A forked process, with what is used of `subprocess.Popen`; a `quiet` one has no pipes."""

    pid: int

    def __init__(self, *, quiet: bool = False) -> None:
        if quiet:
            self.given = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        else:
            pairs = os.pipe(), os.pipe()[::-1], os.pipe()[::-1]
            self.given = [theirs for theirs, _ in pairs]
            self.stdin, self.stdout, self.stderr = (
                FileIO(ours, mode) for (_, ours), mode in zip(pairs, "wrr", strict=True)
            )
        self._status: int | None = None
        self._has_ended = threading.Event()

    def poll(self) -> int | None:
        """How it has ended, as a status of `subprocess`; None while it runs."""
        return self._status

    def wait(self, timeout: float | None = None) -> int | None:
        """How it ends. Raises subprocess.TimeoutExpired after so many seconds."""
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self._status

    def end(self, status: int) -> None:
        """Note how it has ended."""
        self._status = status
        self._has_ended.set()


class ForkServer:
    """The client of a fork server.

    What `/proc` shows of a forked process is the server's environment, so its cookie tells what workers have left.
    """

    def __init__(self, python: Path, adapter: str, environment: Mapping[str, str]) -> None:
        self.cookie = uuid.uuid4().hex
        self.environment = environment
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [str(python), str(SERVER), str(theirs.fileno()), str(PACKAGE), adapter],
                env={**environment, COOKIE: self.cookie},
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
        self._listener: threading.Thread | None = None

    @cached_property
    def usable(self) -> bool:
        """Whether its framework can be forked; waits until it is imported."""
        if self._replies.readline() != "ready\n":
            self.close()
            return False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return True

    def fork(self, environment: Mapping[str, str]) -> ForkedWorker:
        """A new worker with unbuffered pipes, if the server is usable; auditing hooks see it as one that is started.

        Raises RuntimeError if the server has ended.
        """
        request = {"environment": dict(environment), "folder": str(Path.cwd()), "calls": []}
        return self._forked_for(request, ForkedWorker())

    def call(self, script: Script, environment: Mapping[str, str]) -> ForkedWorker:
        """A new process that makes the calls of a script and prints nothing. Raises RuntimeError if the server has
        ended."""
        request = {
            "environment": {**environment, **script.variables},
            "folder": str(script.folder),
            "calls": script.calls,
            "arguments": ["", *script.arguments],
        }
        return self._forked_for(request, ForkedWorker(quiet=True))

    def _forked_for(self, request: Mapping[str, Any], worker: ForkedWorker) -> ForkedWorker:
        sys.audit("subprocess.Popen", "worker", [], None, None)
        message = json.dumps(request).encode()
        with self._lock:
            self._new = worker
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
        """End the server, its workers, and what these have left. May be called twice."""
        self._process.kill()
        self._process.wait()
        kill_strays([self.cookie])
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
    """Launches workers, for several threads: forks those whose framework can be forked, starts the others."""

    def __init__(self) -> None:
        self._servers: dict[tuple[Any, ...], ForkServer] = {}
        self._lock = threading.Lock()

    def begin(self, adapter: str, threads: int) -> ForkServer:
        """Let a framework of this interpreter be imported meanwhile: workers with this number of threads will be asked
        for."""
        return self.server(
            Path(sys.executable), adapter, {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        )

    def server(self, python: Path, adapter: str, environment: Mapping[str, str]) -> ForkServer:
        """The server of such workers, which begins to import their framework if it is new."""
        own = {name: value for name, value in environment.items() if name != COOKIE}
        key = (python, adapter, *sorted(own.items()))
        with self._lock:
            if key not in self._servers:
                self._servers[key] = ForkServer(python, adapter, own)
        return self._servers[key]

    def launch(self, python: Path, adapter: str, environment: Mapping[str, str]) -> Any:
        """A new worker process; as `parity.engine.process.launched`."""
        server = self.server(python, adapter, environment) if adapter in FRAMEWORKS else None
        if server is None or not self._is_usable(server):
            return launched(python, adapter, environment)
        return server.fork(environment)

    def script(self, script: Script) -> Any:
        """A new process for a script that uses PyTorch, forked if it can be."""
        server = self.begin("torch", threads=1)
        return server.call(script, server.environment) if self._is_usable(server) else script.started()

    def _is_usable(self, server: ForkServer) -> bool:
        with self._lock:
            return server.usable

    def close(self) -> None:
        """End all servers, their workers, and what these have left."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
