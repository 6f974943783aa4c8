"""The exit codes: what a CI job is told. Light enough for `parity --help`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    if not seen or not all(verdict.passes for verdict in seen):
        return INCOMPLETE
    return PASSED
