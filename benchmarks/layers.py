"""Layers of real size: a whole `parity run` against one script that computes and compares the same.

    python benchmarks/layers.py [--layers layer_norm linear] [--repeats 1] [--scale 1] [--json PATH]

torch and paddle, float32 and float64, forward and backward. The script does both frameworks in one process: it draws the
inputs, computes, and compares each tensor with the other framework's and with float64 by `numpy.testing.assert_allclose`.
`parity run` does so in two workers, with the oracle, the error bounds, the verdicts, the diagnosis of what is off, and
the reports. Both take turns on the same machine; medians of wall and of processor time (children included), and the
largest resident set of parity's own process. `--scale 0.125` has an eighth of the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from comparison import cpu

GOAL = 3.0
ROOT = Path(__file__).resolve().parent.parent

LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "layer_norm": ((8192, 1024), (1024,)),
    "linear": ((512, 2048), (2048, 2048)),
}
"""The shapes of x and of the weight."""

SCRIPT = """
import json, os, sys, warnings
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
warnings.simplefilter("ignore")
import numpy as np
import torch, paddle
import torch.nn.functional as T, paddle.nn.functional as P
torch.set_num_threads(1)
layer, x_shape, w_shape = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.normal(size=x_shape).astype(np.float32)
w = rng.normal(size=w_shape).astype(np.float32)
b = rng.normal(size=w_shape[:1]).astype(np.float32)
dy = rng.normal(size=(*x_shape[:-1], *w_shape[:1])).astype(np.float32)
def by_torch(x, w, b, dy):
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, w, b)]
    y = T.layer_norm(leaves[0], w_shape, *leaves[1:]) if layer == "layer_norm" else T.linear(*leaves)
    y.backward(torch.from_numpy(dy))
    return [y.detach().numpy()] + [leaf.grad.numpy() for leaf in leaves]
def by_paddle(x, w, b, dy):
    leaves = [paddle.to_tensor(a, stop_gradient=False) for a in (x, w, b)]
    if layer == "layer_norm":
        y = P.layer_norm(leaves[0], w_shape, *leaves[1:])
    else:
        y = P.linear(leaves[0], leaves[1].t(), leaves[2])
    paddle.autograd.backward([y], [paddle.to_tensor(dy)])
    return [y.numpy()] + [leaf.grad.numpy() for leaf in leaves]
found = {}
for dtype in (np.float64, np.float32):
    for call in (by_torch, by_paddle):
        found[dtype, call] = call(*[a.astype(dtype) for a in (x, w, b, dy)])
def compare(one, other):
    for left, right in zip(found[one], found[other]):
        try:
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        except AssertionError:
            pass
for dtype in (np.float32, np.float64):
    compare((dtype, by_paddle), (dtype, by_torch))
compare((np.float32, by_torch), (np.float64, by_torch))
compare((np.float32, by_paddle), (np.float64, by_torch))
"""


class Cost(NamedTuple):
    wall: float
    cpu: float
    peak_mb: float


def config(layer: str, x: tuple[int, ...], weight: tuple[int, ...]) -> str:
    param = f"normalized_shape: {list(weight)}" if layer == "layer_norm" else f"out_features: {weight[0]}"
    return (
        "version: 1\nbackends: [torch, paddle]\ndtypes: [float32, float64]\ncases:\n"
        f"  - {{op: {layer}, params: {{{param}}}, inputs: {{x: {{shape: {list(x)}}}}}}}\n"
    )


def cost(command: list[str], folder: Path) -> Cost:
    """Wall and processor seconds, and the largest resident set of the command; its exit code may be 1."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.05)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode not in (0, 1):
        sys.exit(f"{command} ended with {process.returncode}")
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak)


def resident(pid: int) -> float:
    """The largest resident set of a process so far, in MB; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def measure(layer: str, repeats: int, scale: float) -> dict[str, Any]:
    """Medians of script and parity, taking turns."""
    (rows, *rest), weight = LAYERS[layer]
    x = (max(1, int(rows * scale)), *rest)
    costs: dict[str, list[Cost]] = {"script": [], "parity": []}
    judging = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "layer.yaml").write_text(config(layer, x, weight))
            script = [sys.executable, "-c", SCRIPT, json.dumps([layer, x, weight])]
            run = [sys.executable, "-m", "parity", "run", "layer.yaml", "-q", "--out", "run"]
            costs["script"].append(cost(script, folder))
            costs["parity"].append(cost(run, folder))
            judging.append(json.loads((folder / "run" / "results.json").read_text())["run"]["judge_seconds"])
    row: dict[str, Any] = {"layer": layer, "x": list(x), "judge_seconds": statistics.median(judging)}
    for name, found in costs.items():
        row[name] = Cost(*map(statistics.median, zip(*found, strict=True)))._asdict()
    row["ratio"] = row["parity"]["wall"] / row["script"]["wall"]
    row["cpu_ratio"] = row["parity"]["cpu"] / row["script"]["cpu"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=LAYERS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = {name: version(name) for name in ("numpy", "torch", "paddlepaddle")}
    print(f"{cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {versions}")
    print(
        f"{'layer':12} {'x':>13} {'script s':>9} {'parity s':>9} {'ratio':>6} {'cpu ratio':>9} {'judge s':>8} {'MB':>6}"
    )
    rows = []
    for layer in options.layers:
        row = measure(layer, options.repeats, options.scale)
        rows.append(row)
        shape, parity = "x".join(map(str, row["x"])), row["parity"]
        print(
            f"{layer:12} {shape:>13} {row['script']['wall']:9.1f} {parity['wall']:9.1f} {row['ratio']:6.1f} "
            f"{row['cpu_ratio']:9.1f} {row['judge_seconds']:8.1f} {parity['peak_mb']:6.0f}"
        )
    print(f"goal: ratio at most {GOAL:g}")
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "cpu": cpu(), "layers": rows}, indent=1))


if __name__ == "__main__":
    main()
