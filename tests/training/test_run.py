"""Whole runs of trainings: who fails is told, an interrupt leaves nothing running, progress is shown."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from parity.config import Overrides, load_plan
from parity.engine import EngineOptions, ModelFinished, TrainingAdvanced, process
from parity.reporting.console.progress import BarReporter, reporter_for
from parity.reporting.results.resume import finished
from parity.run import run
from parity.training.run import ensemble_of
from tests.conftest import FAKES, call, ended, started, waited_for
from tests.engine.test_resume import Stop
from tests.training.test_lockstep import plan

CONFIG = """
version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: ops.py}]
baseline: {baseline}
dtypes: [float32]
cases:
  - id: tiny
    kind: train
    model: [{linear: {out_features: 3}}]
    data: {name: classification, features: [5], classes: 3, rows: 32}
    optimizer: {name: sgd, lr: 0.1}
    ensemble: {members: 2, of: baseline}
    batch_size: 8
    steps: 12
"""
FAILS = """
def batch(step, rows):
    if step == 6:
        raise RuntimeError("no more data")
    return rows
"""
WAITS = """
import time
from pathlib import Path

LAST_STEPS = {"interrupted": 4, "resumed": 7}


def batch(step, rows):
    for name, last in LAST_STEPS.items():
        while step > last and not Path(__file__).with_name(name).exists():
            time.sleep(0.01)
    return rows
"""
"""Takes its steps up to 4, to 7 and to the end, once files of these names are there; 7 is the end of a chunk."""


def write(folder: Path, ops: str, baseline: str = "numpy") -> Path:
    (folder / "ops.py").write_text(ops)
    (folder / "config.yaml").write_text(CONFIG.replace("{baseline}", baseline))
    return folder / "config.yaml"


@pytest.mark.parametrize("baseline", ["numpy", "mine"])
def test_who_fails_is_told_and_what_it_did_is_kept(tmp_path, parity_run, baseline):
    done = parity_run(write(tmp_path, FAILS, baseline))
    assert done.code == 3, done.stderr
    assert done.outcomes("mine") == {("tiny", "float32"): "error"}
    assert "step 6: ops.py:4: RuntimeError: no more data" in done.message("mine")
    assert "tiny float32: mine drops out: step 6: " in done.stderr
    assert done.outcomes("numpy") == {("tiny", "float32"): "ok"}
    rows = {row["backend"]: row["steps"] for row in done.results["trainings"]}
    assert rows == {"numpy": 12, "mine": 5}
    curves = done.select(actual="mine" if baseline == "numpy" else "numpy", expected=baseline)
    assert {row["verdict"] for row in curves} == {"not-compared"}
    assert "stage.update" in {row["tensor"] for row in done.select(actual="numpy", expected="oracle")}


CLIPPED = """
version: 1
backends: [numpy, {name: sequence, adapter: numpy, ops: ops.py}]
dtypes: [float32]
cases:
  - id: clipped
    kind: train
    model: [{linear: {out_features: 2000}}, {activation: tanh}, {linear: {out_features: 10}}]
    data: {name: classification, features: [300], classes: 10, rows: 32}
    optimizer: adam
    clip: {name: norm, max_norm: 0.1}
    ensemble: {members: 2, of: baseline}
    batch_size: 8
    steps: 4
"""
IN_SEQUENCE = """
import numpy as np


def clip_grad_norm(grads, max_norm, **options):
    squares = np.concatenate([g.ravel() for g in grads]) ** 2
    norm = np.sqrt(np.add.accumulate(squares, dtype=np.float32)[-1]) * np.float32(FACTOR)
    return {"grads": [g * min(np.float32(1), np.float32(max_norm) / norm) for g in grads], "total_norm": norm}
"""


@pytest.mark.parametrize(("factor", "stage"), [(1, None), (1.01, "clip")])
def test_a_norm_that_is_summed_in_sequence_is_rounding(tmp_path, parity_run, factor, stage):
    (tmp_path / "ops.py").write_text(IN_SEQUENCE.replace("FACTOR", str(factor)))
    (tmp_path / "config.yaml").write_text(CLIPPED)
    done = parity_run(tmp_path / "config.yaml")
    assert done.code == (0 if stage is None else 1), done.stdout
    [parting] = [row["parting"] for row in done.results["trainings"] if row["backend"] == "sequence"]
    assert (parting and parting["stage"]) == stage


def test_without_an_ensemble_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "BOOTSTRAP", FAKES / "trainer.py")
    results = run(plan("unmoved", "unmoved"), EngineOptions(), tmp_path, Stop())
    assert results.summary.exit_code != 0
    curves = [row for row in results.comparisons if row.expected == "b0"]
    assert {row.verdict for row in curves} == {"not-compared"}
    said = "every perturbed run of b0 failed; ~1: it cannot be moved"
    assert [(row.outcome, row.message) for row in results.outcomes] == [("error", said)] * 2


def test_a_backend_that_refuses_is_unsupported(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "BOOTSTRAP", FAKES / "trainer.py")
    results = run(plan("eager", "unsupported"), EngineOptions(), tmp_path, Stop())
    assert {row.backend: row.outcome for row in results.outcomes} == {"b0": "ok", "b1": "unsupported"}


@pytest.mark.parametrize(
    ("asked", "steps", "of"),
    [("auto", 10, "oracle"), ("auto", 10**8, "b0"), ("baseline", 10, "b0"), ("oracle", 10**8, "oracle")],
)
def test_the_ensemble_is_of_the_oracle_where_it_is_quick(asked, steps, of):
    found = plan("eager")
    case = replace(found.cases[0], params=replace(found.cases[0].params, ensemble=asked, steps=steps))
    assert ensemble_of(case, "float32", found, 2) == of
    assert ensemble_of(case, "float32", replace(found, baseline="oracle"), 2) == "oracle"


def test_the_oracle_can_be_the_baseline(tmp_path, parity_run):
    config = write(tmp_path, "def batch(step, rows):\n    return rows\n", "oracle")
    config.write_text(config.read_text().replace("of: baseline", "of: oracle"))
    done = parity_run(config)
    assert done.code == 0, done.stdout
    assert {row["backend"]: row["expected"] for row in done.results["trainings"]} == dict.fromkeys(
        ("numpy", "mine", "oracle"), "oracle"
    )


def rows(folder: Path) -> dict[str, list[str]]:
    """What a run found, without times and its folder."""
    results = json.loads((folder / "results.json").read_text())
    kept = {kind: results[kind] for kind in ("outcomes", "comparisons", "diagnoses", "trainings")}
    return {kind: sorted(json.dumps({**row, "seconds": 0}) for row in of_kind) for kind, of_kind in kept.items()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_run(tmp_path, number):
    config, out = write(tmp_path, WAITS), tmp_path / "run"
    with started("run", config, "--out", out, "--timeout", "3600", cwd=tmp_path) as running:
        waited_for(lambda: running.poll() is not None or [*out.glob("training/*/float32/checkpoint/*/record-1")])
        workers = psutil.Process(running.pid).children()
        running.send_signal(number)
        (tmp_path / "interrupted").touch()
        shown, said = running.communicate()
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert "INTERRUPTED" in shown
    results = json.loads((out / "results.json").read_text())
    taken = {row["backend"]: row["steps"] for row in results["trainings"]}
    assert set(taken) == {"numpy", "mine"}
    assert all(1 <= n < 12 for n in taken.values())
    assert results["outcomes"] == []
    assert results["summary"]["cells"] == {"not-run": 2}
    assert workers
    assert all(ended(worker) for worker in workers)
    assert not finished(load_plan((config,), Overrides()), EngineOptions(), out).cells
    (tmp_path / "resumed").touch()
    assert call("run", config, "--out", out, "--timeout", "3600", "--resume", "-q").returncode == 0
    assert {row["steps"] for row in json.loads((out / "results.json").read_text())["trainings"]} == {12}
    assert call("run", config, "--out", tmp_path / "fresh", "--timeout", "3600", "-q").returncode == 0
    assert rows(out) == rows(tmp_path / "fresh")


def advanced(step: int, **parted: int) -> TrainingAdvanced:
    return TrainingAdvanced("[bold]tiny", "float32", step, 12, 3.21456, parted)


def test_a_log_has_a_line_for_who_diverges():
    shown = io.StringIO()
    with reporter_for(Console(file=shown, width=200), 0, 1, quiet=False) as reporter:
        for event in (advanced(1), advanced(2), advanced(3, paddle=3), advanced(4, paddle=3), advanced(12, paddle=3)):
            reporter.on_event(event, ())
        reporter.on_event(ModelFinished("[bold]tiny", "float32"), ())
    assert shown.getvalue().splitlines() == [
        "[bold]tiny float32: step 3 of 12, loss 3.215; paddle diverges at step 3",
    ]


def test_a_terminal_has_a_bar_for_the_training_at_hand():
    shown = io.StringIO()
    console = Console(file=shown, width=200, force_terminal=True, color_system=None)
    with BarReporter(console, 0, 1) as reporter:
        reporter.on_event(advanced(3, paddle=3), ())
        reporter._progress.refresh()
        reporter.on_event(ModelFinished("[bold]tiny", "float32"), ())
    assert "[bold]tiny float32: step 3 of 12, loss 3.215; paddle diverges at step 3" in shown.getvalue()
    assert "0/1" in shown.getvalue()
    assert "1/1" in shown.getvalue()
