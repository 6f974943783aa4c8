"""What a search found, as diagnoses: each cause with its tensors, what is left without it and with it, and evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from parity.config.plan import ORACLE
from parity.judge.bound.envelope import OFF, size
from parity.judge.catalogue.entries import CATALOGUE
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.evaluator import WIDE, Evaluator, Observed, worst
from parity.judge.diagnose.search import Found, State, begin, follow

HELPS = 1.5
"""A tensor needs a cause that leaves less than two thirds of its error ratio."""


@dataclass(frozen=True)
class Searched:
    """A search for the causes of what one backend returned in one cell, with the lab it was made in."""

    evaluator: Evaluator
    observed: Observed
    found: Found

    def causes_of(self, tensor: str) -> tuple[Cause, ...]:
        """The causes of a tensor's error; none where they leave it unexplained."""
        if self.found.best.left[tensor] >= OFF:
            return ()
        return tuple(c for c, needing in zip(self.found.best.causes, self.needed, strict=True) if tensor in needing)

    @cached_property
    def start(self) -> State:
        """What is left without any cause."""
        return begin(self.evaluator, self.observed)

    @cached_property
    def needed(self) -> tuple[Mapping[str, float], ...]:
        """For each cause, the tensors that need it, with the error ratio that is left without it."""
        return tuple(map(self._needing, self.found.best.causes))

    def _needing(self, cause: Cause) -> dict[str, float]:
        best = self.found.best
        rest = (
            follow(self.evaluator, self.observed, self.start, [c for c in best.causes if c is not cause]) or self.start
        )
        return {n: r for n, r in rest.left.items() if r >= OFF and r > HELPS * best.left[n]}


def diagnoses_of(case: str, dtype: str, backend: str, searched: Searched) -> list[Diagnosis]:
    """The causes with the largest effect first; before them, that others explain as much; last, what is left."""
    best = searched.found.best
    rows = []
    for cause, needing in zip(best.causes, searched.needed, strict=True):
        if needing:
            rows.append(diagnosis(case, dtype, backend, cause, needing, searched))
    rows.sort(key=lambda row: -(row.residual_before or 0.0))
    if searched.found.rivals:
        rows.insert(0, not_identifiable(case, dtype, backend, searched))
    told = {tensor for row in rows for tensor in row.tensors}
    rest = {
        n: best.left[n] for n, r in searched.start.left.items() if best.left[n] >= OFF or (r >= OFF and n not in told)
    }
    if rest:
        rows.append(unexplained(case, dtype, backend, searched, rest))
    return rows


def diagnosis(
    case: str, dtype: str, backend: str, cause: Cause, needing: Mapping[str, float], searched: Searched
) -> Diagnosis:
    """One cause."""
    left = worst(searched.found.best.left[n] for n in needing)
    evidence: dict[str, Any] = {"parameters": plain(cause.parameters)}
    if searched.found.second is not None:
        evidence["second"] = summary(searched.found.second)
    if searched.found.rivals:
        evidence["not_told_from"] = [summary(rival) for rival in searched.found.rivals]
    if searched.found.taken_from:
        evidence["first_found_in"] = searched.found.taken_from
    if cause.alteration is not None and cause.alteration.unstable:
        evidence["sizes"] = {n: sizes(searched, n) for n in needing if searched.found.best.prediction[n].unstable}
    return Diagnosis(
        case,
        dtype,
        backend,
        cause.id,
        CATALOGUE[cause.id].title,
        tuple(needing),
        left < OFF,
        worst(needing.values()),
        left,
        evidence,
    )


def sizes(searched: Searched, tensor: str) -> dict[str, float | None]:
    """How large an error is, beside what the suspected algorithm and careful code lose (root mean squares)."""
    values, predicted = searched.observed[tensor], searched.found.best.prediction[tensor]
    error = None
    if values is not None and predicted.values is not None:
        error = size(values.astype(predicted.values.dtype) - predicted.values).rms
    careful = searched.evaluator.base[tensor].envelope.rms
    return {"error": error, "this_algorithm": predicted.envelope.rms / WIDE, "careful_code": careful}


def summary(state: State) -> dict[str, Any]:
    """A state in short."""
    return {
        "id": " + ".join(cause.id for cause in state.causes),
        "parameters": plain({k: v for cause in state.causes for k, v in cause.parameters.items()}),
        "residual_after": worst(state.left.values()),
    }


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON values."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in parameters.items()}


def not_identifiable(case: str, dtype: str, backend: str, searched: Searched) -> Diagnosis:
    """That several states explain what was seen, and what would tell them apart."""
    found = searched.found
    states = [found.best, *found.rivals]
    shown_by = dict.fromkeys(c.shown_by for state in states for c in state.causes if c.shown_by)
    off = {n: r for n, r in searched.start.left.items() if r >= OFF}
    evidence = {"candidates": [summary(state) for state in states], "told_apart_by": "; ".join(shown_by)}
    return Diagnosis(
        case,
        dtype,
        backend,
        "not-identifiable",
        f"{' or '.join(dict.fromkeys(str(summary(s)['id']) for s in states))}: this case cannot tell",
        tuple(off),
        False,
        worst(off.values()),
        worst(found.best.left.values()),
        evidence,
    )


def unexplained(case: str, dtype: str, backend: str, searched: Searched, rest: Mapping[str, float]) -> Diagnosis:
    """What no cause explains."""
    evidence: dict[str, Any] = {}
    nearest = searched.found.second
    if nearest is not None:
        evidence["second"] = summary(nearest)
    before = worst(searched.start.left[n] for n in rest)
    title = CATALOGUE["unexplained"].title
    return Diagnosis(
        case, dtype, backend, "unexplained", title, tuple(rest), False, before, worst(rest.values()), evidence
    )


def rounding_diagnoses(comparisons: Sequence[Comparison], zero_gradients: Collection[str]) -> Iterator[Diagnosis]:
    """For what is outside the tolerance though nobody is off: that it is rounding, or noise around zero."""
    rows: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        if c.verdict is Verdict.ROUNDING:
            kind = "degenerate-gradient" if c.tensor in zero_gradients else "rounding"
            rows.setdefault((c.actual, kind), []).append(c)
    for (backend, kind), found in rows.items():
        tensors = tuple(dict.fromkeys(c.tensor for c in found))
        ratio = worst(c.error_ratio[0] for c in found if c.error_ratio[0] is not None)
        evidence = {
            "required_rtol": {
                t: worst(c.metrics.required_rtol for c in found if c.tensor == t and c.metrics) for t in tensors
            },
            "compared_with": sorted({"the oracle" if c.expected == ORACLE else c.expected for c in found}),
        }
        title = CATALOGUE[kind].title
        yield Diagnosis(found[0].case, found[0].dtype, backend, kind, title, tensors, True, ratio, ratio, evidence)
