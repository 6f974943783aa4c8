"""Which of several files computes what a reference does: mutants of a candidate, in a process of its own.

`python mutant.py REQUEST FOLDER` calls the class or function of each file, and writes the numbers of those that agree
to FOLDER: `agreeing.json`. The first file is the candidate's own; where the fault has to be `shown`, it must differ.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
import time
from typing import Any, Dict, Iterator, Mapping

import numpy as np

from parity.program.worker.trail import CallTrail, TrailValues, module_at, tensor_of

AGREEING = "agreeing.json"
ENOUGH = 4
"""So many that agree are enough."""
LONGER = 1.25
"""After the first one, others are tried until so many times its time has passed."""
TOLERANCES = {"float64": 1e-6, "float32": 1e-5}
"""What results may differ by, in relation to the largest element."""
CLEARLY = 5
"""A fault is so many times larger."""
PATIENCE, LEAST_S = 10, 1.0
"""A mutant may take so many times the candidate's own time, and at least this."""


def results_of(path: str, request: Mapping[str, Any], arrays: Mapping[str, Any], dtype: str) -> Dict[str, Any]:
    """The outputs and gradients of a file's class or function. Raises whatever it raises."""
    import torch

    given = {
        name: tensor_of(array, dtype, torch, gradients=bool(arrays["arriving"]))
        for name, array in arrays["given"].items()
    }
    arriving = {name: tensor_of(array, dtype, torch, gradients=False) for name, array in arrays["arriving"].items()}
    trail = CallTrail(torch, path, TrailValues())
    with trail.paused():
        trail.run(module_at(path, request["name"]), given, request["params"], arriving)
    if trail.error:
        raise RuntimeError(trail.error["text"])
    named = {**trail.outputs, **{f"grad.{name}": number for name, number in trail.gradients.items()}}
    return {name: of_kind(trail.values.arrays[n], trail.values.dtypes[n]) for name, n in named.items()}


def of_kind(array: Any, dtype: str) -> Any:
    """An array of float64 as one of integers or of truth values, if it stands for these."""
    return array.astype(bool if dtype == "bool" else np.int64 if "int" in dtype else np.float64)


def agree(own: Mapping[str, Any], exact: Mapping[str, Any], tolerance: float) -> bool:
    """Whether results have all arrays of others, up to a part of their largest element."""
    return all(name in own and is_near(own[name], array, tolerance) for name, array in exact.items())


def is_near(own: Any, exact: Any, tolerance: float) -> bool:
    """Whether two arrays of one kind differ by no more than a part of the largest element; infinities and NaN are the
    same."""
    if own.dtype.kind != exact.dtype.kind:
        return False
    own, exact = own.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(exact)
    if own.shape != exact.shape or not np.array_equal(own[~finite], exact[~finite], equal_nan=True):
        return False
    if not np.isfinite(own[finite]).all():
        return False
    largest = np.abs(exact[finite]).max(initial=0.0)
    return bool(np.abs(own[finite] - exact[finite]).max(initial=0.0) <= tolerance * largest)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Inside, a TimeoutError is raised after some time, again and again."""

    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Answer a request. A mutant that ends its process, as one that writes beyond an array may, costs only itself."""
    import torch

    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    sys.path.append(request["folder"])
    sys.dont_write_bytecode = True
    kinds = ("given", "arriving", "exact")
    arrays = {kind: {name: np.load(path) for name, path in request[kind].items()} for kind in kinds}
    begun, begin = mmap.mmap(-1, 8), 0
    while begin < len(request["paths"]) - 1:
        spent = sum(os.times()[2:4])
        child = os.fork()
        if not child:
            with contextlib.suppress(Exception):
                compare(sys.argv[2], {**request, "seconds": request["seconds"] - spent}, arrays, begun, begin)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not status:
            return
        begin = int.from_bytes(begun[:8], "little") + 1


def compare(folder: str, request: Mapping[str, Any], arrays: Mapping[str, Any], begun: Any, begin: int) -> None:
    """Compare mutants from a number on, in the first dtype in which the candidate's own file gives a result, as far as
    the processor's time goes."""
    own, *mutants = request["paths"]
    seconds = request["seconds"]
    for dtype in request["dtypes"]:
        started = time.monotonic()
        with contextlib.suppress(Exception):
            results = results_of(own, request, arrays, dtype)
            patience = max(LEAST_S, PATIENCE * (time.monotonic() - started))
            if request["shown"] and agree(results, arrays["exact"], CLEARLY * TOLERANCES[dtype]):
                return
            for number, path in enumerate(mutants[begin:], begin):
                if time.process_time() > seconds:
                    return
                begun[:8] = number.to_bytes(8, "little")
                with contextlib.suppress(Exception), limited(patience):
                    is_right = agree(results_of(path, request, arrays, dtype), arrays["exact"], TOLERANCES[dtype])
                    if is_right and note(folder, number) == ENOUGH:
                        return
                if any(map(os.path.exists, request["replies"])):
                    seconds = min(seconds, LONGER * time.process_time() + LEAST_S)
                    request = {**request, "replies": []}
            return


def note(folder: str, number: int) -> int:
    """Add the number of a mutant that agrees to those in the folder; returns how many there are."""
    path = os.path.join(folder, AGREEING)
    numbers = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            numbers = json.load(file)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump([*numbers, number], file)
    os.replace(f"{path}.part", path)
    return len(numbers) + 1


if __name__ == "__main__":
    main()
