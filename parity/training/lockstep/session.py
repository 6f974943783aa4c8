"""Runs a training in lockstep: shared weights, shared batches, one worker process per participant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parity.cases.draw import TensorPlan, generator
from parity.cases.dtypes import coarsest
from parity.config.plan import ORACLE, BackendSpec, CasePlan, Plan
from parity.engine.inputs import slug
from parity.engine.process import Message
from parity.engine.workers import Workers
from parity.outcome import CellOutcome
from parity.training import data
from parity.training.lockstep.checkpoints import Checkpoints
from parity.training.lockstep.participant import Participant, Role
from parity.training.records import Curves, Ensemble, Setting, StepRecord
from parity.training.spec import Training, as_member, message

MAX_CHUNK = 50
POLL_S = 0.5
REST_S = 5.0
UNPERTURBED = "~0"
NUMPY = "numpy"
WIDE = {"float64": "longdouble"}
"""The dtype of the oracle's run for each dtype; float64 for dtypes not listed."""

CHECKPOINT = "checkpoint"
"""A folder in a training's folder that exists until the training is finished."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class DrawnTraining:
    """The data that the participants share, and its files, as part of a message to a worker."""

    setting: Setting
    message: Message


def training_folder(run_dir: Path, index: int, case: CasePlan) -> Path:
    """The folder of a training in a run, with a folder for each dtype; `index` is the case's position in the plan."""
    return run_dir / "training" / f"{index:04d}-{slug(case.id)}"


def draw(case: CasePlan, seed: int, folder: Path) -> DrawnTraining:
    """Draw the data set, its order and the initial weights in the case's coarsest dtype, and store them in `folder`."""
    training: Training = case.params
    setting = setting_of(case, seed)
    arrays = (setting.x, setting.target, setting.order, *setting.tensors.values())
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: str(folder / f"{name}.npy") for name in ("x", "target", "order")}
    weights = {p.name: str(folder / f"{i:03d}-{slug(p.name)}.npy") for i, p in enumerate(training.tensors)}
    for path, array in zip((*paths.values(), *weights.values()), arrays, strict=True):
        np.save(path, array, allow_pickle=False)
    return DrawnTraining(setting, {**paths, "tensors": weights})


def setting_of(case: CasePlan, seed: int) -> Setting:
    """The data set, its order and the initial weights of a training, in its coarsest dtype."""
    training: Training = case.params
    dtype = coarsest(case.dtypes)
    x, target = data.generate(training.data, seed, case.id, dtype)
    order = data.order(training, seed, case.id)
    tensors = {p.name: TensorPlan(p.name, p.shape, p.draw).sample(seed, case.id, dtype) for p in training.tensors}
    return Setting(x, target, order, tensors)


def roles(case: CasePlan, dtype: str, plan: Plan, of: str) -> tuple[tuple[Role, ...], Ensemble]:
    """The participants and the ensemble, which is `of` the oracle (which then also runs in a wider dtype) or a backend.

    The ensemble's members have weights perturbed by an ulp, and options changed by `as_member`.
    """
    training: Training = case.params
    recipe, numpy = message(training), BackendSpec(ORACLE, NUMPY)
    participants = [Role(spec.name, spec, dtype, recipe) for spec in plan.backends]
    if ORACLE in (of, plan.baseline):
        participants.append(Role(ORACLE, numpy, WIDE.get(dtype, "float64"), recipe, recorded=False))
    if of == ORACLE:
        participants.append(Role(UNPERTURBED, numpy, dtype, recipe, recorded=False))
    perturbed = numpy if of == ORACLE else next(spec for spec in plan.backends if spec.name == of)
    members = tuple(f"~{i}" for i in range(1, training.members + 1))
    for i, name in enumerate(members):
        seed = int(generator(plan.seed, case.id, name).integers(1, 2**31))
        member = as_member(recipe, dtype, 1 if i % 2 else -1)
        participants.append(Role(name, perturbed, dtype, member, seed, recorded=False))
    return tuple(participants), Ensemble(of, UNPERTURBED if of == ORACLE else of, members)


def chunk_ends(steps: int, keeps: int) -> Iterator[int]:
    """The last steps of the chunks: 1, 3, 7, ...; `keeps` records must hold a chunk and the step before it."""
    end, size = 0, 1
    while end < steps:
        end = min(steps, end + size)
        yield end
        size = max(1, min(2 * size, keeps - 1, MAX_CHUNK))


class TrainingSession:
    """All participants of a training in one dtype, in lockstep; `folder` keeps their checkpoints.

    A participant that fails drops out with an outcome, and the others continue. `tick` is called regularly while
    waiting.
    """

    def __init__(
        self,
        case: CasePlan,
        drawn: DrawnTraining,
        participants: Sequence[Role],
        workers: Workers,
        folder: Path,
        tick: Callable[[], None],
    ) -> None:
        self.case = case
        self._drawn = drawn
        self._workers = workers
        self._running: list[Future[Any]] = []
        self._tick = tick
        self._stopped = threading.Event()
        self.participants = {
            role.name: Participant(role, workers, Checkpoints(folder / f"{i:02d}-{slug(role.name)}"), self._stopped)
            for i, role in enumerate(participants)
        }

    @property
    def outcomes(self) -> dict[str, CellOutcome]:
        """The outcome of every participant so far."""
        return {name: participant.result(self.case.id) for name, participant in self.participants.items()}

    @property
    def going(self) -> list[Participant]:
        """The active participants."""
        return [participant for participant in self.participants.values() if participant.going]

    @property
    def position(self) -> int:
        """The latest step that every active participant has taken."""
        return min((participant.position for participant in self.going), default=0)

    @property
    def keeps(self) -> int:
        """Number of latest steps that every active, recorded participant still holds."""
        return min((participant.keeps for participant in self.going if participant.role.recorded), default=1)

    def begin(self) -> None:
        """Start the workers, let them build the model, and restore the steps of an interrupted run."""
        self._for_each(lambda participant: participant.begin(self._drawn.message), self.participants)

    def advance(self, last: int) -> dict[str, Curves]:
        """Continue to step `last`; returns the steps since the last call of those that took any."""
        self._for_each(lambda participant: participant.advance(last), self.participants)
        reports = {name: participant.report() for name, participant in self.participants.items()}
        return {name: curves for name, curves in reports.items() if curves is not None}

    def records(self, wanted: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, StepRecord]]:
        """The records of these steps by participant, in the order of steps, except those no longer held."""
        for step in sorted({step for steps in wanted.values() for step in steps}):
            names = [name for name, steps in wanted.items() if step in steps]
            records = self._for_each(partial(Participant.record, step=step), names)
            yield from ((name, record) for name, record in records.items() if record is not None)

    def save(self) -> None:
        """Write all checkpoints; called at the end of a chunk, after its records were taken."""
        self._for_each(Participant.save, self.participants)

    def comes_to_rest(self, last: int) -> bool:
        """After an interrupt: whether all participants reach step `last` within a few seconds."""
        if max(participant.needs(last) for participant in self.participants.values()) > REST_S:
            return False
        if wait(self._running, REST_S).not_done:
            return False
        idle = [
            participant.lock for participant in self.participants.values() if participant.lock.acquire(timeout=REST_S)
        ]
        for lock in idle:
            lock.release()
        return len(idle) == len(self.participants)

    def close(self) -> None:
        """Give the workers back; end those that are still busy."""
        self._stopped.set()
        for future in self._running:
            future.cancel()
        participants = self.participants.values()
        if not all(future.done() for future in self._running) or any(one.lock.locked() for one in participants):
            self._workers.stop()
            wait(self._running)
        for participant in participants:
            with participant.lock:
                participant.leave()

    def _for_each(self, work: Callable[[Participant], Result], names: Iterable[str]) -> dict[str, Result]:
        """The results of `work` for these participants, run in threads; raises what it raises."""

        def alone(participant: Participant) -> Result:
            # An interrupt in `submit` leaves work behind, which must not run at the same time as the next.
            with participant.lock:
                if self._stopped.is_set():
                    raise CancelledError
                return work(participant)

        futures = {name: self._workers.threads.submit(alone, self.participants[name]) for name in names}
        self._running = list(futures.values())
        left: set[Future[Result]] = set(futures.values())
        while left:
            left = wait(left, POLL_S, FIRST_EXCEPTION).not_done
            self._tick()
        return {name: future.result() for name, future in futures.items()}
