"""Addresses, what travels to workers and back, and what the host makes of it."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from parity.cluster import ClusterError
from parity.cluster.messages import InvalidReplyError, Reply, decoded, encoded, order_of, placed, restored, work_of
from parity.cluster.source import Part, _Run, lost_case, resources_of
from parity.config import load_plan
from parity.engine import EngineOptions
from parity.engine.shards import shards
from parity.outcome import Outcome
from parity.reporting.results.rows import BackendRow
from tests.conftest import ROOT, call

CONFIG = """
version: 1
backends: [numpy, torch]
cases:
  - {id: first, op: relu, inputs: {x: {shape: [2]}}}
  - {id: second, op: relu, inputs: {x: {file: data.npy}}}
  - {id: third, op: twice, reference: ./mine.py, params: {times: 3.0}, inputs: {x: {shape: [2]}}}
"""


@pytest.fixture
def plan(tmp_path):
    import numpy as np

    np.save(tmp_path / "data.npy", np.arange(3.0))
    (tmp_path / "mine.py").write_text("def twice(x, times=2.0):\n    return times * x\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    return load_plan((tmp_path / "config.yaml",))


def reply_to(plan, shard, **changes):
    """What a worker answers that has no numbers."""
    rows = {"outcomes": [], "comparisons": []}
    for _, case in shard:
        lost = lost_case(plan, case, Outcome.ERROR, "\ud800 lost")
        rows = {name: rows[name] + lost[name] for name in rows}
    given = {"worker": "tcp://127.0.0.1:1", "backends": [], "diagnoses": [], "folders": {}, "tensors": {}, "lost": {}}
    return Reply(**{**given, **rows, "judge_seconds": 0.0, "log": b"", **changes})


def test_cases_travel_whole(plan, tmp_path):
    [shard] = shards(plan)
    work = pickle.loads(pickle.dumps(work_of(shard, with_files=True)))
    (tmp_path / "data.npy").rename(tmp_path / "moved.npy")
    for (index, case), (_, original) in zip(work.cases, shard, strict=True):
        here = restored(case, work.files, tmp_path / "worker")
        assert vars(here.params) == vars(original.params)
        drawn = [tensor.sample(0, here.id, *here.dtypes) for tensor in here.tensors]
        assert len(drawn[0]) == (3 if here.id == "second" else 2), index
    assert pickle.loads(pickle.dumps(order_of("run", plan, EngineOptions(), with_files=True))).plan.backends


def test_a_training_does_not_hinder_the_journey():
    plan = load_plan((ROOT / "configs" / "training.yaml",))
    order = order_of("run", plan, EngineOptions(), with_files=False)
    assert len(pickle.dumps(order)) < 1 << 20
    assert list(shards(plan)) == []


def test_a_file_is_written_only_where_it_is_missing(tmp_path):
    here, there = tmp_path / "here.py", tmp_path / "other" / "there.py"
    here.write_bytes(b"1")
    assert placed(here, {here: b"1"}, tmp_path) == here
    for path in (here, there):
        copy = placed(path, {path: b"2"}, tmp_path / "worker")
        assert (copy.read_bytes(), copy.name, copy.parent.parent) == (b"2", path.name, tmp_path / "worker")


def test_a_reply_is_read_as_it_was_written(plan):
    [shard] = shards(plan)
    reply = reply_to(plan, shard)
    read = decoded(encoded(reply), plan, shard)
    assert [row.key for row in read.outcomes] == [row.key for row in reply.outcomes]
    assert {row.message for row in read.outcomes} == {"\\ud800 lost"}
    assert {row.verdict for row in read.comparisons} == {"not-compared"}


FOLDER = "tensors/0000-first"


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": {f"{FOLDER}/../../x.npy": b""}},
        {"tensors": {"/etc/x.npy": b""}},
        {"tensors": {f"{FOLDER}/x.py": b""}},
        {"tensors": {"tensors/0001-second/x.npy": b""}},
        {"folders": {"first": "../elsewhere"}},
        {"folders": {"other": FOLDER}},
        {"lost": {"../../x": "full"}},
        {"outcomes": []},
        {"backends": [BackendRow(name="other", framework="numpy", version="1")]},
    ],
    ids=str,
)
def test_a_strange_reply_is_refused(plan, changes):
    [shard] = shards(plan)
    with pytest.raises(InvalidReplyError):
        decoded(encoded(reply_to(plan, shard, **{"folders": {"first": FOLDER}, **changes})), plan, shard)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"worker": 1}), pickle.dumps(Part(()))])
def test_what_is_no_reply_is_refused(plan, data):
    with pytest.raises(InvalidReplyError):
        decoded(data, plan, next(iter(shards(plan))))


class TestRun:
    """The host's decisions, without a cluster."""

    @pytest.fixture
    def run(self, plan, tmp_path):
        cluster = SimpleNamespace(address="tcp://one:1", is_local=False)
        made = _Run(cluster, plan, EngineOptions(), tmp_path / "log.txt", deque())
        made.workers = {f"tcp://{host}:1": {"resources": {}} for host in ("one", "two")}
        return made

    def reply(self, plan, host, outcome="ok", version="1"):
        [shard] = shards(plan)
        reply = reply_to(plan, shard, worker=f"tcp://{host}:1", host=host)
        outcomes = [msgspec.structs.replace(row, outcome=outcome) for row in reply.outcomes]
        row = BackendRow(name="torch", framework="torch", version=version)
        return msgspec.structs.replace(reply, outcomes=outcomes, backends=[row])

    def test_another_host_is_tried_once_for_a_backend_that_is_unavailable(self, run, plan):
        part = Part(next(iter(shards(plan))))
        assert run.tries_elsewhere(part, self.reply(plan, "one", "unavailable"))
        [again] = run.waiting
        assert again == replace(part, avoid=frozenset({"one"}))
        assert not run.tries_elsewhere(again, self.reply(plan, "two", "unavailable"))
        # Nobody has it, so nobody else is asked for the next shard.
        assert not run.tries_elsewhere(part, self.reply(plan, "one", "unavailable"))

    def test_a_host_that_lacks_what_another_has_gets_no_more_shards(self, run, plan):
        part = Part(next(iter(shards(plan))))
        assert not run.tries_elsewhere(part, self.reply(plan, "two"))
        assert run.tries_elsewhere(part, self.reply(plan, "one", "unavailable"))
        assert not run.tries_elsewhere(run.waiting.pop(), self.reply(plan, "two"))
        assert run.broken == {"one"}

    def test_two_releases_of_a_framework_are_an_error(self, run, plan):
        run.check(self.reply(plan, "one"))
        run.check(self.reply(plan, "two"))
        with pytest.raises(ClusterError, match="torch 1 on one and torch 2 on two; give all workers the same"):
            run.check(self.reply(plan, "two", version="2"))

    def test_resources_are_asked_for_where_a_worker_states_them(self, plan):
        [shard] = shards(plan)
        able, plain = {"resources": {"framework:torch": 1, "GPU": 1}}, {"resources": {}}
        assert resources_of(plan, shard, [plain]) == {}
        assert resources_of(plan, shard, [plain, able]) == {"framework:torch": 1.0}
        other = {"resources": {"framework:numpy": 1}}
        with pytest.raises(ClusterError, match='--resources "framework:numpy=1,framework:torch=1"'):
            resources_of(plan, shard, [able, other])


@pytest.mark.parametrize("address", ["local:0", "local:x", "local:257", "http://host:1", "tcp://host", "tcp://:1", ""])
def test_what_is_no_address(plan, tmp_path, address):
    done = call("run", "config.yaml", "--cluster", address, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"{address!r} is not a cluster; write local:N (N processes of this machine, 1 to 256) or tcp://HOST:PORT, the "
        "address of a Dask scheduler\n"
    )
    assert not Path(tmp_path, "run").exists()


def test_nobody_answers(plan, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.cluster.connection.CONNECT_S", 0.1)
    done = call("run", "config.yaml", "--cluster", "tcp://127.0.0.1:1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("tcp://127.0.0.1:1: ")
    assert done.stderr.endswith(
        "start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`\n"
    )


def test_without_the_extra(plan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = call("run", "config.yaml", "--cluster", "local:2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("pip install 'parity[cluster]'\n")
