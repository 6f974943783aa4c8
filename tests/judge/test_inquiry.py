"""What nobody listed is found by edits of the reference, and what explains must predict other inputs as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.inquiry import SMALL
from parity.outcome import CellOutcome, Outcome, Output
from tests.judge.judging import drawn, names, planned

Tensors = Mapping[str, np.ndarray]
Fault = Callable[[Tensors, Any, dict[str, np.ndarray]], Mapping[str, Any]]


class Kernel:
    """The oracle's lines with a fault, `fault(inputs, params, right outputs)`; it remembers the sizes of questions."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.sizes: list[int] = []

    def __call__(self, case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        given = {n: v.astype(dtype) if v.dtype.kind == "f" else v for n, v in inputs.items()}
        right = evaluate(OPS[case.op], case.params, given, dtype=dtype)
        return {n: np.asarray(v, dtype) for n, v in {**right, **self.fault(given, case.params, right)}.items()}

    def ask(self, _backend: str, case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        self.sizes.append(sum(values.size for values in inputs.values()))
        return self(case, dtype, inputs)


def judged(case: CasePlan, kernel: Kernel, *, asked: bool = True) -> Judged:
    inputs = drawn(case)
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle", ask=kernel.ask if asked else None)
    for dtype in case.dtypes:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in kernel(case, dtype, inputs).items()}
        judge.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return judge.judged()


def evidence(found: Judged, dtype: str = "float64") -> Mapping[str, Any]:
    return next(d.evidence for d in found.diagnoses if d.dtype == dtype and d.id not in ("rounding",))


def raw_for_normalised(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    return {"grad.weight": np.sum(given["grad.y"] * given["x"], axis=0)}


NORM = planned("layer_norm", x=(6, 8), normalized_shape=(8,))
SWAPPED = "x * grad.y, where the reference has xhat * grad.y (in grad.weight)"


def test_an_unlisted_mistake_is_an_expression():
    for asked in (True, False):
        found = judged(NORM, Kernel(raw_for_normalised), asked=asked)
        for dtype in NORM.dtypes:
            assert names(found, dtype) == ["reference-edit"]
            assert evidence(found, dtype)["expression"] == SWAPPED
        assert ("further_inputs_predicted" in evidence(found)) is asked


def test_a_large_case_is_searched_in_a_small_one():
    kernel = Kernel(raw_for_normalised)
    case = planned("layer_norm", x=(64, 96), normalized_shape=(96,))
    found = judged(case, kernel)
    assert evidence(found)["expression"] == SWAPPED
    assert evidence(found)["further_inputs_predicted"] > 0
    assert kernel.sizes
    assert max(kernel.sizes) < SMALL


def test_a_number_is_fitted_only_where_other_inputs_confirm_it():
    case = planned("sgd", param=(5, 7))
    kernel = Kernel(lambda given, params, _: {"param": given["param"] - 1.37 * params.lr * given["grad"]})
    assert "1.37" in evidence(judged(case, kernel))["expression"]
    assert names(judged(case, kernel, asked=False), "float64") == ["unexplained"]


def test_what_other_inputs_contradict_is_no_explanation():
    case = planned("sgd", param=(5, 7), momentum=0.9, step=2)

    def dampened(given: Tensors, params: Any, _right: Tensors) -> Tensors:
        buffer = params.momentum * given["momentum_buffer"] + (1 - params.momentum) * given["grad"]
        return {"momentum_buffer": buffer, "param": given["param"] - params.lr * buffer}

    assert "1 - momentum" in evidence(judged(case, Kernel(dampened)))["expression"]


def test_a_kernel_that_does_not_repeat_itself_is_said_to():
    rng = np.random.default_rng(0)
    kernel = Kernel(lambda _given, _params, right: {"y": right["y"] + rng.normal(size=right["y"].shape)})
    assert names(judged(NORM, kernel), "float64") == ["nondeterministic"]
    assert names(judged(NORM, kernel, asked=False), "float64") == ["unexplained"]


def test_a_right_kernel_is_not_asked():
    kernel = Kernel(lambda _given, _params, _right: {})
    assert names(judged(NORM, kernel), "float64") == []
    assert kernel.sizes == []
