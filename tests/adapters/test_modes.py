"""Modes of execution: each computes what its framework computes eagerly, or says why it cannot."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.adapters import ADAPTERS, MODES, class_path, load_object
from parity.adapters.keras.adapter import KerasOps
from parity.config.backends import ADAPTERS as TRAITS
from parity.engine.process import COOKIE
from parity.repro.source import calls, has_mode
from parity.training.spec import Clip, Group, Schedule, Training, message
from tests.conftest import CONFIGS, Finished, call, processes_with, waited_for
from tests.exhaustive import one_of_each
from tests.markers import ONEFLOW_GRAPH
from tests.training.examples import preset, training
from tests.training.requests import ClientOf, TrainingClient, client, clients, drawn

SGD = {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False}
ADAMW = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
RMSPROP = {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": True}
LAMB = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
ADAGRAD = {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.0, "lr_decay": 0.0}
MLP = [{"linear": {"out_features": 8}}, {"activation": "tanh"}, {"linear": {"out_features": 4}}]
BLOBS = {"name": "classification", "features": (6,), "classes": 4}
WARM = Schedule(
    "warmup_polynomial", {"warmup_steps": 2, "total_iters": 9, "start_factor": 0.1, "power": 1.0, "end_lr": 0.0}
)
STEPS = 4

Run = Callable[..., Finished]


def mlp(**more: Any) -> Training:
    return training(MLP, BLOBS, **{"options": SGD, "steps": STEPS + 2, **more})


def test_every_mode_of_the_config_has_its_class() -> None:
    named = {f"{adapter}:{mode}" for adapter, traits in TRAITS.items() for mode in traits.modes if mode != "eager"}
    assert named == set(MODES)
    for name in named:
        adapter, _, mode = name.partition(":")
        cls, eager = map(load_object, (class_path(adapter, mode), ADAPTERS[adapter]))
        assert issubclass(cls, KerasOps if adapter == "keras" else eager)


OPS = """
version: 1
dtypes: [float32, float64]
backends: [{eager}, {modes}]
cases:
  - {{id: linear, op: linear, params: {{in_features: 64, out_features: 32}}, inputs: {{x: {{shape: [8, 64]}}}}}}
  - {{id: group-norm, op: group_norm, params: {{num_groups: 4}}, inputs: {{x: {{shape: [4, 8, 6, 5]}}, bias: null}}}}
  - {{id: bare, op: layer_norm, gradients: false, params: {{normalized_shape: [64]}}, inputs: {{x: {{shape: [8, 64]}}}}}}
  - {{id: sgd, op: sgd, params: {{lr: 0.1}}, inputs: {{param: {{shape: [5, 6]}}}}}}
"""
"""With the shapes of `configs/modes.yaml`, so that PyTorch compiles each kernel once for both. Other norms are there."""
NORMS = {"group-norm", "bare"}
LACKING = {
    "torch:compile": {"sgd": "unsupported type"},
    "torch:script": {"sgd": "traces a function of tensors, and sgd is a step"},
    "torch:channels_last": dict.fromkeys(("linear", "bare", "sgd"), "no input has as many"),
    "torch:amp-bf16": dict.fromkeys((*NORMS, "sgd"), "computes nothing of this in bfloat16"),
    "torch:tf32": dict.fromkeys((*NORMS, "linear", "sgd"), "a format of CUDA devices"),
    "torch:triton-interpret": {},
    "paddle:static": {"sgd": "traces a function of tensors, and sgd is a step"},
    "paddle:amp-bf16": dict.fromkeys((*NORMS, "linear", "sgd"), "has no effect on cpu"),
    "oneflow:graph": {"sgd": "traces a function of tensors, and sgd is a step"},
    "oneflow:amp-bf16": dict.fromkeys((*NORMS, "linear", "sgd"), "has no effect on cpu"),
}
"""What a mode cannot do, and what it says of that."""


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "eager",
    [pytest.param("torch", marks=pytest.mark.exhaustive), "paddle", pytest.param("oneflow", marks=ONEFLOW_GRAPH)],
)
def test_ops_in_modes_are_eager_ops_or_say_why_not(parity_run: Run, eager: str) -> None:
    modes = [name for name in MODES if name.startswith(eager)]
    finished = parity_run(OPS.format(eager=eager, modes=", ".join(modes)), "--timeout", "600")
    for mode, dtype in product(modes, ("float32", "float64")):
        lacking = {**LACKING[mode]}
        if (mode, dtype) == ("torch:amp-bf16", "float64"):
            lacking["linear"] = lacking["sgd"]
        outcomes = finished.results["outcomes"]
        rows = {row["case"]: row for row in outcomes if (row["backend"], row["dtype"]) == (mode, dtype)}
        assert {case for case, row in rows.items() if row["outcome"] != "ok"} == set(lacking), rows
        for case, reason in lacking.items():
            assert rows[case]["outcome"] == "unsupported"
            assert reason in rows[case]["message"]
        off = {row["case"] for row in finished.failing(actual=mode, expected=eager, dtype=dtype)}
        assert off == ({"linear"} if (mode, dtype) == ("torch:amp-bf16", "float32") else set()), finished.stdout


@ONEFLOW_GRAPH
@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_the_shipped_config_shows_where_modes_differ(parity_run: Run) -> None:
    finished = parity_run(CONFIGS / "modes.yaml")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert {row["state"] for row in finished.results["known"]} == {"matched"}
    assert "Warning" not in finished.stderr
    assert {o["outcome"] for o in finished.results["outcomes"]} <= {"ok", "unsupported"}
    assert all(b["version"] for b in finished.results["backends"])


GRAPH = {
    "sgd": mlp(clip=Clip("norm", 0.3), schedule=WARM),
    "accumulated": mlp(optimizer="adamw", options=ADAMW, accumulation=2, schedule=WARM),
    "lamb": mlp(optimizer="lamb", options=LAMB, clip=Clip("norm", 0.3, scope="tensor")),
    "rmsprop": mlp(optimizer="rmsprop", options=RMSPROP, schedule=Schedule("cosine", {"T_max": 9, "eta_min": 0.0})),
    "adagrad": mlp(optimizer="adagrad", options=ADAGRAD, clip=Clip("norm", 0.3, scope="group")),
    "cnn": preset("cnn", options=SGD, steps=STEPS + 2),
    "bert": preset("bert", options=SGD, steps=STEPS + 2),
}
MODEL = {name: GRAPH[name] for name in ("accumulated", "cnn", "bert")}
TRAINED = [
    *(pytest.param("oneflow", "graph", name, marks=ONEFLOW_GRAPH) for name in sorted(GRAPH)),
    *(("paddle", "static", name) for name in MODEL),
    *(pytest.param("torch", "compile", name, marks=pytest.mark.slow) for name in ("accumulated", "cnn")),
    ("torch", "channels_last", "cnn"),
]


@pytest.fixture(scope="module")
def client_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientOf]:
    """The worker of an adapter in a mode, started once for all tests."""
    with clients(lambda: tmp_path_factory.mktemp("modes")) as of:
        yield of


def both(
    client_of: ClientOf, adapter: str, mode: str, case: Training
) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Curves, the last record, and curves after going on from a stored state: eager first, then the mode."""
    found = []
    for d in (client_of(adapter, "eager"), client_of(adapter, mode)):
        d.train(case)
        curves, record = d.steps(STEPS), d.record(STEPS)
        state = d.state()
        after = d.steps(2)
        d.restore(STEPS, state)
        again = d.steps(2)
        np.testing.assert_allclose(again["loss"], after["loss"], rtol=1e-5)
        np.testing.assert_allclose(again["norms"], after["norms"], rtol=1e-5)
        found.append((curves, record, again))
    return found


@pytest.mark.frameworks
@pytest.mark.parametrize(("adapter", "mode", "name"), one_of_each(lambda adapter, mode, _: (adapter, mode), TRAINED))
def test_a_training_in_a_mode_is_the_eager_one(client_of: ClientOf, adapter: str, mode: str, name: str) -> None:
    eager, other = both(client_of, adapter, mode, GRAPH[name])
    for mine, theirs in ((eager[0], other[0]), (eager[2], other[2])):
        np.testing.assert_array_equal(theirs["rows"], mine["rows"])
        np.testing.assert_allclose(theirs["lr"], mine["lr"], rtol=1e-6)
        np.testing.assert_allclose(theirs["loss"], mine["loss"], rtol=1e-5)
        np.testing.assert_allclose(theirs["grad_norm"], mine["grad_norm"], rtol=1e-4)
    missing = {part.partition(".")[0] for part in set(eager[1]) - set(other[1])}
    assert missing == ({"clipped", "norm"} if mode == "graph" and GRAPH[name].clip else set())
    for part, array in other[1].items():
        np.testing.assert_allclose(array, eager[1][part], rtol=1e-3, atol=1e-5, err_msg=part)


@pytest.mark.frameworks
def test_autocast_is_felt_in_a_training(client_of: ClientOf) -> None:
    eager, other = both(client_of, "torch", "amp-bf16", mlp())
    difference = np.abs(other[1]["output"] - eager[1]["output"]).max() / np.abs(eager[1]["output"]).max()
    assert 2**-12 < difference < 2**-5
    assert other[1]["output"].dtype == np.float32


def refused(d: TrainingClient, case: Training, dtype: str = "float32") -> tuple[str, str]:
    """The outcome of the first step, and the message."""
    given = drawn(case, d.folder, (dtype,)).message
    reply, _ = d.ask("train", spec=message(case), dtype=dtype, perturbed=0, memory=1 << 27, **given)
    if reply["outcome"] == "ok":
        reply, _ = d.ask("steps", count=1)
    return reply["outcome"], reply["message"]


NAMES = tuple(p.name for p in mlp().parameters)
UNSUPPORTED = [
    ("paddle", "amp-bf16", mlp(), "float32", "has no effect on cpu"),
    ("oneflow", "amp-bf16", mlp(), "float32", "has no effect on cpu"),
    ("torch", "tf32", mlp(), "float32", "a format of CUDA devices"),
    ("torch", "channels_last", mlp(), "float32", "no parameter has four"),
    ("torch", "amp-bf16", mlp(), "float64", "computes nothing of this in bfloat16"),
    ("oneflow", "graph", mlp(clip=Clip("value", clip_value=0.1)), "float32", "clips by norm only"),
    (
        *("oneflow", "graph"),
        replace(mlp(clip=Clip("norm", 0.1)), groups=(Group(NAMES[:2], SGD), Group(NAMES[2:], SGD))),
        *("float32", "clips every group of parameters by its own norm"),
    ),
    ("oneflow", "graph", mlp(), "float64", "no step of an oneflow.nn.Graph trains in float64"),
]


@ONEFLOW_GRAPH
@pytest.mark.frameworks
@pytest.mark.parametrize(("adapter", "mode", "case", "dtype", "reason"), UNSUPPORTED)
def test_a_mode_that_cannot_train_this_says_so(
    client_of: ClientOf, adapter: str, mode: str, case: Training, dtype: str, reason: str
) -> None:
    outcome, text = refused(client_of(adapter, mode), case, dtype)
    assert outcome == "unsupported", text
    assert reason in text


@pytest.mark.frameworks
def test_nothing_can_take_the_place_of_what_a_graph_does(tmp_path: Path) -> None:
    with client(tmp_path, "oneflow", "def zero_grad(parameters):\n    pass\n", mode="graph") as d:
        outcome, text = refused(d, mlp())
    assert (outcome, "OneFlow's own zero_grad" in text) == ("unsupported", True)


FAILING = """
def layer_norm(x, normalized_shape, weight, bias, eps):
    import oneflow
    if x.shape[0] == 3:
        raise ValueError("not three")
    return oneflow.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
"""


@ONEFLOW_GRAPH
@pytest.mark.frameworks
def test_a_graph_that_cannot_be_built_costs_one_cell(parity_run: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    case = "{{id: n{n}, op: layer_norm, params: {{normalized_shape: [4]}}, inputs: {{x: {{shape: [{n}, 4]}}}}}}"
    cases = ", ".join(case.format(n=n) for n in (2, 3, 4))
    ops = tmp_path / "failing.py"
    backend = f"{{name: mine, adapter: oneflow, mode: graph, ops: {ops}}}"
    finished = parity_run(f"version: 1\nbackends: [{backend}]\nbaseline: oracle\ndtypes: [float32]\ncases: [{cases}]\n")
    rows = {row["case"]: (row["outcome"], row["message"]) for row in finished.results["outcomes"]}
    assert {case: outcome for case, (outcome, _) in rows.items()} == {"n2": "ok", "n3": "error", "n4": "ok"}
    assert "failing.py:5: ValueError: not three" in rows["n3"][1]


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.usefixtures("started_workers")
def test_a_compiler_leaves_no_process_behind(tmp_path: Path) -> None:
    with clients(lambda: tmp_path) as of:
        d = of("torch", "compile")
        d.train(GRAPH["accumulated"])
        d.steps(1)
        waited_for(lambda: processes_with(COOKIE, d.worker.process.cookie) == [d.worker.process.pid])


@pytest.mark.parametrize("name", MODES)
def test_every_mode_becomes_functions_of_a_script(name: str) -> None:
    wanted = ["leaf", "to_numpy", "gradients", "linear", *(["in_mode"] if has_mode(name) else [])]
    mode = name.partition(":")[2]
    found = calls(name, wanted, {"device": "cpu", "threads": 1, "mode": mode, "ranks": 1})
    text = "\n".join([*found.imports, *found.setup, *found.definitions.values()])
    names = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    assert "self" not in names
    assert has_mode(name) == (name not in ("torch:channels_last", "torch:tf32", "torch:triton-interpret"))


@pytest.mark.frameworks
def test_a_script_shows_what_a_mode_does(parity_run: Run) -> None:
    case = "{id: one, op: linear, params: {in_features: 9, out_features: 4}, inputs: {x: {shape: [7, 9]}}}"
    finished = parity_run(f"version: 1\nbackends: [torch, 'torch:amp-bf16']\ndtypes: [float32]\ncases: [{case}]\n")
    assert finished.code == 1, finished.stdout
    out = finished.run_dir / "repro"
    assert call("repro", finished.run_dir, "one", "--out", out).returncode == 0
    [script] = out.glob("*.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "the difference is there" in done.stdout
    assert "torch.autocast" in script.read_text()
