"""What code of a user may set in this process, and what is as before once it ends: in NumPy, in the standard library,
and of the process."""

from __future__ import annotations

import decimal
import gc
import locale
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np


@contextmanager
def same_settings(*, alone: bool) -> Iterator[None]:
    """Whatever the code sets, all is as before; `alone`: no other thread runs a user's code, so this includes what the
    whole process shares."""
    with ExitStack() as stack:
        for setting in (numpy_errors, np.printoptions, decimal.localcontext):
            stack.enter_context(setting())
        for setting in (same_warnings, same_locale, same_process) if alone else ():
            stack.enter_context(setting())
        yield


@contextmanager
def numpy_errors() -> Iterator[None]:
    """What NumPy does about overflow and the like."""
    before, handler = np.geterr(), np.geterrcall()
    try:
        yield
    finally:
        np.seterr(**before)
        np.seterrcall(handler)


@contextmanager
def same_warnings() -> Iterator[None]:
    """The filters of warnings."""
    filters, items = warnings.filters, list(warnings.filters)
    try:
        yield
    finally:
        if warnings.filters is not filters or filters != items:
            filters[:] = items  # type: ignore[index]
            warnings.filters = filters
            with warnings.catch_warnings():
                pass  # Its end tells the interpreter that the filters have changed.


@contextmanager
def same_locale() -> Iterator[None]:
    """How numbers are written and text is sorted."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        yield
    finally:
        if locale.setlocale(locale.LC_ALL) != before:
            with suppress(locale.Error):
                locale.setlocale(locale.LC_ALL, before)


@contextmanager
def same_process() -> Iterator[None]:
    """The environment, where modules are found, and whether garbage is collected."""
    environment, path, entries, collected = dict(os.environ), sys.path, list(sys.path), gc.isenabled()
    try:
        yield
    finally:
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        path[:] = entries
        sys.path = path
        (gc.enable if collected else gc.disable)()
