"""Compares one tensor: structure first, then NaN and Inf, then values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.config.tolerances import Tolerance
from parity.judge.compare.cell import vacuous
from parity.judge.compare.metrics import Metrics, bfloat16_ulps
from parity.library.arrays import WIDENED, Tensor, in_dtype_of
from parity.library.distance import excess, measure
from parity.library.limits import Limits
from parity.library.pairs import TensorPair, Unpaired
from parity.library.report import Agreement, Element, ExactErrors, Row

Array = NDArray[Any]

RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 2}
"""Kinds of dtypes that hold the values of other kinds."""

MAX_PLACES = 4
MAX_ELEMENTS = 1 << 22
"""Larger tensors get one worst element and no hint: both need the whole tensor."""


@dataclass(frozen=True)
class Judge:
    """How tensors are compared; `names` are the names of actual and expected in messages."""

    limits: Limits
    equal_nan: bool
    check_dtype: bool
    names: tuple[str, str]

    def row(self, pair: TensorPair | Unpaired) -> Row:
        """The row of one tensor, without hints."""
        if isinstance(pair, Unpaired):
            return Row(pair.path, Agreement.STRUCTURE, message=pair.problem)
        pair = in_one_dtype(pair)
        actual, expected = pair.both
        shape, dtype = self._against(shape_of(actual), shape_of(expected)), self._against(actual.dtype, expected.dtype)
        notes = (self._against(actual.note or "as it is", expected.note or "as it is"),)
        check_exact(pair)
        row = Row(pair.path, Agreement.STRUCTURE, shape, dtype, notes=notes if actual.note or expected.note else ())
        if actual.values.shape != expected.values.shape:
            return replace(row, message="the shapes differ")
        return self._measured(row, pair)

    def _against(self, left: str, right: str) -> str:
        return left if left == right else f"{self.names[0]} {left}, {self.names[1]} {right}"

    def _measured(self, row: Row, pair: TensorPair) -> Row:
        actual, expected = pair.both
        tolerance = self.tolerance(pair)
        metrics = measure(actual.values, expected.values, tolerance, equal_nan=self.equal_nan)
        metrics = replace(metrics, max_ulp_diff=ulps(metrics.max_ulp_diff, actual.dtype, expected.dtype))
        verdict, message = verdict_of(metrics), ""
        if self.check_dtype and actual.dtype != expected.dtype:
            message = f"the dtypes differ; the values are {verdict.value}" + (
                ", so check_dtype=False would let them pass" if verdict.passes else ""
            )
            verdict = Agreement.STRUCTURE
        return replace(
            row,
            verdict=verdict,
            tolerance=tolerance,
            metrics=metrics,
            excess=self._worst_excess(pair, metrics, tolerance),
            worst_elements=() if verdict.passes else self.worst_elements(pair, metrics, tolerance),
            errors=errors(pair),
            suspect=suspicion(expected.values, metrics, verdict, tolerance) if verdict.passes else "",
            message=message,
        )

    def tolerance(self, pair: TensorPair) -> Tolerance:
        """The tolerance for a tensor."""
        return self.limits.lookup(pair.path, pair.both)

    def worst_elements(self, pair: TensorPair, metrics: Metrics, tolerance: Tolerance) -> tuple[Element, ...]:
        """The elements that exceed the tolerance most."""
        actual, expected = pair.both
        if metrics.worst_index is None or not metrics.n_mismatched:
            return ()
        indices = [metrics.worst_index]
        if 1 < metrics.n_elements <= MAX_ELEMENTS and metrics.n_mismatched > 1:
            apart = excess(actual.values, expected.values, tolerance, equal_nan=self.equal_nan).ravel()
            worst = np.argsort(-apart, kind="stable")[: min(MAX_PLACES, metrics.n_mismatched)]
            others = [tuple(map(int, np.unravel_index(flat, expected.values.shape))) for flat in worst]
            indices += [index for index in others if index != metrics.worst_index]
        return tuple(self._element(pair, index, tolerance) for index in indices[:MAX_PLACES])

    def _element(self, pair: TensorPair, index: tuple[int, ...], tolerance: Tolerance) -> Element:
        actual, expected = (tensor.values[index] for tensor in pair.both)
        apart = excess(np.asarray(actual), np.asarray(expected), tolerance, equal_nan=self.equal_nan)
        return Element(index, actual, expected, float(apart), None if pair.exact is None else pair.exact.values[index])

    def _worst_excess(self, pair: TensorPair, metrics: Metrics, tolerance: Tolerance) -> float:
        """The worst element's difference in tolerances; 0 if there is no element."""
        if metrics.worst_index is None:
            return 0.0
        return (
            math.inf if metrics.n_nonfinite_mismatched else self._element(pair, metrics.worst_index, tolerance).excess
        )


def ulps(counted: int | None, actual: str, expected: str) -> int | None:
    """A distance in ulps of the dtypes before widening."""
    if not any(dtype.startswith(WIDENED) for dtype in (actual, expected)):
        return counted
    return bfloat16_ulps(counted) if actual == expected == "bfloat16" else None


def in_one_dtype(pair: TensorPair) -> TensorPair:
    """A Python number takes the dtype of the tensor beside it; two of them are compared as they are."""
    actual, expected = pair.both
    if actual.weak and expected.weak:
        both = np.result_type(actual.values, expected.values)
        return replace(pair, actual=replace(actual, dtype=both.name), expected=replace(expected, dtype=both.name))
    if actual.weak:
        return replace(pair, actual=in_dtype_of(actual, expected))
    return replace(pair, expected=in_dtype_of(expected, actual)) if expected.weak else pair


def shape_of(tensor: Tensor) -> str:
    """The shape in words."""
    return str(list(tensor.values.shape))


def verdict_of(metrics: Metrics) -> Agreement:
    """The verdict of the metrics."""
    if metrics.n_nonfinite_mismatched:
        return Agreement.NONFINITE
    if metrics.n_mismatched:
        return Agreement.OUTSIDE
    return Agreement.EQUAL if metrics.equal else Agreement.CLOSE


def suspicion(expected: Array, metrics: Metrics, verdict: Agreement, tolerance: Tolerance) -> str:
    """Why a pass proves little; empty if it does not.

    Unlike in a run, where inputs are drawn so that outputs are not zero, equal bits are not suspect: a bias may start
    at zero.
    """
    if not expected.size:
        return "it has no elements"
    if not np.isfinite(expected).any():
        return "no element is finite"
    apart = verdict is Agreement.CLOSE and metrics.max_abs_diff > 0
    if apart and vacuous(np.abs(expected), metrics, tolerance.rtol, tolerance.atol):
        return "zeros would have passed too"
    return ""


def check_exact(pair: TensorPair) -> None:
    """Raise ValueError if the exact answer has another shape than `expected`, or a lower precision than either tensor.

    The same precision is enough: errors below a unit roundoff are not reported. A Python number is exact as written.
    """
    if pair.exact is None:
        return
    both, exact, where = pair.both, pair.exact, f"exact {pair.path}".strip()
    if exact.values.shape != both[1].values.shape:
        raise ValueError(f"{where} has shape {shape_of(exact)}; it must have that of expected, {shape_of(both[1])}")
    coarser = [tensor.dtype for tensor in both if not exact.weak and is_coarser(exact, tensor)]
    if coarser:
        remedy = "give the answer in a wider dtype, such as float64"
        raise ValueError(f"{where} is {exact.dtype} and cannot be the exact answer for {coarser[0]}; {remedy}")


def is_coarser(exact: Tensor, tensor: Tensor) -> bool:
    """Whether a dtype is less precise than another: bool than integers, integers than floats."""
    ours, its = (RANKS[tensor.values.dtype.kind] for tensor in (exact, tensor))
    return ours < its or (ours == its and unit_roundoff(exact) > unit_roundoff(tensor))


def errors(pair: TensorPair) -> ExactErrors | None:
    """The errors of both tensors from the exact answer."""
    if pair.exact is None:
        return None
    exact, none = pair.exact.values, Tolerance(0.0, 0.0)
    left, right = (measure(tensor.values, exact, none) for tensor in pair.both)
    size = measure(np.zeros_like(exact), exact, none).rmse
    floor = size * max(map(unit_roundoff, pair.both))
    ratio = quotient(max(left.rmse, floor), max(right.rmse, floor))
    return ExactErrors(left.rmse, right.rmse, left.max_abs_diff, right.max_abs_diff, ratio)


def quotient(numerator: float, denominator: float) -> float:
    """0/0 is 1, and anything else over 0 infinite."""
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 1.0


def unit_roundoff(tensor: Tensor) -> float:
    """Of the dtype that the tensor had; 0 for integers."""
    if tensor.dtype in FORMATS:
        return FORMATS[tensor.dtype].unit_roundoff
    dtype = tensor.values.dtype
    return float(np.finfo(dtype).eps) / 2 if dtype.kind in "fc" else 0.0
