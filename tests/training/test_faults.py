"""Planted faults in trainings: each is named, with its step and stage; who computes the same raises no alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CONFIGS, Finished
from tests.markers import ONEFLOW_GRAPH

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
    steps: 8
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
CASES: dict[str, tuple[str, tuple[Fault, ...]]] = {
    "transformer": (
        TRANSFORMER,
        (
            Fault("schedule_ahead", "schedule-off-by-one", 1, "schedule"),
            Fault("decay_coupled", "weight-decay-coupling", 1, "update"),
            Fault("clip_each", "clip-per-tensor", 1, "clip"),
            Fault("accumulated_sum", "accumulation-sum", 1, "gradient"),
            Fault("not_zeroed", "gradient-not-zeroed", 2, "gradient"),
            Fault("reversed_rows", "batch-order", 1, "data"),
            Fault("repeated_rows", "repeated-data", 2, "data"),
        ),
    ),
    "perceptron": (
        PERCEPTRON,
        (
            Fault("rate_inside", "lr-in-momentum", 1, "update"),
            Fault("ranks_summed", "rank-reduction", 1, "gradient", ranks=2),
            Fault("same_shard", "repeated-data", 1, "data", ranks=2),
        ),
    ),
    "convolution": (CONVOLUTION, (Fault("running_statistics", "batch-norm-statistics", 1, "forward"),)),
}


FRAMEWORKS = ("torch", "paddle", "oneflow")


def config(case: str, faults: tuple[Fault, ...], seed: int = 0, clean: tuple[str, ...] = FRAMEWORKS) -> str:
    """Trainings with a backend for each fault, and backends that have none."""
    mine = "".join(
        f"  - {{name: {fault.file}, adapter: torch, ops: {FAULTS / fault.file}.py, ranks: {fault.ranks}}}\n"
        for fault in faults
    )
    right = "".join(f"  - {name}\n" for name in clean)
    return f"version: 1\nseed: {seed}\nbackends:\n{right}{mine}dtypes: [float32]\ncases:{case}"


OWN = {("convolution", "paddle"): ("running-var-ddof", 1, "forward")}
"""What frameworks do otherwise than the baseline, without a fault of ours."""


def named(run: Finished) -> dict[tuple[str, str], tuple[str, int, str]]:
    """Diagnosis, step and stage of whoever diverges, by case and backend."""
    rows = [row for row in run.results["trainings"] if row["parting"]]
    places = {(row["case"], row["backend"]): row["parting"] for row in rows}
    return {place: (found["diagnosis"], found["step"], found["stage"]) for place, found in places.items()}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "perceptron" else [pytest.mark.exhaustive]) for case in CASES]
)
def test_planted_faults_are_named_with_step_and_stage_and_nobody_else_is(
    case: str, parity_run: Callable[..., Finished]
) -> None:
    text, faults = CASES[case]
    run = parity_run(config(text, faults, clean=("torch",) if case == "perceptron" else FRAMEWORKS))
    assert run.code == 1, run.stderr
    wanted = {(case, fault.file): (fault.diagnosis, fault.step, fault.stage) for fault in faults}
    assert named(run) == wanted | {place: own for place, own in OWN.items() if place[0] == case}


def test_trainings_of_another_seed_raise_no_alarm(parity_run: Callable[..., Finished]) -> None:
    run = parity_run(config(TRANSFORMER + CONVOLUTION, (), seed=1))
    assert named(run) == OWN
    assert len(run.results["trainings"]) == 8


SMALL = {
    "layers: 2, hidden: 128, heads: 4, ffn: 512, vocab: 1024, sequence: 64": "layers: 1, hidden: 16, heads: 4, ffn: 32, vocab: 64, sequence: 16",
    "rows: 2048": "rows: 64",
    "batch_size: 32": "batch_size: 8",
}
"""The sizes of the shipped config, with which two steps take minutes, and those that a test has time for."""


@pytest.mark.exhaustive
@ONEFLOW_GRAPH
def test_the_shipped_config_shows_who_diverges(parity_run: Callable[..., Finished]) -> None:
    text = (CONFIGS / "training.yaml").read_text()
    for whole, small in SMALL.items():
        assert whole in text
        text = text.replace(whole, small)
    run = parity_run(text, "--steps", "2")
    assert run.code == 0, run.stdout + run.stderr
    assert {row["state"] for row in run.results["known"]} == {"matched"}
    assert "Warning" not in run.stderr
    dampened = ("dampening-first-step", 1, "update")
    assert named(run) == OWN | {("dampening", name): dampened for name in ("oneflow", "oneflow:graph")}
    unsupported = {(o["case"], o["backend"]) for o in run.results["outcomes"] if o["outcome"] != "ok"}
    assert unsupported == {("bert-lamb", "torch"), ("dampening", "paddle")}
    assert {o["outcome"] for o in run.results["outcomes"]} == {"ok", "unsupported"}
