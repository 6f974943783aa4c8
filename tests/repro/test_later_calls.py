"""Scripts of differences in a later call: they make the calls in order, in the memory of the first inputs."""

from __future__ import annotations

import sys

import pytest

from parity.judge.diagnose.new_process import RIGHT
from tests.conftest import call
from tests.repro.scripts import comparisons, repro, run_alone, scripts

RMS_NORM = "{id: one, op: rms_norm, params: {normalized_shape: [8]}, inputs: {x: {shape: [4, 8]}}}"
LINEAR = "{id: one, op: linear, params: {out_features: 3}, gradients: false, inputs: {x: {shape: [4, 8]}}}"
BY_SHAPE = """
import numpy as np
DIFFERENTIABLE = False
kept = {}

def rms_norm(x, weight, normalized_shape, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.finfo(x.dtype).eps) * weight
    return kept.setdefault((x.shape, x.dtype), y)
"""
BY_ADDRESS = """
kept = {}

def linear(x, weight, bias):
    return x @ kept.setdefault(weight.data_ptr(), weight.detach().clone()).T + bias
"""
MENDED = BY_SHAPE.replace("kept.setdefault((x.shape, x.dtype), y)", "y")


def test_the_script_of_a_later_call_shows_three_values_until_it_is_mended(finding):
    run_dir = finding(BY_SHAPE, RMS_NORM, arguments=("--dtype", "float32"))
    [script] = scripts(run_dir)
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    [shown] = comparisons(done.stdout)
    assert (shown.tensor, shown.side) == ("y", "exact")
    assert shown.values["mine"] == shown.values["in call 1"] != shown.values["exact"]
    (run_dir / "repro" / "mine.ops.py").write_text(MENDED)
    done = run_alone(sys.executable, script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the difference is gone"), done.stderr


@pytest.mark.frameworks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_framework_keeps_by_address_shows_in_the_third_call(finding, dtype):
    case = LINEAR.replace("op: linear", f"op: linear, dtypes: [{dtype}]")
    run_dir = finding(BY_ADDRESS, case, adapter="torch", backends=("torch",))
    [script] = scripts(run_dir)
    assert "calls " in script.read_text()
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert "y" in {item.tensor for item in comparisons(done.stdout)}
    (run_dir / "repro" / "mine.ops.py").write_text(BY_ADDRESS.replace("kept.setdefault", "(lambda _, w: w)"))
    done = run_alone(sys.executable, script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the difference is gone"), done.stderr


def test_large_inputs_of_later_calls_are_in_the_archive(finding):
    case = RMS_NORM.replace("[4, 8]", "[40, 8]")
    run_dir = finding(BY_SHAPE, case, arguments=("--dtype", "float32"))
    [script] = scripts(run_dir)
    assert script.with_suffix(".npz").is_file()
    assert run_alone(sys.executable, script).returncode == 1


def test_an_issue_says_what_the_script_prints(finding):
    run_dir = finding(BY_SHAPE, RMS_NORM, arguments=("--dtype", "float32"))
    call("repro", run_dir, "one", "--issue")
    [script] = (run_dir / "repro").glob("one*.py")
    printed = run_alone(sys.executable, script).stdout
    assert printed.splitlines()[1].strip() in script.with_suffix(".md").read_text()


FIRST = """
import numpy as np
DIFFERENTIABLE = False
scale = None

def relu(x):
    global scale
    scale = np.abs(x).max() if scale is None else scale
    return (np.maximum(x, 0) / np.abs(x).max() * scale).astype(x.dtype)
"""


def test_what_is_right_in_a_new_process_has_no_script(finding):
    cases = "\n  - ".join(
        f"{{id: c{n}, op: relu, gradients: false, inputs: {{x: {{shape: [{n}, 5]}}}}}}" for n in (3, 4)
    )
    run_dir = finding(FIRST, cases, arguments=("--dtype", "float32", "--baseline", "oracle"))
    assert RIGHT in " ".join(repro(run_dir, "c4").stderr.split())
