"""Computes one cell: reads the inputs, calls the op, writes the results into the shared buffer."""

from __future__ import annotations

import contextlib
import copy
import dis
import math
import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping

import numpy as np

from parity.adapters.base import Adapter, Job, Unsupported, with_tuples
from parity.adapters.bits import in_dtype, values_of
from parity.adapters.strides import placed
from parity.worker.arrays import read_array, to_arrays
from parity.worker.buffer import write_arrays
from parity.worker.health import InterpreterGuard
from parity.worker.user_ops import UserOps, UserOpsError, print_stack, text_of

Message = Dict[str, Any]
Arrays = Dict[str, Any]
"""Tensors by name."""

TINY = 5e-324
"""The distance of results with different bits and equal values, such as zeros of both signs."""

MAX_MESSAGE = 2000
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Backend:
    """What a worker serves: an adapter, and the user's ops."""

    adapter: Adapter
    user_ops: UserOps
    interpreter: InterpreterGuard


def run_cell(backend: Backend, request: Message) -> Message:
    """The reply to a `run` request; it is the last one if the user's op has broken the interpreter."""
    if backend.user_ops.path is None:
        return computed(backend, request)
    reply = {
        **empty_reply(request),
        "outcome": "error",
        "message": f"{backend.user_ops.name} gave no result",
        "last": True,
    }
    # Changes of NumPy's error handling end with the op.
    with contextlib.suppress(BaseException), np.errstate():
        reply = computed(backend, request)
    damage = backend.interpreter.damage()
    if not damage:
        return reply
    message = f"{backend.user_ops.name}: {request['op']} breaks its interpreter: {damage}; a new one is started"
    return {**empty_reply(request), "outcome": "error", "message": message, "last": True}


def empty_reply(request: Message) -> Message:
    """A reply to a `run` request, without results."""
    return {"cell": request["cell"], "outcome": "ok", "message": "", "seconds": 0.0, "tensors": []}


def computed(backend: Backend, request: Message) -> Message:
    """The reply to a `run` request; every error becomes a reply, unless the process ends."""
    reply = empty_reply(request)
    try:
        given = read_given(request)
        reply["composed"] = backend.adapter.is_composition(job_of(backend, request, given))
        first = called(backend, request, given)
        reply["seconds"], reply["message"] = first.seconds, first.remark
        later = called_again(backend, request, given, first) if request["calls"] > 1 else {}
        reply["tensors"] = write_arrays(request["buffer"], {**first.arrays, **later})
    except Unsupported as error:
        reply.update(outcome="unsupported", message=str(error))
    except BaseException as error:
        print_stack()
        unsupported = bool(described(backend.adapter, error)) and (
            backend.adapter.refuses(error)
            or (not backend.user_ops.raised(error) and backend.adapter.lacks_kernel(error))
        )
        reply.update(outcome="unsupported" if unsupported else "error", message=explain(backend, error))
        if backend.user_ops.path is not None and is_own_failure(error):
            reply["last"] = True
    return reply


def is_own_failure(error: BaseException) -> bool:
    """Whether a line of the worker failed, other than a `raise`: the user's op may have broken what it works with."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None:
        return False
    code = entry.tb_frame.f_code
    is_own = os.path.dirname(code.co_filename) == os.path.dirname(__file__)
    return is_own and code.co_code[entry.tb_lasti] != dis.opmap["RAISE_VARARGS"]


def read_given(request: Message) -> Arrays:
    """The stored tensors in the request's dtype, grad_outputs as `grad.<output>`."""
    paths = {**request["tensors"], **{f"grad.{name}": path for name, path in request["grad_outputs"].items()}}
    return read_arrays(paths, request["dtype"])


def read_arrays(paths: Mapping[str, str], dtype: str) -> Arrays:
    """The tensors in these files, in `dtype`."""
    return {name: read_array(path, dtype) for name, path in paths.items()}


@dataclass(frozen=True)
class OpCall:
    """One call of the op: a copy of its results, the results themselves, and the tensors that it got."""

    arrays: Arrays
    results: Dict[str, Any]
    tensors: Arrays
    seconds: float
    remark: str


def called(backend: Backend, request: Message, given: Arrays) -> OpCall:
    """Calls the op once, on copies of the tensors."""
    # A single call may use the tensors themselves, since changes are found by comparing with the files.
    fresh = given if request["calls"] == 1 else {name: array.copy() for name, array in given.items()}
    tensors = in_memory(fresh, request["layouts"], backend.adapter)
    return called_with(backend, request, tensors, job_of(backend, request, tensors))


def called_in(backend: Backend, request: Message, given: Arrays, call: OpCall) -> OpCall:
    """Calls the op on these values in the memory of an earlier call, and with its tensors, where these share it."""
    for name, array in given.items():
        call.tensors[name][...] = array
    job = job_of(backend, {**request, "watched": {}}, call.tensors)
    leaves: Dict[str, Any] = {name: call.results.get(f"input.{name}") for name in job.inputs}
    if all(shares(backend.adapter, leaf, job.inputs[name]) for name, leaf in leaves.items()):
        for leaf in leaves.values():
            if getattr(leaf, "grad", None) is not None:
                leaf.grad = None
        job = replace(job, leaves=leaves)
    return called_with(backend, request, call.tensors, job)


def shares(adapter: Adapter, leaf: Any, array: Any) -> bool:
    """Whether a framework's tensor has the memory of an array."""
    if leaf is None or isinstance(leaf, (list, tuple)):
        return False
    return bool(np.may_share_memory(adapter.to_numpy(leaf), array))


def called_with(backend: Backend, request: Message, tensors: Arrays, job: Job) -> OpCall:
    """Runs the job, which has these tensors."""
    started = time.perf_counter()
    results = backend.adapter.run(job)
    backend.interpreter.end_twin()
    seconds = time.perf_counter() - started
    arrays = to_arrays(backend.adapter, results, request)
    if request["calls"] > 1:  # The next call may change what this one returned.
        arrays = copy.deepcopy(arrays)
    return OpCall(without_unchanged(arrays, request), results, tensors, seconds, remark(backend, job))


def called_again(backend: Backend, request: Message, given: Arrays, first: OpCall) -> Arrays:
    """What later calls return: all results on other inputs, as `other.<number>.<name>`; results of the first call that
    have changed by then, as `overwritten.<name>`; and results on the same inputs that differ from the first, as
    `again.<name>`, of several the furthest from the first.

    The other inputs are in the memory of the first ones, since a result may be cached by address; the same inputs come
    again in new memory.
    """
    answers: Arrays = {}
    for number, paths in enumerate(request["others"]):
        with contextlib.suppress(Exception):  # An op may reject them, which is no error in the results of the case.
            arrays = called_in(backend, request, read_arrays(paths, request["dtype"]), first).arrays
            answers.update({f"other.{number}.{name}": array for name, array in arrays.items()})
        answers.update({f"overwritten.{name}": array for name, array in overwritten(backend, request, first).items()})
    distances: Dict[str, float] = {}
    for _ in range(1, request["calls"]):
        for name, array in called(backend, request, given).arrays.items():
            if name.startswith("input."):
                answers[name] = array
                continue
            largest = distance(first.arrays.get(name), array)
            if largest > distances.get(name, 0.0):
                distances[name], answers[f"again.{name}"] = largest, array
    return answers


def overwritten(backend: Backend, request: Message, call: OpCall) -> Arrays:
    """The results of a call that later calls have changed, with their new values; not those that are inputs."""
    results = {name: value for name, value in call.results.items() if not name.startswith("input.")}
    arrays = to_arrays(backend.adapter, results, request)
    changed = {name: array for name, array in arrays.items() if distance(call.arrays.get(name), array)}
    inputs = call.tensors.values()
    return {n: a.copy() for n, a in changed.items() if not any(np.may_share_memory(a, tensor) for tensor in inputs)}


def distance(one: Any, other: Any) -> float:
    """The largest difference between two results; 0 for equal bits, infinite if only one is a number."""
    if isinstance(other, tuple) or one is None:
        return 0.0 if one == other else math.inf
    if isinstance(one, tuple) or one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if one.tobytes() == other.tobytes():
        return 0.0
    numbers = [values_of(array) if array.dtype == np.uint16 else array for array in (one, other)]
    with np.errstate(all="ignore"):
        difference = np.abs(numbers[0].astype(np.float64) - numbers[1].astype(np.float64))
    only_one = np.isnan(difference) & (np.isnan(numbers[0]) != np.isnan(numbers[1]))
    difference = np.where(only_one, math.inf, difference)
    return max(float(np.nanmax(difference, initial=0.0)), TINY)


def in_memory(arrays: Arrays, layouts: Mapping[str, Any], adapter: Adapter) -> Arrays:
    """The tensors with the requested memory layouts; raises Unsupported if the framework has no strides."""
    if layouts and not adapter.strided:
        raise Unsupported(f"{type(adapter).__name__}: its tensors have no strides and cannot share memory")
    aliases = {name: layout["alias"] for name, layout in layouts.items() if "alias" in layout}
    # A grad_output is missing if only outputs are requested.
    own = {name: placed(arrays[name], layouts[name]) for name in arrays if name in layouts and name not in aliases}
    laid = {**arrays, **own}
    return {name: laid[aliases.get(name, name)] for name in arrays}


def job_of(backend: Backend, request: Message, arrays: Arrays) -> Job:
    """The job that the request describes, with these tensors."""
    grad_outputs = {name: arrays[f"grad.{name}"] for name in request["grad_outputs"]}
    inputs = gather_lists({name: arrays[name] for name in request["tensors"]}, request["lists"])
    params = with_tuples(request["params"])
    differentiable = request["differentiable"] if grad_outputs else ()
    stored = {"storage": request["storage"], "dtype": request["dtype"]} if request["storage"] else {}
    job = Job(request["op"], inputs, params, grad_outputs, differentiable, watched=bool(request["watched"]), **stored)
    return backend.user_ops.applied(job, request["absent"], request["droppable"])


def gather_lists(arrays: Dict[str, Any], lists: List[str]) -> Dict[str, Any]:
    """`grads.0`, `grads.1`, ... gathered under `grads`."""
    gathered: Dict[str, Any] = {}
    for name, array in arrays.items():
        head = name.partition(".")[0]
        if head in lists:
            gathered.setdefault(head, []).append(array)
        else:
            gathered[name] = array
    return gathered


def without_unchanged(arrays: Dict[str, Any], request: Message) -> Dict[str, Any]:
    """The arrays, without inputs that are unchanged or not watched."""
    paths = {f"input.{name}": path for name, path in request["watched"].items()}

    def is_kept(name: str) -> bool:
        if not name.startswith("input."):
            return True
        value = arrays[name]
        return name in paths and not isinstance(value, tuple) and differs(value, paths[name], request["dtype"])

    return {name: array for name, array in arrays.items() if is_kept(name)}


def differs(array: Any, path: str, dtype: str) -> bool:
    """Whether an array's bits differ from those of the stored tensor in `dtype`, compared in the array's dtype."""
    stored = in_dtype(np.load(path, mmap_mode="r", allow_pickle=False), dtype)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}.get(array.itemsize, np.uint8)
    one, other = (np.ascontiguousarray(a, dtype=array.dtype).view(bits) for a in (array, stored))
    return bool(one.shape != other.shape or (one != other).any())


def remark(backend: Backend, job: Job) -> str:
    """A remark for the user about a cell that ran, or nothing."""
    if job.function is None or not job.grad_outputs or job.backward is not None or not backend.adapter.needs_backward:
        return ""
    return f"{backend.user_ops.name} has no {job.op}_backward, so there are no gradients"


def explain(backend: Backend, error: BaseException) -> str:
    """The error in one line, with its location in the user's file."""
    if isinstance(error, UserOpsError):
        return str(error)
    text = " ".join(CONTROL.sub("", described(backend.adapter, error)).split()) or "no message"
    inner = backend.adapter.origin(error)
    text = f"{type(inner).__name__}: {text}{backend.user_ops.shadow(inner)}"
    return f"{backend.user_ops.location(inner) or backend.user_ops.location(error)}{text}"[:MAX_MESSAGE]


def described(adapter: Adapter, error: BaseException) -> str:
    """The framework's message; empty if the error, which may be the user's own, cannot say it."""
    return text_of(error, adapter.describe)
