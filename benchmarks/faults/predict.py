"""Is an explanation right? It is where it also predicts the faulty kernel on inputs that the judge has never seen.

No table of names is asked. Where the judge offers no explanation, the question stays open and is counted as such.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.cases import drawn
from benchmarks.faults.forms import Form, rounded
from benchmarks.faults.generate import attempted
from benchmarks.faults.measure import Truth, detectable
from benchmarks.judge.measure import Errors, error_of, over
from parity.cases.draw import Values
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import UNIT_ROUNDOFF
from parity.judge.case import prepared
from parity.judge.diagnose.explanation import KernelExplanation, predicted, unaltered
from parity.judge.diagnose.inquiry import transferred
from parity.judge.diagnose.search import SearchResult

Tensors = Mapping[str, NDArray[Any]]
Cell = tuple[Tensors, Truth, Tensors]
"""Fresh inputs, their truth, and what the kernel returns."""
FRESH = (1_000_003, 1_000_033)
"""What is added to the run's seed for the inputs that the judge has not seen."""


MOVED, SPREAD = 0.03, 0.3
"""How far literal numbers are moved together, and each one's distance from their mean, relatively."""


SHRINKS = 2.0**-20
"""What is left of a rounding error in float32 (2^-24) if the same is computed in float64 (2^-53), and 512 times more."""

SIZE = 8.0
"""An explanation that only predicts how large errors are may be off by this factor."""


@dataclass(frozen=True)
class Explanation:
    """An explanation of the judge, which says what the kernel returns for other tensors.

    `exact` is False for a cause that depends on the order of operations, whose rounding errors nobody can repeat: then
    only their size is compared.
    """

    of_judge: KernelExplanation

    @property
    def exact(self) -> bool:
        """Whether it says which numbers come out."""
        return self.of_judge.is_exact

    def predict(self, case: CasePlan, tensors: Tensors, dtype: str) -> Tensors:
        """Outputs and gradients by parity's names, in `dtype`, for inputs and grad_outputs `tensors` of this case."""
        evaluator, explanation = prepared(case, dtype, tensors), self.of_judge
        start = unaltered(evaluator, {})
        causes = [next(transferred(cause, start), cause) for cause in explanation.causes]
        prediction = {**evaluator.base, **(predicted(evaluator, causes) or {})}
        base = explanation.evaluator.base
        explained = {name for name, values in explanation.prediction.items() if values is not base.get(name)}
        values = {
            name: (prediction[name] if name in explained else base).values for name, base in evaluator.base.items()
        }
        with np.errstate(over="ignore"):
            return {name: rounded(array, dtype) for name, array in values.items() if array is not None}


class Right(StrEnum):
    """How well an explanation predicts."""

    EXACT = "exact"
    SIZE = "size"
    NO = "no"


def explanations(result: SearchResult | None) -> Sequence[Explanation]:
    """The explanations that a search offers: the best, and those that explain as much."""
    if result is None:
        return ()
    return [Explanation(e) for e in (result.best, *result.rivals) if e.causes and e.explains]


def fresh_inputs(case: CasePlan, seed: int) -> list[dict[str, NDArray[Any]]]:
    """The case's tensors, drawn anew; literal numbers moved around their mean, which moves less, so that rows which are
    nearly constant stay so.
    """
    fresh = [drawn(case, seed + more) for more in FRESH]
    literal = [plan.name for plan in case.tensors if isinstance(plan.draw, Values) and not plan.integers]
    for more, tensors in zip(FRESH, fresh, strict=True):
        rng = np.random.default_rng([seed, more])
        for name in literal:
            values, mean = tensors[name], np.mean(tensors[name], dtype=np.float64)
            spread = (values - mean) * (1.0 + SPREAD * rng.standard_normal(values.shape))
            tensors[name] = ((mean + spread) * (1.0 + MOVED * rng.standard_normal())).astype(values.dtype)
    return fresh


def predicts(
    offered: Sequence[Explanation], case: CasePlan, fresh: Sequence[Tensors], kernel: Form, dtype: str
) -> Right | None:
    """How well the best of some explanations predicts all outputs of the kernel on all fresh inputs.

    `exact` is to within 8 times the largest error of a healthy form on these inputs, or a unit roundoff of what the
    kernel returns; `size` is for explanations that are not exact. None where there is no explanation, or no answer.
    """
    answers = [(tensors, attempted(kernel, case, tensors, dtype)) for tensors in fresh] if offered else []
    cells = [(tensors, Truth.of(case, tensors), outputs) for tensors, outputs in answers if outputs is not None]
    if not cells:
        return None
    found = {graded(explanation, case, cells, kernel, dtype) for explanation in offered}
    return next(grade for grade in Right if grade in found)


def graded(explanation: Explanation, case: CasePlan, cells: Sequence[Cell], kernel: Form, dtype: str) -> Right:
    """How well one explanation predicts."""
    told = [(explanation.predict(case, tensors, dtype), outputs, truth) for tensors, truth, outputs in cells]
    left = {name for cell in told for name in cell[1] if not agree(*cell, dtype, [name])}
    if not left or (explanation.exact and in_float64(explanation, case, cells, kernel, left)):
        return Right.EXACT
    return Right.SIZE if not explanation.exact and same_size(told, dtype) else Right.NO


def in_float64(
    explanation: Explanation, case: CasePlan, cells: Sequence[Cell], kernel: Form, names: Collection[str]
) -> bool:
    """Whether an explanation predicts some tensors as the kernel computes them in float64: a fault may magnify its own
    rounding errors far beyond those of healthy forms.

    Or as near as rounding errors shrink from float32 to float64 (`SHRINKS`), where the fault magnifies them there too.
    """
    wide = replace(case, dtypes=("float64",))
    for tensors, _, _ in cells:
        narrow, outputs = (attempted(kernel, wide, tensors, dtype) for dtype in ("float32", "float64"))
        if narrow is None or outputs is None:
            return False
        predicted, truth = explanation.predict(wide, tensors, "float64"), Truth.of(wide, tensors)
        for name in names:
            finite = np.isfinite(narrow[name]) & np.isfinite(outputs[name])
            right, told, given = (np.where(finite, v[name], 0) for v in (outputs, predicted, narrow))
            near = finite.any() and error_of(told, right).max <= SHRINKS * error_of(given, right).max
            if not near and not agree(predicted, outputs, truth, "float64", [name]):
                return False
    return True


def agree(predicted: Tensors, outputs: Tensors, truth: Truth, dtype: str, names: Collection[str]) -> bool:
    """Whether some predicted outputs are the kernel's, up to rounding."""
    return all(
        name in predicted and not detectable(over(error_of(predicted[name], values), unit(name, values, truth, dtype)))
        for name, values in outputs.items()
        if name in names
    )


def same_size(told: Sequence[tuple[Tensors, Tensors, Truth]], dtype: str) -> bool:
    """Whether the largest predicted error is as large as the kernel's, tensor by tensor, or both are rounding.

    The largest over all fresh inputs: of a few numbers, a single rounding error may be anything up to its bound.
    """
    for name in told[0][2].exact:
        sizes = [
            max(
                over(error_of(cell[i].get(name), cell[2].exact[name]), cell[2].yardsticks[dtype][name]) for cell in told
            )
            for i in (0, 1)
        ]
        if detectable(max(sizes)) and not max(sizes) <= SIZE * min(sizes):
            return False
    return True


def unit(name: str, values: NDArray[Any], truth: Truth, dtype: str) -> Errors:
    """The yardstick of a tensor, at least a unit roundoff of what the kernel returned."""
    finite = np.where(np.isfinite(values), values, 0)
    size, u, healthy = error_of(np.zeros_like(finite), finite), UNIT_ROUNDOFF[dtype], truth.yardsticks[dtype][name]
    return Errors(max(healthy.rms, u * size.rms), max(healthy.max, u * size.max))
