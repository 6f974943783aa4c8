"""How long the search for a cause may take, where somebody waits for it; without a limit it does not depend on time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from parity.judge.compare.verdict import Comparison

Item = TypeVar("Item")
SECONDS: ContextVar[float] = ContextVar("SECONDS", default=math.inf)
"""The seconds for each finding."""
UNSEARCHED: ContextVar[frozenset[str]] = ContextVar("UNSEARCHED", default=frozenset())
"""Backends for whose errors no cause is searched: nobody asks about them."""
IS_ASKED: ContextVar[Callable[[Sequence[Comparison]], bool] | None] = ContextVar("IS_ASKED", default=None)
"""Whether somebody asks about the errors of a case, from its comparisons; without it, each error is asked about."""
_UNTIL: ContextVar[float] = ContextVar("_UNTIL", default=math.inf)


@contextmanager
def searching(is_asked: Callable[[Sequence[Comparison]], bool]) -> Iterator[None]:
    """Within it, causes are searched in the cases whose errors somebody asks about."""
    token = IS_ASKED.set(is_asked)
    try:
        yield
    finally:
        IS_ASKED.reset(token)


@contextmanager
def limited() -> Iterator[None]:
    """Within it, a search ends after SECONDS: what has not been tried by then is left out."""
    token = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + SECONDS.get()))
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
