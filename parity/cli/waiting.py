"""Processes that have imported what `parity check` needs, PyTorch too, and wait for one command of parity.

`python -m parity.cli.waiting` is one: the arguments come as one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

MODULES = ("torch", "parity.check.answer", "parity.check.at_size", "parity.run", "parity.reporting.results.outputs")
"""What a check imports first of all, with what these import."""


class WaitingProcess:
    """A process that waits for a command."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """What `parity ARGUMENTS` prints; the process ends with it."""
        stdout, stderr = self._process.communicate(json.dumps(arguments) + "\n")
        return subprocess.CompletedProcess(arguments, self._process.returncode, stdout, stderr)

    def close(self) -> None:
        """End it without a command."""
        self._process.communicate("")


class WaitingProcesses:
    """One process that waits, and the next one as soon as a command has ended. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: WaitingProcess | None = WaitingProcess()

    def call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """What `parity ARGUMENTS` prints."""
        with self._lock:
            process, self._next = self._next, None
        done = (process or WaitingProcess()).call(arguments)
        with self._lock:
            self._next = self._next or WaitingProcess()
        return done

    def close(self) -> None:
        """End the one that waits."""
        with self._lock:
            if self._next is not None:
                self._next.close()


def wait() -> None:
    """Import, wait for a command, and run it. Without one, end."""
    from parity.cli import main
    from parity.cli.check import fork_servers

    servers = fork_servers()
    servers.begin("torch", threads=1)
    try:
        for module in MODULES:
            import_module(module)
        line = sys.stdin.readline()
        if line:
            sys.argv[1:] = json.loads(line)
            main.main(prog_name="parity")
    finally:
        servers.close()


if __name__ == "__main__":
    wait()
