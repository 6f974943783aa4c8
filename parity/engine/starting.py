"""How a worker begins: its interpreter is found, the process spawned and greeted, the user's ops loaded."""

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
    """Nothing can run on this backend; `outcome` is unavailable or error."""

    def __init__(self, message: str, outcome: Outcome = Outcome.UNAVAILABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class BackendInfo:
    """A backend as it was found; empty strings for what could not be learnt.

    `library` are the versions that the user's file tells, `dtypes` what it computes in (None: all of them).
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
        """With what the worker says that it can do: everything, where it says nothing."""
        dtypes = reply.get("dtypes")
        return replace(
            self,
            library=reply.get("library", {}),
            differentiable=bool(reply.get("differentiable", True)),
            dtypes=None if dtypes is None else tuple(map(str, dtypes)),
        )


def replaceable(cases: Iterable[CasePlan]) -> list[str]:
    """The functions that a user's file may replace in a run of these cases."""
    kinds = {case.op for case in cases}
    return sorted({name for kind in kinds for name in (client_of(kind).replaceable if kind in CLIENTS else (kind,))})


def resolve(spec: BackendSpec, *, provision: bool, announce: Callable[[str], None]) -> environments.Interpreter:
    """The interpreter that runs a backend; raises BackendError where there is none."""
    try:
        return environments.resolve(spec, provision=provision, progress=announce)
    except environments.EnvironmentUnavailable as error:
        raise BackendError(str(error)) from error


def spawn(interpreter: environments.Interpreter, threads: int, log: RunLog) -> WorkerProcess:
    """A worker process that waits for its first request."""
    return WorkerProcess(interpreter.python, environments.worker_environment(interpreter, threads), log)


def greet(worker: WorkerProcess, spec: BackendSpec, interpreter: environments.Interpreter, threads: int) -> BackendInfo:
    """Let the worker import its framework; raises BackendError, with the worker ended, where it cannot."""
    try:
        reply = worker.request(hello(spec, threads), START_TIMEOUT_S)
    except WorkerError as error:
        raise BackendError(f"{spec.adapter} at its start: {error}") from error
    check(worker, reply)
    known = {key: reply[key] for key in ("version", "python", "numpy", "flags")}
    return BackendInfo(spec, **known, executable=str(interpreter.python)).able(reply)


def load_ops(worker: WorkerProcess, info: BackendInfo, wanted: Sequence[str], timeout_s: float) -> BackendInfo:
    """Let the worker run the user's file, if there is one: the backend with what the file says of itself.

    Raises BackendError, with the worker ended, if it cannot.
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
    """Raise BackendError and end the worker where the reply is a refusal."""
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
