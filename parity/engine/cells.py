"""The requests to a backend: the cells of the run in order; the judge's questions come first."""

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
    """One case in one dtype, requested from every backend."""

    number: int
    prepared: Prepared
    dtype: str

    @property
    def case(self) -> CasePlan:
        """The case."""
        return self.prepared.case


@dataclass(frozen=True)
class CellQuestion(CellRequest):
    """An extra cell for one backend; its outcome, with copied arrays, goes to `answers`.

    Only `runner` answers it, since state that a worker keeps between calls shows only in the same worker. In a
    `new_process` it is the first call of a worker that ends after it; the runner's own worker gets no call.
    """

    runner: Any
    new_process: bool = False
    answers: queue.SimpleQueue[CellOutcome] = field(default_factory=queue.SimpleQueue)


class CellQueue:
    """The requests to one backend, shared by its runners; a cell that is None marks the end.

    `changed` guards everything that a runner waits for. There is one question at a time: a later one replaces an
    abandoned one.
    """

    def __init__(self, n_runners: int) -> None:
        self.changed = threading.Condition()
        self._n_runners = n_runners
        self._cells: deque[CellRequest | None] = deque()
        self._question: CellQuestion | None = None

    def put(self, cell: CellRequest | None) -> None:
        """Append a cell."""
        with self.changed:
            self._cells.append(cell)
            self.changed.notify_all()

    def ask(self, question: CellQuestion) -> None:
        """Set the question, which comes before all cells."""
        with self.changed:
            self._question = question
            self.changed.notify_all()

    def take(self, runner: Any, has_room: Callable[[], bool], stopped: threading.Event) -> CellRequest | None:
        """The question to `runner`, else the next cell as soon as `has_room()`; None at the end."""
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
        """Remove a runner; returns whether others are left."""
        with self.changed:
            self._n_runners -= 1
            return self._n_runners > 0
