"""Computes one cell: reads the inputs, calls the op, writes the results into the slot."""

from __future__ import annotations

import math
import re
import time
import traceback
from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np

from parity.adapters.base import Adapter, Job, Unsupported, with_tuples
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


def run_cell(backend: Backend, request: Message) -> Message:
    """The reply to a `run` request; nothing that the op does short of ending the process escapes."""
    reply: Message = {"cell": request["cell"], "outcome": "ok", "message": "", "seconds": 0.0, "tensors": []}
    try:
        job = read_job(backend, request)
        started = time.perf_counter()
        results = backend.adapter.run(job)
        reply["seconds"] = time.perf_counter() - started
        reply["message"] = remark(backend, job)
        arrays = without_unchanged(to_arrays(backend.adapter, results, request), request)
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
    job = Job(request["op"], inputs, params, upstream, differentiable, watched=bool(request.get("watched")))
    return backend.user_ops.applied(job, request["absent"], request["droppable"])


def read_array(path: str, dtype: str) -> Any:
    """A stored tensor in `dtype`, or in int64 where it holds integers, in memory of its own."""
    array = np.load(path, allow_pickle=False)
    return array.astype(np.int64 if array.dtype.kind in "iu" else dtype, copy=False)


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


def to_arrays(adapter: Adapter, results: Dict[str, Any], request: Message) -> Dict[str, Any]:
    """Results by tensor name as NumPy arrays; one that NumPy cannot hold, or that is too large, as (dtype, shape)."""
    dtype, most = request["dtype"], request["max_elements"]
    arrays: Dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, (list, tuple)):
            arrays.update({f"{name}.{i}": to_array(adapter, item, dtype, most) for i, item in enumerate(value)})
        else:
            arrays[name] = to_array(adapter, value, dtype, most)
    return {name: array for name, array in arrays.items() if array is not None}


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
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    stored = stored.astype(np.int64 if stored.dtype.kind in "iu" else dtype, copy=False)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}.get(array.itemsize, np.uint8)
    one, other = (np.ascontiguousarray(a, dtype=array.dtype).view(bits) for a in (array, stored))
    return bool(one.shape != other.shape or (one != other).any())


def to_array(adapter: Adapter, value: Any, dtype: str, max_elements: int) -> Any:
    """One result as an array; a plain Python number has no dtype of its own and takes the cell's."""
    if value is None:
        return None
    if isinstance(value, (bool, int, float)):
        return np.asarray(value, dtype=dtype)
    described = str(value.dtype).rpartition(".")[2], [int(n) for n in value.shape]
    if math.prod(described[1]) > max_elements:
        return described
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        return np.asarray(adapter.to_numpy(value))
    except TypeError:
        # NumPy has no bfloat16 and no float8: the reply says what it was.
        return described


def remark(backend: Backend, job: Job) -> str:
    """What the user should know about a cell that ran."""
    if job.function is None or not job.upstream or job.backward is not None or not backend.adapter.needs_backward:
        return ""
    return f"{backend.user_ops.name} has no {job.op}_backward, so there are no gradients"


def explain(backend: Backend, error: BaseException) -> str:
    """One line on what went wrong, with the place in the user's file where it did."""
    if isinstance(error, UserOpsError):
        return str(error)
    text = " ".join(CONTROL.sub("", backend.adapter.describe(error)).split()) or "no message"
    return f"{backend.user_ops.place(error)}{type(error).__name__}: {text}"[:MAX_MESSAGE]
