"""Searches the causes, alone or together, that explain what a backend returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.causes import Cause, standing_causes
from parity.judge.diagnose.evaluator import Evaluator, Observed, ratio, worst
from parity.judge.diagnose.explanation import CLEAR, COST, KernelExplanation, together, unaltered
from parity.judge.diagnose.fits import fitted
from parity.judge.diagnose.locality import localized, narrow_step
from parity.judge.diagnose.patience import in_time
from parity.judge.diagnose.proposals import Causes, coarse, proposals, scaled
from parity.judge.diagnose.statistics import implies, statistics_causes

DEPTH = 3
BEAM = 6
ALIKE = 2
MAX_WORK = 1e7
"""About how many elements the predictions of one search may hold; beyond it, fewer explanations are followed."""
MAX_PAIR_WORK = 4e6
CLEARER = 3.0
"""A rival is dropped if its remaining error is at least twice the error bound and three times the best one's."""
HELPS = 1.5
"""A tensor needs a cause if the remaining error is more than 1.5 times as large without it."""


@dataclass(frozen=True)
class Sources:
    """The sources of causes: independent of the observed tensors, or suggested by them."""

    standing: Callable[[Evaluator], Sequence[Cause]] = standing_causes
    propose: Callable[[KernelExplanation], Iterable[Causes]] = proposals


OF_OPS = Sources()


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best explanation, its rivals that explain as much, and the best of those that explain less.

    `taken_from`: the dtype or the case whose causes were tried first and explain this one too. `n_predicted`: the
    number of further inputs on which the best explanation predicted the backend's results. `partial` explain a part.
    `behaviours` are faults that are not formulas, by id, with the evidence. `untried` counts the edits that the work
    budget excluded. `observed_behaviour`: the run itself shows the behaviours, so no formula is searched for.
    """

    best: KernelExplanation
    rivals: tuple[KernelExplanation, ...] = ()
    second: KernelExplanation | None = None
    taken_from: str = ""
    n_predicted: int = 0
    partial: tuple[KernelExplanation, ...] = ()
    behaviours: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    untried: int = 0
    observed_behaviour: bool = False

    def causes_of(self, tensor: str) -> tuple[Cause, ...]:
        """The causes of a tensor's error; none if it is unexplained."""
        if self.best.left[tensor] >= ERROR_BOUND:
            return ()
        return tuple(cause for cause, needing in self.needed if tensor in needing)

    @property
    def settled(self) -> bool:
        """Whether the causes explain everything, and do more than locate the error."""
        return self.best.explains and not any(map(is_location, self.best.causes))

    @property
    def n_unexplained(self) -> int:
        """The number of wrong tensors without a cause."""
        located = {name for cause, needing in self.needed if is_location(cause) for name in needing}
        return len({*self.best.wrong, *located})

    @cached_property
    def start(self) -> KernelExplanation:
        """The explanation without any cause."""
        return unaltered(self.best.evaluator, self.best.observed)

    @cached_property
    def needed(self) -> tuple[tuple[Cause, Mapping[str, float]], ...]:
        """Every cause with the tensors that need it, and the error ratios that remain without it."""
        return tuple((cause, self._needing(cause)) for cause in self.best.causes)

    def _needing(self, cause: Cause) -> dict[str, float]:
        others = (c for c in self.best.causes if c is not cause)
        rest = self.start.extended(*others) or self.start
        return {n: r for n, r in rest.left.items() if r >= ERROR_BOUND and r > HELPS * self.best.left[n]}


def search(
    evaluator: Evaluator,
    observed: Observed,
    *,
    exact: Collection[str] = (),
    depth: int = DEPTH,
    sources: Sources = OF_OPS,
) -> SearchResult:
    """The causes that explain `observed`, at most `depth` together; tensors in `exact` have not lost precision."""
    start = unaltered(evaluator, observed, exact)
    standing = sources.standing(evaluator)
    plain, weighty = [c for c in standing if not c.weight], [c for c in standing if c.weight]
    n_followed = max(1, min(BEAM, int(MAX_WORK / (max(1, evaluator.n_elements) * max(1, len(standing)) * DEPTH))))
    tried: list[KernelExplanation] = []
    level = [start]
    for number in range(depth):
        wider = [step for origin in level for step in steps(origin, plain, sources.propose)]
        if not any(step.explains and step.plain for step in wider):
            for origin in level:
                wider += steps(origin, believable(origin, weighty))
            if number < DEPTH - 1:
                wider += steps(level[0], fitted(level[0]))
        tried += wider
        # No explanation with more causes can have a smaller weight than this one.
        if any(step.explains and step.weight < COST * (number + 2) for step in tried):
            break
        level = best_of([s for s in wider if s.improves(level[0]) and not s.explains], n_followed, ALIKE)
        if not level:
            break
    if depth > 1 and not any(step.explains for step in tried):
        tried += pairs(start, plain)
    return conclude(start, tried)


def confirm(evaluator: Evaluator, observed: Observed, other: SearchResult, dtype: str) -> SearchResult | None:
    """The result of another dtype if it explains this one too; its rivals stay rivals if they do."""
    start, causes = unaltered(evaluator, observed), portable(other.best)
    best = applied(start, causes) if causes else None
    if best is None or not best.explains:
        return None
    rivals = (start.extended(*rival.causes) for rival in other.rivals)
    return SearchResult(best, tuple(r for r in rivals if r is not None and r.explains), taken_from=dtype)


def recalled(
    evaluator: Evaluator, observed: Observed, recipes: Iterable[tuple[str, Sequence[Cause]]], *, plain: bool
) -> SearchResult | None:
    """The causes of another case if they explain this one too; `plain`: only if they predict its values."""
    start = unaltered(evaluator, observed)
    for case, causes in recipes:
        explanation = applied(start, causes)
        if explanation is None or not explanation.explains:
            continue
        if not plain or explanation.plain or all(cause.portable and not cause.lossy for cause in causes):
            return SearchResult(explanation.pruned(), taken_from=case)
    return None


def portable(explanation: KernelExplanation) -> Sequence[Cause]:
    """The causes that mean the same in another dtype."""
    return [cause for cause in explanation.causes if cause.portable and not is_location(cause)]


def is_location(cause: Cause) -> bool:
    """Whether a cause only says where an error is."""
    return cause.id == "localized" and cause.alteration is None


def applied(start: KernelExplanation, causes: Sequence[Cause]) -> KernelExplanation | None:
    """`start` with causes that were found elsewhere, and with the loss of digits that the values show if these leave
    an error; None if they contradict each other."""
    extended = start.extended(*causes)
    if extended is None or extended.explains or not extended.improves(start):
        return extended
    lost = chain(coarse(extended), narrow_step(extended) if start.evaluator.dtype == "float64" else ())
    return next((e for cause in lost if (e := extended.extended(cause)) and e.explains), extended)


def improved(result: SearchResult, recipes: Iterable[tuple[str, Sequence[Cause]]]) -> SearchResult:
    """The result of an unexplained error, or a better one by `recipes` of other dtypes or cases: one that explains
    everything, else one that explains more tensors."""
    tried = [(source, e) for source, causes in recipes if causes and (e := applied(result.start, causes)) is not None]
    complete = [(source, e) for source, e in tried if e.explains]
    partial = [(source, e) for source, e in tried if helps(result.start, e) and len(e.wrong) < result.n_unexplained]
    if not complete and not partial:
        return result
    source, best = min(complete or partial, key=lambda pair: (len(pair[1].wrong), pair[1].rank))
    kept = replace(result, behaviours=()) if best.explains else result
    return replace(kept, best=best.pruned(), rivals=(), n_predicted=0, taken_from=source)


def steps(
    origin: KernelExplanation,
    causes: Iterable[Cause],
    propose: Callable[[KernelExplanation], Iterable[Causes]] | None = None,
) -> Iterator[KernelExplanation]:
    """All explanations with one more cause that reduce the error; `propose` adds changes that the observed tensors
    suggest."""
    for cause in in_time(causes):
        step = origin.extended(cause)
        if step is None:
            continue
        if step.improves(origin):
            yield step
        elif propose and not origin.causes and not step.exceptions:
            # A cause that does not help alone, but whose prediction is wrong only by factors.
            scaled_steps = (step.extended(factor) for factor in scaled(step))
            yield from (s for s in scaled_steps if s is not None and s.explains)
    for proposal in in_time(propose(origin) if propose else ()):
        step = origin.extended(*proposal)
        if step is not None and step.improves(origin):
            yield step


def pairs(start: KernelExplanation, plain: Sequence[Cause]) -> Iterator[KernelExplanation]:
    """Two causes that counteract each other, so that neither helps alone; tried if predictions are cheap."""
    if start.evaluator.n_elements * len(plain) ** 2 > MAX_PAIR_WORK:
        return
    singles = [single for cause in in_time(plain) if (single := start.extended(cause)) is not None]
    for i, single in enumerate(in_time(singles)):
        for other in singles[i + 1 :]:
            tried = other.ids != single.ids and may_give_the_outputs(single, other)
            both = single.extended(*other.causes) if tried else None
            if both is not None and both.explains:
                yield both


def may_give_the_outputs(one: KernelExplanation, other: KernelExplanation) -> bool:
    """Whether two explanations together may explain the outputs; gradients are left out, since their programs take
    longer to trace."""
    try:
        values = one.evaluator.values_of(together((*one.causes, *other.causes)), gradients=False)
    except IncompatibleError:
        return True
    wrong = [name for name in values if name in one.left and one.left[name] >= ERROR_BOUND]
    return all(ratio(one.observed.get(n), one.evaluator.predicted(n, values[n])) < ERROR_BOUND for n in wrong)


def believable(origin: KernelExplanation, weighty: Sequence[Cause]) -> list[Cause]:
    """The causes of larger weight: general ones, and the statistics that the output implies. A lossy variance is
    accepted only if the output implies it."""
    statistics = origin.evaluator.op.statistics
    if statistics is None or not implies(origin.evaluator, origin.observed):
        return list(weighty)
    implied = list(statistics_causes(origin))
    if not any(cause.lossy for cause in implied):
        lossy = [c for c in weighty if c.lossy and c.alteration and statistics.algorithm in c.alteration.unstable]
        weighty = [c for c in weighty if c not in lossy]
    return [*weighty, *implied]


def best_of(explanations: Iterable[KernelExplanation], count: int, n_alike: int = 1) -> list[KernelExplanation]:
    """The best explanations, at most `n_alike` for every set of causes."""
    kept: list[KernelExplanation] = []
    counts: Counter[tuple[frozenset[str], bool]] = Counter()
    for explanation in sorted(explanations, key=lambda e: e.rank):
        kind = (explanation.ids, explanation.plain or n_alike == 1)
        counts[kind] += 1
        if counts[kind] <= n_alike:
            kept.append(explanation)
    return kept[:count]


def conclude(start: KernelExplanation, tried: Sequence[KernelExplanation]) -> SearchResult:
    """The best explanation, refined, with its rivals; or at least the error's location."""
    ranked = best_of([explanation.refined() for explanation in best_of(tried, 2 * BEAM)], 2 * BEAM)
    if ranked and ranked[0].explains:
        best = ranked[0].pruned()
        others = [e for e in ranked[1:] if e.ids != best.ids]
        rivals = [e for e in others if e.explains and is_rival(best, e)]
        second = next((e for e in others if e not in rivals), None)
        return SearchResult(best, tuple(rivals), second)
    partial = next((e for e in ranked if helps(start, e)), start)
    best = partial
    for cause in localized(partial):
        best = best.extended(cause) or best
    second = next((e for e in ranked if e is not partial), None)
    return SearchResult((best if best.causes else start).pruned(), (), second, partial=tuple(ranked[:ALIKE]))


def helps(start: KernelExplanation, partial: KernelExplanation) -> bool:
    """Whether an incomplete explanation fully explains some tensor and makes none worse."""
    fixed = any(start.left[n] >= ERROR_BOUND > partial.left[n] for n in start.left)
    return fixed and all(partial.left[n] < ERROR_BOUND for n in start.left if start.left[n] < ERROR_BOUND)


def is_rival(best: KernelExplanation, other: KernelExplanation) -> bool:
    """Whether the data cannot distinguish two complete explanations."""
    if other.weight > best.weight:
        return False
    of_rival, of_best = worst(other.left.values()), worst(best.left.values())
    return of_rival < CLEAR or of_rival < CLEARER * of_best
