"""One call at the size of the file: what shows only there, and when it is not made."""

from __future__ import annotations

import numpy as np
import pytest
import torch  # noqa: F401 - the references need it

from parity.check.at_size import compared, too_large
from parity.check.pair import pair_of
from parity.check.problem import ReferenceProblem
from tests.check.pairs import REFERENCE, RIGHT
from tests.check.test_check import answered

pytestmark = pytest.mark.frameworks
Y = np.linspace(-3, 3, 2000)
ROUNDED = Y.astype(np.float32)


def changed(index: int, value: float) -> np.ndarray:
    values = ROUNDED.copy()
    values[index] = value
    return values


@pytest.mark.parametrize(
    ("own", "exact", "reference", "state", "reason"),
    [
        (ROUNDED, Y, ROUNDED, "passed", "2000 elements"),
        (ROUNDED * (1 + 1e-5), Y, ROUNDED, "passed", "2000 elements"),  # another order of sums
        (changed(1999, 0), Y, ROUNDED, "failed", "y[1999] is 0 where 3 is exact"),
        (changed(7, np.nan), Y, ROUNDED, "failed", "y[7] is nan where -2.97899 is exact"),
        (changed(7, 9), Y, changed(7, np.inf), "passed", "2000 elements"),  # the reference's own code overflows there
        (ROUNDED + 0.1, Y, ROUNDED + 0.1, "passed", "2000 elements"),  # as far off as the reference's own code
        (ROUNDED[:5], Y, ROUNDED, "failed", "y has shape [5], not shape [2000]"),
        (np.arange(2000), np.arange(2000), np.arange(2000), "passed", "2000 elements"),
        (np.arange(2000)[::-1], np.arange(2000), np.arange(2000), "failed", "y[0] is 1999 where 0 is exact"),
    ],
)
def test_what_may_differ(own, exact, reference, state, reason):
    answer = compared({"y": own}, {"y": exact, "after_mean": exact}, {"y": reference})
    assert (answer.state, answer.reason) == (state, reason)
    assert (answer.counterexample is not None) == (" is exact" in reason)


def test_an_output_that_is_missing():
    assert compared({}, {"y": Y}, {"y": Y}).reason == "y has nothing, not shape [2000]"


def test_what_is_too_large(tmp_path):
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE)
    it = ReferenceProblem(pair_of(str(path), str(path)), {})
    assert too_large(it, 60) == ""
    assert "it would take" in too_large(it, 1e-9)
    it.names.update(batch_size=1 << 34)
    assert "GiB of memory" in too_large(it, 60)


@pytest.mark.process
def test_a_tail_that_only_the_files_size_has(tmp_path):
    late = RIGHT.replace("return ", "return (0 if len(x) == 128 else 1) * ", 1)
    assert late != RIGHT
    row = answered(tmp_path, REFERENCE, late, "--seconds", "200")
    assert (row["verdict"], row["exit_code"]) == ("wrong", 1), row
    assert "at the size of the file, y[" in row["sentence"]
    assert row["counterexample"]["case"] == "at-size"
    assert [state for name, state, _ in row["checks"] if name == "at-size"] == ["failed"]
