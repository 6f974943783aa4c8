"""One call at the size of the file: its own inputs and weights, outputs only.

Cases are judged at small sizes, where an exact answer and error bounds can be had. A loop over blocks, a grid's tail,
an index that overflows show only at the file's own size, and there they are far beyond rounding.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from parity.cases.op import call_params
from parity.check import CheckError
from parity.check.limit import NEW
from parity.check.pair import FilePair
from parity.check.prepare import PreparedCheck
from parity.check.problem import ReferenceProblem, Sized
from parity.check.triton_code import mode_of
from parity.config.plan import BackendSpec
from parity.engine import EngineOptions
from parity.engine.buffers import SHARED_MEMORY
from parity.engine.logs import RunLog
from parity.engine.process import WorkerError
from parity.engine.starting import BackendError
from parity.engine.workers import Workers
from parity.judge.bound.envelope import ERROR_BOUND
from parity.outcome import Outcome
from parity.program.worker.user_module import AFTER

BYTES = 48
"""For each element of inputs, weights and outputs: in float32 in both processes, in their files, and in float64."""
PER_SECOND = 5e9
"""Operations of one core, in float64."""
RARE = 1e-3
"""The part of integers that may differ: neighbours in an order that rounding decides."""
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SizeAnswer:
    """What a call at the size of the file shows: the state of a check, why, and where results differ most."""

    state: str
    reason: str
    counterexample: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SizeDifference:
    """The element of an output that differs most, in units of what may differ."""

    tensor: str
    index: list[int]
    got: float
    exact: float
    bound: float
    ratio: float


def asked_at_size(prepared: PreparedCheck, engine: EngineOptions, run_dir: Path, deadline: float) -> SizeAnswer:
    """Call both at the size of the file, the candidate first. `deadline` is a time of the monotonic clock."""
    problem = prepared.problem
    if time.monotonic() > deadline:
        return SizeAnswer("not run", "the time was over")
    reason = too_large(problem, deadline - time.monotonic())
    if reason:
        return SizeAnswer("not run", reason)
    try:
        sized = problem.shaped({})
        params = {**call_params(prepared.plan.cases[0].params), **sized.params, **prepared.options}
        options = replace(engine, timeout_s=max(deadline - time.monotonic(), 1.0))
        with closing(CandidateCalls(prepared.pair, options, run_dir)) as call:
            outcome, message, own = call(sized, params, deadline)
        if outcome in (Outcome.TIMEOUT, Outcome.UNAVAILABLE, Outcome.UNSUPPORTED):
            return SizeAnswer("not run", f"{NEW}: {message}")
        if outcome != Outcome.OK:
            return SizeAnswer("failed", f"{NEW} gives no result: {message}")
        exact = problem.call(sized, prepared.options, dtype="float64")
        reference = problem.call(sized, prepared.options)
    except (CheckError, MemoryError) as error:
        return SizeAnswer("not run", str(error) or "there is not enough memory")
    return compared(own, exact, reference)


def too_large(problem: ReferenceProblem, seconds: float) -> str:
    """Why no call can be made at the size of the file; empty if one can."""
    cost = problem.cost({})
    if cost is None:
        return "what a call costs is not known"
    n_elements, n_operations = cost
    needed, left = BYTES * n_elements, psutil.virtual_memory().available
    if needed > left:
        return f"it needs {needed / 2**30:.1f} GiB of memory, and {left / 2**30:.1f} GiB are left"
    # Two calls of the reference and one of the candidate.
    if (expected := 3 * n_operations / PER_SECOND) > seconds:
        return f"it would take {expected:.0f} s, and {max(seconds, 0):.0f} s are left"
    return ""


class CandidateCalls:
    """Calls of a candidate in one process of its own, outputs only; to be closed."""

    def __init__(self, pair: FilePair, engine: EngineOptions, folder: Path) -> None:
        own, self.op = pair.candidate, pair.reference.name
        path = (own.run_path or own.path).absolute()
        self.spec = BackendSpec(NEW, own.adapter, mode=mode_of(own).get("mode", "eager"), ops=path)
        self.log = RunLog(folder / "at-size.log")
        self.workers = Workers(engine, [self.op], self.log, lambda _: None)

    def close(self) -> None:
        """End the process."""
        self.workers.close()
        self.log.close()

    def __call__(
        self, sized: Sized, params: Mapping[str, Any], deadline: float, other: Sized | None = None
    ) -> tuple[Outcome, str, dict[str, NDArray[Any]]]:
        """How a call ends that has until a time of the monotonic clock, what it says, and its outputs; where there are
        `other` inputs, results of further calls, too, as those of a case: `other.0.y`, `again.y`, `overwritten.y`, and
        `input.x`, which has changed."""
        second: AbstractContextManager[dict[str, str]] = stored(other) if other else nullcontext({})
        with stored(sized) as paths, second as others:
            inputs = {a.name for a in sized.arguments if a.is_tensor}
            request = {
                "do": "run",
                "cell": 0,
                "op": self.op,
                "dtype": sized.dtype,
                "params": dict(params),
                "tensors": paths,
                "grad_outputs": {},
                "storage": {},
                "watched": {name: path for name, path in paths.items() if other and name in inputs},
                "layouts": {},
                "calls": 2 if other else 1,
                "absent": [],
                "differentiable": [],
                "lists": [],
                "droppable": [],
                "others": [others] if other else [],
                "max_elements": 1 << 40,
            }
            try:
                reply, arrays = self.workers.take(self.spec).ask(request, max(deadline - time.monotonic(), 1.0))
            except (WorkerError, BackendError) as error:
                return error.outcome, str(error), {}
        return Outcome(reply["outcome"]), str(reply["message"]), arrays


@contextmanager
def stored(sized: Sized) -> Iterator[dict[str, str]]:
    """The files of all inputs and weights, as long as they are needed."""
    arrays = {a.name: a.value for a in sized.arguments if a.is_tensor}
    arrays |= {weight.name: weight.values for weight in sized.weights}
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="parity-at-size-", dir=memory) as folder:
        paths = {name: Path(folder) / f"{name}.npy" for name in arrays}
        for name, path in paths.items():
            np.save(path, arrays[name])
        yield {name: str(path) for name, path in paths.items()}


def compared(own: Arrays, exact: Arrays, reference: Arrays) -> SizeAnswer:
    """Whether the candidate's outputs are the reference's."""
    wanted = [name for name in exact if not name.startswith(AFTER)]
    for name in wanted:
        if name not in own or own[name].shape != exact[name].shape:
            shape = "nothing" if name not in own else f"shape {list(own[name].shape)}"
            return SizeAnswer("failed", f"{name} has {shape}, not shape {list(exact[name].shape)}")
    differences = [difference(name, own[name], exact[name], reference[name]) for name in wanted]
    worst = max((d for d in differences if d is not None), key=lambda d: d.ratio, default=None)
    n = sum(exact[name].size for name in wanted)
    if worst is None or worst.ratio <= 1:
        return SizeAnswer("passed", f"{n} elements")
    row = {"tensor": worst.tensor, "index": worst.index, "got": worst.got, "exact": worst.exact, "bound": worst.bound}
    text = f"{worst.tensor}{worst.index} is {worst.got:.6g} where {worst.exact:.6g} is exact"
    return SizeAnswer("failed", text, {"inputs": "", "case": "at-size", **row})


def difference(name: str, own: NDArray[Any], exact: NDArray[Any], reference: NDArray[Any]) -> SizeDifference | None:
    """Where an output differs most; None where it has no elements.

    What may differ is half of the digits of the output's dtype, of its largest element, or some times the error of the
    reference's own code, as far as that is finite: a fault in a formula is larger, the rounding of another order of
    sums smaller. Of integers, such as indices, one in a thousand may differ.
    """
    if not exact.size:
        return None
    if exact.dtype.kind != "f":
        unequal = np.not_equal(own, exact)
        bound = max(ERROR_BOUND * float(np.not_equal(reference, exact).mean()), RARE)
        return largest(name, own, exact, unequal.astype(np.float64), bound, float(unequal.mean()) / bound)
    usable = np.isfinite(exact) & np.isfinite(reference)
    scale, error = (float(np.where(usable, np.abs(a), 0).max()) for a in (exact, reference - exact))
    kind = own.dtype if own.dtype.kind == "f" else np.dtype(np.float32)
    bound = max(ERROR_BOUND * error, float(np.sqrt(np.finfo(kind).eps)) * scale, float(np.finfo(kind).tiny))
    apart = np.where(usable, np.abs(own.astype(np.float64) - exact), 0)
    apart[np.isnan(apart)] = np.inf
    return largest(name, own, exact, apart, bound, float(apart.max()) / bound)


def largest(
    name: str, own: NDArray[Any], exact: NDArray[Any], apart: NDArray[Any], bound: float, ratio: float
) -> SizeDifference:
    """The difference at the element where two results are farthest apart."""
    index = np.unravel_index(int(apart.argmax()), apart.shape)
    return SizeDifference(name, [*map(int, index)], float(own[index]), float(exact[index]), bound, ratio)
