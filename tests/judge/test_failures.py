"""An error of parity itself costs the answer that it was looking for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from parity.judge import case as judging
from parity.judge import contained
from parity.judge.bound.choices import Chosen
from parity.judge.compare import cell
from parity.judge.compare.verdict import MEASURES, Comparison, Verdict
from parity.judge.contained import ContainedJudge
from parity.judge.diagnose import inquiry
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.findings import choice_diagnoses
from parity.judge.failures import FAILED, FAILURES, Failures, logged, uncontained
from parity.outcome import CellOutcome, Outcome, Output
from parity.reporting.results.record import diagnosis_row
from tests.judge.judging import drawn
from tests.judge.test_inquiry import NORM, Kernel, judged, raw_for_normalised


def fails(*_: Any, **__: Any) -> Any:
    raise StopIteration("injected")


def measured(comparisons: Iterable[Comparison]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(c, name) for name in MEASURES) for c in comparisons]


def contained_judge(kernel: Kernel) -> ContainedJudge:
    inputs = drawn(NORM)
    judge = ContainedJudge(NORM, inputs, "oracle", ask=kernel.ask)
    for dtype in NORM.dtypes:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in kernel(NORM, dtype, inputs).items()}
        judge.take(dtype, [CellOutcome(NORM.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return judge


@pytest.mark.parametrize("name", ["edit_causes", "behaviours", "growing", "proposals"])
def test_an_explainer_that_fails_is_left_out_and_said(name: str, monkeypatch: pytest.MonkeyPatch):
    right = judged(NORM, Kernel(raw_for_normalised))
    monkeypatch.setattr(inquiry, name, fails)
    wrong = judged(NORM, Kernel(raw_for_normalised))
    assert [c.verdict for c in wrong.comparisons] == [c.verdict for c in right.comparisons]
    assert measured(wrong.comparisons) == measured(right.comparisons)
    if name == "edit_causes":
        assert {d.id for d in wrong.diagnoses} == {FAILED}
        failure = wrong.diagnoses[0].evidence[FAILURES][0]
        assert failure["doing"] == "trying edits of the reference"
        assert "StopIteration: injected" in failure["error"]
        assert "test_failures.py" in failure["traceback"]
        assert len(list(logged(wrong.diagnoses))) == len(NORM.dtypes)


def test_another_explainer_explains_in_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inquiry, "search", fails)
    found = judged(NORM, Kernel(raw_for_normalised))
    assert {d.id for d in found.diagnoses} == {"reference-edit"}
    doing = {failure["doing"] for d in found.diagnoses for failure in d.evidence.get(FAILURES, ())}
    assert doing == {"searching the known causes"}


@pytest.mark.parametrize(
    ("where", "name"), [(judging, "error_ratio"), (cell, "compare"), (judging, "finished"), (judging, "KINDS")]
)
def test_a_tensor_without_a_verdict_is_not_compared(where: Any, name: str, monkeypatch: pytest.MonkeyPatch):
    numbers = measured(judged(NORM, Kernel(raw_for_normalised)).comparisons)
    monkeypatch.setattr(where, name, {} if name == "KINDS" else fails)
    found = contained_judge(Kernel(raw_for_normalised)).judged()
    missing = [c for c in found.comparisons if c.verdict is Verdict.NOT_COMPARED]
    assert any(c.tensor == "grad.weight" for c in missing)
    assert all("parity failed here" in c.message and "log.txt" in c.message for c in missing)
    assert name == "compare" or measured(found.comparisons) == numbers
    assert FAILURES in found.diagnoses[0].evidence


@pytest.mark.parametrize(
    ("where", "name"), [(contained, "consult_oracle"), (contained.CaseJudge, "take"), (contained.CaseJudge, "judged")]
)
def test_a_case_that_cannot_be_judged_keeps_its_outcomes(where: Any, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where, name, fails)
    found = contained_judge(Kernel(raw_for_normalised)).judged()
    assert {c.dtype for c in found.comparisons} == set(NORM.dtypes)
    assert {c.verdict for c in found.comparisons} == {Verdict.NOT_COMPARED}
    assert {(d.backend, d.id) for d in found.diagnoses} == {("mine", FAILED)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_failure(error: type[BaseException]):
    failures = Failures()
    with pytest.raises(error), failures.contained("waiting"):
        raise error
    assert not failures


def test_a_fuzz_sees_what_a_run_contains():
    failures = Failures()
    with pytest.raises(ValueError, match="shown"), uncontained(), failures.contained("failing"):
        raise ValueError("shown")
    with failures.contained("running out of memory"):
        raise MemoryError
    assert [failure.doing for failure in failures] == ["running out of memory"]


@pytest.mark.parametrize("returned", [np.ravel, lambda y: y.reshape(y.shape + (1,) * 40), np.atleast_3d])
def test_any_shape_is_a_structure(returned: Callable[[np.ndarray], np.ndarray]):
    with uncontained():
        found = judged(NORM, Kernel(lambda _given, _params, right: {"y": returned(right["y"])}))
    assert {c.verdict for c in found.comparisons if c.tensor == "y"} == {Verdict.STRUCTURE}
    assert FAILED not in {d.id for d in found.diagnoses}


@pytest.mark.parametrize(
    ("value", "stored"),
    [(np.float32(0.5), 0.5), (np.arange(2), [0, 1]), ({"n": np.int64(3)}, {"n": 3}), (np.bool_(True), True)],
)
def test_numbers_of_numpy_are_recorded(value: Any, stored: Any):
    given = Diagnosis("c", "float32", "mine", "scaled", "t", ("y",), True, np.float64(9), evidence={"k": value})
    row = diagnosis_row(given)
    assert (row.id, row.evidence, type(row.residual_before)) == ("scaled", {"k": stored}, float)


@pytest.mark.parametrize("value", [object(), 1j, {(1, 2): 3}])
def test_evidence_that_cannot_be_recorded_costs_the_cause(value: Any):
    row = diagnosis_row(Diagnosis("c", "float32", "mine", "scaled", "t", ("y",), True, evidence={"k": value}))
    assert (row.case, row.dtype, row.backend, row.id, row.tensors) == ("c", "float32", "mine", FAILED, ("y",))
    assert row.evidence[FAILURES][0]["doing"] == "recording the cause"


def test_a_gradient_near_the_oracles_own_is_no_choice():
    mask = {"grad.w": np.ones(2, bool)}
    chosen = Chosen(mask, mask, {"grad.w": np.ones(2)})
    assert not list(choice_diagnoses(("c", "float32"), {"mine": chosen}, lambda _: {}))
