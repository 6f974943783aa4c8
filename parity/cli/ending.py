"""The end of a command: it does not wait for what a user's code still runs in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Inside, SystemExit ends this process even if threads or processes of a user's code still run, for which Python
    would wait, and ends what it has started."""
    try:
        yield
    except SystemExit as error:
        user_code = sys.modules.get("parity.cases.user_code")
        if user_code is None or not user_code.MARKS:
            raise
        from parity.engine.process import kill_strays

        kill_strays(user_code.MARKS, user_code.MARK)
        children = left_children()
        if not children and not any(thread.is_alive() for thread in user_code.THREADS):
            raise
        for child in children:
            child.kill()
        leave(error.code)


def left_children() -> list[Any]:
    """The processes that `multiprocessing` waits for at the end of the interpreter."""
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else [c for c in multiprocessing.active_children() if not c.daemon]


def leave(code: object) -> None:
    """End this process with what `sys.exit(code)` means, without exit handlers."""
    if code is not None and not isinstance(code, int):
        click.echo(code, err=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
