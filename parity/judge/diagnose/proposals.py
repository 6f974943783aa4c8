"""Causes that the observed tensors suggest, whatever the op: nothing returned, another tensor's values, a factor, low
precision.

Every function takes the tensors that an explanation leaves wrong and proposes causes whose predictions come closer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import chain, combinations
from math import prod

import numpy as np

from parity.cases.draw import Shape
from parity.cases.edits import RETURNED, Edit
from parity.cases.exact.formats import FORMATS, on_grid
from parity.cases.formula import short
from parity.judge.bound.envelope import ERROR_BOUND, Array, Envelope, size
from parity.judge.diagnose.causes import DIGITS, NO_COINCIDENCE, Cause, Change, Result, multiplied, narrowed, replaced
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Predicted, ratio
from parity.judge.diagnose.explanation import KernelExplanation
from parity.judge.diagnose.permutations import rearranged

Causes = tuple[Cause, ...]

EXACT = Envelope(0.0, 0.0)
VARIED = 64
ROUNDED_ONCE = 1.25
"""The largest error of one rounding in unit roundoffs, with some room for an error before it."""
BETTER = 4.0
"""A change is proposed if it leaves less than a quarter of the error."""
SAME_FACTOR = 1e-3
EXTREME = 1e6
"""Beyond this factor only a tensor's direction is comparable."""
UNNAMED = "no number of this case"
MOST_LABELS = 2
PLAIN = ("2", "1/2")
FACTOR_WEIGHT = 0.37
"""Another value of a number in the reference (0.36 as an edit) is more specific than such a factor of the result."""
DOUBLED = "2: doubled, as if the gradient was not cleared before"
UNNAMED_WEIGHT = 2.5
"""Two simple causes are preferred to one factor without a meaning."""


def proposals(origin: KernelExplanation) -> Iterator[Causes]:
    """All changes that come closer to the observed tensors, some with an additional factor."""
    for propose in (absent, resized, stale, scaled, coarse):
        yield from ((cause,) for cause in propose(origin))
    for name in origin.wrong:
        for cause, predicted in rearranged(origin, name):
            values = origin.observed[name]
            assert values is not None  # noqa: S101 - else there is nothing to rearrange
            if ratio(values, predicted) < ERROR_BOUND:
                yield (cause,)
            elif (factor := fits_scaled(values, predicted)) is not None:
                yield from with_factor(origin.evaluator, cause, {name: factor})
    yield from exchanged(origin)


def absent(origin: KernelExplanation) -> Iterator[Cause]:
    """Nothing is returned, or only zeros."""
    for kind, gradient in (("missing-gradient", True), ("missing-output", False)):
        tensors = {n: origin.observed.get(n) for n in origin.wrong if origin.evaluator.is_gradient(n) is gradient}
        nothing = {n: Predicted(None, EXACT) for n, values in tensors.items() if values is None}
        if nothing:
            results = dict.fromkeys(nothing, Result("nothing"))
            yield Cause(kind, {"returned": "nothing comparable"}, change=replaced(nothing), results=results)
        given = {n: values for n, values in tensors.items() if values is not None}
        zeros = {n: Predicted(np.zeros_like(v), EXACT) for n, v in given.items() if v.size and not v.any()}
        if zeros:
            results = dict.fromkeys(zeros, Result("0"))
            yield Cause(kind, {"returned": "zeros"}, change=replaced(zeros), results=results)


def resized(origin: KernelExplanation) -> Iterator[Cause]:
    """The result of an option at its default, which has another shape."""
    params, base, shapes = origin.evaluator.case.params, origin.evaluator.base, origin.evaluator.shapes
    returned = {n: v.shape for n, v in origin.observed.items() if v is not None}
    if not any(n in returned and p.values is not None and p.values.shape != returned[n] for n, p in base.items()):
        return
    for option in fields(params):
        if (
            option.default is MISSING
            or option.metadata.get("implied")
            or getattr(params, option.name) == option.default
        ):
            continue
        usual = {option.name: option.default}
        try:
            after = origin.evaluator.op.infer_shapes(replace(params, **usual), shapes).outputs
        except ValueError:
            continue
        if all(after.get(n, shape) == shape for n, shape in returned.items()):
            yield Cause("option-ignored", {**usual, "shape": "as returned"}, Alteration(params=usual))


def stale(origin: KernelExplanation) -> Iterator[Cause]:
    """An input's values, unchanged."""
    evaluator = origin.evaluator
    sources: dict[str, str] = {}
    copies: dict[str, Predicted] = {}
    for name in origin.wrong:
        values = origin.observed.get(name)
        if values is None or values.size < NO_COINCIDENCE - 1 or not values.any():
            continue
        for source, given in evaluator.inputs.items():
            if given.shape == values.shape and np.array_equal(given.astype(values.dtype), values):
                sources[name], copies[name] = source, Predicted(values, EXACT)
    if sources and evaluator.universal:
        yield Cause("stale", {"equals": sources}, change=replaced(copies))
    elif sources:
        edits = (Edit((), name, RETURNED, value=("instead", ("input", source))) for name, source in sources.items())
        yield Cause("stale", {"equals": sources}, Alteration(edits=tuple(edits)))


def coarse(origin: KernelExplanation) -> Iterator[Cause]:
    """Every value is exact in a lower precision: rounded at the end, or computed in it."""
    digits = DIGITS[origin.evaluator.dtype]
    for target in (target for target in FORMATS.values() if target.digits < digits):
        names = computed_in(origin, target.name)
        if names:
            shown = {"format": target.name, "every_value_is_of_this_format": names}
            stored, computed = narrowed(names, target, digits, ROUNDED_ONCE)
            results = dict.fromkeys(names, Result(f"rounded_to({{}}, {target.name})"))
            for change, weight in ((stored, 1.0), (computed, 1.5)):
                yield Cause(
                    "reduced-precision",
                    shown,
                    change=change,
                    weight=weight,
                    shown_by="values that the lower precision cannot represent",
                    portable=False,
                    results=results,
                )


def computed_in(origin: KernelExplanation, target: str) -> list[str]:
    """The wrong tensors that are exact in a lower precision; those of few values only beside others of many."""
    names = [n for n in origin.wrong if lies_on(origin.observed.get(n), origin.prediction[n], target)]
    few = {
        n: values
        for n in origin.wrong
        if (values := origin.observed.get(n)) is not None and values.size <= NO_COINCIDENCE
    }
    return [*names, *(n for n, values in few.items() if names and on_grid(values.astype(np.float64), FORMATS[target]))]


def lies_on(values: Array | None, predicted: Predicted, target: str) -> bool:
    """Whether a tensor with many different values is exact in a format in which its prediction is not."""
    if values is None or values.size <= NO_COINCIDENCE or predicted.values is None or predicted.coarse:
        return False
    if not on_grid(values.astype(np.float64, copy=False), FORMATS[target]):
        return False
    varied = np.unique(values).size >= min(values.size / 2, VARIED)
    return varied and not on_grid(predicted.values.astype(np.float64, copy=False), FORMATS[target])


def fits_scaled(values: Array, predicted: Predicted) -> float | None:
    """The factor that brings a prediction within the error bound, if any."""
    factor = best_factor(values, predicted)
    if values.size < NO_COINCIDENCE or factor is None or not 1 / EXTREME < abs(factor) < EXTREME:
        return None
    return factor if ratio(values, predicted.times(factor)) < ERROR_BOUND else None


def with_factor(evaluator: Evaluator, cause: Cause, factors: Mapping[str, float]) -> Iterator[Causes]:
    """A change with the additional factors that its tensors need, named if they have a meaning."""
    for value in dict.fromkeys(factors.values()):
        names = [n for n, f in factors.items() if near(f, value)]
        named = [factor_cause(row, names) for row in named_factors(evaluator, names[0]) if near(value, row.value)]
        yield from ((cause, factor) for factor in named or [factor_cause(Factor("scaled", value), names)])


def near(factor: float, other: float) -> bool:
    """Whether two factors are about the same."""
    return abs(factor - other) <= SAME_FACTOR * abs(other)


@dataclass(frozen=True)
class Factor:
    """A number that multiplies a tensor, with the id of the cause. `number` is its text; `how` relates it to the counts
    in `labels`, if it is derived from one."""

    id: str
    value: float
    number: str = UNNAMED
    how: str = ""
    labels: tuple[str, ...] = ()

    @property
    def meaning(self) -> str:
        """In words, with the first labels."""
        over = f"{self.how} " if self.how in (MEAN, SUM) else ""
        return f"{self.number}: {over}{' or '.join(self.labels[:MOST_LABELS])}" if self.labels else self.number

    @property
    def form(self) -> str:
        """A multiple of an expression."""
        if self.value == -1:
            return "-{}"
        return f"{self.number if self.number[-1].isdigit() and self.number[0].isdigit() else short(self.value)} * {{}}"

    @property
    def counted(self) -> frozenset[str]:
        """The meanings of a factor that do not depend on sizes."""
        return frozenset(f"{self.how} {label}" for label in self.labels)


MEAN, SUM = "a mean over", "a sum over"


def factor_cause(factor: Factor, names: Sequence[str]) -> Cause:
    """The cause that multiplies some tensors."""
    plain = FACTOR_WEIGHT if factor.number in PLAIN and not factor.labels else 0.0
    weight = UNNAMED_WEIGHT if factor.number == UNNAMED else plain
    parameters = {"factor": factor.value, "meaning": factor.meaning}
    change, results = multiplied(names, factor.value), dict.fromkeys(names, Result(factor.form))
    return Cause(factor.id, parameters, change=change, weight=weight, counted=factor.counted, results=results)


def recounted(cause: Cause, evaluator: Evaluator, seen: Collection[str]) -> Cause:
    """A factor, with the meanings that remain where all sizes differ."""
    for factor in (row for name in evaluator.base for row in named_factors(evaluator, name)):
        left = tuple(label for label in factor.labels if f"{factor.how} {label}" in seen)
        if left and factor.meaning == cause.parameters.get("meaning"):
            return replace(cause, parameters={**cause.parameters, "meaning": replace(factor, labels=left).meaning})
    return cause


def scaled(origin: KernelExplanation) -> Iterator[Cause]:
    """A factor for every wrong tensor, together with all others with the same one; named ones first."""
    observed, prediction = origin.observed, origin.prediction
    best = {name: best_factor(observed.get(name), prediction[name]) for name in origin.wrong}
    factors = {name: factor for name, factor in best.items() if factor is not None}
    named: dict[Factor, list[str]] = {}
    for name, factor in factors.items():
        for row in named_factors(origin.evaluator, name):
            limit = origin.left[name] / BETTER
            if near(factor, row.value) and ratio(observed.get(name), prediction[name].times(row.value)) < limit:
                named.setdefault(row, []).append(name)
    for row, names in named.items():
        yield factor_cause(row, names)
    for names in groups(factors):
        value = factors[names[0]]
        n_elements = sum(values.size for n in names if (values := observed[n]) is not None)
        inside = all(ratio(observed[n], prediction[n].times(value)) < ERROR_BOUND for n in names)
        if n_elements >= NO_COINCIDENCE and inside and 1 / EXTREME < abs(value) < EXTREME:
            yield factor_cause(Factor("scaled", value), names)


def groups(factors: Mapping[str, float]) -> Iterator[list[str]]:
    """Tensors with about the same factor, together."""
    waiting = list(factors)
    while waiting:
        group = [n for n in waiting if near(factors[n], factors[waiting[0]])]
        yield group
        waiting = [n for n in waiting if n not in group]


def best_factor(values: Array | None, predicted: Predicted) -> float | None:
    """The factor that brings `predicted` closest to `values` (least squares)."""
    if values is None or predicted.values is None or values.shape != predicted.values.shape:
        return None
    usable = np.isfinite(values) & np.isfinite(predicted.values)
    exact = predicted.values[usable]
    power = float(np.sum(exact * exact))
    factor = float(np.sum(exact * values[usable])) / power if power > 0 else math.nan
    return factor if math.isfinite(factor) else None


def named_factors(evaluator: Evaluator, name: str) -> Iterator[Factor]:
    """Factors with a meaning for a tensor: signs, doubling, and numbers of summed elements."""
    yield Factor("sign-flipped", -1.0, "the opposite sign")
    yield Factor("scaled", 2.0, DOUBLED if evaluator.is_gradient(name) else "2")
    yield Factor("scaled", 0.5, "1/2")
    values = evaluator.base[name].values
    for labels, count in element_counts(evaluator, () if values is None else values.shape).items():
        if count > 1:
            yield Factor("mean-vs-sum", 1.0 / count, f"1/{count}", MEAN, labels)
            yield Factor("mean-vs-sum", float(count), f"{count}", SUM, labels)
            yield Factor("scaled", count**0.5, f"the root of {count}", "the root of", labels)
            yield Factor("scaled", count**-0.5, f"one over the root of {count}", "one over the root of", labels)
            yield Factor("scaled", count / (count - 1.0), f"{count}/{count - 1}", "n / (n - 1):", labels)
            yield Factor("scaled", (count - 1.0) / count, f"{count - 1}/{count}", "(n - 1) / n:", labels)


def element_counts(evaluator: Evaluator, shape: Shape) -> dict[tuple[str, ...], int]:
    """How many elements may have been summed into one of a tensor of this shape, over axes of the data or of
    grad_output; the sum over all missing axes comes first."""
    given = {n: v for n, v in evaluator.inputs.items() if evaluator.op.is_grad_output(n) or n == evaluator.op.data}
    counts: dict[int, list[str]] = {}
    for name, values in given.items():
        counts.setdefault(values.size // max(1, prod(shape)), []).append(f"the summed elements of {name}")
    for name, values in given.items():
        for axes in chain.from_iterable(combinations(range(values.ndim), n + 1) for n in range(values.ndim)):
            words = "axis" if len(axes) == 1 else "axes"
            where = f"{words} {', '.join(map(str, axes))} of {name}"
            counts.setdefault(prod(values.shape[a] for a in axes), []).append(where)
    return {tuple(labels): count for count, labels in counts.items()}


def exchanged(origin: KernelExplanation) -> Iterator[Causes]:
    """Another gradient, or a multiple of it, in place of the right one; or another tensor in place of an output."""
    is_gradient, prediction = origin.evaluator.is_gradient, origin.prediction
    yield from exchanged_outputs(origin)
    sources: dict[str, str] = {}
    factors: dict[str, float] = {}
    for name in filter(is_gradient, origin.wrong):
        values = origin.observed.get(name)
        if values is None:
            continue
        peers = {n: p for n, p in prediction.items() if n != name and is_gradient(n) and comparable(p, values)}
        others = {n: ratio(values, p) for n, p in peers.items()}
        nearest = min(others, key=others.__getitem__, default=None)
        if nearest is not None and others[nearest] < origin.left[name] / BETTER:
            sources[name] = nearest
            continue
        multiples = {n: f for n, p in peers.items() if (f := fits_scaled(values, p)) is not None}
        if multiples:
            sources[name], factors[name] = next(iter(multiples.items()))
    if sources:
        cause = Cause("swapped-gradients", {"holds": sources}, change=renamed(sources), results=taken(sources))
        yield from with_factor(origin.evaluator, cause, factors) if factors else ((cause,),)


def exchanged_outputs(origin: KernelExplanation) -> Iterator[Causes]:
    """Two tensors exchanged, at least one of which is not a gradient."""
    evaluator, prediction = origin.evaluator, origin.prediction
    given = {name: values for name in origin.wrong if (values := origin.observed.get(name)) is not None}
    for one, other in combinations(given, 2):
        if evaluator.is_gradient(one) and evaluator.is_gradient(other):
            continue
        held = {one: other, other: one}
        pairs = [(given[name], prediction[source]) for name, source in held.items()]
        if all(comparable(predicted, values) and ratio(values, predicted) < ERROR_BOUND for values, predicted in pairs):
            yield (Cause("swapped-outputs", {"holds": held}, change=renamed(held), results=taken(held)),)


def renamed(held: Mapping[str, str]) -> Change:
    """The change that gives tensors the predictions of others."""
    return lambda prediction: {**prediction, **{name: prediction[other] for name, other in held.items()}}


def taken(held: Mapping[str, str]) -> dict[str, Result]:
    """Tensors with the reference's expressions for others."""
    return {name: Result("{}", other) for name, other in held.items()}


def comparable(predicted: Predicted, values: Array) -> bool:
    """Whether a prediction has the shape of these values and exceeds rounding around zero."""
    exact = predicted.values
    return exact is not None and exact.shape == values.shape and size(exact).rms > predicted.envelope.rms
