"""Verdicts from outcomes, without any process, and without a search for causes where none may decide a verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.adapters.base import Adapter
from parity.cases import oracle
from parity.cases.draw import Integers, Normal, TensorPlan
from parity.cases.norm import LayerNormParams
from parity.cases.op import Variant
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES, ToleranceRule
from parity.exit_codes import exit_code
from parity.judge.case import CaseJudge
from parity.judge.compare.cell import consult_oracle
from parity.judge.compare.verdict import Verdict
from parity.outcome import CellOutcome, Outcome, Output
from parity.worker.arrays import to_array
from tests.judge.judging import drawn, judged, kernel, planned

SHAPES = {"x": (4, 6), "weight": (6,), "bias": (6,), "grad.y": (4, 6)}
CASE = CasePlan(
    id="one",
    op="layer_norm",
    params=LayerNormParams((6,)),
    dtypes=("float32",),
    tensors=tuple(TensorPlan(name, shape, Normal()) for name, shape in SHAPES.items()),
    tolerance=DEFAULT_TOLERANCES,
    source=WrittenAt("x.yaml", 1),
)
INPUTS = {plan.name: plan.sample(0, CASE.id, "float32") for plan in CASE.tensors}
ORACLE = consult_oracle(CASE, INPUTS)


def outcome(name, **changed):
    values = {key: value.astype(np.float32) for key, value in ORACLE.items()} | changed
    outputs = {k: Output(str(v.dtype), v.shape, v) for k, v in values.items() if v is not None}
    return CellOutcome("one", "float32", name, Outcome.OK, outputs=outputs)


def verdicts(*outcomes, case=CASE, baseline="a"):
    judge = CaseJudge(case, INPUTS, ORACLE, baseline)
    judge.take("float32", outcomes)
    return {(c.actual, c.expected, c.tensor): c for c in judge.judged(diagnose=False).comparisons}


def test_equal_backends_pass():
    found = verdicts(outcome("a"), outcome("b"))
    assert {c.verdict for (_, expected, _), c in found.items() if expected == "a"} == {Verdict.EQUAL}
    assert all(c.verdict.passes for c in found.values())
    assert len(found) == 3 * 4


def test_the_culprit_is_the_backend_that_differs_from_the_oracle():
    y = ORACLE["y"].astype(np.float32)
    found = verdicts(outcome("a", y=y + np.float32(0.1)), outcome("b"))
    assert found["b", "a", "y"].verdict is Verdict.SEMANTIC
    assert found["b", "a", "y"].culprit == ("a",)
    assert found["a", "oracle", "y"].culprit == ("a",)
    assert found["b", "oracle", "y"].culprit == ()


def test_the_oracle_alone_can_be_the_baseline():
    assert {expected for _, expected, _ in verdicts(outcome("a"), baseline="oracle")} == {"oracle"}


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        ({"y": None}, Verdict.STRUCTURE, "b has no y"),
        ({"y": np.zeros((6, 4), np.float32)}, Verdict.STRUCTURE, "b has shape [6, 4], a [4, 6]"),
        ({"y": ORACLE["y"].astype(np.float64)}, Verdict.STRUCTURE, "b has dtype float64, a float32"),
        ({"y": np.full((4, 6), np.nan, np.float32)}, Verdict.NONFINITE, ""),
        ({"y": np.full((4, 6), np.inf, np.float32)}, Verdict.NONFINITE, ""),
    ],
)
def test_structure_comes_first_then_masks(changed, verdict, said):
    found = verdicts(outcome("a"), outcome("b", **changed))["b", "a", "y"]
    assert found.verdict is verdict
    assert found.message == said


def test_an_output_that_was_not_asked_for_is_not_overlooked():
    found = verdicts(outcome("a"), outcome("b", more=np.zeros(3, np.float32)))
    assert found["b", "a", "more"].verdict is Verdict.STRUCTURE
    assert found["b", "oracle", "more"].message == "b returns more, which layer_norm does not have"


def test_nan_at_the_same_locations_agree():
    spoiled = ORACLE["y"].astype(np.float32)
    spoiled[0] = np.nan
    found = verdicts(outcome("a", y=spoiled), outcome("b", y=spoiled))
    assert found["b", "a", "y"].verdict is Verdict.EQUAL
    assert found["b", "oracle", "y"].verdict is Verdict.NONFINITE


def test_a_crash_is_not_compared_but_the_others_are():
    crashed = CellOutcome("one", "float32", "b", Outcome.CRASH, message="killed by SIGSEGV")
    found = verdicts(outcome("a"), crashed)
    assert {c.verdict for key, c in found.items() if key[0] == "b"} == {Verdict.NOT_COMPARED}
    assert {c.tensor for key, c in found.items() if key[0] == "b"} == set(ORACLE)
    assert "SIGSEGV" in found["b", "a", "y"].message
    assert found["a", "oracle", "y"].verdict.passes


def test_a_crashed_baseline_leaves_the_oracle():
    crashed = CellOutcome("one", "float32", "a", Outcome.CRASH, message="killed")
    found = verdicts(crashed, outcome("b"))
    assert found["b", "a", "y"].verdict is Verdict.NOT_COMPARED
    assert found["b", "oracle", "y"].verdict.passes


def test_a_pass_that_zeros_would_share_is_suspect():
    loose = DEFAULT_TOLERANCES.extended([ToleranceRule(tensor="y", rtol=1e-6, atol=100.0)])
    case = CasePlan(**{**CASE.__dict__, "tolerance": loose})
    found = verdicts(outcome("a"), outcome("b"), case=case)
    assert found["b", "a", "y"].suspect
    assert not found["b", "a", "grad.x"].suspect
    nan = np.full((4, 6), np.nan, np.float32)
    both = verdicts(outcome("a", y=nan), outcome("b", y=nan))
    assert both["b", "a", "y"].verdict.passes
    assert both["b", "a", "y"].suspect
    assert not both["b", "oracle", "y"].suspect


def test_a_tolerance_of_one_tensor():
    strict = DEFAULT_TOLERANCES.extended([ToleranceRule(tensor="grad.*", rtol=0.0, atol=0.0)])
    case = CasePlan(**{**CASE.__dict__, "tolerance": strict})
    nudged = np.nextafter(ORACLE["grad.x"].astype(np.float32), np.float32(np.inf))
    found = verdicts(outcome("a"), outcome("b", **{"grad.x": nudged}), case=case)
    assert found["b", "a", "grad.x"].verdict is Verdict.ROUNDING
    assert found["b", "a", "grad.x"].culprit == ()
    assert found["b", "a", "y"].verdict.passes


@pytest.mark.parametrize("member", [Verdict.EQUAL, Outcome.OK, Outcome.CRASH])
def test_verdicts_and_outcomes_have_no_truth_value(member):
    with pytest.raises(TypeError, match="truth value"):
        bool(member)


def off_by(**errors):
    """A kernel that adds `errors[dtype]` times a pattern to y."""

    def values(case, inputs, dtype):
        tensors = kernel(case, inputs, dtype)
        pattern = np.random.default_rng(1).standard_normal(tensors["y"].shape)
        return {**tensors, "y": (tensors["y"] + errors[dtype] * pattern).astype(dtype)}

    return values


@pytest.mark.parametrize(
    ("errors", "verdicts"),
    [
        ({"float32": 0.01, "float64": 0.01}, {"float32": "semantic", "float64": "semantic"}),
        ({"float32": 0.01, "float64": 1e-12}, {"float32": "unstable"}),
        ({"float32": 384.0, "float64": 7e-9}, {"float32": "unstable"}),
        ({"float32": 0.01, "float64": 1e-5}, {"float32": "unstable", "float64": "unstable"}),
        ({"float32": 0.0, "float64": 1e-4}, {"float64": "semantic"}),
        ({"float32": 0.05}, {"float32": "semantic"}),
        ({"float32": 2e-5}, {"float32": "unstable"}),
        ({"float64": 0.05}, {"float64": "semantic"}),
        ({"float64": 2e-7}, {"float64": "degraded"}),
    ],
)
def test_the_verdict_follows_from_the_errors_alone(errors, verdicts):
    case = planned("layer_norm", tuple(errors), x=(17, 48), normalized_shape=(48,))
    strict = replace(case, tolerance=DEFAULT_TOLERANCES.extended([ToleranceRule(rtol=0.0, atol=0.0)]))
    inputs = drawn(case)
    judge = CaseJudge(strict, inputs, consult_oracle(case, inputs), "oracle")
    for dtype in errors:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in off_by(**errors)(case, inputs, dtype).items()}
        judge.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    found = {c.dtype: c.verdict.value for c in judge.judged(diagnose=False).comparisons if c.tensor == "y"}
    assert {dtype: found[dtype] for dtype in verdicts} == verdicts


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_what_conditioning_explains_is_no_other_formula_with_one_dtype_alone(offset):
    """A naive variance at an offset loses every digit, and is not called semantic for that."""
    case = planned("layer_norm", ("float32",), offset=offset, x=(17, 48), normalized_shape=(48,))
    naive = judged(case, lambda inputs, dtype: kernel(case, inputs, dtype, Variant("", {"variance": "naive-clamped"})))
    assert {c.verdict.value for c in naive.comparisons if c.tensor == "y"} == {"unstable"}


def test_a_tensor_without_a_finite_exact_value_compares_nothing():
    case = planned("layer_norm", x=(4, 6), normalized_shape=(6,))
    inputs = {**drawn(case), "x": np.full((4, 6), np.nan, np.float32)}
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "a")
    for dtype in case.dtypes:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in kernel(case, inputs, dtype).items()}
        outcomes = [CellOutcome(case.id, dtype, name, Outcome.OK, outputs=outputs) for name in ("a", "b")]
        judge.take(dtype, outcomes)
    found = [c for c in judge.judged().comparisons if c.tensor == "y"]
    assert {c.verdict for c in found} == {Verdict.NOT_COMPARED}
    assert {c.message for c in found} == {"no exact value is finite, so nothing can be compared"}
    assert exit_code(found) == 3


@pytest.mark.parametrize("op", ["layer_norm", "linear", "batch_norm"])
def test_large_cases_get_the_verdicts_of_small_ones(op, monkeypatch):
    """With an oracle in float64, blocks of rows, and runs for the tensors that need them."""
    given = {"layer_norm": {"normalized_shape": (48,)}, "linear": {"out_features": 20}}.get(op, {})
    case = planned(op, x=(60, 48), **given)

    def verdicts_of(*faults):
        def values(inputs, dtype):
            tensors = kernel(case, inputs, dtype, functions=oracle.IN_SEQUENCE)
            return {n: v * v.dtype.type(1.001) if n in faults else v for n, v in tensors.items()}

        found = judged(case, values, diagnose=False).comparisons
        return {(c.dtype, c.tensor): (c.verdict, c.culprit) for c in found}

    small = [verdicts_of(), verdicts_of("y"), verdicts_of("grad.weight")]
    monkeypatch.setattr("parity.judge.case.LARGE", 1)
    monkeypatch.setattr("parity.judge.compare.cell.MAX_LONG", 1)
    monkeypatch.setattr(oracle, "LARGE", 1)
    monkeypatch.setattr(oracle, "SPLITS", {})
    monkeypatch.setattr("parity.cases.blocked.BLOCK", 500)
    large = [verdicts_of(), verdicts_of("y"), verdicts_of("grad.weight")]
    for ours, theirs in zip(small, large, strict=True):
        assert {key: culprit for key, (_, culprit) in ours.items()} == {key: c for key, (_, c) in theirs.items()}
        passes = {key for key, (verdict, _) in ours.items() if verdict.passes}
        assert passes == {key for key, (verdict, _) in theirs.items() if verdict.passes}
    assert small[1]["float32", "y"] == large[1]["float32", "y"] == (Verdict.SEMANTIC, ("mine",))


@pytest.mark.parametrize(("shape", "fits"), [((40,), True), ((20000,), False)])
@pytest.mark.parametrize("summed_in", ["float16", "float32"])
def test_squares_that_overflow_float16_excuse_no_kernel_and_blame_no_careful_one(shape, fits, summed_in):
    """The sum of squares does not fit float16, the norm does, or not: what fits must be right."""

    def clipped(inputs, dtype):
        grads = inputs["grads.0"].astype(summed_in)
        with np.errstate(over="ignore"):
            norm = np.sqrt(np.sum(grads * grads, dtype=summed_in)).astype(np.float32)
            values = inputs["grads.0"] * np.minimum(np.float32(1000) / (norm + np.float32(1e-6)), np.float32(1))
            return {"grads.0": values.astype(dtype), "total_norm": np.asarray(norm, dtype)}

    draws = {"grads.0": Integers(-1000, 1001)}
    case = planned("clip_grad_norm", ("float16",), draws, grads_0=shape, max_norm=1000.0)
    found = {c.tensor: c.culprit for c in judged(case, clipped).comparisons}
    careful = summed_in == "float32"
    assert found == {"grads.0": () if careful else ("mine",), "total_norm": () if careful or not fits else ("mine",)}


INDICES = {
    "right": (lambda index: index, {"equal"}),
    "another-in-one-row": (lambda index: index + (np.arange(index.size) == 2), {"semantic"}),
    "as-floats": (lambda index: index.astype(np.float32), {"structure"}),
}


@pytest.mark.parametrize("change", INDICES)
def test_indices_are_compared_exactly(change):
    """Rows with two largest elements: the first one is meant, however small a perturbation would choose."""
    function, expected = INDICES[change]
    case = planned("argmax", draws={"x": Integers(0, 3)}, x=(6, 8), dim=1)
    found = judged(case, lambda inputs, dtype: {"y": function(np.argmax(inputs["x"], axis=1))})
    assert {c.verdict.value for c in found.comparisons} == expected
    assert {c.culprit for c in found.comparisons} == {() if expected == {"equal"} else ("mine",)}


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64"])
def test_the_size_of_integers_is_no_difference(dtype):
    index = np.array([3, 0, 7], dtype)
    assert to_array(Adapter("cpu", 1), index, "float32", 100).dtype == np.int64
