"""The exit codes: what a CI job is told. Light enough for `parity --help`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity.judge.compare.verdict import Comparison

PASSED = 0
MISMATCH = 1
USAGE = 2
INCOMPLETE = 3
INTERRUPTED = 130

# Verdicts by their values: the enum comes with NumPy, which --help has no time for.
NOT_COMPARED = "not-compared"
FAILING: Mapping[str, frozenset[str]] = {
    "mismatch": frozenset(("rounding", "degraded", "unstable", "semantic", "nonfinite", "structure")),
    "degraded": frozenset(("degraded", "unstable", "semantic", "nonfinite", "structure")),
    "unstable": frozenset(("unstable", "semantic", "nonfinite", "structure")),
    "semantic": frozenset(("semantic", "nonfinite", "structure")),
}
"""What fails at each level of `--fail-on`; NaN on one side and another structure do so at every level."""

FAIL_ON = tuple(FAILING)
"""The levels of `--fail-on`, the strictest first."""
DEFAULT_FAIL_ON = "degraded"
"""Findings fail; a difference that is `rounding` is a warning."""


def exit_code(comparisons: Iterable[Comparison], *, fail_on: str = DEFAULT_FAIL_ON, ledger_fails: bool = False) -> int:
    """1 for any mismatch at the level `fail_on` or a failing ledger, else 3 where something or all is missing, else 0.

    A comparison that the ledger accepts (`known` is set) is no mismatch, and is not missing; where nothing at all was
    compared, everything is.
    """
    seen = {(comparison.verdict.value, comparison.known is not None) for comparison in comparisons}
    if ledger_fails or any(verdict in FAILING[fail_on] and not accepted for verdict, accepted in seen):
        return MISMATCH
    if (NOT_COMPARED, False) in seen or all(verdict == NOT_COMPARED for verdict, _ in seen):
        return INCOMPLETE
    return PASSED
