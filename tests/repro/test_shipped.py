"""Every finding of the shipped configs as a script: it shows the same numbers as the run, without parity."""

from __future__ import annotations

import ast
import math
import re
import subprocess

import pytest

from parity.reporting.results.cells import cells
from parity.reporting.results.results import read_results
from parity.repro.write import MAX_ISSUE
from tests.conftest import CONFIGS, parity_command
from tests.repro.scripts import comparisons, run_alone, run_together

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The run directory of the shipped configs of eager ops, with the scripts of all findings."""
    run_dir = tmp_path_factory.mktemp("repro") / "run"
    configs = sorted(path for path in CONFIGS.glob("*.yaml") if path.stem not in ("modes", "training"))
    subprocess.run(parity_command("run", *configs, "--out", run_dir, "-q"), capture_output=True, check=False)
    done = subprocess.run(parity_command("repro", run_dir, "--all", "--issue"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return run_dir


def executables(results) -> dict[str, str]:
    return {row.name: row.executable for row in results.backends}


def test_every_finding_is_shown_with_the_numbers_of_the_run(shipped, tmp_path):
    results = read_results(shipped)
    found = [cell for cell in cells(results) if cell.finding]
    assert len(found) > 100
    scripts = {}
    for cell in found:
        scripts.setdefault(executables(results)[cell.backend], []).append(shipped / "repro" / f"{cell.anchor}.py")
    answers = run_together(scripts, tmp_path)
    for cell in found:
        code, printed = answers[shipped / "repro" / f"{cell.anchor}.py"]
        assert code == 1, (cell.anchor, code, printed)
        issue = shipped / "repro" / f"{cell.anchor}.md"
        assert issue.exists() == any(row.verdict != "rounding" for row in cell.failing or cell.hidden)
        if issue.exists():
            assert f"```text\n{printed}```" in issue.read_text()
            assert len(issue.read_text()) < MAX_ISSUE
        check_numbers(cell, printed)


def check_numbers(cell, printed: str) -> None:
    """What a script printed against results.json, bit for bit."""
    shown = list(comparisons(printed))
    assert {item.tensor for item in shown} == set(cell.tensors)
    for item in shown:
        [row] = [row for row in cell.rows if row.tensor == item.tensor and item.side in sides(row, cell.backend)]
        live = "actual" if row.actual == cell.backend else "expected"
        assert item.index == row.worst_index
        assert same(item.values[cell.backend], getattr(row, f"{live}_value"))
        assert same(item.values[item.side], (row.expected_value if live == "actual" else row.actual_value))
        assert same(item.values["exact"], row.oracle_value)
        assert same(float(item.head["largest"]), row.max_abs_diff)
        assert int(item.head["n"]) == row.n_mismatched
        assert (float(item.head["rtol"]), float(item.head["atol"])) == (row.rtol, row.atol)
        if item.ratio is not None:
            # The exact values are stored in float64: a float64 error is known up to a unit roundoff.
            assert item.ratio == pytest.approx(getattr(row.error_ratio, live), rel=6e-3, abs=1.0)


def test_another_number_than_the_run_s_is_seen(shipped):
    results = read_results(shipped)
    cell = next(cell for cell in cells(results) if cell.finding and cell.failing)
    script = shipped / "repro" / f"{cell.anchor}.py"
    printed = run_alone(executables(results)[cell.backend], script).stdout
    check_numbers(cell, printed)
    with pytest.raises(AssertionError):
        check_numbers(cell, re.sub("largest difference [0-9]", "largest difference 77", printed))
    with pytest.raises(AssertionError):
        check_numbers(cell, "")


def sides(row, backend: str) -> set[str]:
    """What the other side of a row is called."""
    other = row.expected if row.actual == backend else row.actual
    return {"exact" if other == "oracle" else other}


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def test_all_scripts_are_python_3_8_and_not_long(shipped):
    scripts = list((shipped / "repro").glob("*.py"))
    assert scripts
    for script in scripts:
        text = script.read_text()
        ast.parse(text, feature_version=(3, 8))
        assert "import parity" not in text
        assert text.count("\n") < 340
        assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("backend", ["torch", "paddle", "oneflow"])
def test_a_script_runs_by_itself(shipped, backend):
    results = read_results(shipped)
    cell = next(cell for cell in cells(results) if cell.backend == backend and cell.finding)
    done = run_alone(executables(results)[backend], shipped / "repro" / f"{cell.anchor}.py")
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith("the difference is there\n")


def test_a_call_that_raises_is_shown(shipped):
    results = read_results(shipped)
    [cell] = [cell for cell in cells(results) if cell.outcome == "error" and cell.dtype == "float32"]
    done = run_alone(executables(results)[cell.backend], shipped / "repro" / f"{cell.anchor}.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == cell.message
