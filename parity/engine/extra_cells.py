"""Asks one backend for an extra cell during a run and waits for the answer."""

from __future__ import annotations

import json
import queue
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.dtypes import as_dtype
from parity.config.plan import CasePlan
from parity.engine.cells import CellQuestion
from parity.engine.inputs import Prepared
from parity.engine.supervision import BackendRunner, run_request
from parity.outcome import Arrays, CellOutcome, Outcome

MAX_QUESTIONS = 400
"""Limit per case and backend, over all dtypes. Reducing a case takes 1 to 52 questions; observing its behaviours takes
18 to 26, for the case and again for the reduced one."""
MAX_SECONDS = 20.0
"""Limit per case and backend on the op's own time, so that the questions do not depend on the machine's load."""
MAX_LOST = 3
"""After so many questions at which its worker crashed or hung, a backend gets no more questions in the shard."""
MAX_NEW_PROCESSES = 6
"""Per backend and shard: each of them imports the framework again."""
POLL_S = 0.2


@dataclass
class Asking:
    """The runners of a run, and the folder for the temporary inputs of a shard's questions."""

    folder: Path
    runners: Sequence[BackendRunner]
    lost: Counter[str] = field(default_factory=Counter)
    new_processes: Counter[str] = field(default_factory=Counter)
    numbers: count[int] = field(default_factory=lambda: count(-1, -1))

    def outcome(
        self, backend: str, case: CasePlan, dtype: str, inputs: Arrays, *, new_process: bool = False
    ) -> CellOutcome | None:
        """The outcome of the cell, in a warm worker or a `new_process`; None if the backend has no runner left, or the
        inputs cannot be stored.

        Raises ValueError or TypeError for a cell that cannot be sent to a worker.
        """
        runner = next((runner for runner in self.runners if runner.spec.name == backend and runner.alive), None)
        if runner is None:
            return None
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                given = stored(case, inputs, Path(folder))
                question = CellQuestion(next(self.numbers), given, dtype, runner, new_process)
                json.dumps(run_request(question, "", runner.spec))
                runner.ask(question)
                return answered(question)
        except OSError:
            return None


class CaseQuestions:
    """Asks about one case, until a budget is spent or a worker is lost.

    Called with a backend, a case (not necessarily the user's), a dtype and all inputs by name (a grad_output is
    `grad.y`), it returns copies of the outputs by name, in that dtype, or None if the backend gives no answer. An
    output without values or with a wrong shape is left out. Inputs that the op has modified are included as
    `input.<name>`.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._count: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lost: set[str] = set()
        self._in_new_process: set[str] = set()

    def __call__(self, backend: str, case: CasePlan, dtype: str, inputs: Arrays) -> Arrays | None:
        """The outputs."""
        if backend in self._lost or self._asking.lost[backend] >= MAX_LOST:
            return None
        if self._count[backend] >= MAX_QUESTIONS or self._seconds[backend] >= MAX_SECONDS:
            return None
        outcome = self._asking.outcome(backend, case, dtype, inputs)
        self._count[backend] += 1
        if outcome is None:
            return None
        self._seconds[backend] += outcome.seconds
        if outcome.outcome in (Outcome.CRASH, Outcome.TIMEOUT):
            self._lost.add(backend)
            self._asking.lost[backend] += 1
        return outputs_of(outcome, case, inputs) if outcome.outcome is Outcome.OK else None

    def in_new_process(self, backend: str, case: CasePlan, dtype: str, inputs: Arrays) -> Arrays | None:
        """The outputs of the first call in a new process, which ends after it.

        None where that fails, for a second question about the case, and after MAX_NEW_PROCESSES in the shard; a backend
        that fails there gets none any more.
        """
        started = self._asking.new_processes
        if backend in self._in_new_process or started[backend] >= MAX_NEW_PROCESSES:
            return None
        self._in_new_process.add(backend)
        started[backend] += 1
        outcome = self._asking.outcome(backend, case, dtype, inputs, new_process=True)
        if outcome is None or outcome.outcome in (Outcome.CRASH, Outcome.TIMEOUT, Outcome.UNAVAILABLE):
            started[backend] = MAX_NEW_PROCESSES
        return outputs_of(outcome, case, inputs) if outcome is not None and outcome.outcome is Outcome.OK else None


def stored(case: CasePlan, inputs: Arrays, folder: Path) -> Prepared:
    """The case with its inputs in files of `folder`; raises OSError."""
    paths = {name: folder / f"{number}.npy" for number, name in enumerate(inputs)}
    for name, array in inputs.items():
        np.save(paths[name], array, allow_pickle=False)
    return Prepared(case, folder, inputs, paths)


def answered(question: CellQuestion) -> CellOutcome | None:
    """Wait for the answer; None if the runner ends without one."""
    while True:
        alive = question.runner.alive
        try:
            return question.answers.get(timeout=POLL_S if alive else 0.0)
        except queue.Empty:
            if not alive:
                return None


def outputs_of(outcome: CellOutcome, case: CasePlan, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """The outputs with values of the expected shapes, in the requested dtype."""
    op = case.definition
    shapes = op.infer_shapes(case.params, {name: a.shape for name, a in inputs.items() if op.input(name) is not None})
    expected = {
        **shapes.outputs,
        **{f"grad.{name}": inputs[name].shape for name in op.differentiable if name in inputs},
    }
    expected |= {f"input.{name}": array.shape for name, array in inputs.items()}
    returned = {**outcome.outputs, **{f"input.{name}": output for name, output in outcome.changed.items()}}
    return {
        name: as_dtype(output.values, outcome.dtype)
        for name, output in returned.items()
        if output.values is not None and output.shape == expected.get(name)
    }
