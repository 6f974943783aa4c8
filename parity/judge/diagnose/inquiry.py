"""What is wrong with a backend, found out by asking it again.

A search on what it returned gives explanations; edits of the reference give more. Each must also predict what the
backend returns for other inputs, drawn so that explanations differ. What fails there is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice, product

from parity.cases.op import IncompatibleError
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import OFF, Array
from parity.judge.diagnose.asking import Kernel
from parity.judge.diagnose.causes import Cause, standing_causes
from parity.judge.diagnose.edits import edit_causes, fitted_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Prediction, ratio
from parity.judge.diagnose.explanation import KernelExplanation, unaltered
from parity.judge.diagnose.probes import generic
from parity.judge.diagnose.proposals import proposals
from parity.judge.diagnose.search import SearchResult, search
from parity.judge.diagnose.statistics import statistics_causes

N_PROBES = 3
MAX_TRANSFERRED = 8
N_ORIGINS = 3
"""Explanations of a part that edits are added to."""

Prepare = Callable[[CasePlan, str, Mapping[str, Array]], Evaluator]


@dataclass(frozen=True)
class Question:
    """What a backend returned for some inputs, and what is known about them."""

    evaluator: Evaluator
    observed: Observed


class Inquiry:
    """One backend that is wrong in a dtype of a case; `kernel` asks it again, `prepare` makes an evaluator."""

    def __init__(self, question: Question, kernel: Kernel | None, prepare: Prepare) -> None:
        self._question, self._kernel, self._prepare = question, kernel, prepare
        self._probes: list[Question] | None = None

    def result(self, exact: Sequence[str] = ()) -> SearchResult:
        """The best explanation: one cause with a name, else one edit, else several together.

        In the tensors of `exact`, no loss of digits can be one.
        """
        evaluator, observed = self._question.evaluator, self._question.observed
        first = search(evaluator, observed, exact=exact, depth=1)
        named = self.confirmed(complete(first))
        if not (named and named[0].plain):
            single = extended(first.start, edit_causes(first.start))
            named = sorted([*named, *self.confirmed(single)], key=lambda e: e.rank)
            if not named:
                first = search(evaluator, observed, exact=exact)
                named = self.confirmed(complete(first)) or self.confirmed(
                    [e for origin in parts(first, single) for e in extended(origin, edit_causes(origin))]
                )
            if not named and self.can_ask:
                origins = [first.start, *parts(first, single)]
                named = self.confirmed([e for origin in origins for e in extended(origin, fitted_causes(origin))])
        return self.concluded(first, named) if named else first

    @property
    def can_ask(self) -> bool:
        """Whether the backend answered questions."""
        return bool(self.probes)

    @property
    def probes(self) -> Sequence[Question]:
        """The backend's answers for other inputs."""
        if self._probes is None:
            self._probes = list(islice(self._asked(), N_PROBES))
        return self._probes

    def _asked(self) -> Iterator[Question]:
        evaluator = self._question.evaluator
        if self._kernel is None:
            return
        for number in range(N_PROBES):
            case, inputs = generic(evaluator.case, number)
            answer = self._kernel(case, evaluator.dtype, inputs)
            if answer is None:
                continue
            other = self._prepare(case, evaluator.dtype, inputs)
            yield Question(other, {n: answer.get(n) for n in self._question.observed if n in other.base})

    def confirmed(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """Those that also predict what the backend returned for other inputs, the best first."""
        ranked = sorted(explanations, key=lambda e: e.rank)
        return [e for e in ranked if e.explains and all(holds(e, probe) for probe in self.probes)]

    def concluded(self, first: SearchResult, kept: Sequence[KernelExplanation]) -> SearchResult:
        """The best of what is left; others are rivals where nobody could be asked."""
        best = kept[0]
        rivals = [] if self.can_ask else [e for e in kept[1:] if differs(e, best)]
        second = next((e for e in (first.best, *first.rivals) if e not in kept and e.causes), first.second)
        return SearchResult(best, tuple(rivals), second, n_asked=len(self.probes))


def complete(result: SearchResult) -> list[KernelExplanation]:
    """The explanations of a search that leave nothing."""
    return [e for e in (result.best, *result.rivals) if e.causes and e.explains]


def parts(first: SearchResult, single: Sequence[KernelExplanation]) -> list[KernelExplanation]:
    """The explanations of a part that come nearest."""
    partial = [e for e in (first.best, *first.partial, *single) if e.causes and e.improves(first.start)]
    return sorted(partial, key=lambda e: (len(e.wrong), e.rank))[:N_ORIGINS]


def extended(origin: KernelExplanation, causes: Iterable[Cause]) -> list[KernelExplanation]:
    """`origin` with each cause that leaves less."""
    steps = (origin.extended(cause) for cause in causes)
    return [step for step in steps if step is not None and step.improves(origin)]


def differs(one: KernelExplanation, other: KernelExplanation) -> bool:
    """Whether two explanations of the same data differ on other inputs: they are not the same formula."""
    evaluator = one.evaluator
    return one.weight <= other.weight + 0.5 and evaluator is other.evaluator


def holds(explanation: KernelExplanation, probe: Question) -> bool:
    """Whether an explanation predicts an answer: what it explains exactly, all else with it or without."""
    wrong = [n for n, value in unaltered(explanation.evaluator, explanation.observed).left.items() if value >= OFF]
    start = unaltered(probe.evaluator, probe.observed)
    if start.explains and not all(cause.portable and not cause.lossy for cause in explanation.causes):
        return True
    options = [list(islice(transferred(cause, start), MAX_TRANSFERRED)) for cause in explanation.causes]
    for causes in islice(product(*options), MAX_TRANSFERRED):
        prediction = predicted(probe.evaluator, causes)
        if prediction is None:
            continue
        left = {n: ratio(probe.observed[n], p) for n, p in prediction.items() if n in start.left}
        if all(left.get(n, start.left[n]) < OFF for n in wrong if n in start.left) and all(
            min(value, left.get(n, value)) < OFF for n, value in start.left.items()
        ):
            return True
    return False


def predicted(evaluator: Evaluator, causes: Sequence[Cause]) -> Prediction | None:
    """What follows from all causes together; None where they contradict each other."""
    try:
        alteration = reduce(Alteration.with_, (c.alteration for c in causes if c.alteration is not None), Alteration())
    except IncompatibleError:
        return None
    prediction = evaluator.predict(alteration)
    if prediction is None:
        return None
    return reduce(lambda p, change: change(p), (c.change for c in causes if c.change is not None), prediction)


def transferred(cause: Cause, start: KernelExplanation) -> Iterator[Cause]:
    """The same cause for other inputs: edits and fitted numbers as they are, others with those inputs' numbers."""
    if cause.alteration is not None and cause.alteration.edits:
        yield cause
        return
    alike = [c for c in pool(start) if similar(c, cause)]
    same = [c for c in alike if c.parameters == cause.parameters]
    yield from same or alike or ([cause] if cause.alteration is not None and cause.portable else [])


def pool(start: KernelExplanation) -> Iterator[Cause]:
    """The causes that a search considers first."""
    yield from standing_causes(start.evaluator)
    yield from statistics_causes(start)
    yield from chain.from_iterable(proposals(start))


def similar(one: Cause, other: Cause) -> bool:
    """Whether two causes differ in their numbers only."""
    return one.id == other.id and one.parameters.keys() == other.parameters.keys()
