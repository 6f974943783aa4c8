"""A run that ends when its time is over, or when the candidate is known to be wrong; what was not run is said."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from parity import exit_codes
from parity.config.plan import Plan
from parity.engine import EngineOptions, Event, execute
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison


def excused(row: Comparison) -> bool:
    """Whether the reference's own code is as far from its formula: it is what the candidate has to do."""
    if row.expected not in row.culprit:
        return False
    own, reference = row.error_ratio.actual, row.error_ratio.expected
    if own is not None and reference is not None and math.isfinite(own):
        return own <= ERROR_BOUND * reference
    got, wanted, exact = row.actual_value, row.expected_value, row.oracle_value
    if got is None or wanted is None or exact is None:
        return False
    return str(got) == str(wanted) or abs(got - exact) <= ERROR_BOUND * abs(wanted - exact)


class Watch:
    """Passes events on to an observer, and notes whether the candidate is wrong in a case. `deadline` is a time of the
    monotonic clock; the first case is finished in any case."""

    def __init__(self, observer: Any, deadline: float, fail_on: str, *, everything: bool) -> None:
        self.observer, self.deadline, self.everything = observer, deadline, everything
        self.failing = exit_codes.FAILING[fail_on]
        self.is_wrong = False

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Note what is wrong."""
        self.observer.on_event(event, comparisons)
        rows = [row for row in comparisons if row.counts and row.verdict.value in self.failing]
        self.is_wrong = self.is_wrong or any(not excused(row) for row in rows)

    def source(self, plan: Plan, options: EngineOptions, run_dir: Path, done: Collection[str]) -> Iterator[Event]:
        """The events of a run, up to the end."""
        finished = False
        with closing(execute(plan, options, run_dir, done)) as events:  # type: ignore[type-var]
            for event in events:
                yield event
                finished = finished or getattr(event, "last_of_case", False)
                if finished and (time.monotonic() > self.deadline or (self.is_wrong and not self.everything)):
                    return
