"""A run on Dask gives the rows of one process, each once, whatever ends on the way."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import dask
import pytest
from msgspec.structs import replace

from parity.cluster import connected
from parity.cluster.source import events
from parity.config import Overrides, load_plan
from parity.engine import Announced, EngineOptions, ShardFinished, execute, shards
from parity.reporting.results.claims import claimed
from parity.reporting.results.results import encode_part
from parity.run import run
from tests.conftest import call, processes_with, waited_for

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

OPS = """
import os
import signal
from pathlib import Path

import numpy as np

ONCE, ALWAYS = (Path({place!r}, name) for name in ("once", "always"))


def layer_norm(x, weight, bias, normalized_shape, eps):
    if x.shape[-1] == 13:
        os.kill(os.getpid(), signal.SIGSEGV)
    if x.shape[-1] == 14 and (ONCE.exists() or ALWAYS.exists()):
        ONCE.unlink(missing_ok=True)
        os.kill(os.getppid(), signal.SIGKILL)
    mean = x.mean(-1, keepdims=True)
    var = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(var + eps) * weight + bias
"""

CONFIG = """
version: 1
backends: [numpy, torch, {name: mine, adapter: numpy, ops: mine.py}]
dtypes: [float32, float64]
defaults: {gradients: false}
cases:
  - {id: naive, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6], normal: {mean: 1000}}}}
  - {id: right, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}
  - {id: crash, op: layer_norm, params: {normalized_shape: [13]}, inputs: {x: {shape: [4, 13]}}}
  - {id: killer, op: layer_norm, params: {normalized_shape: [14]}, inputs: {x: {shape: [4, 14]}}}
  - {id: after, op: layer_norm, params: {normalized_shape: [7]}, inputs: {x: {shape: [4, 7]}}}
  - {id: last, op: layer_norm, params: {normalized_shape: [8]}, inputs: {x: {shape: [4, 8]}}}
"""


@dataclass
class Watching:
    """Observes a run; after its first shard it calls `then`."""

    then: object = None
    events: list = field(default_factory=list)

    def on_event(self, event, comparisons):
        self.events.append(event)
        then = self.then
        if isinstance(event, ShardFinished) and then is not None:
            self.then = None
            then()

    @property
    def n_shards(self):
        return sum(isinstance(event, ShardFinished) for event in self.events)


@dataclass
class Place:
    """A folder with a config, and the run of it in one process."""

    folder: Path
    only: Overrides = Overrides()  # noqa: RUF009 - frozen

    @cached_property
    def whole(self):
        return self.run("light" if self.only.keyword else "whole", execute)

    def run(self, out, source, observer=None, *, resume=False):
        plan = load_plan((self.folder / "config.yaml",), self.only)
        with claimed(self.folder / out, plan, resume=resume) as run_dir:
            return run(plan, EngineOptions(), run_dir, observer or Watching(), source=source, resume=resume)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "mine.py").write_text(OPS.format(place=str(folder)))
    (folder / "config.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_CELLS", 8)
        yield Place(folder)


@pytest.fixture(scope="module")
def light(place):
    """The same without PyTorch's import and the diagnosis, which take longest."""
    return Place(place.folder, Overrides(backends=("numpy", "mine"), keyword="not naive"))


@pytest.fixture(scope="module")
def pair():
    """Two Dask workers of this machine; a case that ends one of them is given up at once."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), connected("local:2") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def collected():
    """Dask leaves its sockets to a scheduler that is gone to the garbage collector, which warns of them."""
    yield
    gc.collect()


def rows(results):
    """All rows without times, in an order of their own: shards come as they are done."""
    outcomes = [replace(row, seconds=0.0) for row in results.outcomes]
    return [sorted(encode_part([row]) for row in part) for part in (outcomes, results.comparisons, results.diagnoses)]


def test_two_workers_give_the_rows_of_one_process(place, pair):
    seen = Watching()
    found = place.run("two", partial(events, pair), seen)
    assert seen.n_shards == 3
    assert {row.outcome for row in place.whole.outcomes} == {"ok", "crash"}
    assert any(row.id == "variance-naive" for row in found.diagnoses)
    assert rows(found) == rows(place.whole)
    assert found.summary == place.whole.summary
    # What has a finding is there to be explained, and reproduced.
    [case] = [row for row in found.cases if row.id == "naive"]
    assert case.files == next(row.files for row in place.whole.cases if row.id == case.id)
    kept = [path.relative_to(place.folder / "two") for path in (place.folder / "two" / "tensors").rglob("*.npy")]
    assert kept
    for name in kept:
        assert (place.folder / "two" / name).read_bytes() == (place.folder / "whole" / name).read_bytes()
    assert call("explain", place.folder / "two", case.id).returncode == 0


def test_a_run_that_was_interrupted_goes_on(light, pair):
    workers = pair.client.run(os.getpid)

    def interrupt():
        for pid in workers.values():  # as a terminal does
            os.kill(pid, signal.SIGINT)
        raise KeyboardInterrupt

    cut = light.run("cut", partial(events, pair), Watching(interrupt))
    assert cut.summary.exit_code == 130
    assert 0 < len(cut.outcomes) < len(light.whole.outcomes)
    seen = Watching()
    assert rows(light.run("cut", partial(events, pair), seen, resume=True)) == rows(light.whole)
    assert 0 < sum(event.n_cases for event in seen.events if isinstance(event, ShardFinished)) < len(cut.cases)
    assert pair.client.run(os.getpid) == workers


def test_a_killed_worker_loses_nothing(light):
    with connected("local:1") as cluster:
        (light.folder / "once").touch()
        found = light.run("killed", partial(events, cluster))
        assert not (light.folder / "once").exists()
    assert rows(found) == rows(light.whole)


def test_a_case_that_kills_every_worker_is_a_crash(light, pair):
    (light.folder / "always").touch()
    try:
        found = light.run("killing", partial(events, pair))
    finally:
        (light.folder / "always").unlink()
    bad = [row for row in found.outcomes if row.case == "killer"]
    assert {(row.outcome, row.message) for row in bad} == {("crash", "1 Dask worker ended while computing this case")}
    assert sorted(row.key for row in found.outcomes) == sorted(row.key for row in light.whole.outcomes)
    assert {row.verdict for row in found.comparisons if row.case == "killer"} == {"not-compared"}
    others = [row for row in light.whole.comparisons if row.case != "killer"]
    assert sorted(map(repr, (row for row in found.comparisons if row.case != "killer"))) == sorted(map(repr, others))


@dataclass
class Nodes:
    """A scheduler and workers, as a user starts them."""

    folder: Path
    open: ExitStack

    def scheduler(self, port=0):
        """A scheduler; its address."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        process = self.start("scheduler", "--port", port, "--scheduler-file", file)
        waited_for(lambda: file.exists() and file.read_text())
        return process, json.loads(file.read_text())["address"]

    def worker(self, address, *more):
        return self.start("worker", address, "--nthreads", 1, "--no-dashboard", "--local-directory", self.folder, *more)

    def start(self, *words):
        command = [sys.executable, "-m", "dask", *map(str, words), "--host", "127.0.0.1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.open.callback(ended, process)
        return process


def ended(process):
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()
    process.wait()


@contextmanager
def nodes(folder):
    with ExitStack() as stack:
        yield Nodes(folder, stack)


def test_a_scheduler_that_is_started_again_gets_what_is_left(light, tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_TEST_MARK", str(tmp_path))
    with nodes(tmp_path) as machine:
        scheduler, address = machine.scheduler()
        able = ("--resources", "framework:numpy=1")
        for more in (able, ()):
            machine.worker(address, *more)

        def restart():
            scheduler.kill()
            scheduler.wait()
            machine.scheduler(address.rpartition(":")[2])
            machine.worker(address, *able)

        with connected(address) as cluster:
            waited_for(lambda: len(cluster.workers()) == 2)
            seen = Watching(restart)
            found = light.run("restarted", partial(events, cluster), seen)
    assert any("the scheduler is gone" in event.message for event in seen.events if isinstance(event, Announced))
    assert rows(found) == rows(light.whole)
    waited_for(lambda: not processes_with("PARITY_TEST_MARK", str(tmp_path)))
