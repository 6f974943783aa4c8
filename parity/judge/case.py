"""Judges all dtypes of a case: which backends are wrong, in what way, and why.

A backend is wrong in a tensor where its error from the oracle is at least 8 times that of a careful implementation in
the working precision. The kind of error follows from the same tensor in float64; with one dtype alone, from its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from msgspec import structs

from parity.cases.blocked import LARGE
from parity.cases.dtypes import as_dtype
from parity.cases.op import GRADIENT
from parity.config.plan import ORACLE, CasePlan
from parity.judge.bound.choices import Choices, Chosen, Mask, chosen_indices, ranks_of
from parity.judge.bound.envelope import (
    ERROR_BOUND,
    FIRST_RUNS,
    FLOOR,
    LEAST,
    LOSSY,
    SMALLEST,
    UNIT_ROUNDOFF,
    Array,
    Envelope,
    EnvelopeRuns,
    dtype_of,
    error_ratio,
    size,
)
from parity.judge.bound.orders import has_orders, in_order_of, index_tensors
from parity.judge.compare.cell import CellJudge, Oracle, consult_oracle
from parity.judge.compare.gradients import with_gradients
from parity.judge.compare.verdict import ON_OTHER_INPUTS, Comparison, EnvelopeRow, ErrorRatios, Verdict
from parity.judge.diagnose.approximation import APPROXIMATED
from parity.judge.diagnose.behaviour import (
    UNREPEATABLE,
    DifferingRow,
    apart,
    behaviours,
    layout_dependent,
    only_first,
    rows_apart,
    stateful,
)
from parity.judge.diagnose.causes import DEGRADED, SEMANTIC, UNSTABLE
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.edits import OF_A_PASS, WorkBudget
from parity.judge.diagnose.evaluator import Evaluator, Observed, excusing
from parity.judge.diagnose.explanation import unaltered
from parity.judge.diagnose.findings import (
    changed_diagnoses,
    choice_diagnoses,
    diagnoses_of,
    index_diagnoses,
    rounding_diagnoses,
)
from parity.judge.diagnose.inquiry import Inquiry, Measurement
from parity.judge.diagnose.kernel import Ask, Kernel, kernel_of
from parity.judge.diagnose.memory import Memory, Revision
from parity.judge.diagnose.new_process import is_firm, kept_state, state_in, state_of_row, with_state
from parity.judge.diagnose.patience import BRIEF, ENDED, IS_ASKED, LOCATE, SECONDS, UNSEARCHED, limited
from parity.judge.diagnose.search import SearchResult, confirm, improved, portable, recalled, search
from parity.judge.failures import Failures, unjudged, with_failures
from parity.judge.other_inputs import FIRST_OTHER, OtherInputs, WrongCall, kept_results, on_others, state_of
from parity.outcome import CellOutcome, Outcome, Output

CLEAR = 8.0
"""The envelope of all runs is rarely wider than that of the first runs by more than this factor."""
SAME = 0.25
SAME_ENVELOPES = 4.0
"""Two errors are the same if they differ by at most a quarter, or by four envelopes of the narrower dtype."""
FAINT = 1e-6
"""A gradient larger than this part of the largest tensor is not zero."""
ZERO = 1e-12
"""A gradient smaller than this part of the terms that cancel in it is zero."""
PREPARED_RUNS = 6
NOTHING: Observed = {}
Behaved = tuple[tuple[str, Mapping[str, Any]], ...]
"""Behaviours by id, with the evidence."""
KINDS = {DEGRADED: Verdict.DEGRADED, UNSTABLE: Verdict.UNSTABLE, SEMANTIC: Verdict.SEMANTIC}
ORDER = (DEGRADED, UNSTABLE, SEMANTIC)
ABSENCES = ("missing-output", "missing-gradient")
"""The diagnoses of what has no values that can be compared."""


@dataclass(frozen=True)
class Judged:
    """The final result for a case; `results` are the searches by dtype and backend, `revisions` other diagnoses for
    earlier cases of the run."""

    comparisons: tuple[Comparison, ...]
    diagnoses: tuple[Diagnosis, ...]
    results: Mapping[tuple[str, str], SearchResult] = field(default_factory=dict)
    revisions: tuple[Revision, ...] = ()


class Cell:
    """One dtype of a case: the outcomes, the comparisons, and the backends that are wrong."""

    def __init__(
        self, case: CasePlan, dtype: str, inputs: Mapping[str, Array], oracle: Oracle, choices: Choices | None = None
    ) -> None:
        self.case, self.dtype, self.inputs, self.oracle = case, dtype, inputs, oracle
        self._choices = choices or Choices(case, inputs, oracle)
        self._chosen: dict[str, Chosen | None] = {}
        self.outcomes: dict[str, CellOutcome] = {}
        self.comparisons: list[Comparison] = []
        self._runs = EnvelopeRuns(case, dtype, inputs, oracle)
        self._nearness: dict[tuple[str, str], bool] = {}
        self._first: dict[str, Envelope] = {}
        self._envelopes: dict[str, Envelope] = {}
        self.failures: dict[tuple[str, str], Failures] = {}
        """Where a backend's tensor could not be judged."""

    def take(self, outcomes: Sequence[CellOutcome], baseline: str) -> None:
        """Compare the outcomes; their arrays must stay valid."""
        of = self.case, self.dtype, self.inputs, self.oracle
        outcomes = [with_gradients(*of, outcome) for outcome in outcomes]
        self.outcomes = {outcome.backend: outcome for outcome in outcomes}
        judge = CellJudge(self.case, self.dtype, self.oracle, self.failures)
        self.comparisons = judge.comparisons(outcomes, baseline)

    @property
    def envelopes(self) -> Mapping[str, Envelope]:
        """The envelope of every tensor, with the size of the cancelling terms where a gradient is exactly zero."""
        return {name: self.envelope(name) for name in self.oracle}

    def envelope(self, tensor: str) -> Envelope:
        """The envelope of a tensor, from the first runs only if no error ratio is near the bound. The tensors of a
        small case share their runs, and use all runs if anything fails."""
        names = self._together(tensor)
        if tensor not in self._envelopes:
            if (
                (self._small and self.failing)
                or not self._alone.isdisjoint(names)
                or any(ERROR_BOUND <= ratio < CLEAR * ERROR_BOUND for ratio in self._first_ratios(names))
            ):
                self._envelopes |= self.with_terms(self._runs.envelopes(tensors=names))
            else:
                self._envelopes |= {name: self.first_envelope(name) for name in names}
        return self._envelopes[tensor]

    def _together(self, tensor: str) -> Collection[str]:
        """The tensors whose envelopes share their runs: all of a small case; of a big one those that need an
        envelope."""
        return tuple(self.oracle) if self._small else self._far if tensor in self._far else (tensor,)

    @property
    def _small(self) -> bool:
        return sum(values.size for values in self.inputs.values()) < LARGE

    @cached_property
    def _far(self) -> tuple[str, ...]:
        """The tensors in which, judging by the exact values, some backend may be wrong."""
        ran = [backend for backend, outcome in self.outcomes.items() if outcome.outcome is Outcome.OK]
        given = {(b, t) for b in ran for t in self.oracle if self._usable(b, t) is not None}
        return tuple(t for t in self.oracle if any((b, t) in given and not self._near(b, t) for b in ran))

    @cached_property
    def _alone(self) -> frozenset[str]:
        """Those of them whose elements have error bounds of their own, which only all runs give."""
        return frozenset(self._far) & self._runs.pointwise

    def _usable(self, backend: str, tensor: str) -> Array | None:
        """A tensor's values if it has the oracle's structure; of indices that are right, the oracle's."""
        if (backend, tensor) in self.chosen_indices:
            return self._rounded(self.oracle[tensor])
        if backend in self._in_order:
            return self._ordered(backend, tensor)
        return usable(self.outcomes[backend].outputs.get(tensor), self.oracle[tensor], self.dtype)

    def _ordered(self, backend: str, tensor: str) -> Array | None:
        """A tensor's values, less what another valid order of equal elements changes in the exact answer."""
        exact, own = self.oracle[tensor], self._in_order[backend][tensor]
        values = usable(self.outcomes[backend].outputs.get(tensor), exact, self.dtype)
        if values is None or np.array_equal(own, exact, equal_nan=True):
            return values
        with np.errstate(invalid="ignore"):
            return as_dtype(np.where(own == exact, values, exact + (values - own)), self.dtype)

    @cached_property
    def _in_order(self) -> Mapping[str, Mapping[str, Array]]:
        """The exact answer in a backend's own order of equal elements, if that is not the oracle's."""
        answers: dict[str, Mapping[str, Array]] = {}
        if self.case.definition.indexes or not has_orders(self.case, self.inputs):
            return answers
        for backend, outcome in self.outcomes.items():
            given = {n: usable(outcome.outputs.get(n), exact, self.dtype) for n, exact in self.oracle.items()}
            known = {n: values for n, values in given.items() if values is not None}
            rounded = {n: self._rounded(self.oracle[n]) for n in known}
            if any(not np.array_equal(known[n], rounded[n], equal_nan=True) for n in known):
                answer = in_order_of(self.case, self.inputs, self.oracle, known, self.dtype)
                if answer is not None:
                    answers[backend] = answer
        return answers

    def _rounded(self, values: Array) -> Array:
        return values if values.dtype.kind != "f" else as_dtype(values, self.dtype)

    @cached_property
    def chosen_indices(self) -> Mapping[tuple[str, str], Mask]:
        """Where a backend's indices are right and not the oracle's, by backend and tensor."""
        masks: dict[tuple[str, str], Mask] = {}
        for backend, answer in self._in_order.items():
            for tensor, exact in answer.items():
                values = usable(self.outcomes[backend].outputs.get(tensor), exact, self.dtype)
                if values is not None and np.array_equal(values, self._rounded(exact), equal_nan=True):
                    others = np.asarray(exact != self.oracle[tensor])
                    masks |= {(backend, tensor): others} if others.any() else {}
        for backend, outcome in self.outcomes.items():
            for tensor, source in self.case.definition.indexes.items():
                exact = self.oracle[tensor]
                indices = usable(outcome.outputs.get(tensor), exact, self.dtype)
                if indices is None:
                    continue
                mask = chosen_indices(self.inputs[source], indices, exact, self.case.params.dim)
                if mask is not None and mask.any():
                    masks[backend, tensor] = mask
        return masks

    def _first_ratios(self, tensors: Collection[str]) -> Iterator[float]:
        """The error ratios after the first runs, without tensors too close to the oracle to be wrong."""
        for backend in self.outcomes:
            for tensor in tensors:
                values = self._usable(backend, tensor)
                if values is not None and not self._near(backend, tensor):
                    yield error_ratio(values, self.oracle[tensor], self.first_envelope(tensor))

    def fails(self, backend: str) -> bool:
        """Whether a comparison of a backend fails."""
        return any(name == backend for name, _ in self.failing)

    def first_envelope(self, tensor: str) -> Envelope:
        """The envelope after the first runs; the full one is wider."""
        if tensor not in self._first:
            self._first |= self.with_terms(self._runs.envelopes(FIRST_RUNS, self._together(tensor)))
        return self._first[tensor]

    def with_terms(self, envelopes: Mapping[str, Envelope]) -> dict[str, Envelope]:
        """The envelopes, joined with the size of the cancelling terms where a gradient is exactly zero, in part or
        as a whole."""
        joined = {n: e.joined(self._cancelled[n]) if n in self._cancelled else e for n, e in envelopes.items()}
        return joined | {n: Envelope(0.0, 0.0) for n in self._indices if n in joined}

    @cached_property
    def _indices(self) -> frozenset[str]:
        """The tensors of indices of equal elements, whose order rounding does not decide."""
        tied = not self.case.definition.indexes and has_orders(self.case, self.inputs)
        return index_tensors(self.case, self.inputs) if tied else frozenset()

    @cached_property
    def _cancelled(self) -> Mapping[str, Envelope]:
        """The size of the cancelling terms of gradients, at the elements that are exactly zero."""
        envelopes = {n: self.terms[n] for n in self.zero_gradients}
        for name, envelope in self.terms.items():
            if name in envelopes or not name.startswith(GRADIENT) or envelope.errors is None:
                continue
            zero = np.abs(self.oracle[name]) * UNIT_ROUNDOFF[self.dtype] <= ZERO * envelope.errors
            if zero.any() and envelope.errors[zero].any():
                envelopes[name] = Envelope.relative(1.0, np.where(zero, envelope.errors, 0))
        return envelopes

    @cached_property
    def zero_gradients(self) -> frozenset[str]:
        """The gradients whose exact value is zero, up to the oracle's own rounding."""
        largest = max(rms for rms, _ in self.scales.values())
        small = {n for n in self.oracle if n.startswith(GRADIENT) and self.scales[n][0] <= FAINT * largest}
        unit = UNIT_ROUNDOFF[self.dtype]
        zero = {n for n in small if self.scales[n][0] * unit <= ZERO * self.terms[n].rms}
        lost = self._runs.envelopes(FIRST_RUNS, zero)
        return frozenset(n for n in zero if self.scales[n][0] <= lost[n].rms)

    @cached_property
    def terms(self) -> Mapping[str, Envelope]:
        """A unit roundoff of the terms that cancel in a tensor."""
        op, unit = self.case.definition, UNIT_ROUNDOFF[self.dtype]
        if op.gradient_scale is None:
            return dict.fromkeys(self.oracle, Envelope(0.0, 0.0))
        scales = op.gradient_scale(op, self.case.params, self.inputs, self.case.gradients)
        return {name: Envelope.relative(unit, scales[name]) for name in self.oracle}

    def observed(self, backend: str) -> Observed:
        """The backend's result for every tensor of the oracle that it can return, in this dtype (integers: float64)."""
        outcome = self.outcomes[backend]
        names = [name for name in self.oracle if name not in outcome.lacking]
        dtypes = {n: "float64" if self.oracle[n].dtype.kind == "i" else self.dtype for n in names}
        return {
            n: as_dtype(self.oracle[n], dtypes[n])
            if (backend, n) in self.chosen_indices
            else in_dtype(outcome.outputs.get(n), dtypes[n])
            for n in names
        }

    @cached_property
    def wrong(self) -> dict[str, dict[str, float]]:
        """For every backend that ran, the error ratio of every tensor in which it is wrong."""
        ran = [name for name, outcome in self.outcomes.items() if outcome.outcome is Outcome.OK]
        return {name: {t: r for t, r in self.ratios(name).items() if r >= ERROR_BOUND} for name in ran}

    def ratios(self, backend: str) -> dict[str, float]:
        """The error ratios of a backend's tensors that fail or may be wrong."""
        if backend not in self._ratios:
            self._ratios[backend] = {}
            for tensor in self.oracle:
                with self.failures.setdefault((backend, tensor), Failures()).contained(f"judging {tensor}"):
                    ratio = self._ratio(backend, tensor)
                    self._ratios[backend] |= {} if ratio is None else {tensor: ratio}
        return self._ratios[backend]

    @cached_property
    def _ratios(self) -> dict[str, dict[str, float]]:
        return {}

    @cached_property
    def failing(self) -> frozenset[tuple[str, str]]:
        """The backends (or the oracle) and tensors of all failing comparisons."""
        failing = (c for c in self.comparisons if c.verdict.fails)
        return frozenset((name, c.tensor) for c in failing for name in (c.actual, c.expected))

    def _ratio(self, backend: str, tensor: str) -> float | None:
        exact = self.oracle[tensor]
        if tensor in self.outcomes[backend].lacking:
            return None
        values = self._usable(backend, tensor)
        if values is None:
            return float("inf")
        if (backend, tensor) not in self.failing and self._passes(backend, tensor, values):
            return None
        ratio = error_ratio(values, exact, self.envelope(tensor))
        known = (backend, tensor) not in self.failing and ratio < ERROR_BOUND
        if known or self.chosen(backend) is None:
            return ratio
        return error_ratio(values, exact, self.envelope_at(backend, tensor))

    def chosen(self, backend: str) -> Chosen | None:
        """What a backend chose where a gradient is a choice; None if there is no choice. A gradient that is exactly
        zero has none: near it there is only noise."""
        if backend not in self._chosen:
            given = {n: self._usable(backend, n) for n in self.oracle if n not in self.zero_gradients}
            observed = {tensor: values for tensor, values in given.items() if values is not None}
            self._chosen[backend] = self._choices.chosen(observed, self.dtype, self._ranks(backend))
        return self._chosen[backend]

    def _ranks(self, backend: str) -> Mapping[str, Array]:
        """The order that a backend chose for equal elements, by the gradient that follows it."""
        ranks, op = {}, self.case.definition
        for name, tensor in self.chosen_indices:
            if tensor not in op.indexes:
                continue
            gradient, values = f"grad.{op.indexes[tensor]}", self.outcomes[name].outputs[tensor].values
            if name == backend and gradient in self.oracle and values is not None:
                ranks[gradient] = ranks_of(self.inputs[op.indexes[tensor]], values, self.case.params.dim)
        return ranks

    @property
    def choices(self) -> Mapping[str, Chosen]:
        """The choices of the backends that made another valid one than the oracle."""
        return {name: chosen for name, chosen in self._chosen.items() if chosen is not None and chosen.tensors}

    def chose(self, backend: str, tensor: str) -> bool:
        """Whether a backend was found to have made another valid choice than the oracle."""
        gradients = backend in self.choices and tensor in self.choices[backend].tensors
        return gradients or (backend, tensor) in self.chosen_indices

    def envelope_at(self, backend: str, tensor: str) -> Envelope:
        """The envelope for a backend's tensor, without its valid choices."""
        envelope, chosen = self.envelope(tensor), self._chosen.get(backend)
        return envelope if chosen is None else chosen.envelope(tensor, envelope, UNIT_ROUNDOFF[self.dtype])

    def _passes(self, backend: str, tensor: str, values: Array) -> bool:
        """Whether the first runs alone show that a tensor is right."""
        if self._near(backend, tensor):
            return True
        exact, first = self.oracle[tensor], self.first_envelope(tensor)
        return tensor not in self._alone and error_ratio(values, exact, first) < ERROR_BOUND

    def _near(self, backend: str, tensor: str) -> bool:
        """Whether a passing tensor is so close to the oracle that its error ratio stays below 8 in every row, channel
        and column, whatever the envelope."""
        if (backend, tensor) not in self._nearness:
            self._nearness[backend, tensor] = self._is_near(backend, tensor)
        return self._nearness[backend, tensor]

    def _is_near(self, backend: str, tensor: str) -> bool:
        row = next(c for c in self.comparisons if (c.actual, c.expected, c.tensor) == (backend, ORACLE, tensor))
        if row.rmse is None or row.max_abs_diff is None or row.verdict is Verdict.NONFINITE:
            return False
        limit = ERROR_BOUND * FLOOR[self.dtype]
        scale = self.scales[tensor]
        if row.rmse > limit * scale[0] or row.max_abs_diff > limit * scale[1]:
            return False
        values = self._usable(backend, tensor)
        return values is not None and error_ratio(values, self.oracle[tensor], self._narrowest[tensor]) < ERROR_BOUND

    @cached_property
    def _narrowest(self) -> dict[str, Envelope]:
        """The smallest possible envelopes: a part of the exact values."""
        parts = {n: Envelope.relative(FLOOR[self.dtype], values) for n, values in self.oracle.items()}
        least = LEAST.get(self.dtype, SMALLEST)
        return {n: p if n not in self._runs.pointwise else p.alone(least) for n, p in parts.items()}

    @cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Root mean square and maximum of the exact values."""
        return {name: (total.rms, total.max) for name, total in ((n, size(v)) for n, v in self.oracle.items())}


Results = dict[tuple[str, str], SearchResult]
"""The result of a search by dtype and backend."""
KindOf = Callable[[str, str, str], str]
"""The kind of an error, by dtype, backend and tensor."""


class CaseJudge:
    """Collects the cells of a case and judges them together."""

    def __init__(
        self,
        case: CasePlan,
        inputs: Mapping[str, Array],
        oracle: Oracle,
        baseline: str,
        memory: Memory | None = None,
        ask: Ask | None = None,
        others: Sequence[Mapping[str, Array]] = (),
        ask_new: Ask | None = None,
    ) -> None:
        self.case = case
        self.oracle = oracle
        self._others = OtherInputs(case, others, oracle)
        self._other_calls: dict[tuple[str, str], OtherCall] = {}
        self._memory = memory or Memory()
        self._inputs = inputs
        self._baseline = baseline
        self._ask, self._ask_new = ask, ask_new
        self.cells: dict[str, Cell] = {}
        self._measurements: dict[tuple[str, str], Measurement] = {}
        self._calls: dict[tuple[str, str], tuple[CellOutcome, CellOutcome]] = {}
        self._rows: dict[tuple[str, str], DifferingRow] = {}
        self._overwritten: set[tuple[str, str]] = set()
        self._repeated: set[str] = set()
        self._choices: Choices | None = None
        self._failures: dict[tuple[str, str], Failures] = {}

    @property
    def other_calls(self) -> Mapping[tuple[str, str], OtherCall]:
        """The calls on other inputs that are wrong, by dtype and backend."""
        return self._other_calls

    def inputs_of_call(self, ordinal: int) -> Mapping[str, Array]:
        """The inputs of a call on other inputs."""
        return self._others.inputs[ordinal - FIRST_OTHER]

    def failures_of(self, dtype: str, backend: str) -> Failures:
        """What has failed so far while a backend was judged."""
        return self._failures.setdefault((dtype, backend), Failures())

    def take(self, dtype: str, outcomes: Sequence[CellOutcome]) -> None:
        """The outcomes of one cell; their arrays must stay valid until the case is judged."""
        self._choices = self._choices or Choices(self.case, self._inputs, self.oracle)
        cell = self.cells[dtype] = self._cell(dtype, [self._worst(dtype, outcome) for outcome in outcomes])
        for outcome in outcomes:
            if outcome.others and not cell.wrong.get(outcome.backend, True):
                with self.failures_of(dtype, outcome.backend).contained("judging its calls on other inputs"):
                    self._take_others(cell, outcome)

    def _worst(self, dtype: str, outcome: CellOutcome) -> CellOutcome:
        """`_observed_worst`, or the first call's outcome where that fails."""
        with self.failures_of(dtype, outcome.backend).contained("asking whether results repeat"):
            return self._observed_worst(dtype, outcome)
        return outcome

    def _take_others(self, cell: Cell, outcome: CellOutcome) -> None:
        """Judge the calls of a backend on other inputs, and keep the first that is wrong."""
        for number, given in self._others.suspicious(outcome, cell.first_envelope, cell.dtype):
            other = Cell(self.case, cell.dtype, self._others.inputs[number], self._others.exact(number) or {})
            other.take([on_others(outcome, given)], self._baseline)
            if other.wrong[outcome.backend]:
                state = self._state(number, outcome, other)
                if state is not None or self._others.drawn:
                    self._other_calls[cell.dtype, outcome.backend] = OtherCall(number, other, state)
                return

    def _state(self, number: int, outcome: CellOutcome, cell: Cell) -> tuple[str, Mapping[str, Any]] | None:
        observed = cell.observed(outcome.backend)
        wrong = {n: values for n in cell.wrong[outcome.backend] if (values := observed[n]) is not None}
        absent = [n for n in cell.wrong[outcome.backend] if n not in wrong and n in outcome.outputs]
        inputs = [self._inputs, *self._others.inputs[: number + 1]]
        earlier = [outcome.outputs, *outcome.others[:number]]
        bound = bound_of(cell.envelopes)
        call = WrongCall(self.case, cell.dtype, inputs, earlier, wrong, cell.oracle, bound, absent)
        return state_of(call, kernel_of(self._ask, outcome.backend))

    def _cell(self, dtype: str, outcomes: Sequence[CellOutcome]) -> Cell:
        cell = Cell(self.case, dtype, self._inputs, self.oracle, self._choices)
        cell.take(outcomes, self._baseline)
        return cell

    def _observed_worst(self, dtype: str, outcome: CellOutcome) -> CellOutcome:
        """The outcome of a backend's first call; or, if the result of a later call or of a row alone is wrong, the
        outcome with that result."""
        key = dtype, outcome.backend
        if outcome.outcome is not Outcome.OK:
            return outcome
        if outcome.overwritten:
            other = replace(outcome, outputs={**outcome.outputs, **outcome.overwritten})
            if self._is_right(dtype, outcome) and not self._is_right(dtype, other):
                self._calls[key] = outcome, other
                self._overwritten.add(key)
                return other
        if outcome.again:
            other = replace(outcome, outputs={**outcome.outputs, **outcome.again})
            self._calls[key] = outcome, other
            outcome = other if self._is_right(dtype, outcome) and not self._is_right(dtype, other) else outcome
        wanted = self.case.stress and not self.case.layouts and all(values.size for values in self._inputs.values())
        kernel = kernel_of(self._ask, outcome.backend) if wanted else None
        if kernel is not None and self._is_right(dtype, outcome):
            for row, other in self._with_rows(kernel, self._cell(dtype, [outcome]), outcome):
                if not self._is_right(dtype, other):
                    self._rows[key] = row
                    return other
        return outcome

    def _is_right(self, dtype: str, outcome: CellOutcome) -> bool:
        return not self._cell(dtype, [outcome]).wrong[outcome.backend]

    def _with_rows(
        self, kernel: Kernel, cell: Cell, outcome: CellOutcome
    ) -> Iterator[tuple[DifferingRow, CellOutcome]]:
        """Each row that the kernel computes differently alone, and the outcome with the row as computed alone."""
        given = {name: values for name, values in cell.observed(outcome.backend).items() if values is not None}
        bound = bound_of(cell.envelopes)
        for row in rows_apart(kernel, self.case, cell.dtype, self._inputs, given, self.oracle, bound):
            outputs = dict(outcome.outputs)
            for name in row.wrong:
                values = np.array(outputs[name].values)
                values[row.parts[name]] = row.alone[name]
                outputs[name] = replace(outputs[name], values=values)
            yield row, replace(outcome, outputs=outputs)

    def judged(self, *, diagnose: bool = True) -> Judged:
        """Verdicts and diagnoses from all cells so far; `diagnose=False` skips the searches.

        Where parity fails, what it has measured stays, and a diagnosis says so.
        """
        if diagnose and (is_asked := IS_ASKED.get()) is not None:
            unsearched = self._judged({})
            if not is_asked(unsearched.comparisons):
                return unsearched
            try:
                return self._judged(self._searched())
            except KeyboardInterrupt:
                ENDED.set(True)
                return unsearched
        return self._judged(self._searched() if diagnose else {})

    def _judged(self, results: Results) -> Judged:
        """Verdicts and diagnoses from the searches so far."""

        @cache
        def kind_of(dtype: str, backend: str, tensor: str) -> str:
            if (dtype, backend) in self._other_calls:
                return SEMANTIC
            return self._kind(self.cells[dtype], backend, tensor, results.get((dtype, backend)))

        comparisons = [self._finished(cell, c, kind_of) for cell in self.cells.values() for c in cell.comparisons]
        diagnoses: list[Diagnosis] = []
        for dtype in self.cells:
            diagnoses += self._diagnoses(dtype, [c for c in comparisons if c.dtype == dtype], results)
        return Judged(tuple(comparisons), tuple(diagnoses), results, tuple(self._revisions(results)))

    def _revisions(self, results: Results) -> list[Revision]:
        """Other diagnoses for earlier cases, by the causes found in this one; what is unexplained here waits for those
        of later cases."""
        with Failures().contained("explaining earlier cases"), np.errstate(all="ignore"):
            revisions = list(self._memory.revised())
            for (_, backend), result in results.items():
                if self._is_open(result):
                    self._memory.leave(result, backend)
            return revisions
        return []

    @staticmethod
    def _is_open(result: SearchResult) -> bool:
        """Whether a cause found elsewhere may explain a result: it is no behaviour that the run itself has shown."""
        return not result.settled and not result.observed_behaviour

    def _finished(self, cell: Cell, comparison: Comparison, kind_of: KindOf) -> Comparison:
        """The comparison with its verdict; not compared where parity fails to find one."""
        failures = self.failures_of(cell.dtype, comparison.actual)
        for name in (comparison.actual, comparison.expected):
            for failure in cell.failures.get((name, comparison.tensor), ()):
                failures.note(failure)
                return unjudged(comparison, failure)
        with failures.contained(f"judging {comparison.tensor}"):
            return self._on_worst_call(cell, comparison, kind_of)
        return unjudged(comparison, failures[-1])

    def _on_worst_call(self, cell: Cell, comparison: Comparison, kind_of: KindOf) -> Comparison:
        """The comparison as judged; where only a call on other inputs is wrong, that of this call with the oracle."""
        backend, tensor = comparison.actual, comparison.tensor
        call = self._other_calls.get((cell.dtype, backend))
        if call is None or comparison.expected != ORACLE or tensor not in call.cell.wrong[backend]:
            return finished(cell, comparison, kind_of)
        own = next(c for c in call.cell.comparisons if c.tensor == tensor)
        message = f"{own.message} in call {call.ordinal}, {ON_OTHER_INPUTS}".lstrip()
        return structs.replace(finished(call.cell, own, kind_of), message=message, call=call.ordinal)

    def _diagnoses(self, dtype: str, comparisons: Sequence[Comparison], results: Results) -> Iterator[Diagnosis]:
        """The diagnoses of a dtype: the causes, then what is no error of a formula; each backend's on its own."""
        cell, key = self.cells[dtype], (self.case.id, dtype)
        zero = cell.zero_gradients if any(c.verdict.fails for c in comparisons) else ()
        kinds: tuple[Callable[[str], Iterable[Diagnosis]], ...] = (
            lambda name: self._causes(dtype, name, results[dtype, name]) if (dtype, name) in results else (),
            lambda name: changed_diagnoses(key, {name: cell.outcomes[name]}, self._inputs),
            lambda name: choice_diagnoses(key, only(cell.choices, name), cell.ratios),
            lambda name: index_diagnoses(key, {of: m for of, m in cell.chosen_indices.items() if of[0] == name}),
            lambda name: rounding_diagnoses([c for c in comparisons if c.actual == name], zero),
        )
        causes, *others = ({name: self._stated(dtype, name, kind) for name in cell.outcomes} for kind in kinds)
        for name, rows in causes.items():
            wrong = tuple(cell.wrong.get(name, ()))
            yield from with_failures((*key, name), rows, self.failures_of(dtype, name), wrong)
        yield from (row for by_name in others for rows in by_name.values() for row in rows)

    def _causes(self, dtype: str, backend: str, result: SearchResult) -> Iterator[Diagnosis]:
        """The causes of a search; of a tensor that was returned, in another dtype or shape, none says "nothing"."""
        outputs = self.cells[dtype].outcomes[backend].outputs
        for row in diagnoses_of((self.case.id, dtype, backend), result):
            is_returned = row.id in ABSENCES and any(n in outputs or f"{n}.0" in outputs for n in row.tensors)
            is_zero = row.evidence.get("parameters", {}).get("returned") == "zeros"
            kept = {name: value for name, value in row.evidence.items() if name not in ("expression", "parameters")}
            yield replace(row, evidence=kept) if is_returned and not is_zero else row

    def _stated(self, dtype: str, backend: str, kind: Callable[[str], Iterable[Diagnosis]]) -> list[Diagnosis]:
        """The diagnoses of one kind; none where that fails."""
        with self.failures_of(dtype, backend).contained("stating the causes"):
            return list(kind(backend))
        return []

    def _searched(self) -> Results:
        """A search for every backend that is wrong in a cell; float64 first, because other dtypes try its causes. What
        stays unexplained is tried again with the causes of all dtypes."""
        results: Results = {}
        for dtype in sorted(self.cells, key=lambda d: UNIT_ROUNDOFF[d]):
            cell = self.cells[dtype]
            for (d, backend), call in self._other_calls.items():
                if d == dtype:
                    with self.failures_of(dtype, backend).contained("searching for the cause"):
                        results[dtype, backend] = self._searched_on_others(call, backend)

            @cache
            def shared(dtype: str = dtype, cell: Cell = cell) -> Evaluator:
                return Evaluator(self.case, dtype, self._inputs, self.oracle, cell.envelopes)

            for backend in (name for name, ratios in cell.wrong.items() if ratios and name not in UNSEARCHED.get()):
                with self.failures_of(dtype, backend).contained("searching for the cause"):
                    chosen = cell.chosen(backend)
                    evaluator = shared() if chosen is None else excusing(chosen, shared(), cell.observed(backend))
                    result = self._search(evaluator, backend, cell, results)
                    results[dtype, backend] = result
                    if result.best.explains and not result.rivals:
                        self._memory.keep(evaluator, backend, result.best.causes)
        for (dtype, backend), result in results.items():
            if self._is_open(result):
                with self.failures_of(dtype, backend).contained("trying the causes of other dtypes"):
                    others = ((d, r) for (d, name), r in results.items() if name == backend and d != dtype)
                    results[dtype, backend] = improved(result, [(d, portable(r.best)) for d, r in others])
        return self._with_states(results)

    def _with_states(self, results: Results) -> Results:
        """The results; one without a firm cause is the state that a new process shows, or that another dtype has."""
        for key, result in list(results.items()):
            lost = is_absence(result) and self._memory.state(self.case.op, key[1]) is not None
            if key in self._other_calls or lost or not is_firm(result):
                results[key] = self._in_new_process(key, result)
        states = {key: state for key, result in results.items() if (state := state_in(result)) is not None}
        for key, result in list(results.items()):
            others = [(dtype, state) for (dtype, name), state in states.items() if name == key[1] and dtype != key[0]]
            plain = result.best.explains and result.best.plain and not is_absence(result)
            sure = result.observed_behaviour or plain
            if others and (key in self._rows or not sure):
                results[key] = self._in_new_process(key, result, others[0])
        return results

    def _in_new_process(
        self, key: tuple[str, str], result: SearchResult, known: tuple[str, Mapping[str, Any]] | None = None
    ) -> SearchResult:
        """The state that a new process shows; where none can be asked, a state that is `known` from another dtype or
        case; else the result."""
        if state_in(result) is not None:
            return result
        backend, asked = key[1], None
        with self.failures_of(*key).contained("asking a new process"):
            new, kernel = kernel_of(self._ask_new, backend), kernel_of(self._ask, backend)
            asked = kept_state(new, kernel, result.start) if new is not None and kernel is not None else None
        of_op = self.case.op, backend
        if asked:
            self._memory.keep_state(self.case.id, *of_op, asked)
            return with_state(result, asked)
        if asked is not None:
            self._repeated.add(backend)
        known = known or (None if backend in self._repeated else self._memory.state(*of_op))
        vague = key in self._rows or is_absence(result) or not is_firm(result)
        return with_state(result, known[1], known[0]) if asked is None and known and vague else result

    def _searched_on_others(self, call: OtherCall, backend: str) -> SearchResult:
        """The state that the call shows; without one, a search on its inputs."""
        cell, observed = call.cell, call.cell.observed(backend)
        evaluator = Evaluator(self.case, cell.dtype, cell.inputs, cell.oracle, cell.envelopes)
        if call.state is not None:
            if not any(n in call.cell.outcomes[backend].outputs for n in call.state[1].get("tensors", ())):
                self._memory.keep_state(self.case.id, self.case.op, backend, call.state[1])
            return SearchResult(unaltered(evaluator, observed), behaviours=(call.state,), observed_behaviour=True)
        with limited():
            return Inquiry(Measurement(evaluator, observed), kernel_of(self._ask, backend), prepared).result()

    def _search(self, evaluator: Evaluator, backend: str, cell: Cell, results: Results) -> SearchResult:
        """The causes of a wider dtype or of an earlier case if they explain this one; else a search.

        An error that equals one in a wider dtype is not searched for again if that was not explained though the backend
        was asked.
        """
        observed, failures = cell.observed(backend), self.failures_of(evaluator.dtype, backend)
        with failures.contained("trying the causes of other dtypes and cases"):
            if (known := self._known(evaluator, backend, cell, results)) is not None:
                return known
        if SECONDS.get() == 0:
            return SearchResult(unaltered(evaluator, observed))
        exact = [tensor for tensor in evaluator.base if self._same_as_wider(evaluator.dtype, backend, tensor)]
        wrong = {name for name, value in cell.wrong[backend].items() if value >= ERROR_BOUND}
        kernel, wider = kernel_of(self._ask, backend), [r for (_, name), r in results.items() if name == backend]
        if kernel is not None and wrong <= set(exact) and not all(r.best.explains for r in wider):
            for failure in (f for of in results if of[1] == backend for f in self.failures_of(*of)):
                failures.note(failure)
            return search(evaluator, observed, exact=exact, depth=1)
        measurement = Measurement(evaluator, observed)
        asked = [q for (_, name), q in self._measurements.items() if name == backend]
        others = [q for q in asked if not q.is_narrow] if exact else []
        self._measurements[evaluator.dtype, backend] = measurement
        budget = WorkBudget() if cell.fails(backend) else WorkBudget(**OF_A_PASS)
        with limited(BRIEF if self._is_located(cell, backend) else math.inf):
            return Inquiry(measurement, kernel, prepared, others, budget, failures).result(exact)

    def _is_located(self, cell: Cell, backend: str) -> bool:
        """Whether the fault is known before its cause is searched."""
        locate, wrong = LOCATE.get(), cell.wrong[backend]
        names = sorted(wrong, key=lambda name: -wrong[name])
        return locate is not None and locate(self.case, cell.dtype, self._inputs, names)

    def _known(self, evaluator: Evaluator, backend: str, cell: Cell, results: Results) -> SearchResult | None:
        """What the run itself shows, or a wider dtype or an earlier case has explained; else None."""
        observed = cell.observed(backend)
        behaviour = self._behaviour(evaluator, backend, observed)
        if behaviour:
            return SearchResult(unaltered(evaluator, observed), behaviours=behaviour, observed_behaviour=True)
        for (dtype, name), wider in results.items():
            if name == backend and (same := confirm(evaluator, observed, wider, dtype)) is not None:
                return same
        for (_, name), wider in results.items():
            if name == backend and any(behaviour_id == APPROXIMATED for behaviour_id, _ in wider.behaviours):
                start = unaltered(evaluator, observed)
                if set(start.wrong) <= set(wider.start.wrong):
                    return SearchResult(start, behaviours=wider.behaviours)
        recipes = self._memory.recall(evaluator, backend, observed)
        return recalled(evaluator, observed, recipes, plain=cell.fails(backend))

    def _behaviour(self, evaluator: Evaluator, backend: str, observed: Observed) -> Behaved:
        """The behaviour that the run itself shows: with a row alone, strided tensors, or a second call."""
        kernel, bound = kernel_of(self._ask, backend), bound_of(evaluator.envelopes)
        case, dtype, inputs = evaluator.case, evaluator.dtype, evaluator.inputs
        if (row := self._rows.get((dtype, backend))) is not None:
            new = kernel_of(self._ask_new, backend)
            state = state_of_row(new, dtype, row) if new is not None else None
            return (("batch-variant", row.evidence) if state is None else ("stateful", state),)
        calls = [self._arrays(outcome, dtype) for outcome in self._calls.get((dtype, backend), ())]
        seen = apart(*calls, bound=bound)
        if seen is not None and (dtype, backend) in self._overwritten:
            return (("stateful", {**seen, "seen": "a later call changes what the first one returned"}),)
        kept = kept_results(self.cells[dtype].outcomes[backend], self.oracle, self._others, bound)
        if kept and kernel is not None and (state := stateful(kernel, case, dtype, inputs, observed, bound)):
            return (("stateful", state),)
        if seen is None:
            evidence = kernel and layout_dependent(kernel, case, dtype, inputs, observed, bound)
            return (("layout-dependent", evidence),) if evidence else ()
        settled = only_first(kernel, case, dtype, inputs, calls[0], bound) if kernel is not None else None
        if settled is not None:
            return (("stateful", settled),)
        asked = behaviours(kernel, case, dtype, inputs, observed, bound) if kernel is not None else ()
        return tuple(behaviour for behaviour in asked if behaviour[0] in UNREPEATABLE) or (("nondeterministic", seen),)

    def _arrays(self, outcome: CellOutcome, dtype: str) -> dict[str, Array]:
        """The outputs with the oracle's structure."""
        given = {name: usable(outcome.outputs.get(name), exact, dtype) for name, exact in self.oracle.items()}
        return {name: values for name, values in given.items() if values is not None}

    def _same_as_wider(self, dtype: str, backend: str, tensor: str) -> bool:
        """Whether a tensor's error is the same in another dtype, so that it is not a loss of precision."""
        errors = {d: self._error(d, backend, tensor) for d in self.cells}
        others = [d for d in self.cells if d != dtype] if dtype == self._widest else [dtype]
        return any(self._same(d, backend, tensor, errors) for d in others)

    @property
    def _widest(self) -> str:
        """The dtype with the finest resolution, in which a loss of precision is smallest."""
        return min(self.cells, key=UNIT_ROUNDOFF.__getitem__)

    def _kind(self, cell: Cell, backend: str, tensor: str, result: SearchResult | None) -> str:
        """`semantic`, `unstable` or `degraded`: by the errors in all dtypes, or by the error's size if only one dtype
        shows it. A cause that explains the error without a fitted number takes precedence over its size: another
        formula, a number in float32, or a lossy algorithm."""
        if self.oracle[tensor].dtype.kind == "i" or self._same_as_wider(cell.dtype, backend, tensor):
            return SEMANTIC
        others = [d for d in self.cells if d != cell.dtype and self._error(d, backend, tensor) is not None]
        if not others or (
            cell.dtype == self._widest and not any(tensor in self.cells[d].wrong[backend] for d in others)
        ):
            causes = () if result is None else result.causes_of(tensor)
            if causes and not any(cause.weight and not cause.lossy for cause in causes):
                return max((cause.kind for cause in causes), key=ORDER.index)
            return self._size_kind(cell, backend, tensor, self._error(cell.dtype, backend, tensor))
        return UNSTABLE

    def _size_kind(self, cell: Cell, backend: str, tensor: str, error: Array | None) -> str:
        """The kind of an error by its size: within the loss of an unstable algorithm, that of float32, or larger."""
        exact, unit = cell.scales[tensor][0], UNIT_ROUNDOFF[cell.dtype]
        envelope = cell.envelope_at(backend, tensor).rms
        if error is None or not exact:
            return SEMANTIC
        if size(error).rms <= LOSSY * envelope * envelope / (unit * exact):
            return UNSTABLE
        float32 = envelope * UNIT_ROUNDOFF["float32"] / unit
        return DEGRADED if cell.dtype == "float64" and size(error).rms < ERROR_BOUND * float32 else SEMANTIC

    def _error(self, dtype: str, backend: str, tensor: str) -> Array | None:
        """A backend's error from the oracle; None if it cannot be computed or is not finite."""
        outcome = self.cells[dtype].outcomes.get(backend)
        output = outcome.outputs.get(tensor) if outcome is not None else None
        exact = self.oracle[tensor]
        if output is None or output.values is None or output.shape != exact.shape:
            return None
        with np.errstate(invalid="ignore"):
            error: Array = output.values.astype(exact.dtype) - exact
        return error if np.isfinite(error).all() else None

    def _same(self, dtype: str, backend: str, tensor: str, errors: Mapping[str, Array | None]) -> bool:
        """Whether the error in `dtype` equals that in the widest one, and exceeds the envelope."""
        narrow, wide = errors.get(dtype), errors.get(self._widest)
        if dtype == self._widest or narrow is None or wide is None:
            return False
        error, apart = size(wide).rms, size(narrow - wide).rms
        if apart >= error:  # the envelope takes long, so it is not computed here
            return False
        limit = SAME_ENVELOPES * self.cells[dtype].envelope_at(backend, tensor).rms
        return error > limit and apart <= max(SAME * error, limit)


def is_absence(result: SearchResult) -> bool:
    """Whether a result's only cause is that nothing is returned, which may depend on earlier calls."""
    return bool(result.best.causes) and all(cause.id in ABSENCES for cause in result.best.causes)


@dataclass(frozen=True)
class OtherCall:
    """A call on other inputs that is wrong there, and the state that it depends on, if that was found."""

    number: int
    cell: Cell
    state: tuple[str, Mapping[str, Any]] | None

    @property
    def ordinal(self) -> int:
        """Which call it is, from 1."""
        return self.number + FIRST_OTHER


def prepared(case: CasePlan, dtype: str, inputs: Mapping[str, Array], observed: Observed = NOTHING) -> Evaluator:
    """An evaluator for a case and its observed tensors, with envelopes of enough runs that more hardly widen them."""
    oracle = consult_oracle(case, inputs)
    cell = Cell(case, dtype, inputs, oracle)
    envelopes = cell.with_terms(EnvelopeRuns(case, dtype, inputs, oracle).envelopes(PREPARED_RUNS))
    evaluator = Evaluator(case, dtype, inputs, oracle, envelopes)
    given = {
        name: values
        for name, values in observed.items()
        if values is not None and values.shape == oracle[name].shape and name not in cell.zero_gradients
    }
    chosen = Choices(case, inputs, oracle).chosen(given, dtype)
    return evaluator if chosen is None else excusing(chosen, evaluator, observed)


def bound_of(envelopes: Mapping[str, Envelope]) -> dict[str, Array | float]:
    """The largest error of a careful implementation, for every element where that is known."""
    return {name: ERROR_BOUND * (e.max if e.errors is None else e.errors) for name, e in envelopes.items()}


def usable(output: Output | None, exact: Array, dtype: str) -> Array | None:
    """An output's values if it has the oracle's structure."""
    if output is None or (output.shape, output.dtype) != (exact.shape, dtype_of(exact, dtype)):
        return None
    return output.values


def in_dtype(output: Output | None, dtype: str) -> Array | None:
    """An output's values in `dtype`; None if there are none."""
    if output is None or output.values is None:
        return None
    return as_dtype(output.values, dtype)


def only(choices: Mapping[str, Chosen], backend: str) -> Mapping[str, Chosen]:
    """The choices of one backend."""
    return {name: chosen for name, chosen in choices.items() if name == backend}


def finished(cell: Cell, comparison: Comparison, kind_of: KindOf) -> Comparison:
    """The comparison with both error ratios, the backends that are wrong, and the verdict that follows."""
    names = (comparison.actual, comparison.expected)
    tensor = comparison.tensor
    if comparison.verdict is Verdict.NOT_COMPARED or comparison.culprit:
        return comparison
    if tensor not in cell.oracle:
        extra = tuple(name for name in names if name != ORACLE and tensor in cell.outcomes[name].outputs)
        return structs.replace(comparison, culprit=extra)
    culprit = tuple(name for name in names if tensor in cell.wrong.get(name, ()))
    if comparison.verdict.passes and not culprit:
        return comparison
    actual, expected = (None if name == ORACLE else cell.ratios(name).get(tensor) for name in names)
    scale = cell.envelope(tensor) if actual is not None or expected is not None else None
    measured = structs.replace(
        comparison,
        error_ratio=ErrorRatios(actual, expected),
        envelope=None if scale is None else EnvelopeRow(scale.rms, scale.max),
        culprit=culprit,
        suspect=comparison.suspect or comparison.verdict.passes,
    )
    if comparison.verdict is not Verdict.ROUNDING and not comparison.verdict.passes:
        return measured
    if not culprit:
        chose = any(cell.chose(name, tensor) for name in names)
        return structs.replace(measured, verdict=Verdict.CHOICE) if chose else measured
    worst = KINDS[max((kind_of(cell.dtype, name, tensor) for name in culprit), key=ORDER.index)]
    return structs.replace(measured, **{"hidden" if comparison.verdict.passes else "verdict": worst})
