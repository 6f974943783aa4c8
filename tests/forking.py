"""Lets tests fork their workers, in place of starting each one; see `parity.engine.fork_server`.

A worker whose framework cannot be forked, or whose environment a test has changed, starts as it does for users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.engine import forking, process
from parity.engine.forking import ForkServer, ForkServers
from parity.environments.interpreter import THREAD_VARIABLES

LAUNCHED, BOOTSTRAP, SERVERS = process.launched, process.BOOTSTRAP, ForkServers
OF_A_TEST = (process.COOKIE, "PYTEST_CURRENT_TEST")
"""Variables that differ from worker to worker; they are read when a worker runs."""


class ServersOfTests(ForkServers):
    """In place of `parity.engine.process.launched`."""

    def __init__(self) -> None:
        super().__init__()
        self._environment = named(os.environ)

    def install(self) -> None:
        """Let all workers of this process be launched here, as a plugin of a session of tests."""
        process.launched = self.launched
        forking.ForkServers = lambda: BorrowedServers(self)  # type: ignore[misc, assignment]

    def pytest_unconfigure(self) -> None:
        """End all servers with the session."""
        process.launched, forking.ForkServers = LAUNCHED, SERVERS  # type: ignore[misc]
        self.close()

    def server(self, python: Path, adapter: str, environment: Mapping[str, str]) -> ForkServer:
        return super().server(python, adapter, named(environment))

    def launched(self, python: Path, adapter: str, environment: Mapping[str, str]) -> Any:
        given = named(environment)
        threads = {name: value for name, value in given.items() if name in THREAD_VARIABLES}
        own = {name: value for name, value in self._environment.items() if name in given} | threads
        if given != own or process.BOOTSTRAP != BOOTSTRAP:
            return LAUNCHED(python, adapter, environment)
        return self.launch(python, adapter, environment)


class BorrowedServers:
    """In place of the servers of one command: those of the session, which go on."""

    def __init__(self, servers: ServersOfTests) -> None:
        self.server, self.launch, self.script = servers.server, servers.launched, servers.script

    def begin(self, adapter: str, threads: int) -> None:
        """Nothing is begun before it is needed."""

    def close(self) -> None:
        """The session closes them."""


def named(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold for a whole session of tests."""
    return {name: value for name, value in environment.items() if name not in OF_A_TEST}
