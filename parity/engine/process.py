"""The host's end of a worker: spawns it, sends requests, and ends it with all its descendants."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import parity
from parity.engine.logs import LogDrain, RunLog
from parity.outcome import Outcome

PACKAGE = Path(parity.__file__).parent
BOOTSTRAP = PACKAGE / "worker" / "bootstrap.py"
COOKIE = "PARITY_WORKER"
POLL_S = 0.2
EXIT_S = 2.0
MAX_REPLY_BYTES = 64 << 20

Message = dict[str, Any]


class WorkerError(Exception):
    """The worker did not reply; `outcome` is crash or timeout, and the message says how it ended."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class WorkerProcess:
    """One worker in its interpreter, in a process group of its own; `launch` makes the process, as `launched` does.

    Its descendants inherit a cookie in their environment, by which even those that left the group and the session are
    found at the end.
    """

    def __init__(
        self,
        python: Path,
        adapter: str,
        environment: Mapping[str, str],
        log: RunLog,
        launch: Callable[[Path, str, Mapping[str, str]], Any] | None = None,
    ) -> None:
        self.cookie = uuid.uuid4().hex
        self._process = (launch or launched)(python, adapter, {**environment, COOKIE: self.cookie})
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101 - for the type checker
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._drain = LogDrain(os.dup(self._process.stderr.fileno()), log)
        self._process.stderr.close()
        self._buffer = bytearray()
        # Unlike select, poll takes descriptors above 1023.
        self._ready = select.poll()
        self._ready.register(self._replies, select.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its process group."""
        return self._process.pid

    def request(self, message: Message, timeout_s: float) -> Message:
        """Send one request and wait for its reply; without one, ends the worker and raises WorkerError."""
        self._drain.forget()
        try:
            self._send({**message, "timeout_s": timeout_s})
            reply = self._receive(time.monotonic() + timeout_s, timeout_s)
            if reply.get("last"):
                self.kill()
            return reply
        except ValueError as error:
            was_closed = self._replies.closed
            self.kill()
            if not was_closed:
                raise
            # Another thread killed the worker and closed its pipes.
            raise WorkerError(Outcome.CRASH, "ended") from error
        except WorkerError:
            self.kill()
            raise

    def _send(self, message: Message) -> None:
        data = memoryview((json.dumps(message) + "\n").encode())
        try:
            while data:
                data = data[os.write(self._requests.fileno(), data) :]
        except (OSError, ValueError) as error:
            raise self._crashed() from error

    def _receive(self, deadline: float, timeout_s: float) -> Message:
        while (line := self._take_line()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerError(
                    Outcome.TIMEOUT, f"no result after {timeout_s:g} s; raise --timeout if it needs longer"
                )
            if not self._ready.poll(1000 * min(left, POLL_S)):
                # A child of the worker may keep the pipe open after the worker has ended.
                if self._process.poll() is not None:
                    raise self._crashed()
                continue
            chunk = os.read(self._replies.fileno(), 1 << 16)
            self._buffer += chunk
            if not chunk or len(self._buffer) > MAX_REPLY_BYTES:
                raise self._crashed()
        return self._parse(line)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _parse(self, line: bytes) -> Message:
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise WorkerError(Outcome.CRASH, f"wrote {line[:80]!r} where a reply belongs") from error
        if not isinstance(reply, dict):
            raise WorkerError(Outcome.CRASH, f"wrote {line[:80]!r} where a reply belongs")
        return reply

    def _crashed(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        code = self._process.poll()
        kill_group(self.pid)
        tail = self._drain.tail()
        return WorkerError(Outcome.CRASH, how_it_ended(code) + (f"; last output: {tail}" if tail else ""))

    def close(self) -> None:
        """Ask the worker to end, wait a moment, then kill the rest of its group."""
        # ValueError: another thread killed the worker and closed its pipes.
        with contextlib.suppress(OSError, ValueError):
            os.write(self._requests.fileno(), b'{"do": "bye"}\n')
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker and its process group. May be called from another thread, and twice."""
        kill_group(self.pid)
        self._process.wait()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()


def launched(python: Path, adapter: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A new process that leads its group and session, with unbuffered pipes."""
    return subprocess.Popen(
        [str(python), str(BOOTSTRAP), str(PACKAGE), str(os.getpid()), adapter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        bufsize=0,
    )


def kill_group(pid: int) -> None:
    """Send SIGKILL to a process group that may already have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_children() -> None:
    """End all child processes, for example an installer of an environment."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def kill_strays(cookies: Iterable[str], name: str = COOKIE) -> int:
    """End the processes with one of some cookies in their environment, such as descendants of workers that left their
    process groups; returns their number."""
    import psutil

    wanted, killed = set(cookies), 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(name) in wanted:
                process.kill()
                killed += 1
    return killed


def how_it_ended(code: int | None) -> str:
    """`killed by SIGSEGV`, `exited with status 3 before it replied`, ..."""
    if code is None:
        return "closed its pipe but kept running"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exited with status {code} before it replied"
