"""Several configs in one run: each keeps its own backends and baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import call

TRAINING = """
  - id: {}-train
    kind: train
    model: [{{linear: {{out_features: 3}}}}]
    data: {{name: classification, features: [5], classes: 3, rows: 16}}
    optimizer: {{name: sgd, lr: 0.01}}
    ensemble: {{members: 1}}
    batch_size: 8
    steps: 2
"""
ZEROS = """
def layer_norm(x, weight, bias, normalized_shape, eps):
    return x * 0.0


def layer_norm_backward(grad_y, x, weight, bias, normalized_shape, eps):
    return {"x": grad_y * 0.0, "weight": weight * 0.0, "bias": bias * 0.0}
"""


def config(name: str, backends: str, more: str = "") -> str:
    case = "op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}"
    return f"version: 1\ndtypes: [float32]\nbackends: [{backends}]\n{more}cases:\n  - {{id: {name}, {case}}}" + (
        TRAINING.format(name)
    )


def run(folder: Path, *arguments: str) -> dict:
    (folder / "zero.py").write_text(ZEROS)
    mine = "{name: mine, adapter: numpy, ops: zero.py}"
    (folder / "a.yaml").write_text(config("a", "numpy, {name: left, adapter: numpy}"))
    (folder / "b.yaml").write_text(config("b", f"numpy, {mine}", "baseline: mine\n"))
    done = call("run", "a.yaml", "b.yaml", "--out", "run", *arguments, cwd=folder)
    assert "Traceback" not in done.stderr
    return {**json.loads((folder / "run" / "results.json").read_text()), "stdout": done.stdout}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    return run(tmp_path_factory.mktemp("several"))


def test_each_case_runs_on_the_backends_of_its_config(results):
    ran = {(row["case"], row["backend"]) for row in results["outcomes"]}
    assert ran == {(f"a{kind}", name) for kind in ("", "-train") for name in ("numpy", "left")} | {
        (f"b{kind}", name) for kind in ("", "-train") for name in ("numpy", "mine")
    }
    assert [(row["id"], row["backends"], row["baseline"]) for row in results["cases"]] == [
        ("a", ["numpy", "left"], ""),
        ("a-train", ["numpy", "left"], ""),
        ("b", ["numpy", "mine"], "mine"),
        ("b-train", ["numpy", "mine"], "mine"),
    ]


def test_each_case_is_compared_with_the_baseline_of_its_config(results):
    pairs = {(row["case"], row["actual"], row["expected"]) for row in results["comparisons"] if row["case"] in "ab"}
    with_oracle = {(case, name, "oracle") for case, name, _ in pairs}
    assert pairs - with_oracle == {("a", "left", "numpy"), ("b", "numpy", "mine")}


def test_nothing_counts_as_not_run(results):
    assert sum(results["summary"]["cells"].values()) == 8
    assert "not-run" not in results["summary"]["cells"]
    assert results["stdout"].splitlines()[1].count("baseline") == 2
    assert "not run" not in results["stdout"]


def test_a_finished_run_goes_on_with_nothing(tmp_path):
    first = run(tmp_path)
    again = run(tmp_path, "--resume")
    assert again["comparisons"] == first["comparisons"]
    assert again["outcomes"] == first["outcomes"]


def test_validate_says_how_much_each_backend_gets(tmp_path):
    run(tmp_path)
    done = call("validate", "a.yaml", "b.yaml", cwd=tmp_path)
    assert done.stdout == (
        "ok: 4 cases (of which 2 models), 2 cells on each of numpy, left; baseline numpy\n"
        "  and 2 cells on each of numpy, mine; baseline mine; judged: mine\n"
    )


def test_one_name_for_two_backends_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text(config("a", "numpy, {name: other, adapter: numpy}"))
    (tmp_path / "b.yaml").write_text(config("b", "numpy, {name: other, adapter: torch}"))
    done = call("run", "a.yaml", "b.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        '"other" is a different backend in a.yaml:3; rename one of them, or run the configs one by one' in done.stderr
    )


@pytest.mark.parametrize(
    ("case", "line"),
    [("a", "numpy {0} (baseline) · left {0} (numpy)"), ("b", "numpy {0} · mine {0} (numpy, baseline, subject)")],
)
def test_explain_names_the_backends_and_the_baseline_of_the_case(tmp_path, case, line):
    version = run(tmp_path)["backends"][0]["version"]
    assert line.format(version) in call("explain", tmp_path / "run", case).stdout.splitlines()
