"""Can a case tell? Every common mistake, computed on the inputs of a case: who would see it, and name it?

No backend runs. A mistake is a cause that the judge could find; its effect is the prediction that follows from it,
against the oracle's envelope (the judge sees it from an error ratio of 8 on) and against the tolerance (the gate
fails). Two mistakes that are seen, each within the other's envelope in every dtype, cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases import OPS
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import OFF, RUNS, UNIT_ROUNDOFF, Envelope, EnvelopeRuns, size
from parity.judge.case import Cell
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import UNSTABLE, Cause, replaced, standing_causes
from parity.judge.diagnose.evaluator import WIDE, Evaluator, Predicted, Prediction, is_gradient, ratio
from parity.judge.diagnose.factors import element_counts, multiplied
from parity.judge.diagnose.generic import EXACT
from parity.judge.diagnose.places import holds, moved_to
from parity.judge.diagnose.search import CLEAR

MAX_WORK = 5e6
"""Input elements times hypotheses, over all dtypes: about three seconds. A larger case is left out, which is said."""
ONLY_FLOAT64 = "attribute-precision"

Array = NDArray[Any]


@dataclass(frozen=True)
class Mistake:
    """What one mistake does to one case: by dtype, the error ratio of each tensor, and the tensors whose gate fails.

    `unstable`: it is right in exact arithmetic, and its error ratio is that of the digits it loses.
    """

    id: str
    parameters: Mapping[str, Any]
    shown_by: str
    unstable: bool
    ratios: Mapping[str, Mapping[str, float]]
    beyond: Mapping[str, tuple[str, ...]]

    @property
    def seen_in(self) -> tuple[str, ...]:
        """The dtypes in which the judge sees it."""
        return tuple(dtype for dtype, found in self.ratios.items() if any(r >= OFF for r in found.values()))

    @property
    def fails_in(self) -> tuple[str, ...]:
        """The dtypes in which the gate fails."""
        return tuple(dtype for dtype, tensors in self.beyond.items() if tensors)


@dataclass(frozen=True)
class CaseAudit:
    """What a case can tell. `alike` are pairs of mistakes of different ids, both seen, that it cannot tell apart.

    `remarks` are blind spots that the inputs have by their make; `problem` says why the case was not audited.
    """

    case: str
    op: str
    dtypes: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()
    alike: tuple[tuple[Mistake, Mistake], ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Answer:
    """What a kernel with one mistake returns in one dtype, and the error ratios that it would have."""

    cause: Cause
    prediction: Prediction
    effects: Mapping[str, float]

    @property
    def seen(self) -> bool:
        """Whether the judge sees it."""
        return any(value >= OFF for value in self.effects.values())

    @property
    def lossy(self) -> bool:
        """Whether it is known by the size of its error only."""
        return any(predicted.unstable for predicted in self.prediction.values())


Answers = Mapping[str, Answer]


def audit_case(case: CasePlan, inputs: Mapping[str, Array]) -> CaseAudit:
    """What `case` can tell with these inputs."""
    blank = CaseAudit(case.id, case.op, case.dtypes)
    n_elements = sum(values.size for values in inputs.values())
    shapes = {name: values.shape for name, values in inputs.items()}
    n_causes = len(tuple(OPS[case.op].variants(case.params, shapes))) + 2 * len(inputs)
    if n_elements * n_causes * len(case.dtypes) > MAX_WORK:
        return replace(blank, problem=f"too large to be audited ({n_elements:,} input elements)")
    with np.errstate(all="ignore"):
        oracle = consult_oracle(case, inputs)
        cells = {dtype: Cell(case, dtype, inputs, oracle) for dtype in case.dtypes}
        evaluators = {dtype: evaluator_of(cell) for dtype, cell in cells.items()}
        answers = {dtype: dict(answered(evaluator)) for dtype, evaluator in evaluators.items()}
        found = tuple(mistakes(evaluators, answers))
        pairs = tuple(indistinguishable(evaluators, answers, found))
        said = tuple(remarks(evaluators[case.dtypes[-1]], cells[case.dtypes[-1]].zero_gradients, found))
    return replace(blank, mistakes=found, alike=pairs, remarks=said)


def evaluator_of(cell: Cell) -> Evaluator:
    """A lab with the envelopes that the judge would use in the end."""
    found = EnvelopeRuns(cell.case, cell.dtype, cell.inputs, cell.oracle).envelopes(RUNS)
    wide = {n: e.joined(cell.terms[n]) if n in cell.zero_gradients else e for n, e in found.items()}
    return Evaluator(cell.case, cell.dtype, cell.inputs, cell.oracle, wide)


def answered(evaluator: Evaluator) -> Iterator[tuple[str, Answer]]:
    """Every mistake that can be computed here, by a key that is the same in all dtypes."""
    base = in_dtype(evaluator.base, evaluator.dtype)
    for cause in (*standing_causes(evaluator), *generic_causes(evaluator)):
        if cause.id == ONLY_FLOAT64 and evaluator.dtype != "float64":
            continue
        prediction = evaluator.ask(cause.alteration) if cause.alteration is not None else None
        if cause.change is not None:
            prediction = cause.change(evaluator.base)
        if prediction is not None:
            narrow = in_dtype(prediction, evaluator.dtype)
            effects = {name: distance(narrow[name], base[name]) for name in base if name in narrow}
            yield f"{cause.id} {dict(cause.parameters)!r}", Answer(cause, narrow, effects)


def generic_causes(evaluator: Evaluator) -> Iterator[Cause]:
    """What can be wrong with tensors whatever the op: exchanged, zero, of the other sign, transposed, a mean."""
    base = {name: predicted for name, predicted in evaluator.base.items() if predicted.values is not None}
    names = [name for name in base if is_gradient(name)]
    for one, other in combinations(names, 2):
        if holds(base[one], base[other].values):
            change = replaced({one: base[other], other: base[one]})
            shown_by = "two gradients of one shape that are not alike"
            yield Cause("swapped-gradients", {"exchanged": [one, other]}, change=change, shown_by=shown_by)
    for name in names:
        nothing = replaced({name: Predicted(np.zeros_like(base[name].values), EXACT)})
        yield Cause("missing-gradient", {"zero": name}, change=nothing, shown_by=NOT_ZERO)
        yield Cause("sign-flipped", {"tensor": name}, change=multiplied({name: -1.0}), shown_by=NOT_ZERO)
        yield from averaged(evaluator, name)
    for name, predicted in base.items():
        values = predicted.values
        if values is not None and values.ndim == 2 and values.shape[0] == values.shape[1] > 1:
            change = replaced({name: moved_to(predicted, values.T)})
            yield Cause("transposed", {"tensor": name}, change=change, shown_by="a matrix that is not symmetric")


NOT_ZERO = "a gradient that is not zero"


def averaged(evaluator: Evaluator, name: str) -> Iterator[Cause]:
    """A mean where a gradient is a sum over elements of x."""
    values, x = evaluator.base[name].values, evaluator.data
    if values is None or x is None or values.size >= x.size:
        return
    count = next((n for n in element_counts(evaluator, values.size).values() if n > 1), 1)
    if count > 1:
        change = multiplied({name: 1.0 / count})
        yield Cause("mean-vs-sum", {"mean_in": name}, change=change, shown_by="more than one summed element")


def in_dtype(prediction: Prediction, dtype: str) -> Prediction:
    """The prediction as a kernel returns it."""
    return {n: replace(p, values=None if p.values is None else p.values.astype(dtype)) for n, p in prediction.items()}


def stray(predicted: Predicted) -> Envelope:
    """How far an algorithm that loses digits is from its own prediction; nothing for all others."""
    return predicted.envelope.scaled(1 / WIDE) if predicted.unstable else EXACT


def distance(truth: Predicted, guess: Predicted) -> float:
    """The error ratio that is left where `truth` is what a kernel does and `guess` is believed."""
    own = stray(truth)
    if own.excused is not None and guess.envelope.excused is None:
        return float("inf")
    left = ratio(truth.values, guess)
    if not own.rms:
        return left
    return left + own.rms / guess.envelope.rms if guess.envelope.rms else float("inf")


def mistakes(evaluators: Mapping[str, Evaluator], answers: Mapping[str, Answers]) -> Iterator[Mistake]:
    """Every mistake with what it does in each dtype in which it can be made."""
    for key in dict.fromkeys(key for found in answers.values() for key in found):
        mine = {dtype: found[key] for dtype, found in answers.items() if key in found}
        cause = next(iter(mine.values())).cause
        beyond = {dtype: tuple(beyond_tolerance(evaluators[dtype], answer)) for dtype, answer in mine.items()}
        ratios = {dtype: answer.effects for dtype, answer in mine.items()}
        yield Mistake(cause.id, cause.parameters, cause.shown_by, cause.kind == UNSTABLE, ratios, beyond)


def beyond_tolerance(evaluator: Evaluator, answer: Answer) -> Iterator[str]:
    """The tensors that would fail against the oracle."""
    for name, predicted in answer.prediction.items():
        exact, tolerance = evaluator.base[name].values, evaluator.case.tolerance.lookup(evaluator.dtype, name)
        if exact is None or answer.effects[name] < OFF:
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
    evaluators: Mapping[str, Evaluator], answers: Mapping[str, Answers], found: Sequence[Mistake]
) -> Iterator[tuple[Mistake, Mistake]]:
    """One pair of mistakes for each pair of ids that every dtype confuses."""
    keys = list(dict.fromkeys(key for each in answers.values() for key in each))
    named = set()
    for (one, a), (other, b) in combinations([pair for pair in zip(keys, found, strict=True) if pair[1].seen_in], 2):
        ids = frozenset((a.id, b.id))
        if len(ids) == 1 or ids in named:
            continue
        if all(confused(evaluators[dtype], each.get(one), each.get(other)) for dtype, each in answers.items()):
            named.add(ids)
            yield a, b


def confused(evaluator: Evaluator, one: Answer | None, other: Answer | None) -> bool:
    """Whether a dtype cannot tell two mistakes apart; one that it cannot make is no mistake in it."""
    if one is None or other is None:
        there = one or other
        return there is None or not there.seen
    if apart_by_size(one, other, UNIT_ROUNDOFF[evaluator.dtype]):
        return False
    both = one.prediction.keys() & other.prediction.keys()
    pairs = [(one.prediction[name], other.prediction[name]) for name in both]
    return all(distance(a, b) < CLEAR and distance(b, a) < CLEAR for a, b in pairs)


def apart_by_size(one: Answer, other: Answer, unit: float) -> bool:
    """Whether the sizes of two effects tell already, without looking at values: |d(a, 0) - d(b, 0)| <= d(a, b).

    An envelope grows with what is predicted, by a unit roundoff of it.
    """
    if one.lossy and other.lossy:
        return False
    pairs = [(one.effects[n], other.effects[n]) for n in one.effects if n in other.effects]
    return any(abs(a - b) > 2 * CLEAR * (1 + unit * max(a, b)) for a, b in pairs if a != b)


def remarks(evaluator: Evaluator, zero_gradients: Iterable[str], found: Sequence[Mistake]) -> Iterator[str]:
    """The blind spots of the inputs of a case, each a sentence."""
    inputs = evaluator.inputs
    untransposed = [m for m in found if m.id == "transposed" and "transposed" in m.parameters]
    if untransposed:
        shown = what_shows(untransposed)
        yield f"the weight is square: no shape check sees a missing transpose; {shown}"
    yield from evaluator.op.remarks(
        evaluator.op, evaluator.case.params, {n: v for n, v in inputs.items() if not evaluator.is_upstream(n)}
    )
    for name in sorted(zero_gradients):
        steady = any(evaluator.is_upstream(n) and np.ptp(v) == 0 for n, v in inputs.items() if v.size)
        why = " (the upstream gradient is constant)" if steady else ""
        yield f"{name} is exactly zero{why}: a kernel that gets it wrong differs by rounding only"


def what_shows(untransposed: Sequence[Mistake]) -> str:
    """What shows that a square weight was not transposed."""
    wrong = {name for m in untransposed for ratios in m.ratios.values() for name, r in ratios.items() if r >= OFF}
    if any(not is_gradient(name) for name in wrong):
        return "the values do"
    return "y does not either, only gradients do" if wrong else "and the values do not either"
