"""What is quoted of a worker's output."""

import os

from parity import worker
from parity.engine.logs import LogDrain, RunLog, without_own_frames

SAID = """/venv/paddle/utils/cpp_extension/extension_utils.py:717: UserWarning: No ccache found. Please be aware
  warnings.warn(warning_message)
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1763891234.123456    4711 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
2026-11-23 09:58:01.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
W1123 09:58:01.130000  4711 gpu_resources.cc:119] Please NOTE: device: 0
Traceback (most recent call last):
  File "mine.py", line 3
E1123 09:58:01.140000  4711 kernel.cc:3] cannot allocate
MemoryError
"""


def test_the_last_lines_have_no_warnings(tmp_path):
    ours, theirs = os.pipe()
    log = RunLog(tmp_path / "log.txt")
    drain = LogDrain(ours, log)
    os.write(theirs, SAID.encode())
    os.close(theirs)
    assert drain.tail().splitlines() == [
        "Traceback (most recent call last):",
        'File "mine.py", line 3',
        "E1123 09:58:01.140000  4711 kernel.cc:3] cannot allocate",
        "MemoryError",
    ]
    log.close()
    assert "ccache" in (tmp_path / "log.txt").read_text()


def test_what_was_printed_before_a_call_is_not_quoted(tmp_path):
    ours, theirs = os.pipe()
    log = RunLog(tmp_path / "log.txt")
    drain = LogDrain(ours, log)
    os.write(theirs, b"another op's error\n")
    drain.forget(wait_s=60)
    os.write(theirs, b"its own\n")
    os.close(theirs)
    assert drain.tail() == "its own"
    log.close()
    assert "another op" in (tmp_path / "log.txt").read_text()


def test_frames_of_parity_are_not_quoted():
    own = f"{worker.__path__[0]}/main.py"
    stack = f"""Traceback (most recent call last):
  File "{own}", line 133, in serve
    with os.fdopen(requests) as pipe:
         ^^^^^^^^^^^^^^^^^^^
OSError: [Errno 9] Bad file descriptor
Traceback (most recent call last):
  File "{own}", line 140, in serve
  File "my_ops.py", line 3, in softmax
    os.abort()
"""
    assert without_own_frames([]) == []
    assert without_own_frames(stack.splitlines()) == [
        "OSError: [Errno 9] Bad file descriptor",
        "Traceback (most recent call last):",
        '  File "my_ops.py", line 3, in softmax',
        "    os.abort()",
    ]
