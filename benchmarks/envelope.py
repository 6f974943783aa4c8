"""Error ratios of released kernels over a grid of sizes and offsets: how far from 8 do healthy ones stay?

    python benchmarks/envelope.py [--json PATH]

Runs `benchmarks/clean.yaml` with a tolerance of zero, so that every comparison with the oracle that is not bit for bit
gets an error ratio, and prints per op, dtype and backend how many tensors there are, the median, the 99th percentile,
the largest ratio, and how many are 8 or more. The last are findings; what they are is for the reader to say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.results.results import read_results

CONFIG = Path(__file__).with_name("clean.yaml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = summary(ratios())
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    if options.json:
        options.json.write_text(json.dumps(table.to_dict("records"), indent=1))


def ratios() -> pd.DataFrame:
    """One row for each tensor of each backend against the oracle; equal ones have ratio 0."""
    with tempfile.TemporaryDirectory() as name:
        command = [
            sys.executable,
            "-m",
            "parity",
            "run",
            str(CONFIG),
            "-q",
            "--rtol",
            "0",
            "--atol",
            "0",
            "--out",
            name,
        ]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 1, 3):
            sys.exit(f"parity ended with {done.returncode}")
        results = read_results(Path(name))
    frame = results.frame()
    frame = frame[(frame["expected"] == "oracle") & (frame["verdict"] != "not-compared")]
    found = [row["actual"] for row in frame["error_ratio"]]
    frame = frame.assign(ratio=[0.0 if ratio is None else float(ratio) for ratio in found])
    print(
        f"{len(frame)} tensors of {len(results.cases)} cases; "
        + ", ".join(f"{b.name} {b.version}" for b in results.backends)
    )
    return frame


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Per op, dtype and backend."""
    groups = frame.groupby(["op", "dtype", "actual"])["ratio"]
    columns = {
        "tensors": groups.size(),
        "median": groups.median(),
        "p99": groups.quantile(0.99, interpolation="lower"),
        "max": groups.max(),
    }
    columns["findings"] = groups.apply(lambda ratio: int((ratio >= ERROR_BOUND).sum()))
    return pd.DataFrame(columns).reset_index()


if __name__ == "__main__":
    main()
