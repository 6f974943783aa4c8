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
from parity.judge.diagnose.memory import Memory
from parity.judge.diagnose.search import recalled
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
