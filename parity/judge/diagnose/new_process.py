"""State that a process keeps between calls: a wrong result is asked for again in a new process, as its first call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.cases.edits import COMPUTED, RETURNED
from parity.judge.bound.envelope import ERROR_BOUND, Array, size
from parity.judge.diagnose.behaviour import DifferingRow, answered, exceeds
from parity.judge.diagnose.causes import NARROW, Cause
from parity.judge.diagnose.evaluator import ratio
from parity.judge.diagnose.explanation import KernelExplanation
from parity.judge.diagnose.kernel import Kernel
from parity.judge.diagnose.search import SearchResult, is_location

STATEFUL = "stateful"
REPEATS = 3
LESS = 8.0
"""A right result has less than this part of the wrong one's error ratio, so a lucky rounding is no evidence."""
MOVED = 0.25
"""Another result differs from the wrong one by at least this part of its error."""
FITTED = 1.0
"""Causes of at least this weight have a fitted number."""
RIGHT = "the first call of a new process gives the right result, and a call after those of the run a wrong one"
ANOTHER = "the first call of a new process gives another result than a call after those of the run, and both are wrong"
ROW = "a row alone has another result in the first call of a new process than after the calls of the run"

Evidence = Mapping[str, Any]


def state_in(result: SearchResult) -> Evidence | None:
    """The evidence that a result depends on earlier calls, if that is its cause."""
    return dict(result.behaviours).get(STATEFUL)


def is_firm(result: SearchResult) -> bool:
    """Whether a formula without fitted numbers, a loss of precision, or a behaviour of the run explains everything."""
    if result.observed_behaviour or state_in(result) is not None:
        return True
    vague = any(is_location(cause) or is_fitted(cause) for cause in result.best.causes)
    return result.best.explains and not (result.behaviours or vague)


def is_fitted(cause: Cause) -> bool:
    """Whether a cause has numbers that are fitted to the results, and is no loss of precision."""
    edits = cause.alteration.edits if cause.alteration is not None else ()
    computed = any(edit.kind == RETURNED and edit.value[0] == COMPUTED for edit in edits)
    return computed or (cause.weight >= FITTED and not cause.lossy and cause.id not in NARROW)


@dataclass(frozen=True)
class Repeated:
    """What a wrong kernel returns in a new process (`first`), and when the run's process is asked again (`later`)."""

    start: KernelExplanation
    first: Mapping[str, Array]
    later: list[Mapping[str, Array]]

    @property
    def right(self) -> list[str]:
        """The wrong tensors that are right in the new process only."""
        return [name for name in self.start.wrong if self._is_right(name)]

    @property
    def moved(self) -> list[str]:
        """The wrong tensors that are others in the new process, while the run's process repeats them."""
        return [name for name in self.start.wrong if self.later and self._is_another(name)]

    def _is_right(self, name: str) -> bool:
        left = self._ratio(self.first, name)
        wrong_again = all(self._ratio(answer, name) >= ERROR_BOUND for answer in self.later)
        return left < ERROR_BOUND and LESS * left <= self.start.left[name] and wrong_again

    def _is_another(self, name: str) -> bool:
        values, exact = self.start.observed[name], self.start.evaluator.base[name].values
        first = self.first.get(name)
        if values is None or exact is None or first is None or not values.shape == exact.shape == first.shape:
            return False
        bound = ERROR_BOUND * self.start.evaluator.envelopes[name].max
        if any(name not in answer or exceeds(answer[name], values, bound) for answer in self.later):
            return False
        with np.errstate(all="ignore"):
            return exceeds(first, values, bound) and size(first - values).rms > MOVED * size(values - exact).rms

    def _ratio(self, answer: Mapping[str, Array], name: str) -> float:
        return ratio(answer.get(name), self.start.evaluator.base[name])


def kept_state(new: Kernel, kernel: Kernel, start: KernelExplanation) -> Evidence | None:
    """What shows that a wrong result depends on the calls before it: nothing if a new process returns it, too, and None
    if that cannot be asked. One call of a new process, and three of the run's."""
    evaluator = start.evaluator
    asked = evaluator.case, evaluator.dtype, evaluator.inputs
    first = new(*asked)
    if first is None:
        return None
    repeated = Repeated(start, first, answered(kernel, *asked[:2], [asked[2]] * REPEATS))
    right = repeated.right
    tensors = right or repeated.moved
    return {"seen": RIGHT if right else ANOTHER, "tensors": tensors} if tensors else {}


def state_of_row(new: Kernel, dtype: str, row: DifferingRow) -> Evidence | None:
    """What shows that a row's result alone depends on the calls before it: a new process has another one. None if it
    has the same, or cannot be asked."""
    answer = new(row.case, dtype, row.inputs) or {}
    names = [n for n in row.wrong if n in answer and answer[n].shape == row.alone[n].shape]
    moved = [n for n in names if exceeds(answer[n], row.alone[n], row.bound[n])]
    return {"seen": ROW, "tensors": moved} if moved else None


def with_state(result: SearchResult, state: Evidence, taken_from: str = "") -> SearchResult:
    """The result with the state as its only cause: what else explains it holds only for some calls."""
    evidence = {**state, "first_found_in": taken_from} if taken_from else state
    return SearchResult(result.start, behaviours=((STATEFUL, evidence),), observed_behaviour=True)
