"""A 200-case LayerNorm and Linear grid: a whole `parity run` against hand-written scripts that make the same calls.

    python benchmarks/grid.py [--cases 200] [--repeats 5] [--json PATH]

For torch and for paddle, a single-process script imports the framework, draws the same kind of inputs, computes every
case in float32 and float64, forward and backward, and compares each tensor with a float64 reference by
`numpy.testing.assert_allclose`. `parity run` does both frameworks side by side, with the oracle, the stored inputs and
the results on top. The ratio is parity's whole wall time over that of the slower script, each the median of `repeats`
interleaved runs on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 1.5

SCRIPT = """
import os, sys
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import json, warnings
warnings.simplefilter("ignore")
import numpy as np
framework, path = sys.argv[1:]
if framework == "torch":
    import torch
    torch.set_num_threads(1)
    import torch.nn.functional as F
    leaf = lambda a: torch.from_numpy(a.copy()).requires_grad_()
    back = lambda y, dy: y.backward(torch.from_numpy(dy))
    norm = lambda x, n, w, b: F.layer_norm(x, n, w, b, 1e-5)
    linear = F.linear
    array = lambda t: t.detach().numpy()
else:
    import paddle
    import paddle.nn.functional as F
    leaf = lambda a: paddle.to_tensor(a, stop_gradient=False)
    back = lambda y, dy: paddle.autograd.backward([y], [paddle.to_tensor(dy)])
    norm = lambda x, n, w, b: F.layer_norm(x, n, w, b, 1e-5)
    linear = lambda x, w, b: F.linear(x, w.t(), b)
    array = lambda t: t.numpy()
rng = np.random.default_rng(0)
def call(case, x, w, b, dy):
    leaves = [leaf(a) for a in (x, w, b)]
    y = norm(leaves[0], list(w.shape), leaves[1], leaves[2]) if case["op"] == "layer_norm" else linear(*leaves)
    back(y, dy)
    return [array(y)] + [array(t.grad) for t in leaves]
for case in json.load(open(path)):
    x = rng.normal(size=case["x"]).astype(np.float32)
    w = rng.uniform(0.5, 1.5, case["weight"]).astype(np.float32)
    b = rng.normal(size=case["bias"]).astype(np.float32)
    dy = rng.normal(size=case["y"]).astype(np.float32)
    wide = call(case, *[a.astype(np.float64) for a in (x, w, b, dy)])
    narrow = call(case, x, w, b, dy)
    for left, right in zip(narrow, wide):
        try:
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        except AssertionError:
            pass
"""


def grid(n_cases: int) -> list[dict]:
    """Half LayerNorm, half Linear, rows and widths in small steps."""
    cases = []
    for i in range(n_cases // 2):
        rows, width = 8 + 4 * (i % 10), 32 + 48 * (i // 10)
        cases.append({"op": "layer_norm", "x": [rows, width], "weight": [width], "bias": [width], "y": [rows, width]})
    for i in range(n_cases - n_cases // 2):
        rows, k, n = 8 + 4 * (i % 10), 32 + 24 * (i // 10), 40 + 16 * (i // 10)
        cases.append({"op": "linear", "x": [rows, k], "weight": [n, k], "bias": [n], "y": [rows, n]})
    return cases


def as_yaml(cases: list[dict]) -> str:
    """The same grid as a parity config."""
    lines = ["version: 1", "backends: [torch, paddle]", "cases:"]
    for number, case in enumerate(cases):
        params = (
            f"normalized_shape: {case['weight']}" if case["op"] == "layer_norm" else f"out_features: {case['bias'][0]}"
        )
        lines.append(
            f"  - {{id: case-{number}, op: {case['op']}, params: {{{params}}}, inputs: {{x: {{shape: {case['x']}}}}}}}"
        )
    return "\n".join(lines) + "\n"


def timed(command: list[str], cwd: Path) -> tuple[float, float]:
    """Wall and processor seconds (children included) of a command; its exit code may be 1, where numbers differ."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(f"{command}: {done.returncode}\n{done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def judge_share(run_dir: Path) -> float:
    """The part of a run's time that oracle, comparison and judgement took."""
    run = json.loads((run_dir / "results.json").read_text())["run"]
    return float(run["judge_seconds"] / run["seconds"])


def measure(n_cases: int, repeats: int) -> tuple[dict[str, list[float]], float]:
    """Median wall and processor seconds of parity and of both scripts, interleaved; the judge's share of parity's."""
    cases, shares = grid(n_cases), []
    seconds: dict[str, list[tuple[float, float]]] = {"parity": [], "torch script": [], "paddle script": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "grid.yaml").write_text(as_yaml(cases))
        (folder / "grid.json").write_text(json.dumps(cases))
        (folder / "script.py").write_text(SCRIPT)
        for repeat in range(repeats + 1):
            run = {
                "parity": [sys.executable, "-m", "parity", "run", "grid.yaml", "--out", f"run-{repeat}", "-q"],
                "torch script": [sys.executable, "script.py", "torch", "grid.json"],
                "paddle script": [sys.executable, "script.py", "paddle", "grid.json"],
            }
            for key, command in run.items():
                took = timed(command, folder)
                if repeat:
                    seconds[key].append(took)
            shares.append(judge_share(folder / f"run-{repeat}"))
    medians = {key: [statistics.median(each) for each in zip(*took, strict=True)] for key, took in seconds.items()}
    return medians, statistics.median(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds, share = measure(options.cases, options.repeats)
    ratio, cpu_ratio = (
        seconds["parity"][i] / max(seconds["torch script"][i], seconds["paddle script"][i]) for i in (0, 1)
    )
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for key, (wall, cpu) in seconds.items():
        print(f"{key:14} {wall:6.2f} s, {cpu:6.2f} s of processor time")
    print(f"oracle, comparison and judgement: {share:.0%} of parity's time")
    print(f"parity / slower script: {ratio:.2f} (goal: at most {GOAL}; {'met' if ratio <= GOAL else 'missed'})")
    print(f"the same in processor time: {cpu_ratio:.2f}")
    if options.json:
        options.json.write_text(
            json.dumps({"seconds": seconds, "ratios": [ratio, cpu_ratio], "judge_share": share}, indent=1)
        )


if __name__ == "__main__":
    main()
