"""The store of a run: memory and time per cell from 10^3 to 10^5 cells, and what asks a store of that size.

    python benchmarks/store.py [--cells 20000] [--backends numpy torch] [--rows 100000] [--json PATH]

`--cells`: one real run of small linear cases in one dtype; a cell is a case on a backend. `--rows`: rows without a run,
made from those of a real case, through the same calls as in `parity/run.py`, for sizes that would take an hour. Memory
is the resident set of this process, time its processor time, both without its workers, after each tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from msgspec import structs

from parity.config import Overrides, load_plan
from parity.engine import CellFinished, EngineOptions
from parity.engine.inputs import slug
from parity.reporting.results.resume import stored
from parity.reporting.results.store import BACKENDS, BY_CELL, CASES, RUN, STORE, SUMMARY, Store
from parity.run import run

CONFIG = """version: 1
backends: [{backends}]
dtypes: [float32]
cases:
  - {{op: linear, params: {{out_features: 3}}, inputs: {{x: {{shape: [4, 16]}}}}, sweep: {{inputs.x.offset: [{offsets}]}}}}
"""
TENTHS = 10


@dataclass
class Watch:
    """Samples memory and time after each tenth of the cells."""

    n_cells: int
    began: float = field(default_factory=time.process_time)
    done: int = 0
    samples: list[tuple[int, float, float]] = field(default_factory=list)

    def count(self, n: int) -> None:
        before, self.done = self.done, self.done + n
        if before * TENTHS // self.n_cells < self.done * TENTHS // self.n_cells:
            self.samples.append(
                (self.done, time.process_time() - self.began, psutil.Process().memory_info().rss / 2**20)
            )

    def on_event(self, event: Any, comparisons: Any) -> None:  # noqa: ARG002 - an Observer
        if isinstance(event, CellFinished):
            self.count(len(event.outcomes))

    def told(self) -> dict[str, Any]:
        (n1, t1, m1), (n2, t2, m2) = self.samples[0], self.samples[-1]
        tenths = [0.0, *(t for _, t, _ in self.samples)]
        return {
            "cells": n2,
            "cpu_ms_per_cell_first_tenth": 1e3 * t1 / n1,
            "cpu_ms_per_cell_last_tenth": 1e3 * (tenths[-1] - tenths[-2]) * TENTHS / n2,
            "cpu_ms_per_cell": 1e3 * t2 / n2,
            "mib_after_a_tenth": m1,
            "mib_at_the_end": m2,
            "memory_ratio": m2 / m1,
        }


def real(n_cells: int, backends: list[str], folder: Path) -> Watch:
    """One run with so many cells."""
    n_cases = n_cells // len(backends)
    config = folder / "config.yaml"
    offsets = ", ".join(f"{i / 64:g}" for i in range(n_cases))
    config.write_text(CONFIG.format(backends=", ".join(backends), offsets=offsets))
    plan = load_plan((config,), Overrides())
    watch = Watch(n_cells)
    run(plan, EngineOptions(), folder / "run", watch)
    return watch


def made(source: Path, n_cells: int, out: Path) -> Watch:
    """A store of so many cells, each with the rows of a case of a real run under another id."""
    out.mkdir()
    with stored(source) as given:
        [case, *_] = given.rows(CASES)
        tables = {t.name: list(given.rows(t, "case_id = ?", case.id)) for t in BY_CELL}
        run_row, backends, summary = given.one(RUN), list(given.rows(BACKENDS)), given.one(SUMMARY)
    n_per_case = len(tables["outcomes"])
    store, watch = Store(out / STORE), Watch(n_cells)
    store.put(RUN, [run_row])
    store.put(BACKENDS, backends)
    store.put(SUMMARY, [summary])
    for i in range(n_cells // n_per_case):
        name = f"{slug(case.id)}-{i}"
        store.add([structs.replace(case, id=name)])
        for rows in tables.values():
            store.add(replace(r, case=name) if hasattr(r, "evidence") else structs.replace(r, case=name) for r in rows)
        watch.count(n_per_case)
    store.put(SUMMARY, [store.numbers(0)])
    store.close()
    return watch


def commands(run_dir: Path) -> dict[str, dict[str, float]]:
    """Seconds and MiB of what reads a store."""
    asked = {
        "query": ["query", run_dir, "SELECT op, status, count(*) FROM cells GROUP BY 1, 2"],
        "judge": ["judge", run_dir, "--rtol", "1e-7", "--atol", "1e-7"],
        "judge --rule dynamo": ["judge", run_dir, "--rule", "dynamo"],
        "report": ["report", run_dir],
        "report --html": ["report", run_dir, "--html", run_dir / "x.html"],
    }
    found = {}
    for name, words in asked.items():
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, "-m", "parity", *map(str, words)], stdout=subprocess.DEVNULL) as process:
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
        found[name] = {
            "s": time.perf_counter() - began,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "mib": usage.ru_maxrss / 1024,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run").mkdir()
        found: dict[str, Any] = {
            "load_before": os.getloadavg()[0],
            "run": real(asked.cells, asked.backends, Path(folder)).told(),
        }
        found["rows"] = made(Path(folder) / "run", asked.rows, Path(folder) / "made").told()
        found["store_mib"] = (Path(folder) / "made" / STORE).stat().st_size / 2**20
        found["commands"] = commands(Path(folder) / "made")
        found["load_after"] = os.getloadavg()[0]
    for name, value in found.items():
        for line in [value] if not isinstance(value, dict) else [f"{k} {v}" for k, v in value.items()]:
            print(f"{name}: {line}")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
