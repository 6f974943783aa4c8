"""What the audit of a training says of its data is what a run with a planted fault shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from parity.config import Overrides, load_plan
from parity.training.run import audited
from tests.conftest import CONFIGS, Finished

pytestmark = [pytest.mark.process, pytest.mark.frameworks]

CONFIG = """
version: 1
backends: [numpy, {{name: faulty, adapter: torch, ops: ./faulty.py}}]
dtypes: [float32]
cases:
  - id: net
    kind: train
    model: [{{linear: {{out_features: 6}}}}, {{activation: tanh}}, {{linear: {{out_features: 2}}}}]
    data: {{name: regression, features: [5], targets: 2, rows: 32}}
    batch_size: 8
    steps: 4
{more}
"""
SGD = "    optimizer: {name: sgd, lr: 0.05}\n"
NORM = (
    "norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, norm_type) for g in grads]), norm_type)"
)
ALWAYS = f"""
import torch


def clip_grad_norm(grads, max_norm, norm_type, scope):
    {NORM}
    return {{"grads": [g * (max_norm / (norm + 1e-6)) for g in grads], "total_norm": norm}}
"""
NEVER = f"""
import torch


def clip_grad_norm(grads, max_norm, norm_type, scope):
    {NORM}
    return {{"grads": list(grads), "total_norm": norm}}
"""
COUPLED = (Path(__file__).parent.parent / "training_faults" / "decay_coupled.py").read_text()
ADAMW = "    optimizer: {{name: adamw, lr: 0.01, weight_decay: {decay}}}\n"
CLIP = "    clip: {{name: norm, max_norm: {at}}}\n"
CASES = {
    "clip that always clips": ("clip-ignored", NEVER, SGD + CLIP.format(at=1e-3), True),
    "clip that never clips": ("clip-ignored", NEVER, SGD + CLIP.format(at=1e3), False),
    "always clipped": ("clip-unclamped", ALWAYS, SGD + CLIP.format(at=1e-3), False),
    "scaled up": ("clip-unclamped", ALWAYS, SGD + CLIP.format(at=1e3), True),
    "decay": ("weight-decay-coupling", COUPLED, ADAMW.format(decay=0.1), True),
    "no decay": ("weight-decay-coupling", COUPLED, ADAMW.format(decay=0.0), False),
}
"""By name: the mistake, a file with it, the recipe, and whether the recipe shows it."""


@pytest.mark.parametrize("name", CASES)
def test_the_audit_says_what_a_run_shows(name: str, parity_run: Callable[..., Finished], tmp_path: Path):
    mistake, file, recipe, is_seen = CASES[name]
    (tmp_path / "faulty.py").write_text(file)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(more=recipe))
    plan = load_plan([path])
    said = {one.id for one in audited(plan.cases[0], plan).mistakes if any(one.beyond.values())}
    assert (mistake in said) == is_seen, said
    done = parity_run(path)
    assert (done.code == 1) == is_seen, done.stdout
    assert bool(done.failing()) == is_seen


SHIPPED, STEPS = "dampening", 6
SGD_STEP = """
def sgd(param, grad, lr, momentum, dampening, weight_decay, nesterov, step, momentum_buffer):
    buffer = {first} if step == 1 else momentum * momentum_buffer + (1 - dampening) * grad
    return {{"param": param - lr * {moved}, "momentum_buffer": buffer}}
"""
SEEN = {
    "nesterov": (
        "nesterov-form",
        {"nesterov": True},
        SGD_STEP.format(first="grad", moved="(grad + momentum * buffer)"),
    ),
    "dampened": (
        "dampening-first-step",
        {"dampened_first": True},
        SGD_STEP.format(first="(1 - dampening) * grad", moved="buffer"),
    ),
    "doubled": (
        "scaled",
        {"factor": 2.0, "meaning": "doubled"},
        "def scale_loss(loss, accumulation, ranks):\n    return 2 * loss / accumulation\n",
    ),
    "reversed": (
        "batch-order",
        {"rows": "in reverse within a step"},
        "def batch(step, rows):\n    return rows[::-1].copy()\n",
    ),
}
"""By the backend's name: a mistake that the shipped training shows, and NumPy's functions with it."""
PASSING = (
    ("activation-form", {"in": "relu", "form": "relu6"}),
    ("schedule-off-by-one", {"arguments": {"offset": 1}}),
    ("schedule-ignored", {"arguments": {"ignored": True}}),
    ("logits-clipped", {"in": "loss", "floor": -64.0}),
    ("log-floor", {"in": "loss", "backward": "clipped"}),
)
UNSEEN = """
import torch


def relu(x):
    return x.clamp(0, 6)


def learning_rate(step, lr, name, step_size, gamma):
    return lr if name == "step" else None


def cross_entropy(x, target, **options):
    shifted = (x - x.amax(1, keepdim=True)).clamp(min=-64)
    log = shifted - shifted.exp().sum(1, keepdim=True).log()
    return -log.gather(1, target[:, None]).mean()
"""
"""All mistakes of PASSING in one file of PyTorch: together they show nothing either."""


def shipped(folder: Path) -> Path:
    """The shipped training, with a backend for each mistake that it shows and one for all those that it does not."""
    case = next(c for c in yaml.safe_load((CONFIGS / "training.yaml").read_text())["cases"] if c["id"] == SHIPPED)
    files = {name: ("numpy", text) for name, (*_, text) in SEEN.items()} | {"unseen": ("torch", UNSEEN)}
    backends: list[Any] = ["numpy"]
    for name, (adapter, text) in files.items():
        (folder / f"{name}.py").write_text(text)
        backends.append({"name": name, "adapter": adapter, "ops": f"{name}.py"})
    config = {"version": 1, "backends": backends, "dtypes": ["float32"], "cases": [case]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def test_what_the_audit_says_of_a_shipped_training_is_true(parity_run: Callable[..., Finished], tmp_path: Path):
    path = shipped(tmp_path)
    plan = load_plan([path], Overrides(steps=STEPS))
    said = {(one.id, repr(dict(one.parameters))): one for one in audited(plan.cases[0], plan).mistakes}
    assert all(said[mistake, repr(how)].fails_in == ("float32",) for mistake, how, _ in SEEN.values())
    assert not any(said[mistake, repr(how)].seen_in for mistake, how in PASSING)
    done = parity_run(path, "--steps", str(STEPS))
    assert done.code == 1, done.stderr
    named = {row["backend"]: row["parting"] and row["parting"]["diagnosis"] for row in done.results["trainings"]}
    assert named == {name: SEEN[name][0] if name in SEEN else None for name in named}
    assert {row["actual"] for row in done.failing()} == set(SEEN)
