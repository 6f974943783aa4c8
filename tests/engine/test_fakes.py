"""Frameworks that crash, hang, babble and lie, as user ops in real worker processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from parity.engine.buffers import PREFIX, SHARED_MEMORY
from tests.conftest import FAKES, Finished, parity_command, three_cases, user_config


def fake(name: str) -> str:
    return user_config(FAKES / f"{name}.py", cases=three_cases())


def others_are_unharmed(finished) -> bool:
    mine = finished.outcomes("mine")
    healthy = [(case, dtype) for case in ("before", "after") for dtype in ("float32", "float64")]
    passed = all(
        row["verdict"] in ("equal", "close") for row in finished.results["comparisons"] if row["case"] != "bad"
    )
    return passed and all(mine[cell] == "ok" for cell in healthy) and set(finished.outcomes("numpy").values()) == {"ok"}


def test_an_honest_user_op_passes(parity_run):
    finished = parity_run(fake("honest"))
    assert finished.code == 0, finished.stdout
    assert "PASS" in finished.stdout
    assert {row["tensor"] for row in finished.results["comparisons"]} == {"y", "grad.x", "grad.weight", "grad.bias"}


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("segfault", "crash", "killed by SIGSEGV"),
        ("abort", "crash", "SIGABRT; last output: terminate called"),
        ("leave", "crash", "exited with status 0 in the middle"),
        ("orphan", "crash", "exited with status 3"),
        ("hang", "timeout", "no result after 2 s"),
        ("endless", "timeout", "no result after 2 s"),
        ("raises", "error", "raises.py:11: ValueError: no such kernel"),
        ("text", "error", "must return a tensor, or a mapping of tensors by name, not a str"),
    ],
)
def test_a_bad_cell_costs_only_itself(parity_run, name, outcome, said):
    finished = parity_run(fake(name), "--timeout", "2")
    mine = finished.outcomes("mine")
    assert mine["bad", "float32"] == mine["bad", "float64"] == outcome
    assert said in finished.message("mine")
    assert others_are_unharmed(finished)
    assert finished.code == 3
    assert {row["verdict"] for row in finished.select(case="bad", actual="mine")} == {"not-compared"}


def test_a_noisy_op_is_heard_in_the_log_only(parity_run):
    finished = parity_run(fake("noisy"))
    assert finished.code == 0
    assert b"noise without an end of line" in (finished.run_dir / "log.txt").read_bytes()
    assert "noise" not in finished.stdout


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("wrong_shape", "structure", "mine has shape [4, 12], oracle [4, 13]"),
        ("wrong_dtype", "structure", "mine has dtype"),
        ("nothing", "structure", "mine has no y"),
        ("extra", "structure", "oracle has no mean"),
        ("nan", "nonfinite", ""),
    ],
)
def test_a_liar_is_red(parity_run, name, verdict, said):
    finished = parity_run(fake(name))
    found = [row for row in finished.failing(case="bad", actual="mine", expected="oracle") if row["verdict"] == verdict]
    assert found, finished.stdout
    assert said in found[0]["message"]
    assert finished.code == 1
    assert others_are_unharmed(finished)


def test_endless_output_does_not_fill_the_disk(parity_run):
    finished = parity_run(fake("endless"), "--timeout", "2", "--dtype", "float32")
    assert (finished.run_dir / "log.txt").stat().st_size < 4 << 20


def running_with(name: str, value: str) -> list[psutil.Process]:
    """The processes that have an environment variable."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value:
                found.append(process)
    return found


def test_nothing_outlives_the_run(parity_run, tmp_path):
    parity_run(fake("orphan"), "--dtype", "float32", env={"RUN_OF_TEST": str(tmp_path)})
    assert running_with("RUN_OF_TEST", str(tmp_path)) == []


def test_what_outlives_a_run_would_be_seen(tmp_path):
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "RUN_OF_TEST": str(tmp_path)}) as child:
        try:
            while not running_with("RUN_OF_TEST", str(tmp_path)):
                assert child.poll() is None
                time.sleep(0.05)
        finally:
            child.kill()


def scratch_of(pid: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{PREFIX}{pid}-*"))


def test_scratch_files_are_gone(tmp_path):
    process, _ = hanging(tmp_path)
    assert scratch_of(process.pid)
    process.terminate()
    process.communicate(timeout=60)
    assert not scratch_of(process.pid)


def hanging(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A run whose first case is finished and whose second one hangs, and its directory."""
    (tmp_path / "config.yaml").write_text(fake("hang"))
    run_dir, hangs = tmp_path / "run", tmp_path / "hangs"
    process = subprocess.Popen(
        parity_command("run", tmp_path / "config.yaml", "--out", run_dir),
        cwd=tmp_path,
        env={**os.environ, "HANGS": str(hangs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (hangs.exists() and stored(run_dir, "mine") == BEFORE):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process, run_dir


BEFORE = {("before", "float32"): "ok", ("before", "float64"): "ok"}


def stored(run_dir: Path, backend: str) -> dict[tuple[str, str], str]:
    """The outcomes of a backend that a run has stored by now."""
    return Finished(0, "", "", run_dir).outcomes(backend) if (run_dir / "results.json").exists() else {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupt_keeps_what_was_finished(tmp_path, number, code):
    process, run_dir = hanging(tmp_path)
    workers = psutil.Process(process.pid).children()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "INTERRUPTED" in out
    finished = Finished(code, out, err, run_dir)
    assert finished.outcomes("mine") == BEFORE
    assert finished.results["summary"]["exit_code"] == 130
    assert workers
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)


@pytest.mark.parametrize("gap_s", [0.02, 0.2])
def test_a_second_interrupt_changes_nothing(tmp_path, gap_s):
    process, run_dir = hanging(tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(gap_s)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads((run_dir / "results.json").read_text())["summary"]["exit_code"] == 130


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


def test_finished_cells_survive_a_kill(tmp_path):
    before, bad, _ = three_cases()
    (tmp_path / "config.yaml").write_text(user_config(FAKES / "hang.py", cases=[before, bad]))
    run_dir = tmp_path / "run"
    process = subprocess.Popen(parity_command("run", "config.yaml", "--out", run_dir, "-q"), cwd=tmp_path)
    while not stored(run_dir, "mine") == stored(run_dir, "numpy") == BEFORE:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    shown = subprocess.run(parity_command("report", run_dir), capture_output=True, text=True).stdout
    assert shown.startswith("INTERRUPTED")
    assert json.loads((run_dir / "results.json").read_text())["summary"]["exit_code"] == 130
    assert subprocess.run(parity_command("diff", run_dir, run_dir), capture_output=True).returncode == 0


def test_workers_die_with_a_killed_host(tmp_path):
    process, _ = hanging(tmp_path)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert gone
    assert not alive


def test_stored_outputs_of_a_failing_cell_can_be_read(parity_run):
    finished = parity_run(fake("nan"), "--dtype", "float32")
    folder = finished.run_dir / "tensors" / "0001-bad" / "float32"
    y = np.load(folder / "mine" / "y.npy", allow_pickle=False)
    assert np.isnan(y[0, 0])
    assert np.isfinite(np.load(folder / "numpy" / "y.npy", allow_pickle=False)).all()
