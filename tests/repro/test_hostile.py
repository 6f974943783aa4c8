"""What lies in somebody else's run directory neither runs nor breaks `parity repro`, and scripts do not lie about it."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import parity_command
from tests.repro.scripts import LINEAR, PLAIN, WRONG, repro, rewrite, run_alone, scripts

RIGHT = WRONG.replace("2 * ", "")


@pytest.mark.parametrize("start", ["path", "folder", "link"])
@pytest.mark.parametrize("name", ["numpy", "inspect", "importlib", "faulthandler", "collections"])
def test_a_file_beside_a_script_is_not_imported(finding, tmp_path, name, start):
    script = scripts(finding(WRONG, PLAIN), "one", "--dtype", "float32")[0]
    (script.parent / f"{name}.py").write_text("raise SystemExit('planted')\n")
    (tmp_path / "link").symlink_to(script.parent)
    folder = {"path": tmp_path, "folder": script.parent, "link": tmp_path}[start]
    path = {"path": script, "folder": script.name, "link": tmp_path / "link" / script.name}[start]
    done = subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (1, ["the difference is there"]), done.stderr
    assert "planted" not in done.stderr


def test_a_user_s_file_finds_what_lies_beside_it_after_the_frameworks(finding):
    script = scripts(finding(WRONG, PLAIN), "one", "--dtype", "float32")[0]
    (script.parent / "factor.py").write_text("FACTOR = 1\n")
    (script.parent / "numpy.py").write_text("raise SystemExit('planted')\n")
    text = "import numpy\nfrom factor import FACTOR\n" + RIGHT.replace("+ bias", "+ FACTOR * bias")
    (script.parent / "mine.ops.py").write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the difference is gone"), done.stderr


def printed_interpreter(run_dir, executable) -> str:
    rewrite(run_dir, lambda d: [row.update(executable=str(executable)) for row in d["backends"]])
    done = repro(run_dir, "one", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.splitlines()[1])[0]


def test_the_interpreter_of_the_run_is_printed_and_no_other_program(finding, tmp_path, monkeypatch):
    run_dir = finding(WRONG, PLAIN)
    assert printed_interpreter(run_dir, sys.executable) == sys.executable
    for folder, name in ((run_dir, "python3"), (tmp_path, "evil.sh")):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (tmp_path / "python-link").symlink_to(run_dir / "python3")
    monkeypatch.chdir(run_dir)
    for planted in (run_dir / "python3", tmp_path / "evil.sh", tmp_path / "python-link", "python3", "./python3"):
        assert printed_interpreter(run_dir, planted) == "python"


CHANGES = {
    "reshape": "RESULT.reshape(4, 1, 3)",
    "a new axis": "RESULT[:, :, None]",
    "float64": "RESULT.astype('float64')",
    "object": "RESULT.astype(object)",
    "complex": "RESULT.astype('complex64')",
    "one row": "RESULT[:1]",
    "nothing": "{}",
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_right_values_in_another_structure_are_a_difference(finding, name):
    script = scripts(finding(WRONG, PLAIN), "one", "--dtype", "float32")[0]
    text = f"def linear(x, weight, bias):\n    return {CHANGES[name].replace('RESULT', '(x @ weight.T + bias)')}\n"
    (script.parent / "mine.ops.py").write_text(text)
    done = run_alone(sys.executable, script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "the difference is there"), done.stderr
    assert "exact has shape [4, 3] float32" in done.stdout


def test_a_gradient_that_is_missing_is_a_difference(finding):
    script = scripts(finding(WRONG, LINEAR), "one", "--dtype", "float32")[0]
    (script.parent / "mine.ops.py").write_text(RIGHT.partition("def linear_backward")[0])
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert "grad.bias: mine has no such tensor, exact has shape [3] float32" in done.stdout


@pytest.mark.frameworks
def test_an_output_of_another_shape_has_no_gradients_and_no_traceback(finding):
    wrong = "def linear(x, weight, bias):\n    return x @ weight.T + 2 * bias\n"
    run_dir = finding(wrong, LINEAR, adapter="torch", backends=("torch",))
    script = scripts(run_dir, "one", "--dtype", "float32")[0]
    (script.parent / "mine.ops.py").write_text(wrong.replace("2 * bias", "bias)[:, :, None]").replace("x @", "(x @"))
    done = run_alone(sys.executable, script)
    assert (done.returncode, done.stderr) == (1, "")
    assert "y: mine has shape [4, 3, 1] float32, exact has shape [4, 3] float32" in done.stdout


@pytest.mark.parametrize("text", ["def linear(**_):\n    raise ValueError('no luck')\n", WRONG])
def test_an_op_that_leaves_with_0_is_no_success(finding, text):
    script = scripts(finding(text, PLAIN), "one", "--dtype", "float32")[0]
    (script.parent / "mine.ops.py").write_text("import sys\ndef linear(**_):\n    sys.exit(0)\n")
    done = run_alone(sys.executable, script)
    assert (done.returncode, done.stderr) == (1, "SystemExit: 0\n")


@pytest.mark.parametrize("arguments", [("one",), ("--all", "--issue")])
def test_a_full_disk_behind_the_output_is_said(finding, arguments):
    run_dir = finding(WRONG, PLAIN)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(parity_command("repro", run_dir, *arguments), stdout=full, stderr=-1, text=True)
    assert (done.returncode, done.stderr) == (2, "stdout is incomplete: No space left on device\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: [row.update(expected="zzz") for row in d["comparisons"] if row["verdict"] not in ("equal", "close")],
        lambda d: [row.pop("n_elements") for row in d["comparisons"]],
        lambda d: [row.pop("n_mismatched") for row in d["comparisons"]],
        lambda d: [row.update(envelope=[1.0]) for row in d["comparisons"]],
        lambda d: d["run"].update(host="here"),
        lambda d: [row.update(title="nan") for row in d["diagnoses"]],
        lambda d: [row.update(evidence={"sizes": {"y": 1}, "second": 3}) for row in d["diagnoses"]],
    ],
)
def test_an_edited_file_gives_no_traceback(finding, change):
    run_dir = finding(WRONG, PLAIN)
    rewrite(run_dir, change)
    done = repro(run_dir, "one", "--issue")
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


def test_the_number_of_elements_is_that_of_the_tensor(finding):
    run_dir = finding(WRONG, PLAIN)
    rewrite(run_dir, lambda d: [row.pop("n_elements") for row in d["comparisons"]])
    script = scripts(run_dir, "one", "--dtype", "float32", "--issue")[0]
    printed = run_alone(sys.executable, script).stdout
    assert re.search(rf"of {math.prod((4, 3))} elements", printed)
    assert f"```text\n{printed}```" in script.with_suffix(".md").read_text()


@pytest.mark.frameworks
def test_the_issue_has_what_is_printed_of_a_dtype_that_numpy_lacks(finding):
    text = "def linear(x, weight, bias):\n    return (x @ weight.T + bias).bfloat16()\n"
    run_dir = finding(text, PLAIN, adapter="torch", backends=("torch",))
    [script] = scripts(run_dir, "one", "--dtype", "float64", "--issue")
    printed = run_alone(sys.executable, script).stdout
    assert "y: mine has shape [4, 3] bfloat16, exact has shape [4, 3] float64" in printed
    assert f"```text\n{printed}```" in script.with_suffix(".md").read_text()
