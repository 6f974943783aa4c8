"""Code of a user in this process leaves nothing behind."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from parity.cases.user_code import user_code

SABOTAGE = {
    "recursion": "sys.setrecursionlimit(sys.getrecursionlimit() - 100)",
    "streams": "sys.stdout = sys.stderr = sys.excepthook = None",
    "function": "json.dumps = None",
    "module": "sys.modules['json'] = None",
    "profile": "threading.setprofile(print)",
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_the_interpreter_is_as_before(name: str):
    def state() -> list[object]:
        modules = {key: id(module) for key, module in sys.modules.items()}
        return [sys.getrecursionlimit(), sys.stdout, sys.excepthook, json.dumps, modules, threading.getprofile()]

    before = state()
    with user_code(Path("reference.py")):
        exec(SABOTAGE[name], {"sys": sys, "json": json, "threading": threading})
    assert state() == before
