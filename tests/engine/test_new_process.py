"""State that a process keeps between calls shows when a wrong result is asked for in a new process."""

from __future__ import annotations

import pytest

from parity.engine import extra_cells
from parity.judge.diagnose.new_process import ANOTHER, RIGHT, ROW
from tests.conftest import FAKES, user_config
from tests.engine.test_extra_cells import ASKED, INPUTS, OTHER, run
from tests.judge.judging import drawn

pytestmark = pytest.mark.process

KEPT = """
import numpy as np
DIFFERENTIABLE = False
scale, kept, calls, order = None, {}, [], []


def relu(x):  # a scale that the first tensor of all gives
    global scale
    if scale is None:
        scale = np.abs(x).max()
    return (np.maximum(x, 0) / np.abs(x).max() * scale).astype(x.dtype)


def tanh(x):  # kept by shape: right in the first call with it
    mean = kept.setdefault(x.shape, x.mean())
    return np.tanh(x - x.mean() + mean).astype(x.dtype)


def sigmoid(x):  # each call adds to the error
    calls.append(x)
    return (1 / (1 + np.exp(-x)) * (1 + 1e-3 * len(calls))).astype(x.dtype)


def exp(x):  # right while it warms up
    order.append(x)
    return (np.exp(x) * (1.0 if len(order) <= 3 else 1.01)).astype(x.dtype)


limit = None


def elu(x, alpha):  # clipped to the range of the first tensor of all
    global limit
    if limit is None:
        limit = np.abs(x).max()
    clipped = np.clip(x, -limit, limit)
    return np.where(clipped > 0, clipped, alpha * np.expm1(clipped)).astype(x.dtype)


first = None


def silu(x):  # as `relu`, beside a mistake
    global first
    if first is None:
        first = np.abs(x).max()
    return (x / (1 + np.exp(-x)) * 1.1 / np.abs(x).max() * first).astype(x.dtype)
"""
CASE = "{{id: {op}-{rows}, op: {op}, gradients: false, inputs: {{x: {{shape: [{rows}, 5]}}}}}}"


def cases(op: str, *rows: int) -> list[str]:
    return [CASE.format(op=op, rows=n) for n in rows]


def diagnoses(finished):
    return [row for row in finished.results["diagnoses"] if row["backend"] == "mine"]


def seen(finished) -> set[str]:
    return {row["evidence"].get("seen", "") for row in diagnoses(finished)}


@pytest.mark.parametrize("op", ["relu", "tanh", "sigmoid", "exp", "elu"])
def test_what_depends_on_earlier_calls_is_stateful_in_every_case(parity_run, tmp_path, op):
    (tmp_path / "ops.py").write_text(KEPT)
    finished = parity_run(user_config(tmp_path / "ops.py", cases=cases(op, 3, 4)), "--baseline", "oracle")
    wrong = {(row["case"], row["dtype"]) for row in finished.results["comparisons"] if row["culprit"]}
    assert {case for case, _ in wrong} >= {f"{op}-4"}
    assert {row["id"] for row in diagnoses(finished)} == {"stateful"}
    assert {(row["case"], row["dtype"]) for row in diagnoses(finished)} == wrong


@pytest.mark.parametrize(("op", "says"), [("relu", RIGHT), ("elu", RIGHT), ("silu", ANOTHER)])
def test_a_sentence_says_what_a_new_process_returns(parity_run, tmp_path, op, says):
    (tmp_path / "ops.py").write_text(KEPT)
    finished = parity_run(user_config(tmp_path / "ops.py", cases=cases(op, 3, 4)), "--dtype", "float32")
    assert says in seen(finished)
    assert says in " ".join(finished.stdout.split())


def test_a_row_alone_is_asked_for_in_a_new_process(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(KEPT)
    case = "{id: relu, op: relu, gradients: false, stress: true, inputs: {x: {shape: [3, 5]}}}"
    finished = parity_run(user_config(tmp_path / "ops.py", cases=[case]), "-k", "relu and not size and not far")
    assert {row["id"] for row in diagnoses(finished) if row["case"] == "relu"} == {"stateful"}
    assert ROW in seen(finished)


WRONG = """
import numpy as np
DIFFERENTIABLE = False
compiled = {}


def relu(x):  # compiled at the first call with a shape, and healthy
    return compiled.setdefault((x.shape, x.dtype), lambda values: np.maximum(values, 0))(x)


def silu(x):
    return (x / (1 + np.exp(-1.01 * x))).astype(x.dtype)


def gelu(x, approximate):
    return (x * (np.sin(3 * x) > 0) * 0.7 + np.round(x * 7) / 5).astype(x.dtype)


def exp(x):
    return (1.01 * np.exp(x)).astype(x.dtype)


def linear(x, weight, bias):  # the last row depends on the number of rows
    y = x @ weight.T + bias
    return np.concatenate([y[:-1], y[-1:] * (1 + 0.01 * len(x))]).astype(x.dtype)
"""
LINEAR = "{id: linear-4, op: linear, params: {out_features: 3}, gradients: false, inputs: {x: {shape: [4, 5]}}}"


def test_what_repeats_in_a_new_process_is_not_stateful(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(WRONG)
    wrong = ("silu", "gelu", "exp")
    chosen = [*(case for op in ("relu", *wrong) for case in cases(op, 4)), LINEAR]
    finished = parity_run(user_config(tmp_path / "ops.py", cases=chosen), "--baseline", "oracle", "--dtype", "float32")
    blamed = {row["case"].partition("-")[0] for row in finished.results["comparisons"] if row["culprit"]}
    assert blamed == {*wrong, "linear"}
    assert "stateful" not in {row["id"] for row in diagnoses(finished)}


def test_a_new_process_is_asked_once_per_case_and_seldom_in_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(extra_cells, "MAX_NEW_PROCESSES", 2)
    answers = []

    def ask(question):
        questions = [question, *(extra_cells.CaseQuestions(question._asking) for _ in range(2))]
        given = [one.in_new_process("mine", ASKED, "float32", INPUTS) for one in (question, *questions)]
        answers.extend(answer is not None for answer in given)

    assert run(tmp_path, FAKES / "honest.py", ask)
    assert answers == [True, False, True, False]


COUNTS = """
import os
import numpy as np
calls = []


def layer_norm(x, weight, bias, normalized_shape, eps):
    calls.append(x)
    if {condition}:
        os.abort()
    return np.full(x.shape, len(calls) + 1000 * (os.getpid() != {first}), x.dtype)
"""


def test_the_warm_worker_gets_no_call_of_a_new_process(tmp_path):
    (tmp_path / "ops.py").write_text(COUNTS.format(condition="False", first="0") + "\nDIFFERENTIABLE = False\n")
    counts = []

    def ask(question):
        for one in (question, question.in_new_process, question):
            answer = one("mine", OTHER, "float32", drawn(OTHER))
            counts.append(int(answer["y"].flat[0]) - 1000)

    run(tmp_path, tmp_path / "ops.py", ask)
    before, new, after = counts
    assert new == 1
    assert after > before > 1  # The warm worker computes waiting cells meanwhile.


def test_a_backend_that_crashes_in_a_new_process_goes_on_in_its_own(tmp_path):
    marker = tmp_path / "started"
    text = COUNTS.format(condition=f"os.path.exists({str(marker)!r}) and len(calls) == 1", first="0")
    (tmp_path / "ops.py").write_text(text + "\nDIFFERENTIABLE = False\n")
    answers = []

    def ask(question):
        marker.touch()
        other = extra_cells.CaseQuestions(question._asking)
        asked = (question.in_new_process, question, other.in_new_process)
        answers.extend(one("mine", OTHER, "float32", drawn(OTHER)) is not None for one in asked)

    outcomes = run(tmp_path, tmp_path / "ops.py", ask)
    assert answers == [False, True, False]
    assert {outcome for *_, outcome in outcomes} == {"ok"}
