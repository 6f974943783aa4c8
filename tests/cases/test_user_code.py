"""Code of a user in this process leaves nothing behind."""

from __future__ import annotations

import decimal
import gc
import json
import locale
import os
import resource
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from parity.cases.user_code import BroughtError, user_code

MODULES = ("decimal", "gc", "json", "locale", "os", "resource", "sys", "threading", "warnings")
SABOTAGE = {
    "recursion": "sys.setrecursionlimit(sys.getrecursionlimit() - 100)",
    "streams": "sys.stdout = sys.stderr = sys.excepthook = None",
    "function": "json.dumps = None",
    "module": "sys.modules['json'] = None",
    "profile": "threading.setprofile(print)",
    "errors of NumPy": "np.seterr(all='raise'); np.seterrcall(print)",
    "printing": "np.set_printoptions(precision=2)",
    "warnings": "warnings.simplefilter('error')",
    "reset warnings": "warnings.filters = []",
    "decimal": "decimal.getcontext().prec = 3",
    "locale": "locale.setlocale(locale.LC_ALL, 'C' if locale.setlocale(locale.LC_ALL) != 'C' else 'C.UTF-8')",
    "environment": "os.environ.clear()",
    "path": "sys.path = []",
    "garbage": "gc.disable()",
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
            np.geterr(),
            np.geterrcall(),
            np.get_printoptions(),
            list(warnings.filters),
            decimal.getcontext().prec,
            locale.setlocale(locale.LC_ALL),
            dict(os.environ),
            list(sys.path),
            gc.isenabled(),
        ]

    before = state()
    with user_code(Path("reference.py")):
        exec(f"import {', '.join(MODULES)}\nimport numpy as np\n{SABOTAGE[name]}", {})
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


ENDLESS = """
from pathlib import Path
from parity.cases import user_code
user_code.LIMIT_S = user_code.GRACE_S = 0.5
with user_code.user_code(Path("reference.py")):
    exec(compile("def my_op():\\n    return sum(range(10**13))\\nmy_op()", "reference.py", "exec"))
"""


@pytest.mark.process
def test_code_in_c_that_hangs_ends_with_its_line():
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert 'File "reference.py", line 2 in my_op' in done.stderr


def test_code_that_catches_the_first_error_is_told_again(monkeypatch):
    monkeypatch.setattr("parity.cases.user_code.LIMIT_S", 0.1)
    monkeypatch.setattr("parity.cases.user_code.AGAIN_S", 0.1)
    n = 0
    with pytest.raises(TimeoutError), user_code(Path("reference.py")):
        while True:
            try:
                while True:
                    pass
            except TimeoutError:
                n += 1
                if n == 2:
                    raise
    assert n == 2
