"""float16 and bfloat16: a careful implementation computes in float32 and rounds once, and what does not is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.draw import Draw, Normal, Uniform
from parity.cases.dtypes import as_dtype, held_by_all
from parity.cases.oracle import composed_in, evaluate
from parity.config.plan import CasePlan
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.outcome import CellOutcome, Outcome, Output
from tests.judge.judging import names, planned, verdicts

Tensors = Mapping[str, np.ndarray]
Round = Callable[[Any], np.ndarray]
Fault = Callable[[Tensors, Any, Round], Tensors]


def judged(case: CasePlan, fault: Fault = lambda *_: {}, **how: Any) -> Judged:
    """A kernel in float32 whose outputs are rounded once; `fault(inputs, params, rounding)` replaces some."""

    def kernel(case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        computed_in = "float64" if dtype == "float64" else "float32"
        given = {n: as_dtype(v, dtype).astype(computed_in) if v.dtype.kind == "f" else v for n, v in inputs.items()}
        with np.errstate(all="ignore"):
            right = evaluate(OPS[case.op], case.params, given, dtype=computed_in, **how)
            wrong = fault(given, case.params, lambda values: as_dtype(values, dtype).astype(computed_in))
            return {n: as_dtype(np.asarray(v), dtype) for n, v in {**right, **wrong}.items()}

    inputs = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
    ask = lambda _backend, case, dtype, inputs: kernel(case, dtype, inputs)  # noqa: E731
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle", ask=ask)
    for dtype in case.dtypes:
        outputs = {n: Output(dtype, v.shape, v) for n, v in kernel(case, dtype, inputs).items()}
        judge.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return judge.judged()


def running_total(given: Tensors, _params: Any, rounded: Round) -> Tensors:
    total = np.zeros(())
    for column, weights in zip(given["x"].T, given["weight"].T, strict=True):
        total = rounded(total + column[:, None] * weights)
    return {"y": total + given["bias"]}


def transformed(given: Tensors, params: Any, rounded: Round) -> Tensors:
    """The sum through terms that cancel, as in Winograd's convolutions."""
    right = given["x"] @ given["weight"].T + given["bias"]
    large = np.random.default_rng(0).normal(0, 128, right.shape)
    return {"y": rounded(right + large) - large}


def totals_of_blocks(given: Tensors, _params: Any, rounded: Round) -> Tensors:
    """Four terms at a time in float32: no edit of the reference."""
    total = np.zeros(())
    for k in range(0, given["x"].shape[1], 4):
        total = rounded(total + given["x"][:, k : k + 4] @ given["weight"][:, k : k + 4].T)
    return {"y": total + given["bias"]}


def normalised(given: Tensors, params: Any, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    return (given["x"] - mean) / np.sqrt(var + np.float32(params.eps)) * given["weight"] + given["bias"]


def narrow_statistics(given: Tensors, params: Any, rounded: Round) -> Tensors:
    mean, var = (rounded(f(given["x"], axis=1, keepdims=True)) for f in (np.mean, np.var))
    return {"y": normalised(given, params, mean, var)}


def narrow_squares(given: Tensors, params: Any, rounded: Round) -> Tensors:
    mean = np.mean(given["x"], axis=1, keepdims=True)
    return {"y": normalised(given, params, mean, np.mean(rounded((given["x"] - mean) ** 2), axis=1, keepdims=True))}


def narrow_tanh(given: Tensors, _params: Any, rounded: Round) -> Tensors:
    x = given["x"]
    inner = np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3))
    return {"y": np.float32(0.5) * x * (1 + rounded(inner))}


def case_of(op: str, dtypes: Sequence[str], draw: Draw | None = None, **given: Any) -> CasePlan:
    return planned(op, dtypes, {"x": draw} if draw else None, **given)


BF16, FP16 = ("bfloat16", "float32"), ("float16", "float32")
LINEAR = {"x": (6, 600), "out_features": 4}
NORM = {"x": (12, 24), "normalized_shape": (24,)}
PLANTED: Sequence[tuple[CasePlan, Fault, str, str]] = (
    (case_of("linear", BF16, **LINEAR), running_total, "narrow-accumulation", "running_matmul(x, "),
    (case_of("linear", FP16, **LINEAR), running_total, "narrow-accumulation", "format=float16"),
    (case_of("linear", BF16, x=(6, 3000), out_features=4), totals_of_blocks, "narrow-accumulation", ""),
    (case_of("linear", BF16, x=(6, 40), out_features=5), transformed, "reduced-precision", ""),
    (case_of("layer_norm", BF16, Normal(20.0, 1.0), **NORM), narrow_statistics, "reduced-precision", ""),
    (case_of("layer_norm", FP16, Normal(0.0, 400.0), **NORM), narrow_squares, "narrow-overflow", "float16"),
    (
        case_of("gelu", BF16, Uniform(-5.0, -2.5), x=(8, 9), approximate="tanh"),
        narrow_tanh,
        "reduced-precision",
        "tanh",
    ),
)


@pytest.mark.parametrize(("case", "fault", "name", "expression"), PLANTED)
def test_what_is_kept_narrow_is_named(case, fault, name, expression):
    found = judged(case, fault)
    low = case.dtypes[0]
    assert names(found, low) == [name]
    assert names(found, "float32") == []
    assert set(verdicts(found, low).values()) <= {"unstable", "nonfinite", "close", "rounding", "equal"}
    evidence = next(d.evidence for d in found.diagnoses if d.id == name)
    assert expression in evidence.get("expression", "")
    if fault is totals_of_blocks:
        assert evidence["lengths"] == [16, 128, 1024, 8192]
        assert evidence["slope"]["y"] > 0.25


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("layer_norm", NORM),
        ("linear", LINEAR),
        ("multi_head_attention", {"x": (2, 5, 8), "num_heads": 2}),
    ],
)
def test_float32_inside_is_healthy_and_so_are_products_that_are_rounded(op, given, dtype):
    for how in ({}, {"functions": composed_in(dtype)}):
        found = judged(case_of(op, (dtype,), **given), **how)
        assert names(found, dtype) == []
        assert not any(c.culprit for c in found.comparisons)


def test_indices_are_never_rounded():
    case = case_of("sort", ("float16",), x=(4, 600))
    inputs = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
    found = evaluate(OPS["sort"], case.params, inputs, dtype=np.float32, functions=composed_in("float16"))
    assert np.array_equal(np.take_along_axis(inputs["x"], found["indices"], -1), np.sort(inputs["x"], -1))
    assert found["grad.x"].shape == (4, 600)


def test_the_same_error_in_float32_is_another_formula():
    def biased(given: Tensors, params: Any, _rounded: Round) -> Tensors:
        mean, var = (f(given["x"], axis=1, keepdims=True) for f in (np.mean, np.var))
        return {"y": normalised(given, params, mean, var * 24 / 23)}

    found = judged(case_of("layer_norm", ("float16", "bfloat16", "float32"), **NORM), biased)
    for dtype in ("float16", "float32"):
        assert names(found, dtype) == ["variance-ddof"]
        assert verdicts(found, dtype)["y"] == "semantic"


def test_inputs_fit_every_dtype_of_a_case():
    values = np.random.default_rng(0).normal(0.0, 1e-4, 1000)
    shared = held_by_all(values, ("bfloat16", "float32", "float16"))
    for dtype in ("float16", "bfloat16", "float32"):
        np.testing.assert_array_equal(as_dtype(shared, dtype), shared)
    assert shared.dtype == np.float16
    assert np.isinf(held_by_all(np.array([65500.0]), ("bfloat16", "float16"))).all()
    assert held_by_all(values, ("bfloat16", "float64")).dtype == np.float32
