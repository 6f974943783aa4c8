"""The cause of a stage that is outside: each hypothesis is computed at every probe, and accepted where it leaves
rounding at all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

import numpy as np

from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF, Envelope, size
from parity.judge.diagnose.causes import is_float32, newton
from parity.judge.diagnose.search import CLEAR, CLEARER
from parity.training.cost import cost
from parity.training.judge.fits import Number, numbers
from parity.training.judge.hypotheses import Hypothesis, other_value, standing
from parity.training.judge.oracle import NOTHING, Array, Changes, Probe, StepOracle, UnknownError
from parity.training.judge.proposals import proposals
from parity.training.judge.stages import KINDS, Measured, measure, ratio, shown

REFINED = 1e3
"""Up to here a hypothesis that leaves too much is measured again by careful code that does the same."""
PAIRED = 6
"""So many of those that help most are tried together with every other one."""
SEARCH_S = 60.0
"""So many seconds of passes through the model, about, are spent on the hypotheses of a stage."""
PLAIN = 0.25
"""Who asks nothing of the model, fits no factor, and leaves rounding, is believed before its layers are tried."""
MAX_PAIR_WORK = 1 << 24
"""Elements of a stage, times the pairs of hypotheses, up to which all pairs are tried."""
BAND = 8.0
MISSED = 1.0
"""What it costs to believe that a cause is not at work in a step in which it would show."""


@dataclass(frozen=True)
class Outside:
    """A probe at which a stage is outside, under the causes that are known already."""

    probe: Probe
    measured: Measured


@dataclass(frozen=True)
class Explanation:
    """A hypothesis, the worst ratio that it leaves, and the steps at which it would show and does not."""

    hypothesis: Hypothesis
    left: float
    missed: tuple[int, ...] = ()

    @property
    def explains(self) -> bool:
        """Whether it leaves rounding."""
        return self.left < OFF

    @property
    def weight(self) -> float:
        """How much has to be believed."""
        return self.hypothesis.weight + MISSED * bool(self.missed)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Smaller is better."""
        return (not self.explains, self.weight, self.left)


@dataclass(frozen=True)
class Found:
    """The best explanation, others that explain as much, and the best of those that do not."""

    best: Explanation | None
    rivals: tuple[Explanation, ...] = ()
    second: Explanation | None = None
    n_tried: int = 0


@dataclass(frozen=True)
class Question:
    """What is searched: a stage of one side, the probes outside and inside, and what is known to be changed already."""

    stage: str
    outside: Sequence[Outside]
    inside: Sequence[Outside]
    known: Changes = NOTHING
    ranks: int = 1
    also: tuple[str, ...] = field(default_factory=tuple)
    """Other stages whose hypotheses compete, since the mode does not show theirs."""


def search(oracle: StepOracle, question: Question) -> Found:
    """The cause of a stage that is outside at some probes."""
    first = question.outside[0]
    stages, given = (question.stage, *question.also), (oracle.training, question.ranks, oracle.dtype)
    candidates = [hypothesis for stage in stages for hypothesis in standing(stage, *given)]
    candidates += proposals(question.stage, first.probe, first.measured)
    tried = [explanation(oracle, question, h) for h in candidates if not h.changes.model]
    if not any(e.explains and e.weight <= PLAIN for e in tried):
        dear = sorted((h for h in candidates if h.changes.model), key=lambda h: h.weight)
        tried += [explanation(oracle, question, h) for h in dear[: affordable(oracle)]]
    if not any(e.explains for e in tried):
        tried += [explanation(oracle, question, h) for h in fitted(oracle, question, first)]
    if not any(e.explains for e in tried):
        tried += pairs(oracle, question, tried, first)
    ranked = sorted(tried, key=lambda e: e.rank)
    good = [e for e in ranked if e.explains]
    rest = next((e for e in ranked if not e.explains and e.left < first.measured.worst / 2), None)
    if not good:
        return Found(None, (), rest, len(tried))
    best = good[0]
    rivals = [e for e in good[1:] if e.hypothesis.id != best.hypothesis.id and is_rival(best, e)]
    return Found(best, tuple(one_of_each(rivals)), rest, len(tried))


def affordable(oracle: StepOracle) -> int:
    """How many passes through the model there is time for."""
    return max(1, int(SEARCH_S / cost(oracle.training)))


def one_of_each(explanations: Sequence[Explanation]) -> Iterator[Explanation]:
    """The first of every id."""
    found = {e.hypothesis.id: e for e in reversed(explanations)}
    yield from reversed(found.values())


def is_rival(best: Explanation, other: Explanation) -> bool:
    """Whether the probes cannot tell two explanations apart."""
    return other.weight <= best.weight and (other.left < CLEAR or other.left < CLEARER * best.left)


def pairs(oracle: StepOracle, question: Question, tried: Sequence[Explanation], first: Outside) -> list[Explanation]:
    """Two causes together: those that help most with all others, and where that is cheap all plain ones."""
    helping = sorted((e for e in tried if helps(oracle, question, e, first)), key=lambda e: e.left)
    couples = [(one.hypothesis, other.hypothesis) for one in helping[:PAIRED] for other in tried]
    plain = [e.hypothesis for e in tried if not e.weight and not e.hypothesis.changes.model]
    if sum(v.size for v in first.measured.exact.values()) * len(plain) ** 2 <= MAX_PAIR_WORK:
        couples += combinations(plain, 2)
    both = [one.with_(other) for one, other in couples if one.id != other.id and not other.lossy]
    return [explanation(oracle, question, hypothesis) for hypothesis in both]


def fitted(oracle: StepOracle, question: Question, first: Outside) -> Iterator[Hypothesis]:
    """Each number of the optimizer with the value with which its step comes nearest, unless that is the right one."""
    for number in numbers(oracle.training) if question.stage == "update" else ():
        value = nearest(oracle, question, first, number)
        if value is not None and value != number.asked and not is_float32(value, number.asked):
            yield replace(other_value(number, value), weight=1.0)


def nearest(oracle: StepOracle, question: Question, first: Outside, number: Number) -> float | None:
    """The value of a number that leaves least of a step; None where nothing can be computed."""
    measured = first.measured

    def residuals(value: float) -> Array | None:
        found = predict(oracle, question, other_value(number, value), first)
        if found is None:
            return None
        left = [np.ravel((measured.observed[n] - found[n]) / (e.rms or 1.0)) for n, e in measured.envelopes.items()]
        joined = np.concatenate(left).astype(np.float64)
        return joined if np.isfinite(joined).all() else None

    tried = [(float(np.linalg.norm(left)), v) for v in number.coarse if (left := residuals(v)) is not None]
    if not tried:
        return None
    least, value = min(tried)
    better = newton(residuals, value) if value else 0.0
    left = residuals(better)
    return better if left is not None and float(np.linalg.norm(left)) < least else value


def helps(oracle: StepOracle, question: Question, explained: Explanation, first: Outside) -> bool:
    """Whether a hypothesis brings some tensor inside, or leaves much less."""
    if explained.hypothesis.lossy:
        return False
    try:
        left = predicted_ratios(oracle, question, explained.hypothesis, first)
    except UnknownError:
        return False
    base = first.measured.ratios
    return any(base[n] >= OFF > r for n, r in left.items()) or score(left) < score(base) - 1


def score(ratios: Mapping[str, float]) -> float:
    """How much is left, in powers of two beyond rounding."""
    return sum(math.log2(min(max(r, OFF), 2.0**60) / OFF) for r in ratios.values())


def explanation(oracle: StepOracle, question: Question, hypothesis: Hypothesis) -> Explanation:
    """What a hypothesis leaves at the probes, as far as it explains the first ones."""
    known: list[float] = []
    for outside in question.outside:
        left = residual(oracle, question, hypothesis, outside)
        known += [] if left is None else [left]
        if left is not None and left >= OFF:
            break
    if not known or max(known) >= OFF:
        return Explanation(hypothesis, max(known, default=math.inf))
    rest = {o.probe.step: residual(oracle, question, hypothesis, o) for o in question.inside}
    missed = [step for step, left in rest.items() if left is not None and left >= OFF]
    return Explanation(hypothesis, max(known), tuple(missed))


def residual(oracle: StepOracle, question: Question, hypothesis: Hypothesis, outside: Outside) -> float | None:
    """The worst ratio that a hypothesis leaves at one probe; None where the records cannot tell."""
    try:
        return (
            in_band(oracle, question, hypothesis, outside)
            if hypothesis.lossy
            else refined(oracle, question, hypothesis, outside)
        )
    except UnknownError:
        return None


def refined(oracle: StepOracle, question: Question, hypothesis: Hypothesis, outside: Outside) -> float:
    """The worst ratio, by the envelope of careful code that does the same where that of the recipe is too narrow."""
    worst = max(predicted_ratios(oracle, question, hypothesis, outside).values(), default=math.inf)
    if OFF <= worst < min(REFINED, outside.measured.worst / 2):
        changes = question.known.with_(hypothesis.changes)
        measured = measure(oracle, question.stage, outside.probe, changes)
        return worst if measured is None else min(worst, measured.worst)
    return worst


def predicted_ratios(
    oracle: StepOracle, question: Question, hypothesis: Hypothesis, outside: Outside
) -> dict[str, float]:
    """The ratio of every tensor against what a hypothesis predicts, by the envelope of the recipe; none where it
    predicts nothing."""
    predicted = predict(oracle, question, hypothesis, outside)
    if predicted is None:
        return {}
    measured, unit = outside.measured, UNIT_ROUNDOFF[oracle.dtype]
    found = {}
    for name, observed in measured.observed.items():
        theirs, ours = size(predicted[name]), size(measured.exact[name])
        envelope = measured.envelopes[name].scaled(max(1.0, theirs.rms / ours.rms if ours.rms else 1.0))
        envelope = envelope.joined(Envelope(unit * theirs.rms, unit * theirs.max))
        found[name] = ratio(observed, predicted[name], envelope)
    return found


def predict(
    oracle: StepOracle, question: Question, hypothesis: Hypothesis, outside: Outside
) -> dict[str, np.ndarray] | None:
    """What the stage would be; None where the lines refuse, or give something of another shape. Raises UnknownError."""
    try:
        found = oracle.answer(question.stage, outside.probe, question.known.with_(hypothesis.changes))
    except IncompatibleError:
        return None
    exact = outside.measured.exact
    fits = all(name in found and found[name].shape == values.shape for name, values in exact.items())
    return found if fits else None


def in_band(oracle: StepOracle, question: Question, hypothesis: Hypothesis, outside: Outside) -> float:
    """For what loses digits: how far the sizes of the errors are from what it loses, for the tensor in the middle; inf
    where one is much further, or it loses nothing. A tensor that is all error says nothing."""
    predicted = predict(oracle, question, hypothesis, outside)
    if predicted is None:
        return math.inf
    found = []
    for name in (name for name, base in outside.measured.ratios.items() if base >= OFF):
        exact, finite = outside.measured.exact[name], math.isfinite(outside.measured.ratios[name])
        lost = size(predicted[name] - exact).rms
        error = size(outside.measured.observed[name].astype(exact.dtype) - exact).rms
        if lost < size(exact).rms or not finite:
            found.append(max(error / lost, lost / error) if finite and lost and error else math.inf)
    return median(found) if found and max(found) < BAND**2 and median(found) < BAND else math.inf


def competing(stage: str, probe: Probe) -> tuple[str, ...]:
    """The stages before that the side does not show, so that their causes appear in this one."""
    before = {"update": ("clip", "gradient"), "clip": ("gradient",), "loss": ("forward",)}.get(stage, ())
    found = []
    for other in before:
        if shown(other, probe):
            break
        found.append(other)
    return tuple(found)


__all__ = ["KINDS", "Explanation", "Found", "Outside", "Question", "competing", "explanation", "search"]
