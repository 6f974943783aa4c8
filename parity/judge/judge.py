"""Outcomes to comparisons: structure first, then NaN and Inf, then values; every side against the oracle too.

Fail closed: the union of all output names is compared, and whatever is missing, of another shape or dtype, or not
finite on one side only, is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config.plan import ORACLE, CasePlan
from parity.judge.metrics import compare
from parity.judge.verdict import Comparison, Verdict
from parity.outcome import CellOutcome, Outcome, Output

Oracle = Mapping[str, NDArray[Any]]


def consult_oracle(case: CasePlan, inputs: Mapping[str, NDArray[Any]]) -> Oracle:
    """What the oracle says about a case: every output and gradient in longdouble."""
    return evaluate(OPS[case.op], case.params, inputs, gradients=case.gradients)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a backend's outputs, or the oracle's; None where there is nothing to compare."""

    name: str
    outputs: Mapping[str, Output] | None
    message: str = ""


def judge_cell(
    case: CasePlan, dtype: str, outcomes: Sequence[CellOutcome], oracle: Oracle, baseline: str
) -> list[Comparison]:
    """All comparisons of one cell: every backend with the oracle, and every other backend with the baseline."""
    truth = Side(ORACLE, {name: oracle_output(values, dtype) for name, values in oracle.items()})
    sides = {outcome.backend: side_of(outcome) for outcome in outcomes}
    against_oracle = [c for side in sides.values() for c in compare_sides(case, dtype, side, truth, oracle)]
    off = {(c.actual, c.tensor) for c in against_oracle if c.verdict.fails}
    against_baseline = [
        c
        for name, side in sides.items()
        if name != baseline and baseline in sides
        for c in compare_sides(case, dtype, side, sides[baseline], oracle)
    ]
    comparisons = against_oracle + against_baseline
    return [with_culprits(c, off) for c in comparisons]


def side_of(outcome: CellOutcome) -> Side:
    """The side of a backend."""
    if outcome.outcome is Outcome.OK:
        return Side(outcome.backend, outcome.outputs)
    return Side(outcome.backend, None, f"{outcome.backend}: {outcome.outcome.value}: {outcome.message}")


def oracle_output(values: NDArray[Any], dtype: str) -> Output:
    """The oracle's values as an output in `dtype`; below float64 they are kept in float64, which is exact enough."""
    kept = values if dtype == "float64" else values.astype(np.float64)
    return Output(dtype, values.shape, kept)


def compare_sides(case: CasePlan, dtype: str, actual: Side, expected: Side, oracle: Oracle) -> list[Comparison]:
    """Every tensor that either side has, or that the oracle has where a side has none at all."""
    names = dict.fromkeys(expected.outputs or oracle) | dict.fromkeys(actual.outputs or oracle)
    return [compare_tensor(case, dtype, tensor, actual, expected, oracle) for tensor in names]


def compare_tensor(case: CasePlan, dtype: str, tensor: str, actual: Side, expected: Side, oracle: Oracle) -> Comparison:
    """One tensor, one side against another."""
    tolerance = case.tolerance.lookup(dtype, tensor)
    blank = Comparison(
        case.id, dtype, tensor, actual.name, expected.name, Verdict.NOT_COMPARED, tolerance.rtol, tolerance.atol
    )
    if actual.outputs is None or expected.outputs is None:
        return replace(blank, message=actual.message or expected.message)
    difference = structural_difference(tensor, actual, expected)
    if difference:
        return replace(blank, verdict=Verdict.STRUCTURE, message=difference)
    return measured(blank, actual.outputs[tensor], expected.outputs[tensor], oracle.get(tensor))


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


def measured(blank: Comparison, actual: Output, expected: Output, oracle: NDArray[Any] | None) -> Comparison:
    """The comparison of two tensors of the same structure."""
    assert actual.values is not None and expected.values is not None  # noqa: S101 - structure comes first
    metrics = compare(actual.values, expected.values, blank.rtol, blank.atol)
    at_worst = None
    if oracle is not None and metrics.worst_index is not None and oracle.shape == actual.shape:
        at_worst = float(oracle[metrics.worst_index])
    if metrics.n_nonfinite_mismatched:
        verdict = Verdict.NONFINITE
    elif metrics.n_mismatched:
        verdict = Verdict.MISMATCH
    else:
        verdict = Verdict.EQUAL if metrics.equal else Verdict.CLOSE
    return replace(blank, verdict=verdict, metrics=metrics, oracle_value=at_worst)


def with_culprits(comparison: Comparison, off: set[tuple[str, str]]) -> Comparison:
    """The comparison with the sides that are off from the oracle named, where it fails."""
    if not comparison.verdict.fails:
        return comparison
    sides = (comparison.actual, comparison.expected)
    return replace(comparison, culprit=tuple(side for side in sides if (side, comparison.tensor) in off))
