"""The outcomes of one cell to comparisons: structure first, then NaN and Inf, then values; everyone against the oracle.

What is outside the tolerance counts as `rounding` here; `case.py` knows all dtypes of a case and says what it is.
Fail closed: the union of all output names is compared, and whatever is missing, of another shape or dtype, or not
finite on one side only, is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config.plan import ORACLE, CasePlan
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.verdict import Comparison, Verdict
from parity.outcome import CellOutcome, Outcome, Output

Oracle = Mapping[str, NDArray[Any]]


def consult_oracle(case: CasePlan, inputs: Mapping[str, NDArray[Any]]) -> Oracle:
    """What the oracle says about a case: every output and gradient in longdouble."""
    return evaluate(OPS[case.op], case.params, inputs, gradients=case.gradients)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a backend's outputs, or the oracle's; None where there is nothing to compare.

    `lacking` are the tensors that it cannot give, with the reason.
    """

    name: str
    outputs: Mapping[str, Output] | None
    message: str = ""
    lacking: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CellJudge:
    """Compares one cell."""

    case: CasePlan
    dtype: str
    oracle: Oracle

    def comparisons(self, outcomes: Sequence[CellOutcome], baseline: str) -> list[Comparison]:
        """Every backend against the oracle, and every other backend against the baseline."""
        truth = Side(ORACLE, {name: oracle_output(values, self.dtype) for name, values in self.oracle.items()})
        sides = {outcome.backend: side_of(outcome) for outcome in outcomes}
        pairs = [(side, truth) for side in sides.values()]
        if baseline in sides:
            pairs += [(side, sides[baseline]) for name, side in sides.items() if name != baseline]
        return [comparison for left, right in pairs for comparison in self.compare_sides(left, right)]

    def compare_sides(self, actual: Side, expected: Side) -> list[Comparison]:
        """Every tensor that either side has, or that the oracle has where a side has none at all."""
        names = dict.fromkeys(expected.outputs or self.oracle) | dict.fromkeys(actual.outputs or self.oracle)
        return [self.compare_tensor(tensor, actual, expected) for tensor in names]

    def compare_tensor(self, tensor: str, actual: Side, expected: Side) -> Comparison:
        """One tensor, one side against another."""
        tolerance = self.case.tolerance.lookup(self.dtype, tensor)
        limits = (tolerance.rtol, tolerance.atol)
        names = (self.case.id, self.dtype, tensor, actual.name, expected.name)
        if actual.outputs is None or expected.outputs is None:
            return Comparison(*names, Verdict.NOT_COMPARED, *limits, message=actual.message or expected.message)
        for side in (actual, expected):
            if tensor in side.lacking:
                message = f"{side.name}: {side.lacking[tensor]}"
                return Comparison(*names, Verdict.NOT_COMPARED, *limits, message=message)
        difference = structural_difference(tensor, actual, expected)
        if difference:
            return Comparison(*names, Verdict.STRUCTURE, *limits, message=difference)
        left, right = actual.outputs[tensor].values, expected.outputs[tensor].values
        assert left is not None and right is not None  # noqa: S101 - structure comes first
        metrics = compare(left, right, *limits)
        at_worst = value_at(self.oracle.get(tensor), metrics.worst_index, left.shape)
        verdict = verdict_of(metrics)
        suspect = verdict.passes and vacuous(right, metrics, *limits)
        return Comparison(*names, verdict, *limits, metrics=metrics, oracle_value=at_worst, suspect=suspect)


def side_of(outcome: CellOutcome) -> Side:
    """The side of a backend."""
    if outcome.outcome is Outcome.OK:
        return Side(outcome.backend, outcome.outputs, lacking=outcome.lacking)
    return Side(outcome.backend, None, f"{outcome.backend}: {outcome.outcome.value}: {outcome.message}")


def oracle_output(values: NDArray[Any], dtype: str) -> Output:
    """The oracle's values as an output in `dtype`, rounded to float64 for the metrics; error ratios take them whole."""
    return Output(dtype, values.shape, values.astype(np.float64))


def verdict_of(metrics: Metrics) -> Verdict:
    """What the metrics of two tensors of the same structure say."""
    if metrics.n_nonfinite_mismatched:
        return Verdict.NONFINITE
    if metrics.n_mismatched:
        return Verdict.ROUNDING
    return Verdict.EQUAL if metrics.equal else Verdict.CLOSE


def vacuous(expected: NDArray[Any], metrics: Metrics, rtol: float, atol: float) -> bool:
    """Whether zeros would have passed in place of `actual` (then doubled values would too), or nothing was finite."""
    if abs(metrics.expected_value) * (1.0 - rtol) > atol:
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    return not finite.size or float(finite.max()) * (1.0 - rtol) <= atol


def value_at(values: NDArray[Any] | None, index: tuple[int, ...] | None, shape: tuple[int, ...]) -> float | None:
    """The oracle's value at the worst place, where it has a tensor of that shape."""
    if values is None or index is None or values.shape != shape:
        return None
    return float(values[index])


def structural_difference(tensor: str, actual: Side, expected: Side) -> str:
    """How the two sides differ before any value is looked at; empty where they do not."""
    left, right = (actual.outputs or {}).get(tensor), (expected.outputs or {}).get(tensor)
    if left is None or right is None:
        return f"{(actual if left is None else expected).name} has no {tensor}"
    if left.shape != right.shape:
        return f"{actual.name} has shape {list(left.shape)}, {expected.name} {list(right.shape)}"
    if left.dtype != right.dtype or left.values is None or right.values is None:
        return f"{actual.name} has dtype {left.dtype}, {expected.name} {right.dtype}"
    return ""
