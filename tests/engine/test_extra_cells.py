"""Asking a warm worker for one more cell, in real processes: healthy, crashing, hanging, lying, lost, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from parity.config import Overrides, load_plan
from parity.engine import CasePrepared, CellFinished, EngineOptions, engine, execute, extra_cells
from parity.engine.cells import CellQuestion, CellQueue, CellRequest
from parity.judge.diagnose.behaviour import behaviours
from tests.conftest import FAKES, ROOT, Finished, parity_command, user_config
from tests.judge.judging import drawn, kernel, planned

ASKED = planned("layer_norm", x=(4, 13), normalized_shape=(13,))
INPUTS = drawn(ASKED)
OTHER = planned("layer_norm", x=(3, 5), normalized_shape=(5,))
SWEEP = (
    "{op: layer_norm, params: {normalized_shape: [6]}, sweep: {inputs.x.offset: [0, 1, 2, 3, 4, 5, 6, 7]}, "
    "inputs: {x: {shape: [4, 6]}}}"
)

pytestmark = pytest.mark.process


def fake(name: str) -> Path:
    return FAKES / f"{name}.py"


def run(
    tmp_path: Path, ops: Path, ask: Callable[[extra_cells.CaseQuestions], None], *, backends=("numpy",), **options
) -> Counter[tuple[str, str, str, str]]:
    """Run the sweep, with `ask` called when the first case is finished; how often each cell had which outcome."""
    (tmp_path / "config.yaml").write_text(user_config(ops, cases=[SWEEP], backends=backends))
    plan = load_plan([tmp_path / "config.yaml"], Overrides())
    callables, outcomes, called = {}, Counter(), False
    for event in execute(plan, EngineOptions(**{"timeout_s": 20.0, **options}), tmp_path / "run"):
        if isinstance(event, CasePrepared):
            callables[event.prepared.case.id] = event.ask
        elif isinstance(event, CellFinished):
            if event.last_of_case and not called:
                called = True
                ask(callables[event.prepared.case.id])
            outcomes.update((o.case, o.dtype, o.backend, o.outcome.value) for o in event.outcomes)
    assert called
    return outcomes


def each_once(outcomes: Counter[tuple[str, str, str, str]], n_backends: int = 2) -> bool:
    return set(outcomes.values()) == {1} and len(outcomes) == 8 * 2 * n_backends and {o[3] for o in outcomes} == {"ok"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_answer_is_what_the_backend_computes(tmp_path, dtype):
    answers = []

    def ask(question):
        answers.extend((case, question("mine", case, dtype, drawn(case))) for case in (ASKED, OTHER, ASKED))

    assert each_once(run(tmp_path, fake("honest"), ask))
    for case, outputs in answers:
        expected = kernel(case, drawn(case), dtype)
        assert outputs.keys() == expected.keys()
        for name, values in expected.items():
            assert outputs[name].dtype == dtype
            assert outputs[name].flags.owndata
            np.testing.assert_allclose(outputs[name], values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["segfault", "abort", "leave", "hang", "raises"])
def test_a_question_that_fails_costs_only_itself(tmp_path, name):
    answers = []

    def ask(question):
        answers.append(question("mine", ASKED, "float32", INPUTS))
        answers.append(question("numpy", ASKED, "float32", INPUTS))

    assert each_once(run(tmp_path, fake(name), ask, timeout_s=2.0))
    assert answers[0] is None
    assert "y" in answers[1]


def test_an_output_that_is_no_tensor_is_left_out_of_an_answer(tmp_path):
    answers = []

    def ask(question):
        answers.append(question("mine", ASKED, "float32", INPUTS))

    assert each_once(run(tmp_path, fake("text"), ask))
    assert "y" not in answers[0]
    assert "grad.x" in answers[0]


def test_a_worker_that_is_lost_is_asked_no_more_about_the_case(tmp_path):
    answers = []

    def ask(question):
        answers.extend(question("mine", case, "float32", drawn(case)) for case in (OTHER, ASKED, OTHER))

    assert each_once(run(tmp_path, fake("segfault"), ask))
    assert answers[0] is not None
    assert answers[1:] == [None, None]


def test_an_error_ends_no_questions(tmp_path):
    answers = []

    def ask(question):
        answers.extend(question("mine", case, "float32", drawn(case)) for case in (ASKED, OTHER))

    run(tmp_path, fake("raises"), ask)
    assert answers[0] is None
    assert "y" in answers[1]


@pytest.mark.parametrize(("name", "missing"), [("wrong_shape", "y"), ("nothing", "y"), ("extra", "mean")])
def test_what_has_another_shape_is_left_out(tmp_path, name, missing):
    answers = []
    run(tmp_path, fake(name), lambda question: answers.append(question("mine", ASKED, "float32", INPUTS)))
    assert missing not in answers[0]
    assert {"grad.x", "grad.weight", "grad.bias"} <= answers[0].keys()


def test_another_dtype_is_converted(tmp_path):
    answers = []
    run(tmp_path, fake("wrong_dtype"), lambda question: answers.append(question("mine", ASKED, "float32", INPUTS)))
    assert {values.dtype for values in answers[0].values()} == {np.dtype("float32")}


def test_an_op_that_the_backend_lacks_has_no_answer(tmp_path):
    case, answers = planned("linear", x=(4, 7), out_features=3), []
    run(tmp_path, fake("honest"), lambda question: answers.append(question("mine", case, "float32", drawn(case))))
    assert answers == [None]


def test_a_cell_that_nobody_can_be_asked_is_an_error(tmp_path):
    def ask(question):
        with pytest.raises(ValueError, match="empty"):
            question("mine", ASKED, "float32", {})

    assert each_once(run(tmp_path, fake("honest"), ask))


def test_there_is_a_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(extra_cells, "MAX_QUESTIONS", 3)
    answers = []

    def ask(question):
        answers.extend(question("mine", OTHER, "float32", drawn(OTHER)) for _ in range(5))
        answers.append(question("numpy", OTHER, "float32", drawn(OTHER)))

    run(tmp_path, fake("honest"), ask)
    assert [answer is not None for answer in answers] == [True, True, True, False, False, True]


def test_a_slow_op_is_asked_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(extra_cells, "MAX_SECONDS", 1e-9)
    answers = []
    run(
        tmp_path,
        fake("honest"),
        lambda question: answers.extend(question("mine", OTHER, "float32", drawn(OTHER)) for _ in range(2)),
    )
    assert [answer is not None for answer in answers] == [True, False]


def test_a_backend_that_is_lost_too_often_is_asked_no_more_in_any_case(tmp_path, monkeypatch):
    monkeypatch.setattr(extra_cells, "MAX_LOST", 1)
    answers = []

    def ask(question):
        question("mine", ASKED, "float32", INPUTS)
        answers.append(extra_cells.CaseQuestions(question._asking)("mine", OTHER, "float32", drawn(OTHER)))

    run(tmp_path, fake("segfault"), ask)
    assert answers == [None]


CALLS = 4
"""Of a small cell: its own, two on other inputs, and one that must repeat the first."""
COUNTING = """
import os, sys
sys.path.insert(0, {fakes!r})
import honest
import numpy as np
from honest import layer_norm_backward

def layer_norm(x, weight, bias, normalized_shape, eps):
    with open({log!r}, "a") as file:
        file.write(f"{{x.shape[-1]}}\\n")
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    return y if x.shape[-1] == 6 else np.full_like(y, os.getpid())
"""


def counting(tmp_path: Path) -> tuple[Path, Path]:
    path, log = tmp_path / "counting.py", tmp_path / "log"
    path.write_text(COUNTING.format(fakes=str(FAKES), log=str(log)))
    return path, log


def test_a_question_is_answered_while_every_cell_waits_to_be_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "MAX_BUFFERS", 4)
    ops, log = counting(tmp_path)
    answers = []

    def ask(question):
        while len(log.read_text().split()) < 3 * CALLS:
            time.sleep(0.01)
        answers.append(question("mine", OTHER, "float32", drawn(OTHER)))

    assert each_once(run(tmp_path, ops, ask))
    assert "y" in answers[0]
    assert log.read_text().split().index("5") <= 5 * CALLS


@pytest.mark.parametrize("jobs", [1, 4])
def test_all_questions_of_a_case_go_to_the_same_worker(tmp_path, jobs):
    ops, _ = counting(tmp_path)
    answers = []

    def ask(question):
        answers.extend(question("mine", OTHER, "float64", drawn(OTHER)) for _ in range(6))

    assert each_once(run(tmp_path, ops, ask, backends=(), jobs=jobs), n_backends=1)
    assert len({float(outputs["y"][0, 0]) for outputs in answers}) == 1


def test_inputs_of_questions_do_not_stay(tmp_path):
    left = []

    def ask(question):
        question("mine", ASKED, "float32", INPUTS)
        left.extend(path for path in question._asking.folder.rglob("*.npy") if "-other-" not in str(path))

    run(tmp_path, fake("honest"), ask)
    assert left == []


def test_without_room_for_the_inputs_there_is_no_answer(tmp_path):
    answers = []

    def ask(question):
        question._asking.folder = tmp_path / "gone"
        answers.append(question("mine", ASKED, "float32", INPUTS))

    assert each_once(run(tmp_path, fake("honest"), ask))
    assert answers == [None]


def test_after_the_run_there_is_no_answer(tmp_path):
    kept = []
    run(tmp_path, fake("honest"), kept.append)
    assert kept[0]("mine", ASKED, "float32", INPUTS) is None


ONCE = """
import os, sys
sys.path.insert(0, {fakes!r})
from segfault import layer_norm, layer_norm_backward
os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
"""


def test_a_backend_that_cannot_start_again_lets_nobody_wait(tmp_path):
    path = tmp_path / "once.py"
    path.write_text(ONCE.format(fakes=str(FAKES), marker=str(tmp_path / "marker")))
    answers = []

    def ask(question):
        for _ in range(4):
            fresh = extra_cells.CaseQuestions(question._asking)
            answers.append(fresh("mine", ASKED, "float32", INPUTS))

    outcomes = run(tmp_path, path, ask)
    assert answers == [None] * 4
    assert set(outcomes.values()) == {1}
    assert len(outcomes) == 32
    assert {o[3] for o in outcomes if o[2] == "numpy"} == {"ok"}


INTERRUPTED = """
import signal, sys, threading, os, time
from functools import partial
from pathlib import Path
from parity.cli import main
from parity.judge.case import CaseJudge
from tests.engine.test_extra_cells import ASKED, INPUTS

judged = CaseJudge.judged

def asking(self, *, diagnose=True):
    if diagnose:
        assert self._ask("mine", ASKED, "float32", INPUTS) is None
    return judged(self, diagnose=diagnose)

CaseJudge.judged = asking
main()
"""


def test_a_run_that_was_interrupted_while_a_question_was_asked_goes_on(tmp_path):
    (tmp_path / "config.yaml").write_text(user_config(fake("hang"), cases=[SWEEP]))
    hangs, run_dir = tmp_path / "hangs", tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "run", "config.yaml", "--out", str(run_dir)],
        cwd=tmp_path,
        env={**os.environ, "HANGS": str(hangs), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not hangs.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert Finished(130, out, err, run_dir).results["summary"]["exit_code"] == 130
    resumed = parity_command("run", "config.yaml", "--out", run_dir, "--resume")
    assert subprocess.run(resumed, cwd=tmp_path, capture_output=True).returncode == 0
    finished = Finished(0, out, err, run_dir)
    assert set(finished.outcomes("mine").values()) == set(finished.outcomes("numpy").values()) == {"ok"}
    assert len(finished.outcomes("mine")) == len(finished.outcomes("numpy")) == 16
    assert {row["verdict"] for row in finished.results["comparisons"]} <= {"equal", "close"}


def requests(queue: CellQueue, runner: object, *, has_room: bool) -> Iterator[CellRequest | None]:
    stopped = threading.Event()
    while True:
        yield queue.take(runner, lambda: has_room, stopped)


def test_a_question_comes_before_cells_and_needs_no_room():
    queue, mine, sibling = CellQueue(2), object(), object()
    cells = [CellRequest(number, None, "float32") for number in range(3)]
    for cell in (*cells, None):
        queue.put(cell)
    question = CellQuestion(-1, None, "float32", mine)
    queue.ask(question)
    assert next(requests(queue, mine, has_room=False)) is question
    queue.ask(question)
    assert next(requests(queue, sibling, has_room=True)) is cells[0]
    taken = requests(queue, mine, has_room=True)
    assert [next(taken) for _ in range(4)] == [question, cells[1], cells[2], None]


def test_a_runner_that_is_stopped_takes_nothing():
    queue, stopped = CellQueue(1), threading.Event()
    queue.put(CellRequest(0, None, "float32"))
    stopped.set()
    assert queue.take(object(), lambda: True, stopped) is None


MUTATING = """
import sys
sys.path.insert(0, {fakes!r})
import honest

def layer_norm(x, weight, bias, normalized_shape, eps):
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    x += 1
    return y

def layer_norm_backward(grad_y, x, weight, eps):
    gradients = honest.layer_norm_backward(grad_y, x, weight, eps)
    grad_y[0] = 0
    return gradients
"""


def test_changed_inputs_are_reported(tmp_path):
    path, answers = tmp_path / "mutating.py", []
    path.write_text(MUTATING.format(fakes=str(FAKES)))

    def ask(question):
        answers.extend(question(backend, OTHER, "float64", drawn(OTHER)) for backend in ("mine", "numpy"))

    assert each_once(run(tmp_path, path, ask))
    mine, healthy = answers
    assert {name for name in mine if name.startswith("input.")} == {"input.x", "input.grad.y"}
    np.testing.assert_array_equal(mine["input.x"], drawn(OTHER)["x"].astype("float64") + 1)
    assert not any(name.startswith("input.") for name in healthy)


TORCH_MUTATING = """
import torch

def layer_norm(x, weight, bias, normalized_shape, eps):
    y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    weight.data[0] = 7
    return y
"""


@pytest.mark.frameworks
def test_changed_tensors_of_a_framework_are_reported(tmp_path):
    path, answers = tmp_path / "mutating.py", []
    path.write_text(TORCH_MUTATING)
    (tmp_path / "config.yaml").write_text(user_config(path, cases=[SWEEP], backends=("torch",), adapter="torch"))
    plan = load_plan([tmp_path / "config.yaml"], Overrides())
    for event in execute(plan, EngineOptions(), tmp_path / "run"):
        if isinstance(event, CasePrepared):
            ask = event.ask
        elif isinstance(event, CellFinished) and not answers:
            answers.extend(ask(backend, OTHER, "float32", drawn(OTHER)) for backend in ("mine", "torch"))
    mine, healthy = answers
    assert [name for name in mine if name.startswith("input.")] == ["input.weight"]
    assert mine["input.weight"][0] == 7
    assert not any(name.startswith("input.") for name in healthy)


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "case",
    [
        planned("batch_norm", x=(6, 3)),
        planned("sgd", param=(4, 3), lr=0.1, momentum=0.9),
        planned("clip_grad_norm", max_norm=0.1, grads_0=(4, 3), grads_1=(2,)),
    ],
    ids=lambda case: case.op,
)
def test_new_values_of_an_input_are_no_change(tmp_path, case):
    answers = []
    (tmp_path / "config.yaml").write_text(f"version: 1\nbackends: [torch]\ncases: [{SWEEP}]\n")
    for event in execute(load_plan([tmp_path / "config.yaml"], Overrides()), EngineOptions(), tmp_path / "run"):
        if isinstance(event, CasePrepared) and not answers:
            answers.append(event.ask("torch", case, "float32", drawn(case)))
    assert answers[0]
    assert not any(name.startswith("input.") for name in answers[0])


BEHAVING = """
import sys
sys.path.insert(0, {fakes!r})
import honest
import numpy as np

kept, rng = {{}}, np.random.default_rng(0)

def layer_norm(x, weight, bias, normalized_shape, eps):
    return honest.layer_norm(x, weight, bias, normalized_shape, eps)

def layer_norm_backward(grad_y, x, weight, eps):
    gradients = honest.layer_norm_backward(grad_y, x, weight, eps)
    {change}
    return gradients
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("pass", []),
        ("gradients['bias'][rng.integers(5)] += 1", ["nondeterministic"]),
        ("gradients['bias'] = kept[x.shape] = gradients['bias'] + kept.get(x.shape, 0)", ["stateful"]),
        ("weight[0] = 3", ["input-mutated"]),
        ("gradients['x'][0, 0] += x.shape[0] - 1", ["batch-variant"]),
    ],
)
def test_behaviours_are_seen_in_a_worker(tmp_path, change, expected):
    path, found = tmp_path / "behaving.py", []
    path.write_text(BEHAVING.format(fakes=str(FAKES), change=change))
    inputs = drawn(OTHER)
    bound = dict.fromkeys(kernel(OTHER, inputs, "float32"), 0.0001)

    def ask(question):
        found.extend(name for name, _ in behaviours(partial(question, "mine"), OTHER, "float32", inputs, {}, bound))

    assert each_once(run(tmp_path, path, ask))
    assert found == expected
