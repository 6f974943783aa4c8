"""Frameworks that crash, hang, babble and lie, as user ops in real worker processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest

from parity.engine import process
from parity.engine.buffers import PREFIX, SHARED_MEMORY
from tests.conftest import (
    FAKES,
    Finished,
    call,
    ended,
    processes_with,
    run_in,
    started,
    three_cases,
    user_config,
    waited_for,
)
from tests.forking import LAUNCHED

CASES = ("before", "bad", "after")


def fake(name: str) -> str:
    return user_config(FAKES / f"{name}.py", cases=three_cases())


def beside_each_other(folder: Path, names: Iterable[str], *arguments: str) -> Finished:
    """One run of many fakes, each a backend of its name."""
    backends = "".join(f"  - {{name: {name}, adapter: numpy, ops: {FAKES / name}.py}}\n" for name in names)
    cases = "".join(f"  - {case}\n" for case in three_cases())
    return run_in(folder, f"version: 1\nbackends:\n  - numpy\n{backends}cases:\n{cases}", *arguments)


def others_are_unharmed(finished: Finished, name: str) -> bool:
    outcomes = finished.outcomes(name)
    healthy = [(case, dtype) for case in ("before", "after") for dtype in ("float32", "float64")]
    passed = all(row["verdict"] in ("equal", "close") for row in finished.select(actual=name) if row["case"] != "bad")
    return (
        passed
        and all(outcomes[cell] == "ok" for cell in healthy)
        and set(finished.outcomes("numpy").values()) == {"ok"}
    )


def test_a_text_in_place_of_a_tensor_is_a_difference_in_structure(parity_run):
    finished = parity_run(fake("text"))
    assert finished.code == 1
    assert all(row["message"].endswith("returns a str for y, not a tensor") for row in finished.failing(tensor="y"))
    assert finished.failing(tensor="y")


def test_an_honest_user_op_passes(parity_run):
    finished = parity_run(fake("honest"))
    assert finished.code == 0, finished.stdout
    assert "PASS" in finished.stdout
    assert {row["tensor"] for row in finished.results["comparisons"]} == {"y", "grad.x", "grad.weight", "grad.bias"}


BAD = {
    "segfault": ("crash", "killed by SIGSEGV"),
    "abort": ("crash", "SIGABRT; last output: terminate called"),
    "leave": ("crash", "exited with status 0 before it replied"),
    "orphan": ("crash", "exited with status 3"),
    "hang": ("timeout", "no result after 5 s"),
    "raises": ("error", "raises.py:11: ValueError: no such kernel"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory) -> Finished:
    # What one of them leaves behind is found by the environment of its start, which a forked worker's fork lacks.
    with patch.object(process, "launched", LAUNCHED):
        return beside_each_other(tmp_path_factory.mktemp("bad"), BAD, "--timeout", "5")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_cell_costs_only_itself(bad, name):
    outcome, said = BAD[name]
    found = bad.outcomes(name)
    assert found["bad", "float32"] == found["bad", "float64"] == outcome
    assert said in bad.message(name)
    assert others_are_unharmed(bad, name)
    assert bad.code == 3
    assert {row["verdict"] for row in bad.select(case="bad", actual=name)} == {"not-compared"}


def test_a_noisy_op_is_heard_in_the_log_only(parity_run):
    finished = parity_run(fake("noisy"))
    assert finished.code == 0
    assert b"noise without an end of line" in (finished.run_dir / "log.txt").read_bytes()
    assert "noise" not in finished.stdout


LIARS = {
    "wrong_shape": ("structure", "wrong_shape has shape [4, 12], oracle [4, 13]"),
    "wrong_dtype": ("structure", "wrong_dtype has dtype"),
    "nothing": ("structure", "nothing has no y"),
    "extra": ("structure", "extra returns mean, which"),
    "nan": ("nonfinite", ""),
}


@pytest.fixture(scope="module")
def lies(tmp_path_factory) -> Finished:
    return beside_each_other(tmp_path_factory.mktemp("lies"), LIARS)


@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_red(lies, name):
    verdict, said = LIARS[name]
    rows = lies.failing(case="bad", actual=name, expected="oracle")
    found = [row for row in rows if row["verdict"] == verdict]
    assert found, lies.stdout
    assert said in found[0]["message"]
    assert lies.code == 1
    assert others_are_unharmed(lies, name)


def test_a_run_of_one_liar_fails(parity_run):
    assert parity_run(fake("extra")).code == 1


def test_endless_output_is_a_timeout_and_does_not_fill_the_disk(parity_run):
    finished = parity_run(fake("endless"), "--timeout", "5", "--dtype", "float32")
    assert finished.outcomes("mine") == {(case, "float32"): "timeout" if case == "bad" else "ok" for case in CASES}
    assert (finished.run_dir / "log.txt").stat().st_size < 4 << 20


def test_nothing_outlives_the_run(parity_run, tmp_path):
    parity_run(fake("orphan"), "--dtype", "float32", env={"RUN_OF_TEST": str(tmp_path)})
    assert processes_with("RUN_OF_TEST", str(tmp_path)) == []


def test_what_outlives_a_run_would_be_seen(tmp_path):
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "RUN_OF_TEST": str(tmp_path)}) as child:
        try:
            waited_for(lambda: processes_with("RUN_OF_TEST", str(tmp_path)) == [child.pid])
        finally:
            child.kill()


def scratch_of(pid: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{PREFIX}{pid}-*"))


@contextmanager
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run whose first case is finished and whose second one hangs, and its directory; it is killed at the end."""
    (tmp_path / "config.yaml").write_text(fake("hang"))
    run_dir, hangs = tmp_path / "run", tmp_path / "hangs"
    with started(
        *("run", tmp_path / "config.yaml", "--out", run_dir, "--timeout", "3600"),
        cwd=tmp_path,
        env={**os.environ, "HANGS": str(hangs)},
    ) as process:
        waited_for(lambda: process.poll() is not None or (hangs.exists() and stored(run_dir, "mine") == BEFORE))
        assert process.poll() is None, process.communicate()
        yield process, run_dir


BEFORE = {("before", "float32"): "ok", ("before", "float64"): "ok"}


def stored(run_dir: Path, backend: str) -> dict[tuple[str, str], str]:
    """The outcomes of a backend that a run has stored by now."""
    return Finished(0, "", "", run_dir).outcomes(backend) if (run_dir / "results.json").exists() else {}


def test_an_interrupt_keeps_what_was_finished_and_nothing_else(tmp_path):
    with hanging(tmp_path) as (process, run_dir):
        workers = psutil.Process(process.pid).children()
        assert scratch_of(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "INTERRUPTED" in out
    finished = Finished(130, out, err, run_dir)
    assert finished.outcomes("mine") == BEFORE
    assert finished.results["summary"]["exit_code"] == 130
    assert workers
    assert all(ended(worker) for worker in workers)
    assert not scratch_of(process.pid)


@pytest.mark.parametrize("gap_s", [0.02, 0.2])
def test_a_second_interrupt_changes_nothing(tmp_path, gap_s):
    with hanging(tmp_path) as (process, run_dir):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(gap_s)
        _, err = process.communicate()
    assert process.returncode == 130, err
    finished = Finished(130, "", err, run_dir)
    assert finished.outcomes("mine") == BEFORE
    assert finished.results["summary"]["exit_code"] == 130


def test_scratch_of_a_killed_run_is_swept_by_the_next(parity_run):
    # Other tests' runs sweep too, so that a folder is locked before it has its lock's name.
    left, used = (SHARED_MEMORY / f"{PREFIX}{os.getpid()}-{name}" for name in ("left", "used"))
    for folder in (left, used):
        folder.mkdir()
        (folder / "new-lock").touch()
    (left / "new-lock").rename(left / "lock")
    with (used / "new-lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (used / "new-lock").rename(used / "lock")
        parity_run(user_config(FAKES / "honest.py"))
        assert not left.exists()
        assert used.exists()
    parity_run(user_config(FAKES / "honest.py"))
    assert not used.exists()


def test_finished_cells_survive_a_kill_and_workers_do_not(tmp_path):
    with hanging(tmp_path) as (process, run_dir):
        workers = psutil.Process(process.pid).children()
    assert process.returncode == -signal.SIGKILL
    assert workers
    waited_for(lambda: all(ended(worker) for worker in workers))
    assert stored(run_dir, "mine") == BEFORE
    assert call("report", run_dir).stdout.startswith("INTERRUPTED")
    assert json.loads((run_dir / "results.json").read_text())["summary"]["exit_code"] == 130
    assert call("diff", run_dir, run_dir).returncode == 0


def test_stored_outputs_of_a_failing_cell_can_be_read(parity_run):
    finished = parity_run(fake("nan"), "--dtype", "float32")
    folder = finished.run_dir / "tensors" / "0001-bad" / "float32"
    y = np.load(folder / "mine" / "y.npy", allow_pickle=False)
    assert np.isnan(y[0, 0])
    assert np.isfinite(np.load(folder / "numpy" / "y.npy", allow_pickle=False)).all()
