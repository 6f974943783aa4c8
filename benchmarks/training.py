"""A BERT-like encoder in training: a whole `parity run` beside bare loops of torch, and whether its memory grows.

    python benchmarks/training.py [--steps 1000] [--members 4] [--backends torch paddle oneflow] [--json PATH]

The model has two layers, 128 hidden units, 4 heads, 1,024 tokens, sequences of 64, batches of 32 (0.66 million
parameters), SGD with momentum. Measured are the time of the run, of a step in each backend as its worker takes it, of a
step in a loop of torch written by hand in one thread on the same machine before and after the run, and the resident
memory of all processes over the run, a sample each second: the median of its last tenth against that of the tenth after
the first third.
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
import threading
import time
from pathlib import Path
from typing import Any

import psutil

CONFIG = """
version: 1
backends: [{backends}]
dtypes: [float32]
cases:
  - id: bert
    kind: train
    model: {{bert: {{layers: 2, hidden: 128, heads: 4, ffn: 512, vocab: 1024, sequence: 64}}}}
    data: {{name: masked_lm, rows: 2048}}
    optimizer: {{name: sgd, lr: 1.0e-3, momentum: 0.9}}
    batch_size: 32
    steps: {steps}
    ensemble: {{members: {members}, of: baseline}}
"""
LOOP = """
import os, time
os.environ["OMP_NUM_THREADS"] = "1"
import statistics, torch
torch.set_num_threads(1)
torch.manual_seed(0)
H, L, B, V = 128, 64, 32, 1024
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(H, H) for _ in range(4))
        self.up, self.down = torch.nn.Linear(H, 4 * H), torch.nn.Linear(4 * H, H)
        self.norm1, self.norm2 = torch.nn.LayerNorm(H), torch.nn.LayerNorm(H)
    def forward(self, x):
        heads = lambda t: t.view(B, L, 4, H // 4).transpose(1, 2)
        seen = torch.nn.functional.scaled_dot_product_attention(heads(self.q(x)), heads(self.k(x)), heads(self.v(x)))
        x = self.norm1(x + self.o(seen.transpose(1, 2).reshape(B, L, H)))
        return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))
model = torch.nn.Sequential(torch.nn.Embedding(V, H), Block(), Block(), torch.nn.Linear(H, V))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
tokens = torch.randint(0, V, (B, L))
seconds = []
for step in range(60):
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, V), tokens.view(-1))
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - began)
print(statistics.median(seconds[10:]))
"""


def bare_step() -> float:
    """Seconds of a step of the loop written by hand, the median of 50."""
    done = subprocess.run([sys.executable, "-c", LOOP], check=True, capture_output=True, text=True)
    return float(done.stdout)


def resident(process: psutil.Process) -> float:
    """MiB of a process and all that it started, what they share counted once (PSS)."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20


class Watch(threading.Thread):
    """Samples the memory of a process once a second until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.samples: list[float] = []

    def run(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            self.samples.append(resident(self._process))
            time.sleep(1.0)


def parity_run(arguments: argparse.Namespace, folder: Path) -> tuple[float, dict[str, Any], list[float]]:
    """Wall seconds, results and samples of memory of one `parity run`."""
    config = folder / "bert.yaml"
    config.write_text(
        CONFIG.format(backends=", ".join(arguments.backends), steps=arguments.steps, members=arguments.members)
    )
    began = time.perf_counter()
    command = [sys.executable, "-m", "parity", "run", str(config), "--out", str(folder / "run"), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(process.pid)
    watch.start()
    code = process.wait()
    seconds = time.perf_counter() - began
    watch.join(5)
    if code not in (0, 1):
        raise SystemExit(f"the run ended with {code}")
    return seconds, json.loads((folder / "run" / "results.json").read_text()), watch.samples


def growth(samples: list[float]) -> tuple[float, float]:
    """MiB after the first third, and at the end."""
    n = max(1, len(samples) // 10)
    third = len(samples) // 3
    return statistics.median(samples[third : third + n]), statistics.median(samples[-n - 1 : -1] or samples)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=["torch", "paddle", "oneflow"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    before = bare_step()
    with tempfile.TemporaryDirectory() as folder:
        seconds, results, samples = parity_run(arguments, Path(folder))
    bare = statistics.mean((before, bare_step()))
    steps = {row["backend"]: row["seconds"] / arguments.steps for row in results["outcomes"]}
    early, late = growth(samples)
    partings = {row["backend"]: row["parting"] for row in results["trainings"]}
    numbers = {
        "steps": arguments.steps,
        "seconds": seconds,
        "bare_step_s": bare,
        "step_s": steps,
        "torch_over_bare": steps["torch"] / bare if "torch" in steps else None,
        "memory_mib": {"after a third": early, "at the end": late, "largest": max(samples)},
        "partings": partings,
        "versions": {row["name"]: row["version"] for row in results["backends"]},
        "machine": f"{platform.platform()}, {os.cpu_count()} cores, {results['run']['host']['cpu']}",
    }
    print(json.dumps(numbers, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
