"""Computes one cell: reads the inputs, calls the op, writes the results into the slot."""

from __future__ import annotations

import contextlib
import re
import time
import traceback
from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np

from parity.adapters.base import Adapter, Job, Unsupported, with_tuples
from parity.adapters.bits import in_dtype
from parity.worker.arrays import read_array, to_arrays
from parity.worker.interpreter import Interpreter
from parity.worker.slot import write_arrays
from parity.worker.user_ops import UserOps, UserOpsError

Message = Dict[str, Any]

MAX_MESSAGE = 2000
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Backend:
    """What a worker serves: an adapter, and the ops that the user replaced."""

    adapter: Adapter
    user_ops: UserOps
    interpreter: Interpreter


def run_cell(backend: Backend, request: Message) -> Message:
    """The reply to a `run` request; the last one where the user's op leaves an interpreter that cannot go on."""
    if backend.user_ops.path is None:
        return computed(backend, request)
    reply = {**empty_reply(request), "outcome": "error", "message": f"{backend.user_ops.name} gave no result"}
    # What the op does to NumPy's handling of errors ends with it.
    with contextlib.suppress(BaseException), np.errstate():
        reply = computed(backend, request)
    damage = backend.interpreter.damage()
    if not damage:
        return reply
    message = f"{backend.user_ops.name}: {request['op']} breaks its interpreter: {damage}; a new one is started"
    return {**empty_reply(request), "outcome": "error", "message": message, "last": True}


def empty_reply(request: Message) -> Message:
    """The reply to a `run` request that has no results."""
    return {"cell": request["cell"], "outcome": "ok", "message": "", "seconds": 0.0, "tensors": []}


def computed(backend: Backend, request: Message) -> Message:
    """The reply to a `run` request; nothing that the op does short of ending the process escapes."""
    reply = empty_reply(request)
    try:
        job = read_job(backend, request)
        started = time.perf_counter()
        results = backend.adapter.run(job)
        reply["seconds"] = time.perf_counter() - started
        arrays = to_arrays(backend.adapter, results, request)
        remarks = (remark(backend, job), overwritten(backend, job, request, arrays))
        arrays = without_unchanged(arrays, request)
        reply["message"] = "; ".join(text for text in remarks if text)
        reply["tensors"] = write_arrays(request["slot"], arrays)
    except Unsupported as error:
        reply.update(outcome="unsupported", message=str(error))
    except BaseException as error:
        traceback.print_exc()
        unsupported = not backend.user_ops.raised(error) and backend.adapter.lacks_kernel(error)
        reply.update(outcome="unsupported" if unsupported else "error", message=explain(backend, error))
    return reply


def read_job(backend: Backend, request: Message) -> Job:
    """The job that the request describes, its inputs read in the request's dtype."""
    dtype = request["dtype"]
    arrays = {name: read_array(path, dtype) for name, path in request["tensors"].items()}
    upstream = {name: read_array(path, dtype) for name, path in request["upstream"].items()}
    inputs = gather_lists(arrays, request["lists"])
    params = with_tuples(request["params"])
    differentiable = request["differentiable"] if upstream else ()
    watched = bool(request.get("watched")) or backend.user_ops.path is not None
    job = Job(request["op"], inputs, params, upstream, differentiable, watched=watched)
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
    paths = {f"input.{name}": path for name, path in request.get("watched", {}).items()}

    def is_kept(name: str) -> bool:
        if not name.startswith("input."):
            return True
        value = arrays[name]
        return name in paths and not isinstance(value, tuple) and differs(value, paths[name], request["dtype"])

    return {name: array for name, array in arrays.items() if is_kept(name)}


def differs(array: Any, path: str, dtype: str) -> bool:
    """Whether an array has other bits than the stored tensor in `dtype`, as far as its own dtype has them."""
    stored = in_dtype(np.load(path, mmap_mode="r", allow_pickle=False), dtype)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}.get(array.itemsize, np.uint8)
    one, other = (np.ascontiguousarray(a, dtype=array.dtype).view(bits) for a in (array, stored))
    return bool(one.shape != other.shape or (one != other).any())


def remark(backend: Backend, job: Job) -> str:
    """What the user should know about a cell that ran."""
    if job.function is None or not job.upstream or job.backward is not None or not backend.adapter.needs_backward:
        return ""
    return f"{backend.user_ops.name} has no {job.op}_backward, so there are no gradients"


def overwritten(backend: Backend, job: Job, request: Message, returned: Dict[str, Any]) -> str:
    """A remark on inputs that a user's op changes in place; one that it returns is meant to change."""
    if job.function is None:
        return ""
    now = {name: returned.get(f"input.{name}") for name in request["tensors"] if name not in returned}
    files, dtype = request["tensors"], request["dtype"]
    changed = [n for n, array in now.items() if isinstance(array, np.ndarray) and differs(array, files[n], dtype)]
    return f"{backend.user_ops.name}: {job.op} changes {', '.join(changed)} in place" if changed else ""


def explain(backend: Backend, error: BaseException) -> str:
    """One line on what went wrong, with the place in the user's file where it did."""
    if isinstance(error, UserOpsError):
        return str(error)
    text = " ".join(CONTROL.sub("", backend.adapter.describe(error)).split()) or "no message"
    return f"{backend.user_ops.place(error)}{type(error).__name__}: {text}"[:MAX_MESSAGE]
