"""Chooses the steps to probe: the first ones, those where the schedule changes, some spread over the run, and those
where a curve diverges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.training.cost import LONGDOUBLE, cost
from parity.training.judge.measured import FIRST_RUNS
from parity.training.schedules import SCHEDULES
from parity.training.spec import Training

FIRST = (1, 2, 3)
"""Consecutive steps show what one step leaves for the next."""
PROBES = 8
FEWEST = 2
PROBES_S = 300.0
"""Approximate limit on the oracle's seconds for the probes of all backends; the first two are always made."""


def planned_steps(training: Training, n_backends: int = 1, dtype: str = "float32") -> tuple[int, ...]:
    """The steps that are always probed, in order: about PROBES, fewer if the oracle is slow."""
    first = [step for step in (*FIRST, *schedule_changes(training)) if 1 <= step <= training.steps]
    n_free = max(0, PROBES - len(set(first)))
    spread = np.linspace(FIRST[-1], training.steps, n_free + 1)[1:].round().astype(int).tolist() if n_free else []
    wanted = list(dict.fromkeys([*first, *(step for step in reversed(spread) if 1 <= step <= training.steps)]))
    seconds = n_backends * cost(training) * (FIRST_RUNS + (LONGDOUBLE if dtype == "float64" else 1.0))
    return tuple(sorted(wanted[: max(FEWEST, int(PROBES_S / seconds))]))


def schedule_changes(training: Training) -> Iterator[int]:
    """The steps before and after the end of the warm-up, or of the first interval of a step schedule."""
    kind = SCHEDULES[training.schedule.name]
    options = kind.options(**training.schedule.options)
    length = getattr(options, kind.warmup) if kind.warmup else getattr(options, "step_size", 0)
    if length:
        yield from (length, length + 1)


def around(step: int, last: int) -> tuple[int, ...]:
    """A step and its neighbours, between 1 and `last`."""
    return tuple(s for s in (step - 1, step, step + 1) if 1 <= s <= last)
