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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from parity.config.plan import BackendSpec
from parity.engine import EngineOptions
from parity.exit_codes import INCOMPLETE, INTERRUPTED, PASSED
from parity.fingerprint import DEFAULT_BACKENDS, DTYPES
from parity.fingerprint.claims import Experiment, KernelClaim, NotMeasuredError, ProbeAnswers
from parity.fingerprint.experiments import EXPERIMENTS
from parity.fingerprint.gathering import Gathered, gather
from parity.fingerprint.precision import PRECISIONS
from parity.outcome import Outcome
from parity.reporting.plots.drift import Line, drift_file
from parity.reporting.results.directory import made
from parity.reporting.results.record import backend_row, cpu_model
from parity.reporting.results.results import new_directory, write_atomically
from parity.version import __version__

FORMAT = 1
FILE_NAME = "fingerprint.json"
PLOT_NAME = "drift.svg"
Row = dict[str, Any]


@dataclass(frozen=True)
class FingerprintRequest:
    """The op, the backends and dtypes to probe, the options, and the run directory."""

    op: str
    backends: tuple[BackendSpec, ...]
    dtypes: tuple[str, ...]
    options: EngineOptions
    run_dir: Path
    command: tuple[str, ...]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the op."""
        return EXPERIMENTS[self.op]


@dataclass(frozen=True)
class KernelFingerprint:
    """The claims about one backend in one dtype, and its line in the plot."""

    backend: str
    dtype: str
    claims: tuple[KernelClaim, ...]
    drift: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Study:
    """A fingerprint's result; `document` is the content of fingerprint.json."""

    request: FingerprintRequest
    fingerprints: tuple[KernelFingerprint, ...]
    document: Row

    @property
    def exit_code(self) -> int:
        """0 if everything could be measured, 3 if something could not, 130 after an interrupt."""
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
) -> FingerprintRequest:
    """The request of the command line; raises ConfigError, or OSError if the run directory cannot be used."""
    from parity.config import load_backends

    named = tuple(backends) if backends or config is not None else DEFAULT_BACKENDS
    specs = load_backends(named, config)
    options = EngineOptions(timeout_s=timeout, threads=threads, provision=not no_provision)
    wanted = tuple(dtype for dtype in DTYPES if not dtypes or dtype in dtypes)
    return FingerprintRequest(op, specs, wanted, options, claim(out, op), ("parity", *sys.argv[1:]))


def conduct(request: FingerprintRequest, reporter: Any) -> Study:
    """Run the probes, judge the answers, write the files. `reporter` is a progress reporter."""
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    experiment = request.experiment
    probes = {dtype: list(experiment.probes(PRECISIONS[dtype])) for dtype in request.dtypes}
    with reporter:
        watch = reporter.on_event
        gathered = gather(request.backends, probes, request.options, request.run_dir, lambda event: watch(event, ()))
    # The inputs are the same in every run, and large.
    shutil.rmtree(request.run_dir / "tensors", ignore_errors=True)
    fingerprints = tuple(
        examine(experiment, spec.name, gathered.of(spec.name, dtype))
        for spec in request.backends
        for dtype in request.dtypes
    )
    run = run_row(request, started, time.monotonic() - clock)
    measured = [Line(f.backend, f.dtype, f.drift) for f in fingerprints if f.drift]
    expected = theory(request, measured)
    study = Study(request, fingerprints, plain(document(request, gathered, fingerprints, run, expected)))
    plot = drift_file(f"parity fingerprint {request.op}", experiment.axes, measured, expected)
    write_atomically(request.run_dir / PLOT_NAME, plot)
    write_atomically(request.run_dir / FILE_NAME, json.dumps(study.document, indent=2))
    return study


def claim(out: Path | None, op: str) -> Path:
    """The run directory: a new one, or `out`, emptied if it holds an earlier fingerprint.

    Raises OSError if it cannot be used or holds anything else.
    """
    if out is None:
        return new_directory(Path("reports") / f"fingerprint-{op}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    made(out)
    if any(out.iterdir()):
        if not (out / FILE_NAME).is_file():
            raise FileExistsError(errno.EEXIST, "it is not empty and does not hold a fingerprint", str(out))
        for name in (FILE_NAME, PLOT_NAME, "log.txt"):
            (out / name).unlink(missing_ok=True)
    return out


def examine(experiment: Experiment, backend: str, answers: ProbeAnswers) -> KernelFingerprint:
    """Probe one backend in one dtype."""
    with np.errstate(all="ignore"):
        try:
            drift = tuple(experiment.drift(answers))
        except NotMeasuredError:
            drift = ()
    return KernelFingerprint(backend, answers.dtype, tuple(experiment.claims(answers)), drift)


def theory(request: FingerprintRequest, measured: Sequence[Line]) -> list[Line]:
    """The expected errors of each algorithm in each dtype, over the measured range."""
    experiment = request.experiment
    span = [x for line in measured for x, _ in line.points] or [1.0, 1e6]
    grid = [float(x) for x in np.geomspace(min(span), max(span), 60)]
    lines = []
    for dtype in request.dtypes:
        rows = [experiment.theory(experiment.n, PRECISIONS[dtype].u, x) for x in grid]
        lines += [
            Line(name, dtype, tuple((x, row[name]) for x, row in zip(grid, rows, strict=True))) for name in rows[0]
        ]
    return lines


def run_row(request: FingerprintRequest, started: datetime.datetime, seconds: float) -> Row:
    """When, where and how it was run."""
    return {
        "id": request.run_dir.name,
        "started": started.isoformat(),
        "seconds": round(seconds, 3),
        "parity": __version__,
        "command": request.command,
        "host": {
            "cpu": cpu_model(),
            "os": platform.platform(),
            "cores": os.cpu_count(),
            "threads": request.options.threads,
            "python": platform.python_version(),
        },
    }


def document(
    request: FingerprintRequest,
    gathered: Gathered,
    fingerprints: Sequence[KernelFingerprint],
    run: Row,
    expected: Sequence[Line],
) -> Row:
    """fingerprint.json; `expected` has the theory's lines, for drawing the plot again."""
    problems = [o for o in gathered.outcomes if o.outcome is not Outcome.OK]
    claims = [claim for fingerprint in fingerprints for claim in fingerprint.claims]
    unmeasured = sum(not claim.measured for claim in claims)
    row: Row = plain(
        {
            "format": FORMAT,
            "op": request.op,
            "run": run,
            "backends": to_builtins([backend_row(spec, gathered.infos.get(spec.name)) for spec in request.backends]),
            "dtypes": list(request.dtypes),
            "fingerprints": [fingerprint_row(fingerprint) for fingerprint in fingerprints],
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
                "decided": sum(claim.decided for claim in claims),
                "cannot tell": sum(not claim.decided and claim.measured for claim in claims),
                "not measured": unmeasured,
                "exit_code": INTERRUPTED if gathered.interrupted else INCOMPLETE if problems or unmeasured else PASSED,
            },
            "plot": {"axes": request.experiment.axes, "theory": [asdict(line) for line in expected]},
        }
    )
    return row


def fingerprint_row(fingerprint: KernelFingerprint) -> Row:
    """One fingerprint with its evidence."""
    shown = ("aspect", "answer", "decided", "measured", "reason", "evidence")
    claims = [{name: getattr(claim, name) for name in shown} for claim in fingerprint.claims]
    return {"backend": fingerprint.backend, "dtype": fingerprint.dtype, "claims": claims, "drift": fingerprint.drift}


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
