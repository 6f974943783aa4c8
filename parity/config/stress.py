"""`stress: true`: a case, and variants of it with the shapes, values and layouts on which kernels fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from math import inf, nan, prod
from typing import Any

import numpy as np

from parity.cases.draw import Constant, File, Integers, LogUniform, Normal, Shape, Special, TensorPlan, Values
from parity.cases.layout import LAYOUTS
from parity.cases.op import Op, TensorShapes
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan

SIZES = (0, 1, 31, 33, 63, 65, 127, 129)
"""No rows, one, and one beside the sizes of warps, tiles and blocks of kernels (32, 64, 128)."""
LAST = (1023, 1025)
"""The same for the last axis, whose elements a block of 1,024 threads reduces."""
MOST_STRESSED = 1 << 18
"""The most elements of a tensor; a case with a larger one is left out."""

VALUES: Mapping[str, Callable[[TensorPlan], TensorPlan]] = {
    "far": lambda x: replace(x, offset=1e4),
    "tiny": lambda x: replace(x, scale=1e-20),
    "subnormal": lambda x: replace(x, draw=LogUniform(1e-44, 1e-39, signed=True)),
    "zeros": lambda x: replace(x, draw=Constant(0.0)),
    "one-hot": lambda x: replace(x, draw=Constant(0.0), special=Special((1.0,))),
    "ties": lambda x: replace(x, draw=Integers(-2, 3)),
    "nan": lambda x: replace(x, special=Special((nan,))),
    "inf": lambda x: replace(x, special=Special((inf,))),
}
"""The data by what is unusual about it: a mean of 10,000 deviations, squares that underflow in float32, values below
its normal numbers, zeros (and a single one), equal values, a NaN or an infinity."""


def stressed(case: CasePlan, op: Op) -> Iterator[CasePlan]:
    """The cases of `others` that can show a difference; without gradients if gradients cannot."""
    for other in others(case, op):
        inputs = tuple(plan for plan in other.tensors if op.input(plan.name))
        forward = replace(other, gradients=False, tensors=inputs)
        yield from ((other,) if shows(other, op) else (forward,) if shows(forward, op) else ())


def others(case: CasePlan, op: Op) -> Iterator[CasePlan]:
    """The case with other sizes of the first input's first and last axis, with other values, then in other memory.

    Sizes that the op refuses are left out, and cases in which an exact tensor is nowhere finite, such as the loss of an
    infinite input: nothing could be compared. Values are for inputs that may be any number: those drawn from a normal
    distribution.
    """
    data = case.tensors[0]
    for axis in dict.fromkeys((0, len(data.shape) - 1)) if data.shape else ():
        for size in (*SIZES, *LAST) if axis else SIZES:
            changed = resized(case, op, axis, size) if size != data.shape[axis] else None
            if changed is not None:
                yield replace(changed, id=f"{case.id}-axis={axis}-size={size}")
    for name, change in VALUES.items() if isinstance(data.draw, Normal) and 0 not in data.shape else ():
        yield replace(case, id=f"{case.id}-{name}", tensors=(change(data), *case.tensors[1:]))
    yield from in_memory(case, op)


def in_memory(case: CasePlan, op: Op) -> Iterator[CasePlan]:
    """The case with all tensors, grad_outputs too, in each layout, and with two inputs of one shape in the same
    memory."""
    for layout, placement in LAYOUTS.items():
        placed = tuple(p if placement(p.shape) is None else replace(p, layout=layout) for p in case.tensors)
        if placed != case.tensors:
            yield replace(case, id=f"{case.id}-{layout}", tensors=placed)
    shapes = {plan.name: plan.shape for plan in case.tensors if op.input(plan.name)}
    # A step that updates an input may not have it twice.
    updates = shapes.keys() & op.infer_shapes(case.params, shapes).outputs.keys()
    plain = () if updates else (plan for plan in case.tensors if is_plain(plan, op))
    for one, other in combinations(plain, 2):
        if one.shape == other.shape:
            tensors = (replace(one, name=p.name, alias=one.name) if p is other else p for p in case.tensors)
            yield replace(case, id=f"{case.id}-{other.name}-is-{one.name}", tensors=tuple(tensors))


def is_plain(plan: TensorPlan, op: Op) -> bool:
    """Whether an input accepts the values of any other such input."""
    item = op.input(plan.name)
    return item is not None and not item.listed and isinstance(plan.draw, Normal)


def shows(case: CasePlan, op: Op) -> bool:
    """Whether every exact tensor has a finite value; without one nothing can be compared."""
    inputs = {plan.name: plan.sample(0, case.id, "float64") for plan in case.tensors}
    with np.errstate(all="ignore"):
        exact = evaluate(op, case.params, inputs, dtype=np.float64, gradients=case.gradients)
    return all(values.size == 0 or np.isfinite(values).any() for values in exact.values())


def resized(case: CasePlan, op: Op, axis: int, size: int) -> CasePlan | None:
    """The case with another size of an axis of its first input and of everything that depends on it; None if there is
    none."""
    data = case.tensors[0]
    old, given = data.shape[axis], {plan.name: plan.shape for plan in case.tensors if op.input(plan.name)}
    shape = (*data.shape[:axis], size, *data.shape[axis + 1 :])
    along = {name: tuple(size if n == old else n for n in given[name]) for name in given if name != data.name}
    for params in (case.params, with_size(case.params, old, size)):
        for shapes in ({data.name: shape}, {**given, data.name: shape}, {**along, data.name: shape}):
            try:
                planned = with_shapes(case, op, params, op.infer_shapes(params, shapes))
            except (ValueError, ArithmeticError, IndexError):
                continue
            if planned is not None:
                return planned
    return None


def with_size(params: Any, old: int, new: int) -> Any:
    """The params with another size where they hold the old one."""
    changes: dict[str, Any] = {}
    for name, value in vars(params).items():
        if isinstance(value, tuple):
            changes[name] = tuple(new if type(item) is int and item == old else item for item in value)
        elif type(value) is int and value == old:
            changes[name] = new
    return replace(params, **changes)


def with_shapes(case: CasePlan, op: Op, params: Any, shapes: TensorShapes) -> CasePlan | None:
    """The case with these shapes; None if it has literal values, becomes too large, or has no result."""
    every: dict[str, Shape] = {**shapes.inputs, **{f"grad.{name}": shape for name, shape in shapes.outputs.items()}}
    tensors = tuple(replace(plan, shape=tuple(every[plan.name])) for plan in case.tensors if plan.name in every)
    tensors = tuple(in_range(plan, shapes) for plan in tensors)
    fixed = any(isinstance(plan.draw, Values | File) for plan in tensors)
    if fixed or len(tensors) < len(case.tensors) or max(prod(shape) for shape in every.values()) > MOST_STRESSED:
        return None
    inputs = {plan.name: plan.sample(0, case.id, "float64") for plan in tensors}
    if not min(map(np.size, inputs.values())):
        evaluate(op, params, inputs, gradients=case.gradients)
    return replace(case, params=params, tensors=tensors)


def in_range(plan: TensorPlan, shapes: TensorShapes) -> TensorPlan:
    """An input of integers with the currently valid bounds."""
    bounds = shapes.integers.get(plan.name)
    return plan if bounds is None else replace(plan, draw=Integers(*bounds))
