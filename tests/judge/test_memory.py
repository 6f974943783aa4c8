"""What explained an earlier case, or the wider dtype, is tried first; a failing tensor gets a search of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config.tolerances import ToleranceRule
from parity.judge.case import CaseJudge, prepared
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import standing_causes
from parity.judge.diagnose.explanation import unaltered
from parity.judge.diagnose.memory import Memory
from parity.judge.diagnose.search import SearchResult, recalled
from parity.outcome import CellOutcome, Outcome, Output
from tests.judge.judging import drawn, planned

EPS = 1e-3


def float32_epsilon(case, inputs, dtype):
    params = replace(case.params, eps=float(np.float32(case.params.eps)))
    return evaluate(OPS[case.op], params, inputs, dtype=dtype)


def naive_variance(case, inputs, dtype):
    return evaluate(OPS[case.op], case.params, inputs, dtype=dtype, variance="naive")


def judge(case, memory):
    inputs = drawn(case)
    found = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle", memory)
    for dtype in case.dtypes:
        outputs = {n: Output(dtype, v.shape, v) for n, v in float32_epsilon(case, inputs, dtype).items()}
        found.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return found.judged()


def cases(*eps, tolerance=None):
    made = [
        planned("layer_norm", ("float64",), x=(6, 8 + i), normalized_shape=(8 + i,), eps=e) for i, e in enumerate(eps)
    ]
    made = [replace(case, id=f"case-{i}") for i, case in enumerate(made)]
    return [replace(case, tolerance=case.tolerance.extended([tolerance])) for case in made] if tolerance else made


def test_a_pass_takes_the_cause_of_an_earlier_case_with_its_own_numbers():
    memory = Memory()
    first, second = (judge(case, memory) for case in cases(1e-3, 3e-3))
    [told], [again] = first.diagnoses, second.diagnoses
    assert (told.id, again.id) == ("attribute-precision", "attribute-precision")
    assert "first_found_in" not in told.evidence
    assert again.evidence["first_found_in"] == "case-0"
    assert again.evidence["parameters"]["eps"] == float(np.float32(3e-3))
    assert all(c.suspect for c in second.comparisons if c.culprit)


def test_a_failing_tensor_takes_an_earlier_cause_that_predicts_its_values():
    memory = Memory()
    strict = ToleranceRule(rtol=1e-14, atol=0.0)
    _, second = (judge(case, memory) for case in cases(1e-3, 3e-3, tolerance=strict))
    [told] = [d for d in second.diagnoses if d.id != "rounding"]
    assert (told.id, told.evidence["first_found_in"]) == ("attribute-precision", "case-0")
    assert any(c.verdict.fails for c in second.comparisons)


def test_a_cause_that_predicts_only_the_size_of_an_error_does_not_settle_a_failing_tensor():
    case = planned("layer_norm", ("float32",), offset=300.0, x=(6, 9), normalized_shape=(9,), eps=EPS)
    evaluator = prepared(case, "float32", drawn(case))
    observed = naive_variance(case, drawn(case), "float32")
    lossy = [("earlier", (cause,)) for cause in standing_causes(evaluator) if cause.id == "variance-naive"]
    settled = {plain: recalled(evaluator, observed, lossy, plain=plain) for plain in (False, True)}
    assert settled[False].taken_from == "earlier"
    assert settled[True] is None


def test_the_narrow_dtype_takes_the_cause_of_the_wide_one():
    case = planned("layer_norm", x=(6, 9), normalized_shape=(9,), eps=EPS)
    inputs = drawn(case)
    found = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle")
    for dtype in case.dtypes:
        wrong = evaluate(OPS[case.op], case.params, inputs, dtype=dtype, ddof=1)
        outputs = {n: Output(dtype, v.shape, v) for n, v in wrong.items()}
        found.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    rows = {d.dtype: d for d in found.judged().diagnoses if d.id == "variance-ddof"}
    assert "first_found_in" not in rows["float64"].evidence
    assert rows["float32"].evidence["first_found_in"] == "float64"


def test_an_interrupted_case_is_judged_without_diagnoses():
    case = planned("layer_norm", x=(6, 9), normalized_shape=(9,), eps=EPS)
    inputs = drawn(case)
    found = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle")
    wrong = evaluate(OPS[case.op], case.params, inputs, dtype="float32", ddof=1)
    outputs = {n: Output("float32", v.shape, v) for n, v in wrong.items()}
    found.take("float32", [CellOutcome(case.id, "float32", "mine", Outcome.OK, outputs=outputs)])
    judged = found.judged(diagnose=False)
    assert not judged.diagnoses
    assert {c.culprit for c in judged.comparisons if c.tensor == "y"} == {("mine",)}


def observing(case, inputs, compute, memory=None):
    """The judge of a case whose backend computes `compute(inputs)` in each dtype."""
    found = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle", memory)
    for dtype in case.dtypes:
        given = {n: v.astype(dtype) for n, v in inputs.items()}
        outputs = {n: Output(dtype, v.shape, v) for n, v in compute(case, given, dtype).items()}
        found.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return found.judged()


def wrong_ddof(case, inputs, dtype):
    return evaluate(OPS[case.op], case.params, inputs, dtype=dtype, ddof=1)


def noise(case, inputs, dtype):
    rng, right = np.random.default_rng(3), evaluate(OPS[case.op], case.params, inputs, dtype=dtype)
    return {**right, "y": (right["y"] + rng.normal(size=right["y"].shape)).astype(dtype)}


def test_a_cause_is_tried_in_the_dtypes_that_the_case_where_it_was_found_does_not_have():
    memory, (first, second) = Memory(), cases(1e-3, 3e-3)
    first = replace(first, dtypes=("float32",))
    observing(first, drawn(first), wrong_ddof, memory)
    rows = observing(second, drawn(second), wrong_ddof, memory).diagnoses
    assert [(d.id, d.dtype, d.evidence["first_found_in"]) for d in rows if d.explained] == [
        ("variance-ddof", "float64", "case-0")
    ]


def test_an_unexplained_case_takes_the_cause_of_a_later_one():
    memory, (first, second) = Memory(), cases(1e-3, 3e-3)
    inputs = drawn(first)
    evaluator = prepared(first, "float64", inputs)
    left = SearchResult(unaltered(evaluator, wrong_ddof(first, inputs, "float64")))
    memory.leave(left, "mine")
    assert list(memory.revised()) == []
    [revision] = observing(second, drawn(second), wrong_ddof, memory).revisions
    assert revision.cell == ("case-0", "float64", "mine")
    assert revision.replaced == ("unexplained",)
    [told] = revision.diagnoses
    assert (told.id, told.explained, told.evidence["first_found_in"]) == ("variance-ddof", True, "case-1")
    assert observing(first, inputs, wrong_ddof, memory).revisions == ()


def test_an_unexplained_case_keeps_its_diagnosis_if_the_cause_of_a_later_one_does_not_hold_there():
    memory, (first, second) = Memory(), cases(1e-3, 3e-3)
    assert "unexplained" in [d.id for d in observing(first, drawn(first), noise, memory).diagnoses]
    assert observing(second, drawn(second), wrong_ddof, memory).revisions == ()
