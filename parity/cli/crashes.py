"""A command that runs in a child of its process: where that crashes, as by C++ code of a reference, there is somebody
who says so."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Linux's `prctl`: the signal that a process gets when its parent ends."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def crash_of_child() -> int:
    """Fork. The child gets 0, and runs the command. The parent passes signals on and ends as the child does; if a
    signal has ended the child, it gets its number."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError, AttributeError):  # Not Linux: the child ends a little later.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return 0

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    os._exit(os.WEXITSTATUS(status))
