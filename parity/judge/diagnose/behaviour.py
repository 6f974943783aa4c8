"""Faults that are not formulas, in memory, threads and batches, shown by calling the kernel again.

Each behaviour takes a kernel, a case with its inputs, the kernel's result in the run and a bound, and returns the
evidence as JSON values, or None if the kernel does not behave so or gave no result. A bound is, for each tensor, the
largest error of a careful implementation: a number, or an array that broadcasts to the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from parity.cases.dtypes import as_dtype
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import WORK, Array, size
from parity.judge.diagnose.evaluator import Observed
from parity.judge.diagnose.growth import resized
from parity.judge.diagnose.kernel import Kernel
from parity.judge.diagnose.probes import generic
from parity.judge.diagnose.reduction import Dim, shapes_of, sizes_of

Inputs = Mapping[str, Array]
Bound = Mapping[str, Array | float]
Evidence = dict[str, Any]
Behaviour = Callable[[Kernel, CasePlan, str, Inputs, Observed, Bound], Evidence | None]

Part = tuple[slice, ...]

REPEATS = 5
MANY = 11
"""With fewer calls, a kernel that is wrong in one call of ten would look as if only its first call differed."""
CLEARLY = 32.0
"""An error larger by this factor is not rounding."""
BOTH = 2.0
"""Two results of a careful implementation for the same inputs differ by two bounds at most."""
SAME = 0.01
"""A row counts as the same alone and in the batch if the reference, in a wider dtype, differs by this part of the
bound."""
CHANGED = "input."
BY_ROW = "batch-variant"


def mutated(kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, _: Observed, __: Bound) -> Evidence | None:
    """The op writes into an input whose new value is not an output. One call."""
    answer = kernel(case, dtype, inputs) or {}
    names = [name.removeprefix(CHANGED) for name in answer if name.startswith(CHANGED)]
    changed = {n: int(np.count_nonzero(answer[CHANGED + n] != as_dtype(inputs[n], dtype))) for n in names}
    return {"inputs": names, "elements_changed": changed} if names else None


def stateful(kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, _: Observed, bound: Bound) -> Evidence | None:
    """A call's result depends on the calls before it. Seven calls, A A B A A B A, and four of other sizes.

    `accumulated`: every call adds its result to the previous one. `previous`: a call after B differs from one after A,
    in the same way each time. `first of its size`: the first call with a size is right, whatever its inputs, and the
    second one is wrong.
    """
    others = {**inputs, **{n: v for n, v in generic(case, 1)[1].items() if v.dtype.kind == "f"}}
    answers = answered(kernel, case, dtype, [inputs, inputs, others, inputs, inputs, others, inputs])
    accumulated, previous = [], []
    for name in common(answers):
        first, second, other, third, fourth, _other, last = (answer[name] for answer in answers)
        if adds_up([(first, second), (other, third), (third, fourth)], bound[name]):
            accumulated.append(name)
        elif exceeds(third, second, bound[name]) and equal(third, last) and equal(second, fourth):
            previous.append(name)
    same = [answers[i] for i in (0, 1, 3, 4, 6)] if answers else []
    if not accumulated + previous and any(not equal(same[0][n], a[n]) for n in common(same) for a in same):
        counted = counting(kernel, case, dtype, inputs, bound)
        return {"depends_on": "number of calls", "tensors": counted} if counted else None
    if accumulated + previous:
        return {"depends_on": "accumulated" if accumulated else "previous", "tensors": accumulated + previous}
    seconds = wrong_second_calls(kernel, case, dtype, inputs)
    return {"depends_on": "first of its size", "tensors": seconds} if seconds else None


def counting(kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, bound: Bound) -> list[str]:
    """The tensors whose results for the same inputs repeat bit for bit in turn, or move in one direction."""
    answers = answered(kernel, case, dtype, [inputs] * MANY)
    names = [n for n in common(answers) if any(exceeds(answers[0][n], answer[n], bound[n]) for answer in answers)]
    return [n for n in names if in_turn(values := [answer[n] for answer in answers]) or one_way(values)]


def in_turn(results: Sequence[Array]) -> bool:
    """Whether results repeat bit for bit with a period."""
    return any(
        all(equal(one, other) for one, other in zip(results, results[n:], strict=False))
        for n in range(2, len(results) // 2 + 1)
    )


def one_way(results: Sequence[Array]) -> bool:
    """Whether each element that changes does so in one direction from call to call."""
    steps = np.diff(np.stack(results).astype(np.float64), axis=0)
    moved, along = steps.any(axis=0), (steps > 0).all(axis=0) | (steps < 0).all(axis=0)
    return bool(moved.any() and np.all(along | ~moved))


LATER = (7, 10)
"""The inputs of calls after the second one."""


def relative_errors(kernel: Kernel, case: CasePlan, dtype: str, asked: Sequence[Inputs]) -> list[dict[str, float]]:
    """The relative error of each tensor in some calls; none unless every call has an answer."""
    answers = answered(kernel, case, dtype, asked)
    exact = [evaluated(case, dtype, given) for given in asked[: len(answers)]]
    return [
        {n: relative_error(answer.get(n), right[n]) for n in right}
        for answer, right in zip(answers, exact, strict=True)
    ]


def wrong_second_calls(kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs) -> list[str]:
    """The tensors that are right in the first call with a new size, and wrong in the second one and two more, for two
    sizes and either order of the inputs."""
    wrong: list[set[str]] = []
    larger = resized(case, inputs)
    for order in ((1, 4), (4, 1)):
        larger = None if larger is None else resized(*larger)
        if larger is None:
            return []
        asked = [generic(larger[0], number)[1] for number in order]
        errors = relative_errors(kernel, larger[0], dtype, asked)
        limits = {n: max(CLEARLY * part, SAME) for n, part in errors[0].items()} if len(errors) > 1 else {}
        seconds = {n for n, limit in limits.items() if errors[1][n] > limit}
        later = relative_errors(kernel, larger[0], dtype, [generic(larger[0], n)[1] for n in LATER]) if seconds else []
        wrong.append({n for n in seconds if later and all(parts[n] > limits[n] for parts in later)})
    return sorted(set.intersection(*wrong))


def relative_error(values: Array | None, exact: Array | None) -> float:
    """The error relative to the exact values (root mean squares); inf without one of them."""
    if values is None or exact is None or values.shape != exact.shape:
        return float("inf")
    error, whole = size(np.asarray(values - exact, np.float64)).rms, size(np.asarray(exact, np.float64)).rms
    return error / whole if whole else error


def nondeterministic(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, observed: Observed, bound: Bound
) -> Evidence | None:
    """Results for the same inputs differ by more than rounding, and do not accumulate. Five calls."""
    answers = answered(kernel, case, dtype, [inputs] * REPEATS)
    elements: dict[str, int] = {}
    for name in common(answers):
        given = [answer[name] for answer in answers]
        run = observed.get(name)
        # Without a bound it holds indices, of which a run's observed ones may be another valid choice.
        bounded = run is not None and run.shape == given[0].shape and np.any(bound[name])
        samples = [*given, run] if run is not None and bounded else given
        apart = np.logical_or.reduce([beyond(sample, given[0], bound[name]) for sample in samples])
        if apart.any() and not adds_up(list(pairwise(given)), bound[name]):
            elements[name] = int(apart.sum())
    return {"tensors": list(elements), "elements": elements, "calls": REPEATS} if elements else None


def batch_variant(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, _: Observed, bound: Bound
) -> Evidence | None:
    """A row has another result alone than in the batch, although the reference has the same.

    A row is one index of axes that can change alone; the first and the last of each kind are called. One call, one for
    each row, and one if a row differs: a row among copies of itself shows whether the values of its `neighbours`
    matter, or only their number (`size`).
    """
    together = kernel(case, dtype, inputs) or {}
    exact = evaluated(case, dtype, inputs) if together else {}
    bound = for_size(bound, together, exact)
    for row in rows_apart(kernel, case, dtype, inputs, together, exact, bound):
        copies = {name: np.array(np.broadcast_to(row.inputs[name], array.shape)) for name, array in inputs.items()}
        among = kernel(case, dtype, copies) or together
        same = {name: among[name][row.parts[name]] for name in row.wrong if name in among}
        kind = "neighbours" if unlike(together, same, row.parts, bound) else "size"
        return {"depends_on": kind, **row.evidence}
    return None


def for_size(bound: Bound, given: Mapping[str, Array], exact: Mapping[str, Array]) -> Bound:
    """The bound for results that are larger than the reference's, whose rounding errors are larger, too."""
    sizes = {n: (np.abs(given[n]).max(initial=0), np.abs(exact[n]).max(initial=0)) for n in exact if n in given}
    factors = {n: max(1.0, largest / right) for n, (largest, right) in sizes.items() if right and np.isfinite(largest)}
    return {n: limit * factors.get(n, 1.0) for n, limit in bound.items()}


@dataclass(frozen=True)
class DifferingRow:
    """A row whose results differ in the tensors `wrong`: its case and inputs, its part of each tensor, its results
    alone, and the bound of each."""

    case: CasePlan
    dim: Dim
    start: int
    inputs: Inputs
    parts: Mapping[str, Part]
    alone: Mapping[str, Array]
    wrong: Sequence[str]
    bound: Bound

    @property
    def evidence(self) -> Evidence:
        """Which row of how many, along which axes."""
        return {"tensors": self.wrong, "axes": dict(self.dim.axes), "row": self.start, "rows": self.dim.size}


def rows_apart(
    kernel: Kernel,
    case: CasePlan,
    dtype: str,
    inputs: Inputs,
    together: Mapping[str, Array],
    exact: Mapping[str, Array],
    bound: Bound,
) -> Iterator[DifferingRow]:
    """The rows whose results alone differ from those `together`; one call for each row."""
    for dim, start in rows_of(case, inputs) if together else ():
        small, row = dim.cut((case, dict(inputs)), 1, start)
        if not all(is_part(row[name].shape, values.shape) for name, values in inputs.items()):
            continue
        try:
            parts = independent(exact, evaluated(small, dtype, row), dim, start, bound)
        except ValueError:  # A user's reference refuses such a row, as one class of five where labels say the third.
            continue
        alone = (kernel(small, dtype, row) if parts else None) or {}
        wrong = unlike(together, alone, parts, bound)
        if wrong:
            limits = {n: np.broadcast_to(np.asarray(bound[n]), exact[n].shape)[parts[n]] for n in wrong}
            yield DifferingRow(small, dim, start, row, parts, alone, wrong, limits)


def is_part(row: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a row can be repeated to the whole: each axis keeps its length or has length 1."""
    return len(row) == len(whole) and all(n in (1, m) for n, m in zip(row, whole, strict=True))


def layout_dependent(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, observed: Observed, bound: Bound
) -> Evidence | None:
    """The results are right once no tensor is strided, unaligned or in the memory of another.

    One call, and one for each such tensor alone, which names those that matter.
    """
    plain = (kernel(without_layouts(case), dtype, inputs) if case.layouts else None) or {}
    given = {name: values for name, values in observed.items() if values is not None}
    exact = evaluated(case, dtype, inputs) if plain else {}
    tensors = [n for n in exact if n in given and n in plain and exceeds(given[n], exact[n], bound[n])]
    if not tensors or any(exceeds(plain[n], exact[n], bound[n]) for n in tensors):
        return None
    plans = {plan.name: plan for plan in case.tensors if plan.name in case.layouts}
    matter = []
    for name in plans:
        answer = kernel(without_layouts(case, name), dtype, inputs) or {}
        if any(n in answer and exceeds(answer[n], exact[n], bound[n]) for n in tensors):
            matter.append(name)
    kinds = {plans[name].layout or f"in the memory of {plans[name].alias}" for name in matter or plans}
    return {"depends_on": " and ".join(sorted(kinds)), "inputs": matter or list(plans), "tensors": tensors}


def without_layouts(case: CasePlan, but: str = "") -> CasePlan:
    """The case with all tensors but one contiguous and in memory of their own."""
    tensors = (plan if plan.name == but else replace(plan, layout="", alias="") for plan in case.tensors)
    return replace(case, tensors=tuple(tensors))


def only_first(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, first: Mapping[str, Array], bound: Bound
) -> Evidence | None:
    """The first call of a run returned what no later one does, and the later ones agree. Eleven calls."""
    answers = answered(kernel, case, dtype, [inputs] * MANY)
    names = [name for name in common(answers) if name in first]
    same = [name for name in names if all(equal(answers[0][name], answer[name]) for answer in answers)]
    others = [name for name in same if exceeds(first[name], answers[0][name], bound[name])]
    return {"depends_on": "first", "tensors": others} if others and same == names else None


def apart(*calls: Mapping[str, Array], bound: Bound) -> Evidence | None:
    """Where calls of a run differ by more than two bounds, with the number of elements."""
    pairs = [(name, pair) for pair in pairwise(calls) for name in bound if all(name in call for call in pair)]
    elements = {name: int(beyond(one[name], other[name], bound[name]).sum()) for name, (one, other) in pairs}
    wrong = {name: count for name, count in elements.items() if count}
    return {"tensors": list(wrong), "elements": wrong, "calls": len(calls)} if wrong else None


BEHAVIOURS: Mapping[str, Behaviour] = {
    "input-mutated": mutated,
    "stateful": stateful,
    "nondeterministic": nondeterministic,
    BY_ROW: batch_variant,
    "layout-dependent": layout_dependent,
}
"""The behaviours by id in the catalogue."""
UNREPEATABLE = ("stateful", "nondeterministic")
"""Results of such a kernel differ from call to call, so no other behaviour can be tested."""


def behaviours(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Inputs, observed: Observed, bound: Bound
) -> Iterator[tuple[str, Evidence]]:
    """A kernel's behaviours that are not formulas, with the evidence; 22 to 30 calls, more if tensors are strided."""
    for name, behaviour in BEHAVIOURS.items():
        evidence = behaviour(kernel, case, dtype, inputs, observed, bound)
        if evidence is not None:
            yield name, evidence
            if name in UNREPEATABLE:
                return


def answered(kernel: Kernel, case: CasePlan, dtype: str, asked: Sequence[Inputs]) -> list[Mapping[str, Array]]:
    """All results in order; none if one is missing."""
    answers = []
    for inputs in asked:
        answer = kernel(case, dtype, inputs)
        if answer is None:
            return []
        answers.append(answer)
    return answers


def common(answers: Sequence[Mapping[str, Array]]) -> list[str]:
    """The outputs that every result has."""
    first = answers[0] if answers else {}
    return [n for n in first if not n.startswith(CHANGED) and all(n in answer for answer in answers)]


def beyond(one: Array, other: Array, bound: Array | float) -> Array:
    """Where two results differ by more than the bounds of both; NaN differs from numbers only."""
    with np.errstate(all="ignore"):
        near: Array = np.abs(one.astype(np.float64) - other.astype(np.float64)) <= BOTH * np.asarray(bound, np.float64)
    alike: Array = near | (one == other) | (np.isnan(one) & np.isnan(other))
    return ~alike


def exceeds(one: Array, other: Array, bound: Array | float) -> bool:
    """Whether two results differ anywhere by more than the bounds of both."""
    return bool(beyond(one, other, bound).any())


def equal(one: Array, other: Array) -> bool:
    """Whether two results are the same, bit for bit."""
    return one.tobytes() == other.tobytes()


def adds_up(steps: Sequence[tuple[Array, Array]], bound: Array | float) -> bool:
    """Whether all pairs differ by the same nonzero amount."""
    before, after = steps[0]
    if not exceeds(before, after, bound):
        return False
    with np.errstate(invalid="ignore"):
        added = [later.astype(np.float64) - earlier.astype(np.float64) for earlier, later in steps]
    rounding = np.finfo(after.dtype).eps * np.abs(np.asarray(steps[-1][1], np.float64))
    return not any(exceeds(one, added[0], np.asarray(bound, np.float64) + rounding) for one in added[1:])


def rows_of(case: CasePlan, inputs: Inputs) -> Iterator[tuple[Dim, int]]:
    """The first and the last row of each kind, if the op accepts one alone and integers mean the same there."""
    integers = case.definition.infer_shapes(case.params, shapes_of(case, inputs)).integers
    for dim in sizes_of(case, inputs):
        sized = dim.shapes((case, dict(inputs)), 1)
        if sized is not None and sized[1].integers == integers:
            yield from ((dim, start) for start in (0, dim.size - 1))


def evaluated(case: CasePlan, dtype: str, inputs: Inputs) -> Mapping[str, Array]:
    """The exact outputs."""
    with np.errstate(all="ignore"):
        return evaluate(case.definition, case.params, inputs, dtype=WORK[dtype], gradients=case.gradients)


def independent(
    together: Mapping[str, Array], alone: Mapping[str, Array], dim: Dim, start: int, bound: Bound
) -> dict[str, Part]:
    """The outputs whose row the reference computes the same alone and in the batch, with that row's part of each; none
    if some output's row depends on other rows: a wrong formula may then make another output's depend on them."""
    parts = {}
    for name, whole in together.items():
        row = alone[name]
        if row.ndim != whole.ndim:
            continue
        part = tuple(
            slice(start, start + 1) if n == dim.size != m else slice(m)
            for n, m in zip(whole.shape, row.shape, strict=True)
        )
        limit = SAME * np.broadcast_to(np.asarray(bound[name], np.float64), whole.shape)[part]
        if whole.shape == row.shape or row.shape != whole[part].shape:
            continue
        if exceeds(whole[part], row, limit):
            return {}
        if row.any():  # Zeros, as behind a ReLU, may be equal by chance.
            parts[name] = part
    return parts


def unlike(
    together: Mapping[str, Array], alone: Mapping[str, Array], parts: Mapping[str, Part], bound: Bound
) -> list[str]:
    """The outputs whose part in the batch differs from the result alone."""
    of_rank = {n: together[n] for n, part in parts.items() if n in together and together[n].ndim == len(part)}
    rows = {n: values[parts[n]] for n, values in of_rank.items()}
    limits = {n: np.broadcast_to(np.asarray(bound[n], np.float64), v.shape)[parts[n]] for n, v in of_rank.items()}
    alike = [n for n, row in rows.items() if n in alone and row.shape == alone[n].shape]
    return [n for n in alike if exceeds(rows[n], alone[n], limits[n])]
