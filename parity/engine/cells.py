"""What a backend is asked for: the cells of the run in their order, and the judge's questions before them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from parity.config.plan import CasePlan
from parity.engine.inputs import Prepared
from parity.outcome import CellOutcome


@dataclass(frozen=True)
class CellRequest:
    """One case in one dtype, as it is asked of every backend."""

    number: int
    prepared: Prepared
    dtype: str

    @property
    def case(self) -> CasePlan:
        """The case."""
        return self.prepared.case


@dataclass(frozen=True)
class Question(CellRequest):
    """A cell that is no part of the run, asked of one backend; its outcome, with arrays of its own, goes to `answers`.

    Only `runner` answers it: what a worker keeps from call to call can be seen only by asking the same worker.
    """

    runner: Any
    answers: queue.SimpleQueue[CellOutcome] = field(default_factory=queue.SimpleQueue)


class CellQueue:
    """What one backend has to answer, for all its runners; a cell that is None says that there are no more.

    `changed` guards everything that a runner waits for. There is one question at a time: a later one replaces an
    earlier one that nobody waits for any more.
    """

    def __init__(self, n_runners: int) -> None:
        self.changed = threading.Condition()
        self._n_runners = n_runners
        self._cells: deque[CellRequest | None] = deque()
        self._question: Question | None = None

    def put(self, cell: CellRequest | None) -> None:
        """A cell behind all others."""
        with self.changed:
            self._cells.append(cell)
            self.changed.notify_all()

    def ask(self, question: Question) -> None:
        """A question, which comes before all cells."""
        with self.changed:
            self._question = question
            self.changed.notify_all()

    def take(self, runner: Any, has_room: Callable[[], bool], stopped: threading.Event) -> CellRequest | None:
        """The question to `runner`, else the next cell as soon as `has_room()` for it; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: stopped.is_set() or self._asks(runner) or (self._cells and has_room()))
            if stopped.is_set():
                return None
            if not self._asks(runner):
                return self._cells.popleft()
            question, self._question = self._question, None
            return question

    def _asks(self, runner: Any) -> bool:
        return self._question is not None and self._question.runner is runner

    def leave(self) -> bool:
        """A runner gives up; whether others are left."""
        with self.changed:
            self._n_runners -= 1
            return self._n_runners > 0
