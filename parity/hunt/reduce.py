"""The smallest case that still shows a fault: fewer tensors, axes and elements, plain params, round numbers.

Sizes are cut by the judge's own reduction (`judge/diagnose/reduction.py`), here down to one element; what this module
adds is delta debugging of everything else. Every step keeps the fault: the same tensor of the same backend beyond its
error bound, finite if it was, of inputs on which its exact value still depends, and no further backend fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from math import isfinite, prod
from typing import Any

import numpy as np

from parity.cases.draw import TensorPlan, Values, generator
from parity.cases.dtypes import as_dtype, coarsest, held_by_all
from parity.cases.op import TensorShapes
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.hunt.bench import REFUSED, Fault, TimeUp, TrialCase, TrialResult
from parity.judge.bound.envelope import ERROR_BOUND, Array
from parity.judge.diagnose.reduction import Small, reduced, shapes_of
from parity.judge.failures import Failures

MOST_CALLS = 400
"""Trials per reduction; a case of 500 numbers takes about 100."""
ROUNDS = 2
CLEARLY = 8 * ERROR_BOUND
"""A smaller case must show a large error at least this clearly: one at the bound may not repeat."""
FEW_NUMBERS = 64
"""Up to this many elements are simplified one by one."""
DIGITS = (1, 2, 3, 4)
MOST_WHOLE = 1e6
ASIDE, ROUNDING = 2.0**-10, 1e-12
"""The relative change of an input, and the smallest change of the result that counts as an effect, in float64."""

Look = Callable[[TrialCase], TrialResult]


@dataclass
class Reducer:
    """Makes one fault's case smaller; `look` runs a trial, `seen` is the first one, and `ratio` its error ratio.

    `shown` is the last case that shows the fault.
    """

    seen: TrialResult
    fault: Fault
    ratio: float
    look: Look
    left: int = MOST_CALLS

    def __post_init__(self) -> None:
        self.shown: Small = (self.seen.trial.case, dict(self.seen.trial.inputs))
        self._least = max(ERROR_BOUND, min(self.ratio, CLEARLY))
        self._failed = {outcome.backend for outcome in self.seen.failed}
        self._needed = self.needed(self.seen.trial.case, self.seen.trial.inputs)

    def shows(self, case: CasePlan, inputs: Mapping[str, Array]) -> bool:
        """Whether a case shows the fault; False once all calls are spent."""
        if self.left <= 0:
            return False
        self.left -= 1
        try:
            seen = self.look(TrialCase(case, self.seen.trial.dtype, inputs))
        except TimeUp:
            self.left = 0
            return False
        if self._is_shown(seen, case, inputs):
            self.shown = case, dict(inputs)
            return True
        return False

    def _is_shown(self, seen: TrialResult, case: CasePlan, inputs: Mapping[str, Array]) -> bool:
        return (
            seen.faults.get(self.fault, 0.0) >= self._least
            and (self.fault in seen.nonfinite) == (self.fault in self.seen.nonfinite)
            and self._failed.issuperset(outcome.backend for outcome in seen.failed)
            and inputs.keys() & self._needed <= self.needed(case, inputs)
        )

    def needed(self, case: CasePlan, inputs: Mapping[str, Array]) -> frozenset[str]:
        """The inputs on which the exact value of the fault's tensor depends.

        None do where an axis is too short for what the op computes along it, such as the mean of one element.
        """
        _, tensor = self.fault

        wide = {name: values if values.dtype.kind == "i" else values.astype(float) for name, values in inputs.items()}
        reference = partial(evaluate, case.definition, case.params, dtype=float, gradients=case.gradients)
        try:
            with np.errstate(all="ignore"):
                exact = reference(wide, outputs=[tensor])[tensor]
                return frozenset(
                    name
                    for name, values in wide.items()
                    if values.dtype.kind != "i"
                    and differ(reference({**wide, name: aside(values, name)}, outputs=[tensor])[tensor], exact)
                )
        except REFUSED:
            return frozenset()


def aside(values: Array, name: str) -> Array:
    """Values that are all a little different."""
    step = ASIDE * generator(0, "aside", name).normal(size=values.shape)
    return np.asarray(values + step * np.where(values == 0, 1, np.abs(values)))


def differ(values: Array, others: Array) -> bool:
    """Whether some element differs by more than rounding."""
    return not np.allclose(values, others, rtol=ROUNDING, atol=0, equal_nan=True)


def in_all_dtypes(seen: TrialResult, fault: Fault, look: Look, dtypes: tuple[str, ...]) -> TrialCase:
    """The trial as a case in all of `dtypes`, if it shows the fault with numbers that all of them have."""
    trial = seen.trial
    shared = rounded_to_all((trial.case, dict(trial.inputs)), dtypes)
    shows = Reducer(seen, fault, seen.faults[fault], look).shows(*shared)
    return TrialCase(shared[0], trial.dtype, shared[1]) if shows else trial


def reduce_case(seen: TrialResult, fault: Fault, ratio: float, look: Look, failures: Failures) -> TrialCase:
    """The smallest case that shows `fault`, whose error ratio in the trial is `ratio`.

    A step that fails is noted in `failures`, and the next one goes on with the last case that shows the fault.
    """
    with failures.contained("asking which inputs matter"):
        small = shrunk(Reducer(seen, fault, ratio, look), failures)
        return TrialCase(written_out(*small), seen.trial.dtype, small[1])
    return seen.trial


def shrunk(reducer: Reducer, failures: Failures) -> Small:
    """The case after all steps."""
    small = reducer.shown
    for _ in range(ROUNDS):
        before = n_numbers(small)
        for doing, step in STEPS.items():
            reducer.shown = small
            with failures.contained(doing):
                reducer.shown = step(reducer, small)
            small = reducer.shown
        if n_numbers(small) == before:
            break
    return small


def cut(reducer: Reducer, small: Small) -> Small:
    """The case with fewer elements."""
    shorter = reduced(*small, reducer.shows, reducer.left, few=1)
    return shorter if n_numbers(shorter) < n_numbers(small) else small


def stepwise(reducer: Reducer, small: Small, steps: Callable[[Small], Iterator[Small]]) -> Small:
    """The case after every step that keeps the fault, each from the last that did."""
    while (better := next((c for c in steps(small) if reducer.shows(*c)), None)) is not None:
        small = better
    return small


def n_numbers(small: Small) -> int:
    """The numbers of all inputs."""
    return sum(array.size for array in small[1].values())


def rounded_to_all(small: Small, dtypes: tuple[str, ...]) -> Small:
    """The case in all dtypes, with numbers that all of them have."""
    case, inputs = small
    held = {n: values if values.dtype.kind == "i" else held_by_all(values, dtypes) for n, values in inputs.items()}
    return replace(case, dtypes=dtypes), held


def with_inputs(small: Small, inputs: Mapping[str, Array]) -> Small:
    """The case with only these inputs."""
    case, _ = small
    tensors = tuple(replace(p, shape=inputs[p.name].shape) for p in case.tensors if p.name in inputs)
    return replace(case, tensors=tensors), dict(inputs)


def without_gradients(small: Small) -> Iterator[Small]:
    """The forward pass alone."""
    case, inputs = small
    if case.gradients:
        forward = {name: values for name, values in inputs.items() if case.definition.input(name) is not None}
        yield with_inputs((replace(case, gradients=False), inputs), forward)


def without_optional(small: Small) -> Iterator[Small]:
    """Without each optional input."""
    case, inputs = small
    for item in case.definition.inputs:
        if item.optional and item.name in inputs:
            yield with_inputs(small, {name: values for name, values in inputs.items() if name != item.name})


def with_usual_params(small: Small) -> Iterator[Small]:
    """With each param at its default."""
    case, inputs = small
    for param in fields(case.params):
        if (
            param.default is MISSING
            or param.metadata.get("implied")
            or getattr(case.params, param.name) == param.default
        ):
            continue
        params = replace(case.params, **{param.name: param.default})
        if (shapes := shapes_with(small, params)) is not None:
            yield replace(case, params=params), fitting(inputs, shapes)


def shapes_with(small: Small, params: Any) -> TensorShapes | None:
    """The shapes with other params, if the inputs keep theirs and grad_outputs are large enough."""
    case, inputs = small
    try:
        shapes = case.definition.infer_shapes(params, shapes_of(case, inputs))
    except REFUSED:
        return None
    given = {f"grad.{name}": shape for name, shape in shapes.outputs.items() if f"grad.{name}" in inputs}
    fits = all(
        len(shape) == inputs[name].ndim and all(n <= m for n, m in zip(shape, inputs[name].shape, strict=True))
        for name, shape in given.items()
    )
    return shapes if fits and all(s == inputs[n].shape for n, s in shapes.inputs.items() if n in inputs) else None


def fitting(inputs: Mapping[str, Array], shapes: TensorShapes) -> dict[str, Array]:
    """The inputs, with grad_outputs cut to their outputs."""
    every = {f"grad.{name}": shape for name, shape in shapes.outputs.items()}
    return {n: v[tuple(map(slice, every[n]))] if n in every else v for n, v in inputs.items()}


def with_fewer_axes(small: Small) -> Iterator[Small]:
    """Without an axis of one element of the first input, and of what goes with it."""
    case, inputs = small
    op, first = case.definition, case.tensors[0].name
    shape = inputs[first].shape
    for axis in [axis for axis, size in enumerate(shape) if size == 1] if len(shape) > 1 else ():
        given = (*shape[:axis], *shape[axis + 1 :])
        for params in shortened(case.params):
            try:
                shapes = op.infer_shapes(params, {first: given})
            except REFUSED:
                continue
            every = {**shapes.inputs, **{f"grad.{name}": s for name, s in shapes.outputs.items()}, first: given}
            if all(name in every and prod(every[name]) == values.size for name, values in inputs.items()):
                yield with_inputs(
                    (replace(case, params=params), inputs), {n: v.reshape(every[n]) for n, v in inputs.items()}
                )


def shortened(params: Any) -> Iterator[Any]:
    """The params, then without the first item of a tuple of them."""
    yield params
    for name, value in vars(params).items():
        if isinstance(value, tuple) and len(value) > 1:
            yield replace(params, **{name: value[1:]})


def rounder(reducer: Reducer, small: Small) -> Small:
    """The case with rounder numbers: whole tensors, halves of them, and if there are few, each element."""
    for name in [plan.name for plan in small[0].tensors]:
        for simpler in simplifications(small[1][name]):
            small = in_parts(reducer, small, name, simpler)
    return small


def simplifications(values: Array) -> Iterator[Callable[[Array], Array]]:
    """What may make numbers rounder, the roundest first; integers only become 0."""
    yield np.zeros_like
    if values.dtype.kind != "i":
        yield np.ones_like
        yield np.rint
        yield from (partial(to_digits, digits=digits) for digits in DIGITS)


def to_digits(values: Array, digits: int) -> Array:
    """The numbers with so many decimal digits."""
    texts = [f"{value:.{digits - 1}e}" for value in values.ravel().tolist()]
    return np.array(list(map(float, texts))).reshape(values.shape)


def in_parts(reducer: Reducer, small: Small, name: str, simpler: Callable[[Array], Array]) -> Small:
    """The case with the numbers of a tensor made simpler, all at once or where it can be: halves, then elements."""
    case, inputs = small
    whole = inputs[name]
    held = held_in(simpler(whole), case.dtypes)
    better = np.array([len(short(n)) < len(short(v)) for v, n in zip(whole.ravel(), held.ravel(), strict=True)], bool)
    parts = [np.flatnonzero(better)]
    while parts:
        part = parts.pop()
        if not part.size:
            continue
        changed = inputs[name].copy()
        changed.flat[part] = held.flat[part]
        candidate = (case, {**inputs, name: changed})
        if reducer.shows(*candidate):
            inputs = candidate[1]
        elif part.size > 1 and (whole.size <= FEW_NUMBERS or part.size == better.sum()):
            parts += np.array_split(part, 2)
    return case, inputs


def held_in(values: Array, dtypes: tuple[str, ...]) -> Array:
    """The numbers as all dtypes have them."""
    return values if values.dtype.kind == "i" else held_by_all(np.asarray(values), dtypes)


def short(value: Any) -> str:
    """The shortest text of a number."""
    if isinstance(value, np.integer):
        return repr(int(value))
    number = float(np.format_float_positional(value, unique=True)) if isfinite(value) else float(value)
    whole = isfinite(number) and number.is_integer() and abs(number) < MOST_WHOLE and (number or not np.signbit(number))
    return repr(int(number)) if whole else repr(number)


def written_out(case: CasePlan, inputs: Mapping[str, Array]) -> CasePlan:
    """The case with literal values."""
    tensors = tuple(
        TensorPlan(p.name, inputs[p.name].shape, Values(literal(inputs[p.name], case.dtypes)), integers=p.integers)
        for p in case.tensors
    )
    return replace(case, tensors=tensors)


def literal(values: Array, dtypes: tuple[str, ...]) -> Any:
    """Nested lists of the shortest numbers that are these values in every dtype."""
    if values.dtype.kind == "i":
        return values.tolist()
    narrow = as_dtype(values, coarsest(dtypes))
    return np.array([float(short(v)) for v in narrow.ravel()]).reshape(values.shape).tolist()


STEPS: Mapping[str, Callable[[Reducer, Small], Small]] = {
    "leaving out the gradients": partial(stepwise, steps=without_gradients),
    "leaving out inputs": partial(stepwise, steps=without_optional),
    "setting params to their defaults": partial(stepwise, steps=with_usual_params),
    "cutting sizes": cut,
    "leaving out axes": partial(stepwise, steps=with_fewer_axes),
    "rounding numbers": rounder,
}
"""What makes a case smaller, in words and in order."""
