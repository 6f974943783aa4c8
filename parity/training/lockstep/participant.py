"""A participant of a training: its worker, the steps it has taken, and their records."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.config.plan import BackendSpec
from parity.engine.cells import CellQuestion
from parity.engine.process import Message, WorkerError
from parity.engine.starting import BackendError
from parity.engine.supervision import run_request
from parity.engine.workers import Reply, Worker, Workers
from parity.outcome import Arrays, CellOutcome, Outcome, Output
from parity.training.config.memory import RING
from parity.training.lockstep.checkpoints import Checkpoint, Checkpoints, record_of
from parity.training.records import Curves, StepRecord, joined, read_curves

START_S = 60.0
"""Extra time for the first step, which compiles."""
BURST_S = 2.0
SLOWER = 20.0
"""A request may take so many times as long as its steps took before, in addition to the limit of a single step."""


@dataclass(frozen=True)
class Role:
    """A participant's role: `recipe` is the training as a message to its worker.

    `seed` perturbs the weights by an ulp, unless it is 0. Only `recorded` participants are asked for records.
    """

    name: str
    spec: BackendSpec
    dtype: str
    recipe: Message = field(compare=False)
    seed: int = 0
    recorded: bool = True


class Participant:
    """Sends requests to its worker; an error makes it drop out with an outcome, and does not affect the others.

    Only the thread that holds its `lock` may use it. Steps of an interrupted run are not repeated if the worker can
    continue after them: their curves and records come from the checkpoint.
    """

    def __init__(self, role: Role, workers: Workers, checkpoints: Checkpoints, stopped: threading.Event) -> None:
        self.role = role
        self.lock = threading.Lock()
        self.checkpoints = checkpoints
        self.outcome, self.message = Outcome.OK, ""
        self.position, self.keeps, self.seconds, self.loss = 0, 0, 0.0, math.nan
        self._workers = workers
        self._stopped = stopped
        self._worker: Worker | None = None
        self._tracked: tuple[str, ...] = ()
        self._checkpoint: Checkpoint | None = None
        self._reported: list[Curves] = []
        self._fresh: list[Curves] = []
        self._pace = 0.0
        self._saved = 0

    @property
    def going(self) -> bool:
        """Whether it is still taking steps."""
        return self.outcome is Outcome.OK

    def needs(self, last: int) -> float:
        """Approximate seconds until it reaches step `last`."""
        return self._pace * (last - self.position) if self.going else 0.0

    @property
    def shown(self) -> Curves | None:
        """All steps that were reported; None if there are none."""
        curves = joined(self._reported)
        self._reported = [] if curves is None else [curves]
        return curves

    def result(self, case: str) -> CellOutcome:
        """Its outcome so far."""
        role = self.role
        return CellOutcome(case, role.dtype, role.name, self.outcome, seconds=self.seconds, message=self.message)

    def begin(self, setting: Message) -> None:
        """Take a worker and let it build the model; `setting` has the paths of the shared data."""
        with self._dropping_out():
            worker = self._worker = self._workers.take(self.role.spec)
            recipe = {"spec": self.role.recipe, "dtype": self.role.dtype, "perturbed": self.role.seed, **setting}
            reply, _ = self._ask(worker, "train", **recipe, memory=RING if self.role.recorded else 0)
            if self._accepted(reply):
                with worker.reading():
                    self._tracked, self.keeps = tuple(map(str, reply["tracked"])), max(1, int(reply["keeps"]))
                self._resume(worker)

    def advance(self, last: int) -> None:
        """Continue to step `last`."""
        if self._checkpoint is not None:
            end = min(last, self._checkpoint.curves.n_steps)
            if end > self.position:
                self._fresh.append(self._checkpoint.curves.between(self.position, end))
                self.position = end
        while self._worker is not None and self.going and self.position < last and not self._stopped.is_set():
            self._burst(self._worker, last - self.position)

    def report(self) -> Curves | None:
        """The steps since the last report; None if there are none."""
        fresh, self._fresh = self._fresh, []
        self._reported += fresh
        return joined(fresh)

    def record(self, step: int) -> StepRecord | None:
        """Every tensor of a step; None if they are no longer held."""
        if self._checkpoint is not None and step <= self._checkpoint.curves.n_steps:
            return self.checkpoints.record(step)
        shown = self.shown
        if self._worker is None or shown is None:
            return None
        with self._dropping_out(f"the record of step {step}: "):
            reply, arrays = self._ask(self._worker, "record", step=step)
            if reply["outcome"] == Outcome.OK.value:
                record = record_of(step, {"rows": shown.rows[step - shown.first], **arrays})
                self.checkpoints.keep(record)
                return record
        return None

    def cell(self, question: CellQuestion) -> CellOutcome | None:
        """The outcome of an op alone; None if its worker is lost or has several ranks."""
        if self._worker is None or self.role.spec.ranks > 1:
            return None
        request = run_request(question, "", self.role.spec)
        try:
            reply, arrays = self._worker.ask(request, self._workers.options.timeout_s)
        except WorkerError:
            self._worker = None
            return None
        dtypes = {str(tensor["name"]): str(tensor["dtype"]) for tensor in reply["tensors"]}
        outputs = {name: Output(dtypes[name], values.shape, values) for name, values in arrays.items()}
        case, outcome = question.case.id, Outcome(reply["outcome"])
        return CellOutcome(
            case, question.dtype, self.role.name, outcome, float(reply["seconds"]), reply["message"], outputs
        )

    def save(self) -> None:
        """Write a checkpoint from which a resumed run continues."""
        shown = self.shown
        if self._worker is None or not self.going or shown is None or self.position <= self._saved:
            return
        with self._dropping_out("its state: "):
            reply, state = self._ask(self._worker, "state")
            if reply["outcome"] == Outcome.OK.value:
                self.checkpoints.write(shown, state)
                self._saved = self.position

    def leave(self) -> None:
        """Give the worker back for other trainings, unless it is lost."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._workers.give_back(worker)

    def _burst(self, worker: Worker, most: int) -> None:
        """Request as many steps as take about two seconds, at most `most`."""
        count = max(1, min(most, int(BURST_S / self._pace))) if self._pace else 1
        first, last = self.position + 1, self.position + count
        with self._dropping_out(f"step {first}: " if count == 1 else f"steps {first} to {last}: "):
            reply, arrays = self._ask(worker, "steps", count=count)
            with worker.reading():
                self._take(reply, arrays, count)
            self._accepted(reply)

    def _take(self, reply: Message, arrays: Arrays, count: int) -> None:
        """Take the steps of a reply; raises KeyError, TypeError or ValueError if they are invalid."""
        done, seconds = int(reply["done"]), float(reply["seconds"])
        if not 0 <= done <= count or (reply["outcome"] == Outcome.OK.value and done < count):
            raise ValueError(f"{done} of {count} steps were done")
        if done:
            curves = read_curves(self.position + 1, done, arrays, self._tracked)
            curves.check_like((self._fresh or self._reported or [curves])[-1])
            self._fresh.append(curves)
            self.position += done
            self.loss = float(curves.loss[-1])
            self._pace = seconds / done
        self.seconds += seconds

    def _resume(self, worker: Worker) -> None:
        """Restore the worker to the steps of an interrupted run if its mode can; otherwise it takes them again."""
        stored = self.checkpoints.read()
        if stored is None or stored.curves.tracked != self._tracked:
            return
        paths = {name: str(path) for name, path in stored.tensors.items()}
        reply, _ = self._ask(worker, "restore", step=stored.curves.n_steps, tensors=paths)
        if reply["outcome"] == Outcome.OK.value:
            self._checkpoint, self._saved = stored, stored.curves.n_steps

    def _ask(self, worker: Worker, do: str, **request: object) -> Reply:
        """The reply to a request, within its time limit; `count` is the number of requested steps."""
        count = request.get("count")
        allowed = SLOWER * self._pace * count if self._pace and isinstance(count, int) else START_S
        return worker.ask({"do": do, **request}, self._workers.options.timeout_s + allowed)

    def _accepted(self, reply: Message) -> bool:
        """Whether the request succeeded; if not, the participant drops out."""
        self.outcome, message = Outcome(reply["outcome"]), str(reply.get("message", ""))
        self.message = (self.message or message) if self.going else message
        return self.going

    @contextlib.contextmanager
    def _dropping_out(self, where: str = "") -> Iterator[None]:
        """Drop out if the worker cannot start or dies; `where` is put before the message."""
        try:
            yield
        except (BackendError, WorkerError) as error:
            self._worker = None
            self.outcome, self.message = error.outcome, f"{where}{error}"
