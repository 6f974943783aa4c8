"""What the audit of a training says of its data is what a run with a planted fault shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parity.config import load_plan
from parity.training.run import audited
from tests.conftest import Finished

pytestmark = [pytest.mark.process, pytest.mark.frameworks]

CONFIG = """
version: 1
backends: [torch, {{name: faulty, adapter: torch, ops: ./faulty.py}}]
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
