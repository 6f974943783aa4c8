"""The command line of `run.py`, and `quick_report()` for tests."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.judge.check import check
from benchmarks.judge.measure import measure
from benchmarks.judge.report import Report, render
from benchmarks.judge.runs import ZERO, Run, Size, execute, healthy_runs, plan_runs
from benchmarks.judge.score import Cell, score
from parity.reporting.results.results import read_results

QUICK = Size(n_cases=1, n_faults=22, n_healthy=2, most_ops=2)
FULL = Size(n_cases=14, n_faults=8, n_healthy=3)
HEALTHY_CASES = 60
FRAMEWORKS = ("numpy", "torch", "paddle", "oneflow")


def main() -> int:
    options = arguments()
    if options.check:
        return print_check()
    if options.clean:
        from benchmarks.judge.clean import clean_report

        print(clean_report(options.cases or 40, options.seed, options.json))
        return 0
    with kept(options.keep) as folder:
        report = benchmark(planned(options), folder, options.keyword, ordinary=options.ordinary, verbose=True)
    print(render(report))
    if options.json:
        options.json.write_text(json.dumps(report.document(), indent=1))
    return 0


def arguments() -> argparse.Namespace:
    from benchmarks.judge import run

    parser = argparse.ArgumentParser(description=run.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a case of two ops of every family")
    parser.add_argument("--frameworks", default="numpy", help="comma-separated: numpy, torch, paddle, oneflow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help=f"cases per op (default {FULL.n_cases})")
    parser.add_argument("--only", default="", metavar="KERNELS", help="only these faults, comma-separated")
    parser.add_argument("-k", dest="keyword", help="only cases whose id matches, as in `parity run`")
    parser.add_argument("--ordinary", action="store_true", help="judge at the default tolerances, not at zero")
    parser.add_argument("--healthy", action="store_true", help="only healthy kernels, many cases")
    parser.add_argument("--clean", action="store_true", help="the frameworks' own kernels")
    parser.add_argument("--check", action="store_true", help="are the kernels as labelled? Runs no judge")
    parser.add_argument("--keep", type=Path, help="keep configs and run directories here")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def planned(options: argparse.Namespace) -> Iterator[Run]:
    """The runs that the options ask for."""
    size = QUICK if options.quick else FULL
    size = Size(options.cases or size.n_cases, size.n_faults, size.n_healthy)
    only = [name for name in options.only.split(",") if name]
    for framework in options.frameworks.split(","):
        if options.healthy:
            yield from healthy_runs(framework, options.cases or HEALTHY_CASES, options.seed)
        else:
            yield from plan_runs(framework, size, options.seed, only)


def quick_report(frameworks: Sequence[str] = ("numpy",), seed: int = 0) -> Report:
    """The quick set: every fault in a case of two ops of its family."""
    with kept(None) as folder:
        return benchmark((r for f in frameworks for r in plan_runs(f, QUICK, seed)), folder)


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """A folder that stays where one is named, else a temporary one."""
    with nullcontext(str(folder.resolve())) if folder else tempfile.TemporaryDirectory() as name:
        yield Path(name)


def benchmark(
    runs: Iterable[Run], folder: Path, keyword: str | None = None, *, ordinary: bool = False, verbose: bool = False
) -> Report:
    """Execute, measure and score all runs."""
    started, cells, judge_s, run_s = time.monotonic(), [], 0.0, 0.0
    for run in runs:
        if keyword and not any(matches(keyword, case["id"]) for case in run.cases):
            continue
        found, seconds, judged = one_run(run, folder / run.name, ["-k", keyword] if keyword else [], ordinary)
        cells += found
        judge_s, run_s = judge_s + judged, run_s + seconds
        if verbose:
            print(f"{run.name}: {len(found)} cells, {seconds:.1f} s", flush=True)
    facts = machine() | {"seconds in parity": round(run_s, 1), "in its judge": round(judge_s, 1) or "not told"}
    return Report(cells, time.monotonic() - started, facts)


def one_run(run: Run, folder: Path, options: Sequence[str], ordinary: bool) -> tuple[list[Cell], float, float]:
    """The cells of a run, parity's seconds and those of its judge (0 where it does not say).

    Effects are measured on what a run at a tolerance of zero keeps. That run is scored too, unless `ordinary` asks for
    one at the default tolerances.
    """
    out = execute(run, folder, "zero", [*options, *ZERO])
    results = read_results(out)
    measured = measure(run, out, results)
    if ordinary:
        results = read_results(execute(run, folder, "ordinary", options))
    cells = score(run, results, measured)
    return cells, float(results.run.seconds), float(results.run.judge_seconds or 0.0)


def matches(keyword: str, case_id: str) -> bool:
    """Whether a plain `-k` names this case; an expression is left to parity."""
    return keyword in case_id or " " in keyword


def machine() -> dict[str, Any]:
    """The machine and the versions."""
    packages = {}
    for name in ("numpy", "torch", "paddlepaddle"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"cpu": cpu(), "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_check() -> int:
    """Everything that is not as labelled; 1 where there is anything."""
    with tempfile.TemporaryDirectory() as name:
        findings = list(check(Path(name)))
    for finding in findings:
        print(f"{finding.kernel}: {finding.case}: {finding.tensor} differs by {finding.difference:.3g}")
    print(f"{len(findings)} kernels are not as labelled")
    return int(bool(findings))
