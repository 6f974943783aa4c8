"""Start-up: `parity --help` against bare `python -c pass`, and the time to the first result.

    python benchmarks/startup.py [--repeats 15] [--json PATH]

All commands are interleaved in one run; medians. The first result is a one-case LayerNorm config on the numpy backend,
and on torch, from the start of the process to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 5.0
CASE = "cases: [{op: layer_norm, params: {normalized_shape: [64]}, inputs: {x: {shape: [8, 64]}}}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        medians = measure(Path(name), options.repeats)
    ratio = medians["parity --help"] / medians["python -c pass"]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for key, value in medians.items():
        print(f"{key:24} {1000 * value:8.1f} ms")
    print(f"--help / bare python: {ratio:.1f} (goal: at most {GOAL}; {'met' if ratio <= GOAL else 'missed'})")
    if options.json:
        options.json.write_text(json.dumps({"seconds": medians, "ratio": ratio}, indent=1))


def measure(folder: Path, repeats: int) -> dict[str, float]:
    """Median seconds of each command, interleaved, after one unmeasured round."""
    for backend in ("numpy", "torch"):
        (folder / f"{backend}.yaml").write_text(f"version: 1\nbackends: [{backend}]\n{CASE}\n")
    script = Path(sys.executable).with_name("parity")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "parity --help": [script, "--help"],
        "import torch": [sys.executable, "-c", "import torch"],
        "first result, numpy": [script, "run", "numpy.yaml", "-q", "--out", "numpy-run"],
        "first result, torch": [script, "run", "torch.yaml", "-q", "--out", "torch-run"],
    }
    seconds: dict[str, list[float]] = {key: [] for key in commands}
    for repeat in range(repeats + 1):
        for key, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, cwd=folder, capture_output=True, check=False)
            if repeat:
                seconds[key].append(time.perf_counter() - started)
    return {key: statistics.median(values) for key, values in seconds.items()}


if __name__ == "__main__":
    main()
