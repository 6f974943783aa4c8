"""`parity judge`: a stored run under other tolerances, exactly, without running anything.

A passing tensor that now fails gets the verdict of a run with these tolerances: the one that the tolerance hid, else
`rounding`, since no backend exceeds the error bound in it.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from parity.config.tolerances import ToleranceRule, ToleranceTable
from parity.errors import UserError
from parity.exit_codes import INTERRUPTED
from parity.judge.compare.frontier import NEVER, accepts
from parity.judge.compare.verdict import Verdict
from parity.reporting.kinds import report_of
from parity.reporting.results.resume import stored
from parity.reporting.results.rows import FAILING, PASSING, Results
from parity.reporting.results.store import KNOWN, RUN, STORE, SUMMARY, Store
from parity.reporting.results.summary import settle_again

ROWS = """
    SELECT rowid, case_id, dtype, tensor, actual, expected, verdict, culprit, suspect, rtol, atol, frontier, hidden
    FROM comparisons WHERE n_elements IS NOT NULL AND verdict NOT IN ('structure', 'nonfinite', 'not-compared')"""
CHANGE = "UPDATE comparisons SET verdict = ?, suspect = ?, rtol = ?, atol = ?, n_mismatched = NULL WHERE rowid = ?"
LOST = "UPDATE comparisons SET verdict = ?, message = ? WHERE rowid = ?"
JUDGE_ALL = ("UPDATE comparisons SET counted = NULL", "UPDATE cases SET subject = '[]'")
FRONTIER = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
"""Reads a stored frontier."""
NOT_KEPT = "its tolerance frontier was not kept, so it can be judged only by running it again"


class JudgeError(UserError):
    """A run that cannot be judged; the message says why."""


@dataclass(frozen=True)
class VerdictChange:
    """A comparison with another verdict than before."""

    key: tuple[str, str, str, str, str]
    before: str
    now: str

    @property
    def fails(self) -> bool:
        """Whether it fails now."""
        return self.now in FAILING


@dataclass(frozen=True)
class Rejudged:
    """A run under other tolerances: its results, the changes, and how many tensors could not be judged."""

    results: Results
    changes: Sequence[VerdictChange]
    n_lost: int


def judged(
    run_dir: Path, rules: Sequence[ToleranceRule], fail_on: str | None, *, fail_on_others: bool = False
) -> Rejudged:
    """A run with more rules for its tolerances; raises JudgeError, and ResultsError if it cannot be read.

    `fail_on_others`: every backend is judged, not only the run's subject.
    """
    with stored(run_dir) as source, copied(source) as store:
        run, known = store.one(RUN), list(store.rows(KNOWN))
        subject = [] if fail_on_others else run.subject
        store.put(RUN, [structs.replace(run, fail_on=fail_on or run.fail_on, subject=subject)])
        for statement in JUDGE_ALL if fail_on_others else ():
            store.change(statement)
        changes, n_lost, n = [], 0, 0

        @functools.cache
        def limits_of(dtype: str, tensor: str, rtol: float, atol: float) -> tuple[float, float]:
            limits = ToleranceTable((ToleranceRule(rtol=rtol, atol=atol), *rules)).lookup(dtype, tensor)
            return limits.rtol, limits.atol

        # Trainings are judged by their envelope.
        trainings = {case for case, op in store.select("SELECT id, op FROM cases") if report_of(op).resumes_by_dtype}
        for row in store.db.execute(ROWS):
            number, case, dtype, tensor, actual, expected, before, culprit, suspect, rtol, atol, frontier, hidden = row
            if case in trainings:
                continue
            n += 1
            if frontier is None:
                n_lost += 1
                store.change(LOST, Verdict.NOT_COMPARED.value, NOT_KEPT, number)
                continue
            limits = limits_of(dtype, tensor, rtol, atol)
            vertices = FRONTIER.decode(frontier)
            if limits == (rtol, atol) or vertices in ([], [NEVER]):
                continue
            now = verdict_of(before, hidden, passes=accepts(vertices, *limits))
            if now != before:
                doubtful = culprit != "[]" if now in PASSING else suspect
                store.change(CHANGE, now, bool(doubtful), *limits, number)
                changes.append(VerdictChange((case, dtype, tensor, actual, expected), before, now))
        if n and n_lost == n:
            raise JudgeError(
                f"{run_dir}: the run has no tolerance frontiers (an earlier release wrote it, or its "
                "tensors are large); run it again, with these tolerances"
            )
        settle_again(store, known, interrupted=store.one(SUMMARY).exit_code == INTERRUPTED)
        return Rejudged(store.shown(), changes, n_lost)


def verdict_of(before: str, hidden: str | None, *, passes: bool) -> str:
    """The verdict of a comparison that now passes, or not."""
    if passes == (before in PASSING):
        return before
    return Verdict.CLOSE.value if passes else hidden or Verdict.ROUNDING.value


@contextlib.contextmanager
def copied(source: Store) -> Iterator[Store]:
    """A copy of a store, which may be changed, until the end of the context."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Store(Path(folder) / STORE)) as store:
        store.db.execute("PRAGMA journal_mode = MEMORY")
        store.db.execute("PRAGMA synchronous = OFF")
        source.db.backup(store.db)
        yield store
