"""Runs on a cluster against one process: processor time per cell, memory of the host, and the same rows.

    python benchmarks/cluster.py [--cells 1e3,1e4] [--workers 2] [--kill 0.01] [--together] [--json PATH]

Small ops in two dtypes on numpy and torch: in one process, on `--cluster local:N`, and on a Dask scheduler and workers of which one
gets SIGKILL after every 1 / `--kill` shards (at least once), and all of them together with the scheduler at half of the
shards. Measured is the processor time of all processes of a run, and the host's resident memory, at every tenth of the cases.
`--together`: the runs share the machine, so that another load of it is the same for all.
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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
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
GOAL_CPU, GOAL_MEMORY = 1.05, 1.2
ONE, LOCAL, DISTURBED = KINDS = ("one", "local", "disturbed")
END_SECONDS = 20.0
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: what a killed worker leaves comes to this process, with its processor time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="1e3,1e4")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, default=0.01)
    parser.add_argument("--runs", nargs="+", default=KINDS, choices=KINDS, help="Default: all.")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, kind, kill = options.one
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
        print(json.dumps(one_run(Path(folder), kind, options.workers, float(kill))))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    found = []
    for text in options.cells.split(","):
        runs = measured(int(float(text)), options)
        found.append({"cells": int(float(text)), **runs})
        show(int(float(text)), runs)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


def measured(n_cells: int, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """The runs of a config with so many cells."""
    with tempfile.TemporaryDirectory() as name:
        runs: dict[str, subprocess.Popen[str]] = {}
        for kind in options.runs:
            folder = Path(name, kind)
            folder.mkdir()
            (folder / "config.yaml").write_text(config(n_cells))
            one = ["--workers", str(options.workers), "--one", str(folder), kind, str(options.kill)]
            command = [sys.executable, __file__, *one]
            runs[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            if not options.together:
                runs[kind].wait()
        return {kind: json.loads(run.communicate()[0].splitlines()[-1]) for kind, run in runs.items()}


def config(n_cells: int) -> str:
    """A config with about so many cells."""
    each = max(1, round(n_cells / CELLS_PER_CASE / len(OPS)))
    means = ", ".join(f"{i / each:.6f}" for i in range(each))
    lines = [
        f"  - {{id: {op}, op: {op}, {what}, sweep: {{inputs.x.normal.mean: [{means}]}}}}" for op, what in OPS.items()
    ]
    return "\n".join(["version: 1", "backends: [numpy, torch]", "cases:", *lines, ""])


def processor_time() -> float:
    """User and system time of this process and all below it, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            # Of a child that has ended and was not waited for, too.
            total += sum(child.cpu_times())
    return total


class Watch:
    """Notes processor time and the host's memory at every tenth of the cases; ends workers, and once the scheduler."""

    def __init__(self, name: str, n_cases: int, kill: float, nodes: Nodes | None) -> None:
        self.name, self.n_cases, self.kill, self.nodes = name, n_cases, kill, nodes
        self.n_done = self.n_shards = self.n_killed = self.n_restarted = 0
        self.due = n_cases / 10
        self.tenths: list[dict[str, float]] = []

    def on_event(self, event: object, comparisons: object) -> None:  # noqa: ARG002 - as in a run
        from parity.engine import CellFinished, ShardFinished

        if isinstance(event, ShardFinished):
            self.n_done += event.n_cases
            self.n_shards += 1
            if self.nodes is not None:
                self.disturb(self.nodes)
        elif isinstance(event, CellFinished):
            self.n_done += event.last_of_case
        if self.n_done >= self.due:
            self.due = self.n_done + self.n_cases / 10
            self.note()

    def note(self) -> None:
        """The state of the run."""
        memory = psutil.Process().memory_info().rss
        self.tenths.append({"cells": CELLS_PER_CASE * self.n_done, "cpu_s": processor_time(), "memory": memory})
        print(f"{self.name}: {self.tenths[-1]}, {self.n_killed} killed", file=sys.stderr, flush=True)

    def disturb(self, nodes: Nodes) -> None:
        """End what is due."""
        if self.n_killed < max(1, self.kill * self.n_shards):
            self.n_killed += nodes.end_a_worker()
        if not self.n_restarted and self.n_done >= self.n_cases / 2:
            self.n_restarted += 1
            nodes.restart()


class Nodes:
    """A Dask scheduler and workers, as a user starts them."""

    def __init__(self, folder: Path, workers: int) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.folder, self.n_workers = folder, workers
        self.open: list[psutil.Popen] = []

    def start(self) -> None:
        """Start all."""
        self.open = [
            self.node("scheduler", "--port", str(self.port), "--no-dashboard"),
            self.node("worker", self.address, "--nworkers", str(self.n_workers), "--nthreads", "1", "--no-dashboard"),
        ]

    def node(self, *words: str) -> psutil.Popen:
        """A process of Dask's command line."""
        environment = os.environ | {"DASK_TEMPORARY_DIRECTORY": str(self.folder), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "dask", *words, "--host", "127.0.0.1"]
        return psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end_a_worker(self) -> bool:
        """Send SIGKILL to a worker; whether there was one."""
        for child in self.open[1].children():
            if "spawn_main" in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
                return True
        return False

    def restart(self) -> None:
        """Send SIGKILL to the scheduler, and start it and the workers again."""
        self.open[0].kill()
        self.end()
        self.start()

    def end(self) -> None:
        """End all; what does not end in time, as a worker whose process was just killed may not, is killed."""
        for node in self.open:
            below = node.children(recursive=True) if node.is_running() else []
            node.terminate()
            with suppress(psutil.TimeoutExpired):
                node.wait(END_SECONDS)
            for process in (node, *below):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            node.wait()


@contextmanager
def clustered(kind: str, workers: int, nodes: Nodes | None) -> Iterator[Callable[..., object]]:
    """The source of a run."""
    from parity.cluster import connected
    from parity.engine import execute

    if kind == ONE:
        yield execute
        return
    if nodes is not None:
        nodes.start()
    try:
        with connected(nodes.address if nodes else f"local:{workers}") as cluster:
            from parity.cluster.source import events

            yield partial(events, cluster)
    finally:
        if nodes is not None:
            nodes.end()


def one_run(folder: Path, kind: str, workers: int, kill: float) -> dict[str, object]:
    """A run in this process; its processor time, memory, shards and a digest of its rows."""
    from parity.config import load_plan
    from parity.engine import EngineOptions
    from parity.reporting.results.claims import claimed
    from parity.run import run

    began = time.monotonic()
    plan = load_plan((folder / "config.yaml",))
    nodes = Nodes(folder, workers) if kind == DISTURBED else None
    watch = Watch(kind, len(plan.cases), kill, nodes)
    with claimed(folder / "run", plan) as run_dir:
        with clustered(kind, workers, nodes) as source:
            run(plan, EngineOptions(), run_dir, watch, source=source)
        spent = {"cpu_s": processor_time(), "host_cpu_s": time.process_time(), "wall_s": time.monotonic() - began}
        memory = psutil.Process().memory_info().rss
        rows = digest(run_dir)
    found = {"tenths": watch.tenths, "memory": memory, "shards": watch.n_shards, "killed": watch.n_killed}
    return {**spent, **found, "restarted": watch.n_restarted, **rows}


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
    """Print what was measured."""
    first = next(iter(runs.values()))
    for kind, row in runs.items():
        tenths = row["tenths"]
        growth = row["memory"] / tenths[0]["memory"]
        says = "equal" if row["rows"] == first["rows"] and row["outcomes"] == first["outcomes"] else "DIFFER"
        print(
            f"{n_cells:>8} cells, {kind:9}: {1e3 * row['cpu_s'] / row['outcomes']:6.2f} ms of processor time a cell "
            f"({row['cpu_s'] / first['cpu_s']:.3f}; goal {GOAL_CPU}), after the first tenth "
            f"{later(tenths):.2f} ms ({later(tenths) / later(first['tenths']):.3f}), {row['wall_s']:.0f} s, "
            f"host {row['host_cpu_s']:.1f} s, memory {int(row['memory']) >> 20} MiB, {growth:.2f} of that after a tenth "
            f"(goal {GOAL_MEMORY}), {row['shards']} shards, {row['killed']} workers killed, "
            f"{row['restarted']} restarts, rows {says}"
        )
        print(f"{'':17}a cell of each tenth, in ms: {' '.join(f'{ms:.2f}' for ms in steps(tenths))}")


def steps(tenths: list[dict[str, float]]) -> list[float]:
    """Processor time per cell between one tenth and the next, in ms."""
    return [
        1e3 * (after["cpu_s"] - before["cpu_s"]) / (after["cells"] - before["cells"])
        for before, after in pairwise(tenths)
    ]


def later(tenths: list[dict[str, float]]) -> float:
    """Processor time per cell after the first tenth, in ms."""
    return 1e3 * (tenths[-1]["cpu_s"] - tenths[0]["cpu_s"]) / (tenths[-1]["cells"] - tenths[0]["cells"])


if __name__ == "__main__":
    with closing(sys.stdout):
        main()
