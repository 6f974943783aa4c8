"""Where parity itself fails on a Dask worker, it costs that case only, and blames nobody."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from parity.cluster.messages import InvalidReplyError, decoded, encoded, order_of, work_of
from parity.cluster.source import Part, _Run
from parity.cluster.worker import _WarmPool
from parity.config import load_plan
from parity.config.plan import Plan
from parity.engine import EngineOptions
from parity.engine.shards import shards
from parity.exit_codes import INCOMPLETE
from parity.judge import contained
from parity.judge.case import CaseJudge
from parity.judge.diagnose import inquiry
from parity.judge.failures import FAILED, FAILURES
from parity.run import run
from tests.cluster.test_cluster import Watching

pytestmark = pytest.mark.process

OPS = "import numpy as np\n\n\ndef tanh(x):\n    return np.tanh(x) * 1.01\n\n\ndef relu(x):\n    return np.maximum(x, 0)\n"
CONFIG = """
version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: mine.py}]
dtypes: [float32]
defaults: {gradients: false}
cases:
  - {id: wrong, op: tanh, inputs: {x: {shape: [3, 4]}}}
  - {id: right, op: relu, inputs: {x: {shape: [3, 4]}}}
"""


def fails(*_: Any, **__: Any) -> Any:
    raise StopIteration("injected")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "mine.py").write_text(OPS)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return load_plan([tmp_path / "config.yaml"])


def replied(plan: Plan, folder: Path) -> Any:
    (shard,) = shards(plan)
    pool = _WarmPool(order_of("name", plan, EngineOptions(), with_files=False), folder)
    try:
        reply = pool.run(work_of(shard, with_files=False), "address", threading.Event())
    finally:
        pool.close()
    return decoded(encoded(reply), plan, shard)


@pytest.mark.parametrize(
    ("where", "name", "verdicts"),
    [
        (contained, "consult_oracle", {"not-compared"}),
        (CaseJudge, "take", {"not-compared"}),
        (CaseJudge, "judged", {"not-compared"}),
        (inquiry, "search", {"semantic", "equal", "close"}),
    ],
)
def test_a_judge_that_fails_in_a_worker_is_told(
    where: Any, name: str, verdicts: set[str], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(where, name, fails)
    reply = replied(plan, tmp_path)
    assert {row.outcome for row in reply.outcomes} == {"ok"}
    assert {row.verdict for row in reply.comparisons} <= verdicts
    assert any(FAILURES in row.evidence for row in reply.diagnoses)
    assert "semantic" not in verdicts or {row.verdict for row in reply.comparisons if row.case == "wrong"} >= {
        "semantic"
    }


@pytest.mark.parametrize("error", [ValueError("injected"), InvalidReplyError("injected")])
def test_a_case_that_parity_cannot_run_on_the_cluster_blames_nobody(error: Exception, plan: Plan, tmp_path: Path):
    def source(plan: Plan, options: EngineOptions, run_dir: Path, _done: Any) -> Any:
        (shard,) = shards(plan)
        there = _Run(None, plan, options, run_dir / "log.txt", deque())  # type: ignore[arg-type]
        assert not list(there.failed(Part(shard), error))
        for part in list(there.waiting):
            yield from there.failed(part, error)

    (tmp_path / "run").mkdir()
    results = run(plan, EngineOptions(), tmp_path / "run", Watching(), source=source)  # type: ignore[arg-type]
    assert results.summary.exit_code == INCOMPLETE
    assert not results.outcomes
    assert {(row.case, row.id) for row in results.diagnoses} == {("wrong", FAILED), ("right", FAILED)}
    assert {row.verdict for row in results.comparisons} == {"not-compared"}
    assert "Error: injected" in (tmp_path / "run" / "log.txt").read_text()
