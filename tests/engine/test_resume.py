"""A run that was interrupted and goes on gives what one gives that was not: the same numbers, bit for bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from msgspec.structs import replace

from parity.config import Overrides, load_plan
from parity.engine import CellFinished, EngineOptions, ModelFinished, Resumed, TrainingAdvanced
from parity.reporting.results.claims import claimed
from parity.reporting.results.results import encode_part
from parity.reporting.results.resume import ResumeError
from parity.reporting.results.rows import Results
from parity.run import run
from tests.conftest import call

OPS = """
from pathlib import Path

TAKEN = Path(__file__).with_name("taken.txt")


def batch(step, rows):
    with TAKEN.open("a") as file:
        file.write(f"{step}\\n")
    return rows


def learning_rate(step, lr, name):
    return lr * (1.01 if step >= 25 else 1.0)
"""

CONFIG = """
version: 1
seed: {seed}
backends: [{adapter}, {{name: mine, adapter: {adapter}, ops: ops.py}}]
baseline: {adapter}
dtypes: [float32]
cases:
  - {{id: op, op: layer_norm, params: {{normalized_shape: [6]}}, inputs: {{x: {{shape: [4, 6]}}}}}}
  - &first
    id: first
    kind: train
    model: [{{linear: {{out_features: 8}}}}, {{activation: tanh}}, {{linear: {{out_features: 3}}}}]
    data: {{name: classification, features: [5], classes: 3, rows: 32}}
    optimizer: {{name: adam, lr: 0.01}}
    ensemble: {{members: 1, of: baseline}}
    batch_size: 8
    steps: 40
  - {{<<: *first, id: second}}
"""


class Stop:
    """An observer that raises once it has seen a step of a training, or a finished cell."""

    def __init__(self, error: BaseException | None = None, case: str = "", step: int = 0) -> None:
        self.error, self.case, self.step = error, case, step
        self.events = []

    def on_event(self, event, comparisons):
        self.events.append(event)
        trained = isinstance(event, TrainingAdvanced) and event.case == self.case and event.step >= self.step
        if trained or (isinstance(event, CellFinished) and event.prepared.case.id == self.case):
            error, self.error = self.error, None
            if error is not None:
                raise error


@dataclass
class Workplace:
    """A folder with a config and ops, in which it is run; `whole` is what a run gives that is not interrupted."""

    folder: Path
    adapter: str = "numpy"
    keyword: str | None = None

    @cached_property
    def whole(self) -> Results:
        return self.run("whole")

    def run(self, out, observer=None, *, resume=False, seed=0, threads=1):
        plan = load_plan((self.written(seed),), Overrides(keyword=self.keyword))
        with claimed(self.folder / out, plan, resume=resume) as run_dir:
            return run(plan, EngineOptions(threads=threads), run_dir, observer or Stop(), resume=resume)

    def written(self, seed=0):
        (self.folder / "ops.py").write_text(OPS)
        (self.folder / "taken.txt").write_text("")
        path = self.folder / "config.yaml"
        path.write_text(CONFIG.format(seed=seed, adapter=self.adapter))
        return path

    @property
    def taken(self) -> list[int]:
        """The steps that the backend with the ops has taken in the last run."""
        return list(map(int, (self.folder / "taken.txt").read_text().split()))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    found = Workplace(tmp_path_factory.mktemp("resume"))
    assert found.whole.summary.exit_code == 1
    return found


def numbers(results):
    """All that a run says, without times."""
    outcomes = [replace(row, seconds=0.0) for row in results.outcomes]
    rows = (outcomes, results.comparisons, results.diagnoses, results.trainings, results.summary)
    return json.loads(encode_part(rows))


def goes_on(place):
    """Interrupts the second training in its middle, and goes on."""
    cut = place.run("cut", Stop(KeyboardInterrupt(), "second", 20))
    assert cut.summary.exit_code == 130
    assert place.taken[-31:] == list(range(1, 32))
    seen = Stop()
    resumed = place.run("cut", seen, resume=True)
    assert place.taken == list(range(32, 41))
    assert numbers(resumed) == numbers(place.whole)
    assert not list((place.folder / "cut").rglob("checkpoint"))
    return cut, resumed, seen


def test_an_interrupted_training_goes_on_where_it_was(place):
    cut, resumed, seen = goes_on(place)
    assert {(row.case, row.steps) for row in cut.trainings} == {("first", 40), ("second", 31)}
    assert not any(isinstance(event, CellFinished) for event in seen.events)
    assert [event.case for event in seen.events if isinstance(event, ModelFinished)] == ["second"]
    finished = [row for row in cut.outcomes if row.case != "second"]
    assert finished == [row for row in resumed.outcomes if row.case != "second"]
    assert resumed.run.started == cut.run.started


@pytest.mark.frameworks
def test_an_interrupted_training_in_torch_goes_on_where_it_was(tmp_path):
    cut, _, _ = goes_on(Workplace(tmp_path, "torch", "second"))
    assert {row.backend: row.steps for row in cut.trainings} == {"torch": 31, "mine": 31}


def test_a_killed_training_goes_on_from_its_last_checkpoint(place, monkeypatch):
    monkeypatch.setattr("parity.training.run.SAVE_S", 0.0)
    monkeypatch.setattr("parity.training.run.SAVE_SHARE", 0.0)
    with pytest.raises(SystemExit):
        place.run("killed", Stop(SystemExit("killed"), "first", 20))
    assert numbers(place.run("killed", resume=True)) == numbers(place.whole)
    first = place.taken[:-40]
    assert first[-1] == 40
    assert 1 < first[0] <= 32


def test_cells_of_ops_go_on_too(place):
    cut = place.run("ops", Stop(KeyboardInterrupt(), "op"))
    assert cut.summary.exit_code == 130
    assert not cut.trainings
    assert numbers(place.run("ops", resume=True)) == numbers(place.whole)


def test_a_finished_run_is_left_alone(place):
    seen = Stop()
    assert numbers(place.run("whole", seen, resume=True)) == numbers(place.whole)
    assert seen.events == [Resumed(0, 0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "its configs were different or have changed"),
        ({"threads": 2}, "its threads was 1, now it is 2"),
    ],
)
def test_another_run_is_not_resumed(place, changes, said):
    with pytest.raises(ResumeError, match=said):
        place.run("whole", resume=True, **changes)


@pytest.mark.parametrize("part", ["started", "seconds", "host"])
def test_results_that_are_none_are_told(place, part):
    broken = place.folder / f"without-{part}"
    broken.mkdir()
    results = json.loads((place.folder / "whole" / "results.json").read_text())
    del results["run"][part]
    (broken / "results.json").write_text(json.dumps(results))
    with pytest.raises(ResumeError, match=f"not those of a run: {part} is missing; run it without --resume"):
        place.run(broken.name, resume=True)


def test_changed_ops_are_not_resumed(place, monkeypatch):
    monkeypatch.setattr("tests.engine.test_resume.OPS", f"{OPS}\n# changed\n")
    with pytest.raises(ResumeError, match=r"ops\.py has changed"):
        place.run("whole", resume=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume",), "--resume needs --out DIR"),
        (("--resume", "--out", "nowhere"), "nowhere holds no run to continue; run it without --resume"),
        (("--resume", "--out", "whole", "-k", "op"), "its cases, or their dtypes or steps, were different"),
        (("--resume", "--out", "whole", "-b", "numpy"), "its backends were different"),
        (("--resume", "--out", "whole", "--rtol", "0.5"), "its tolerances were different"),
        (("--resume", "--out", "whole", "--baseline", "mine"), "its baseline was numpy, now it is mine"),
    ],
)
def test_a_wrong_resume_is_told(place, arguments, said):
    done = call("run", place.written(), *arguments, cwd=place.folder)
    assert done.returncode == 2
    assert said in done.stderr
