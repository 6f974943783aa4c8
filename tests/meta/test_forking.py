"""Workers that tests fork do what started ones do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from parity.engine import process
from parity.engine.forking import ForkedWorker, ForkServer, Script
from parity.engine.logs import RunLog
from parity.engine.process import WorkerError, WorkerProcess
from tests.forking import LAUNCHED, ServersOfTests, named

PYTHON = Path(sys.executable)
HELLO = {"do": "hello", "protocol": 1, "adapter": "numpy", "device": "cpu", "threads": 1, "mode": "eager", "ranks": 1}
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def servers() -> Iterator[ServersOfTests]:
    made, before = ServersOfTests(), process.launched
    yield made
    made.pytest_unconfigure()
    process.launched = before


@pytest.fixture
def forked(servers: ServersOfTests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WorkerProcess]:
    """A forked worker of NumPy."""
    monkeypatch.setattr(process, "launched", servers.launched)
    with closing(RunLog(tmp_path / "log")) as log:
        worker = WorkerProcess(PYTHON, "numpy", os.environ, log)
        yield worker
        worker.kill()


@pytest.fixture
def other(forked: WorkerProcess, tmp_path: Path) -> Iterator[Callable[[], WorkerProcess]]:
    """Makes a second worker."""
    with closing(RunLog(tmp_path / "other")) as log, ExitStack() as stack:

        def made() -> WorkerProcess:
            worker = WorkerProcess(PYTHON, "numpy", os.environ, log)
            stack.callback(worker.kill)
            return worker

        yield made


def reply_of(worker: WorkerProcess, lines: str, tmp_path: Path) -> Any:
    """What a worker says of a user's file with these lines at its head."""
    file = tmp_path / "ops.py"
    file.write_text(f"import os, sys\n{lines}\ndef relu(x):\n    return x\n")
    assert worker.request(HELLO, 60)["ok"]
    return worker.request({"do": "load", "path": str(file), "wanted": ["relu"]}, 60)


def test_a_forked_worker_answers_as_a_started_one(
    forked: WorkerProcess, other: Callable[[], WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "launched", LAUNCHED)
    started = other()
    assert not isinstance(started._process, ForkedWorker)
    assert isinstance(forked._process, ForkedWorker)
    assert forked.request(HELLO, 60) == started.request(HELLO, 60)
    assert forked.pid == os.getpgid(forked.pid) == os.getsid(forked.pid)


def test_its_end_is_told(forked: WorkerProcess, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="exited with status 7"):
        reply_of(forked, "os._exit(7)", tmp_path)
    assert not forked.alive


def test_a_kill_is_told(forked: WorkerProcess) -> None:
    assert forked.alive
    os.killpg(forked.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        forked.request(HELLO, 60)


def test_it_has_its_own_environment_and_folder(forked: WorkerProcess, tmp_path: Path) -> None:
    lines = f"assert os.environ['{process.COOKIE}'] == '{forked.cookie}'\nassert os.getcwd() == '{Path.cwd()}'"
    assert reply_of(forked, lines, tmp_path)["ok"]


def test_two_draw_other_numbers(forked: WorkerProcess, other: Callable[[], WorkerProcess], tmp_path: Path) -> None:
    """As processes do that are started."""
    lines = "import random, numpy\nraise ValueError(f'{random.random()} {numpy.random.rand()}')"
    drawn = [reply_of(worker, lines, tmp_path)["message"].split()[-2:] for worker in (forked, other())]
    assert not set(drawn[0]) & set(drawn[1])


def test_a_changed_environment_starts_a_process(servers: ServersOfTests) -> None:
    worker = servers.launched(PYTHON, "numpy", {**os.environ, "PARITY_OTHER": "1"})
    worker.kill()
    worker.communicate()
    assert not isinstance(worker, ForkedWorker)


def test_what_starts_threads_or_cannot_be_imported_is_not_forked(tmp_path: Path) -> None:
    environment = named(os.environ)
    for lines in (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "raise ImportError",
    ):
        (tmp_path / "torch.py").write_text(lines)
        assert not ForkServer(PYTHON, "torch", {**environment, "PYTHONPATH": str(tmp_path)}).usable


WRITING = """
import os, pathlib, sys
def main():
    pathlib.Path(sys.argv[1], "written").write_text(f"{os.environ['PARITY_TEST']} {'torch' in sys.modules} {os.getcwd()}")
    print("nobody reads this" * 100_000)
def failing():
    raise ValueError
"""


@pytest.mark.parametrize("how", ["forked", "started"])
def test_a_script_is_called_with_its_arguments_folder_and_variables(tmp_path, monkeypatch, how):
    (tmp_path / "writing.py").write_text(WRITING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = ServersOfTests() if how == "forked" else None
    for calls, status in ((["writing:main"], 0), (["writing:failing", "writing:main"], 1)):
        script = Script(calls, [str(tmp_path)], tmp_path, {"PARITY_TEST": "yes"})
        process = script.started() if made is None else made.script(script)
        assert process.wait(60) == status
    assert (tmp_path / "written").read_text() == f"yes {how == 'forked'} {tmp_path}"
    if made is not None:
        assert isinstance(process, ForkedWorker)
        made.close()
