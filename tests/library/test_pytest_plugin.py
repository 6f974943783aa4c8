"""The pytest plugin in sessions of its own: the fixture, what a failure shows, and the arrays that are kept."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest_plugins = ["pytester"]

FAILING = """
import numpy as np

def test_layer(assert_parity):
    w = np.arange(12.0).reshape(3, 4)
    actual = {"w": w + 1, "../b c": w, "same": w}
    assert_parity(actual, {"w": w, "../b c": 2 * w, "same": w}, exact={"w": w, "../b c": None, "same": None})
"""


@pytest.fixture
def session(pytester):
    """Runs pytest on the text of a test module, in a process of its own, with warnings as errors."""

    def run(text, *arguments):
        pytester.makepyfile(test_it=text)
        return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *arguments)

    return run


def test_a_pass_passes(session):
    done = session("def test_it(assert_parity):\n    assert_parity([1.0, 2], [1.0, 2])\n")
    done.assert_outcomes(passed=1)


def test_a_failure_shows_the_test_and_the_message_and_no_line_of_parity(session):
    done = session(FAILING)
    done.assert_outcomes(failed=1)
    text = done.stdout.str()
    assert '>       assert_parity(actual, {"w": w, "../b c": 2 * w, "same": w}, exact=' in text
    assert "E       parity.ParityError: 2 of 3 tensors differ: 2 outside the tolerance" in text
    assert "E       w: outside, float64, [3, 4]" in text
    assert "E         looks like: actual is 1/2 of expected" in text
    assert "FAILED test_it.py::test_layer - parity.ParityError: 2 of 3 tensors differ" in text
    assert "pytest_plugin.py" not in text
    assert "saved" not in text


def test_the_function_hides_its_lines_too(session):
    done = session("import parity\n\ndef test_it():\n    parity.assert_parity([1.0], [2.0])\n")
    done.assert_outcomes(failed=1)
    assert "check.py" not in done.stdout.str()
    done.stdout.fnmatch_lines([">       parity.assert_parity([[]1.0[]], [[]2.0[]])"])


def test_the_arrays_of_what_differs_are_saved_and_the_message_says_where(session, pytester):
    done = session(FAILING, "--parity-save", "kept")
    folder = pytester.path / "kept" / "test_it.py" / "test_layer"
    done.stdout.fnmatch_lines([f"E*the arrays are saved in {folder}"])
    w = np.arange(12.0).reshape(3, 4)
    assert sorted(path.name for path in folder.iterdir()) == [
        "000-w.actual.npy",
        "000-w.exact.npy",
        "000-w.expected.npy",
        "001-_.._b_c_.actual.npy",
        "001-_.._b_c_.expected.npy",
    ]
    np.testing.assert_array_equal(np.load(folder / "000-w.actual.npy"), w + 1)
    np.testing.assert_array_equal(np.load(folder / "001-_.._b_c_.expected.npy"), 2 * w)


def test_nothing_is_overwritten_and_no_test_id_leads_out_of_the_directory(session, pytester):
    text = """
        import pytest

        @pytest.mark.parametrize("name", ["../" * 6 + "up", "a/b"])
        def test_it(assert_parity, name):
            for value in (2.0, 3.0):
                with pytest.raises(AssertionError, match="differs"):
                    assert_parity(1.0, value)
    """
    session(text, "--parity-save", "kept").assert_outcomes(passed=2)
    before = set(pytester.path.parent.iterdir())
    files = sorted(pytester.path.rglob("*.expected.npy"))
    assert len(files) == 4
    assert all(path.is_relative_to(pytester.path / "kept") for path in files)
    assert sorted(float(np.load(path)) for path in files) == [2.0, 2.0, 3.0, 3.0]
    session(text, "--parity-save", "kept").assert_outcomes(passed=2)
    assert len(list(pytester.path.rglob("*.expected.npy"))) == 8
    assert set(pytester.path.parent.iterdir()) == before


def test_a_directory_that_cannot_be_written_does_not_hide_the_finding(session, pytester):
    (pytester.path / "kept").write_text("a file")
    done = session(FAILING, "--parity-save", "kept")
    done.stdout.fnmatch_lines(["E*2 of 3 tensors differ*", "E*the arrays could not be saved in */kept: *"])


def test_a_vacuous_pass_warns_at_the_line_of_the_test(session, pytester):
    text = "def test_it(assert_parity):\n    assert_parity(1e-9, 2e-9)\n"
    session(text).assert_outcomes(failed=1)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*test_it.py:2: ParityWarning: zeros would have passed too"])


def test_the_plugin_can_be_switched_off(session):
    session("def test_it():\n    pass\n", "-p", "no:parity").assert_outcomes(passed=1)
    done = session("def test_it(assert_parity):\n    pass\n", "-p", "no:parity")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture 'assert_parity' not found*"])


def test_a_session_that_does_not_ask_for_it_pays_nothing(session):
    session("import sys\n\ndef test_it():\n    assert 'numpy' not in sys.modules\n").assert_outcomes(passed=1)


def test_the_module_is_light():
    code = "import sys, parity.pytest_plugin; print([m for m in ('numpy', 'rich', 'autograd') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
