"""The worker: serves one backend over a pipe. This docstring is the protocol, version 1.

Requests and replies are JSON objects, one per line. The host sends one request and waits for its reply.

hello   {"do": "hello", "protocol": 1, "adapter": "torch", "device": "cpu", "threads": 1,
         "mode": "eager", "ranks": 1}                 ranks: number of processes of a data-parallel training
        -> {"ok": true, "version": "2.13.0", "python": "3.11.7", "numpy": "2.4.6", "flags": {...},
            "differentiable": true, "dtypes": null}    whether it computes gradients; its dtypes (null: all)
        -> {"ok": false, "outcome": "unavailable" | "error", "message": "..."}    for every cell; the worker ends
load    {"do": "load", "path": "/my_ops.py", "wanted": ["layer_norm"]}        runs the user's file
        -> {"ok": true, "library": {"triton": "3.1"}, "differentiable": false, "dtypes": ["float32"]}
        -> {"ok": false, "outcome": "error", "message": "..."}
run     {"do": "run", "cell": 7, "op": "layer_norm", "dtype": "float32",
         "params": {...}, "droppable": ["eps"],       params at their default, which a user's op need not accept
         "tensors": {"x": "/run/tensors/.../x.npy"},  inputs; cast to dtype on reading
         "absent": ["bias"],                          optional inputs that are absent: None for a user's op
         "grad_outputs": {"y": "/run/.../grad.y.npy"}, empty: no gradients
         "differentiable": ["x"], "lists": ["grads"], `grads.0`, `grads.1`, ... are passed as one list `grads`
         "buffer": "/scratch/buffer-3",               the file for the results, which the worker extends
         "max_elements": 1048576,                     a larger result is described but not written
         "watched": {"x": "/run/tensors/.../x.npy"},  inputs, and grad_outputs as `grad.y`, that must not change
         "layouts": {"x": {"strides": [1, 2], "offset": 0, "size": 6},    a view of a buffer of 6 elements
                     "b": {"alias": "a"}},            or of another tensor's memory
         "storage": {"x": "float8_e4m3fn"},           inputs that the op gets in a narrower dtype
         "calls": 2,                                  how often the op is called; the results must be the same
         "others": [{"x": "...npy", "grad.y": "...npy"}]}    other inputs for calls in between, if calls is above 1
        -> {"cell": 7, "outcome": "ok" | "unsupported" | "error", "message": "", "seconds": 0.0002,
            "composed": false,                        whether it is parity's composition of the framework's calls
            "tensors": [{"name": "y", "dtype": "float32", "shape": [2, 3], "offset": 0}]}
        A bfloat16 tensor is written as its bits, 16 per number; bfloat16 inputs are stored as float32. A tensor of
        another dtype that NumPy lacks has "offset": null. A missing output is not listed. A watched tensor that has
        changed is listed with its new values, as `input.x`; a result that another call returned with other bits is
        listed as `again.y`, from the call that is furthest from the first. `other.0.y` is the result for the first of
        `others`, unless the op rejects them, `overwritten.y` a first result that a later call has changed.

A worker has at most one training; cells may come between its steps. Its replies have "outcome", "message" and
"tensors" as that of run. Names of tensors are PyTorch's, and so are layouts: `param.<name>`, `state.<state>.<name>`,
`buffer.<name>`, `grad.<name>` and `clipped.<name>` (before and after clipping), `output`, `loss`, `lr`, `norm`, `rows`.

train   {"do": "train", "spec": {...},                `parity.training.spec.message`
         "dtype": "float32", "x": "x.npy", "target": "target.npy",    the data set [rows, ...]
         "order": "order.npy",                        [steps, batch]: the rows of every step
         "tensors": {"linear0.weight": "...npy"},     initial parameters and buffers
         "perturbed": 0,                              or a seed: every weight is perturbed by one ulp, up or down
         "buffer": "...", "memory": 134217728}          bytes for the records of the last steps
        -> {..., "tracked": ["param.linear0.weight", ...], "keeps": 5}    so many latest records are kept
steps   {"do": "steps", "count": 5, "buffer": "..."}
        -> {..., "done": 5, "seconds": 0.4}           done is less than count if a step fails: "step 7: ..."
        tensors: loss, grad_norm [done], lr [done, groups], rows [done, batch], norms and sketches [done, tracked]
record  {"do": "record", "step": 7, "buffer": "..."}    every tensor of a step; those before it as `before.*`
restore {"do": "restore", "step": 200, "tensors": {"param.linear0.weight": "...npy", ...}, "buffer": "..."}
        continues after that step from this state
state   {"do": "state", "buffer": "..."}    the current `param.*`, `state.*` and `buffer.*`

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
        -> {..., "lines": [...], "inputs": {...}, "outputs": {...}, "returned": {...}, "reads": []}    its code as NumPy
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

After a reply with "last": true the worker ends, because its framework cannot continue.

Anything that the framework prints goes to the log (descriptor 2). The worker ends by os._exit, because some frameworks
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
from parity.worker.health import InterpreterGuard
from parity.worker.ranks import is_led, lead, reporting_location
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
    """Answer requests from descriptor `requests` on descriptor `replies`, until bye or the end of the input."""
    backend: Backend | None = None
    clients: Dict[str, Any] = {}
    with os.fdopen(requests, "r", encoding="utf-8") as pipe:
        for line in pipe:
            request = json.loads(line)
            if request["do"] == "hello" and is_led(request):
                lead(request, pipe, partial(send, replies))
                break
            with reporting_location(request, replies, send):
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
            end_twin(backend)
            if backend is None or backend.adapter.worn_out:
                reply["last"] = True
            send(replies, reply)
            if reply.get("last"):
                break
    leave()


def end_twin(backend: Backend | None) -> None:
    """End this process if it is a child of the worker's, which a user's code has forked."""
    if backend is not None:
        backend.interpreter.end_twin()


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

    backend = Backend(adapter, UserOps(modules=adapter.modules), InterpreterGuard(adapter))
    reply = {"ok": True, "version": adapter.version(), "python": platform.python_version(), "numpy": numpy.__version__}
    return backend, {**reply, "flags": adapter.flags(), **backend.user_ops.capabilities(adapter)}


def load(backend: Backend, request: Message) -> Message:
    """Run the user's file."""
    try:
        backend.user_ops.load(request["path"], request["wanted"])
        reported = {"library": backend.user_ops.library(), **backend.user_ops.capabilities(backend.adapter)}
        damage = backend.interpreter.damage()
        if damage:
            raise UserOpsError(f"{backend.user_ops.name} breaks its interpreter: {damage}")
        backend.adapter.adopt(backend.user_ops.own)
        backend.interpreter.remember()
    except UserOpsError as error:
        return {"ok": False, "outcome": "error", "message": str(error)}
    return {"ok": True, **reported}


def load_adapter(request: Message) -> Any:
    """The adapter's instance; creating it imports the framework. Raises Unsupported if its mode does not work here."""
    mode, ranks = request.get("mode", "eager"), request.get("ranks", 1)
    cls = load_object(class_path(request["adapter"], mode, ranks))
    adapter = cls(request["device"], request["threads"], mode, ranks)
    adapter.probe()
    return adapter


def send(replies: int, reply: Message) -> None:
    """Write one complete line."""
    data = memoryview((json.dumps(reply) + "\n").encode("utf-8"))
    while data:
        data = data[os.write(replies, data) :]


def leave() -> None:
    """End at once, without exit handlers, in which some frameworks abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
