"""The user's own ops in real frameworks: what is red, what is green, and which line an error names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import run_in, user_config

USER_OPS = Path(__file__).parents[1] / "user_ops"
NORM = "{id: ln, op: layer_norm, params: {normalized_shape: [11]}, inputs: {x: {shape: [5, 11]}}}"
pytestmark = pytest.mark.frameworks


def torch_config(name: str, *cases: str, backends=("torch",)) -> str:
    return user_config(USER_OPS / f"{name}.py", cases=cases or (NORM,), adapter="torch", backends=backends)


def red(finished) -> set[str]:
    return {row["tensor"] for row in finished.failing()}


def test_swapped_gradients_turn_exactly_two_tensors_red(parity_run):
    finished = parity_run(torch_config("swapped"))
    assert finished.code == 1
    assert red(finished) == {"grad.weight", "grad.bias"}
    assert {side for row in finished.failing() for side in row["culprit"]} == {"mine"}
    assert "in 4 of 8 tensors: mine" in finished.stdout


def test_every_op_can_be_replaced(parity_run):
    cases = (
        NORM,
        "{id: plain, op: layer_norm, params: {normalized_shape: [11]}, inputs: {x: {shape: [5, 11]}, weight: null, bias: null}}",
        "{op: linear, params: {in_features: 7, out_features: 3}, inputs: {x: {shape: [4, 7]}}}",
        "{op: batch_norm, inputs: {x: {shape: [6, 3]}}}",
        "{op: clip_grad_norm, params: {max_norm: 1, norm_type: 1}, inputs: {grads: [{shape: [3]}, {shape: [2, 2]}]}}",
        "{op: clip_grad_value, params: {clip_value: 0.3}, inputs: {grads: [{shape: [3]}, {shape: [2, 2]}]}}",
        "{op: multi_head_attention, params: {num_heads: 2}, inputs: {x: {shape: [2, 3, 4]}, q_proj.bias: null}}",
    )
    finished = parity_run(torch_config("right", *cases))
    assert finished.code == 0, finished.stdout
    assert set(finished.outcomes("mine").values()) == {"ok"}
    tensors = {row["tensor"] for row in finished.select(actual="mine")}
    assert {"y", "grad.weight", "running_var", "grads.0", "grads.1", "total_norm"} <= tensors


def test_a_param_that_an_op_does_not_take_must_be_at_its_default(parity_run):
    case = "{op: clip_grad_norm, params: {max_norm: 1, scope: per_tensor}, inputs: {grads: [{shape: [3]}]}}"
    finished = parity_run(torch_config("right", case))
    assert finished.code == 3
    assert "right.py:22: clip_grad_norm must take scope by keyword" in finished.message("mine")


def test_a_broken_graph_is_a_missing_gradient(parity_run):
    finished = parity_run(torch_config("detached"))
    assert finished.code == 1
    assert red(finished) == {"grad.x", "grad.weight", "grad.bias"}
    assert "mine has no grad.x" in {row["message"] for row in finished.failing()}


def test_a_custom_gradient_in_paddle(parity_run):
    case = "{op: linear, params: {in_features: 7, out_features: 3}, inputs: {x: {shape: [4, 7]}}}"
    config = user_config(USER_OPS / "paddle_double.py", cases=[case], adapter="paddle", backends=("paddle",))
    finished = parity_run(config)
    assert finished.code == 1
    assert red(finished) == {"grad.weight"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def layer_norm(:\n", "ops.py:1: SyntaxError"),
        ("\nimport no_such_module\n", "ops.py:2: ModuleNotFoundError"),
        (
            "def layer_norm(x, weight, bias, normalized_shape, eps):\n    return helper(x)\ndef helper(x):\n    return x.nope\n",
            "ops.py:4: AttributeError",
        ),
        (
            "def layer_norm(x, normalized_shape, eps):\n    return x\n",
            "ops.py:1: layer_norm must take weight, bias by keyword",
        ),
        ("import sys\nsys.exit(3)\n", "ops.py:2: SystemExit: 3"),
    ],
)
def test_errors_name_the_line(parity_run, tmp_path, text, said):
    path = tmp_path / "ops.py"
    path.write_text(text)
    finished = parity_run(user_config(path))
    assert finished.code == 3
    assert said in finished.message("mine")
    assert set(finished.outcomes("mine").values()) == {"error"}
    assert set(finished.outcomes("numpy").values()) == {"ok"}


def test_a_file_named_like_another_module_is_told_to_have_another_name(parity_run, tmp_path):
    (tmp_path / "colorsys.py").write_text("ONE = 1\n")
    (tmp_path / "ops.py").write_text("import colorsys\ndef tanh(x): return x * colorsys.ONE\n")
    finished = parity_run(
        user_config(tmp_path / "ops.py", cases=["{op: tanh, inputs: {x: {shape: [3]}}, gradients: false}"])
    )
    assert "colorsys.py beside it, and comes first: give that file another name" in finished.message("mine")


def test_numpy_without_a_backward_says_so(parity_run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("def linear(x, weight, bias):\n    return x @ weight.T + bias\n")
    case = "{op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7]}}}"
    finished = parity_run(user_config(path, cases=[case]))
    assert red(finished) == {"grad.x", "grad.weight", "grad.bias"}
    assert "ops.py has no linear_backward" in finished.message("mine")
    forward_only = case.replace("}}}", "}}, gradients: false}")
    assert parity_run(user_config(path, cases=[forward_only])).code == 0


@pytest.mark.parametrize(
    ("adapter", "body"),
    [("numpy", "y = np.tanh(x); x[...] = 0"), ("torch", "y = x.tanh(); x.data.mul_(0)")],
)
def test_an_op_that_changes_its_input_fails(parity_run, tmp_path, adapter, body):
    (tmp_path / "ops.py").write_text(f"import numpy as np\n\n\ndef tanh(x):\n    {body}\n    return y\n")
    case = "{id: a, op: tanh, inputs: {x: {shape: [4, 5]}}}"
    config = user_config(tmp_path / "ops.py", adapter=adapter, backends=[], cases=[case])
    finished = parity_run(config, "--baseline", "oracle", "--dtype", "float32")
    assert finished.code == 1
    [found] = [row for row in finished.results["comparisons"] if row["tensor"] == "input.x"]
    assert (found["culprit"], found["message"]) == (["mine"], "mine changes x in place")
    assert "input-mutated" in {row["id"] for row in finished.results["diagnoses"]}


def test_a_kernel_that_is_changed_at_once_is_not_the_one_before(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    case = "{id: one, op: relu, gradients: false, inputs: {x: {shape: [3]}}}"
    for factor, code in ((1, 0), (2, 1)):
        (tmp_path / "ops.py").write_text(f"def relu(x):\n    return {factor} * x * (x > 0)\n")
        os.utime(tmp_path / "ops.py", (1, 1))
        assert run_in(tmp_path, user_config("ops.py", cases=[case])).code == code
