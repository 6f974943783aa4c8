"""Where a gradient is a choice, any valid one is right, and every other error is still found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import autograd.numpy as anp
import numpy as np
import pytest

from parity import exit_codes
from parity.cases import OPS
from parity.cases.draw import Integers
from parity.cases.op import Input, Op, TensorShapes
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.judge.compare.verdict import Verdict
from parity.outcome import CellOutcome, Outcome, Output
from tests.judge.judging import Tensors, drawn, judged, names, planned

RELU = OPS["relu"]
FEW = Integers(0, 3)
"""Numbers of which many are equal."""


def fake(name: str, function: Callable, *inputs: str) -> Op:
    """An op that ties: `function` of tensors, reduced over the last axis or not."""

    def infer_shapes(_params, given):
        return TensorShapes(dict(given), {"y": function(*map(np.zeros, given.values())).shape})

    tensors = tuple(Input(item, FEW, differentiable=True) for item in inputs)
    return replace(
        RELU,
        name=name,
        inputs=tensors,
        infer_shapes=infer_shapes,
        reference=lambda given, _: {"y": function(*(given[item] for item in inputs))},
        variants=lambda *_: (),
        forms=(),
    )


@pytest.fixture(autouse=True)
def _ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "largest", fake("largest", lambda x: anp.max(x, axis=1), "x"))
    monkeypatch.setitem(OPS, "larger", fake("larger", anp.maximum, "x", "weight"))


def relu(slope: float, elsewhere: float = 1.0) -> Judged:
    def make(inputs: Tensors, dtype: str) -> Tensors:
        x, grad = inputs["x"].astype(dtype), inputs["grad.y"].astype(dtype)
        slopes = np.where(x == 0, slope, np.where(x > 0, elsewhere, 0))
        return {"y": np.maximum(x, 0), "grad.x": grad * slopes.astype(dtype)}

    return judged(planned("relu", draws={"x": Integers(-2, 3)}, x=(4, 8)), make)


def verdicts(found: Judged) -> set[Verdict]:
    return {c.verdict for c in found.comparisons if c.tensor.startswith("grad.")}


@pytest.mark.parametrize(("slope", "which"), [(1, "from above"), (0.5, "mean of the derivatives from both sides")])
def test_every_slope_between_the_one_sided_derivatives_is_a_choice_that_does_not_fail(slope: float, which: str):
    found = relu(slope)
    assert verdicts(found) == {Verdict.CHOICE}
    assert {d.id for d in found.diagnoses} == {"gradient-choice"}
    chosen = found.diagnoses[0].evidence["chosen"]
    assert which in chosen["mine"]
    assert "from below" in chosen["the oracle"]
    assert exit_codes.exit_code(found.comparisons) == exit_codes.PASSED
    assert exit_codes.exit_code(found.comparisons, fail_on="mismatch") == exit_codes.MISMATCH


@pytest.mark.parametrize("slope", [2, -0.5, 1.01])
def test_a_slope_beyond_both_one_sided_derivatives_is_wrong(slope: float):
    found = relu(slope)
    assert verdicts(found) == {Verdict.SEMANTIC}
    assert "gradient-choice" not in names(found, "float64")


@pytest.mark.parametrize("slope", [0, 1, 0.5])
def test_an_error_elsewhere_is_named_whatever_the_choice(slope: float):
    found = relu(slope, elsewhere=1.1)
    assert verdicts(found) == {Verdict.SEMANTIC}
    assert names(found, "float32") == ["scaled"]


def share(x: np.ndarray, grad: np.ndarray, how: str) -> np.ndarray:
    """The gradient of a maximum over the last axis, divided among equal elements."""
    ties = x == x.max(1, keepdims=True)
    order = np.cumsum(ties, axis=1) * ties
    parts = {
        "evenly": ties / ties.sum(1, keepdims=True),
        "first": order == 1,
        "second": order == np.minimum(2, ties.sum(1, keepdims=True)),
        "last": order == ties.sum(1, keepdims=True),
        "all": ties,
    }
    return grad[:, None] * parts[how]


def largest(how: str, more: float = 0.0) -> Judged:
    def make(inputs: Tensors, dtype: str) -> Tensors:
        x, grad = inputs["x"].astype(dtype), inputs["grad.y"].astype(dtype)
        return {"y": x.max(1), "grad.x": (share(x, grad, how) + more * (x < 1)).astype(dtype)}

    return judged(planned("largest", draws={"x": FEW}, x=(5, 7)), make)


@pytest.mark.parametrize("how", ["first", "second", "last"])
def test_the_gradient_of_equal_elements_may_go_to_any_of_them(how: str):
    found = largest(how)
    assert verdicts(found) == {Verdict.CHOICE}
    assert found.diagnoses[0].evidence["chosen"]["the oracle"] == "a part of it to each of equal elements"
    assert (how in found.diagnoses[0].evidence["chosen"]["mine"]) == (how != "second")


def test_equal_elements_share_one_gradient_and_others_get_none():
    assert verdicts(largest("evenly")) <= {Verdict.EQUAL, Verdict.CLOSE}
    assert verdicts(largest("all")) == {Verdict.SEMANTIC}
    assert verdicts(largest("first", more=1e-3)) == {Verdict.SEMANTIC}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [((1, 0), "choice"), ((0, 1), "choice"), ((0.3, 0.7), "choice"), ((1, 1), "semantic"), ((0, 0), "semantic")],
)
def test_two_tensors_share_one_gradient(parts: tuple[float, float], verdict: str):
    def make(inputs: Tensors, dtype: str) -> Tensors:
        x, other, grad = (inputs[name].astype(dtype) for name in ("x", "weight", "grad.y"))
        slopes = {"grad.x": (parts[0], x > other), "grad.weight": (parts[1], x < other)}
        gradients = {n: (grad * np.where(x == other, part, rest)).astype(dtype) for n, (part, rest) in slopes.items()}
        return {"y": np.maximum(x, other), **gradients}

    found = judged(planned("larger", x=(5, 7), weight=(5, 7)), make)
    assert {c.value for c in verdicts(found)} == {verdict}


def test_two_backends_that_choose_differently_do_not_differ():
    case = planned("relu", draws={"x": Integers(-2, 3)}, x=(4, 8))
    inputs = drawn(case)
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "half")

    def outcome(backend: str, slope: float, dtype: str) -> CellOutcome:
        x, grad = inputs["x"].astype(dtype), inputs["grad.y"].astype(dtype)
        values = {"y": np.maximum(x, 0), "grad.x": grad * np.where(x == 0, slope, x > 0).astype(dtype)}
        outputs = {name: Output(dtype, v.shape, v) for name, v in values.items()}
        return CellOutcome(case.id, dtype, backend, Outcome.OK, outputs=outputs)

    for dtype in case.dtypes:
        judge.take(dtype, [outcome("one", 1.0, dtype), outcome("half", 0.5, dtype)])
    found = judge.judged()
    between = [c for c in found.comparisons if (c.actual, c.expected, c.tensor) == ("one", "half", "grad.x")]
    assert {c.verdict for c in between} == {Verdict.CHOICE}
    assert not any(c.culprit for c in found.comparisons)
    assert {d.backend for d in found.diagnoses} == {"one", "half"}


@pytest.mark.parametrize("shape", [(4, 9), (120, 7)])
@pytest.mark.parametrize(("wrong", "verdict"), [("", "choice"), ("twice", "semantic"), ("other", "semantic")])
def test_indices_of_equal_elements_are_a_choice_and_so_is_the_gradient_that_follows(
    wrong: str, verdict: str, shape: tuple[int, int]
):
    def make(inputs: Tensors, dtype: str) -> Tensors:
        x, grad = inputs["x"], np.zeros(inputs["x"].shape, dtype)
        indices = np.flip(np.argsort(x, 1, kind="stable"), 1)[:, :3]
        if wrong:
            indices[0, 1] = indices[0, 0] if wrong == "twice" else np.argmin(x[0])
        np.put_along_axis(grad, indices, inputs["grad.y"].astype(dtype), 1)
        return {"y": np.sort(x, 1)[:, ::-1][:, :3].astype(dtype), "indices": indices, "grad.x": grad}

    found = judged(planned("topk", draws={"x": FEW}, x=shape, k=3), make)
    assert {c.verdict.value for c in found.comparisons if c.tensor == "indices"} == {verdict}
    assert ({d.id for d in found.diagnoses} == {"gradient-choice", "index-choice"}) is not bool(wrong)
    assert (exit_codes.exit_code(found.comparisons) == exit_codes.PASSED) is not bool(wrong)
