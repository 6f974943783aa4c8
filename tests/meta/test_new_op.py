"""The op that CONTRIBUTING adds is a real one: its lines, put where it says, are all that parity and torch need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from parity.cases import OPS
from tests.conftest import ROOT

pytestmark = pytest.mark.frameworks

MOST_LINES = 10
PLACES = ("parity/cases/elementwise.py", "parity/adapters/torch_style.py", "configs/ops/elementwise.yaml")


def example() -> list[str]:
    """The blocks of the example: function and row, method, case."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an op")[2].partition("\n## ")[0]
    return re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL)


def before(text: str, place: str, added: str) -> str:
    """The text with some lines added before a place in it."""
    assert text.count(place) == 1, place
    return text.replace(place, added + place)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project with the example's lines."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("parity", "tests", "configs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    definition, method, case = example()
    function, row = definition.split("\n\n\n")
    ops, adapter, config = ((root / place) for place in PLACES)
    defined = before(ops.read_text(), "def relu(", f"{function}\n\n\n")
    assert "hardshrink" not in OPS, "the example must be an op that parity lacks"
    ops.write_text(before(defined, "    GELU,\n", f"    {row.strip()},\n"))
    adapter.write_text(before(adapter.read_text(), "    def gelu(self", f"{method}\n"))
    config.write_text(before(config.read_text(), "known:\n", case))
    return root


def ran(copy, *arguments):
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=copy, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_example_has_at_most_ten_lines():
    assert 0 < sum(bool(line.strip()) for block in example() for line in block.splitlines()) <= MOST_LINES


def test_its_gradients_agree_with_finite_differences(copy):
    code, text = ran(copy, "pytest", "-n0", "-rA", "tests/cases/test_reference.py", "-k", "hardshrink")
    assert code == 0, text
    assert "test_gradients_agree_with_finite_differences_in_longdouble[hardshrink]" in text


def test_a_test_of_the_real_wheels_is_selected_by_its_name(copy):
    file = "tests/adapters/test_frameworks.py"
    assert re.search(rf"pytest .*{file}.* -k NAME", (ROOT / "CONTRIBUTING.md").read_text())
    code, text = ran(copy, "pytest", "-n0", "--collect-only", file, "-k", "hardshrink")
    assert code == 0, text
    assert f"{file}::test_an_op_runs_and_agrees_with_the_oracle[hardshrink]" in text


def test_it_agrees_with_torch(copy):
    code, text = ran(copy, "parity", "run", PLACES[2], "-k", "hardshrink", "-b", "torch", "-b", "numpy", "--out", "run")
    assert code == 0, text
    rows = json.loads((copy / "run" / "results.json").read_text())["comparisons"]
    compared = {(r["dtype"], r["tensor"]) for r in rows if (r["actual"], r["expected"]) == ("torch", "oracle")}
    assert compared == {(dtype, tensor) for dtype in ("float32", "float64") for tensor in ("y", "grad.x")}
    assert {row["verdict"] for row in rows} <= {"equal", "close"}
