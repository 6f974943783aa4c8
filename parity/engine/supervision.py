"""Runs one backend: a thread that finds its interpreter, keeps a worker warm and sends it one cell after another.

A worker that dies costs its cell; a new one is started for the next cell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parity import environments
from parity.cases.layout import LAYOUTS
from parity.cases.op import call_params, default_params
from parity.config.plan import BackendSpec
from parity.engine.buffers import SharedBuffers
from parity.engine.cells import CellQuestion, CellQueue, CellRequest
from parity.engine.logs import RunLog
from parity.engine.process import Message, WorkerError, WorkerProcess
from parity.engine.starting import BackendError, BackendInfo, greet, load_ops, resolve, spawn
from parity.outcome import NOT_A_TENSOR, CellOutcome, Outcome, Output

MAX_SMALL = 1 << 20
"""Results of up to so many elements are always accepted, whatever shape was expected."""
MAX_FAILED_STARTS = 2

Running = tuple[str, str, str]
"""A case, a dtype and the backend that computes it."""


@dataclass(frozen=True)
class EngineOptions:
    """How to run: see `parity run --help`. `jobs` bounds the number of concurrent cells (0: one per backend); `launch`
    makes the processes of workers."""

    timeout_s: float = 60.0
    threads: int = 1
    jobs: int = 0
    provision: bool = True
    launch: Callable[[Path, str, Mapping[str, str]], Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class BackendStarted:
    """A backend's worker has started; `info` describes it."""

    info: BackendInfo


@dataclass(frozen=True)
class BackendLost:
    """A backend cannot be used; its remaining cells get an outcome with this message."""

    spec: BackendSpec
    message: str


@dataclass(frozen=True)
class Announced:
    """A line about the progress of long work."""

    message: str


@dataclass(frozen=True)
class OutcomeArrived:
    """One backend has answered a cell. `release` frees its buffer when the outputs are no longer needed."""

    cell: CellRequest
    outcome: CellOutcome
    release: Callable[[], None]


class BackendRunner:
    """Serves the questions and cells of a queue and posts events; several runners may share a backend's queue.

    One of its `buffers` is reserved for questions, so that they can be answered while all cells wait to be judged.
    """

    def __init__(
        self,
        spec: BackendSpec,
        options: EngineOptions,
        cells: CellQueue,
        ops: Sequence[str],
        post: Callable[[Any], None],
        gate: threading.Semaphore,
        buffers: SharedBuffers,
        log: RunLog,
    ) -> None:
        self.spec = spec
        self.cookies: list[str] = []
        self._options = options
        self._cells = cells
        self._ops = ops
        self._post = post
        self._gate = gate
        self._buffers = buffers
        self._log = log
        self._worker: WorkerProcess | None = None
        self._new_worker: WorkerProcess | None = None
        self._info = BackendInfo(spec)
        self._cell: CellRequest | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"parity-{spec.name}")

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at once by killing the workers; remaining cells are not computed."""
        with self._cells.changed:
            self._stopped.set()
            self._cells.changed.notify_all()
        for worker in (self._worker, self._new_worker):
            if worker is not None:
                worker.kill()

    def ask(self, question: CellQuestion) -> None:
        """Answer a question before the next cell."""
        self._cells.ask(question)

    @property
    def running(self) -> Running | None:
        """The cell of the run that is being computed."""
        cell = self._cell
        return None if cell is None or isinstance(cell, CellQuestion) else (cell.case.id, cell.dtype, self.spec.name)

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        try:
            interpreter = self._resolve()
            self._work(interpreter)
        except BackendError as error:
            self._give_up(error)
        except Exception as error:
            # A bug here must end in a clear outcome, not in a hang.
            self._log.line(f"{self.spec.name}: {error!r}")
            self._give_up(BackendError(f"parity failed: {error!r}", Outcome.ERROR))
        finally:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def _resolve(self) -> environments.Interpreter:
        def announce(text: str) -> None:
            if self._stopped.is_set():
                raise BackendError("stopped")
            self._post(Announced(text))

        return resolve(self.spec, provision=self._options.provision, announce=announce)

    def _work(self, interpreter: environments.Interpreter) -> None:
        self._start(interpreter)
        failed_starts = 0
        while (cell := self._next()) is not None:
            if isinstance(cell, CellQuestion) and cell.new_process:
                self._run_in_new_process(cell, interpreter)
                continue
            try:
                if self._worker is not None and not self._worker.alive:
                    self._log.line(f"{self.spec.name}: the worker died after its last cell")
                    self._worker.kill()
                    self._worker = None
                if self._worker is None:
                    self._start(interpreter)
            except BackendError as error:
                failed_starts += 1
                if failed_starts >= MAX_FAILED_STARTS:
                    raise
                self._fail(cell, error)
                continue
            failed_starts = 0
            self._run(cell, self._worker)

    def _run_in_new_process(self, cell: CellQuestion, interpreter: environments.Interpreter) -> None:
        """Answer a question in a worker of its own, which ends after it."""
        try:
            with self._gate:
                worker = self._new_worker = self._spawned(interpreter)
                info = greet(worker, self.spec, interpreter, self._options.threads)
                load_ops(worker, info, self._ops, self._options.timeout_s)
            self._run(cell, worker)
        except BackendError as error:
            self._fail(cell, error)
        finally:
            if self._new_worker is not None:
                self._new_worker.close()
                self._new_worker = None

    def _spawned(self, interpreter: environments.Interpreter) -> WorkerProcess:
        """A new worker, which the end of the run ends; once the run is stopped, it has ended already."""
        worker = spawn(self.spec.adapter, interpreter, self._options.threads, self._log, self._options.launch)
        self.cookies.append(worker.cookie)
        if self._stopped.is_set():
            worker.kill()
        return worker

    def _start(self, interpreter: environments.Interpreter) -> None:
        try:
            with self._gate:
                worker = self._worker = self._spawned(interpreter)
                self._info = greet(worker, self.spec, interpreter, self._options.threads)
            try:
                with self._gate:
                    self._info = load_ops(worker, self._info, self._ops, self._options.timeout_s)
            finally:
                self._post(BackendStarted(self._info))
        except BackendError:
            self._worker = None
            raise

    def _next(self) -> CellRequest | None:
        """Take the next question or cell; None at the end."""
        self._cell = self._cells.take(self, lambda: self._buffers.left > 1, self._stopped)
        return self._cell

    def _run(self, cell: CellRequest, worker: WorkerProcess | None) -> None:
        dtypes = self._info.dtypes
        if dtypes is not None and cell.dtype not in dtypes:
            reason = f"supports only {', '.join(dtypes)}, not {cell.dtype}"
            self._fail(cell, BackendError(reason, Outcome.UNSUPPORTED))
            return
        if worker is None:
            raise BackendError("its worker has ended", Outcome.ERROR)
        with self._cells.changed:
            buffer = self._buffers.take()
        try:
            with self._gate:
                request = run_request(cell, str(buffer), self.spec, gradients=self._info.differentiable)
                reply = worker.request(request, self._options.timeout_s)
            outcome = self._outcome(cell, reply, buffer, worker)
        except WorkerError as error:
            self._worker = None if worker is self._worker else self._worker
            self._log.line(f"{self.spec.name}: {cell.case.id} {cell.dtype}: {error}")
            outcome = CellOutcome(cell.case.id, cell.dtype, self.spec.name, error.outcome, message=str(error))
        if not self._stopped.is_set():
            self._arrive(cell, outcome, lambda: self._give_back(buffer))

    def _give_back(self, buffer: Path) -> None:
        with self._cells.changed:
            self._buffers.give_back(buffer)
            self._cells.changed.notify_all()

    def _outcome(self, cell: CellRequest, reply: Message, buffer: Path, worker: WorkerProcess) -> CellOutcome:
        try:
            if reply["cell"] != cell.number:
                raise ValueError(f"answered cell {reply['cell']} where {cell.number} was asked")
            returned = self._buffers.outputs(buffer, reply["tensors"])
            ran = Outcome(reply["outcome"]) is Outcome.OK
            lacking = (uncomputed(cell, returned) if ran else {}) if self._info.differentiable else gradients_of(cell)
            return CellOutcome(
                case=cell.case.id,
                dtype=cell.dtype,
                backend=self.spec.name,
                outcome=Outcome(reply["outcome"]),
                seconds=float(reply["seconds"]),
                message=str(reply["message"]) or next(iter(lacking.values()), ""),
                outputs={name: o for name, o in returned.items() if not name.startswith(MARKS)},
                lacking=lacking,
                again=marked(returned, AGAIN),
                changed=marked(returned, CHANGED),
                composed=bool(reply.get("composed", False)),
                overwritten=marked(returned, OVERWRITTEN),
                others=[marked(returned, f"{OTHER}{number}.") for number in range(len(cell.prepared.others))],
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            worker.kill()
            raise WorkerError(Outcome.CRASH, f"gave an invalid reply: {error!r}") from error

    def _give_up(self, error: BackendError) -> None:
        if self._cells.leave():
            if isinstance(self._cell, CellQuestion):
                self._fail(self._cell, error)
            elif self._cell is not None:
                self._cells.put(self._cell)
            return
        self._post(BackendLost(self.spec, str(error)))
        cell = self._cell or self._next()
        while cell is not None:
            self._fail(cell, error)
            cell = self._next()

    def _fail(self, cell: CellRequest, error: BackendError) -> None:
        self._arrive(cell, CellOutcome(cell.case.id, cell.dtype, self.spec.name, error.outcome, message=str(error)))

    def _arrive(self, cell: CellRequest, outcome: CellOutcome, release: Callable[[], None] = lambda: None) -> None:
        self._cell = None
        if isinstance(cell, CellQuestion):
            cell.answers.put(outcome.copied())
            release()
        else:
            self._post(OutcomeArrived(cell, outcome, release))


MARKS = AGAIN, CHANGED, OVERWRITTEN, OTHER = "again.", "input.", "overwritten.", "other."
"""Prefixes in a reply of the results of other calls, of inputs and results that have changed, and of results for other
inputs."""
STRESS_CALLS = 11
"""Enough calls to catch a kernel that is wrong in one call of ten."""


def marked(returned: Mapping[str, Output], mark: str) -> dict[str, Output]:
    """The tensors with this prefix, by name."""
    return {name.removeprefix(mark): output for name, output in returned.items() if name.startswith(mark)}


FORWARD_ONLY = "it is forward only, so its gradients are not compared"


def gradients_of(cell: CellRequest, reason: str = FORWARD_ONLY) -> dict[str, str]:
    """The gradients that a cell requests, each with the reason why a backend lacks it."""
    if not cell.case.gradients:
        return {}
    return {f"grad.{name}": reason for name in cell.case.definition.differentiable if name in cell.prepared.paths}


def uncomputed(cell: CellRequest, returned: Mapping[str, Output]) -> dict[str, str]:
    """The gradients, each with the reason, if an output cannot take its grad_output and there are none; one that only a
    backward pass of the user's leaves out is missing."""
    expected = {name: cell.prepared.arrays.get(f"grad.{name}") for name in cell.case.definition.grad_outputs}
    flaws = {n: flaw_of(returned.get(n), dy.shape) for n, dy in expected.items() if dy is not None}
    reason = next((f"gradients are not computed, since {n} {flaw}" for n, flaw in flaws.items() if flaw), "")
    missing = gradients_of(cell, reason) if reason else {}
    return missing if missing.keys().isdisjoint(returned) else {}


def flaw_of(output: Output | None, shape: tuple[int, ...]) -> str:
    """Why an output cannot take a grad_output of this shape, in words; empty if it can."""
    if output is None:
        return "is missing"
    if output.dtype.endswith(NOT_A_TENSOR):
        return "is no tensor"
    if output.shape != shape:
        return "has another shape"
    differentiable = output.values is not None and output.values.dtype.kind == "f"
    return "" if differentiable else f"has dtype {output.dtype}"


def run_request(cell: CellRequest, buffer: str, spec: BackendSpec, *, gradients: bool = True) -> Message:
    """The request to a worker for `cell`; without `gradients`, only for outputs."""
    case, op = cell.case, cell.case.definition
    gradients = gradients and case.gradients
    paths = {name: str(path) for name, path in cell.prepared.paths.items()}

    def given(others: Mapping[str, Path]) -> dict[str, str]:
        return {name: str(path) for name, path in others.items() if gradients or not op.is_grad_output(name)}

    grad_outputs = {name: paths[f"grad.{name}"] for name in op.grad_outputs if gradients and f"grad.{name}" in paths}
    tensors = {name: path for name, path in paths.items() if op.input(name) is not None}
    return {
        "do": "run",
        "cell": cell.number,
        "op": case.op,
        "dtype": cell.dtype,
        "params": call_params(case.params),
        "droppable": sorted(default_params(case.params)),
        "tensors": tensors,
        "absent": [item.name for item in op.inputs if item.optional and item.name not in tensors],
        "grad_outputs": grad_outputs,
        "differentiable": [name for name in op.differentiable if name in tensors],
        "lists": [item.name for item in op.inputs if item.listed],
        "buffer": buffer,
        "max_elements": 4 * max(array.size for array in cell.prepared.arrays.values()) + MAX_SMALL,
        "watched": {name: paths[name] for name in watched(cell)} if is_watched(cell, spec) else {},
        "layouts": layouts_of(cell),
        "storage": {plan.name: plan.storage for plan in case.tensors if plan.storage},
        "calls": calls_of(cell, spec),
        "others": [given(other.paths) for other in cell.prepared.others],
    }


def calls_of(cell: CellRequest, spec: BackendSpec) -> int:
    """How often an op is called; in a compiled mode, whose calls are slow, at most twice."""
    if isinstance(cell, CellQuestion) or not is_small(cell):
        return 1
    if spec.mode != "eager":
        return 2 if cell.case.stress else 1
    return STRESS_CALLS if cell.case.stress else 2


def is_small(cell: CellRequest) -> bool:
    """Whether a call costs less than the work around it."""
    return cell.prepared.small


def is_watched(cell: CellRequest, spec: BackendSpec) -> bool:
    """Whether inputs are checked for changes: those of a user's op, and if the cell is small."""
    return isinstance(cell, CellQuestion) or spec.ops is not None or is_small(cell)


def layouts_of(cell: CellRequest) -> Message:
    """The memory layouts of tensors that are not contiguous, or that share the memory of an equal tensor."""
    arrays, layouts = cell.prepared.arrays, {}
    for plan in cell.case.tensors:
        values, other = arrays.get(plan.name), arrays.get(plan.alias)
        placement = LAYOUTS[plan.layout](values.shape) if plan.layout and values is not None else None
        if placement is not None:
            layouts[plan.name] = asdict(placement)
        elif values is not None and other is not None and np.array_equal(values, other, equal_nan=True):
            layouts[plan.name] = {"alias": plan.alias}
    return layouts


def watched(cell: CellRequest) -> list[str]:
    """The inputs and grad_outputs that the op does not update and gets in the cell's dtype."""
    op, shapes = cell.case.definition, {name: array.shape for name, array in cell.prepared.arrays.items()}
    outputs = op.infer_shapes(cell.case.params, {n: s for n, s in shapes.items() if op.input(n) is not None}).outputs
    stored = {plan.name for plan in cell.case.tensors if plan.storage}
    return [name for name in shapes if name not in outputs and name not in stored]
