"""`parity check` from the command line: what it says of right, wrong and hostile candidates, in words and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from jsonschema import Draft202012Validator

from parity import check
from parity.reporting.results.directory import held
from tests.check.pairs import CACHED, FORGED, FUNCTION, NAIVE, REFERENCE, RIGHT, SPECTRUM

pytestmark = [pytest.mark.frameworks, pytest.mark.process]
SCHEMA = json.loads((Path(check.__file__).parent / "schema.json").read_text())


def asked(folder: Path, reference: str, new: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "reference.py").write_text(reference)
    (folder / "new.py").write_text(new)
    command = [sys.executable, "-m", "parity", "check", "reference.py", "new.py", "--out", "out", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def group_of(session: int) -> list[int]:
    """The processes of a session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == session:
                members.append(process.pid)
    return members


def answered(folder: Path, reference: str, new: str, *options: str) -> dict[str, Any]:
    """The JSON, which is one valid line and all of stdout, and whose exit code is the command's."""
    done = asked(folder, reference, new, "--json", *options)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    assert not [error.message for error in Draft202012Validator(SCHEMA).iter_errors(row)]
    assert done.returncode == row["exit_code"]
    return row


def test_a_right_candidate_in_another_form_is_right_for_all_inputs(tmp_path):
    row = answered(tmp_path, REFERENCE, RIGHT, "--seconds", "300")
    assert (row["verdict"], row["exit_code"]) == ("right", 0), row
    states = {name: state for name, state, _ in row["checks"]}
    assert set(states.values()) == {"passed"}
    assert {"given", "drawn", "offset", "scale", "size", "zeros", "nan", "transposed"} <= set(states)
    smaller = "batch_size 128 -> 8, dim 1024 -> 16"
    assert row["not_judged"] == [f"at its size, outputs were compared for its own inputs only, the rest at {smaller}"]


def test_a_variance_that_loses_digits_is_named_inside_a_model(tmp_path):
    row = answered(tmp_path, REFERENCE, NAIVE)
    assert (row["verdict"], row["exit_code"], row["cause"]) == ("unstable", 1, "variance-naive"), row
    assert "computes var" in row["sentence"]
    assert row["place"].startswith("new.py:")
    assert "offset" in row["counterexample"]["case"]
    assert abs(row["counterexample"]["got"] - row["counterexample"]["exact"]) > row["counterexample"]["bound"]
    assert list(Path(row["counterexample"]["inputs"]).glob("x.npy"))
    command = [sys.executable, "-m", "parity", "repro", row["run"], row["counterexample"]["case"]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (script,) = Path(row["run"]).glob("repro/*.new.py")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "the difference is there", done.stdout + done.stderr


def test_a_variance_that_the_reference_spells_out_is_named_too(tmp_path):
    spelled = f"{RIGHT.replace('ModelNew', 'Model')}\n\n{REFERENCE[REFERENCE.index('batch_size') :]}"
    row = answered(tmp_path, spelled, NAIVE)
    assert (row["verdict"], row["cause"]) == ("unstable", "variance-naive"), row
    assert "most digits are lost at new.py:17 `var =" in row["sentence"]


def test_a_result_that_is_kept_by_shape_is_found_by_later_calls(tmp_path):
    row = answered(tmp_path, REFERENCE, CACHED, "--forward-only")
    assert (row["verdict"], row["exit_code"], row["cause"]) == ("wrong", 1, "stateful"), row


def test_a_candidate_that_ends_its_process_gives_no_answer(tmp_path):
    row = answered(tmp_path, REFERENCE, FORGED)
    assert (row["verdict"], row["exit_code"], row["cause"]) == ("wrong", 1, "no-result"), row


def test_words(tmp_path):
    done = asked(tmp_path, FUNCTION, FUNCTION.replace("x * scale", "x / scale"))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("WRONG  ")
    said = " ".join(done.stdout.split())
    assert re.search(
        r" y \[\d+, \d+\] in soft-given: \S+, exact \S+, \S+ times the error bound asked failed: given;", said
    )
    assert lines[-3:] == [
        "more    parity explain out/run soft-given",
        "        parity repro out/run soft-given # a script without parity",
        "        parity report out/run --html report.html",
    ]
    quiet = asked(tmp_path, FUNCTION, FUNCTION.replace("x * scale", "x / scale"), "-q", "--out", "other")
    assert quiet.stdout.startswith(lines[0])
    assert quiet.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("reference", "new", "told"),
    [
        (REFERENCE, "x = 1", "new.py defines no class ModelNew or Model"),
        (REFERENCE, "def (", "new.py:1 cannot be read"),
        ("import torch", RIGHT, "reference.py has no class Model"),
        (REFERENCE.replace("def get_inputs", "def inputs"), RIGHT, "reference.py has no function get_inputs()"),
        (REFERENCE.replace("[torch.rand(batch_size, dim)]", "1 / 0"), RIGHT, "reference.py:21: ZeroDivisionError"),
        (REFERENCE.replace("[torch.rand(batch_size, dim)]", "[3]"), RIGHT, "get_inputs() returns no tensor"),
        (REFERENCE.replace("return [dim]", "return [dim, 1, 2, 3]"), RIGHT, "reference.py"),
        (REFERENCE.replace("import torch\n", "import torch\nimport no_such_module\n", 1), RIGHT, "no_such_module"),
    ],
)
def test_what_cannot_be_checked_is_told_in_a_sentence(tmp_path, reference, new, told):
    row = answered(tmp_path, reference, new)
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3)
    assert told in row["sentence"]
    assert "Traceback" not in row["sentence"]


def test_a_setting_that_the_file_does_not_have(tmp_path):
    row = answered(tmp_path, REFERENCE, RIGHT, "--set", "sizes=3")
    assert row["sentence"] == "--set sizes: reference.py has no global of this name"


def test_a_reference_that_the_candidate_rewrites_is_not_judged(tmp_path):
    new = FUNCTION.replace("import torch\n", "import pathlib, torch\n").replace("x * scale", "2 * x * scale")
    new += "\npath = pathlib.Path(__file__).with_name('reference.py')"
    new += "\npath.write_text(path.read_text().replace('(x *', '(2 * x *'))\n"
    row = answered(tmp_path, FUNCTION, new, "--diagnose-seconds", "0")
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3), row
    assert row["sentence"] == "reference.py has changed while it was checked; new.py must not write it: check again"


def test_masks_are_compared(tmp_path):
    reference = FUNCTION.replace("torch.softmax(x * scale, dim=-1)", "x > scale")
    row = answered(tmp_path, reference, reference.replace("x > scale", "x < scale"), "--diagnose-seconds", "0")
    assert (row["verdict"], row["exit_code"]) == ("wrong", 1), row


def test_complex_numbers_are_compared_by_their_parts(tmp_path):
    new = SPECTRUM.replace("x * phase.conj()", "torch.complex(x.real, -x.imag).mul(phase).conj()")
    row = answered(tmp_path, SPECTRUM, new, "--seconds", "300")
    assert (row["verdict"], row["not_judged"][0][:4]) == ("right", "no s"), row
    assert not any("view_as_real" in text or "core.py" in text for text in row["not_judged"]), row
    row = answered(tmp_path, SPECTRUM, SPECTRUM.replace("phase.conj()", "phase"))
    assert (row["verdict"], row["counterexample"]["tensor"]) == ("wrong", "y1"), row
    assert row["repair"]["after"].endswith("x * phase.conj()), x[:, :0]") or "conj" in row["repair"]["after"], row


def test_a_function_may_be_called_like_an_op_of_parity(tmp_path):
    reference = FUNCTION.replace("def soft(", "def softmax(")
    naive = reference.replace("torch.softmax(x * scale, dim=-1)", "(x * scale).exp() / (x * scale).exp().sum(-1, True)")
    row = answered(tmp_path, reference, naive, "--diagnose-seconds", "0")
    assert (row["verdict"], row["counterexample"]["case"][:7]) == ("wrong", "softmax"), row
    row = answered(tmp_path, reference, reference.replace("x * scale", "scale * x"), "--seconds", "300")
    assert row["verdict"] == "right", row


def test_a_candidate_that_refuses_a_nan_is_right(tmp_path):
    refusing = FUNCTION.replace("    return", "    assert not x.isnan().any(), 'no number'\n    return")
    row = answered(tmp_path, FUNCTION, refusing, "--seconds", "300")
    assert row["verdict"] == "right", row
    assert row["not_judged"] == ["new refuses a NaN: new.py:6: AssertionError: no number"]


@pytest.mark.parametrize(
    ("code", "verdict"), [("assert x.shape[0] == 6, 'six rows only'", "right"), ("x = x.view(6, 40)", "wrong")]
)
def test_a_size_that_the_candidate_says_it_does_not_take(tmp_path, code, verdict):
    row = answered(
        tmp_path, FUNCTION, FUNCTION.replace("    return torch", f"    {code}\n    return torch"), "--seconds", "300"
    )
    assert row["verdict"] == verdict, row
    if verdict == "right":
        assert any(
            text.startswith("new refuses soft-batch=1: new.py:6: AssertionError: six rows")
            for text in row["not_judged"]
        )


def test_a_reference_that_crashes_parity_gives_an_answer_all_the_same(tmp_path):
    crashing = FUNCTION.replace("import torch\n", "import ctypes\nimport torch\n").replace(
        "    return torch", "    ctypes.string_at(0)\n    return torch"
    )
    row = answered(tmp_path, crashing, FUNCTION)
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3)
    assert row["sentence"] == "parity's process was ended by SIGSEGV: code of the reference may have crashed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_processes_of_a_check(tmp_path, number):
    slow = FUNCTION.replace("    return torch", "    time.sleep(60)\n    return torch").replace(
        "import torch\n", "import time\nimport torch\n"
    )
    (tmp_path / "slow.py").write_text(slow)
    command = [sys.executable, "-m", "parity", "check", "slow.py:soft", "slow.py:soft", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while len(group_of(process.pid)) < 2:
        time.sleep(0.2)
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert stdout == "" or json.loads(stdout)["sentence"] == "interrupted"
    deadline = time.monotonic() + 30
    while group_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not group_of(process.pid)


def test_whole_numbers_are_not_told_in_error_bounds(tmp_path):
    reference = FUNCTION.replace("torch.softmax(x * scale, dim=-1)", "(x * scale).argmax(-1)")
    done = asked(tmp_path, reference, reference.replace("argmax(-1)", "argmax(-1) + 1"), "--diagnose-seconds", "0")
    assert re.search(r"^ *y \[\d+\] in soft-given: \d+, exact \d+$", done.stdout, re.MULTILINE), done.stdout


def test_two_checks_do_not_write_to_one_folder(tmp_path):
    (tmp_path / "out").mkdir()
    with held(tmp_path / "out"):
        row = answered(tmp_path, FUNCTION, FUNCTION)
    assert row["sentence"] == "out: another run is writing there; name another folder with --out"
    assert not (tmp_path / "out/check.yaml").exists()


def test_an_option_that_is_wrong_is_told_in_json_too(tmp_path):
    (tmp_path / "file").touch()
    row = answered(tmp_path, FUNCTION, FUNCTION, "--out", "file")
    assert (row["exit_code"], row["sentence"]) == (3, "file: it is a file; name another folder with --out")
    row = answered(tmp_path, FUNCTION, FUNCTION, "--set", "scale")
    assert (row["exit_code"], row["sentence"][:11]) == (2, "--set scale")


SCORES = """
import torch

def f(x, w):
    s = (x * w) @ x.T / {}
    return torch.softmax(s, -1) @ torch.tanh(x)

def get_inputs():
    return [torch.randn(6, 10), torch.randn(10)]
"""


def test_the_line_is_told_where_there_is_no_time_for_a_formula(tmp_path):
    row = answered(tmp_path, SCORES.format("4"), SCORES.format("5.5"), "--diagnose-seconds", "0")
    assert (row["verdict"], row["cause"], row["place"]) == ("wrong", "different-step", "new.py:5"), row
    told = "new.py:5 has `s = (x * w) @ x.T / 5.5` where reference.py:5 has `s = (x * w) @ x.T / 4`: 8/11 times it"
    assert row["sentence"].startswith(f"{told}; with `s = (x * w) @ x.T / 4`, all outputs agree (different-step)")


ADDED = """
import torch

def f(x, index):
    out = torch.zeros_like(x)
    {}
    return out

def get_inputs():
    return [torch.randn(12, 4), torch.randperm(12)]
"""


def test_indices_that_the_file_gives_once_are_asked_twice(tmp_path):
    new = ADDED.format("out[index] = x")
    row = answered(tmp_path, ADDED.format("out = out.index_add(0, index, x)"), new, "--diagnose-seconds", "5")
    assert (row["verdict"], row["exit_code"]) == ("wrong", 1), row
    states = {name: state for name, state, _ in row["checks"]}
    assert states["repeated-integers"] == "failed"
    row = answered(tmp_path, new, new.replace("f(x, index)", "f(x, index, _=0)"))
    assert "repeated-integers" not in [name for name, *_ in row["checks"]]


RANKED = """
import torch

def f(x):
    less = (x[:, None, :] < x[:, :, None]).sum(-1)
    equal = (x[:, None, :] == x[:, :, None]).sum(-1)
    ranks = less.to(x.dtype) + {} / 2
    return ranks / (ranks * ranks).sum(1, keepdim=True).sqrt()

def get_inputs():
    return [torch.randint(0, 4, (6, 20)).float()]
"""


def test_ranks_of_equal_values_are_judged_by_the_references_own_error(tmp_path):
    row = answered(tmp_path, RANKED.format("(equal - 1).to(x.dtype)"), RANKED.format("0"))
    assert (row["verdict"], row["exit_code"], row["counterexample"]["tensor"]) == ("wrong", 1, "y"), row
    row = answered(tmp_path, RANKED.format("(equal - 1).to(x.dtype)"), RANKED.format("(equal - 1.0)"))
    assert row["verdict"] == "right", row


INTERRUPTED = """
import os, signal
import parity.cli.check
from parity.check.lines import FaultLines
from parity.cli.group import main

FaultLines.locate = lambda *_: os.kill(os.getpid(), signal.SIGINT)
main()
"""


def test_what_is_wrong_stays_where_the_search_for_its_cause_is_interrupted(tmp_path):
    (tmp_path / "reference.py").write_text(FUNCTION)
    (tmp_path / "new.py").write_text(FUNCTION.replace("return ", "return 2 * "))
    command = [sys.executable, "-c", INTERRUPTED, "check", "reference.py", "new.py", "--json", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    row = json.loads(done.stdout)
    assert (row["verdict"], row["exit_code"], done.returncode) == ("wrong", 1, 1)
    assert "interrupted: the search for a cause was ended" in row["not_judged"]
    assert row["counterexample"]["tensor"] == "y"
