"""Planted faults in trainings: each is named, with its step and stage; who computes the same raises no alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished

pytestmark = pytest.mark.frameworks

FAULTS = Path(__file__).parents[1] / "training_faults"


@dataclass(frozen=True)
class Fault:
    """A file of user ops, and what must be said of it."""

    file: str
    diagnosis: str
    step: int
    stage: str
    ranks: int = 1


TRANSFORMER = """
  - id: transformer
    kind: train
    model: {bert: {layers: 1, hidden: 16, heads: 2, ffn: 32, vocab: 40, sequence: 12}}
    data: {rows: 64}
    optimizer: {name: adamw, lr: 1.0e-3, eps: 1.0e-6, weight_decay: 0.1, weight_decay_excludes: ["*.bias", "*norm*"]}
    schedule: {name: warmup_polynomial, warmup_steps: 4, total_iters: 30, start_factor: 0.1}
    clip: {name: norm, max_norm: 0.1}
    batch_size: 8
    accumulation: 2
    steps: 12
"""
PERCEPTRON = """
  - id: perceptron
    kind: train
    model: [{linear: {out_features: 16}}, {activation: tanh}, {linear: {out_features: 4}}]
    data: {name: classification, features: [8], classes: 4, rows: 128}
    optimizer: {name: sgd, lr: 0.05, momentum: 0.9, dampening: 0.5}
    schedule: {name: step, step_size: 5, gamma: 0.5}
    batch_size: 16
    steps: 12
"""
CONVOLUTION = """
  - id: convolution
    kind: train
    model: [{conv2d: {out_channels: 4, kernel_size: 3, padding: 1}}, batch_norm, {activation: relu}, flatten, {linear: {out_features: 3}}]
    data: {name: classification, features: [2, 6, 6], classes: 3, rows: 64}
    optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
    batch_size: 16
    steps: 8
"""
CASES = {
    TRANSFORMER: (
        Fault("schedule_ahead", "schedule-off-by-one", 1, "schedule"),
        Fault("warmup_inclusive", "warmup-boundary", 1, "schedule"),
        Fault("decay_coupled", "weight-decay-coupling", 1, "update"),
        Fault("excludes_ignored", "weight-decay-excludes", 1, "update"),
        Fault("eps_hat", "eps-placement", 1, "update"),
        Fault("no_bias_correction", "bias-correction", 1, "update"),
        Fault("clip_each", "clip-per-tensor", 1, "clip"),
        Fault("accumulated_sum", "accumulation-sum", 1, "gradient"),
        Fault("not_zeroed", "gradient-not-zeroed", 2, "gradient"),
        Fault("reversed_rows", "batch-order", 1, "data"),
        Fault("repeated_rows", "repeated-data", 2, "data"),
    ),
    PERCEPTRON: (
        Fault("dampened_first", "dampening-first-step", 1, "update"),
        Fault("rate_inside", "lr-in-momentum", 1, "update"),
        Fault("ranks_summed", "rank-reduction", 1, "gradient", ranks=2),
        Fault("same_shard", "repeated-data", 1, "data", ranks=2),
    ),
    CONVOLUTION: (Fault("running_statistics", "batch-norm-statistics", 1, "forward"),),
}


def config(case: str, faults: tuple[Fault, ...], seed: int = 0) -> str:
    """One training with a backend for each fault, and one of each framework that has none."""
    mine = "".join(
        f"  - {{name: {fault.file}, adapter: torch, ops: {FAULTS / fault.file}.py, ranks: {fault.ranks}}}\n"
        for fault in faults
    )
    clean = "  - torch\n  - paddle\n  - oneflow\n"
    return f"version: 1\nseed: {seed}\nbackends:\n{clean}{mine}dtypes: [float32]\ncases:{case}"


def parting(run: Finished, backend: str) -> dict[str, Any] | None:
    """Where a backend parts."""
    [row] = [row for row in run.results["trainings"] if row["backend"] == backend]
    return row["parting"]


@pytest.mark.parametrize("case", CASES, ids=["transformer", "perceptron", "convolution"])
def test_planted_faults_are_named_with_step_and_stage(case: str, parity_run: Callable[..., Finished]) -> None:
    run = parity_run(config(case, CASES[case]))
    assert run.code == 1, run.stderr
    said = {fault.file: parting(run, fault.file) for fault in CASES[case]}
    told = {name: found and (found["diagnosis"], found["step"], found["stage"]) for name, found in said.items()}
    assert told == {fault.file: (fault.diagnosis, fault.step, fault.stage) for fault in CASES[case]}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trainings_without_a_fault_raise_no_alarm(seed: int, parity_run: Callable[..., Finished]) -> None:
    run = parity_run(config(TRANSFORMER + CONVOLUTION, (), seed))
    partings = {(row["case"], row["backend"]): row["parting"] for row in run.results["trainings"]}
    own = partings.pop(("convolution", "paddle"))
    assert (own["diagnosis"], own["step"], own["stage"]) == ("running-var-ddof", 1, "forward")
    assert partings == dict.fromkeys(partings)
    assert len(partings) == 7
