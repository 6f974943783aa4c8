"""Other tolerances for a stored run: what a run with them gives, without running."""

from __future__ import annotations

import json
import re

import pytest

from parity.reporting.console.judge import rules_of
from parity.reporting.judge import judged
from parity.reporting.results.results import read_results
from tests.conftest import call, run_in, user_config

OPS = """
import numpy as np

def layer_norm(x, normalized_shape, weight, bias, eps):
    var = (x * x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(var + eps) * weight + bias

def argmax(x, dim=None):
    return np.argmin(x, dim) if x.min() < -1 else np.argmax(x, dim)
"""
CASES = [
    "{op: layer_norm, gradients: false, params: {normalized_shape: [64]}, inputs: {x: {shape: [8, 64]}}, sweep: {inputs.x.offset: [0, 30, 1000]}}",
    "{op: argmax, params: {dim: -1}, inputs: {x: {shape: [4, 9]}}}",
]
KNOWN = "known: [{case: '*offset=30', reason: seen, until: 2099-01-01, backend: mine}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    (folder / "ops.py").write_text(OPS)
    assert run_in(folder, user_config("ops.py", cases=CASES) + KNOWN).code == 1
    return folder


@pytest.mark.parametrize("limits", [("1", "1"), ("1e-2", "1e-9"), ("0", "0"), ("0", "1e-3"), ("1e-12", "1e-12")])
def test_the_verdicts_are_those_of_a_run_with_these_tolerances(folder, limits):
    rtol, atol = limits
    options = ("--rtol", rtol, "--atol", atol)
    again = call("run", folder / "config.yaml", "--out", folder / "again", "-q", *options, cwd=folder)
    found = judged(folder / "run", rules_of([rtol], [atol]), None)
    wanted = read_results(folder / "again")
    assert verdicts(found.results) == verdicts(wanted)
    said = call("judge", folder / "run", *options)
    assert said.returncode == again.returncode == found.results.summary.exit_code
    assert said.stdout.splitlines()[0] == again.stdout.splitlines()[0]


def verdicts(results):
    return [
        (*row.tensor_key, row.actual, row.expected, row.verdict, row.culprit, row.known) for row in results.comparisons
    ]


def test_what_changes_is_listed(folder):
    done = call("judge", folder / "run", "--rtol", "y:1", "--atol", "y:1")
    assert re.search(r"^now passing: \d+ comparisons$", done.stdout, re.M)
    assert "layer_norm-8x64-offset=1000 float32 y, mine against numpy: unstable -> close" in done.stdout
    assert call("judge", folder / "run").stdout.splitlines()[1] == "no verdict changes"
    wrong = call("judge", folder / "run", "--rtol", "much")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "V is a number" in wrong.stderr


def test_a_run_without_frontiers_is_refused(folder, tmp_path):
    document = json.loads((folder / "run" / "results.json").read_text())
    for row in document["comparisons"]:
        del row["frontier"]
    (tmp_path / "results.json").write_text(json.dumps(document))
    done = call("judge", tmp_path, "--rtol", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no tolerance frontiers" in done.stderr
