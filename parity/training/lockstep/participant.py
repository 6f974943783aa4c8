"""One who takes part in a training: a worker of its own, how far it is, and what it has shown so far."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.config.plan import BackendSpec
from parity.engine.process import Message, WorkerError
from parity.engine.starting import BackendError
from parity.outcome import Arrays, CellOutcome, Curves, Outcome, StepRecord
from parity.training.config.memory import RING
from parity.training.lockstep import curves as reading
from parity.training.lockstep.checkpoints import Checkpoint, Checkpoints, RecordError, split
from parity.training.lockstep.workers import Worker, Workers

START_S = 60.0
"""What the first step may take beyond the time that is allowed for a step: compilers are at work."""
BURST_S = 2.0
SLOWER = 20.0
"""Steps that took a second once may take 20 in all, and one of them what is allowed for a step."""


@dataclass(frozen=True)
class Role:
    """Who takes part as what: `recipe` is the training as a worker is told of it.

    `moved` is the seed by which the weights are moved by an ulp, 0 where they are not. Nobody asks for the records of
    those who are not `recorded`.
    """

    name: str
    spec: BackendSpec
    dtype: str
    recipe: Message = field(compare=False)
    moved: int = 0
    recorded: bool = True


class Participant:
    """Asks its worker; whatever goes wrong ends its part with an outcome, and is nobody else's matter.

    One thread at a time may use it. Steps that an interrupted run took are not taken again where the worker can be put
    behind them: their curves and records come from the checkpoint.
    """

    def __init__(self, role: Role, workers: Workers, checkpoints: Checkpoints, stopped: threading.Event) -> None:
        self.role = role
        self.outcome, self.message = Outcome.OK, ""
        self.position, self.keeps, self.seconds, self.loss = 0, 0, 0.0, math.nan
        self._workers = workers
        self.checkpoints = checkpoints
        self._stopped = stopped
        self._worker: Worker | None = None
        self._tracked: tuple[str, ...] = ()
        self._past: Checkpoint | None = None
        self._shown: list[Curves] = []
        self._fresh: list[Curves] = []
        self._pace = 0.0
        self._saved = 0

    @property
    def going(self) -> bool:
        """Whether it takes further steps."""
        return self.outcome is Outcome.OK

    def needs(self, last: int) -> float:
        """About how many seconds it takes to step `last`."""
        return self._pace * (last - self.position) if self.going else 0.0

    @property
    def shown(self) -> Curves | None:
        """All steps that were reported, None where there are none."""
        self._shown = [reading.joined(self._shown)] if self._shown else []
        return self._shown[0] if self._shown else None

    def told(self, case: str) -> CellOutcome:
        """What became of it."""
        role = self.role
        return CellOutcome(case, role.dtype, role.name, self.outcome, seconds=self.seconds, message=self.message)

    def fail(self, outcome: Outcome, message: str) -> None:
        """It takes no further steps."""
        self.outcome, self.message = outcome, message

    def begin(self, setting: Message) -> None:
        """Take a worker and let it build the model; `setting` has the paths of what all share."""
        with self._dropping_out():
            worker = self._worker = self._workers.take(self.role.spec)
            asked = {"do": "train", "spec": self.role.recipe, "dtype": self.role.dtype, "moved": self.role.moved}
            reply, _ = worker.ask({**asked, **setting, "memory": RING if self.role.recorded else 0}, self._allowance())
            if self._accepted(reply):
                self._tracked, self.keeps = understood(worker, reply)
                self._resume(worker)

    def advance(self, last: int) -> None:
        """Go on to step `last`."""
        self._fresh += self._remembered(last)
        while self.going and self.position < last and not self._stopped.is_set():
            self._fresh += self._burst(last - self.position)

    def report(self) -> Curves | None:
        """The steps since the last report, None where there are none."""
        fresh, self._fresh = self._fresh, []
        self._shown += fresh
        return reading.joined(fresh) if fresh else None

    def record(self, step: int) -> StepRecord:
        """Every tensor of a step; raises RecordError where they are gone."""
        if self._past is not None and step <= self._past.past.n_steps:
            return self.checkpoints.record(step)
        if self._worker is None or (shown := self.shown) is None:
            raise RecordError(f"{self.role.name} is gone")
        with self._dropping_out(f"the record of step {step}: "):
            reply, arrays = self._worker.ask({"do": "record", "step": step}, self._allowance())
            if reply["outcome"] != Outcome.OK.value:
                raise RecordError(str(reply.get("message")))
            record = split(step, {"rows": shown.rows[step - shown.first], **arrays})
            self.checkpoints.keep(record)
            return record
        raise RecordError(self.message)

    def save(self) -> None:
        """Write down how far it is, for a run that is to go on from here."""
        shown = self.shown
        if self._worker is None or not self.going or shown is None or self.position <= self._saved:
            return
        with self._dropping_out("its state: "):
            reply, state = self._worker.ask({"do": "state"}, self._allowance())
            if reply["outcome"] == Outcome.OK.value:
                self.checkpoints.write(shown, state)
                self._saved = self.position

    def leave(self) -> None:
        """Let the worker go, for another training where nothing is wrong with it."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._workers.give_back(worker)

    def _remembered(self, last: int) -> list[Curves]:
        """Steps of the interrupted run, up to `last`."""
        end = 0 if self._past is None else min(last, self._past.past.n_steps)
        if self._past is None or end <= self.position:
            return []
        after, self.position = self.position, end
        return [reading.between(self._past.past, after, end)]

    def _burst(self, most: int) -> list[Curves]:
        """Take a few steps with one request: as many as take two seconds, at most `most`."""
        if self._worker is None:
            raise AssertionError("who goes on has a worker")
        count = max(1, min(most, int(BURST_S / self._pace))) if self._pace else 1
        first = self.position + 1
        with self._dropping_out(f"{spelled(first, first + count - 1)}: "):
            reply, arrays = self._worker.ask({"do": "steps", "count": count}, self._allowance(count))
            found = self._understood(self._worker, reply, arrays, count)
            self._accepted(reply)
            return found
        return []

    def _understood(self, worker: Worker, reply: Message, arrays: Arrays, count: int) -> list[Curves]:
        """The steps in a reply; raises WorkerError where they make no sense."""
        try:
            done, seconds = int(reply["done"]), float(reply["seconds"])
            if not 0 <= done <= count or (reply["outcome"] == Outcome.OK.value and done < count):
                raise ValueError(f"{done} of {count} steps were done")
            found = [reading.read(self.position + 1, done, arrays, self._tracked)] if done else []
            for curves in found:
                reading.check_like(curves, (self._fresh or self._shown or found)[-1])
        except (KeyError, TypeError, ValueError) as error:
            raise worker.nonsense(error) from error
        self.position += done
        self.loss = float(found[-1].loss[-1]) if found else self.loss
        self.seconds += seconds
        self._pace = seconds / done if done else self._pace
        return found

    def _resume(self, worker: Worker) -> None:
        """Put the worker behind the steps of an interrupted run, where its mode can; else it takes them again."""
        stored = self.checkpoints.read()
        if stored is None or stored.past.tracked != self._tracked:
            return
        paths = {name: str(path) for name, path in stored.tensors.items()}
        reply, _ = worker.ask({"do": "restore", "step": stored.past.n_steps, "tensors": paths}, self._allowance())
        if reply["outcome"] == Outcome.OK.value:
            self._past, self._saved = stored, stored.past.n_steps

    def _allowance(self, count: int = 0) -> float:
        """How many seconds a request for `count` steps may take."""
        return self._workers.options.timeout_s + (SLOWER * self._pace * count if self._pace and count else START_S)

    def _accepted(self, reply: Message) -> bool:
        """Whether the worker did as it was told; else its part has ended."""
        outcome = Outcome(reply["outcome"])
        if outcome is not Outcome.OK:
            self.fail(outcome, str(reply.get("message", "")))
        else:
            self.message = self.message or str(reply.get("message", ""))
        return outcome is Outcome.OK

    @contextlib.contextmanager
    def _dropping_out(self, where: str = "") -> Iterator[None]:
        """Ends its part where the worker cannot start or dies; `where` comes before the message."""
        try:
            yield
        except (BackendError, WorkerError) as error:
            self._worker = None
            self.fail(error.outcome, f"{where}{error}")


def understood(worker: Worker, reply: Message) -> tuple[tuple[str, ...], int]:
    """What a worker tracks and how many steps it keeps; raises WorkerError where the reply makes no sense."""
    try:
        return tuple(map(str, reply["tracked"])), max(1, int(reply["keeps"]))
    except (KeyError, TypeError, ValueError) as error:
        raise worker.nonsense(error) from error


def spelled(first: int, last: int) -> str:
    """`step 7`, or `steps 7 to 9`."""
    return f"step {first}" if first == last else f"steps {first} to {last}"
