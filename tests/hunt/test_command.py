"""`parity hunt` and `parity reduce` as commands: what they write, what goes on, what is refused."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from parity.hunt import reduce
from parity.hunt.reduce import STEPS
from tests.conftest import call, started

KERNELS = Path(__file__).parent / "kernels.py"
SOFTMAX = "import numpy as np\n\ndef softmax(x, dim):\n    e = np.exp(x)\n    return e / e.sum(dim, keepdims=True)\n"
HUNT = ("hunt", "softmax", "-b", "mine=numpy:ops.py", "--dtype", "float32")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hunt", "layer_nrm"], "did you mean layer_norm?"),
        (["hunt"], "name an op, a config or a file"),
        (["hunt", "softmax", "-b", "torhc"], 'did you mean "torch"?'),
        (["hunt", "nowhere.py"], "cannot read nowhere.py"),
        (["hunt", "--resume", "full"], "full holds no hunt to continue: it has no hunt.json"),
        (["hunt", "softmax", "--dtype", "int8"], "--dtype int8: no such dtype; allowed: "),
        (["hunt", "softmax", "--out", "full"], "it is not empty and holds no hunt"),
        (["reduce", "full"], "full"),
    ],
)
def test_mistakes_end_with_2_and_no_traceback(tmp_path, arguments, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("hunt", "softmax"), ("reduce", "run")])
@pytest.mark.parametrize(
    ("missing", "said"), [(["nowhere"], "nowhere is not"), (["nowhere", "never"], "nowhere and never are not")]
)
def test_missing_libraries_are_named_and_no_others(monkeypatch, command, missing, said):
    monkeypatch.setattr("parity.hunt.NEEDED", ("json", *missing))
    done = call(*command)
    assert done.returncode == 2
    remedy = shlex.join([sys.executable, "-m", "pip", "install", *missing])
    assert f"{said} installed: run `{remedy}`" in done.stderr


@pytest.fixture(scope="module")
def hunted(tmp_path_factory):
    """A hunt that finds a softmax without its maximum."""
    folder = tmp_path_factory.mktemp("hunted")
    (folder / "ops.py").write_text(SOFTMAX)
    return folder, call(*HUNT, "--trials", "80", "--out", "out", cwd=folder)


@pytest.mark.process
def test_a_finding_is_a_small_case_a_config_and_a_script(hunted):
    folder, done = hunted
    assert done.returncode == 1
    assert "FOUND  1 finding in 80 trials of softmax" in done.stdout
    assert re.search(r"inputs: \{x: \{values: \[+-?\d+\.\d, -?\d+\.\d\]+\}\}", done.stdout)
    script = next((folder / "out" / "repro").glob("softmax-1.*.py"))
    assert subprocess.run([sys.executable, script], cwd=folder, capture_output=True, check=False).returncode == 1
    results = json.loads((folder / "out" / "results.json").read_text())
    assert {row["backend"] for row in results["diagnoses"] if row["case"] == "softmax-1"} == {"mine"}
    assert "Run it with: parity run out/hunt.yaml\n" in (folder / "out" / "hunt.yaml").read_text()
    again = call("run", "out/hunt.yaml", "--out", "again", cwd=folder)
    assert again.returncode == 1
    assert "softmax-1" in again.stdout


@pytest.mark.process
def test_the_same_seed_tries_the_same(hunted, tmp_path):
    folder, done = hunted
    (tmp_path / "ops.py").write_text(SOFTMAX)
    again = call(*HUNT, "--trials", "80", "--out", "out", cwd=tmp_path)
    assert again.stdout == done.stdout
    assert (tmp_path / "out" / "hunt.yaml").read_text() == (folder / "out" / "hunt.yaml").read_text()


@pytest.mark.process
def test_a_hunt_goes_on(hunted):
    folder, _ = hunted
    before = json.loads((folder / "out" / "hunt.json").read_text())
    done = call("hunt", "--resume", "out", "--trials", "20", cwd=folder)
    after = json.loads((folder / "out" / "hunt.json").read_text())
    assert done.returncode == 1
    assert after["rounds"] > before["rounds"]
    assert after["trials"] >= before["trials"] + 20
    assert after["findings"] == before["findings"]


@pytest.mark.process
def test_a_healthy_kernel_ends_with_0(tmp_path):
    done = call("hunt", "sigmoid", "-b", f"mine=numpy:{KERNELS}", "--trials", "150", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert re.match(r"nothing beyond [0-9.]+ error bounds in 150 trials of sigmoid\n", done.stdout)
    assert "tried: " in done.stdout


@pytest.mark.process
def test_what_is_known_is_told_and_does_not_count(tmp_path):
    (tmp_path / "ops.py").write_text("import numpy as np\n\ndef tanh(x):\n    return 1.001 * np.tanh(x)\n")
    (tmp_path / "known.yaml").write_text(
        "version: 1\ndtypes: [float32]\nbackends: [{name: mine, adapter: numpy, ops: ops.py}]\n"
        "cases: [{op: tanh, inputs: {x: {shape: [3, 4]}}, gradients: false}]\n"
        "known: [{backend: mine, case: '*', diagnosis: scaled, reason: a table of three digits}]\n"
    )
    done = call("hunt", "known.yaml", "--trials", "80", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert re.match(r"nothing that counts in 80 trials of tanh; \d findings? not counted\n", done.stdout)
    assert "known: a table of three digits" in done.stdout


@pytest.mark.process
def test_a_crash_is_kept_with_its_case(tmp_path):
    (tmp_path / "ops.py").write_text(
        "import os\n\ndef relu(x):\n    return x.clip(0) if x.min() > -50 else os._exit(3)\n"
    )
    done = call("hunt", "relu", "-b", "mine=numpy:ops.py", "--trials", "40", "--out", "out", cwd=tmp_path)
    assert done.returncode == 3
    assert "mine: crash in relu" in done.stdout
    assert call("run", "out/hunt.yaml", cwd=tmp_path).returncode == 3


@pytest.mark.process
def test_an_interrupt_keeps_what_was_found(tmp_path):
    (tmp_path / "ops.py").write_text(SOFTMAX)
    config = tmp_path / "out" / "hunt.yaml"
    with started(*HUNT, "--minutes", "9", "--out", "out", cwd=tmp_path) as process:
        while not config.is_file():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    assert "FOUND  1 finding" in stdout
    assert list((tmp_path / "out" / "repro").glob("*.py"))


@pytest.mark.process
def test_a_case_of_a_run_is_reduced(tmp_path):
    (tmp_path / "ops.py").write_text(SOFTMAX)
    (tmp_path / "big.yaml").write_text(
        "version: 1\nbackends: [{name: mine, adapter: numpy, ops: ./ops.py}]\nbaseline: oracle\ncases:\n"
        "  - {id: big, op: softmax, inputs: {x: {shape: [7, 30], scale: 60}}}\n"
    )
    assert call("run", "big.yaml", "--out", "run", cwd=tmp_path).returncode == 1
    done = call("reduce", "run", "big", "--dtype", "float32", "--out", "small.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(r"values: \[+-?\d+\.\d, -?\d+\.\d\]+\}", done.stdout)
    assert call("run", "small.yaml", cwd=tmp_path).returncode == 1
    assert "big has no finding of torch" in call("reduce", "run", "big", "-b", "torch", cwd=tmp_path).stderr


@pytest.mark.process
@pytest.mark.parametrize("step", ["cutting sizes", "leaving out inputs"])
def test_a_step_that_fails_keeps_what_is_reduced_so_far_and_is_told(tmp_path, step):
    def broken(reducer, small):
        if step == "cutting sizes":
            STEPS[step](reducer, small)
        raise ZeroDivisionError("planted")

    (tmp_path / "ops.py").write_text(SOFTMAX)
    (tmp_path / "big.yaml").write_text(
        "version: 1\nbackends: [{name: mine, adapter: numpy, ops: ./ops.py}]\nbaseline: oracle\ndtypes: [float32]\n"
        "cases:\n  - {id: big, op: softmax, inputs: {x: {shape: [7, 30], scale: 60}}}\n"
    )
    assert call("run", "big.yaml", "--out", "run", cwd=tmp_path).returncode == 1
    with patch.object(reduce, "STEPS", {**STEPS, step: broken}):
        done = call("reduce", "run", "big", "--out", "small.yaml", cwd=tmp_path)
    assert done.returncode == 3
    assert re.search(r"values: \[+-?\d+\.\d, -?\d+\.\d\]+\}", done.stdout)
    assert f"parity failed here, {step}: ZeroDivisionError: planted (" in done.stderr
    assert done.stderr.endswith("may not be the smallest; please report these lines\n")
    assert call("run", "small.yaml", cwd=tmp_path).returncode == 1
