"""The exit code: what a CI job is told."""

from __future__ import annotations

from collections.abc import Iterable

from parity.judge.verdict import Verdict

PASSED = 0
MISMATCH = 1
USAGE = 2
INCOMPLETE = 3
INTERRUPTED = 130


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 for any mismatch, else 3 where something was not compared or nothing was, else 0."""
    seen = set(verdicts)
    if any(verdict.fails for verdict in seen):
        return MISMATCH
    if not seen or Verdict.NOT_COMPARED in seen:
        return INCOMPLETE
    return PASSED
