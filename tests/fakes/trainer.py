"""Stands in for a worker: speaks the protocol of trainings, and misbehaves as the backend's mode says: `crash@7`."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

SLOT, REPLIES = {}, os.fdopen(os.dup(1), "w")


def reply(buffer, outcome="ok", arrays=None, **fields):
    tensors, end = [], 0
    with Path(buffer).open("r+b") as file:
        for name, array in (arrays or {}).items():
            array = np.ascontiguousarray(array)
            tensors.append({"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "offset": end})
            file.seek(end)
            file.write(array.tobytes())
            end += array.nbytes
    send({"outcome": outcome, "message": fields.pop("message", ""), "tensors": tensors, **fields})


def send(message):
    REPLIES.write(json.dumps(message) + "\n")
    REPLIES.flush()


class Trainer:
    """Each weight w goes to w - 0.1 w; the loss is their sum of squares."""

    def __init__(self, request):
        self.dtype = request["dtype"]
        self.order = np.load(request["order"])
        self.weights = {n: np.load(path).astype(self.dtype) for n, path in request["tensors"].items()}
        self.done = 0
        if request["perturbed"]:
            self.weights = {n: np.nextafter(w, w + 1) for n, w in self.weights.items()}

    def step(self):
        loss = sum(float((w * w).sum()) for w in self.weights.values())
        before = {f"before.param.{n}": w for n, w in self.weights.items()}
        self.weights = {n: w - self.dtype_of(0.1) * w for n, w in self.weights.items()}
        self.done += 1
        self.record = {**before, **self.state(), "loss": np.asarray(loss)}
        return loss

    def dtype_of(self, number):
        return np.dtype(self.dtype).type(number)

    def state(self):
        return {f"param.{n}": w for n, w in self.weights.items()}

    def curves(self, losses, rows):
        n, tracked = len(losses), len(self.weights)
        return {
            "loss": np.array(losses),
            "grad_norm": np.sqrt(losses),
            "lr": np.full((n, 1), 0.1),
            "rows": rows,
            "norms": np.full((n, tracked), 1.0),
            "sketches": np.full((n, tracked), 2.0),
        }


def misbehave(fault, step):
    what, _, when = fault.partition("@")
    if not when or int(when) != step:
        return
    if what == "crash":
        os.abort()
    if what == "hang":
        time.sleep(3600)
    if what == "error":
        raise RuntimeError(f"step {step}: no such kernel")


def take_steps(trainer, fault, request):
    losses, first = [], trainer.done
    outcome, message = "ok", ""
    try:
        for _ in range(request["count"]):
            misbehave(fault, trainer.done + 1)
            losses.append(trainer.step())
    except RuntimeError as error:
        outcome, message = "error", str(error)
    arrays = trainer.curves(losses, trainer.order[first : trainer.done].astype(np.int64))
    if fault == "lie":
        del arrays["norms"]
    reply(request["buffer"], outcome, arrays, message=message, done=len(losses), seconds=1e-4 * len(losses))


def train(trainer, fault, request):
    if fault == "unsupported":
        reply(request["buffer"], "unsupported", message="it has no such optimizer")
        return None
    if fault == "unmoved" and request["perturbed"]:
        reply(request["buffer"], "error", message="it cannot be moved")
        return None
    trainer = Trainer(request)
    reply(request["buffer"], tracked=[f"param.{n}" for n in trainer.weights], keeps=5)
    return trainer


def record(trainer, fault, request):
    gone = request["step"] != trainer.done
    reply(request["buffer"], "error" if gone else "ok", {} if gone else trainer.record)


def state(trainer, fault, request):
    reply(request["buffer"], arrays=trainer.state())


def restore(trainer, fault, request):
    if fault == "norestore":
        reply(request["buffer"], "unsupported", message="a graph keeps its state to itself")
        return
    trainer.done = request["step"]
    trainer.weights = {n.removeprefix("param."): np.load(path) for n, path in request["tensors"].items()}
    reply(request["buffer"])


def serve():
    fault, trainer = "", None
    for line in sys.stdin:
        request = json.loads(line)
        do = request["do"]
        if do == "bye":
            break
        if do == "hello":
            fault = request["mode"]
            send(
                {
                    "ok": True,
                    "version": "1",
                    "python": "3",
                    "numpy": np.__version__,
                    "flags": {},
                    "differentiable": True,
                    "dtypes": None,
                }
            )
        else:
            trainer = ASKED[do](trainer, fault, request) or trainer


ASKED = {"train": train, "steps": take_steps, "record": record, "state": state, "restore": restore}
serve()
