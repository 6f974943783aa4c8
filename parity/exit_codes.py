"""The exit codes. Imports nothing heavy, so that `parity --help` is quick."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity.judge.compare.verdict import Comparison

PASSED = 0
MISMATCH = 1
USAGE = 2
INCOMPLETE = 3
INTERRUPTED = 130

# Verdicts by their values: importing the enum would import NumPy, which slows --help down.
NOT_COMPARED = "not-compared"
FAILING: Mapping[str, frozenset[str]] = {
    "mismatch": frozenset(("rounding", "choice", "degraded", "unstable", "semantic", "nonfinite", "structure")),
    "degraded": frozenset(("degraded", "unstable", "semantic", "nonfinite", "structure")),
    "unstable": frozenset(("unstable", "semantic", "nonfinite", "structure")),
    "semantic": frozenset(("semantic", "nonfinite", "structure")),
}
"""The verdicts that fail at each level of `--fail-on`; nonfinite and structure fail at every level."""

FAIL_ON = tuple(FAILING)
"""The levels of `--fail-on`, the strictest first."""
DEFAULT_FAIL_ON = "degraded"
"""Findings fail; a difference by rounding is a warning."""


def exit_code(comparisons: Iterable[Comparison], *, fail_on: str = DEFAULT_FAIL_ON, known_fails: bool = False) -> int:
    """1 for findings at the level `fail_on` or a failing `known` entry, else 3 if anything was not compared, else 0.

    An accepted comparison (`known` is set) is no finding and does not count as missing, unless nothing at all was
    compared. What a run does not judge is left out.
    """
    seen = {(comparison.verdict.value, comparison.known is not None) for comparison in comparisons if comparison.counts}
    return code_of(seen, fail_on=fail_on, known_fails=known_fails)


def code_of(
    seen: Collection[tuple[str, bool]],
    *,
    fail_on: str = DEFAULT_FAIL_ON,
    known_fails: bool = False,
    judge_failed: bool = False,
) -> int:
    """The exit code for the verdicts that occur, each with whether it is accepted; without findings, 3 if the judge
    has failed anywhere."""
    if known_fails or any(verdict in FAILING[fail_on] and not accepted for verdict, accepted in seen):
        return MISMATCH
    if judge_failed or (NOT_COMPARED, False) in seen or all(verdict == NOT_COMPARED for verdict, _ in seen):
        return INCOMPLETE
    return PASSED
