"""Inputs on which explanations differ: what a user's data often hides is drawn apart, by the op's own definition.

Equal options, an eps far below the variance, equal rows, a weight of 1 and a first step make different formulas give
the same numbers. Nothing is known here of any op but what it says of its inputs, its params and its shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.draw import Constant, Draw, Normal, Shape, Uniform, coarsest, generator
from parity.cases.op import Input, Op, TensorShapes
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.reduction import shapes_of

AWAY = 0.25
"""Values keep this distance from what a tensor starts with, such as a weight of 1 or a bias of 0."""
APART = 0.1
"""No two options are nearer than a tenth of the larger, nor is one to the other's complement (`1 - beta`)."""
SMALL, LARGE, ABOVE = (0.08, 0.45), (0.55, 0.92), (1.2, 1.9)
"""Where options come from that are below a half, below 1, or 1 and more (times their value). An eps of .08 to .45 is a
tenth of the variance or some more."""
STRENGTHS = (1.0, 0.5, 0.0)
"""How differently rows are spread; less where the reference is not finite, because states contradict each other."""


def generic(case: CasePlan, number: int) -> tuple[CasePlan, dict[str, Array]]:
    """A case of the same op and the same shapes with generic options and inputs, the same for the same `number`.

    Odd numbers keep options that are 0 or 1, and counters, as the user has them: they choose branches, and not every
    backend has the others. All values are exact in float32 and in the coarsest of the case's dtypes.
    """
    op = OPS[case.op]
    given = {plan.name: np.empty(plan.shape) for plan in case.tensors}
    shapes = op.infer_shapes(case.params, shapes_of(case, given))
    params = with_options(op, case.params, shapes, number)
    dtype = coarsest((*case.dtypes, "float32"))
    inputs: dict[str, Array] = {}
    for strength in STRENGTHS:
        for name, array in given.items():
            rng = generator(number, "generic", name)
            values = drawn_input(op.input(name), array.shape, shapes.integers.get(name), rng, strength)
            inputs[name] = values if values.dtype.kind == "i" else values.astype(dtype)
        with np.errstate(all="ignore"):
            outputs = evaluate(op, params, inputs, dtype=np.float64, gradients=case.gradients)
        if all(np.isfinite(values).all() for values in outputs.values()):
            break
    return replace(case, params=params), inputs


def drawn_input(
    item: Input | None, shape: Shape, bounds: tuple[int, int] | None, rng: np.random.Generator, strength: float
) -> Array:
    """Values of an input, or of an upstream gradient (None), in float64, or in int64 within `bounds`."""
    if bounds is not None:
        return rng.integers(*bounds, shape)
    default = item.default if item is not None and item.default is not None else Normal()
    values = spread(default, shape, rng, strength)
    if item is None or not isinstance(item.start, Constant):
        return values
    distance = values - item.start.value
    return np.where(np.abs(distance) < AWAY, values + np.copysign(AWAY, distance), values)


def spread(default: Draw, shape: Shape, rng: np.random.Generator, strength: float) -> Array:
    """Values of the kind of `default`: positive where it is, in its size, with a spread and an offset for each row.

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
        return rng.uniform(2 * default.low, 2 * default.high, shape)
    return default.sample(rng, shape)


def with_options(op: Op, params: Any, shapes: TensorShapes, number: int) -> Any:
    """The params with other options, none like another; each only as far as shapes and inputs stay as they are."""
    rng, taken = generator(number, "generic"), set(numbers_in(params))
    for field in fields(params):
        value = getattr(params, field.name)
        changed: Any = value
        if is_counter(op, value, field.default) and number % 2 == 0:
            changed = 3 + number // 2 % 5
        elif not is_branch(field.default):
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
    """Whether an integer counts calls: in an op that keeps a state, one with a default."""
    return type(value) is int and type(default) is int and any(item.state for item in op.inputs)


def is_branch(default: Any) -> bool:
    """Whether a number chooses a formula: its default is a whole one above 0, as that of the type of a norm."""
    return type(default) is float and default >= 1 and default.is_integer()


def option(value: Any, taken: set[float], number: int, rng: np.random.Generator) -> Any:
    """Another number for an option that is one, unlike all that are taken."""
    if type(value) is not float or not np.isfinite(value) or (number % 2 and value in (0.0, 1.0)):
        return value
    size = abs(value)
    low, high = SMALL if size < 0.5 else LARGE if size < 1 else (size * ABOVE[0], size * ABOVE[1])
    while True:
        new = float(np.float32(rng.uniform(low, high)))
        if all(min(abs(new - t), abs(1 - new - t)) >= APART * min(new, 1) / 2 for t in taken):
            taken.add(new)
            return float(np.copysign(new, value))


def accepted(op: Op, old: Any, new: Any, shapes: TensorShapes) -> Any:
    """The new params where the op takes them for the same inputs and outputs, else the old ones."""
    try:
        same = op.infer_shapes(new, shapes.inputs) == shapes
    except ValueError:
        same = False
    return new if same else old
