"""Starts a worker: finds its interpreter, spawns and greets the process, loads the user's ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity import environments
from parity.clients import CLIENTS, client_of
from parity.config.plan import BackendSpec, CasePlan
from parity.engine.logs import RunLog
from parity.engine.process import Message, WorkerError, WorkerProcess
from parity.outcome import Outcome

PROTOCOL = 1
START_TIMEOUT_S = 300.0


class BackendError(Exception):
    """The backend cannot run anything; `outcome` is unavailable or error."""

    def __init__(self, message: str, outcome: Outcome = Outcome.UNAVAILABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class BackendInfo:
    """A backend as detected; unknown fields are empty strings.

    `library` has the versions that the user's file reports, `dtypes` the dtypes that it supports (None: all).
    """

    spec: BackendSpec
    version: str = ""
    python: str = ""
    numpy: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    executable: str = ""
    library: dict[str, str] = field(default_factory=dict)
    differentiable: bool = True
    dtypes: tuple[str, ...] | None = None

    def able(self, reply: Message) -> BackendInfo:
        """The info with the capabilities that the worker reports; the default is everything."""
        dtypes = reply.get("dtypes")
        return replace(
            self,
            library=reply.get("library", {}),
            differentiable=bool(reply.get("differentiable", True)),
            dtypes=None if dtypes is None else tuple(map(str, dtypes)),
        )


def replaceable(cases: Iterable[CasePlan]) -> list[str]:
    """The functions that a user's file may replace for these cases."""
    return sorted({name for case in cases for name in functions_of(case)})


def functions_of(case: CasePlan) -> Sequence[str]:
    """The functions that a user's file may have for a case."""
    return client_of(case.op).replaceable(case) if case.op in CLIENTS else (case.op,)


def resolve(spec: BackendSpec, *, provision: bool, announce: Callable[[str], None]) -> environments.Interpreter:
    """The interpreter that runs a backend; raises BackendError if there is none."""
    try:
        return environments.resolve(spec, provision=provision, progress=announce)
    except environments.EnvironmentUnavailable as error:
        raise BackendError(str(error)) from error


def spawn(
    adapter: str, interpreter: environments.Interpreter, threads: int, log: RunLog, launch: Any = None
) -> WorkerProcess:
    """A new worker process, which waits for its first request."""
    environment = environments.worker_environment(interpreter, threads)
    return WorkerProcess(interpreter.python, adapter, environment, log, launch)


def greet(worker: WorkerProcess, spec: BackendSpec, interpreter: environments.Interpreter, threads: int) -> BackendInfo:
    """Let the worker import its framework; if that fails, end the worker and raise BackendError."""
    try:
        reply = worker.request(hello(spec, threads), START_TIMEOUT_S)
    except WorkerError as error:
        raise BackendError(f"{spec.adapter} does not start: {error}") from error
    check(worker, reply)
    known = {key: reply[key] for key in ("version", "python", "numpy", "flags")}
    return BackendInfo(spec, **known, executable=str(interpreter.python)).able(reply)


def load_ops(worker: WorkerProcess, info: BackendInfo, wanted: Sequence[str], timeout_s: float) -> BackendInfo:
    """Let the worker load the user's file, if any; returns the backend's info with what the file reports.

    If the file cannot be loaded, ends the worker and raises BackendError.
    """
    spec = info.spec
    if spec.ops is None:
        return info
    try:
        reply = worker.request({"do": "load", "path": str(spec.ops), "wanted": list(wanted)}, timeout_s)
    except WorkerError as error:
        raise BackendError(f"{spec.ops}: {error}", error.outcome) from error
    check(worker, reply)
    return info.able(reply)


def check(worker: WorkerProcess, reply: Message) -> None:
    """Raise BackendError and end the worker if the reply is an error."""
    if not reply.get("ok"):
        worker.close()
        raise BackendError(str(reply.get("message")), Outcome(reply.get("outcome", "unavailable")))


def hello(spec: BackendSpec, threads: int) -> Message:
    """The first request to a worker."""
    return {
        "do": "hello",
        "protocol": PROTOCOL,
        "adapter": spec.adapter,
        "device": spec.device,
        "threads": threads,
        "mode": spec.mode,
        "ranks": spec.ranks,
    }
