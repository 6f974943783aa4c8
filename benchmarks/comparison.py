"""Comparing two tensors: parity against NumPy's and PyTorch's own checks, and against reading memory at all.

    python benchmarks/comparison.py [--sizes float32:1e3 float32:1e8 ...] [--best] [--json PATH]

All contenders take turns in one process; medians, or with `--best` the fastest round of each, for a machine that others
use too. That is done twice: with the allocator's defaults, and with a warm heap (freed pages stay with the process),
which favours those that allocate much. Judge by the warm one. Both of parity's ways are measured at every size: NumPy's,
and numba's where it is installed. Extra memory is the high-water mark of the resident set during one call, in a process
of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = ("float32:1e3", "float32:1e6", "float32:1e8", "float64:1e6")
HEAPS = {
    "default heap": {},
    "warm heap": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"},
}
TOLERANCES = {"float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
NUMPY, TORCH = "numpy.testing.assert_allclose", "torch.testing.assert_close"
ONE, TWO = "parity, 1 thread", "parity, 2 threads"
FAST_ONE, FAST_TWO = "parity with numba, 1 thread", "parity with numba, 2 threads"
READ_ONE, READ_TWO = "read only, 1 thread", "read only, 2 threads"
MEMORY_FROM = 1_000_000

Seconds = dict[str, float]


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(child(options.child, options.sizes, best=options.best)))
        return
    started = time.perf_counter()
    results: dict[str, Any] = {"machine": machine(), "seconds": {}, "extra_bytes": {}}
    print_machine(results["machine"])
    print("the best of all rounds" if options.best else "medians")
    for heap, variables in HEAPS.items():
        results["seconds"][heap] = ask("times", options.sizes, variables, best=options.best)
        print_times(heap, results["seconds"][heap])
    results["extra_bytes"] = extra_memory(options.sizes)
    print_memory(results["extra_bytes"])
    results["load_seconds"] = load_seconds()
    print(f"\nimport of numba and its cached kernel: {results['load_seconds'] or 'not measured'} s")
    print_goals(results["seconds"]["warm heap"], results["extra_bytes"])
    print(f"\nmeasured in {time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="DTYPE:N", type=size)
    parser.add_argument("--best", action="store_true", help="the fastest round instead of the median")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def size(text: str) -> str:
    """`float32:1e6`, checked."""
    dtype, _, count = text.partition(":")
    if dtype not in TOLERANCES or float(count or 0) < 1:
        raise argparse.ArgumentTypeError(f"wanted {' or '.join(TOLERANCES)}, a colon and a count, not {text!r}")
    return text


def parsed(text: str) -> tuple[str, int]:
    dtype, _, count = text.partition(":")
    return dtype, int(float(count))


def ask(what: str, sizes: Iterable[str], variables: dict[str, str], *, best: bool = False) -> Any:
    """What a child process measures, under these environment variables. OpenBLAS has one thread, as in parity."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    environment = {**clean, **variables, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", what, "--sizes", *sizes, *["--best"] * best]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def child(what: str, sizes: list[str], *, best: bool) -> Any:
    if what == "times":
        return {text: times(*parsed(text), min if best else statistics.median) for text in sizes}
    if what == "load":
        return time_to_load()
    return extra_bytes(what, *parsed(sizes[0]))


def tensors(dtype: str, n: int) -> tuple[Any, Any]:
    """Normal numbers, and the same with relative errors of a tenth of rtol; made in place, block by block."""
    import numpy as np

    rng: Any = np.random.default_rng(0)
    actual, expected = np.empty(n, dtype), np.empty(n, dtype)
    for start in range(0, n, 1 << 18):
        part = slice(start, start + (1 << 18))
        rng.standard_normal(dtype=dtype, out=expected[part])
        rng.standard_normal(dtype=dtype, out=actual[part])
        actual[part] *= TOLERANCES[dtype][0] / 10
        actual[part] += 1
        actual[part] *= expected[part]
    return actual, expected


def contenders(actual: Any, expected: Any) -> dict[str, Callable[[], object]]:
    """Every way to compare the two that this interpreter has."""
    import numpy as np

    from parity.judge.compare import metrics

    rtol, atol = TOLERANCES[actual.dtype.name]

    def parity(threads: int, compiled_from: float) -> Callable[[], object]:
        def compare() -> object:
            metrics.COMPILED_FROM = compiled_from
            return metrics.compare(actual, expected, rtol, atol, threads=threads)

        return compare

    ways: dict[str, Callable[[], object]] = {ONE: parity(1, math.inf), TWO: parity(2, math.inf)}
    if importlib.util.find_spec("numba"):
        ways |= {FAST_ONE: parity(1, 0), FAST_TWO: parity(2, 0)}
    ways[NUMPY] = lambda: np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
    if importlib.util.find_spec("torch"):
        import torch

        a, e = torch.from_numpy(actual), torch.from_numpy(expected)
        ways[TORCH] = lambda: torch.testing.assert_close(a, e, rtol=rtol, atol=atol)
    return ways


def times(dtype: str, n: int, typical: Callable[[list[float]], float]) -> Seconds:
    """Seconds of one call of everything, taking turns, after one unmeasured round."""
    actual, expected = tensors(dtype, n)
    pool = ThreadPoolExecutor(1)
    ways = {
        READ_ONE: lambda: (actual.max(), expected.max()),
        READ_TWO: lambda: (pool.submit(actual.max), expected.max())[0].result(),
        **contenders(actual, expected),
    }
    calls, rounds = max(1, 20_000 // n), max(7, min(101, 100_000_000 // n))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            for _ in range(calls):
                way()
            if turn:
                seconds[name].append((time.perf_counter() - started) / calls)
    return {name: typical(values) for name, values in seconds.items()}


def load_seconds() -> float | None:
    """How long a new process takes to load the compiled kernel, the best of five; None without numba."""
    loads = [ask("load", SIZES[:1], {}) for _ in range(5)]
    return None if None in loads else round(min(loads), 3)


def time_to_load() -> float | None:
    import numpy as np

    from parity.judge.compare import metrics

    started = time.perf_counter()
    kernel = metrics._kernel(np.dtype(np.float32))
    return None if kernel is None else time.perf_counter() - started


def extra_memory(sizes: list[str]) -> dict[str, dict[str, int | None]]:
    """Bytes above the inputs, by size and contender; None where the system does not tell."""
    names = [ONE, TWO]
    names += [FAST_ONE, FAST_TWO] if importlib.util.find_spec("numba") else []
    names += [NUMPY, TORCH] if importlib.util.find_spec("torch") else [NUMPY]
    large = [text for text in sizes if parsed(text)[1] >= MEMORY_FROM]
    return {text: {name: ask(name, [text], {}) for name in names} for text in large}


def extra_bytes(name: str, dtype: str, n: int) -> int | None:
    """How far one call raises the resident set; a small call first, so that code and imports do not count."""
    contenders(*tensors(dtype, 1000))[name]()
    way = contenders(*tensors(dtype, n))[name]
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        way()
        return max(0, status("VmHWM") - before)
    except OSError:
        return None


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def machine() -> dict[str, Any]:
    packages = {name: version(name) for name in ("numpy", "numba", "torch")}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu(), "cores": os.cpu_count(), "load": load, "python": platform.python_version(), **packages}


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_machine(facts: dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None))


def print_times(heap: str, by_size: dict[str, Seconds]) -> None:
    for text, seconds in by_size.items():
        dtype, n = parsed(text)
        bytes_read = 2 * n * int(dtype[-2:]) // 8
        print(f"\n{heap}, {text:26}        time     GB/s  vs numpy  vs torch  of read limit")
        limit = min(seconds[READ_ONE], seconds[READ_TWO])
        for name, value in seconds.items():
            torch = f"{seconds[TORCH] / value:8.2f}x" if TORCH in seconds else "        -"
            print(
                f"  {name:32} {1e6 * value:12.1f} us {bytes_read / value / 1e9:8.2f} {seconds[NUMPY] / value:8.2f}x "
                f"{torch} {100 * limit / value:10.1f} %"
            )


def print_memory(by_size: dict[str, dict[str, int | None]]) -> None:
    for text, extra in by_size.items():
        print(f"\nextra memory, {text}")
        for name, value in extra.items():
            print(f"  {name:32} {'not measured' if value is None else f'{value / 2**20:10.1f} MiB'}")


def print_goals(warm: dict[str, Seconds], extra: dict[str, dict[str, int | None]]) -> None:
    memory = extra.get("float32:1e8", {}).get(TWO)
    print("\ngoals")
    goal("2 threads against numpy, float32:1e8, warm heap", speedup(warm, "float32:1e8"), "x", at_least=2.5)
    goal("numba, 2 threads, against numpy, float32:1e8, warm heap", speedup(warm, "float32:1e8", FAST_TWO), "x", 12.0)
    goal("2 threads against numpy, float32:1e3, warm heap", speedup(warm, "float32:1e3"), "x", at_least=1.0)
    goal("extra memory, 2 threads, float32:1e8", None if memory is None else memory / 2**20, " MiB", at_most=32.0)


def speedup(by_size: dict[str, Seconds], text: str, name: str = TWO) -> float | None:
    seconds = by_size.get(text, {})
    return seconds[NUMPY] / seconds[name] if name in seconds else None


def goal(name: str, value: float | None, unit: str, at_least: float = 0.0, at_most: float = float("inf")) -> None:
    wanted = f"at least {at_least}" if at_least else f"at most {at_most}"
    if value is None:
        print(f"  {name}: not measured (goal: {wanted}{unit})")
    else:
        verdict = "met" if at_least <= value <= at_most else "missed"
        print(f"  {name}: {value:.2f}{unit} (goal: {wanted}{unit}; {verdict})")


if __name__ == "__main__":
    main()
