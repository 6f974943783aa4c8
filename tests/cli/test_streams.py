"""stdout and stderr that are closed, full or read to their first line only: a run ends as it would have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.test_cli import NUMPY

PARITY = f"{sys.executable} -m parity"
LOSSES = [
    "2>&-",
    "2>/dev/full",
    ">&-",
    ">/dev/full",
    "<&- >&- 2>&-",
    ">/dev/full 2>/dev/full",
    "2>&1 | head -1",
    "2>&1 >/dev/null | head -1",
    "| true",
    "--json >/dev/full",
    "--json >&-",
    "--json | head -1",
    "--github >/dev/full",
    "--junit-xml - 2>/dev/full",
]


def shell(line: str, cwd, **options) -> tuple[int, str, str]:
    """The exit code of the first command of a line of bash, and what is left of stdout and stderr."""
    script = f"{line}; code=${{PIPESTATUS[0]}}; exit $code"
    done = subprocess.run(["/bin/bash", "-c", script], cwd=cwd, capture_output=True, text=True, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_stream_ends_no_run_and_changes_no_exit_code(tmp_path, loss):
    differing = NUMPY.replace("{name: other, adapter: numpy}", "{name: other, adapter: numpy, ops: ops.py}")
    (tmp_path / "ops.py").write_text("def linear(x, weight, bias):\n    return 2 * (x @ weight.T + bias)\n")
    (tmp_path / "config.yaml").write_text(differing)
    code, _, stderr = shell(f"{PARITY} run config.yaml -k second -v --out run {loss}", tmp_path)
    assert code == 1
    assert "Traceback" not in stderr
    assert json.loads((tmp_path / "run" / "results.json").read_text())["summary"]["exit_code"] == 1
    assert (tmp_path / "run" / "junit.xml").is_file()
    # Nothing that opens a file gets the number of a closed stream.
    assert (tmp_path / "run" / "log.txt").read_text() == ""


@pytest.mark.parametrize("command", ["schema", "ops", "explain --list"])
def test_lost_output_is_said_where_it_is_all_there_is(tmp_path, command):
    code, _, stderr = shell(f"{PARITY} {command} >/dev/full", tmp_path)
    assert (code, stderr) == (2, "stdout is incomplete: No space left on device\n")
    assert shell(f"{PARITY} {command} | true", tmp_path)[0] == 0


@pytest.mark.parametrize("loss", ["2>&-", "2>/dev/full"])
def test_a_wrong_command_line_is_exit_code_2_without_stderr_too(tmp_path, loss):
    assert shell(f"{PARITY} run --bogus {loss}", tmp_path)[0] == 2


LOST_INTERRUPT = """
import signal
import time

from parity.cli.group import end_once_on_signals


class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


end_once_on_signals()
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_python_drops_is_repeated():
    done = subprocess.run([sys.executable, "-c", LOST_INTERRUPT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
