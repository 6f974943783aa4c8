"""Real workers that are asked for trainings, one request after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.config.plan import BackendSpec, CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine import EngineOptions
from parity.engine.logs import RunLog
from parity.engine.workers import Reply, Worker, Workers
from parity.training.lockstep.session import DrawnTraining, draw
from parity.training.spec import Training, message

WANTED = (
    "linear",
    "shard",
    "sgd",
    "adamw",
    "lamb",
    "layer_norm",
    "batch",
    "learning_rate",
    "scale_loss",
    "zero_grad",
    "clip_grad_norm",
)


@dataclass
class TrainingClient:
    """A worker with a folder for its training."""

    worker: Worker
    folder: Path

    def ask(self, do: str, **request: Any) -> Reply:
        return self.worker.ask({"do": do, **request}, 120.0)

    def train(self, training: Training, dtype: str = "float32", perturbed: int = 0, memory: int = 1 << 27) -> Reply:
        """Draw the training, begin it, and expect that to succeed."""
        self.drawn = drawn(training, self.folder)
        request = {"spec": message(training), "dtype": dtype, "perturbed": perturbed, "memory": memory}
        reply, arrays = self.ask("train", **request, **self.drawn.message)
        assert reply["outcome"] == "ok", reply
        return reply, arrays

    def steps(self, count: int) -> dict[str, np.ndarray]:
        """Take steps and expect them to succeed; their curves."""
        reply, curves = self.ask("steps", count=count)
        assert (reply["outcome"], reply["done"]) == ("ok", count), reply
        return curves

    def record(self, step: int) -> dict[str, np.ndarray]:
        reply, record = self.ask("record", step=step)
        assert reply["outcome"] == "ok", reply
        return record

    def state(self) -> dict[str, np.ndarray]:
        return self.ask("state")[1]

    def restore(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        paths = {}
        for i, (name, array) in enumerate(arrays.items()):
            paths[name] = str(self.folder / f"restored-{i}.npy")
            np.save(paths[name], array)
        reply, _ = self.ask("restore", step=step, tensors=paths)
        assert reply["outcome"] == "ok", reply


def drawn(training: Training, folder: Path, dtypes: tuple[str, ...] = ("float32",)) -> DrawnTraining:
    """What everybody shares, in files."""
    case = CasePlan("case", "train", training, dtypes, (), DEFAULT_TOLERANCES, WrittenAt("case.yaml", 1))
    return draw(case, 0, folder / "tensors")


@contextmanager
def client(folder: Path, adapter: str = "torch", ops: str | None = None, **spec: Any) -> Iterator[TrainingClient]:
    """A worker of an adapter; `ops` is the text of a file of user ops."""
    folder.mkdir(exist_ok=True)
    path = None
    if ops is not None:
        path = folder / "my_ops.py"
        path.write_text(ops)
    log = RunLog(folder / "log.txt")
    workers = Workers(EngineOptions(), WANTED, log, lambda _: None)
    try:
        yield TrainingClient(workers.take(BackendSpec(adapter, adapter, ops=path, **spec)), folder)
    finally:
        workers.close()
        log.close()


ClientOf = Callable[[str, str], TrainingClient]


@contextmanager
def clients(new_folder: Callable[[], Path]) -> Iterator[ClientOf]:
    """The worker of an adapter in a mode, started once for all who ask, and anew where it has died."""
    running: dict[tuple[str, str], TrainingClient] = {}
    with ExitStack() as stack:

        def client_of(adapter: str, mode: str) -> TrainingClient:
            known = running.get((adapter, mode))
            if known is None or not known.worker.process.alive:
                running[adapter, mode] = stack.enter_context(client(new_folder(), adapter, mode=mode))
            return running[adapter, mode]

        yield client_of
