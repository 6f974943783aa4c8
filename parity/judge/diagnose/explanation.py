"""An explanation: one or more causes, the prediction that follows, and the error ratios that remain.

A cause may hold for some tensors only: the forward pass can be wrong and the backward pass right. An explanation is
complete if every tensor lies within the error bound of its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import ERROR_BOUND, Array, size
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Predicted, Prediction, ratio, ratios, worst
from parity.judge.diagnose.expressions import expression_of

BAND = 1000.0
"""An unstable algorithm explains errors of at least this part of its own."""
MAX_BURDEN = 2.75
"""At most one fitted number, or one local error: several of them together explain anything."""
COST = 2.0
EXCEPTION_COST = 0.25
SHARED_EXCEPTION_COST = 1.0
"""A wrong statistic changes every tensor, so an exception to it costs more."""
MUCH_WORSE = 16.0
CLEAR = 2.0
MAX_REFINED = 1e6


@dataclass(frozen=True, eq=False)
class KernelExplanation:
    """Causes for what was `observed`, the `prediction` that follows, the error ratios that are `left`.

    `exceptions` counts the tensors for which a cause was waived. The errors of the tensors in `exact` are the same in
    every precision, so a loss of precision does not explain them.
    """

    evaluator: Evaluator
    observed: Observed
    prediction: Prediction
    left: Mapping[str, float]
    causes: tuple[Cause, ...] = ()
    exceptions: int = 0
    exact: frozenset[str] = frozenset()

    @property
    def wrong(self) -> list[str]:
        """The tensors whose error exceeds the bound."""
        return [name for name, value in self.left.items() if value >= ERROR_BOUND]

    @property
    def explains(self) -> bool:
        """Whether every tensor lies within the error bound, without too many fitted numbers."""
        burdens = (sum(c.weight for c in self.causes if c.only == only) for only in {c.only for c in self.causes})
        return max(burdens, default=0.0) <= MAX_BURDEN and all(value < ERROR_BOUND for value in self.left.values())

    @property
    def score(self) -> float:
        """The remaining error in powers of two, as far as it is not a coincidence."""
        return sum(math.log2(min(max(value, CLEAR), 2.0**60)) for value in self.left.values())

    def improves(self, origin: KernelExplanation) -> bool:
        """Whether it leaves less than `origin`."""
        return self.score < origin.score - 1

    @property
    def weight(self) -> float:
        """The total weight of its causes."""
        shared = any(cause.shared for cause in self.causes)
        exception = SHARED_EXCEPTION_COST if shared else EXCEPTION_COST
        return sum(COST + cause.weight for cause in self.causes) + exception * self.exceptions

    @property
    def plain(self) -> bool:
        """Whether nothing is fitted, and no range of error sizes is assumed."""
        return not any(cause.weight for cause in self.causes)

    @property
    def rank(self) -> tuple[float, float, int, float]:
        """Sort key, smaller is better: complete explanations by weight, a formula before a change of its result, few
        options before many."""
        changes = sum(max(0, len(c.alteration.params) - 1) if c.alteration else 1 for c in self.causes)
        return (0.0 if self.explains else self.score, self.weight, changes, worst(self.left.values()))

    @property
    def ids(self) -> frozenset[str]:
        """The ids of its causes."""
        return frozenset(cause.id for cause in self.causes)

    @property
    def alteration(self) -> Alteration:
        """The alterations of all its causes together."""
        return together(self.causes)

    def expression(self, cause: Cause) -> str:
        """The expression that one of the causes changes, given those before it; "" if it changes none."""
        before = [c for c in self.causes[: self.causes.index(cause)] if c.only == cause.only]
        return expression_of(self.evaluator, cause, together(before))

    def extended(self, *causes: Cause) -> KernelExplanation | None:
        """The explanation with more causes, one after the other; None if some contradict each other."""
        explanation: KernelExplanation | None = self
        for cause in causes:
            explanation = explanation and explanation._with(cause)
        return explanation

    def _with(self, cause: Cause) -> KernelExplanation | None:
        same = [c for c in self.causes if c.only == cause.only]
        prediction = cause.change(self.prediction) if cause.change else predicted(self.evaluator, [*same, cause])
        return None if prediction is None else self._merged(cause, concerned(prediction, cause.only))

    def _merged(self, cause: Cause, prediction: Prediction) -> KernelExplanation:
        """The explanation with `cause`, which takes from `prediction` the tensors that it explains; also those that get
        not much worse, if another cause may be missing."""
        taken, left, exceptions = dict(self.prediction), dict(self.left), self.exceptions
        comparable = {name: predicted for name, predicted in prediction.items() if name in self.left}
        for name, predicted in comparable.items():
            before, after = self.left[name], ratio(self.observed.get(name), predicted)
            # While another cause is missing, this one applies to all tensors, even if some look worse.
            partial = before >= ERROR_BOUND and after < MUCH_WORSE * before and not predicted.unstable
            if cause.lossy and before >= ERROR_BOUND and name in self.exact:
                exceptions += 1
            elif (after < ERROR_BOUND and credible(self.observed.get(name), predicted, before)) or partial:
                taken[name], left[name] = predicted, after
            elif after > max(ERROR_BOUND, before):
                exceptions += 1
        return replace(self, causes=(*self.causes, cause), prediction=taken, left=left, exceptions=exceptions)

    @property
    def is_exact(self) -> bool:
        """Whether it predicts values in any dtype, and not only the size of errors."""
        return all(cause.portable and not cause.lossy for cause in self.causes)

    def refined(self) -> KernelExplanation:
        """The explanation with the error bound of a careful implementation of its causes, where the oracle's is too
        narrow."""
        if self.explains or not self.alteration.key or not any(c.alteration for c in self.causes):
            return self
        if any(c.change for c in self.causes) or worst(self.left.values()) > MAX_REFINED:
            return self
        own = self.evaluator.own_envelopes(self.alteration)
        wider = {n: replace(p, envelope=p.envelope.joined(own.get(n, p.envelope))) for n, p in self.prediction.items()}
        return replace(self, prediction=wider, left=ratios(self.observed, wider))

    def pruned(self) -> KernelExplanation:
        """Without the causes that change nothing."""
        start = unaltered(self.evaluator, self.observed, self.exact)
        for cause in self.causes if len(self.causes) > 1 else ():
            fewer = start.extended(*(c for c in self.causes if c is not cause))
            if fewer is not None and fewer.score <= self.score:
                return fewer.pruned()
        return self


def predicted(evaluator: Evaluator, causes: Sequence[Cause]) -> Prediction | None:
    """The prediction of all causes together; None if they contradict each other."""
    combined: Prediction = {} if causes else evaluator.base
    for only in dict.fromkeys(cause.only for cause in causes):
        same = [cause for cause in causes if cause.only == only]
        try:
            prediction = evaluator.predict(together(same))
        except IncompatibleError:
            return None
        if prediction is None:
            return None
        changes = (c.change for c in same if c.change is not None)
        combined = {**combined, **concerned(reduce(lambda p, change: change(p), changes, prediction), only)}
    return combined


def concerned(prediction: Prediction, only: Collection[str]) -> Prediction:
    """The predictions of the tensors in `only`, or of all."""
    return {name: value for name, value in prediction.items() if name in only} if only else prediction


def together(causes: Sequence[Cause]) -> Alteration:
    """The alterations of all causes; IncompatibleError if some contradict each other."""
    return reduce(Alteration.with_, (c.alteration for c in causes if c.alteration is not None), Alteration())


def unaltered(evaluator: Evaluator, observed: Observed, exact: Collection[str] = ()) -> KernelExplanation:
    """The explanation without any cause."""
    return KernelExplanation(
        evaluator, observed, evaluator.base, ratios(observed, evaluator.base), exact=frozenset(exact)
    )


def credible(values: Array | None, predicted: Predicted, before: float) -> bool:
    """Whether an error that only a lossy algorithm explains is about as large as that algorithm's. If the algorithm
    overflows, the observed tensor must too."""
    if not predicted.unstable or before < ERROR_BOUND or values is None or predicted.values is None:
        return True
    if predicted.envelope.excused is not None and np.isfinite(values).all():
        return False
    error = size(values.astype(predicted.values.dtype) - predicted.values)
    return not math.isfinite(before) or error.rms * BAND >= predicted.envelope.rms
