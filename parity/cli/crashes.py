"""A command that runs in a child of its process: where that crashes, as by C++ code of a reference, there is somebody
who says so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def crash_of_child() -> int:
    """Fork. The child gets 0, and runs the command. The parent passes signals on and ends as the child does; if a
    signal has ended the child, it gets its number. Raises KeyboardInterrupt if that came after one that it passed on:
    an interrupted import ends in an abort."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, child = os.getpid(), os.fork()
    if not child:
        from parity.worker.bootstrap import die_with

        die_with(parent)
        return 0

    passed: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        passed.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        if passed:
            raise KeyboardInterrupt
        return os.WTERMSIG(status)
    os._exit(os.WEXITSTATUS(status))


def end_child(code: int) -> None:
    """End this child, which has answered, without the handlers that may abort after an interrupted import."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
