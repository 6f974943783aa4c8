"""A run's directory: a full disk costs files and no results, and two runs never write the same one."""

from __future__ import annotations

import errno
import json
import shlex
import signal
import subprocess
import sys
import threading

import pytest

from parity.cli.run import refused
from parity.reporting.results.directory import Losses, held
from tests.conftest import call, started, user_config, waited_for

DOUBLED = "def linear(x, weight, bias):\n    return 2 * (x @ weight.T + bias)\n"
SWEEP = """{op: linear, params: {out_features: 3}, gradients: false, sweep: {inputs.x.offset: [0, 1, 2, 3, 4, 5, 6, 7]},
    inputs: {x: {shape: [4, 600]}}}"""
ANSWER = "FAIL  1 finding in 16 of 16 tensors: mine"
CAN_MOUNT = (
    subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "ops.py").write_text(DOUBLED)
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[SWEEP]))
    return tmp_path


def run_after(setup: str, folder, out: str = "run") -> subprocess.CompletedProcess[str]:
    """`parity run` in a shell that has done `setup`, and what `report` says of it then."""
    # -B: a limit of files' sizes must not leave half of a module's bytecode for other tests.
    parity = f"{shlex.quote(sys.executable)} -B -m parity"
    line = f"{setup}; {parity} run config.yaml -q --out {out}; code=$?; {parity} report -q {out}; exit $code"
    return subprocess.run(["unshare", "-rm", "bash", "-c", line] if "mount" in setup else ["bash", "-c", line], cwd=folder, capture_output=True, text=True)  # fmt: skip


def test_results_are_shown_above_only_if_they_are(tmp_path):
    reason = OSError(errno.EMFILE, "Too many open files", "module.py")
    expected = "cannot use module.py: Too many open files; no results can be shown; "
    assert refused(reason, tmp_path) == f"{expected}to run the rest, add --out {tmp_path} --resume"
    losses = Losses({tmp_path / "report.html": reason})
    with pytest.raises(OSError, match="Too many open files") as raised:
        losses.check()
    assert refused(raised.value, tmp_path).endswith("report.html: Too many open files; the results are shown above")


def test_results_that_cannot_be_written_are_printed(config):
    # In KiB, of every file; it is results.json that is larger.
    done = run_after("ulimit -f 12", config)
    assert done.returncode == 2
    first, second = done.stdout.splitlines()
    assert first == ANSWER
    assert f"cannot write {config}/run/results.json" in done.stderr
    assert "File too large; the results are shown above" in done.stderr
    # What is there is what was written in the beginning, and does not read as passed.
    assert second.startswith("INTERRUPTED")
    assert len(list((config / "run" / "tensors").glob("*/x.npy"))) == 8
    assert not list((config / "run").glob(".*json*"))


@pytest.mark.skipif(not CAN_MOUNT, reason="nobody may mount a file system here")
@pytest.mark.parametrize(("size", "kept"), [("4k", "no results"), ("416k", "results"), ("1200k", "everything")])
def test_a_full_disk_keeps_what_fits_and_the_results_first(config, size, kept):
    (config / "small").mkdir()
    done = run_after(f"mount -t tmpfs -o size={size} none small", config, out="small/run")
    printed = done.stdout.splitlines()
    assert printed[0] == ANSWER
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if kept == "everything" else 2)
    assert ("No space left on device; the results are shown above" in done.stderr) == (kept != "everything")
    assert printed[1:] == ([] if kept == "no results" else [ANSWER])


TRAINING = """
version: 1
backends: [numpy, {name: mine, adapter: numpy}]
dtypes: [float32]
cases:
  - kind: train
    model: [{linear: {out_features: 8}}, {activation: tanh}, {linear: {out_features: 3}}]
    data: {name: classification, features: [5], classes: 3, rows: 32}
    optimizer: {name: adam, lr: 0.01}
    ensemble: {members: 1, of: baseline}
    batch_size: 8
    steps: 10
"""


@pytest.mark.skipif(not CAN_MOUNT, reason="nobody may mount a file system here")
@pytest.mark.parametrize(("size", "stored"), [("4k", False), ("60k", True)])
def test_a_training_on_a_full_disk_ends_too(tmp_path, size, stored):
    (tmp_path / "small").mkdir()
    (tmp_path / "config.yaml").write_text(TRAINING)
    done = run_after(f"mount -t tmpfs -o size={size} none small", tmp_path, out="small/run")
    assert done.returncode == 2, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "PASS  no findings; 11 tensors agree"
    assert second == (first if stored else "INTERRUPTED  0 results kept")
    assert "No space left on device; the results are shown above" in done.stderr


@pytest.mark.skipif(not CAN_MOUNT, reason="nobody may mount a file system here")
def test_a_directory_that_cannot_be_written_is_refused_at_once(config):
    (config / "small").mkdir()
    done = run_after("mount -t tmpfs -o ro none small", config, out="small/run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "cannot use small/run: Read-only file system; name another --out"


@pytest.fixture
def live(config):
    """A run that is at work until it is killed, with what it has written."""
    wait = "import pathlib, time\nwhile not pathlib.Path(__file__).with_name('go').exists():\n    time.sleep(0.05)\n"
    (config / "ops.py").write_text(wait + DOUBLED)
    with started("run", "config.yaml", "--out", "run", cwd=config) as process:
        waited_for(lambda: (config / "run" / "tensors").is_dir())
        yield process
    process.wait()


@pytest.mark.parametrize("option", [[], ["--resume"]])
def test_a_directory_that_a_run_is_writing_is_refused(config, live, option):
    before = {path: path.read_bytes() for path in (config / "run").rglob("*") if path.is_file()}
    done = call("run", "config.yaml", "--out", "run", *option, cwd=config)
    assert done.returncode == 2
    assert done.stderr == (
        "cannot use run: another run is writing there; wait until it has finished, or name another --out\n"
    )
    assert before.keys() <= {path for path in (config / "run").rglob("*") if path.is_file()}
    assert call("report", "run", "-q", cwd=config).stdout.startswith("INTERRUPTED")
    (config / "go").touch()
    assert live.wait() == 1
    assert json.loads((config / "run" / "results.json").read_text())["summary"]["outcomes"] == {"ok": 32}
    assert call("run", "config.yaml", "--out", "run", cwd=config).returncode == 1


@pytest.mark.parametrize("option", [[], ["--resume"]])
def test_a_run_that_was_killed_holds_nothing(config, live, option):
    live.send_signal(signal.SIGKILL)
    live.wait()
    (config / "go").touch()
    assert call("run", "config.yaml", "--out", "run", *option, cwd=config).returncode == 1


def test_a_lock_that_is_soon_free_is_waited_for(tmp_path):
    """A process that a killed run was just starting has its lock until its exec."""
    held_again = threading.Event()

    def wait():
        with held(tmp_path):
            held_again.set()

    with held(tmp_path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not held_again.wait(0.2)
    waiting.join()
    assert held_again.is_set()


def test_a_link_to_nothing_is_refused(config):
    (config / "out").symlink_to("nowhere")
    done = call("run", "config.yaml", "--out", "out", cwd=config)
    said = "cannot use out: it is a link to nowhere, which does not exist; name another --out\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_directory_with_a_lock_alone_is_empty(config):
    (config / "run").mkdir()
    (config / "run" / ".lock").touch()
    assert call("run", "config.yaml", "--out", "run", cwd=config).returncode == 1
