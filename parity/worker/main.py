"""The worker: serves one backend over a pipe. This docstring is the protocol, version 1.

Requests and replies are JSON objects, one per line. The host sends one request and waits for its reply.

hello   {"do": "hello", "protocol": 1, "adapter": "torch", "device": "cpu", "threads": 1,
         "mode": "eager", "ranks": 1}                 how it runs; ranks: processes of a data-parallel training
        -> {"ok": true, "version": "2.13.0", "python": "3.11.7", "numpy": "2.4.6", "flags": {...},
            "differentiable": true, "dtypes": null}              whether it gives gradients; what it computes in
        -> {"ok": false, "outcome": "unavailable" | "error", "message": "..."}    of every cell; the worker ends
load    {"do": "load", "path": "/my_ops.py", "wanted": ["layer_norm"]}        runs the user's file
        -> {"ok": true, "library": {"triton": "3.1"}, "differentiable": false, "dtypes": ["float32"]}
        -> {"ok": false, "outcome": "error", "message": "..."}
run     {"do": "run", "cell": 7, "op": "layer_norm", "dtype": "float32",
         "params": {...}, "droppable": ["eps"],       params at their default, which a user's op need not take
         "tensors": {"x": "/run/tensors/.../x.npy"},  inputs; cast to dtype on reading
         "absent": ["bias"],                          optional inputs that are switched off: None for a user's op
         "grad_outputs": {"y": "/run/.../grad.y.npy"}, empty: no gradients
         "differentiable": ["x"], "lists": ["grads"], `grads.0`, `grads.1`, ... are passed as one list `grads`
         "buffer": "/scratch/buffer-3",               a file that the worker extends as needed and writes results into
         "max_elements": 1048576,                     a larger result is described but not written
         "watched": {"x": "/run/tensors/.../x.npy"},  inputs, and grad_outputs as `grad.y`, that must not change
         "layouts": {"x": {"strides": [1, 2], "offset": 0, "size": 6},    how a tensor lies in a buffer of 6 elements
                     "b": {"alias": "a"}},            or that it shares the memory of another
         "storage": {"x": "float8_e4m3fn"},           inputs that the op gets in a narrower dtype
         "calls": 2}                                  so often the op is called, which must give the same results
        -> {"cell": 7, "outcome": "ok" | "unsupported" | "error", "message": "", "seconds": 0.0002,
            "tensors": [{"name": "y", "dtype": "float32", "shape": [2, 3], "offset": 0}]}
        A tensor of dtype bfloat16 is written as its bits, 16 for each number; inputs of that dtype are stored as
        float32. A tensor of another dtype that NumPy lacks has "offset": null. An output that is missing is not
        listed. What is watched and has changed is listed with its new values, as `input.x`; a result that another
        call returned with other bits as `again.y`, from the call that is furthest from the first.

A worker has at most one training; cells may come between its steps. Its replies have "outcome", "message" and
"tensors" as that of run. Names of tensors are PyTorch's, and so are layouts: `param.<name>`, `state.<state>.<name>`,
`buffer.<name>`, `grad.<name>` and `clipped.<name>` (before and after clipping), `output`, `loss`, `lr`, `norm`, `rows`.

train   {"do": "train", "spec": {...},                `parity.training.spec.message`
         "dtype": "float32", "x": "x.npy", "target": "target.npy",    the data set [rows, ...]
         "order": "order.npy",                        [steps, batch]: the rows of every step
         "tensors": {"linear0.weight": "...npy"},     parameters and buffers as they start
         "perturbed": 0,                              else a seed: every weight is perturbed by one ulp, up or down
         "buffer": "...", "memory": 134217728}          bytes for the records of the last steps
        -> {..., "tracked": ["param.linear0.weight", ...], "keeps": 5}    records of so many steps are there
steps   {"do": "steps", "count": 5, "buffer": "..."}
        -> {..., "done": 5, "seconds": 0.4}           done is less than count where a step fails: "step 7: ..."
        tensors: loss, grad_norm [done], lr [done, groups], rows [done, batch], norms and sketches [done, tracked]
record  {"do": "record", "step": 7, "buffer": "..."}    every tensor of a step, those that it began with as `before.*`
restore {"do": "restore", "step": 200, "tensors": {"param.linear0.weight": "...npy", ...}, "buffer": "..."}
        goes on after that step from this state
state   {"do": "state", "buffer": "..."}                `param.*`, `state.*` and `buffer.*` as they are now

A worker has at most one model (`parity.models`). Its tensors travel through folders of `.npy` files with an index
(`parity.models.worker.tape`); a tensor at a layer's boundary is named `layer|call|in or out|index`.

model.build {"do": "model.build", "build": "build_model", "mode": "eval", "state": "/run/.../state",
         "forward": "", "loss": "loss", "metric": "", "batch": "make_batch", "batch_at": "/run/.../batch",
         "layers": ["encoder.0"]}                     the baseline's
        -> {..., "layers": [...], "parameters": [...], "batch": [...]}    what it is made of; its state goes to `state`
model.run {"do": "model.run", "state": "...", "batch": "...", "record": "...", "dtype": "float32", "seed": 0,
         "layers": ["encoder.0.norm"],                whose boundaries are recorded
         "partner": null, "keys": null, "replace": null,    a record whose tensors take the place of these
         "gradients": true, "targets": ["labels"], "outputs": ["output"]}
        -> {...}    the record has outputs, loss, `grad.<parameter>`, and tensors at boundaries
model.layer {"do": "model.layer", "layer": "encoder.0.norm", "call": 0, "given": "...", "record": "...", ...}
        -> {...}    one layer, called alone with other tensors
model.extract {"do": "model.extract", "layer": "...", "call": 0, "path": "/run/.../layer.onnx", ...}
                                                         -> {..., "inputs": ["add_2"], "outputs": ["layer_norm_1"]}
model.trace {"do": "model.trace", ...}                as model.layer
        -> {..., "lines": [...], "inputs": {...}, "outputs": {...}, "returned": {...}}    its own code as NumPy
model.calls {"do": "model.calls", ...}                as model.layer
        -> {..., "steps": [...], "inputs": {...}, "outputs": {...}, "names": {...}}    what its own code calls
model.metric {"do": "model.metric", "record": "...", "batch": "..."}    -> {..., "metrics": {"accuracy": 0.5}}
model.prompts {"do": "model.prompts", "prompts": "prompts"}    -> {..., "prompts": [[7, 21, 4], [18, 3]]}
model.decode {"do": "model.decode", "state": "...", "record": "...", "dtype": "float32", "seed": 0,
         "layers": ["blocks.0"],
         "calls": [{"tokens": [[7, 21]], "mask": [[1, 1]], "positions": [[0, 1]], "fresh": true, "rows": [...]}],
         "lengths": [3, 2], "partner": {"0": "..."},      full passes whose tensors take the place of these
         "keys": null, "replace": null, "shaken": "", "listen": null}    a layer whose code tells what it calls
        -> {..., "caches": [...], "takes": ["mask"], "words": {"": ["tokens"]}, "heard": []}
                                                         call k's record is in `record`/k, and what it calls in k-calls

bye     {"do": "bye"}    no reply; the worker ends

A reply with "last": true says that the worker ends after it, because its framework is in no state to go on.

Anything that the framework prints goes to the log (descriptor 2). The worker leaves by os._exit, because frameworks
abort in their exit handlers.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from functools import partial
from typing import Any, Dict

from parity.adapters import class_path, load_object
from parity.adapters.base import Unsupported
from parity.worker.cell import Backend, run_cell
from parity.worker.interpreter import InterpreterGuard
from parity.worker.ranks import is_led, lead, telling
from parity.worker.user_ops import UserOps, UserOpsError

PROTOCOL = 1

CLIENTS = {
    **dict.fromkeys(
        ("train", "steps", "record", "restore", "state"), "parity.training.worker.requests:TrainingRequests"
    ),
    **dict.fromkeys(
        tuple(
            f"model.{do}"
            for do in ("build", "run", "layer", "extract", "trace", "calls", "metric", "decode", "prompts")
        ),
        "parity.models.worker.requests:ModelRequests",
    ),
}
"""The class, `module:Class`, that answers each request other than for ops: `cls(backend).answer(request)`."""

Message = Dict[str, Any]


def serve(requests: int, replies: int) -> None:
    """Answer requests from descriptor `requests` on descriptor `replies` until bye or the end of the input."""
    backend: Backend | None = None
    clients: Dict[str, Any] = {}
    with os.fdopen(requests, "r", encoding="utf-8") as pipe:
        for line in pipe:
            request = json.loads(line)
            if request["do"] == "hello" and is_led(request):
                lead(request, pipe, partial(send, replies))
                break
            with telling(request, replies, send):
                if request["do"] == "hello":
                    backend, reply = hello(request)
                    clients = {}
                elif request["do"] == "load" and backend is not None:
                    reply = load(backend, request)
                elif request["do"] == "run" and backend is not None:
                    reply = run_cell(backend, request)
                elif request["do"] in CLIENTS and backend is not None:
                    path = CLIENTS[request["do"]]
                    if path not in clients:
                        clients[path] = load_object(path)(backend)
                    reply = clients[path].answer(request)
                else:
                    break
            if backend is None or backend.adapter.worn_out:
                reply["last"] = True
            send(replies, reply)
            if reply.get("last"):
                break
    leave()


def hello(request: Message) -> tuple[Backend | None, Message]:
    """Import the framework, and describe this worker."""
    try:
        if request["protocol"] != PROTOCOL:
            raise Unsupported(f"protocol {request['protocol']} is not protocol {PROTOCOL}")
        adapter = load_adapter(request)
    except BaseException as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
        return None, {"ok": False, "outcome": "unavailable", "message": text}
    import numpy

    backend = Backend(adapter, UserOps(), InterpreterGuard(adapter))
    reply = {"ok": True, "version": adapter.version(), "python": platform.python_version(), "numpy": numpy.__version__}
    return backend, {**reply, "flags": adapter.flags(), **backend.user_ops.capabilities(adapter)}


def load(backend: Backend, request: Message) -> Message:
    """Run the user's file."""
    try:
        backend.user_ops.load(request["path"], request["wanted"])
        backend.adapter.adopt(backend.user_ops.own)
        said = {"library": backend.user_ops.library(), **backend.user_ops.capabilities(backend.adapter)}
        damage = backend.interpreter.damage()
        if damage:
            raise UserOpsError(f"{backend.user_ops.name} breaks its interpreter: {damage}")
        backend.interpreter.remember()
    except UserOpsError as error:
        return {"ok": False, "outcome": "error", "message": str(error)}
    return {"ok": True, **said}


def load_adapter(request: Message) -> Any:
    """The adapter's instance; this is where the framework is imported."""
    mode, ranks = request.get("mode", "eager"), request.get("ranks", 1)
    cls = load_object(class_path(request["adapter"], mode, ranks))
    return cls(request["device"], request["threads"], mode, ranks)


def send(replies: int, reply: Message) -> None:
    """Write one line, whole."""
    data = memoryview((json.dumps(reply) + "\n").encode("utf-8"))
    while data:
        data = data[os.write(replies, data) :]


def leave() -> None:
    """End at once, without the exit handlers in which some frameworks abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
