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
from pkgutil import resolve_name

import dask
import pytest
from distributed import WorkerPlugin
from msgspec.structs import replace

from parity.cluster import connected
from parity.cluster.source import events
from parity.config import Overrides, load_plan
from parity.engine import Announced, EngineOptions, ShardFinished, execute, shards
from parity.exit_codes import INCOMPLETE
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


class Faulty(WorkerPlugin):
    """A fault in parity's own code on every Dask worker, also on those that replace one that has ended."""

    name = "faulty"

    def __init__(self, method, is_met, fault):
        self.method, self.is_met, self.fault = method, is_met, fault

    def setup(self, worker):
        place, _, name = self.method.rpartition(".")
        owner, is_met, fault = resolve_name(place), self.is_met, self.fault
        whole = getattr(owner, name)

        def faulty(itself, *given, **named):
            if is_met(itself, *given):
                fault()
            return whole(itself, *given, **named)

        self.restored = partial(setattr, owner, name, whole)
        setattr(owner, name, faulty)

    def teardown(self, worker):
        self.restored()


class LocalError(Exception):
    def __reduce__(self):
        raise TypeError("it does not travel")


def raises(error):
    raise error


JUDGE = ("parity.judge.case:CaseJudge.judged", lambda judge: judge.case.id == "bad")
POOL = ("parity.cluster.worker:_WarmPool.run", lambda _pool, work, *_: any(case.id == "bad" for _, case in work.cases))
FAULTS = {
    "the judge": (*JUDGE, lambda: raises(ValueError("injected")), "injected"),
    "the pool": (*POOL, lambda: raises(ValueError("injected")), "injected"),
    "an error that does not travel": (*POOL, lambda: raises(LocalError("injected")), "injected"),
    "an exit": (*POOL, lambda: raises(SystemExit(5)), "1 Dask worker ended while computing this case"),
    "a crash": (*JUDGE, os.abort, "1 Dask worker ended while computing this case"),
}
"""By what fails on a Dask worker: where, for which case, how, and what is said of the case."""
SMALL = """
version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: mine.py}]
dtypes: [float32]
defaults: {gradients: false}
cases:
  - {id: first, op: relu, inputs: {x: {shape: [3, 4]}}}
  - {id: bad, op: relu, inputs: {x: {shape: [3, 5]}}}
  - {id: last, op: relu, inputs: {x: {shape: [3, 6]}}}
"""
RELU = "import os\n\n\ndef relu(x):\n    if x.shape[-1] == 5:\n        {then}\n    return x.clip(0)\n"


def small(folder, then="pass"):
    (folder / "mine.py").write_text(RELU.format(then=then))
    (folder / "config.yaml").write_text(SMALL)
    return Place(folder)


def of_bad(results):
    """The verdicts of the case `bad`, after a look at the others, which passed."""
    assert {row.case for row in results.comparisons} == {"first", "bad", "last"}
    assert {row.verdict for row in results.comparisons if row.case != "bad"} <= {"equal", "close"}
    assert {row.outcome for row in results.outcomes if row.case != "bad"} == {"ok"}
    return {row.verdict for row in results.comparisons if row.case == "bad"}


# Dask may hand the next task to a worker that is just ending; as no failure is allowed here, that task is lost, too.
@pytest.mark.flaky(reruns=2)
@pytest.mark.parametrize("name", FAULTS)
def test_parity_that_fails_on_a_worker_loses_that_case_alone(name, pair, tmp_path, monkeypatch):
    # Where the last worker is the one that ends, the run is soon repeated.
    monkeypatch.setattr("parity.cluster.source.NO_WORKER_S", 120.0)
    *fault, said = FAULTS[name]
    pair.client.register_plugin(Faulty(*fault))
    try:
        found = small(tmp_path).run("out", partial(events, pair))
    finally:
        pair.client.unregister_worker_plugin(Faulty.name)
    assert of_bad(found) == {"not-compared"}
    assert found.summary.exit_code == INCOMPLETE
    assert said in repr([row for row in (*found.outcomes, *found.diagnoses) if row.case == "bad"])
    if not any(row.case == "bad" for row in found.outcomes):
        again = small(tmp_path).run("out", execute, resume=True)
        assert of_bad(again) == {"equal"}
        assert again.summary.exit_code == 0


def test_a_kernel_that_ends_its_process_loses_that_case_alone(pair, tmp_path):
    place = small(tmp_path, "os.kill(os.getpid(), 11) if x.shape[0] == 3 else os._exit(7 - x.shape[0])")
    more = "".join(f"  - {{id: bad-{n}, op: relu, inputs: {{x: {{shape: [{n}, 5]}}}}}}\n" for n in (4, 7))
    (tmp_path / "config.yaml").write_text(SMALL + more)
    workers = pair.client.run(os.getpid)
    found = place.run("out", partial(events, pair))
    assert {row.case for row in found.comparisons if row.verdict == "not-compared"} == {"bad", "bad-4", "bad-7"}
    assert {row.case for row in found.comparisons if row.actual == "mine" and row.verdict.passes} == {"first", "last"}
    assert found.summary.exit_code == INCOMPLETE
    assert {row.case: row.message for row in found.outcomes if row.outcome == "crash"} == {
        "bad": "killed by SIGSEGV",
        "bad-4": "exited with status 3 before it replied",
        "bad-7": "exited with status 0 before it replied",
    }
    assert workers.items() <= pair.client.run(os.getpid).items()


def test_workers_that_dask_does_not_replace_are_started_again(light, monkeypatch):
    monkeypatch.setattr("parity.cluster.source.NO_LOCAL_WORKER_S", 1.0)
    with dask.config.set({"distributed.scheduler.allowed-failures": 3}), connected("local:2") as cluster:
        (first, second) = cluster.client.run(os.getpid).values()

        def lose_all():
            for nanny in cluster.client.cluster.workers.values():
                nanny.close_gracefully()
            os.kill(first, signal.SIGKILL)
            os.kill(second, signal.SIGKILL)

        seen = Watching(lose_all)
        found = light.run("replaced", partial(events, cluster), seen)
        assert not {first, second} & set(cluster.client.run(os.getpid).values())
    assert any("no worker is left" in event.message for event in seen.events if isinstance(event, Announced))
    assert rows(found) == rows(light.whole)


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
