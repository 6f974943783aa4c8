"""The candidate, called once more in a process of its own, which tells the values of its calls and their lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases.op import GRADIENT
from parity.check.fault import Computation
from parity.check.match import Array
from parity.check.pair import FilePair
from parity.check.patch import Patch
from parity.check.triton_code import variables_of
from parity.config.plan import CasePlan
from parity.engine.forking import Script
from parity.program.worker import mutant, trail

ADAPT = "parity.adapters.torch.triton_interpreter:adapt"
PROCESSES = 2
"""Mutants are compared by so many processes."""
MOST_WAITING = 4
"""Processes are waited for so many times as long as they may compute: others may use the machine."""


@dataclass(frozen=True)
class FaultCase:
    """What is wrong: the case's inputs as files, its params, the tensors that differ, the worst first; cases of other
    sizes, with which a repair is asked; how processes are begun."""

    given: Mapping[str, Path]
    arriving: Mapping[str, Path]
    params: Mapping[str, Any]
    dtype: str
    tensors: Sequence[str]
    cause: str = ""
    sizes: Sequence[CasePlan] = ()
    start: Callable[[Script], Any] = Script.started

    @property
    def outputs(self) -> list[str]:
        """The outputs that differ."""
        return [name for name in self.tensors if not name.startswith(GRADIENT)]


def fault_case(
    files: Mapping[str, Path], params: Mapping[str, Any], dtype: str, tensors: Sequence[str], cause: str = ""
) -> FaultCase:
    """What is asked, from the files of inputs and of gradients that arrive at outputs; these only where no output
    differs."""
    given = {name: path for name, path in files.items() if not name.startswith(GRADIENT)}
    arriving = {name[len(GRADIENT) :]: path for name, path in files.items() if name.startswith(GRADIENT)}
    gradients = arriving if all(name.startswith(GRADIENT) for name in tensors) else {}
    return FaultCase(given, gradients, params, dtype, tensors, cause)


def loaded(files: Mapping[str, Path]) -> dict[str, Array]:
    """Arrays of files by name."""
    return {name: np.load(path, allow_pickle=False) for name, path in files.items()}


@contextmanager
def candidate(
    asked: FaultCase, pair: FilePair, until: float, patches: Sequence[Patch] = ()
) -> Iterator[Callable[[], list[Computation]]]:
    """A process of its own that computes the candidate in float64 and in the case's dtype, or with each of `patches`;
    what is given waits for it and returns all, nothing if it fails."""
    with tempfile.TemporaryDirectory(prefix="parity-location-") as name:
        folder = Path(name)
        write_request(folder, asked, pair, patches)
        with running("trail", folder, asked, pair) as process:

            def codes() -> list[Computation]:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
                return codes_of(folder)

            yield codes


def patched(asked: FaultCase, pair: FilePair, patches: Sequence[Patch], until: float) -> list[dict[str, Array]]:
    """The outputs of the candidate with each of some patches, as far as the time goes."""
    if not patches:
        return []
    with candidate(asked, pair, until, patches) as codes:
        return [{name: code.values[i] for name, i in code.outputs.items()} for code in codes()]


def agreeing(
    asked: FaultCase, pair: FilePair, texts: Sequence[str], exact: Mapping[str, Array], seconds: float, *, shown: bool
) -> list[int]:
    """Which of some files, all but the first, which is the candidate's, return what is exact, as far as `seconds` of
    the processor's time go; none if the fault has to be `shown`, and is not."""
    with tempfile.TemporaryDirectory(prefix="parity-mutants-") as name, ExitStack() as stack:
        folder = Path(name)
        paths = [folder / f"mutant{number}.py" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        folders, processes = [folder / str(number) for number in range(min(PROCESSES, len(texts) - 1))], []
        request = {
            "folder": str(pair.candidate.own_path.absolute().parent),
            "name": pair.candidate.name,
            "params": dict(asked.params),
            "shown": shown,
            "replies": [str(each / mutant.AGREEING) for each in folders],
            "seconds": seconds,
            "dtypes": [dtype for dtype in dict.fromkeys(("float64", asked.dtype)) if dtype in mutant.TOLERANCES],
            "given": stored(folder / "given", loaded(asked.given)),
            "arriving": stored(folder / "arriving", loaded(asked.arriving)),
            "exact": stored(folder / "exact", exact),
        }
        for number, each in enumerate(folders):
            each.mkdir()
            own = {**request, "paths": list(map(str, [paths[0], *paths[1 + number :: len(folders)]]))}
            (each / "request.json").write_text(json.dumps(own), encoding="utf-8")
            processes.append(stack.enter_context(running("mutant", each, asked, pair)))
        until = time.monotonic() + MOST_WAITING * seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        numbers = [n * len(folders) + number for number, each in enumerate(folders) for n in agreed_in(each)]
        return sorted(number for number in numbers if 0 <= number < len(texts) - 1)


def agreed_in(folder: Path) -> list[int]:
    """The numbers of mutants that a process has written."""
    reply = folder / mutant.AGREEING
    return list(map(int, json.loads(reply.read_text(encoding="utf-8")))) if reply.is_file() else []


def stored(stem: Path, arrays: Mapping[str, Array]) -> dict[str, str]:
    """The files of arrays by name."""
    paths = {name: f"{stem}{number}.npy" for number, name in enumerate(arrays)}
    for name, path in paths.items():
        np.save(path, arrays[name])
    return paths


def write_request(folder: Path, asked: FaultCase, pair: FilePair, patches: Sequence[Patch]) -> None:
    """Write what the process reads: copies of the inputs, so that it is not told where the run is."""
    kinds = {"given": asked.given, "arriving": asked.arriving}
    copies = {kind: stored(folder / kind, loaded(files)) for kind, files in kinds.items()}
    request = {
        "path": str(pair.candidate.path.absolute()),
        "file": str(pair.candidate.own_path.absolute()),
        "name": pair.reference.name if pair.candidate.origin else pair.candidate.name,
        "params": dict(asked.params),
        "given": copies["given"],
        "runs": [] if patches else [{**copies, "dtype": dtype} for dtype in dict.fromkeys(("float64", asked.dtype))],
        "patches": [stored_patch(folder / f"patch{number}", patch) for number, patch in enumerate(patches)],
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")


def stored_patch(stem: Path, patch: Patch) -> dict[int, list[str]]:
    """A patch as files, by the numbers of its rows."""
    files = {row: [f"{stem}-{row}-{i}.npy" for i in range(len(arrays))] for row, arrays in patch.results.items()}
    for row, names in files.items():
        for name, array in zip(names, patch.results[row], strict=True):
            np.save(name, array)
    return files


@contextmanager
def running(module: str, folder: Path, asked: FaultCase, pair: FilePair) -> Iterator[Any]:
    """A process in its own group that answers the request in a folder by a module for workers; it has ended with all of
    that group afterwards."""
    variables = variables_of(pair.candidate)
    calls = [*([ADAPT] if variables else []), f"parity.program.worker.{module}:main"]
    process = asked.start(Script(calls, [str(folder / "request.json"), str(folder)], folder, variables))
    try:
        yield process
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def codes_of(folder: Path) -> list[Computation]:
    """The computations that a process has written; empty if it has not. Raises ValueError, LookupError or TypeError."""
    files = [folder / trail.TRAIL, folder / trail.VALUES]
    if not all(path.is_file() and path.stat().st_size <= 8 * trail.MOST_NUMBERS for path in files):
        return []
    reply = json.loads((folder / trail.TRAIL).read_text(encoding="utf-8"))
    flat = np.fromfile(folder / trail.VALUES, np.float64)
    shapes = [tuple(map(int, shape)) for shape in reply["shapes"]]
    ends = np.cumsum([0, *(int(np.prod(shape, dtype=np.int64)) for shape in shapes)])
    values = [flat[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes, strict=False)]
    dtypes = list(map(str, reply["dtypes"]))
    return [Computation.of(own, values, dtypes) for own in reply["trails"]]
