"""Comparisons to exit codes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from parity import exit_codes
from parity.judge.compare.verdict import Verdict, comparison_of


def compared(*verdicts, known=None):
    return [replace(comparison_of("one", "float32", "y", "b", "a", verdict), known=known) for verdict in verdicts]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], 3),
        ([Verdict.EQUAL, Verdict.CLOSE], 0),
        ([Verdict.CLOSE, Verdict.NOT_COMPARED], 3),
        ([Verdict.NOT_COMPARED], 3),
        ([Verdict.ROUNDING, Verdict.CLOSE], 0),
        ([Verdict.NOT_COMPARED, Verdict.UNSTABLE], 1),
        ([Verdict.STRUCTURE], 1),
        ([Verdict.EQUAL, Verdict.NONFINITE], 1),
    ],
)
def test_exit_codes(found, code):
    assert exit_codes.exit_code(compared(*found)) == code


@pytest.mark.parametrize(
    ("level", "failing"),
    [
        ("mismatch", "rounding choice degraded unstable semantic nonfinite structure"),
        ("degraded", "degraded unstable semantic nonfinite structure"),
        ("unstable", "unstable semantic nonfinite structure"),
        ("semantic", "semantic nonfinite structure"),
    ],
)
def test_levels(level, failing):
    codes = {verdict.value: exit_codes.exit_code(compared(verdict), fail_on=level) for verdict in Verdict}
    assert {name for name, code in codes.items() if code == exit_codes.MISMATCH} == set(failing.split())
    assert [name for name, code in codes.items() if code == exit_codes.INCOMPLETE] == ["not-compared"]


def test_the_first_level_is_every_verdict_that_fails():
    assert exit_codes.FAILING[exit_codes.FAIL_ON[0]] == {verdict.value for verdict in Verdict if verdict.fails}
    assert exit_codes.FAIL_ON == ("mismatch", "degraded", "unstable", "semantic")


def test_each_level_is_a_part_of_the_one_before():
    levels = [exit_codes.FAILING[level] for level in exit_codes.FAIL_ON]
    assert all(weaker < stricter for stricter, weaker in pairwise(levels))


def test_what_is_below_the_level_does_not_hide_what_is_missing():
    assert exit_codes.exit_code(compared(Verdict.ROUNDING, Verdict.NOT_COMPARED), fail_on="degraded") == 3


def test_accepted_deviations_do_not_count():
    assert exit_codes.exit_code(compared(Verdict.STRUCTURE, known="as documented")) == 0
    assert exit_codes.exit_code([*compared(Verdict.SEMANTIC, known="x"), *compared(Verdict.SEMANTIC)]) == 1
    assert exit_codes.exit_code([*compared(Verdict.SEMANTIC, known="x"), *compared(Verdict.NOT_COMPARED)]) == 3


def test_what_is_accepted_as_unsupported_is_not_missing_unless_nothing_was_compared():
    accepted = compared(Verdict.NOT_COMPARED, known="no such kernel")
    assert exit_codes.exit_code([*accepted, *compared(Verdict.CLOSE)]) == 0
    assert exit_codes.exit_code([*accepted, *compared(Verdict.SEMANTIC, known="x")]) == 0
    assert exit_codes.exit_code([*accepted, *compared(Verdict.CLOSE, Verdict.NOT_COMPARED)]) == 3
    assert exit_codes.exit_code([*accepted, *compared(Verdict.SEMANTIC)]) == 1
    assert exit_codes.exit_code(accepted) == 3


@pytest.mark.parametrize("level", exit_codes.FAIL_ON)
def test_a_failing_known_entry_fails_at_every_level(level):
    assert exit_codes.exit_code(compared(Verdict.EQUAL), fail_on=level, known_fails=True) == 1
    assert exit_codes.exit_code([], fail_on=level, known_fails=True) == 1


def test_an_unknown_level_is_no_pass():
    with pytest.raises(KeyError):
        exit_codes.exit_code(compared(Verdict.EQUAL), fail_on="never")
