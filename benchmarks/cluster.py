"""A run on `--cluster local:N` against one process: processor time per cell, memory of the host, and the same rows.

    python benchmarks/cluster.py [--cells 1e3,1e4] [--workers 2] [--kill 0.01] [--json PATH]

Small ops in two dtypes on numpy and torch. Measured is the processor time of all processes of a run, which another
load of the machine hardly changes, and the host's resident memory after a tenth of the cases and at the end. With
`--kill` a Dask worker gets SIGKILL after that share of the shards, at least once.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil

OPS = {
    "relu": "inputs: {x: {shape: [4, 9]}}",
    "tanh": "inputs: {x: {shape: [4, 9]}}",
    "softmax": "params: {dim: -1}, inputs: {x: {shape: [4, 9]}}",
    "layer_norm": "params: {normalized_shape: [9]}, inputs: {x: {shape: [4, 9]}}",
    "linear": "inputs: {x: {shape: [4, 9]}, weight: {shape: [5, 9]}}",
}
CELLS_PER_CASE = 4
GOAL_CPU, GOAL_MEMORY, GOAL_TIME = 1.05, 1.2, 1.1
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: what a killed worker leaves comes to this process, with its processor time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="1e3,1e4")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, default=0.01)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(*options.one)))
        return
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    found = []
    for text in options.cells.split(","):
        with tempfile.TemporaryDirectory() as name:
            runs = measured(Path(name), int(float(text)), options.workers, options.kill)
        found.append({"cells": int(float(text)), **runs})
        show(int(float(text)), runs)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


def measured(folder: Path, n_cells: int, workers: int, kill: float) -> dict[str, dict[str, object]]:
    """The three runs of a config with so many cells."""
    (folder / "config.yaml").write_text(config(n_cells))
    runs = {}
    for name, address, share in [
        ("one process", "-", 0.0),
        (f"local:{workers}", f"local:{workers}", 0.0),
        (f"local:{workers}, workers killed", f"local:{workers}", kill),
    ]:
        before = processor_time()
        began = time.monotonic()
        command = [sys.executable, __file__, "--one", str(folder), address, str(share)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        reap()
        row = json.loads(done.stdout.splitlines()[-1])
        runs[name] = {"cpu_s": processor_time() - before, "wall_s": time.monotonic() - began, **row}
    return runs


def config(n_cells: int) -> str:
    """A config with about so many cells."""
    each = max(1, round(n_cells / CELLS_PER_CASE / len(OPS)))
    means = ", ".join(f"{i / each:.6f}" for i in range(each))
    lines = [
        f"  - {{id: {op}, op: {op}, {what}, sweep: {{inputs.x.normal.mean: [{means}]}}}}" for op, what in OPS.items()
    ]
    return "\n".join(["version: 1", "backends: [numpy, torch]", "cases:", *lines, ""])


def processor_time() -> float:
    """User and system time of all processes that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reap() -> None:
    """Wait for what killed workers have left."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


class Watch:
    """Notes the host's memory, and kills workers."""

    def __init__(self, n_cases: int, kill: float) -> None:
        self.n_cases, self.kill = n_cases, kill
        self.n_done = self.n_shards = self.n_killed = 0
        self.memory = {}

    def on_event(self, event: object, comparisons: object) -> None:  # noqa: ARG002 - as in a run
        from parity.engine import CellFinished, ShardFinished

        if isinstance(event, ShardFinished):
            self.n_done += event.n_cases
            self.n_shards += 1
            if self.kill and self.n_killed < max(1, self.kill * self.n_shards):
                self.end_a_worker()
        elif isinstance(event, CellFinished):
            self.n_done += event.last_of_case
        if "tenth" not in self.memory and self.n_done >= self.n_cases / 10:
            self.memory["tenth"] = psutil.Process().memory_info().rss

    def end_a_worker(self) -> None:
        for child in psutil.Process().children():
            if "spawn_main" in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
                self.n_killed += 1
                return


def one_run(folder: str, address: str, kill: str) -> dict[str, object]:
    """A run in this process; its memory, its shards and a digest of its rows."""
    from parity.cluster import connected
    from parity.config import load_plan
    from parity.engine import EngineOptions, execute
    from parity.run import claimed, run

    began = time.monotonic()
    plan = load_plan((Path(folder, "config.yaml"),))
    loaded_s = time.monotonic() - began
    watch = Watch(len(plan.cases), float(kill))
    with claimed(Path(folder, "run"), plan) as run_dir:
        if address == "-":
            run(plan, EngineOptions(), run_dir, watch, source=execute)
        else:
            with connected(address) as cluster:
                run(plan, EngineOptions(), run_dir, watch, source=cluster.run)
        watch.memory["end"] = psutil.Process().memory_info().rss
        rows = digest(run_dir)
    return {
        "memory": watch.memory,
        "shards": watch.n_shards,
        "killed": watch.n_killed,
        "loaded_s": loaded_s,
        "run_s": time.monotonic() - began - loaded_s,
        "host_cpu_s": time.process_time(),
        **rows,
    }


def digest(run_dir: Path) -> dict[str, object]:
    """The number of outcomes, and a digest of all rows without times, in an order of their own."""
    from msgspec.structs import replace

    from parity.reporting.results.results import encode_part
    from parity.reporting.results.resume import stored
    from parity.reporting.results.store import COMPARISONS, DIAGNOSES, OUTCOMES

    with stored(run_dir) as store:
        lines = [encode_part([replace(row, seconds=0.0)]) for row in store.rows(OUTCOMES)]
        n_outcomes = len(lines)
        lines += [encode_part([row]) for table in (COMPARISONS, DIAGNOSES) for row in store.rows(table)]
    return {"outcomes": n_outcomes, "rows": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()}


def show(n_cells: int, runs: dict[str, dict[str, object]]) -> None:
    """Print a table of the runs."""
    first = next(iter(runs.values()))
    for name, row in runs.items():
        memory = row["memory"]
        growth = memory["end"] / memory["tenth"]
        print(
            f"{n_cells:>8} cells, {name:24}: {1e3 * row['cpu_s'] / row['outcomes']:6.2f} ms of processor time a cell "
            f"({row['cpu_s'] / first['cpu_s']:.3f}; goal {GOAL_CPU}), {row['wall_s']:.0f} s, host {row['host_cpu_s']:.1f} s, "
            f"memory {memory['end'] >> 20} MiB, {growth:.2f} of that after a tenth (goal {GOAL_MEMORY}), "
            f"{row['shards']} shards, {row['killed']} killed, rows {'equal' if row['rows'] == first['rows'] else 'DIFFER'}"
        )


if __name__ == "__main__":
    with closing(sys.stdout):
        main()
