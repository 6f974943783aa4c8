"""What a kernel keeps from call to call shows in calls on other inputs; healthy kernels pass them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity.config import load_plan
from parity.engine.inputs import other_inputs
from tests.conftest import call, user_config

NORM = "{id: one, op: rms_norm, params: {normalized_shape: [8]}, gradients: false, inputs: {x: {shape: [4, 8]}}}"
RELU = "{id: one, op: relu, gradients: false, inputs: {x: {shape: [4, 8]}}}"
LINEAR = "{id: one, op: linear, params: {out_features: 3}, gradients: false, inputs: {x: {shape: [4, 8]}}}"
CACHED = """
import numpy as np
kept = {{}}

def rms_norm(x, weight, normalized_shape, eps):
    return kept.setdefault(({key}), x / np.sqrt((x * x).mean(-1, keepdims=True) + np.finfo(x.dtype).eps) * weight)

def relu(x):
    return kept.setdefault(({key}), np.maximum(x, 0))
"""


def found(finished) -> list[str]:
    return [row["id"] for row in finished.results["diagnoses"] if row["backend"] == "mine"]


def seen(finished) -> str:
    [row] = [row for row in finished.results["diagnoses"] if row["backend"] == "mine"]
    return str(row["evidence"]["seen"])


@pytest.mark.parametrize(
    "key",
    [
        "x.shape, x.dtype",
        "x.ctypes.data",
        "id(x)",
        "x.flat[0], x.dtype",
        "x[0].tobytes()",
        "x.ravel()[-3:].tobytes()",
        "x.ravel()[:4].tobytes() + x.ravel()[-1:].tobytes()",
    ],
)
@pytest.mark.parametrize("case", [NORM, RELU], ids=["rms_norm", "relu"])
def test_a_cached_result_is_stateful(parity_run, tmp_path, key, case):
    (tmp_path / "ops.py").write_text(CACHED.format(key=key))
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[case]), "--dtype", "float32")
    assert finished.code == 1
    assert found(finished) == ["stateful"]
    assert seen(finished) == "call 2, on other inputs in the memory of the first ones, returned what call 1 returned"
    assert "call 2, on other inputs" in finished.stdout


PARTS = """
import numpy as np
kept, buffers = {}, {}

def linear(x, weight, bias):
    return x @ kept.setdefault(weight.ctypes.data, weight.copy()).T + bias

def relu(x):
    buffer = buffers.setdefault((x.shape, x.dtype), np.empty_like(x))
    return np.maximum(x, 0, out=buffer)
"""


def test_what_is_kept_of_an_earlier_call_is_named(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(PARTS)
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[LINEAR]), "--dtype", "float32")
    assert found(finished) == ["stateful"]
    assert seen(finished).startswith("call 3,")
    assert seen(finished).endswith("returned the result for weight of call 1")


def test_a_result_that_a_later_call_overwrites_is_stateful(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(PARTS)
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[RELU]), "--dtype", "float32")
    assert found(finished) == ["stateful"]
    assert seen(finished) == "a later call changes what the first one returned"


HEALTHY = """
import numpy as np
DIFFERENTIABLE = False

def relu(x):
    if x.flat[17] != {first}:
        raise ValueError("I take only what I know")
    return np.maximum(x, 0)

def linear(x, weight, bias):
    return x @ weight.T + bias

def flatten(x):
    return x.reshape(x.shape)
"""


def test_healthy_kernels_pass_and_may_reject_other_inputs(parity_run, tmp_path):
    values = [[float(i - 9) for i in range(20)], [1.0] * 20]
    (tmp_path / "ops.py").write_text(HEALTHY.format(first=values[0][17]))
    relu = f"{{id: rejecting, op: relu, gradients: false, inputs: {{x: {{values: {values}}}}}}}"
    view = "{id: view, op: flatten, gradients: false, inputs: {x: {shape: [4, 8]}}}"
    finished = parity_run(
        user_config(tmp_path / "ops.py", cases=[LINEAR, relu, view]), "--dtype", "float32", "--dtype", "float64"
    )
    assert finished.code == 0, finished.stdout


WRONG_BEYOND = "def relu(x):\n    return (x * (1 + ((x < {low}) | (x > {high})) * 1e-3)).astype(x.dtype)\n"
UNIFORM = "{id: one, op: relu, gradients: false, inputs: {x: {shape: [3, 5], uniform: {low: 0.5, high: 2.5}}}}"


def test_a_formula_that_only_other_inputs_show_is_a_finding_of_these(parity_run, tmp_path):
    given, others = inputs_of(tmp_path, UNIFORM)
    low, high = given["x"].min(), given["x"].max()
    assert any((other["x"] < low).any() or (other["x"] > high).any() for other in others)
    (tmp_path / "ops.py").write_text(WRONG_BEYOND.format(low=low, high=high))
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[UNIFORM]))
    assert finished.code == 1
    assert {row["message"].partition(",")[2] for row in finished.failing()} == {" on other inputs"}
    assert "stateful" not in found(finished)
    shown = call("inspect", finished.run_dir, "one", "y")
    assert ", on other inputs" in shown.stdout
    assert "No picture" not in (finished.run_dir / "report.html").read_text()


def test_a_run_of_an_earlier_release_says_that_the_call_is_not_stored(parity_run, tmp_path):
    given, _ = inputs_of(tmp_path, UNIFORM)
    (tmp_path / "ops.py").write_text(WRONG_BEYOND.format(low=given["x"].min(), high=given["x"].max()))
    run_dir = parity_run(user_config(tmp_path / "ops.py", cases=[UNIFORM])).run_dir
    path = run_dir / "results.json"
    results = json.loads(path.read_text())
    for row in results["comparisons"]:
        del row["call"]
    path.write_text(json.dumps(results))
    (run_dir / "results.sqlite").unlink()
    reason = "and the tensors of the first call are stored"
    for command in (["repro", run_dir, "one"], ["inspect", run_dir, "one", "y"]):
        refused = call(*command)
        assert refused.returncode == 2
        assert reason in " ".join(refused.stderr.split())


def inputs_of(folder, case: str):
    path = folder / "c.yaml"
    path.write_text(f"version: 1\nbackends: [numpy]\ncases: [{case}]\n")
    [case_plan] = load_plan([path]).cases
    given = {plan.name: plan.sample(0, case_plan.id, *case_plan.dtypes) for plan in case_plan.tensors}
    return given, other_inputs(case_plan, given, 0)


def test_other_inputs_change_a_part_and_then_the_rest(tmp_path):
    given, (part, rest) = inputs_of(
        tmp_path, "{id: one, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 8]}}}"
    )
    changed = {name: part[name] != given[name] for name in given}
    assert np.flatnonzero(changed.pop("x")).tolist() == list(range(12, 20))
    assert not any(mask.any() for mask in changed.values())
    assert np.array_equal(rest["x"], part["x"])
    assert all((rest[name] != given[name]).all() for name in changed)


def test_other_inputs_of_one_tensor_change_everywhere(tmp_path):
    given, (part, rest) = inputs_of(tmp_path, RELU)
    assert (rest["x"] != given["x"]).all()
    assert (rest["x"] == part["x"]).sum() == 8


def test_probabilities_stay_probabilities_and_literal_integers_stay(tmp_path):
    case = "{id: one, op: kl_div, inputs: {x: {shape: [4, 5]}, target: {probabilities: {}, shape: [4, 5]}}}"
    for inputs in inputs_of(tmp_path, case)[1]:
        assert (inputs["target"].sum(-1) == 1).all()
    case = "{id: one, op: embedding, inputs: {x: {values: [2, 0, 1]}, weight: {shape: [3, 4]}}}"
    given, others = inputs_of(tmp_path, case)
    assert all(np.array_equal(inputs["x"], given["x"]) for inputs in others)


LOST = """
import torch
calls = 0

def relu(x):
    global calls
    calls += 1
    y = torch.relu(x)
    return y if calls == 1 else y.detach()
"""


@pytest.mark.frameworks
def test_a_gradient_that_is_lost_after_the_first_call_is_stateful(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(LOST)
    cases = [f"{{id: {n}, op: relu, inputs: {{x: {{shape: [4, {n + 4}]}}}}}}" for n in (1, 2)]
    finished = parity_run(user_config(tmp_path / "ops.py", cases=cases, adapter="torch"))
    assert finished.code == 1
    assert set(found(finished)) == {"stateful"}
    assert "1 finding in 4 of 8 tensors" in finished.stdout
    assert "1. mine: mine has no grad.x in call 2, on other inputs (stateful)\n" in finished.stdout
