"""Answers the requests about a training: train, steps, record, restore and state."""

from __future__ import annotations

import time
import traceback
from typing import Any, Dict, Optional

import numpy as np

from parity.adapters.base import Unsupported
from parity.training.worker.job import TrainJob, UserFunctionError
from parity.training.worker.records import AFTER, Ring, Sketcher, StepCurves, perturbed
from parity.worker.arrays import read_array
from parity.worker.buffer import write_arrays
from parity.worker.cell import Backend, explain

Message = Dict[str, Any]

LEAST_KEPT = 2


class TrainingRequests:
    """Answers the requests about one training at a time; a new training replaces the last one."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.training: Optional[RunningTraining] = None

    def answer(self, request: Message) -> Message:
        """The reply to one of REQUESTS; every error becomes a reply, unless the process ends."""
        reply: Message = {"outcome": "ok", "message": "", "tensors": []}
        try:
            answer = REQUESTS[request["do"]](self, request)
            arrays = answer.pop("arrays", {})
            reply.update(answer)
            reply["tensors"] = write_arrays(request["buffer"], arrays) if arrays else []
        except BaseException as error:
            reply.update(self.refusal(error))
        return reply

    def refusal(self, error: BaseException) -> Message:
        """The outcome and message of a reply about an error."""
        if isinstance(error, Unsupported):
            return {"outcome": "unsupported", "message": str(error)}
        traceback.print_exc()
        if isinstance(error, UserFunctionError):
            return {"outcome": "error", "message": f"{self.backend.user_ops.name}: {error}"}
        unsupported = not self.backend.user_ops.raised(error) and self.backend.adapter.lacks_kernel(error)
        return {"outcome": "unsupported" if unsupported else "error", "message": explain(self.backend, error)}

    def current(self) -> RunningTraining:
        """The training; raises ValueError if there is none."""
        if self.training is None:
            raise ValueError("there is no training to continue")
        return self.training

    def train(self, request: Message) -> Message:
        """Begin a training."""
        self.training = None
        training = self.training = RunningTraining(self.backend, request)
        return {"tracked": training.tracked, "keeps": training.ring.capacity - 1}

    def steps(self, request: Message) -> Message:
        """Take steps until one fails."""
        training, started = self.current(), time.perf_counter()
        curve = StepCurves(training.sketcher, training.tracked)
        answer: Message = {"done": 0}
        try:
            for _ in range(request["count"]):
                training.step(curve)
                answer["done"] += 1
        except BaseException as error:
            refusal = self.refusal(error)
            answer.update({**refusal, "message": f"step {training.done + 1}: {refusal['message']}"})
            training.failed = True
        return {**answer, "seconds": time.perf_counter() - started, "arrays": curve.arrays()}

    def record(self, request: Message) -> Message:
        """Every tensor of a step."""
        return {"arrays": self.current().record(request["step"])}

    def restore(self, request: Message) -> Message:
        """Continue from another state."""
        training = self.current()
        arrays = {name: read_array(path, training.dtype) for name, path in request["tensors"].items()}
        training.restore(request["step"], arrays)
        return {}

    def state(self, _request: Message) -> Message:
        """The current tensors that persist from step to step."""
        return {"arrays": dict(self.current().trainer.state())}


REQUESTS = {
    "train": TrainingRequests.train,
    "steps": TrainingRequests.steps,
    "record": TrainingRequests.record,
    "restore": TrainingRequests.restore,
    "state": TrainingRequests.state,
}
"""The requests about trainings, and the methods that answer them."""


class RunningTraining:
    """A trainer that takes the steps of `order` [steps, batch]; `done` is the last step taken."""

    def __init__(self, backend: Backend, request: Message) -> None:
        self.dtype = request["dtype"]
        self.recipe = request["spec"]
        self.order = np.load(request["order"], allow_pickle=False).astype(np.int64)
        self.done = 0
        self.failed = False
        backend.user_ops.check_capable(backend.adapter, self.dtype)
        x, target = (read_array(request[name], self.dtype) for name in ("x", "target"))
        tensors = {name: read_array(path, self.dtype) for name, path in request["tensors"].items()}
        job = TrainJob(self.recipe, self.dtype, x, target, tensors, backend.user_ops.own)
        self.trainer = backend.adapter.trainer(job)
        start = self.start(tensors, request["perturbed"])
        self.sketcher = Sketcher()
        size = step_bytes(self.recipe, start, target[: self.order.shape[1]])
        self.ring = Ring(1 + max(LEAST_KEPT, request["memory"] // size))
        self.restore(0, start)
        self.tracked = list(self.ring.entries[0])

    def start(self, arrays: Dict[str, Any], seed: int) -> Dict[str, Any]:
        """The initial parameters, perturbed by an ulp if `seed` is not 0, and buffers."""
        weights = {
            name: perturbed(arrays[name], name, seed) if seed else arrays[name] for name in self.recipe["parameters"]
        }
        return {
            **{f"param.{name}": array for name, array in weights.items()},
            **{f"buffer.{name}": arrays[name] for name in self.recipe["buffers"]},
        }

    def restore(self, step: int, arrays: Dict[str, Any]) -> None:
        """Continue after `step`."""
        with np.errstate(all="ignore"):
            self.trainer.restore(step, arrays)
        self.ring.clear()
        self.ring.open()
        for name, array in self.trainer.state():
            self.ring.keep(name, array)
        self.ring.close(step)
        self.done, self.failed = step, False

    def step(self, curve: StepCurves) -> None:
        """Take the next step."""
        number = self.done + 1
        if self.failed or number > len(self.order):
            raise ValueError("an earlier step failed" if self.failed else f"there are only {len(self.order)} steps")
        entry = self.ring.open()
        with np.errstate(all="ignore"):
            self.trainer.step(number, self.order[number - 1], self.ring.keep)
            curve.add(entry)
        self.ring.close(number)
        self.done = number

    def record(self, step: int) -> Dict[str, Any]:
        """Every tensor of a step; without clipping, the clipped gradients are the gradients."""
        if step not in self.ring.entries or step - 1 not in self.ring.entries:
            raise ValueError(f"the tensors of step {step} are no longer kept; the last step was {self.done}")
        tensors = self.ring.record(step)
        if self.recipe["clip"] is None:
            gradients = {name: array for name, array in tensors.items() if name.startswith("grad.")}
            tensors.update({f"clipped{name[4:]}": array for name, array in gradients.items()})
        return tensors


def step_bytes(recipe: Message, start: Dict[str, Any], target: Any) -> int:
    """Approximate bytes of a step's record: weights, states, gradients before and after clipping, outputs."""
    weights = [layer["tensors"]["weight"] for layer in recipe["layers"] if layer["op"] == "linear"]
    classes = len(start[f"param.{weights[-1]}"]) if weights and recipe["loss"]["op"] == "cross_entropy" else 1
    n_outputs = target.size * classes
    itemsize = max(array.itemsize for array in start.values())
    size = sum(array.nbytes for name, array in start.items() if name.startswith(AFTER))
    return int(5 * size + itemsize * n_outputs)
