"""One fingerprint: probes, backends, claims, and the files that hold them."""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from parity import __version__
from parity.config.plan import BackendSpec
from parity.engine import EngineOptions
from parity.fingerprint import DEFAULT_BACKENDS, DTYPES
from parity.fingerprint.claims import Answers, Claim, NotMeasuredError
from parity.fingerprint.experiment import Gathered, gather
from parity.fingerprint.experiments import EXPERIMENTS, Experiment
from parity.fingerprint.precision import PRECISIONS
from parity.gate import INCOMPLETE, INTERRUPTED, PASSED
from parity.outcome import Outcome
from parity.reporting.plots.drift import Line, svg
from parity.reporting.results.record import backend_row, cpu_model
from parity.reporting.results.results import new_directory, write_atomically

FORMAT = 1
FILE_NAME = "fingerprint.json"
PLOT_NAME = "drift.svg"
Row = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked: an op, of whom, in which dtypes, how and where to."""

    op: str
    backends: tuple[BackendSpec, ...]
    dtypes: tuple[str, ...]
    options: EngineOptions
    run_dir: Path
    command: tuple[str, ...]


@dataclass(frozen=True)
class Fingerprint:
    """The claims about one backend in one dtype, and its line in the plot."""

    backend: str
    dtype: str
    claims: tuple[Claim, ...]
    drift: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Study:
    """All that a fingerprint found; `document` is what fingerprint.json holds."""

    request: Request
    fingerprints: tuple[Fingerprint, ...]
    document: Row

    @property
    def exit_code(self) -> int:
        """0 where everything could be measured, 3 where something could not, 130 after an interrupt."""
        return int(self.document["summary"]["exit_code"])


def request(
    op: str,
    *,
    backends: Sequence[str],
    config: Path | None,
    dtypes: Sequence[str],
    out: Path | None,
    threads: int,
    timeout: float,
    no_provision: bool,
) -> Request:
    """What the command line asks for; raises ConfigError or, where the run directory cannot be had, OSError."""
    from parity.config import load_backends

    named = tuple(backends) if backends or config is not None else DEFAULT_BACKENDS
    specs = load_backends(named, config)
    options = EngineOptions(timeout_s=timeout, threads=threads, provision=not no_provision)
    wanted = tuple(dtype for dtype in DTYPES if not dtypes or dtype in dtypes)
    return Request(op, specs, wanted, options, claim(out, op), ("parity", *sys.argv[1:]))


def fingerprint_and_show(request: Request, *, as_json: bool = False) -> int:
    """Fingerprint with progress on stderr and the answer on stdout; the exit code. Raises OSError."""
    from rich.console import Console

    from parity.fingerprint.table import render
    from parity.reporting.console.progress import reporter_for
    from parity.reporting.console.run import stdout_console

    study = conduct(request, reporter_for(Console(stderr=True), n_cells(request), quiet=False))
    if as_json:
        print(json.dumps(study.document, indent=2))  # noqa: T201 - the document is the output
    else:
        render(study, stdout_console())
    note = f"written to {request.run_dir}"
    Console(stderr=True).print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
    return study.exit_code


def n_cells(request: Request) -> int:
    """How many probes there are, in all dtypes."""
    return sum(len(list(EXPERIMENTS[request.op].probes(PRECISIONS[dtype]))) for dtype in request.dtypes)


def conduct(request: Request, reporter: Any) -> Study:
    """Run the probes, judge the answers, write the files. `reporter` is a progress reporter."""
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    experiment = EXPERIMENTS[request.op]
    probes = {dtype: list(experiment.probes(PRECISIONS[dtype])) for dtype in request.dtypes}
    with reporter:
        watch = reporter.on_event
        gathered = gather(request.backends, probes, request.options, request.run_dir, lambda event: watch(event, ()))
    # The inputs are the same in every run, and large.
    shutil.rmtree(request.run_dir / "tensors", ignore_errors=True)
    found = tuple(
        examine(experiment, spec.name, gathered.of(spec.name, dtype))
        for spec in request.backends
        for dtype in request.dtypes
    )
    row = run_row(request, started, time.monotonic() - clock)
    expected = theory(experiment, request, found)
    study = Study(request, found, document(request, gathered, found, row) | plot_row(experiment, expected))
    write_atomically(request.run_dir / PLOT_NAME, plot(experiment, request, found, expected))
    write_atomically(request.run_dir / FILE_NAME, json.dumps(study.document, indent=2))
    return study


def claim(out: Path | None, op: str) -> Path:
    """The run directory: a new one, or `out`, emptied where it holds an earlier fingerprint.

    Raises OSError where it cannot be had or holds anything else.
    """
    if out is None:
        return new_directory(Path("reports") / f"fingerprint-{op}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        if not (out / FILE_NAME).is_file():
            raise FileExistsError(errno.EEXIST, "it is not empty and holds no fingerprint", str(out))
        for name in (FILE_NAME, PLOT_NAME, "log.txt"):
            (out / name).unlink(missing_ok=True)
    return out


def examine(experiment: Experiment, backend: str, answers: Answers) -> Fingerprint:
    """Ask all questions of one backend in one dtype."""
    with np.errstate(all="ignore"):
        try:
            drift = tuple(experiment.drift(answers))
        except NotMeasuredError:
            drift = ()
    return Fingerprint(backend, answers.dtype, tuple(experiment.claims(answers)), drift)


def run_row(request: Request, started: datetime.datetime, seconds: float) -> Row:
    """When, where and how it was run."""
    host = {
        "cpu": cpu_model(),
        "os": platform.platform(),
        "cores": os.cpu_count(),
        "threads": request.options.threads,
        "python": platform.python_version(),
    }
    return {
        "id": request.run_dir.name,
        "started": started.isoformat(),
        "seconds": round(seconds, 3),
        "parity": __version__,
        "command": list(request.command),
        "host": host,
    }


def document(request: Request, gathered: Gathered, found: Sequence[Fingerprint], run: Row) -> Row:
    """fingerprint.json."""
    problems = [o for o in gathered.outcomes if o.outcome is not Outcome.OK]
    unmeasured = sum(not c.measured for f in found for c in f.claims)
    code = INTERRUPTED if gathered.interrupted else INCOMPLETE if problems or unmeasured else PASSED
    row: Row = plain(
        {
            "format": FORMAT,
            "op": request.op,
            "run": run,
            "backends": to_builtins([backend_row(spec, gathered.infos.get(spec.name)) for spec in request.backends]),
            "dtypes": list(request.dtypes),
            "fingerprints": [fingerprint_row(f) for f in found],
            "problems": [
                {
                    "probe": o.case,
                    "dtype": o.dtype,
                    "backend": o.backend,
                    "outcome": o.outcome.value,
                    "message": o.message,
                }
                for o in problems
            ],
            "summary": {
                "decided": sum(c.decided for f in found for c in f.claims),
                "cannot tell": sum(not c.decided and c.measured for f in found for c in f.claims),
                "not measured": unmeasured,
                "exit_code": code,
            },
        }
    )
    return row


def fingerprint_row(found: Fingerprint) -> Row:
    """One fingerprint with its evidence."""
    claims = [
        {
            "aspect": c.aspect,
            "answer": c.answer,
            "decided": c.decided,
            "measured": c.measured,
            "reason": c.reason,
            "evidence": dict(c.evidence),
        }
        for c in found.claims
    ]
    return {"backend": found.backend, "dtype": found.dtype, "claims": claims, "drift": [list(p) for p in found.drift]}


def plain(value: Any) -> Any:
    """The value as JSON has it: non-finite numbers by name, as in results.json."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return value.item() if isinstance(value, np.generic) else value


def theory(experiment: Experiment, request: Request, found: Sequence[Fingerprint]) -> list[Line]:
    """The errors to be expected of each algorithm in each dtype, over all that was measured."""
    span = [x for f in found for x, _ in f.drift] or [1.0, 1e6]
    grid = np.geomspace(min(span), max(span), 60)
    lines = []
    for dtype in request.dtypes:
        rows = [experiment.theory(experiment.n, PRECISIONS[dtype].u, float(x)) for x in grid]
        lines += [
            Line(name, dtype, tuple((float(x), row[name]) for x, row in zip(grid, rows, strict=True)))
            for name in rows[0]
        ]
    return lines


def plot_row(experiment: Experiment, expected: Sequence[Line]) -> Row:
    """What it takes to draw the plot again, beside the measured lines."""
    lines = [{"name": line.name, "dtype": line.dtype, "points": [list(p) for p in line.points]} for line in expected]
    return {"plot": plain({"axes": list(experiment.axes), "theory": lines})}


def plot(experiment: Experiment, request: Request, found: Sequence[Fingerprint], expected: Sequence[Line]) -> str:
    """drift.svg: a line for each backend and dtype, and the theory's."""
    lines = [Line(f.backend, f.dtype, f.drift) for f in found if f.drift]
    return svg(f"parity fingerprint {request.op}", experiment.axes, lines, expected)
