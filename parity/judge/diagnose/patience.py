"""How long the search for a cause may take, where somebody waits for it; without a limit it does not depend on time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from parity.cases.program import Array
from parity.config.plan import CasePlan
from parity.judge.compare.verdict import Comparison

Item = TypeVar("Item")
SECONDS: ContextVar[float] = ContextVar("SECONDS", default=math.inf)
"""The seconds for each finding."""
UNSEARCHED: ContextVar[frozenset[str]] = ContextVar("UNSEARCHED", default=frozenset())
"""Backends for whose errors no cause is searched: nobody asks about them."""
IS_ASKED: ContextVar[Callable[[Sequence[Comparison]], bool] | None] = ContextVar("IS_ASKED", default=None)
"""Whether somebody asks about the errors of a case, from its comparisons; without it, each error is asked about."""
BRIEF = 4.0
"""The seconds for a finding whose fault is known before its cause is searched."""
Locate = Callable[[CasePlan, str, Mapping[str, Array], Sequence[str]], bool]
LOCATE: ContextVar[Locate | None] = ContextVar("LOCATE", default=None)
"""What is tried first, for a case, a dtype, its inputs, and the tensors that differ, the worst first: whether it knows
the fault."""
ENDED: ContextVar[bool] = ContextVar("ENDED", default=False)
"""Whether somebody has ended a search, and with it the run: what was found stays, without its cause."""
_UNTIL: ContextVar[float] = ContextVar("_UNTIL", default=math.inf)


@contextmanager
def searching(is_asked: Callable[[Sequence[Comparison]], bool], locate: Locate) -> Iterator[None]:
    """Within it, causes are searched in the cases whose errors somebody asks about, after `locate`."""
    tokens = IS_ASKED.set(is_asked), LOCATE.set(locate)
    ENDED.set(False)
    try:
        yield
    finally:
        IS_ASKED.reset(tokens[0])
        LOCATE.reset(tokens[1])


@contextmanager
def limited(seconds: float = math.inf) -> Iterator[None]:
    """Within it, a search ends after SECONDS, or these: what has not been tried by then is left out."""
    token = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + min(seconds, SECONDS.get())))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def is_late() -> bool:
    """Whether the time of a search is over."""
    return time.monotonic() > _UNTIL.get()


def in_time(items: Iterable[Item]) -> Iterator[Item]:
    """The items, until the time of a search is over."""
    for item in items:
        if is_late():
            return
        yield item
