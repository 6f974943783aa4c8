"""The result of a search as diagnoses: a cause, its tensors, the residuals without and with it, and evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.config.plan import ORACLE
from parity.diagnoses import catalogue
from parity.judge.bound.choices import IN_ORDER, OTHER_EQUALS, Chosen, Mask
from parity.judge.bound.envelope import ERROR_BOUND, size
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.approximation import APPROXIMATED
from parity.judge.diagnose.causes import Cause, Result
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.edits import LIMITS
from parity.judge.diagnose.evaluator import WIDE, Alteration, Evaluator, Predicted, ratio, worst
from parity.judge.diagnose.explanation import KernelExplanation, predicted
from parity.judge.diagnose.expressions import expression_of
from parity.judge.diagnose.search import SearchResult
from parity.outcome import CellOutcome

CHOICE, INDEX_CHOICE = "gradient-choice", "index-choice"
MUTATED = "input-mutated"

CellKey = tuple[str, str, str]
"""A case, a dtype and a backend."""


def diagnoses_of(cell: CellKey, result: SearchResult) -> list[Diagnosis]:
    """The causes, formulas before lost digits, the largest effect first; before them a note if others explain as much;
    last, what is unexplained."""
    best, start = result.best, result.start
    rows = [diagnosis(cell, cause, needing, result) for cause, needing in stated(result)]
    rows.sort(key=lambda row: (row.id in NARROWED, -(row.residual_before or 0.0)))
    if result.rivals:
        rows.insert(0, not_identifiable(cell, result))
    named = {tensor for row in rows for tensor in row.tensors}
    rest = {
        n: best.left[n]
        for n in start.left
        if best.left[n] >= ERROR_BOUND or (start.left[n] >= ERROR_BOUND and n not in named)
    }
    for name, behaviour in result.behaviours:
        # A growing sum or an approximated function belongs to some tensors; other behaviours affect all.
        partial = "slope" in behaviour or name == APPROXIMATED
        tensors = tuple(n for n in start.wrong if not partial or n in behaviour["tensors"])
        before = worst(start.left[n] for n in tensors)
        behaviour = {**behaviour, **computed_narrow(name, tensors, start.evaluator)}
        rows.append(Diagnosis(*cell, name, catalogue()[name].title, tensors, False, before, before, behaviour))
        rest = {n: value for n, value in rest.items() if n not in tensors}
    if rest:
        evidence: dict[str, Any] = {} if result.second is None else {"second": summary(result.second)}
        evidence |= {"edits_not_tried": result.untried} if result.untried else {}
        before, after = worst(start.left[n] for n in rest), worst(rest.values())
        title = catalogue()["unexplained"].title
        rows.append(Diagnosis(*cell, "unexplained", title, tuple(rest), False, before, after, evidence))
    return rows


def stated(result: SearchResult) -> list[tuple[Cause, Mapping[str, float]]]:
    """The causes with the tensors that need them, without limits of an arbitrary number that only make what others
    compute finite."""
    needed = [(cause, needing) for cause, needing in result.needed if needing]
    kept = [(cause, needing) for cause, needing in needed if not is_guard(result.best, cause, needing)]
    covered = {name for _, needing in kept for name in needing}
    return kept if all(covered.issuperset(needing) for _, needing in needed) else needed


def is_guard(best: KernelExplanation, cause: Cause, tensors: Collection[str]) -> bool:
    """Whether a fitted limit changes nothing of these tensors but what is not finite without it."""
    edits = () if cause.alteration is None else cause.alteration.edits
    if not edits or any(edit.kind not in LIMITS for edit in edits):
        return False
    without = predicted(best.evaluator, [other for other in best.causes if other is not cause])
    return without is not None and all(n in without and is_undefined(without[n], best.prediction[n]) for n in tensors)


def is_undefined(one: Predicted, other: Predicted) -> bool:
    """Whether a prediction equals another one where it is finite, and is not finite everywhere."""
    if one.values is None or other.values is None:
        return False
    finite = np.isfinite(one.values)
    values = np.where(finite, one.values, other.values)
    return not finite.all() and ratio(values, other) < ERROR_BOUND


NARROWED = {"narrow-accumulation": "running totals", "reduced-precision": "steps"}
"""What a kernel computes in the case's dtype if a behaviour shows that it loses digits."""


def computed_narrow(name: str, tensors: Sequence[str], evaluator: Evaluator) -> dict[str, str]:
    """The computation that loses digits in a narrow dtype, in words; nothing for other behaviours."""
    if name not in NARROWED:
        return {}
    result = Result(f"{{}} with {NARROWED[name]} in {evaluator.dtype}")
    return {"expression": expression_of(evaluator, Cause(name, results=dict.fromkeys(tensors, result)), Alteration())}


def diagnosis(cell: CellKey, cause: Cause, needing: Mapping[str, float], result: SearchResult) -> Diagnosis:
    """One cause."""
    best = result.best
    left = worst(best.left[n] for n in needing)
    evidence: dict[str, Any] = {"parameters": plain(cause.parameters)}
    if result.second is not None:
        evidence["second"] = summary(result.second)
    if result.rivals:
        evidence["not_told_from"] = [summary(rival) for rival in result.rivals]
    if result.n_predicted:
        evidence["further_inputs_predicted"] = result.n_predicted
    if result.taken_from:
        evidence["first_found_in"] = result.taken_from
    if cause.alteration is not None and cause.alteration.unstable:
        evidence["sizes"] = {n: sizes(best, n) for n in needing if best.prediction[n].unstable}
    expression = best.expression(cause)
    if expression:
        evidence["expression"] = expression
    title = catalogue()[cause.id].title
    return Diagnosis(
        *cell, cause.id, title, tuple(needing), left < ERROR_BOUND, worst(needing.values()), left, evidence
    )


def sizes(best: KernelExplanation, tensor: str) -> dict[str, float | None]:
    """The error, that of the suspected algorithm and that of a careful implementation (root mean squares)."""
    values, predicted = best.observed[tensor], best.prediction[tensor]
    error = None
    if values is not None and predicted.values is not None:
        error = size(values.astype(predicted.values.dtype) - predicted.values).rms
    careful = best.evaluator.base[tensor].envelope.rms
    return {"error": error, "this_algorithm": predicted.envelope.rms / WIDE, "careful_code": careful}


def summary(explanation: KernelExplanation) -> dict[str, Any]:
    """An explanation in short."""
    edits = [c for c in explanation.causes if c.alteration is not None and c.alteration.edits]
    expressions = "; ".join(filter(None, map(explanation.expression, edits)))
    return {
        "id": " + ".join(cause.id for cause in explanation.causes),
        "parameters": plain({k: v for cause in explanation.causes for k, v in cause.parameters.items()}),
        **({"expression": expressions} if expressions else {}),
        "residual_after": worst(explanation.left.values()),
    }


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON values."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in parameters.items()}


def not_identifiable(cell: CellKey, result: SearchResult) -> Diagnosis:
    """Several explanations fit the data; the evidence has inputs that would distinguish them."""
    explanations = [result.best, *result.rivals]
    shown_by = dict.fromkeys(c.shown_by for explanation in explanations for c in explanation.causes if c.shown_by)
    candidates = [summary(explanation) for explanation in explanations]
    title = f"{' or '.join(dict.fromkeys(str(c['id']) for c in candidates))}: this case cannot distinguish them"
    evidence = {"candidates": candidates, "told_apart_by": "; ".join(shown_by)}
    before, after = (worst(explanation.left.values()) for explanation in (result.start, result.best))
    return Diagnosis(*cell, "not-identifiable", title, tuple(result.start.wrong), False, before, after, evidence)


def changed_diagnoses(
    cell: tuple[str, str], outcomes: Mapping[str, CellOutcome], inputs: Mapping[str, Any]
) -> Iterator[Diagnosis]:
    """Diagnoses of backends that change inputs in place."""
    for backend, outcome in outcomes.items():
        arrays = {name: output.values for name, output in outcome.changed.items() if output.values is not None}
        elements = {name: n_changed(array, inputs[name]) for name, array in arrays.items()}
        tensors = tuple(f"input.{name}" for name in outcome.changed)
        if tensors:
            evidence = {"inputs": list(outcome.changed), "elements_changed": elements}
            title = catalogue()[MUTATED].title
            yield Diagnosis(*cell, backend, MUTATED, title, tensors, True, evidence=evidence)


def n_changed(after: Any, before: Any) -> int:
    """How many elements of an input have changed; all if its shape has."""
    return int(np.count_nonzero(after != before) if after.shape == before.shape else after.size)


def choice_diagnoses(
    cell: tuple[str, str], choices: Mapping[str, Chosen], ratios: Callable[[str], Mapping[str, float]]
) -> Iterator[Diagnosis]:
    """Diagnoses of backends that took another valid gradient than the oracle, in tensors without other errors."""
    for backend, chosen in choices.items():
        left = {
            name: ratio for name, ratio in ratios(backend).items() if name in chosen.tensors and ratio < ERROR_BOUND
        }
        evidence = {
            "chosen": {backend: chosen.backend, "the oracle": chosen.oracle},
            "elements": {name: int(chosen.valid[name].sum()) for name in left},
        }
        after, title = worst(left.values()), catalogue()[CHOICE].title
        if left:
            yield Diagnosis(*cell, backend, CHOICE, title, tuple(left), True, after, after, evidence)


def index_diagnoses(cell: tuple[str, str], chosen: Mapping[tuple[str, str], Mask]) -> Iterator[Diagnosis]:
    """A diagnosis for each backend's tensor of indices that are right, and not the oracle's."""
    for (backend, tensor), mask in chosen.items():
        evidence = {
            "chosen": {backend: OTHER_EQUALS, "the oracle": IN_ORDER},
            "elements": {tensor: int(mask.sum())},
        }
        yield Diagnosis(
            *cell, backend, INDEX_CHOICE, catalogue()[INDEX_CHOICE].title, (tensor,), True, 0.0, 0.0, evidence
        )


def rounding_diagnoses(comparisons: Sequence[Comparison], zero_gradients: Collection[str]) -> Iterator[Diagnosis]:
    """Diagnoses of tensors that exceed the tolerance but not the error bound: rounding, or noise around zero."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        if c.verdict is Verdict.ROUNDING:
            kind = "degenerate-gradient" if c.tensor in zero_gradients else "rounding"
            groups.setdefault((c.actual, kind), []).append(c)
    for (backend, kind), group in groups.items():
        tensors = tuple(dict.fromkeys(c.tensor for c in group))
        ratio = worst(c.error_ratio.actual for c in group if c.error_ratio.actual is not None)
        evidence = {
            "required_rtol": {
                t: worst(c.required_rtol for c in group if c.tensor == t and c.required_rtol is not None)
                for t in tensors
            },
            "compared_with": sorted({"the oracle" if c.expected == ORACLE else c.expected for c in group}),
        }
        title = catalogue()[kind].title
        yield Diagnosis(group[0].case, group[0].dtype, backend, kind, title, tensors, True, ratio, ratio, evidence)
