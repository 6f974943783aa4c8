"""Whether a recorded program computes what its own code computes.

A recorder sees one run of some code on stand-ins or on one set of tensors. What the code makes of values without the
recorder seeing it (a branch, a random number, a cache) is then a constant of the program. So a program is compared with
its code on several sets of inputs before it judges anything, and refused with the first value that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from parity.cases.dtypes import largest_in
from parity.cases.primitives import narrow
from parity.cases.program import Array, Program, Tensors

BOUNDS: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 5e-2, "bfloat16": 0.2}
"""The largest difference by the narrowest dtype of a computation, relative to an element and to the median element."""
NOTHING = 1e-5
"""Differences up to this part of the bound, relative to the largest element and the largest input, are rounding."""


@dataclass(frozen=True)
class ReplayDifference:
    """The first value `name` of a program that its own code computes differently, in words.

    `overflow` is the narrow dtype in which the code's value is not finite, unlike the recording's; else empty.
    """

    name: str
    text: str
    overflow: str = ""


def first_difference(
    program: Program, inputs: Tensors, outputs: Tensors, named: Tensors, dtype: str
) -> ReplayDifference | None:
    """The first of a program's values that is not what its own code computed for these inputs; None if all outputs are.

    `outputs` are the code's, `named` its values by their names in the source, which are the labels of steps; `dtype` is
    the one that the code computed in.
    """
    forward = {name: index for name, index in program.outputs.items() if name in outputs}
    labels = {step.label: step.index for step in program.steps if step.label in named and not step.backward}
    values = replace(program, outputs={**labels, **forward}).needed().run(inputs, "float64")
    kind = narrowest(program, outputs, dtype)
    size = largest(list(inputs.values()))
    wrong = [
        name
        for name in forward
        if not (same_kind(values[name], outputs[name]) and agree(values[name], outputs[name], kind, size))
    ]
    if not wrong:
        return None
    inner = [name for name in labels if name not in forward and not agree(values[name], named[name], kind, size)]
    name = next(iter([*inner, *wrong]))
    own = outputs[name] if name in forward else named[name]
    overflow = kind if kind != "float64" and overflows(values[name], own, kind, size) else ""
    return ReplayDifference(name, apart(values[name], own, kind, size), overflow)


def overflows(recorded: Any, own: Any, kind: str, size: float) -> bool:
    """Whether two results of one shape differ only where the code's own is not finite and the recording's is."""
    recorded, own = np.asarray(recorded), np.asarray(own)
    if recorded.shape != own.shape:
        return False
    apart = unequal(recorded, own, kind, size)
    return bool(np.isfinite(recorded[apart]).all() and not np.isfinite(own[apart]).any())


def narrowest(program: Program, outputs: Tensors, dtype: str) -> str:
    """The narrowest dtype in which a program's code computes."""
    rounded = [str(step.operands[1]) for step in program.steps if step.function is narrow.raw]  # type: ignore[attr-defined]
    kinds = [dtype, *rounded, *(values.dtype.name for values in outputs.values())]
    return max((kind if kind in BOUNDS else "float64" for kind in kinds), key=lambda kind: BOUNDS[kind])


def largest(arrays: list[Array]) -> float:
    """The largest finite magnitude of some arrays."""
    sizes = [np.abs(values[np.isfinite(values)]).max(initial=0) for values in arrays if values.dtype.kind == "f"]
    return float(max(sizes, default=0))


def same_kind(one: Any, other: Any) -> bool:
    """Whether two results are both floating-point numbers, or both integers or truth values."""
    return (np.asarray(one).dtype.kind in "biu") == (np.asarray(other).dtype.kind in "biu")


def agree(recorded: Any, own: Any, kind: str, size: float) -> bool:
    """Whether two results are equal up to rounding in a dtype; `size` is that of the largest input."""
    recorded, own = np.asarray(recorded), np.asarray(own)
    return recorded.shape == own.shape and not unequal(recorded, own, kind, size).any()


def unequal(recorded: Array, own: Array, kind: str, size: float) -> Array:
    """Where two arrays of one shape differ by more than rounding; a number beyond the dtype's range is infinite."""
    if recorded.dtype.kind in "iub" and own.dtype.kind in "iub":
        return np.asarray(recorded != own)
    one, other = recorded.astype(np.float64), own.astype(np.float64)
    finite = np.isfinite(other)
    magnitudes = np.abs(other[finite])
    typical = np.median(magnitudes) if magnitudes.size else 0.0
    least = NOTHING * max(size, magnitudes.max(initial=0))
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= BOUNDS[kind] * (np.abs(other) + typical + least)
        beyond = np.isinf(other) & (one * np.sign(other) > (1 - BOUNDS[kind]) * largest_in(kind))
    return np.asarray(~np.where(finite, near, beyond | (one == other) | (np.isnan(one) & np.isnan(other))))


def apart(recorded: Any, own: Any, kind: str, size: float) -> str:
    """How two results differ, in words."""
    recorded, own = np.asarray(recorded), np.asarray(own)
    if recorded.shape != own.shape:
        return f"has the shape {list(own.shape)}, and {list(recorded.shape)} in the recording"
    positions = np.argwhere(unequal(recorded, own, kind, size))
    at = tuple(int(i) for i in positions[0])
    where = f" at {list(at)}" if at else ""
    return f"is {own[at]:.6g}{where}, and {recorded[at]:.6g} in the recording"


def whole_numbers(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...]) -> Array:
    """Integers from `low` on and below `high`; where `low` is negative, the ends only: a negative label may mean that
    there is none, and those between it and 0 nothing."""
    return rng.choice((low, high - 1), shape) if low < 0 else rng.integers(low, high, shape)


def spaced(_: np.random.Generator, low: int, high: int, shape: tuple[int, ...]) -> Array:
    """Integers from `low` on and below `high` in their order, as offsets have, which some code needs."""
    return np.linspace(low, high - 1, prod(shape)).astype(np.int64).reshape(shape)


def lowest(_: np.random.Generator, low: int, _high: int, shape: tuple[int, ...]) -> Array:
    """The lowest integer, wherever those between the bounds are too large for another size."""
    return np.full(shape, low, np.int64)


def drawn_inputs(
    shapes: Mapping[str, tuple[int, ...]],
    integers: Mapping[str, tuple[int, int]],
    whole: Callable[..., Array] = whole_numbers,
) -> Iterator[dict[str, Array]]:
    """Sets of inputs of these shapes: around zero, positive, negative; integers within their bounds, as `whole` draws
    them."""
    rng = np.random.default_rng(0)
    for low, high in ((-2.0, 2.0), (0.25, 3.0), (-3.0, -0.25)):
        yield {
            name: whole(rng, *integers[name], shape) if name in integers else rng.uniform(low, high, shape)
            for name, shape in shapes.items()
        }


STEPS = (1e-5, 3e-6)
"""Two steps of differences: where their slopes disagree, a function has a kink there, or rounds."""
CLEAR, SLOPE = 1e-5, 1e-3
"""The largest relative difference of slopes of one function, and of a slope from the gradient."""
ROUNDED = 1e-12
"""Slopes up to this part of the weights may be what cancellation leaves of zero."""


def slopes(
    code: Callable[[Tensors], Tensors], gradients: Tensors, inputs: Tensors, arriving: Tensors
) -> tuple[float, float] | None:
    """The slope of the weighted sum of a code's outputs along a random direction, and that of its recorded gradients.

    `arriving` are the weights by output, `gradients` those of inputs. None where the code has no clear slope.
    """
    rng = np.random.default_rng(1)
    along = {
        name: rng.uniform(0.5, 1.0, inputs[name].shape) * rng.choice((-1, 1), inputs[name].shape) for name in gradients
    }

    def total(step: float) -> float:
        outputs = code(
            {name: values + step * along[name] if name in along else values for name, values in inputs.items()}
        )
        return float(sum(np.sum(outputs[name] * weights) for name, weights in arriving.items()))

    one, other = ((total(step) - total(-step)) / (2 * step) for step in STEPS)
    recorded = float(sum(np.sum(gradients[name] * along[name]) for name in along))
    size = max(abs(one), abs(recorded))
    least = ROUNDED * sum(float(np.abs(weights).sum()) for weights in arriving.values())
    clear = np.isfinite(size) and size > least and abs(one - other) <= CLEAR * size
    return (one, recorded) if clear else None


def is_slope(own: float, recorded: float) -> bool:
    """Whether a recorded gradient has the slope of its code."""
    return abs(own - recorded) <= SLOPE * max(abs(own), abs(recorded))
