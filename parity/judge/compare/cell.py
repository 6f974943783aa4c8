"""Compares the outcomes of one cell: structure first, then NaN and Inf, then values.

Values that exceed the tolerance count as `rounding` here; `case.py`, which knows all dtypes, decides. Fail closed: the
union of all output names is compared, and a tensor that is missing, of another shape or dtype, or finite in only one of
two outcomes, is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.dtypes import as_dtype
from parity.cases.op import GRADIENT
from parity.cases.oracle import evaluate
from parity.config.plan import ORACLE, CasePlan
from parity.judge.bound.envelope import INTEGERS, dtype_of
from parity.judge.compare.frontier import NEVER
from parity.judge.compare.metrics import Metrics, bfloat16_ulps, compare
from parity.judge.compare.verdict import UNDEFINED, Comparison, Verdict, comparison_of
from parity.judge.failures import Failures
from parity.outcome import NOT_A_TENSOR, CellOutcome, Outcome, Output

Oracle = Mapping[str, NDArray[Any]]


def consult_oracle(case: CasePlan, inputs: Mapping[str, NDArray[Any]]) -> Oracle:
    """The oracle's outputs and gradients for a case, in longdouble if float64 is judged.

    Above MAX_LONG elements it is computed in float64, in blocks of rows: then an error ratio in float64 includes the
    oracle's own error, and is larger by at most about 1.
    """
    large = sum(values.size for values in inputs.values()) > MAX_LONG
    wide = np.longdouble if "float64" in case.dtypes and not large else np.float64
    return evaluate(case.definition, case.params, inputs, dtype=wide, gradients=case.gradients)


MAX_LONG = 1 << 20
"""Longdouble takes ten times as long as float64, a product of matrices a hundred times."""


@dataclass(frozen=True)
class CellJudge:
    """Compares one cell."""

    case: CasePlan
    dtype: str
    oracle: Oracle
    failures: dict[tuple[str, str], Failures] = field(default_factory=dict)
    """Where two tensors could not be compared, by backend and tensor."""

    def comparisons(self, outcomes: Sequence[CellOutcome], baseline: str) -> list[Comparison]:
        """Every backend against the oracle, and every other backend against the baseline."""
        outputs = {name: oracle_output(values, self.dtype) for name, values in self.oracle.items()}
        truth = CellOutcome(self.case.id, self.dtype, ORACLE, Outcome.OK, outputs=outputs)
        pairs = [(outcome, truth) for outcome in outcomes]
        base = next((outcome for outcome in outcomes if outcome.backend == baseline), None)
        if base is not None:
            pairs += [(outcome, base) for outcome in outcomes if outcome is not base]
        compared = [comparison for actual, expected in pairs for comparison in self.compare_outcomes(actual, expected)]
        return compared + [self.changed(outcome, name) for outcome in outcomes for name in outcome.changed]

    def changed(self, outcome: CellOutcome, name: str) -> Comparison:
        """An input that the op has changed in place."""
        return comparison_of(
            self.case.id,
            self.dtype,
            f"input.{name}",
            outcome.backend,
            ORACLE,
            Verdict.STRUCTURE,
            0.0,
            0.0,
            culprit=(outcome.backend,),
            message=f"{outcome.backend} changes {name} in place",
        )

    def compare_outcomes(self, actual: CellOutcome, expected: CellOutcome) -> list[Comparison]:
        """Every tensor of either outcome, or of the oracle if a backend returned nothing."""
        ran = [outcome.outputs if outcome.outcome is Outcome.OK else {} for outcome in (expected, actual)]
        names = dict.fromkeys(ran[0] or self.oracle) | dict.fromkeys(ran[1] or self.oracle)
        items = (name for outputs in ran for name in outputs if item_of(name) in self.oracle.keys() - outputs.keys())
        left_out = {*items, *self.surplus(actual, expected)[1:], *self.surplus(expected, actual)[1:]}
        return [self._compared(tensor, actual, expected) for tensor in names if tensor not in left_out]

    def _compared(self, tensor: str, actual: CellOutcome, expected: CellOutcome) -> Comparison:
        """One tensor; not compared if parity fails at it."""
        failures = Failures()
        with failures.contained(f"comparing {tensor}"):
            return self.compare_tensor(tensor, actual, expected)
        self.failures.setdefault((actual.backend, tensor), Failures()).note(failures[0])
        of = (self.case.id, self.dtype, tensor, actual.backend, expected.backend)
        return comparison_of(*of, Verdict.NOT_COMPARED, 0.0, 0.0, message=failures[0].message)

    def surplus(self, outcome: CellOutcome, other: CellOutcome) -> list[str]:
        """The tensors that one outcome has beyond the op's and the other's: one difference, at the first of them."""
        extra = [name for name in outcome.outputs if name not in self.oracle and name not in other.outputs]
        return [name for name in extra if item_of(name) not in self.oracle.keys() - outcome.outputs.keys()]

    def beyond_op(self, tensor: str, outcome: CellOutcome, other: CellOutcome) -> str:
        """That an outcome has a tensor, and maybe more, that the op does not have; empty if it has not."""
        names = self.surplus(outcome, other)
        if tensor not in names:
            return ""
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"{outcome.backend} returns {', '.join(names[:2])}{more}, which {self.case.op} does not have"

    def limits(self, tensor: str) -> tuple[float, float]:
        """rtol and atol; integers must be equal."""
        if tensor in self.oracle and self.oracle[tensor].dtype.kind == "i":
            return 0.0, 0.0
        tolerance = self.case.tolerance.lookup(self.dtype, tensor)
        return tolerance.rtol, tolerance.atol

    def compare_tensor(self, tensor: str, actual: CellOutcome, expected: CellOutcome) -> Comparison:
        """One tensor of one outcome against that of another."""
        limits = self.limits(tensor)
        names = (self.case.id, self.dtype, tensor, actual.backend, expected.backend)
        message = why_not_compared(tensor, actual, expected)
        if message:
            return comparison_of(*names, Verdict.NOT_COMPARED, *limits, message=message)
        more = self.beyond_op(tensor, actual, expected) or self.beyond_op(tensor, expected, actual)
        difference = more or structural_difference(tensor, actual, expected)
        if difference:
            return comparison_of(*names, Verdict.STRUCTURE, *limits, message=difference)
        left, right = actual.outputs[tensor].values, expected.outputs[tensor].values
        assert left is not None and right is not None  # noqa: S101 - structure comes first
        metrics = compare(left, right, *limits)
        if self.dtype == "bfloat16":
            metrics = replace(metrics, max_ulp_diff=bfloat16_ulps(metrics.max_ulp_diff))
        if left.dtype.kind in "iub":
            metrics = replace(metrics, frontier=(NEVER,) if metrics.n_mismatched else ())
        at_worst = value_at(self.oracle.get(tensor), metrics.worst_index, left.shape)
        verdict = verdict_of(metrics)
        if verdict.passes and not any_finite(self.oracle.get(tensor)):
            return comparison_of(*names, Verdict.NOT_COMPARED, *limits, message=NOTHING_FINITE)
        suspect = verdict.passes and vacuous(right, metrics, *limits)
        left_out = undefined(self.case, tensor, self.oracle) if verdict.passes else ""
        return comparison_of(
            *names, verdict, *limits, metrics=metrics, oracle_value=at_worst, suspect=suspect, message=left_out
        )


NOTHING_FINITE = "no exact value is finite, so nothing can be compared"


def undefined(case: CasePlan, tensor: str, oracle: Mapping[str, NDArray[Any]]) -> str:
    """Where a gradient by a user's reference is not finite, so that `with_gradients` accepts any; else empty."""
    exact = oracle.get(tensor)
    if case.brought is None or exact is None or not tensor.startswith(GRADIENT) or np.isfinite(exact).all():
        return ""
    n_odd, what = int(np.count_nonzero(~np.isfinite(exact))), "NaN" if np.isnan(exact).any() else "infinite"
    return f"{UNDEFINED}{n_odd} of {exact.size} elements: the reference is {what}"


def any_finite(exact: NDArray[Any] | None) -> bool:
    """Whether the exact answer has a finite value, or no values."""
    return exact is None or not exact.size or bool(np.isfinite(exact.flat[0]) or np.isfinite(exact).any())


def why_not_compared(tensor: str, *outcomes: CellOutcome) -> str:
    """Why a backend returned nothing, or cannot return this tensor; else empty."""
    failed = [f"{o.backend}: {o.outcome.value}: {o.message}" for o in outcomes if o.outcome is not Outcome.OK]
    lacking = [f"{o.backend}: {o.lacking[tensor]}" for o in outcomes if tensor in o.lacking]
    return next(iter(failed + lacking), "")


def oracle_output(values: NDArray[Any], dtype: str) -> Output:
    """The oracle's values as an output in `dtype`, rounded to float64 for the metrics, and infinite where they exceed
    its range; error ratios use them unrounded. Integers stay integers."""
    own = dtype_of(values, dtype)
    if own == INTEGERS:
        return Output(own, values.shape, values)
    wide = values.astype(np.float64, copy=False)
    if values.size and np.isinf(as_dtype(np.asarray([wide.max(), wide.min()]), dtype)).any():
        held = as_dtype(wide, dtype)
        wide = np.where(np.isinf(held), held, wide)
    return Output(own, values.shape, wide)


def verdict_of(metrics: Metrics) -> Verdict:
    """The verdict of the metrics, for two tensors of the same structure."""
    if metrics.n_nonfinite_mismatched:
        return Verdict.NONFINITE
    if metrics.n_mismatched:
        return Verdict.ROUNDING
    return Verdict.EQUAL if metrics.equal else Verdict.CLOSE


def vacuous(expected: NDArray[Any], metrics: Metrics, rtol: float, atol: float) -> bool:
    """Whether zeros would have passed instead of `actual` (then doubled values would too), or nothing was finite."""
    if abs(metrics.expected_value) * (1.0 - rtol) > atol:
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    return not finite.size or float(finite.max()) * (1.0 - rtol) <= atol


def value_at(values: NDArray[Any] | None, index: tuple[int, ...] | None, shape: tuple[int, ...]) -> float | None:
    """The oracle's value at the worst element, if it has a tensor of that shape."""
    if values is None or index is None or values.shape != shape:
        return None
    return float(values[index])


def item_of(tensor: str) -> str:
    """The output of whose tuple a tensor is an item: `y` for `y.0`; else empty."""
    whole, _, number = tensor.rpartition(".")
    return whole if number.isdigit() else ""


def no_output(tensor: str, outcome: CellOutcome, other: CellOutcome) -> str:
    """What a backend returns instead of the op's outputs, of which `tensor` is missing; empty if it returns a mapping
    of tensors."""
    wanted = [name for name in other.outputs if not name.startswith(GRADIENT)]
    own = [name for name in outcome.outputs if not name.startswith(GRADIENT)]
    wholes = [item_of(name) for name in outcome.outputs if item_of(name) not in outcome.outputs]
    alike = [name for name in wholes if name == tensor or (name in wanted and tensor in wanted)]
    if alike:
        named = ", ".join(f'"{name}": ...' for name in wanted)
        return f"{outcome.backend} returns several tensors for {alike[0]}; return {{{named}}}"
    return not_a_tensor(own[0], outcome) if len(own) == 1 and {own[0], tensor} <= {*wanted} else ""


def not_a_tensor(tensor: str, outcome: CellOutcome) -> str:
    """What a backend returns for a tensor, in words, if that is none."""
    dtype = outcome.outputs[tensor].dtype
    if not dtype.endswith(NOT_A_TENSOR):
        return ""
    return f"{outcome.backend} returns a {dtype.removesuffix(NOT_A_TENSOR)} for {tensor}, not a tensor"


def structural_difference(tensor: str, actual: CellOutcome, expected: CellOutcome) -> str:
    """The structural difference of two outcomes; empty if there is none."""
    left, right = actual.outputs.get(tensor), expected.outputs.get(tensor)
    if left is None or right is None:
        lacking, other = (actual, expected) if left is None else (expected, actual)
        return no_output(tensor, lacking, other) or f"{lacking.backend} has no {tensor}"
    if none := not_a_tensor(tensor, actual) or not_a_tensor(tensor, expected):
        return none
    if left.shape != right.shape:
        return f"{actual.backend} has shape {list(left.shape)}, {expected.backend} {list(right.shape)}"
    if left.dtype != right.dtype or left.values is None or right.values is None:
        return f"{actual.backend} has dtype {left.dtype}, {expected.backend} {right.dtype}"
    return ""
