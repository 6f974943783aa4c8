"""Trainings in two processes against the same in one, and ranks that die, hang, refuse or go ways of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.config import load_plan
from parity.config.plan import BackendSpec
from parity.engine.process import COOKIE, WorkerError
from parity.training.spec import Clip, Training, message
from tests.conftest import processes_with, waited_for
from tests.training.examples import preset, training
from tests.training.requests import TrainingClient, client, drawn

SGD = {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False}
MLP = [{"linear": {"out_features": 8}}, {"activation": "tanh"}, {"linear": {"out_features": 4}}]
BLOBS = {"name": "classification", "features": (6,), "classes": 4}
IN_RANK_1 = "import os\nimport time\n\ndef zero_grad(parameters):\n    if os.environ['RANK'] == '1':\n        "


def mlp(**more: Any) -> Training:
    return training(MLP, BLOBS, **{"options": SGD, "steps": 4, **more})


def alive(d: TrainingClient) -> int:
    """How many processes carry a worker's cookie."""
    return len(processes_with(COOKIE, d.worker.process.cookie))


@pytest.fixture(scope="module", params=["torch", "paddle", "oneflow"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TrainingClient, TrainingClient]]:
    """A worker of a framework in one process, and one of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    with client(folder / "one", request.param) as one, client(folder / "two", request.param, ranks=2) as two:
        yield one, two


@pytest.mark.frameworks
@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_ranks_take_the_steps_of_one(pair: tuple[TrainingClient, TrainingClient], accumulation: int) -> None:
    case = mlp(accumulation=accumulation, clip=Clip("norm", 0.3))
    curves, records = [], []
    for d in pair:
        d.train(case)
        curves.append(d.steps(4))
        records.append(d.record(4))
    one, two = curves
    np.testing.assert_array_equal(two["rows"], one["rows"])
    np.testing.assert_array_equal(two["lr"], one["lr"])
    for name in ("loss", "grad_norm", "norms"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)
    assert set(records[0]) == set(records[1])
    for name, array in records[0].items():
        np.testing.assert_allclose(records[1][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.frameworks
def test_ranks_go_on_from_a_stored_state(pair: tuple[TrainingClient, TrainingClient]) -> None:
    two = pair[1]
    two.train(mlp())
    two.steps(2)
    state = two.state()
    expected = two.steps(2)
    two.restore(2, state)
    found = two.steps(2)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)


@pytest.mark.frameworks
def test_batch_norm_sees_a_rank_s_own_rows(pair: tuple[TrainingClient, TrainingClient]) -> None:
    one, two = pair
    for d in pair:
        d.train(preset("cnn", options=SGD))
        reply, _ = d.ask("steps", count=1)
        assert (reply["outcome"], reply["message"]) == ("ok", "")
    name = next(n for n in one.record(1) if n.startswith("buffer.") and n.endswith("running_var"))
    assert not np.allclose(one.record(1)[name], two.record(1)[name], rtol=1e-3)


@pytest.mark.frameworks
def test_an_op_is_no_matter_of_ranks(pair: tuple[TrainingClient, TrainingClient]) -> None:
    names = ("tensors", "params", "grad_outputs")
    given: dict[str, Any] = {"cell": 1, "op": "linear", "dtype": "float32", "absent": [], "droppable": [], "lists": []}
    given |= {
        **{name: {} for name in names},
        "layouts": {},
        "calls": 1,
        "watched": {},
        "storage": {},
        "differentiable": [],
        "max_elements": 1,
    }
    reply, _ = pair[1].ask("run", **given)
    assert (reply["outcome"], reply["message"]) == (
        "unsupported",
        "linear is one op in one process; ranks are for trainings",
    )


@pytest.mark.frameworks
def test_float64_in_ranks(pair: tuple[TrainingClient, TrainingClient]) -> None:
    two = pair[1]
    given = drawn(mlp(), two.folder, ("float64",)).message
    reply, _ = two.ask("train", spec=message(mlp()), dtype="float64", perturbed=0, memory=1 << 27, **given)
    lacking = two.worker.spec.adapter == "oneflow"
    assert reply["outcome"] == ("unsupported" if lacking else "ok")
    assert ("float32 only" in reply["message"]) == lacking


def taken(folder: Path, adapter: str, ops: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """The reply to a request for three steps of two ranks with these user ops; nothing of them may stay behind."""
    with client(folder, adapter, ops, ranks=2) as two:
        two.train(mlp())
        reply, _ = two.worker.ask({"do": "steps", "count": 3}, timeout_s)
        assert two.worker.process.alive == (reply["outcome"] == "ok")
        if reply["outcome"] != "ok":
            waited_for(lambda: not alive(two))
    waited_for(lambda: not alive(two))
    return reply


@pytest.mark.frameworks
def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    reply = taken(tmp_path, "torch", f"{IN_RANK_1}os._exit(7)\n")
    assert reply["outcome"] == "crash"
    assert "rank 1 exited with status 7 before it replied" in reply["message"]


LEAVES = f"""
import threading
from pathlib import Path


def leave():
    while not Path(__file__).with_name("leave").exists():
        time.sleep(0.01)
    os._exit(7)


{IN_RANK_1}threading.Thread(target=leave, daemon=True).start()
"""
"""Rank 1 goes once there is a file `leave`."""


@pytest.mark.frameworks
@pytest.mark.usefixtures("started_workers")
def test_a_rank_that_dies_between_two_requests_is_named(tmp_path: Path) -> None:
    with client(tmp_path, "torch", LEAVES, ranks=2) as two:
        two.train(mlp())
        assert two.ask("steps", count=1)[0]["outcome"] == "ok"
        assert alive(two) == 3
        (tmp_path / "leave").touch()
        waited_for(lambda: alive(two) < 3)
        reply, _ = two.ask("steps", count=1)
    assert reply["outcome"] == "crash"
    assert "rank 1 exited with status 7" in reply["message"]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "adapter", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("paddle", "oneflow"))]
)
def test_a_rank_that_hangs_is_named_with_its_place(tmp_path: Path, adapter: str) -> None:
    reply = taken(tmp_path, adapter, f"{IN_RANK_1}time.sleep(1000)\n", 5.0)
    assert reply["outcome"] == "timeout"
    assert re.search(
        r"rank 0 is in (backward|all_gather|to_numpy); rank 1 is in zero_grad \(my_ops\.py:6\)$", reply["message"]
    )


@pytest.mark.frameworks
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_rank_is_that_of_all(tmp_path: Path, rank: int) -> None:
    ops = IN_RANK_1.replace("'1'", f"'{rank}'")
    reply = taken(tmp_path, "torch", f"{ops}raise ValueError('no')\n")
    assert reply["outcome"] == "error"
    assert reply["message"].startswith(f"rank {rank}: step 1: ")
    assert "my_ops.py:6: ValueError: no" in reply["message"]


@pytest.mark.frameworks
def test_a_shard_of_the_user_s_is_seen_in_the_rows_and_ranks_that_do_not_hold_the_same_say_so(tmp_path: Path) -> None:
    ops = "import os\n\ndef clip_grad_norm(grads, **options):\n"
    ops += "    return {'grads': [g * (1 + int(os.environ['RANK'])) for g in grads]}\n"
    ops += "\ndef shard(rows, rank, ranks):\n    return rows[: len(rows) // ranks]\n"
    with client(tmp_path, "torch", ops, ranks=2) as two:
        two.train(mlp(clip=Clip("norm", 1.0)))
        reply, curves = two.ask("steps", count=2)
        order = two.drawn.setting.order[0]
    assert reply["outcome"] == "ok"
    assert reply["message"] == "rank 1 and rank 0 differ in param.linear0.weight after step 1"
    np.testing.assert_array_equal(curves["rows"][0], [*order[:4], *order[:4]])


@pytest.mark.frameworks
@pytest.mark.usefixtures("started_workers")
def test_a_worker_that_is_killed_takes_its_ranks_with_it(tmp_path: Path) -> None:
    with client(tmp_path, "torch", f"{IN_RANK_1}time.sleep(1000)\n", ranks=2) as two:
        two.train(mlp())
        process = two.worker.process
        two.worker.process._send({"do": "steps", "count": 1, "buffer": str(two.worker.buffer), "timeout_s": 60.0})
        waited_for(lambda: alive(two) == 3)
        process.kill()
        waited_for(lambda: not alive(two))
        with pytest.raises(WorkerError, match="SIGKILL"):
            two.ask("state")


def test_ranks_in_a_config(tmp_path: Path) -> None:
    case = "{id: a, kind: train, model: {mlp: {}}, optimizer: {name: sgd, lr: 0.1}, batch_size: 8, steps: 2}"
    path = tmp_path / "c.yaml"
    path.write_text(f"version: 1\nbackends: [torch, {{name: two, adapter: torch, ranks: 2}}]\ncases: [{case}]\n")
    assert load_plan([path]).backends == (BackendSpec("torch", "torch"), BackendSpec("two", "torch", ranks=2))
