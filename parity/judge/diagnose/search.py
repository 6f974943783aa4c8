"""Which causes, alone or together, explain what a backend returned?

A state is a list of causes with the prediction that follows from them. Each cause may hold for some tensors only: a
forward pass can be wrong beside a right backward pass. A state explains where every tensor lies within the envelope.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from parity.judge.bound.envelope import OFF, size
from parity.judge.diagnose.causes import Cause, fitted, standing_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Predicted, Prediction, ratio, ratios, worst
from parity.judge.diagnose.factors import scaled
from parity.judge.diagnose.generic import proposals
from parity.judge.diagnose.locality import localized
from parity.judge.diagnose.moments import implies, statistics_causes

DEPTH = 3
BEAM = 6
VARIANTS = 2
MAX_WORK = 1e7
"""About how many elements the questions of one search ask about together; beyond it fewer states are followed."""
MAX_PAIR_WORK = 4e6
BAND = 1000.0
"""An algorithm that loses digits explains an error of at least this part of what it loses."""
MAX_BURDEN = 2.75
"""One thing that was fitted, or an error in one part: more of them together explain anything."""
WIDEST_OWN = 64.0
"""A hypothesis under which careful code loses so much more than under the truth would explain anything as well."""
COST = 2.0
EXCEPTION_COST = 0.25
SHARED_EXCEPTION_COST = 1.0
"""What a wrong statistic spoils, it spoils everywhere."""
MUCH_WORSE = 16.0
CLEAR = 2.0
CLEARER = 3.0
"""A rival is out where it leaves twice the envelope or more, and three times what the best leaves."""


@dataclass(frozen=True)
class State:
    """Causes, what they predict, the error ratios that are left, and for how many tensors a cause had to be waived.

    The errors of the tensors in `exact` are the same in every precision.
    """

    causes: tuple[Cause, ...]
    prediction: Prediction
    left: Mapping[str, float]
    exceptions: int = 0
    exact: frozenset[str] = frozenset()

    @property
    def explains(self) -> bool:
        """Whether every tensor lies within the envelope, without too much that was fitted to make it so."""
        burden = sum(cause.weight for cause in self.causes)
        return burden <= MAX_BURDEN and all(value < OFF for value in self.left.values())

    @property
    def score(self) -> float:
        """How much is left, in powers of two beyond what chance explains."""
        return sum(math.log2(min(max(value, CLEAR), 2.0**60)) for value in self.left.values())

    @property
    def weight(self) -> float:
        """How much has to be believed."""
        shared = any(cause.shared for cause in self.causes)
        exception = SHARED_EXCEPTION_COST if shared else EXCEPTION_COST
        return sum(COST + cause.weight for cause in self.causes) + exception * self.exceptions

    @property
    def plain(self) -> bool:
        """Whether nothing is fitted, and no band of sizes is believed."""
        return not any(cause.weight for cause in self.causes)

    @property
    def rank(self) -> tuple[float, float, float]:
        """Smaller is better; of those that explain everything, the one of which least has to be believed."""
        return (0.0 if self.explains else self.score, self.weight, worst(self.left.values()))

    @property
    def ids(self) -> frozenset[str]:
        """The ids of its causes."""
        return frozenset(cause.id for cause in self.causes)

    @property
    def alteration(self) -> Alteration:
        """What its causes change about the oracle's question, together."""
        asked = [cause.alteration for cause in self.causes if cause.alteration is not None]
        return reduce(lambda one, other: one.with_(other) or one, asked, Alteration())


@dataclass(frozen=True)
class Found:
    """The best state, the other ones that explain as much, and the best of those that explain less.

    `taken_from`: the dtype or the case whose causes were tried first and explain this one too.
    """

    best: State
    rivals: tuple[State, ...] = ()
    second: State | None = None
    taken_from: str = ""


def search(evaluator: Evaluator, observed: Observed, *, exact: Collection[str] = ()) -> Found:
    """The causes that explain `observed`; of the tensors in `exact`, no loss of digits can be one."""
    start = replace(begin(evaluator, observed), exact=frozenset(exact))
    standing = standing_causes(evaluator)
    plain, weighty = [c for c in standing if not c.weight], [c for c in standing if c.weight]
    tried: list[State] = []
    level = [start]
    for depth in range(DEPTH):
        wider = [state for origin in level for state in steps(evaluator, observed, origin, plain)]
        if not any(state.explains and state.plain for state in wider):
            for origin in level:
                causes = believable(evaluator, observed, origin, weighty)
                wider += steps(evaluator, observed, origin, causes, propose=False)
            if depth < DEPTH - 1:
                wider += fits(evaluator, observed, level[0])
        tried += wider
        if settled(tried, depth):
            break
        open_ends = [state for state in improved(level[0], wider) if not state.explains]
        level = best_of(open_ends, breadth(evaluator, standing), VARIANTS)
        if not level:
            break
    if not any(state.explains for state in tried):
        tried += pairs(evaluator, observed, start, plain)
    return conclude(evaluator, observed, start, tried)


def settled(tried: Sequence[State], depth: int) -> bool:
    """Whether something explains what was observed, and no explanation by more causes can be easier to believe."""
    return any(state.explains and state.weight < COST * (depth + 2) for state in tried)


def pairs(evaluator: Evaluator, observed: Observed, start: State, plain: Sequence[Cause]) -> Iterator[State]:
    """Two causes that work against each other, so that neither helps alone; tried where questions are cheap."""
    if evaluator.n_elements * len(plain) ** 2 > MAX_PAIR_WORK:
        return
    singles = [state for cause in plain if (state := extended(evaluator, observed, start, cause)) is not None]
    for i, state in enumerate(singles):
        for cause in (other.causes[0] for other in singles[i + 1 :] if other.ids != state.ids):
            both = extended(evaluator, observed, state, cause)
            if both is not None and both.explains:
                yield both


def believable(evaluator: Evaluator, observed: Observed, origin: State, weighty: Sequence[Cause]) -> list[Cause]:
    """What takes more to believe: the standing causes of that kind, and the statistics that the output implies.

    A lossy variance is believable only where the output implies one.
    """
    statistics = evaluator.op.statistics
    if statistics is None or not implies(evaluator, observed):
        return list(weighty)
    told = list(statistics_causes(evaluator, observed, origin.alteration, origin.left[statistics.output]))
    if not any(cause.lossy for cause in told):
        lossy = [c for c in weighty if c.lossy and c.alteration and statistics.algorithm in c.alteration.unstable]
        weighty = [c for c in weighty if c not in lossy]
    return [*weighty, *told]


def begin(evaluator: Evaluator, observed: Observed) -> State:
    """What is left without any cause."""
    return State((), evaluator.base, ratios(observed, evaluator.base))


def confirm(evaluator: Evaluator, observed: Observed, found: Found, dtype: str) -> Found | None:
    """What was found in another dtype, where it explains this one too; rivals there are rivals here if they do."""
    start = begin(evaluator, observed)
    best = follow(evaluator, observed, start, found.best.causes)
    if not found.best.causes or best is None or not best.explains or not all(c.portable for c in best.causes):
        return None
    rivals = [follow(evaluator, observed, start, rival.causes) for rival in found.rivals]
    return Found(best, tuple(r for r in rivals if r is not None and r.explains), taken_from=dtype)


def recalled(evaluator: Evaluator, observed: Observed, recipes: Iterable[tuple[str, Sequence[Cause]]]) -> Found | None:
    """What was found in another case, where it explains this one too."""
    start = begin(evaluator, observed)
    for case, causes in recipes:
        state = follow(evaluator, observed, start, causes)
        if state is not None and state.explains:
            return Found(state, taken_from=case)
    return None


def breadth(evaluator: Evaluator, standing: Sequence[Cause]) -> int:
    """How many states are followed: fewer where questions are dear."""
    return max(1, min(BEAM, int(MAX_WORK / (evaluator.n_elements * len(standing) * DEPTH))))


def follow(evaluator: Evaluator, observed: Observed, start: State, causes: Sequence[Cause]) -> State | None:
    """The state after all `causes`; None where they contradict each other."""
    state: State | None = start
    for cause in causes:
        state = state and extended(evaluator, observed, state, cause)
    return state


def steps(
    evaluator: Evaluator, observed: Observed, origin: State, standing: Sequence[Cause], *, propose: bool = True
) -> Iterator[State]:
    """All states one step further that leave less; `propose` adds the transforms that what was observed suggests."""
    for cause in standing:
        state = extended(evaluator, observed, origin, cause)
        if state is None:
            continue
        if state.score < origin.score - 1:
            yield state
        elif not origin.causes and not cause.weight and not state.exceptions:
            yield from multiples(evaluator, observed, state)
    for causes in proposals(evaluator, observed, origin.prediction, origin.left) if propose else ():
        state = follow(evaluator, observed, origin, causes)
        if state is not None and state.score < origin.score - 1:
            yield state


def multiples(evaluator: Evaluator, observed: Observed, state: State) -> Iterator[State]:
    """A cause that helps nothing by itself, but whose prediction is off by factors only."""
    for factor in scaled(
        evaluator, observed, state.prediction, state.left, [n for n, r in state.left.items() if r >= OFF]
    ):
        found = extended(evaluator, observed, state, factor)
        if found is not None and found.explains:
            yield found


def fits(evaluator: Evaluator, observed: Observed, origin: State) -> Iterator[State]:
    """States with one fitted number more."""
    off = [name for name, value in origin.left.items() if value >= OFF and observed.get(name) is not None]
    if any(cause.change is not None for cause in origin.causes) or not off:
        return
    for cause in fitted(evaluator, observed, off, origin.alteration):
        state = extended(evaluator, observed, origin, cause)
        if state is not None and state.score < origin.score - 1:
            yield state


def improved(origin: State, states: Sequence[State]) -> list[State]:
    """Those that leave less than `origin`."""
    return [state for state in states if state.score < origin.score - 1]


def best_of(states: Sequence[State], count: int, variants: int = 1) -> list[State]:
    """The best states, of each set of causes no more than `variants`."""
    kept: list[State] = []
    n_alike: Counter[tuple[frozenset[str], bool]] = Counter()
    for state in sorted(states, key=lambda s: s.rank):
        kind = (state.ids, state.plain or variants == 1)
        n_alike[kind] += 1
        if n_alike[kind] <= variants:
            kept.append(state)
    return kept[:count]


def extended(evaluator: Evaluator, observed: Observed, origin: State, cause: Cause) -> State | None:
    """`origin` with one cause more, tensor by tensor where it comes nearer; None where it contradicts the others."""
    if cause.change is not None:
        prediction: Prediction | None = cause.change(origin.prediction)
    else:
        alteration = origin.alteration.with_(cause.alteration or Alteration())
        prediction = None if alteration is None else evaluator.ask(alteration)
        if prediction is not None:
            changes = [c.change for c in origin.causes if c.change is not None]
            prediction = reduce(lambda p, change: change(p), changes, prediction)
    if prediction is None:
        return None
    return chosen(observed, origin, cause, prediction)


def chosen(observed: Observed, origin: State, cause: Cause, prediction: Prediction) -> State:
    """The state that takes from `prediction` what does not leave more than `origin` does."""
    taken, left, exceptions = dict(origin.prediction), dict(origin.left), origin.exceptions
    comparable = {name: predicted for name, predicted in prediction.items() if name in origin.left}
    for name, predicted in comparable.items():
        before, after = origin.left[name], ratio(observed.get(name), predicted)
        if cause.lossy and before >= OFF and name in origin.exact:
            exceptions += 1
        elif after < OFF and credible(observed, name, predicted, before):
            taken[name], left[name] = predicted, after
        elif before >= OFF and after < MUCH_WORSE * before and not predicted.unstable:
            # Another cause is at work here as well; beside it, this one holds for all tensors alike.
            taken[name], left[name] = predicted, after
        elif after > max(OFF, before):
            exceptions += 1
    return replace(origin, causes=(*origin.causes, cause), prediction=taken, left=left, exceptions=exceptions)


def credible(observed: Observed, name: str, predicted: Predicted, before: float) -> bool:
    """Whether an error that only a lossy algorithm explains is about as large as that algorithm makes it."""
    values = observed.get(name)
    if not predicted.unstable or before < OFF or values is None or predicted.values is None:
        return True
    error = size(values.astype(predicted.values.dtype) - predicted.values)
    return not math.isfinite(before) or error.rms * BAND >= predicted.envelope.rms


def conclude(evaluator: Evaluator, observed: Observed, start: State, tried: Sequence[State]) -> Found:
    """The best of what was tried, refined, with its rivals; or what can at least be said about where it is wrong."""
    ranked = best_of([refined(evaluator, observed, state) for state in best_of(tried, 2 * BEAM)], 2 * BEAM)
    if ranked and ranked[0].explains:
        best = pruned(evaluator, observed, start, ranked[0])
        alike = [s for s in ranked[1:] if s.explains and s.ids != best.ids and is_rival(best, s)]
        others = [s for s in ranked[1:] if s.ids != best.ids and s not in alike]
        return Found(best, tuple(alike), others[0] if others else None)
    partial = next((s for s in ranked if helps(start, s)), start)
    rest = best_of([extended_by(evaluator, observed, partial)], 1)
    best = rest[0] if rest[0].causes else start
    others = [s for s in ranked if s is not partial]
    return Found(pruned(evaluator, observed, start, best), (), others[0] if others else None)


def extended_by(evaluator: Evaluator, observed: Observed, state: State) -> State:
    """`state` with the last resorts: an inner step in float32, or an error in one part of the tensor."""
    for cause in localized(evaluator, observed, state.prediction, state.left, state.exact):
        state = extended(evaluator, observed, state, cause) or state
    return state


def helps(start: State, state: State) -> bool:
    """Whether a state that does not explain everything explains some tensor wholly, and spoils none."""
    fixed = any(start.left[n] >= OFF > state.left[n] for n in start.left)
    return fixed and all(state.left[n] < OFF for n in start.left if start.left[n] < OFF)


def refined(evaluator: Evaluator, observed: Observed, state: State) -> State:
    """The state with the envelope of careful code that has its causes, where the oracle's own is too narrow."""
    if state.explains or not state.alteration.key or not any(c.alteration for c in state.causes):
        return state
    if any(c.change for c in state.causes) or worst(state.left.values()) > 1e6:
        return state
    own = evaluator.own_envelopes(state.alteration)
    wider = {
        n: replace(p, envelope=p.envelope.joined(own[n]) if n in own else p.envelope)
        for n, p in state.prediction.items()
    }
    return replace(state, prediction=wider, left=ratios(observed, wider))


def is_rival(best: State, other: State) -> bool:
    """Whether the data cannot tell two states apart that both explain it."""
    if other.weight > best.weight:
        return False
    theirs, ours = worst(other.left.values()), worst(best.left.values())
    return theirs < CLEAR or theirs < CLEARER * ours


def pruned(evaluator: Evaluator, observed: Observed, start: State, state: State) -> State:
    """`state` without the causes that change nothing."""
    for cause in state.causes if len(state.causes) > 1 else ():
        fewer = follow(evaluator, observed, start, [c for c in state.causes if c is not cause])
        if fewer is not None and fewer.score <= state.score:
            return pruned(evaluator, observed, start, fewer)
    return state
