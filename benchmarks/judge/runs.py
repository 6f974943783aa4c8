"""Which kernels run together: a run is one config with a baseline, some healthy kernels and some faulty ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.judge.cases import Case, cases_of
from benchmarks.judge.faults import BASE, FAMILIES, Fault, Healthy, faults_of, healthy_of

HOSTS = Path(__file__).resolve().parent / "hosts"
ROOT = HOSTS.parents[2]
LOOPS = ("numpy", "torch")
"""Frameworks in which a loop over single elements is quick enough."""

FINISHED = (0, 1, 3)
DTYPES = ["float32", "float64"]


@dataclass(frozen=True)
class Size:
    """How much is run: cases per op, faulty kernels in one run, healthy ones beside them; `most_ops` of a family, in turn,
    in one run."""

    n_cases: int
    n_faults: int = 8
    n_healthy: int = 2
    most_ops: int = 4


@dataclass(frozen=True)
class Run:
    """One config: `kernels` by backend name, the baseline first."""

    name: str
    framework: str
    family: tuple[str, ...]
    kernels: Mapping[str, Fault | Healthy]
    cases: Sequence[Case]
    seed: int

    @property
    def faults(self) -> dict[str, Fault]:
        """The faulty kernels by backend name."""
        return {name: kernel for name, kernel in self.kernels.items() if isinstance(kernel, Fault)}


def plan_runs(framework: str, size: Size, seed: int, only: Sequence[str] = ()) -> Iterator[Run]:
    """All runs of a framework; `only` names faults. A case is the same in every run that has it."""
    for family in FAMILIES:
        faults = [f for f in faults_of(family) if f.hosted(framework) and (not only or f.name in only)]
        healthy = healthy_of(family, loops=framework in LOOPS)[1:]
        for number, group in enumerate(chunks(faults, size.n_faults)):
            turn = (
                [healthy[(number * size.n_healthy + i) % len(healthy)] for i in range(size.n_healthy)]
                if healthy
                else []
            )
            kernels = {kernel.name: kernel for kernel in (BASE, *turn, *group)}
            every = -(-len(family) // size.most_ops)
            ops = family[number % every :: every]
            cases = [case for op in ops for case in cases_of(op, size.n_cases, seed)]
            yield Run(f"{framework}-{family[0]}-{len(family)}-{number}", framework, family, kernels, cases, seed)


def chunks(faults: Sequence[Fault], size: int) -> Iterator[Sequence[Fault]]:
    """The faults, `size` at a time."""
    return (faults[start : start + size] for start in range(0, len(faults), size))


def healthy_runs(framework: str, n_cases: int, seed: int) -> Iterator[Run]:
    """Runs of nothing but healthy kernels."""
    for family in FAMILIES:
        if family == ("batch_norm",):
            continue  # its kernels are those of all normalisations
        kernels = {kernel.name: kernel for kernel in healthy_of(family, loops=framework in LOOPS)}
        for op in family:
            yield Run(f"{framework}-healthy-{op}", framework, family, kernels, cases_of(op, n_cases, seed), seed)


def config(run: Run, folder: Path) -> dict[str, Any]:
    """The config of a run; its op files are in `folder`."""
    backends = [
        {"name": name, "adapter": run.framework, "ops": str(write_ops(run.framework, name, kernel, folder))}
        for name, kernel in run.kernels.items()
    ]
    return {
        "version": 1,
        "backends": backends,
        "baseline": BASE.name,
        "dtypes": DTYPES,
        "seed": run.seed,
        "cases": list(run.cases),
    }


def write_ops(framework: str, name: str, kernel: Fault | Healthy, folder: Path) -> Path:
    """A user's op file: the kernels of a framework under these switches."""
    path = folder / f"{name}.py"
    path.write_text(OPS_FILE[framework == "numpy"].format(name=name, hosts=str(HOSTS), framework=framework, switches=dict(kernel.switches)))  # fmt: skip
    return path


OPS_FILE = (
    '''"""{name}"""
import sys

inf = float("inf")
sys.path.append({hosts!r})
from fault_ops_autograd import functions

globals().update(functions({framework!r}, {switches!r}))
''',
    '''"""{name}"""
import sys

inf = float("inf")
sys.path.append({hosts!r})
from fault_ops_numpy import *
from fault_ops_numpy import configure

configure({switches!r})
''',
)


ZERO = ("--rtol", "0", "--atol", "0")
"""Every tensor that is not bit for bit the oracle's is then measured, judged and kept."""


def execute(run: Run, folder: Path, name: str, options: Sequence[str]) -> Path:
    """Run parity on a run's config; returns the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    path, out = folder / "config.yaml", folder / name
    path.write_text(yaml.safe_dump(config(run, folder)))
    parity(path, out, options)
    return out


def parity(path: Path, out: Path, options: Sequence[str]) -> float:
    """Seconds of a `parity run`, which must come to its end."""
    command = [sys.executable, "-m", "parity", "run", str(path), "-q", "--out", str(out), "--timeout", "300", *options]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    # An exception in parity itself ends with 1 too, as a difference does.
    if done.returncode not in FINISHED or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return time.monotonic() - started
