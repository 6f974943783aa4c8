"""Checks that the trainers of all frameworks have in common: every step against the oracle's, from the same state."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.config.plan import BackendSpec
from parity.engine.starting import resolve
from parity.environments import worker_environment
from parity.training.schedules import SCHEDULES
from parity.training.spec import Clip, Group, Schedule, Training, message
from tests.conftest import ROOT
from tests.training.examples import preset
from tests.training.requests import TrainingClient, drawn
from tests.training.whole_steps import NO_CHANGES, StepChanges, stepped

Arrays = dict[str, np.ndarray]

SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False}
ADAM = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.1}
RMSPROP = {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.1, "momentum": 0.0, "centered": False}
ADAGRAD = {"lr": 0.05, "eps": 1e-4, "weight_decay": 0.1, "lr_decay": 0.0}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", SGD),
    "sgd-momentum": ("sgd", {**SGD, "momentum": 0.9}),
    "sgd-nesterov": ("sgd", {**SGD, "momentum": 0.9, "nesterov": True}),
    "adam": ("adam", ADAM),
    "adamw": ("adamw", ADAM),
    "lamb": ("lamb", ADAM),
    "lamb-plain": ("lamb", {**ADAM, "weight_decay": 0.0}),
    "rmsprop": ("rmsprop", RMSPROP),
    "rmsprop-centered": ("rmsprop", {**RMSPROP, "centered": True}),
    "adagrad": ("adagrad", ADAGRAD),
}

SCHEDULED = [
    Schedule("linear", {"total_iters": 4, "start_factor": 0.0}),
    Schedule("linear", {"total_iters": 4, "start_factor": 0.25}),
    Schedule("polynomial", {"total_iters": 6, "power": 2.0, "end_lr": 0.0}),
    Schedule("cosine", {"T_max": 5, "eta_min": 0.0}),
    Schedule("step", {"step_size": 3, "gamma": 0.5}),
    Schedule(
        "warmup_polynomial", {"warmup_steps": 3, "total_iters": 7, "start_factor": 0.0, "power": 1.0, "end_lr": 0.0}
    ),
    Schedule(
        "warmup_polynomial", {"warmup_steps": 0, "total_iters": 7, "start_factor": 0.5, "power": 1.0, "end_lr": 0.0}
    ),
]

CLIPS = [
    *(Clip("norm", 0.05, norm_type, scope) for scope in ("global", "group", "tensor") for norm_type in (1.0, 2.0)),
    Clip("norm", 0.05, float("inf"), "global"),
    Clip("norm", 100.0),
    Clip("value", clip_value=0.02),
]


def in_two_groups(options: Mapping[str, Any], other: Mapping[str, Any], **more: Any) -> Training:
    """An MLP whose biases have options of their own."""
    case = preset("mlp", options=dict(options), **more)
    names = [p.name for p in case.parameters]
    weights = tuple(name for name in names if name.endswith("weight"))
    biases = tuple(name for name in names if name.endswith("bias"))
    return replace(case, groups=(Group(weights, dict(options)), Group(biases, {**options, **other})))


def errors(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest difference of each kind of tensor, in units of the largest value of its kind."""
    assert set(wanted) <= set(got), sorted(set(wanted) - set(got))
    off: dict[str, float] = {}
    size: dict[str, float] = {}
    for name, value in wanted.items():
        kind = ".".join(name.split(".")[: 2 if name.startswith("state.") else 1])
        assert got[name].shape == value.shape, name
        off[kind] = max(off.get(kind, 0.0), float(np.abs(got[name] - value).max()))
        size[kind] = max(size.get(kind, 0.0), float(np.abs(value).max()))
    return {kind: off[kind] / (size[kind] or 1.0) for kind in off}


def worst_errors(
    client: TrainingClient, case: Training, dtype: str = "float64", changes: StepChanges = NO_CHANGES
) -> dict[str, float]:
    """The errors of all steps of a training, each against the oracle's step from the same state and on the same rows."""
    client.train(case, dtype)
    setting, worst = client.drawn.setting, {}
    for step in range(1, case.steps + 1):
        client.steps(1)
        record = client.record(step)
        before = {name.removeprefix("before."): v for name, v in record.items() if name.startswith("before.")}
        parts = np.split(setting.order[step - 1], case.accumulation)
        batches = [(setting.x[rows], setting.target[rows]) for rows in parts]
        wanted = stepped(case, step, before, batches, dtype=np.longdouble, changes=changes)
        wanted.pop("norm")
        for kind, error in errors(record, wanted).items():
            worst[kind] = max(worst.get(kind, 0.0), error)
    return worst


def assert_within(found: Mapping[str, float], limit: float, **other: float) -> None:
    """Every error is below `limit`, or below the one that is named for its kind."""
    off = {kind: error for kind, error in found.items() if not error < other.get(kind.replace(".", "_"), limit)}
    assert not off, off


def rates_of(client: TrainingClient, case: Training) -> tuple[np.ndarray, np.ndarray]:
    """The rates of all steps and groups, and those of the formula."""
    client.train(case)
    kind = SCHEDULES[case.schedule.name]
    options = kind.options(**case.schedule.options)
    wanted = [[kind.rate(float(g.options["lr"]), t, options) for g in case.groups] for t in range(case.steps)]
    return client.steps(case.steps)["lr"], np.array(wanted)


def answer_to(client: TrainingClient, case: Training, dtype: str = "float32") -> dict[str, Any]:
    """What a worker says to a training that it may refuse."""
    request = {"spec": message(case), "dtype": dtype, "perturbed": 0, "memory": 1 << 20}
    return client.ask("train", **request, **drawn(case, client.folder).message)[0]


def assert_resumes(client: TrainingClient, case: Training, dtype: str) -> None:
    """From the state in the middle it goes on to the same bits."""
    client.train(case, dtype)
    half = case.steps // 2
    client.steps(half)
    state = client.state()
    curves, end = client.steps(case.steps - half), client.state()
    assert any(not np.array_equal(end[name], state[name]) for name in end)
    client.restore(half, state)
    again, second = client.steps(case.steps - half), client.state()
    assert set(end) == set(second)
    for name, value in {**curves, **end}.items():
        np.testing.assert_array_equal({**again, **second}[name], value, err_msg=name)


def run_by_hand(
    client: TrainingClient, adapter: str, script: str, case: Training, folder: Path
) -> tuple[np.ndarray, Arrays]:
    """What the loop of a user's own file makes of what the client's training was drawn with: losses and parameters."""
    names = {p.name: client.drawn.message["tensors"][p.name] for p in case.parameters}
    (folder / "setting.json").write_text(json.dumps({**client.drawn.message, "tensors": list(names.values())}))
    interpreter = resolve(BackendSpec(adapter, adapter), provision=False, announce=lambda _: None)
    path = ROOT / "tests" / "hand_written" / script
    # OneFlow would write a folder `log` into the working directory.
    environment = {**worker_environment(interpreter, 1), "GLOG_logtostderr": "1"}
    done = subprocess.run([interpreter.python, path, folder], capture_output=True, text=True, env=environment)
    assert (folder / "losses.npy").exists(), done.stderr
    return np.load(folder / "losses.npy"), {n: np.load(folder / f"{i}.npy") for i, n in enumerate(names)}
