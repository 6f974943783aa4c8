"""`parity inspect`: the stored values of one tensor."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parity.reporting.console.inspect import InspectError, parsed, ticks
from parity.reporting.plots.tensors import LogBins
from tests.conftest import FAKES, call, run_in, user_config

OPS = """def layer_norm(x, weight, bias, normalized_shape, eps):
    d = x - x.mean(-1, keepdims=True)
    y = d / ((d * d).mean(-1, keepdims=True) + eps) ** 0.5 * weight + bias
    y[1, 3] += 0.5
    y[1, 4] += 0.25
    return y
"""
CASES = [
    "{id: wrong, op: layer_norm, gradients: false, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}",
    "{id: ids, op: embedding, gradients: false, inputs: {weight: {shape: [5, 3]}, x: {shape: [2], integers: {low: 0, high: 5}}}}",
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """`mine` is wrong at [1, 3], by 0.5, and at [1, 4]."""
    folder = tmp_path_factory.mktemp("inspected")
    (folder / "ops.py").write_text(OPS)
    done = run_in(folder, user_config(folder / "ops.py", cases=CASES[:1]))
    assert done.code == 1, done.stderr
    return done.run_dir


def shown(run_dir, *words, width=80):
    done = call("inspect", run_dir, *words, env={"COLUMNS": str(width)})
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= width
    return done.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_a_tensor_on_one_screen(run_dir, width):
    text = shown(run_dir, "wrong", "y", "--dtype", "float32", width=width)
    assert text.startswith("wrong float32 y 4×6\nsemantic; rtol 1.3e-06 atol 1e-05; envelope ")
    table = {line.split()[0]: line.split() for line in text.splitlines()[4:7]}
    assert list(table) == ["oracle", "numpy", "mine"]
    assert float(table["mine"][-2]) == 0.5
    assert float(table["numpy"][-1]) < 8 < float(table["mine"][-1])
    assert re.search(r"\nmine +[▁-█ ]*█", text)
    assert "\nwhere mine differs most\n  [1, 3]: " in text
    assert re.search(r"\[1, 3\]: .*, error 0\.5\n  \[1, 4\]: .*, error 0\.25\n", text)
    assert "  axis 0 (4): at 1\n  axis 1 (6): at 3, 4\n" in text
    (row,) = (line for line in text.splitlines() if re.fullmatch(r"  \|...█.*\|", line))
    assert row[4:6] == "  " or row[3] in " ·"
    assert len(text.splitlines()) < 40


def test_a_slice_of_everybody(run_dir):
    text = shown(run_dir, "wrong", "y", "--slice", "1, 3:5", "--dtype", "float64")
    values = {name: np.array(found.split(), float) for name, found in re.findall(r"(\w+)\[1, 3:5\]\n\[(.*)\]", text)}
    assert list(values) == ["oracle", "numpy", "mine"]
    assert np.allclose(values["mine"] - values["oracle"], [0.5, 0.25])
    assert "mine[...]" in shown(run_dir, "wrong", "y", "--slice", "...")


def test_only_what_is_asked_for(run_dir):
    text = shown(run_dir, "wro", "y", "-b", "numpy", "--dtype", "float64")
    assert text.startswith("wrong float64 y 4×6\n")
    assert "mine" not in text


def test_an_input(run_dir):
    text = shown(run_dir, "wrong", "inputs.x")
    assert text.startswith("wrong inputs.x 4×6\n")
    assert shown(run_dir, "wrong", "x") == text
    assert "input[0]" in shown(run_dir, "wrong", "x", "--slice", "0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wrong", "yy"], 'wrong has no tensor "yy"; did you mean "y"?'),
        (["wrong", "inputs.weigth"], 'did you mean "inputs.weight"?'),
        (["wrogn", "y"], 'this run has no case "wrogn"; did you mean "wrong"?'),
        (["wrong", "y", "--dtype", "float46"], 'wrong has no dtype "float46"; did you mean "float64"?'),
        (["wrong", "y", "-b", "mime"], 'wrong has no backend "mime"; did you mean "mine"?'),
        (["wrong", "y", "--slice", "9"], "[9] is outside y, 4×6: index 9 is out of bounds"),
        (["wrong", "y", "--slice", "0,0,0"], "[0,0,0] is outside y, 4×6: too many indices"),
        (["wrong", "y", "--slice", "__import__('os')"], "is not a slice such as 0,:5"),
    ],
)
def test_mistakes_are_told_with_what_there_is(run_dir, words, said):
    done = call("inspect", run_dir, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_what_was_not_stored_is_told_with_the_remedy(tmp_path):
    config = user_config(FAKES / "honest.py", cases=CASES[:1])
    done = run_in(tmp_path, config)
    assert done.code == 0
    told = call("inspect", done.run_dir, "wrong", "y")
    assert told.returncode == 2
    assert "y of wrong was not stored: only tensors that differ, or hide an error, are" in told.stderr
    assert "run the case again with --rtol 0 --atol 0" in told.stderr
    again = run_in(tmp_path, config, "--rtol", "0", "--atol", "0")
    assert "envelope" in shown(again.run_dir, "wrong", "y")


def test_what_is_no_run_is_named(tmp_path):
    done = call("inspect", tmp_path, "wrong", "y")
    assert (done.returncode, "a run directory?" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("fake", "said"), [("nan", "NaN or Inf in only one"), ("wrong_shape", "differs from that of the exact answer")]
)
def test_what_cannot_be_measured_is_shown_all_the_same(tmp_path, fake, said):
    case = CASES[0].replace("6", "13")
    done = run_in(tmp_path, user_config(FAKES / f"{fake}.py", cases=[case]))
    assert said in call("inspect", done.run_dir, "wrong", "y", env={"COLUMNS": "200"}).stdout


def test_a_file_that_is_no_tensor_is_named(run_dir):
    (file,) = run_dir.glob("tensors/*/float32/mine/y.npy")
    kept = file.read_bytes()
    file.write_bytes(b"no tensor")
    try:
        done = call("inspect", run_dir, "wrong", "y", "--dtype", "float32")
        assert (done.returncode, str(file) in done.stderr) == (2, True)
    finally:
        file.write_bytes(kept)


def test_tokens_are_an_input_too(tmp_path):
    done = run_in(tmp_path, f"version: 1\nbackends: [numpy]\ncases:\n  - {CASES[1]}\n")
    assert "int64" in shown(done.run_dir, "ids", "inputs.x")


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", (0,)),
        ("-1,:5", (-1, slice(None, 5))),
        (" 1:2 , ..., ::-2", (slice(1, 2), ..., slice(None, None, -2))),
        (":", (slice(None),)),
    ],
)
def test_slices_are_read_as_numpy_reads_them(text, index):
    assert parsed(text) == index


@pytest.mark.parametrize("text", ["", "a", "1.5", "0,", "1:2:3:4", "...,...", "::0", "[0]", "9" * 30, "None"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(InspectError):
        parsed(text)


def test_decades_are_written_where_there_is_room():
    assert ticks(LogBins(-1, 3)) == "    1       100"
    line = ticks(LogBins(-6, 16))
    assert line.split() == ["0.0001", "1", "10000", "1e+08", "1e+12", "1e+16"]
    assert [line.index(label) for label in ("0.0001", "  1 ", "1e+16")] == [4, 10, 44]
