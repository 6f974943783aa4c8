"""Reads the output of workers at once and keeps a part, so that endless output fills neither pipe nor disk."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from pathlib import Path

TAIL_BYTES = 64 * 1024
FILE_BYTES = 1024 * 1024
CHUNK = 64 * 1024
NOISE = re.compile(
    r"(?m)^\S*:\d+: \w*Warning: .*\n?(?:[ \t]+\S.*\n?)?"  # Python's warnings, with the line of source
    r"|^[IW]\d{4,8} \d\d:\d\d:\d\d.*\n?|^WARNING: .*before (?:absl::)?InitializeLog.*\n?"  # glog, absl
    r"|^\d{4}-\d\d-\d\d [\d:.]+: [IW] .*\n?"  # TensorFlow
)
"""Output of frameworks that is not an error."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")

FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+')
SOURCE = "    "
"""What the lines of source below a frame begin with."""
HEAD = "Traceback (most recent call last)"
OWN = f"{Path(__file__).resolve().parents[1]}{os.sep}"


def without_own_frames(lines: list[str]) -> list[str]:
    """The lines without the frames of parity's own files, and without the head of a stack that has no others."""
    kept, is_own = [], False
    for line in lines:
        frame = FRAME.match(line)
        is_own = frame["path"].startswith(OWN) if frame else is_own and line.startswith(SOURCE)
        if not is_own:
            kept.append(line)
    following = [*kept, ""][1:]
    return [one for one, after in zip(kept, following, strict=True) if not one.startswith(HEAD) or FRAME.match(after)]


class RunLog:
    """The run's log file, shared by all workers and the engine; without a file, their output is dropped."""

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            descriptor = os.open(os.devnull, os.O_WRONLY)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append a chunk; thread-safe."""
        with self._lock:
            # A full disk must not block a worker whose output is read here.
            if not self._file.closed:
                with contextlib.suppress(OSError):
                    self._file.write(data)

    def line(self, text: str) -> None:
        """Append one line from the engine."""
        self.write(f"[parity] {text}\n".encode())

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        with self._lock:
            self._file.close()


class LogDrain:
    """A thread that reads a worker's log pipe to its end; it keeps the tail, and logs the first part."""

    def __init__(self, descriptor: int, log: RunLog) -> None:
        self._descriptor = descriptor
        self._log = log
        self._tail = bytearray()
        self._reading = threading.Lock()
        self._written = 0
        self._thread = threading.Thread(target=self._drain, daemon=True, name="parity-log")
        self._thread.start()

    def tail(self, n_lines: int = 5, wait_s: float = 0.5) -> str:
        """The last lines, without noise, control characters and parity's own frames, after the pipe has ended or
        `wait_s` has passed."""
        self._thread.join(wait_s)
        text = NOISE.sub("", CONTROL.sub("", bytes(self._tail).decode("utf-8", "replace")))
        lines = [line.strip() for line in without_own_frames(text.splitlines()) if line.strip()]
        return "\n".join(lines[-n_lines:])

    def forget(self, wait_s: float = 0.1) -> None:
        """Quote nothing that has been printed so far, or is read within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while self._thread.is_alive():
            with self._reading:
                if not self._waiting() or time.monotonic() > deadline:
                    break
            time.sleep(0.001)
        self._tail.clear()

    def _waiting(self, timeout_ms: int | None = 0) -> bool:
        """Whether the pipe holds bytes, or has ended; waits for either."""
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        return bool(ready.poll(timeout_ms))

    def _drain(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as pipe:
            while self._waiting(None):
                with self._reading:
                    chunk = pipe.read(CHUNK)
                    if not chunk:
                        return
                    self._tail += chunk
                    del self._tail[:-TAIL_BYTES]
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = FILE_BYTES - self._written
        if room <= 0:
            return
        self._written += len(chunk)
        cut = b"" if len(chunk) <= room else b"\n[parity] this worker prints too much; the rest is dropped\n"
        self._log.write(chunk[:room] + cut)
