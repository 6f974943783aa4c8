"""Trainings in lockstep: real processes that speak the protocol, and what becomes of who misbehaves."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from parity.cases import OPS
from parity.cases.draw import Normal
from parity.config.plan import BackendSpec, CasePlan, Plan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine import EngineOptions, process
from parity.engine.logs import RunLog
from parity.engine.workers import Workers
from parity.outcome import Outcome
from parity.training.lockstep.session import TrainingSession, chunk_ends, draw, roles
from parity.training.records import CURVES_AXES
from parity.training.spec import DataSpec, Group, Layer, Parameter, Training
from tests.conftest import FAKES, waited_for


def plan(*modes: str, steps: int = 12, members: int = 2) -> Plan:
    weight = Parameter("a.weight", (3, 2), Normal())
    linear = Layer("linear", "a", OPS["linear"].params(2, 3), (2,), parameters=(weight,))
    training = Training(
        layers=(linear,),
        data=DataSpec("classification", 8, (2,), (), {"features": 2, "classes": 3}),
        optimizer="sgd",
        groups=(Group(("a.weight",), {"lr": 0.1}),),
        steps=steps,
        batch_size=4,
        members=members,
        ensemble="baseline",
    )
    case = CasePlan("tiny", "train", training, ("float32",), (), DEFAULT_TOLERANCES, WrittenAt("x.yaml", 1))
    backends = tuple(BackendSpec(f"b{i}", "numpy", mode=mode) for i, mode in enumerate(modes))
    return Plan("tiny", (), backends, "b0", 0, (case,))


@contextmanager
def session(
    asked: Plan,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float = 60.0,
    workers: Workers | None = None,
) -> Iterator[TrainingSession]:
    """A session whose workers are fakes."""
    monkeypatch.setattr(process, "BOOTSTRAP", FAKES / "trainer.py")
    case = asked.cases[0]
    log = RunLog(folder / "log.txt")
    own = workers is None
    workers = workers or Workers(EngineOptions(timeout_s=timeout_s, jobs=4), ["linear"], log, lambda _: None)
    drawn = draw(case, asked.seed, folder / "tensors")
    participants, _ = roles(case, "float32", asked, asked.baseline)
    found = TrainingSession(case, drawn, participants, workers, folder / "checkpoint", lambda: None)
    try:
        found.begin()
        yield found
    finally:
        found.close()
        if own:
            workers.close()
        log.close()


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_chunks_grow_and_never_exceed_what_is_kept():
    assert list(chunk_ends(12, 5)) == [1, 3, 7, 11, 12]
    assert list(chunk_ends(200, 1000)) == [1, 3, 7, 15, 31, 63, 113, 163, 200]
    assert list(chunk_ends(3, 1)) == [1, 2, 3]


def test_everybody_takes_every_step(tmp_path, monkeypatch):
    with session(plan("eager", "eager"), tmp_path, monkeypatch) as found:
        for last in chunk_ends(12, found.keeps):
            curves = found.advance(last)
            assert {one.first + one.n_steps - 1 for one in curves.values()} == {last}
        assert set(curves) == {"b0", "b1", "~1", "~2"}
        loss = {name: found.participants[name].shown.loss for name in curves}
        assert {len(values) for values in loss.values()} == {12}
        np.testing.assert_array_equal(loss["b0"], loss["b1"])
        assert (loss["~1"] != loss["b0"]).any()
        order = np.load(tmp_path / "tensors" / "order.npy")
        np.testing.assert_array_equal(found.participants["b1"].shown.rows, order)
        [(name, record)] = found.records({"b1": (12,)})
        assert name == "b1"
        np.testing.assert_allclose(record.tensors["param.a.weight"], 0.9 * record.before["param.a.weight"], rtol=1e-6)
        assert list(found.records({"b1": (3,)})) == []


@pytest.mark.parametrize(
    ("mode", "outcome", "said", "steps"),
    [
        ("crash@6", Outcome.CRASH, "killed by SIGABRT", 3),
        ("error@6", Outcome.ERROR, "step 6: no such kernel", 5),
        ("hang@1", Outcome.TIMEOUT, "step 1: no result after", 0),
        ("lie", Outcome.CRASH, "invalid reply: ValueError('norms is missing')", 0),
        ("unsupported", Outcome.UNSUPPORTED, "no such optimizer", 0),
    ],
)
def test_who_fails_drops_out_and_the_others_go_on(mode, outcome, said, steps, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.training.lockstep.participant.START_S", 1.0)
    before = children()
    timeout_s = 5.0 if mode.startswith("hang") else 120.0
    with session(plan("eager", mode), tmp_path, monkeypatch, timeout_s) as found:
        for last in chunk_ends(12, 5):
            found.advance(last)
        told = found.outcomes
        assert told["b1"].outcome is outcome
        assert said in told["b1"].message
        shown = found.participants["b1"].shown
        assert (shown.n_steps if shown is not None else 0) == steps
        assert {told[name].outcome for name in ("b0", "~1", "~2")} == {Outcome.OK}
        assert found.participants["b0"].shown.n_steps == 12
        assert found.going
    waited_for(lambda: children() <= before)


@pytest.mark.parametrize("mode", ["eager", "norestore"])
def test_a_session_goes_on_from_its_checkpoint(mode, tmp_path, monkeypatch):
    asked, ends = plan("eager", mode), list(chunk_ends(12, 5))

    def run(chunks):
        """All curves of b1, and its records at the ends of chunks."""
        with session(asked, tmp_path, monkeypatch) as found:
            records = {}
            for last in chunks:
                found.advance(last)
                records[last] = dict(found.records({"b1": (last,)}))["b1"]
            found.save()
            return found.participants["b1"].shown, records

    run(ends[:3])
    resumed, records = run(ends)
    shutil.rmtree(tmp_path / "checkpoint")
    whole, expected = run(ends)
    for part in CURVES_AXES:
        np.testing.assert_array_equal(getattr(resumed, part), getattr(whole, part))
    assert list(records) == list(expected) == ends
    for last in ends:
        for name, array in expected[last].tensors.items():
            np.testing.assert_array_equal(records[last].tensors[name], array)


def test_workers_stay_warm_from_one_training_to_the_next(tmp_path, monkeypatch):
    asked = plan("eager", "eager")
    with session(asked, tmp_path, monkeypatch) as found:
        found.advance(3)
        found.close()
        before = children()
        with session(asked, tmp_path, monkeypatch, workers=found._workers) as next_one:
            assert next_one.advance(3).keys() == {"b0", "b1", "~1", "~2"}
            assert children() == before


def test_a_broken_checkpoint_is_none(tmp_path, monkeypatch):
    asked = plan("eager")
    with session(asked, tmp_path, monkeypatch) as found:
        found.advance(3)
        found.save()
    [folder] = (tmp_path / "checkpoint" / "00-b0").glob("state-3")
    (folder / "0000.npy").write_bytes(b"\x93NUMPY")
    with session(asked, tmp_path, monkeypatch) as found:
        assert found.advance(3)["b0"].n_steps == 3
        assert found.outcomes["b0"].seconds > 0


def test_an_end_in_the_middle_of_a_step_leaves_nothing_running(tmp_path, monkeypatch):
    before = children()
    with session(plan("eager", "hang@3"), tmp_path, monkeypatch) as found:
        found.advance(2)

        def advance():
            with suppress(CancelledError):
                found.advance(4)

        thread = threading.Thread(target=advance)
        thread.start()
        assert not found.comes_to_rest(10**9)
    thread.join(120)
    assert not thread.is_alive()
    waited_for(lambda: children() <= before)
