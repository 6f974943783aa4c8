"""What a backend cannot do is said tensor by tensor and cell by cell, and is neither a failure nor somebody else's work."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.config.plan import BackendSpec
from parity.environments import resolve
from tests.conftest import user_config
from tests.training.examples import preset
from tests.training.requests import client
from tests.training.trainer_checks import SGD, answer_to

LINEAR = "{id: lin, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7]}}}"
NORM = "{id: ln, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}"
FORWARD = "DIFFERENTIABLE = False\n\ndef linear(x, weight, bias):\n    return x @ weight.T + bias\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "ops.py"
    path.write_text(text)
    return path


def test_a_backend_that_is_forward_only_is_compared_in_its_outputs(parity_run, tmp_path):
    finished = parity_run(user_config(written(tmp_path, FORWARD), cases=[LINEAR]))
    assert finished.code == 3, finished.stdout
    assert set(finished.outcomes("mine").values()) == {"ok"}
    verdicts = {(row["tensor"], row["verdict"]) for row in finished.select(actual="mine", expected="oracle")}
    assert {tensor for tensor, verdict in verdicts if verdict == "not-compared"} == {
        "grad.x",
        "grad.weight",
        "grad.bias",
    }
    assert dict(verdicts)["y"] in ("equal", "close")
    [row] = finished.select(actual="mine", expected="numpy", dtype="float32", tensor="grad.x")
    assert row["message"] == "mine: it is forward only, so its gradients are not compared"
    entry = 'known: [{case: lin, backend: mine, outcome: unsupported, reason: "a kernel for inference"}]'
    assert parity_run(f"{user_config(tmp_path / 'ops.py', cases=[LINEAR])}{entry}\n").code == 0
    without = parity_run(user_config(tmp_path / "ops.py", cases=[LINEAR.replace("}}}", "}}, gradients: false}")]))
    assert without.code == 0, without.stdout


def test_what_is_off_in_a_forward_only_backend_is_still_found(parity_run, tmp_path):
    text = "DIFFERENTIABLE = False\ndef linear(x, weight, bias):\n    return x @ weight.T\n"
    finished = parity_run(user_config(written(tmp_path, text), cases=[LINEAR]))
    assert finished.code == 1
    assert {row["tensor"] for row in finished.failing()} == {"y"}
    assert {row["id"] for row in finished.results["diagnoses"]} == {"affine-missing"}


@pytest.mark.frameworks
def test_a_framework_without_gradients_is_not_asked_for_them(parity_run, tmp_path):
    text = FORWARD.replace("return x", "import torch\n    assert not x.requires_grad\n    return x")
    finished = parity_run(user_config(written(tmp_path, text), cases=[LINEAR], adapter="torch"))
    assert finished.code == 3, finished.stdout
    assert {row["verdict"] for row in finished.select(actual="mine", tensor="y")} <= {"equal", "close"}


def test_a_dtype_that_a_backend_lacks_is_unsupported(parity_run, tmp_path):
    text = f"DTYPES = ['float64']\n{FORWARD}"
    finished = parity_run(user_config(written(tmp_path, text), cases=[LINEAR]))
    assert finished.outcomes("mine") == {("lin", "float32"): "unsupported", ("lin", "float64"): "ok"}
    assert "supports only float64, not float32" in finished.stdout


def test_an_op_that_the_file_lacks_is_never_somebody_elses(parity_run, tmp_path):
    finished = parity_run(user_config(written(tmp_path, FORWARD), cases=[LINEAR, NORM]))
    outcomes = {case: outcome for (case, _), outcome in finished.outcomes("mine").items()}
    assert outcomes == {"lin": "ok", "ln": "unsupported"}
    assert "ops.py has no layer_norm" in finished.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DIFFERENTIABLE = 0\n", "ops.py: DIFFERENTIABLE must be True or False, not 0"),
        ("DTYPES = 'float32'\n", "ops.py: DTYPES must be a list of names"),
        ("VERSIONS = '3.1'\n", "ops.py: VERSIONS must be a mapping of libraries to versions"),
    ],
)
def test_what_a_file_says_of_itself_is_checked(parity_run, tmp_path, text, said):
    finished = parity_run(user_config(written(tmp_path, FORWARD.replace("DIFFERENTIABLE = False\n", text))))
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[LINEAR]))
    assert set(finished.outcomes("mine").values()) == {"error"}
    assert said in finished.message("mine")


def test_the_versions_of_a_library_are_in_the_results(parity_run, tmp_path):
    text = f"__version__ = '0.3'\nVERSIONS = {{'triton': '3.1'}}\n{FORWARD}"
    finished = parity_run(user_config(written(tmp_path, text), cases=[LINEAR]))
    rows = {row["name"]: row for row in finished.results["backends"]}
    assert rows["mine"]["library"] == {"ops": "0.3", "triton": "3.1"}
    assert rows["numpy"]["library"] == {}
    assert "triton 3.1" in finished.stdout


def test_a_training_needs_gradients_and_a_dtype(tmp_path):
    refusals = {"DIFFERENTIABLE = False\n": "needs gradients", "DTYPES = ['float64']\n": "supports only float64"}
    for number, (text, reason) in enumerate(refusals.items()):
        ops = f"{text}\ndef batch(rows):\n    return rows\n"
        with client(tmp_path / str(number), "numpy", ops=ops) as found:
            reply = answer_to(found, preset("mlp", options=SGD))
        assert (reply["outcome"], reason in reply["message"]) == ("unsupported", True), reply


@pytest.mark.frameworks
def test_a_foreign_interpreter_needs_numpy_alone(parity_run, tmp_path):
    python = resolve(BackendSpec("oneflow", "oneflow"), provision=False).python
    ops = written(tmp_path, FORWARD)
    mine = f"{{name: mine, adapter: numpy, ops: {ops}, python: {python}}}"
    finished = parity_run(f"version: 1\nbackends: [numpy, {mine}]\ncases: [{LINEAR}, {NORM}]\n")
    assert finished.code == 3, finished.stdout
    outcomes = {case: outcome for (case, _), outcome in finished.outcomes("mine").items()}
    assert outcomes == {"lin": "ok", "ln": "unsupported"}
    rows = {row["name"]: row for row in finished.results["backends"]}
    assert rows["mine"]["python"].startswith("3.10.") and rows["mine"]["executable"] == str(python)
