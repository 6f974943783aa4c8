"""Code of a user in this process leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from parity.cases.user_code import BroughtError, user_code

SABOTAGE = {
    "recursion": "sys.setrecursionlimit(sys.getrecursionlimit() - 100)",
    "streams": "sys.stdout = sys.stderr = sys.excepthook = None",
    "function": "json.dumps = None",
    "module": "sys.modules['json'] = None",
    "profile": "threading.setprofile(print)",
    "limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_the_interpreter_is_as_before(name: str):
    def state() -> list[object]:
        modules = {key: id(module) for key, module in sys.modules.items()}
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        return [
            limits,
            sys.getrecursionlimit(),
            sys.stdout,
            sys.excepthook,
            json.dumps,
            modules,
            threading.getprofile(),
        ]

    before = state()
    with user_code(Path("reference.py")):
        exec(SABOTAGE[name], {"sys": sys, "json": json, "threading": threading, "resource": resource})
    assert state() == before


@pytest.mark.parametrize("end", ["", "raise RuntimeError"])
def test_open_files_that_leave_no_room_for_others_are_an_error_of_their_file(end: str):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept: list[int] = []
    fill = f"with suppress(OSError):\n    while True:\n        kept.append(os.open('/dev/null', os.O_RDONLY))\n{end}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with pytest.raises(BroughtError, match="leaves too many files open"), user_code(Path("reference.py")):
            exec(fill, {"kept": kept, "suppress": suppress, "os": os})
    finally:
        for number in kept:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
