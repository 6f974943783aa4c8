"""How well are trainings judged: liars detected and named, false alarms, and how far from 8 honest sides stay.

    python benchmarks/training_judge.py [--seeds N] [--frameworks] [--json PATH]

Liars are the planted faults of tests/training/test_diagnoses.py, computed by the oracle's steps in float32. Honest sides
sum in sequence, in float32 and float64; with `--frameworks` also the trainings of tests/training/test_faults.py in the
released wheels, in whose rows a parting is a finding to look at.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.config.plan import CasePlan
from parity.reporting.results.record import cpu_model
from parity.reporting.results.results import read_results
from parity.training.judge.judge import JudgedTraining
from tests.training.runs import HONEST, Lie, judged, planned
from tests.training.test_diagnoses import CASES, FAULTS, SILENT
from tests.training.test_faults import CONVOLUTION, PERCEPTRON, TRANSFORMER, config

DTYPES = ("float32", "float64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = measured(folder, options.seeds)
        if options.frameworks:
            found["frameworks"] = [row for seed in range(options.seeds) for row in wheels(folder, seed)]
    found["machine"] = {"cpu": cpu_model(), "python": platform.python_version(), "numpy": np.__version__}
    for line in told(found):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measured(folder: Path, seeds: int) -> dict[str, Any]:
    """Liars and honest sides without processes."""
    cases = {}
    for name, text in CASES.items():
        (folder / name).mkdir()
        cases[name] = planned(text, folder / name)
    liars = [liar(cases, row, seed) for seed in range(seeds) for row in FAULTS]
    honest = [
        row for name in cases for dtype in DTYPES for seed in range(seeds) for row in right(cases[name], dtype, seed)
    ]
    return {"liars": liars, "honest": honest}


def liar(cases: Mapping[str, CasePlan], row: tuple[Any, ...], seed: int) -> dict[str, Any]:
    """What was said of a planted fault."""
    case, lie, diagnosis, step, stage = row
    parting = judged(cases[case], {"honest": SILENT, "liar": lie}, seed=seed).divergences["liar"]
    said = None if parting is None else [parting.diagnosis, parting.step, parting.stage]
    return {"case": case, "seed": seed, "planted": [diagnosis, step, stage], "said": said}


def right(case: CasePlan, dtype: str, seed: int) -> Iterator[dict[str, Any]]:
    """What was said of two who compute the same in another order."""
    found = judged(case, {"pairs": HONEST, "sequence": Lie(other=True)}, dtype, seed)
    for name in ("pairs", "sequence"):
        yield {"case": case.id, "dtype": dtype, "seed": seed, "side": name, **sizes(found, name)}


def sizes(found: JudgedTraining, name: str) -> dict[str, Any]:
    """Whether a side parted, and its largest ratios."""
    row = next(row for row in found.rows if row.backend == name)
    return {"parted": row.parting is not None, **largest(row.probes, row.curves.ratio)}


def largest(probes: Any, curves: Mapping[str, Any]) -> dict[str, float]:
    """The largest ratio of any stage, and of any curve."""
    stages = [float(value) for probe in probes for value in probe.ratios.values()]
    ratios = [float(value) for values in curves.values() for value in values]
    return {"stage": top(stages), "curve": top(ratios)}


def top(values: list[float]) -> float:
    """The largest that is a number."""
    return max((v for v in values if not math.isnan(v)), default=0.0)


def wheels(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The trainings in the released wheels."""
    path, out = folder / f"clean-{seed}.yaml", folder / f"clean-{seed}"
    text = config(TRANSFORMER + CONVOLUTION + PERCEPTRON, (), seed)
    path.write_text(text.replace("dtypes: [float32]", "dtypes: [float32, float64]"))
    done = subprocess.run([sys.executable, "-m", "parity", "run", str(path), "-q", "--out", str(out)])
    if done.returncode not in (0, 1, 3):
        sys.exit(f"parity ended with {done.returncode}")
    results = read_results(out)
    versions = {row.name: row.version for row in results.backends}
    for row in results.trainings:
        parting = row.parting
        yield {
            "case": row.case,
            "dtype": row.dtype,
            "seed": seed,
            "side": row.backend,
            "version": versions.get(row.backend, ""),
            "parted": None if parting is None else [parting.diagnosis, parting.step, parting.stage],
            **largest(row.probes, row.curves.ratio),
        }


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """The counts, and every case that went wrong."""
    liars, honest = found["liars"], found["honest"]
    seen = [row for row in liars if row["said"]]
    named = [row for row in seen if row["said"][0] == row["planted"][0]]
    placed = [row for row in named if row["said"] == row["planted"]]
    yield f"{found['machine']['cpu']}, Python {found['machine']['python']}, numpy {found['machine']['numpy']}"
    yield f"liars detected {len(seen)} of {len(liars)}, named first {len(named)}, with step and stage {len(placed)}"
    yield from (f"  {row}" for row in liars if row["said"] != row["planted"])
    alarms = [row for row in honest if row["parted"]]
    yield f"false alarms {len(alarms)} of {len(honest)} honest sides"
    yield f"largest ratios: stages {max(r['stage'] for r in honest):.3g}, curves {max(r['curve'] for r in honest):.3g}"
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in found.get("frameworks", ()):
        said = "no parting" if row["parted"] is None else f"{row['parted'][0]} in {row['parted'][2]}"
        groups.setdefault((f"{row['side']} {row['version']}".strip(), row["case"], row["dtype"], said), []).append(row)
    for key, rows in sorted(groups.items()):
        ratios = f"stages {max(r['stage'] for r in rows):.3g}, curves {max(r['curve'] for r in rows):.3g}"
        yield f"{', '.join(key)}: {len(rows)} runs, largest ratios: {ratios}"


if __name__ == "__main__":
    main()
