"""`parity diff` as CI uses it: a regression planted in real runs, exit codes, files, bad usage."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import call, parity_command, user_config
from tests.reporting.stored_runs import case_row
from tests.reporting.test_diff import both_releases, outcome, passes, run

RIGHT = """
import autograd.numpy as np


def layer_norm(x, weight, bias, normalized_shape, eps):
    mean = x.mean(-1, keepdims=True)
    var = {variance}
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def layer_norm_backward(grad_y, x, weight, bias, normalized_shape, eps):
    mean = x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    normal, given = (x - mean) * inverse, grad_y * weight
    inner = given - given.mean(-1, keepdims=True) - normal * (given * normal).mean(-1, keepdims=True)
    return {{"x": inner * inverse, "weight": (grad_y * normal).sum(0), "bias": grad_y.sum(0)}}
"""
TWO_PASS = "((x - mean) ** 2).mean(-1, keepdims=True)"
NAIVE = "(x * x).mean(-1, keepdims=True) - mean * mean"
CASES = [
    "{id: near, op: layer_norm, params: {normalized_shape: [64]}, inputs: {x: {shape: [4, 64], offset: 0}}}",
    "{id: far, op: layer_norm, params: {normalized_shape: [64]}, inputs: {x: {shape: [4, 64], offset: 60}}}",
]


def real_run(folder: Path, variance: str, cases: list[str] = CASES) -> Path:
    folder.mkdir()
    (folder / "my_ops.py").write_text(RIGHT.format(variance=variance))
    (folder / "mine.yaml").write_text(user_config("my_ops.py", cases=cases))
    done = call("run", "mine.yaml", "--out", "run", cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """The same config with a right kernel, and with one whose variance cancels."""
    base = tmp_path_factory.mktemp("diff")
    return real_run(base / "main", TWO_PASS), real_run(base / "pr", NAIVE)


def test_a_planted_regression_is_named(runs, tmp_path):
    done = call("diff", *runs, "--markdown", tmp_path / "diff.md", "--html", tmp_path / "diff.html")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("WORSE  1 new finding")
    assert "mine: its ops file changed" in done.stdout
    for text in (done.stdout, (tmp_path / "diff.md").read_text(), (tmp_path / "diff.html").read_text()):
        missing = [word for word in ("far", "float32", "mine", "unstable", "variance-naive") if word not in text]
        assert not missing, text


def test_what_is_mended_is_fixed(runs):
    done = call("diff", *reversed(runs))
    assert (done.returncode, done.stdout.split()[0]) == (0, "BETTER")
    assert "fixed" in done.stdout.splitlines()[0]


def test_a_run_with_itself(runs):
    done = call("diff", runs[1], runs[1])
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "SAME  no differences: 8 cells unchanged")
    assert call("diff", runs[1], runs[1], "-q").stdout == "SAME  no differences: 8 cells unchanged\n"


def test_two_backends_of_a_real_run(runs):
    done = call("diff", runs[1], runs[1], "--map", "numpy=mine")
    assert done.returncode == 1
    assert "numpy in A" in done.stdout
    assert call("diff", runs[1], runs[1], "--map", "mine=numpy").returncode == 0


def test_a_case_that_is_gone_is_incomplete(runs, tmp_path):
    done = call("diff", runs[0], real_run(tmp_path / "less", TWO_PASS, CASES[:1]))
    assert (done.returncode, done.stdout.split()[0]) == (3, "INCOMPLETE")
    assert "the case is not in B: 4 cells on numpy, mine" in done.stdout


def test_another_offset_is_told_beside_the_finding(runs, tmp_path):
    wider = [CASES[0], CASES[1].replace("offset: 60", "offset: 90")]
    done = call("diff", runs[0], real_run(tmp_path / "other", NAIVE, wider), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 1
    [note] = next(change["notes"] for change in document["new"] if change["case"] == "far")
    assert "+ 60 -> " in note
    assert "+ 90" in note


def test_a_lower_level_lets_it_pass(runs):
    assert call("diff", *runs, "--fail-on", "semantic").returncode == 0


def test_colours_are_off_in_a_pipe_and_a_narrow_console_shows_all(runs):
    done = call("diff", *runs, env={"COLUMNS": "60"})
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "  far float32 mine y\n    close -> unstable · " in done.stdout
    assert " · variance-naive\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "nowhere"), "nowhere/results.json: No such file or directory; is nowhere a run directory?"),
        (("nowhere", "a"), "is nowhere a run directory?"),
        (("a",), "Missing argument 'RUN_B'"),
        (("a", "broken"), "broken/results.json: not JSON"),
        (("a", "foreign"), "foreign/results.json: not a parity result of format 1"),
        (("a", "a", "--map", "padle==2.6.2=paddle"), 'RUN_A has no backend "padle==2.6.2"; did you mean "paddle==2.6.2"?'),
        (("a", "a", "--map", "paddle"), "is not OLD=NEW, for example paddle==2.6.2=paddle"),
        (("a", "a", "--factor", "1"), "Invalid value for '--factor'"),
        (("a", "a", "--factor", "nan"), "--factor"),
        (("a", "a", "--fail-on", "never"), "Invalid value for '--fail-on'"),
        (("a", "a", "--html", "no/such/folder.html"), "cannot write"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_exit_code_2(tmp_path, arguments, said):
    both_releases(tmp_path / "a")
    for name, text in (("broken", "{"), ("foreign", '{"format": 2}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text)
    done = call("diff", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_interrupted_run_is_told(tmp_path):
    case = case_row("one", dtypes=["float32"])
    rows = [passes(case="one"), passes(case="one", actual="torch")]
    outcomes = [outcome(name, case="one") for name in ("torch", "paddle")]
    a = run(tmp_path / "a", [], outcomes, cases=[case], comparisons=rows)
    b = run(tmp_path / "b", [], outcomes[:1], cases=[case], comparisons=rows[1:], summary={"exit_code": 130})
    done = call("diff", a, b)
    assert done.returncode == 3
    assert "B was interrupted" in done.stdout
    assert "the run was interrupted before it: 1 cell on paddle" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_full_disk_behind_stdout_is_told(runs, arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(parity_command("diff", *runs, *arguments), stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "stdout is incomplete: No space left on device\n")


def test_only_the_results_are_needed(runs, tmp_path):
    for name, source in zip("ab", runs, strict=True):
        (tmp_path / name).mkdir()
        shutil.copy(source / "results.json", tmp_path / name)
    assert call("diff", tmp_path / "a", tmp_path / "b").returncode == 1


def test_the_help_ends_with_an_example_and_tells_the_exit_codes():
    done = call("diff", "--help")
    assert done.stdout.rstrip().splitlines()[-1].strip() == "parity diff RUN RUN --map paddle==2.6.2=paddle"
    assert "3 nothing is new or worse, but tensors of RUN_A were not compared" in " ".join(done.stdout.split())
