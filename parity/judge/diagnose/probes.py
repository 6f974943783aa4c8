"""Inputs on which explanations differ, drawn from the op's own definition.

Equal options, an eps far below the variance, equal rows, a weight of 1 and a first step make different formulas give
the same numbers. Only an op's declared inputs, params and shapes are used here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from parity.cases.draw import Constant, Draw, Normal, Shape, Uniform, generator
from parity.cases.op import Input, Op, TensorShapes
from parity.cases.oracle import evaluate
from parity.cases.replay import lowest, spaced, whole_numbers
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.reduction import shapes_of
from parity.judge.failures import RefusedInputsError

AWAY = 0.25
"""Drawn values keep this distance from a tensor's initial values, such as a weight of 1 or a bias of 0."""
APART = 0.05
"""Options keep this distance, relative to their value, from each other and from their complements (`1 - beta`)."""
MOST_DRAWS = 1000
SMALL, LARGE, ABOVE = (0.08, 0.45), (0.55, 0.92), (1.2, 1.9)
"""The ranges of options below a half, below 1, and from 1 on (times their value). An eps of .08 to .45 is a tenth of
the variance or more."""
KEEPS_SPECIAL, KEEPS_ALL = 1, 2
"""Residues modulo 3 of the numbers that keep options."""
CHOOSING = (1.0, 2.0)
"""Values for which kernels have a formula of their own."""
TINY = 0.01
VARIED = (0.5, 1.5)
"""The factors by which the magnitudes of a user's elements change."""
NEAR_OWN = (0.8, 1.2)
"""Those where the reference takes few other inputs than its own."""
STRENGTHS = (1.0, 0.5, 0.0)
"""How much the spread of rows varies; less if the reference is not finite, because states contradict each other."""


def generic(case: CasePlan, number: int, user: Mapping[str, Array] | None = None) -> tuple[CasePlan, dict[str, Array]]:
    """A case of the same op and the same shapes with generic options and inputs, the same for the same `number`.

    Backends may lack branches, or reject values of options. Of three numbers, the first changes all options; the second
    keeps those that are 0 or 1, and counters; the third keeps all, with data so small that the smallest option is a
    tenth of their square. All values are exact in float32 and in the case's dtypes. Where the reference, a user's for
    example, fails with other options, it keeps its own. Where it fails with those, its own inputs vary. Raises
    RefusedInputsError where it fails with these, too.

    Inputs of an op that does not say which of them is the data are no larger than those of the `user`: with large
    weights, what a recurrence computes depends on the last digits.
    """
    op = case.definition
    plans = {plan.name: plan for plan in case.tensors}
    given = {plan.name: np.empty(plan.shape) for plan in case.tensors}
    shapes = op.infer_shapes(case.params, shapes_of(case, given))
    params = case.params if number % 3 == KEEPS_ALL else with_options(op, case.params, shapes, number)
    tiny = min((value for value in numbers_in(case.params) if 0 < value < TINY), default=0.0)
    inputs: dict[str, Array] = {}
    has_integers = bool(shapes.integers)
    for strength, whole in ways(has_integers=has_integers):
        for name, array in given.items():
            if plans[name].fixed:
                inputs[name] = plans[name].sample(0, case.id, *case.dtypes)
                continue
            rng = generator(number, "generic", name)
            item = op.input(name)
            values = drawn_input(item, array.shape, shapes.integers.get(name), rng, strength, whole)
            if user is not None and item is not None and op.data is None and values.dtype.kind == "f":
                values = values * size_of(user.get(name))
            if name == op.data and number % 3 == KEEPS_ALL and tiny:
                values = values * np.sqrt(10 * tiny)
            inputs[name] = values if values.dtype.kind == "i" else plans[name].held(values, (*case.dtypes, "float32"))
        try:
            with np.errstate(all="ignore"):
                outputs = evaluate(op, params, inputs, dtype=np.float64, gradients=case.gradients)
        except Exception:
            if params != case.params:
                return generic(case, 3 * number + KEEPS_ALL, user)
            if not has_integers or whole is lowest:
                return case, near_own(case, number)
            continue
        if all(np.isfinite(values).all() for values in outputs.values()):
            break
    return replace(case, params=params), inputs


def near_own(case: CasePlan, number: int) -> dict[str, Array]:
    """The case's own inputs with floating-point numbers of other magnitudes. Raises RefusedInputsError."""
    inputs: dict[str, Array] = {}
    for plan in case.tensors:
        values = plan.sample(0, case.id, *case.dtypes)
        if values.dtype.kind == "f":
            factors = generator(number, "near", plan.name).uniform(*NEAR_OWN, values.shape)
            values = plan.held(values * factors, (*case.dtypes, "float32"))
        inputs[plan.name] = values
    try:
        with np.errstate(all="ignore"):
            evaluate(case.definition, case.params, inputs, dtype=np.float64, gradients=case.gradients)
    except Exception as error:
        raise RefusedInputsError(f"the reference fails for other inputs: {error}") from error
    return inputs


def ways(*, has_integers: bool) -> Iterator[tuple[float, Callable[..., Array]]]:
    """Strengths of floating-point inputs, and how integers are drawn: in ways that more references take, the later."""
    yield from ((strength, whole_numbers) for strength in STRENGTHS)
    if has_integers:
        yield from ((STRENGTHS[0], whole) for whole in (spaced, lowest))


LEAST_SIZE = 0.05
"""Smaller numbers, as the zeros with which a bias begins, would hide what an input does."""


def size_of(values: Array | None) -> float:
    """The root mean square of a user's input, if it is below 1; at least `LEAST_SIZE`."""
    finite = np.empty(0) if values is None else values[np.isfinite(values)].astype(np.float64)
    return float(np.clip(np.sqrt(np.mean(finite * finite)), LEAST_SIZE, 1.0)) if finite.size else 1.0


def within(
    case: CasePlan, inputs: Mapping[str, Array], given: Mapping[str, Array], even: int
) -> tuple[CasePlan, dict[str, Array]]:
    """Inputs with no value beyond those `given`; if `even`, all values between them are equally likely."""

    def limited(name: str, values: Array) -> Array:
        finite = given[name][np.isfinite(given[name])]
        if values.dtype.kind != "f" or not finite.size:
            return values
        low, high = float(finite.min()), float(finite.max())
        spread = generator(even, "even", name, str(values.flat[0])).uniform(low, high, values.shape) if even else values
        return np.clip(spread, low, high).astype(np.float32).astype(values.dtype)

    return case, {name: limited(name, values) for name, values in inputs.items()}


def varied(case: CasePlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs whose elements have other magnitudes: zeros, signs, integers and non-finite values stay."""
    plans = {plan.name: plan for plan in case.tensors}

    def other(name: str, values: Array) -> Array:
        if values.dtype.kind != "f" or plans[name].fixed:
            return values
        factors = generator(0, "varied", name).uniform(*VARIED, values.shape)
        return plans[name].held(values * factors, (*case.dtypes, "float32"))

    return {name: other(name, values) for name, values in inputs.items()}


def drawn_input(
    item: Input | None,
    shape: Shape,
    bounds: tuple[int, int] | None,
    rng: np.random.Generator,
    strength: float,
    whole: Callable[..., Array],
) -> Array:
    """Values of an input, or of a grad_output (None), in float64, or in int64 as `whole` draws them in `bounds`."""
    if bounds is not None:
        return whole(rng, *bounds, shape)
    default = item.default if item is not None and item.default is not None else Normal()
    values = spread(default, shape, rng, strength)
    if item is None or not isinstance(item.start, Constant):
        return values
    distance = values - item.start.value
    return np.where(np.abs(distance) < AWAY, values + np.copysign(AWAY, distance), values)


def spread(default: Draw, shape: Shape, rng: np.random.Generator, strength: float) -> Array:
    """Values like `default`: positive if it is, of its size, with a spread and an offset for each row.

    A row is each index of each axis. The whole has a size of its own too, so that the tensors of a list differ.
    """
    scale, offset = np.exp(strength * rng.uniform(-0.7, 0.7)), np.zeros(())
    for axis, n in enumerate(shape):
        across = (-1,) + (1,) * (len(shape) - axis - 1)
        scale = scale * np.exp(strength * rng.uniform(-0.5, 0.5, n)).reshape(across)
        offset = offset + rng.normal(0.0, 0.5 * strength, n).reshape(across)
    if isinstance(default, Normal):
        return np.asarray(default.mean + default.std * scale * (rng.normal(size=shape) + offset))
    if isinstance(default, Uniform) and default.low >= 0:
        low = max(default.low, default.high / 10)
        return np.asarray(np.exp(rng.uniform(np.log(low / 2), np.log(2 * default.high), shape)))
    if isinstance(default, Uniform):
        return rng.uniform(default.low, default.high, shape)
    return default.sample(rng, shape)


def with_options(op: Op, params: Any, shapes: TensorShapes, number: int) -> Any:
    """The params with other options, all different, as far as shapes and inputs stay the same."""
    rng, taken = generator(number, "generic"), set(numbers_in(params))
    for field in fields(params):
        value = getattr(params, field.name)
        changed: Any = value
        if is_counter(op, value, field.default):
            changed = value if number % 3 == KEEPS_SPECIAL else 3 + number // 3 % 5
        elif not is_branch(value, field.default):
            options = tuple(option(v, taken, number, rng) for v in (value if isinstance(value, tuple) else (value,)))
            changed = options if isinstance(value, tuple) else options[0]
        if changed != value:
            params = accepted(op, params, replace(params, **{field.name: changed}), shapes)
    return params


def numbers_in(params: Any) -> Iterator[float]:
    """The params' numbers, those of tuples too."""
    for value in vars(params).values():
        yield from (v for v in (value if isinstance(value, tuple) else (value,)) if type(v) is float)


def is_counter(op: Op, value: Any, default: Any) -> bool:
    """Whether an integer counts calls: it has a default, in an op with a state."""
    return type(value) is int and type(default) is int and any(item.state for item in op.inputs)


def is_branch(value: Any, default: Any) -> bool:
    """Whether a number chooses a formula, such as the type of a norm: its default is an integer above 0, and it is that
    or one of `CHOOSING`."""
    chooses = type(default) is float and default >= 1 and default.is_integer()
    return chooses and value in (default, *CHOOSING)


def option(value: Any, taken: set[float], number: int, rng: np.random.Generator) -> Any:
    """A new number for a numeric option, unlike all those in use."""
    if type(value) is not float or not np.isfinite(value) or (number % 3 == KEEPS_SPECIAL and value in (0.0, 1.0)):
        return value
    size = abs(value)
    low, high = SMALL if size < 0.5 else LARGE if size < 1 else (size * ABOVE[0], size * ABOVE[1])
    drawn = (float(np.float32(rng.uniform(low, high))) for _ in range(MOST_DRAWS))
    new = next((v for v in drawn if all(min(abs(v - t), abs(1 - v - t)) >= APART * v for t in taken)), None)
    if new is None:
        return value
    taken.add(new)
    return float(np.copysign(new, value))


def accepted(op: Op, old: Any, new: Any, shapes: TensorShapes) -> Any:
    """The new params if the op accepts them for the same inputs and outputs, else the old ones."""
    try:
        same = op.infer_shapes(new, shapes.inputs) == shapes
    except ValueError:
        same = False
    return new if same else old
