"""The cause of a stage that is outside: each hypothesis is computed at every probe, and accepted where it leaves
rounding at all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

import numpy as np

from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF, Envelope, size
from parity.judge.diagnose.explanation import CLEAR
from parity.judge.diagnose.fits import is_float32, newton
from parity.judge.diagnose.search import CLEARER
from parity.training.cost import cost
from parity.training.judge.hypotheses import STARTS, Hypothesis, OptimizerNumber, numbers, standing
from parity.training.judge.measured import Measured, measure, ratio, shown
from parity.training.judge.oracle import NOTHING, Array, Changes, StepOracle, UnknownError
from parity.training.judge.proposals import proposals
from parity.training.records import StepRecord

REFINED = 1e3
"""Up to here a hypothesis that leaves too much is measured again with its own envelope."""
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
HIDING = {"update": ("clip", "gradient"), "clip": ("gradient",), "loss": ("forward",)}
"""The stages before, the last first, whose causes appear in a stage where the mode does not show theirs."""


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
class StageFault:
    """A stage that is outside and no consequence of an earlier one: where, by how much, and why.

    `tensors` are those outside at the first step, the worst first. `best` explains it, `rivals` explain as much, and
    `second` is the best of those that do not.
    """

    stage: str
    steps: tuple[int, ...]
    tensors: tuple[str, ...]
    ratio: float
    best: Explanation | None = None
    rivals: tuple[Explanation, ...] = ()
    second: Explanation | None = None
    n_tried: int = 0

    @property
    def first(self) -> int:
        """The first step outside."""
        return self.steps[0]

    @property
    def causes(self) -> tuple[Hypothesis, ...]:
        """The hypotheses that explain it together; none where nothing does."""
        return () if self.best is None else self.best.hypothesis.parts or (self.best.hypothesis,)

    def explained(self, tried: Sequence[Explanation]) -> StageFault:
        """With the best of what was tried, if it explains the fault, and its rivals, one of each diagnosis."""
        good = sorted((e for e in tried if e.explains), key=lambda e: e.rank)
        rivals = {e.hypothesis.id: e for e in reversed(good[1:]) if is_rival(good[0], e)}
        return replace(self, best=good[0], rivals=tuple(reversed(rivals.values()))) if good else self


def is_rival(best: Explanation, other: Explanation) -> bool:
    """Whether the probes cannot tell two diagnoses apart."""
    clear = other.left >= CLEAR and other.left >= CLEARER * best.left
    return other.hypothesis.id != best.hypothesis.id and other.weight <= best.weight and not clear


class StageSearch:
    """Looks for the cause of one stage of one backend: `outside` and `inside` are its probes, measured under what is
    `known` to be changed already."""

    def __init__(
        self,
        oracle: StepOracle,
        stage: str,
        outside: Sequence[Measured],
        inside: Sequence[Measured] = (),
        known: Changes = NOTHING,
        ranks: int = 1,
    ) -> None:
        self.oracle, self.stage, self.known, self.ranks = oracle, stage, known, ranks
        self.outside, self.inside, self.first = outside, inside, outside[0]

    def explain(self, fault: StageFault) -> StageFault:
        """The fault with its cause: standing hypotheses and proposals, then fitted numbers, then pairs."""
        stages = (self.stage, *hidden_before(self.stage, self.first.probe))
        given = self.oracle.training, self.ranks, self.oracle.dtype
        candidates = [hypothesis for stage in stages for hypothesis in standing(stage, *given)]
        candidates += proposals(self.stage, self.first)
        tried = [self.explanation(h) for h in candidates if not h.changes.model]
        if not any(e.explains and e.weight <= PLAIN for e in tried):
            n_affordable = max(1, int(SEARCH_S / cost(self.oracle.training)))
            slow = sorted((h for h in candidates if h.changes.model), key=lambda h: h.weight)
            tried += [self.explanation(h) for h in slow[:n_affordable]]
        if not any(e.explains for e in tried):
            tried += [self.explanation(h) for h in self.fitted()]
        if not any(e.explains for e in tried):
            tried += [self.explanation(h) for h in self.pairs(tried)]
        helping = [e for e in tried if not e.explains and e.left < self.first.worst / 2]
        second = min(helping, key=lambda e: e.rank, default=None)
        return replace(fault.explained(tried), second=second, n_tried=len(tried))

    def explanation(self, hypothesis: Hypothesis) -> Explanation:
        """What a hypothesis leaves at the probes, as far as it explains the first ones."""
        left: list[float] = []
        for measured in self.outside:
            here = self.residual(hypothesis, measured)
            left += [] if here is None else [here]
            if here is not None and here >= OFF:
                break
        if not left or max(left) >= OFF:
            return Explanation(hypothesis, max(left, default=math.inf))
        inside = {measured.probe.step: self.residual(hypothesis, measured) for measured in self.inside}
        missed = [step for step, here in inside.items() if here is not None and here >= OFF]
        return Explanation(hypothesis, max(left), tuple(missed))

    def residual(self, hypothesis: Hypothesis, measured: Measured) -> float | None:
        """The worst ratio that a hypothesis leaves at one probe, by its own envelope where that of the recipe is too
        narrow; None where the records cannot tell."""
        try:
            if hypothesis.lossy:
                return self.out_of_band(hypothesis, measured)
            worst = max(self.ratios(hypothesis, measured).values(), default=math.inf)
            if OFF <= worst < min(REFINED, measured.worst / 2):
                changes = self.known.with_(hypothesis.changes)
                own = measure(self.oracle, self.stage, measured.probe, changes)
                return worst if own is None else min(worst, own.worst)
            return worst
        except UnknownError:
            return None

    def predict(self, hypothesis: Hypothesis, measured: Measured) -> Mapping[str, Array] | None:
        """What the stage would be; None where the oracle refuses, or gives another shape. Raises UnknownError."""
        try:
            predicted = self.oracle.answer(self.stage, measured.probe, self.known.with_(hypothesis.changes))
        except IncompatibleError:
            return None
        fits = all(n in predicted and predicted[n].shape == v.shape for n, v in measured.exact.items())
        return predicted if fits else None

    def ratios(self, hypothesis: Hypothesis, measured: Measured) -> dict[str, float]:
        """The ratio of every tensor against what a hypothesis predicts, by the envelope of the recipe; none where it
        predicts nothing."""
        predicted = self.predict(hypothesis, measured)
        if predicted is None:
            return {}
        unit, ratios = UNIT_ROUNDOFF[self.oracle.dtype], {}
        for name, observed in measured.observed.items():
            theirs, ours = size(predicted[name]), size(measured.exact[name])
            envelope = measured.envelopes[name].scaled(max(1.0, theirs.rms / ours.rms if ours.rms else 1.0))
            envelope = envelope.joined(Envelope(unit * theirs.rms, unit * theirs.max))
            ratios[name] = ratio(observed, predicted[name], envelope)
        return ratios

    def out_of_band(self, hypothesis: Hypothesis, measured: Measured) -> float:
        """For what loses digits: how far the sizes of the errors are from what it loses, for the tensor in the middle;
        inf where one is much further, or it loses nothing. A tensor that is all error says nothing."""
        predicted = self.predict(hypothesis, measured)
        if predicted is None:
            return math.inf
        apart = []
        for name in measured.tensors_outside:
            exact, finite = measured.exact[name], math.isfinite(measured.ratios[name])
            lost = size(predicted[name] - exact).rms
            error = size(measured.observed[name].astype(exact.dtype) - exact).rms
            if lost < size(exact).rms or not finite:
                apart.append(max(error / lost, lost / error) if finite and lost and error else math.inf)
        return median(apart) if apart and max(apart) < BAND**2 and median(apart) < BAND else math.inf

    def pairs(self, tried: Sequence[Explanation]) -> Iterator[Hypothesis]:
        """Two causes together: those that help most with all others, and where that is cheap all plain ones."""
        helping = sorted(filter(self.helps, tried), key=lambda e: e.left)
        couples = [(one.hypothesis, other.hypothesis) for one in helping[:PAIRED] for other in tried]
        plain = [e.hypothesis for e in tried if not e.weight and not e.hypothesis.changes.model]
        if sum(v.size for v in self.first.exact.values()) * len(plain) ** 2 <= MAX_PAIR_WORK:
            couples += combinations(plain, 2)
        yield from (one.with_(other) for one, other in couples if one.id != other.id and not other.lossy)

    def helps(self, explanation: Explanation) -> bool:
        """Whether a hypothesis brings some tensor inside, or leaves much less."""
        if explanation.hypothesis.lossy:
            return False
        try:
            left = self.ratios(explanation.hypothesis, self.first)
        except UnknownError:
            return False
        before = self.first.ratios
        return any(before[n] >= OFF > r for n, r in left.items()) or score(left) < score(before) - 1

    def fitted(self) -> Iterator[Hypothesis]:
        """Each number of the optimizer with the value that fits its step best, unless that is the right one."""
        for number in numbers(self.oracle.training) if self.stage == "update" else ():
            value = self.nearest(number)
            if value is not None and value != number.asked and not is_float32(value, number.asked):
                yield replace(number.other(value), weight=1.0)

    def nearest(self, number: OptimizerNumber) -> float | None:
        """The value of a number that leaves least of a step; None where nothing can be computed."""
        first = self.first

        def residuals(value: float) -> Array | None:
            predicted = self.predict(number.other(value), first)
            if predicted is None:
                return None
            left = [np.ravel((first.observed[n] - predicted[n]) / (e.rms or 1.0)) for n, e in first.envelopes.items()]
            joined = np.concatenate(left).astype(np.float64)
            return joined if np.isfinite(joined).all() else None

        def distance(value: float) -> float:
            left = residuals(value)
            return math.inf if left is None else float(np.linalg.norm(left))

        value = min(STARTS[number.name], key=distance)
        if distance(value) == math.inf:
            return None
        better = newton(residuals, value) if value else 0.0
        return better if distance(better) < distance(value) else value


def hidden_before(stage: str, probe: StepRecord) -> tuple[str, ...]:
    """The stages right before that the backend does not show, so that their causes appear in this one."""
    stages = HIDING.get(stage, ())
    n_hidden = next((i for i, other in enumerate(stages) if shown(other, probe)), len(stages))
    return stages[:n_hidden]


def score(ratios: Mapping[str, float]) -> float:
    """How much is left, in powers of two beyond rounding."""
    return sum(math.log2(min(max(r, OFF), 2.0**60) / OFF) for r in ratios.values())
