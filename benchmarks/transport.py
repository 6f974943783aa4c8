"""Moving a tensor from a worker to the host and comparing it, against the comparison of the same tensors in process.

    python benchmarks/transport.py [--sizes 1e3,1e6,1e8] [--repeats 9] [--json PATH]

A numpy worker answers a `run` request with a float32 tensor that it already holds; the host waits for the reply, maps
the shared buffer and compares in place. Measured from the request to the metrics. Both sides are interleaved in one process, with
warm pages; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from parity import environments
from parity.config.plan import BackendSpec
from parity.engine.buffers import Scratch, SharedBuffers
from parity.engine.logs import RunLog
from parity.engine.process import WorkerProcess
from parity.engine.starting import hello
from parity.judge.compare.metrics import compare

GOAL = 1.3
OPS = """
import numpy as np
HELD = {}
def linear(x, weight, bias):
    n = int(x[0])
    if n not in HELD:
        HELD[n] = np.random.default_rng(0).normal(size=n).astype(np.float32)
    return HELD[n]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e3,1e6,1e8")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(float(size)) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), sizes, options.repeats)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"
    )
    for row in rows:
        verdict = "met" if row["ratio"] <= GOAL else "missed"
        print(
            f"float32 {row['n']:>9}: in process {1e3 * row['in_process_s']:8.3f} ms, from a worker {1e3 * row['worker_s']:8.3f} ms, ratio {row['ratio']:.2f} (goal {GOAL}: {verdict})"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(folder: Path, sizes: list[int], repeats: int) -> list[dict[str, float]]:
    """One row per size."""
    (folder / "ops.py").write_text(OPS)
    spec = BackendSpec("mine", "numpy", ops=folder / "ops.py")
    environment = environments.worker_environment(environments.resolve(spec), 1)
    worker = WorkerProcess(Path(sys.executable), environment, RunLog(folder / "log.txt"))
    scratch = Scratch()
    buffers = SharedBuffers(scratch.folder, "buffer", most=1)
    try:
        assert worker.request(hello(spec, 1), 60)["ok"]
        assert worker.request({"do": "load", "path": str(spec.ops), "wanted": ["linear"]}, 60)["ok"]
        return [one_size(folder, worker, buffers, n, repeats) for n in sizes]
    finally:
        worker.close()
        scratch.remove()


def one_size(folder: Path, worker: WorkerProcess, buffers: SharedBuffers, n: int, repeats: int) -> dict[str, float]:
    """Medians for tensors of n elements."""
    np.save(folder / "x.npy", np.array([n], dtype=np.float64))
    buffer = buffers.take()
    request = {
        "do": "run", "cell": 0, "op": "linear", "dtype": "float64", "params": {}, "droppable": [], "absent": ["weight", "bias"],
        "tensors": {"x": str(folder / "x.npy")}, "grad_outputs": {}, "differentiable": [], "lists": [], "buffer": str(buffer), "max_elements": n,
    }  # fmt: skip
    held = np.random.default_rng(0).normal(size=n).astype(np.float32)
    expected = held * np.float32(1 + 1e-6)

    def from_worker() -> None:
        reply = worker.request(request, 600)
        compare(buffers.outputs(buffer, reply["tensors"])["y"].values, expected, 1e-5, 1e-6)

    def in_process() -> None:
        compare(held, expected, 1e-5, 1e-6)

    medians = interleaved(repeats, from_worker, in_process)
    buffers.give_back(buffer)
    return {"n": n, "worker_s": medians[0], "in_process_s": medians[1], "ratio": medians[0] / medians[1]}


def interleaved(repeats: int, *calls: Callable[[], None]) -> list[float]:
    """The median seconds of each call, after two unmeasured rounds."""
    seconds: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 2):
        for index, call in enumerate(calls):
            started = time.perf_counter()
            call()
            if repeat > 1:
                seconds[index].append(time.perf_counter() - started)
    return [statistics.median(each) for each in seconds]


if __name__ == "__main__":
    main()
