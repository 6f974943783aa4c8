"""Measures which common mistakes a case reveals. All of them are computed on its inputs; no backend runs.

A mistake is a cause that the judge knows. Its effect is the prediction that follows from it, compared with the oracle's
envelope (the judge sees it from an error ratio of 8 on) and with the tolerance (the gate fails). Two visible mistakes
that lie within each other's envelope in every dtype cannot be distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.edits import EVERY, RESULT, STEPWISE, Edit
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.program import Program
from parity.cases.trial import Trial
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, RUNS, UNIT_ROUNDOFF, Array, Envelope, EnvelopeRuns, size
from parity.judge.case import Cell
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import UNSTABLE, Cause, multiplied, replaced, standing_causes
from parity.judge.diagnose.evaluator import WIDE, Alteration, Evaluator, Predicted, Prediction, ratio
from parity.judge.diagnose.explanation import CLEAR
from parity.judge.diagnose.proposals import EXACT, comparable, element_counts

MAX_WORK = 5e6
"""Input elements times hypotheses, over all dtypes: about three seconds; larger cases are not audited."""
ONLY_FLOAT64 = "attribute-precision"


@dataclass(frozen=True)
class Mistake:
    """The effect of one mistake on one case: by dtype, the error ratios of tensors, and the tensors whose gate fails.

    `unstable`: it is exact in exact arithmetic, and its error ratio is that of its loss of precision.
    """

    id: str
    parameters: Mapping[str, Any]
    shown_by: str
    unstable: bool
    ratios: Mapping[str, Mapping[str, float]]
    beyond: Mapping[str, tuple[str, ...]]

    @property
    def seen_in(self) -> tuple[str, ...]:
        """The dtypes in which the judge sees the mistake."""
        return tuple(dtype for dtype, ratios in self.ratios.items() if any(r >= ERROR_BOUND for r in ratios.values()))

    @property
    def fails_in(self) -> tuple[str, ...]:
        """The dtypes in which the gate fails."""
        return tuple(dtype for dtype, tensors in self.beyond.items() if tensors)


@dataclass(frozen=True)
class CaseAudit:
    """What a case reveals. `alike` are pairs of visible mistakes of different ids that it cannot distinguish.

    `remarks` are blind spots of the inputs, whatever the mistake; `problem` says why the case was not audited.
    """

    case: str
    op: str
    dtypes: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()
    alike: tuple[tuple[Mistake, Mistake], ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Effect:
    """The result of a kernel with one mistake in one dtype, and its error ratios."""

    cause: Cause
    prediction: Prediction
    ratios: Mapping[str, float]

    @property
    def seen(self) -> bool:
        """Whether the judge sees the mistake."""
        return any(value >= ERROR_BOUND for value in self.ratios.values())

    @property
    def lossy(self) -> bool:
        """Whether only the size of its error is known."""
        return any(predicted.unstable for predicted in self.prediction.values())


Effects = Mapping[str, Effect]


def audit_case(case: CasePlan, inputs: Mapping[str, Array]) -> CaseAudit:
    """What `case` reveals with these inputs."""
    blank = CaseAudit(case.id, case.op, case.dtypes)
    n_elements = sum(values.size for values in inputs.values())
    shapes = {name: values.shape for name, values in inputs.items()}
    n_causes = len(tuple(case.definition.variants(case.params, shapes))) + 2 * len(inputs)
    if n_elements * n_causes * len(case.dtypes) > MAX_WORK:
        return replace(blank, problem=f"too large to be audited ({n_elements:,} input elements)")
    with np.errstate(all="ignore"):
        oracle = consult_oracle(case, inputs)
        cells = {dtype: Cell(case, dtype, inputs, oracle) for dtype in case.dtypes}
        evaluators = {dtype: evaluator_of(cell) for dtype, cell in cells.items()}
        effects = {dtype: dict(effects_in(evaluator)) for dtype, evaluator in evaluators.items()}
        seen = tuple(mistakes(evaluators, effects))
        pairs = tuple(indistinguishable(evaluators, effects, seen))
        last = case.dtypes[-1]
        sentences = tuple(remarks(evaluators[last], cells[last].zero_gradients, seen))
    return replace(blank, mistakes=seen, alike=pairs, remarks=sentences)


def evaluator_of(cell: Cell) -> Evaluator:
    """An evaluator with the judge's final envelopes."""
    envelopes = cell.with_terms(EnvelopeRuns(cell.case, cell.dtype, cell.inputs, cell.oracle).envelopes(RUNS))
    return Evaluator(cell.case, cell.dtype, cell.inputs, cell.oracle, envelopes)


def effects_in(evaluator: Evaluator) -> Iterator[tuple[str, Effect]]:
    """Every mistake that can be computed here, by a key that is the same in all dtypes."""
    base = in_dtype(evaluator.base, evaluator.dtype)
    for cause in (*standing_causes(evaluator), *generic_causes(evaluator), *narrow_causes(evaluator)):
        if cause.id == ONLY_FLOAT64 and evaluator.dtype != "float64":
            continue
        prediction = evaluator.predict(cause.alteration) if cause.alteration is not None else None
        if cause.change is not None:
            prediction = cause.change(evaluator.base)
        if prediction is not None:
            narrow = in_dtype(prediction, evaluator.dtype)
            ratios = {name: distance(narrow[name], base[name]) for name in base if name in narrow}
            yield f"{cause.id} {dict(cause.parameters)!r}", Effect(cause, narrow, ratios)


def generic_causes(evaluator: Evaluator) -> Iterator[Cause]:
    """Mistakes that need no knowledge of the op: exchanged, zero, sign-flipped, transposed, a mean."""
    base = {name: predicted for name, predicted in evaluator.base.items() if predicted.values is not None}
    names = [name for name in base if evaluator.is_gradient(name)]
    for one, other in combinations(names, 2):
        values = base[other].values
        if values is not None and comparable(base[one], values):
            change = replaced({one: base[other], other: base[one]})
            shown_by = "two different gradients of the same shape"
            yield Cause("swapped-gradients", {"exchanged": [one, other]}, change=change, shown_by=shown_by)
    for name in names:
        nothing = replaced({name: Predicted(np.zeros_like(base[name].values), EXACT)})
        yield Cause("missing-gradient", {"zero": name}, change=nothing, shown_by=NOT_ZERO)
        yield Cause("sign-flipped", {"tensor": name}, change=multiplied([name], -1.0), shown_by=NOT_ZERO)
        yield from averaged(evaluator, name)
    for name, predicted in base.items():
        values = predicted.values
        if values is not None and values.ndim == 2 and values.shape[0] == values.shape[1] > 1:
            change = replaced({name: predicted.rearranged(values.T)})
            yield Cause("transposed", {"tensor": name}, change=change, shown_by="a matrix that is not symmetric")


NOT_ZERO = "a gradient that is not zero"


def narrow_causes(evaluator: Evaluator) -> Iterator[Cause]:
    """In a narrow dtype, what a careful kernel computes in a wider one: all steps, a sum, or the terms of one."""
    if evaluator.dtype not in COMPUTED_IN:
        return
    program, dtype = evaluator.program(Alteration()), evaluator.dtype
    trial = Trial(program, evaluator.tensors(Alteration()))
    for of, edit in narrow_edits(program, dtype):
        shown, rounds, overflows = {"format": dtype, "of": of}, Alteration(edits=(edit,)), trial.overflows(edit)
        if not overflows:
            yield Cause("reduced-precision", shown, rounds, shown_by=FAR_FROM_ZERO)
        if is_short(dtype):
            yield Cause("narrow-overflow", shown, rounds if overflows else Alteration(), shown_by=LARGE)


def is_short(dtype: str) -> bool:
    """Whether the range of a format is less than that of the dtype in which careful kernels compute."""
    most = np.asarray(np.finfo(COMPUTED_IN[dtype]).max, np.float64)
    return bool(np.isinf(rounded(most / 4, FORMATS[dtype])))


LARGE = "inputs whose squares the format cannot hold"
FAR_FROM_ZERO = "sums that are large against what is left of them"
MOST_SUMS = 8
"""Sums of the forward pass that are narrowed one by one; a program with more repeats them."""


def narrow_edits(program: Program, dtype: str) -> Iterator[tuple[str, Edit]]:
    """The edits that round every step, and each sum of the forward pass, or its terms, to a format."""
    yield "every step", Edit((), "", STEPWISE, EVERY, dtype)
    made = {step.index: (position, step) for position, step in enumerate(program.steps)}
    sums = [position for position, step in enumerate(program.steps) if step.name == "sum" and not step.backward]
    for number, position in enumerate(sums[:MOST_SUMS], 1):
        yield f"sum {number}", Edit((position,), "sum", "rounded", RESULT, dtype)
        for index in program.steps[position].refs:
            if index in made:
                at, step = made[index]
                yield f"the terms of sum {number}", Edit((at,), step.name, "rounded", RESULT, dtype)


def averaged(evaluator: Evaluator, name: str) -> Iterator[Cause]:
    """A mean instead of a gradient's sum over elements of the data."""
    values, data = evaluator.base[name].values, evaluator.data
    if values is None or data is None or values.size >= data.size:
        return
    count = next((n for n in element_counts(evaluator, values.shape).values() if n > 1), 1)
    if count > 1:
        change = multiplied([name], 1.0 / count)
        yield Cause("mean-vs-sum", {"mean_in": name}, change=change, shown_by="more than one summed element")


def in_dtype(prediction: Prediction, dtype: str) -> Prediction:
    """The prediction as the tensors that a kernel returns."""
    return {n: p if p.values is None else replace(p, values=as_dtype(p.values, dtype)) for n, p in prediction.items()}


def stray(predicted: Predicted) -> Envelope:
    """The error of an algorithm that loses precision around its own prediction; empty for all others."""
    return predicted.envelope.scaled(1 / WIDE) if predicted.unstable else EXACT


def distance(truth: Predicted, guess: Predicted) -> float:
    """The error ratio that remains if a kernel makes the mistake `truth` and `guess` is assumed."""
    own = stray(truth)
    if own.excused is not None and guess.envelope.excused is None:
        return float("inf")
    left = ratio(truth.values, guess)
    if not own.rms:
        return left
    return left + own.rms / guess.envelope.rms if guess.envelope.rms else float("inf")


def mistakes(evaluators: Mapping[str, Evaluator], effects: Mapping[str, Effects]) -> Iterator[Mistake]:
    """Every mistake, with its effect in every dtype in which it is possible."""
    for key in dict.fromkeys(key for by_key in effects.values() for key in by_key):
        by_dtype = {dtype: by_key[key] for dtype, by_key in effects.items() if key in by_key}
        cause = next(iter(by_dtype.values())).cause
        beyond = {dtype: tuple(beyond_tolerance(evaluators[dtype], effect)) for dtype, effect in by_dtype.items()}
        ratios = {dtype: effect.ratios for dtype, effect in by_dtype.items()}
        yield Mistake(cause.id, cause.parameters, cause.shown_by, cause.kind == UNSTABLE, ratios, beyond)


def beyond_tolerance(evaluator: Evaluator, effect: Effect) -> Iterator[str]:
    """The tensors that would fail against the oracle."""
    for name, predicted in effect.prediction.items():
        exact, tolerance = evaluator.base[name].values, evaluator.case.tolerance.lookup(evaluator.dtype, name)
        if exact is None or effect.ratios[name] < ERROR_BOUND:
            continue
        own = stray(predicted)
        if predicted.values is None or own.excused is not None:
            yield name
        elif own.rms:
            if own.max > tolerance.atol + tolerance.rtol * size(exact).rms:
                yield name
        elif not np.allclose(predicted.values, exact, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True):
            yield name


def indistinguishable(
    evaluators: Mapping[str, Evaluator], effects: Mapping[str, Effects], seen: Sequence[Mistake]
) -> Iterator[tuple[Mistake, Mistake]]:
    """One pair of mistakes for every pair of ids that no dtype distinguishes."""
    keys = list(dict.fromkeys(key for by_key in effects.values() for key in by_key))
    named = set()
    for (one, a), (other, b) in combinations([pair for pair in zip(keys, seen, strict=True) if pair[1].seen_in], 2):
        ids = frozenset((a.id, b.id))
        if len(ids) == 1 or ids in named:
            continue
        if all(confused(evaluators[dtype], by_key.get(one), by_key.get(other)) for dtype, by_key in effects.items()):
            named.add(ids)
            yield a, b


def confused(evaluator: Evaluator, one: Effect | None, other: Effect | None) -> bool:
    """Whether a dtype fails to distinguish two mistakes; one that is impossible in it has no effect there."""
    if one is None or other is None:
        there = one or other
        return there is None or not there.seen
    if apart_by_size(one, other, UNIT_ROUNDOFF[evaluator.dtype]):
        return False
    both = one.prediction.keys() & other.prediction.keys()
    pairs = [(one.prediction[name], other.prediction[name]) for name in both]
    return all(distance(a, b) < CLEAR and distance(b, a) < CLEAR for a, b in pairs)


def apart_by_size(one: Effect, other: Effect, unit: float) -> bool:
    """Whether the sizes of two effects alone distinguish them: |d(a, 0) - d(b, 0)| <= d(a, b).

    An envelope grows with the prediction, by a unit roundoff of it.
    """
    if one.lossy and other.lossy:
        return False
    pairs = [(one.ratios[n], other.ratios[n]) for n in one.ratios if n in other.ratios]
    return any(abs(a - b) > 2 * CLEAR * (1 + unit * max(a, b)) for a, b in pairs if a != b)


def remarks(evaluator: Evaluator, zero_gradients: Iterable[str], seen: Sequence[Mistake]) -> Iterator[str]:
    """The blind spots of the inputs of a case, one sentence each."""
    inputs = evaluator.inputs
    untransposed = [m for m in seen if m.id == "transposed" and "transposed" in m.parameters]
    if untransposed:
        shown = what_shows(evaluator, untransposed)
        yield f"the weight is square, so no shape check reveals a missing transpose; {shown}"
    yield from evaluator.op.remarks(
        evaluator.op, evaluator.case.params, {n: v for n, v in inputs.items() if not evaluator.op.is_grad_output(n)}
    )
    for name in sorted(zero_gradients):
        steady = any(evaluator.op.is_grad_output(n) and np.ptp(v) == 0 for n, v in inputs.items() if v.size)
        why = " (grad_output is constant)" if steady else ""
        yield f"{name} is exactly zero{why}, so a wrong kernel differs by rounding only"


def what_shows(evaluator: Evaluator, untransposed: Sequence[Mistake]) -> str:
    """Which tensors reveal a missing transpose of a square weight, in words."""
    wrong = {
        name for m in untransposed for ratios in m.ratios.values() for name, r in ratios.items() if r >= ERROR_BOUND
    }
    if any(not evaluator.is_gradient(name) for name in wrong):
        return "y does"
    return "only gradients do, y does not" if wrong else "neither y nor the gradients do"
