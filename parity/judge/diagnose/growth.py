"""Sums in a narrow dtype, shown by asking a kernel with more and more terms.

A running total of n terms in the dtype has an error that grows with n in units of a careful implementation's, which
adds in a wider one: like the root of n for terms of random signs, and faster for others (P. Blanchard, N. J. Higham et
al., Mixed precision block fused multiply-add, 2020). A result that is rounded once has the same error in these units
for every n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.cases.op import GRADIENT
from parity.cases.oracle import program_of
from parity.cases.program import Program
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, Array
from parity.judge.diagnose.probes import KEEPS_ALL, generic
from parity.judge.diagnose.reduction import Dim, sizes_of

LENGTHS = (16, 128, 1024, 8192)
FEWEST = 3
MOST_OUTSIDE = 1 << 17
"""Elements of the largest tensor of a call."""
MOST_INSIDE = 1 << 22
"""Elements of the largest value of the reference in between."""
SLOPE = 0.25
"""The least growth, as a power of the length: half of that for random signs."""
STARTED = 0.05
"""The least growth over the first lengths; without it the longest length, the most expensive one, is not tried."""
LONGEST = 1000
"""Steps of the reference's program; of a longer one, a loop may have many times as many at other sizes."""
FACTORS = (2, 3, 5)
PLAIN = 1
"""The number of generic inputs whose values are of the usual size."""

Ratios = Callable[[CasePlan, Mapping[str, Array]], Mapping[str, float] | None]
"""The error ratios of a backend's result for other inputs, by tensor."""


def growing(case: CasePlan, inputs: Mapping[str, Array], ratios: Ratios) -> dict[str, Any] | None:
    """The tensors whose error grows with the length of an axis, in units of a careful implementation's; at most four
    calls for each size of the inputs."""
    for dim in sizes_of(case, inputs):
        lengths: list[int] = []
        answers: list[Mapping[str, float]] = []
        for length in lengths_of(case, inputs, dim):
            if len(answers) == FEWEST and not any(begun(lengths, of_one(name, answers)) for name in answers[0]):
                break
            longer = lengthened(case, inputs, dim, length)
            answer = None if longer is None else ratios(*longer)
            if answer is not None:
                lengths.append(length)
                answers.append(answer)
        if len(answers) < FEWEST:
            continue
        slopes = {name: slope(lengths, of_one(name, answers)) for name in answers[-1]}
        grown = [name for name, value in slopes.items() if value >= SLOPE and answers[-1][name] >= ERROR_BOUND]
        if grown:
            return {
                "tensors": grown,
                "axes": dict(dim.axes),
                "lengths": lengths,
                "error_ratios": {name: [row[name] for row in answers] for name in grown},
                "slope": {name: slopes[name] for name in grown},
            }
    return None


def of_one(tensor: str, ratios: list[Mapping[str, float]]) -> list[float]:
    """The error ratios of one tensor, 0 where it has none."""
    return [row.get(tensor, 0.0) for row in ratios]


def lengths_of(case: CasePlan, inputs: Mapping[str, Array], dim: Dim) -> Iterator[int]:
    """The lengths at which no value of the reference is too large, as one with two axes of this length soon is. None if
    the reference has steps of its own for each element, as a recurrence over time has."""
    sizes = [given for n in (1, 2) if (given := lengthened(case, inputs, dim, n * dim.size)) is not None]
    programs = [program_of(case.definition, c.params, v, gradients=case.gradients, labelled=False) for c, v in sizes]
    if len({len(program.steps) for program in programs}) > 1:
        return
    largest = [largest_value(program, values) for program, (_, values) in zip(programs, sizes, strict=True)]
    power = np.log2(max(2, largest[-1] / max(1, largest[0]))) if len(largest) > 1 else 1
    yield from (length for length in LENGTHS if largest and largest[0] * (length / dim.size) ** power <= MOST_INSIDE)


def largest_value(program: Program, inputs: Mapping[str, Array]) -> int:
    """The elements of the largest value of a program."""
    sizes: list[int] = [0]

    def sized(function: Callable[..., Any], *operands: Any, **keywords: Any) -> Any:
        value = function(*operands, **keywords)
        sizes.append(int(np.size(value)))
        return value

    program.run(inputs, np.float64, functions={s.function: partial(sized, s.function) for s in program.steps})
    return max(sizes)


def lengthened(
    case: CasePlan, inputs: Mapping[str, Array], dim: Dim, length: int, number: int = PLAIN
) -> tuple[CasePlan, Mapping[str, Array]] | None:
    """The case with generic inputs (`number`) and another length of a dimension; None if there is none, or it is too
    large."""
    given = {name: values for name, values in inputs.items() if not name.startswith(GRADIENT)}
    sized = dim.shapes((case, given), length)
    if sized is None:
        return None
    params, shapes = sized
    every = {**shapes.inputs, **{f"grad.{name}": shape for name, shape in shapes.outputs.items()}}
    tensors = tuple(replace(plan, shape=every[plan.name]) for plan in case.tensors)
    if max(int(np.prod(plan.shape)) for plan in tensors) > MOST_OUTSIDE:
        return None
    try:
        return generic(replace(case, params=params, tensors=tensors), number)
    except ValueError:
        return None  # The op has no such size: windows would lie mostly outside of the tensor.


def resized(case: CasePlan, inputs: Mapping[str, Array]) -> tuple[CasePlan, Mapping[str, Array]] | None:
    """The case with generic inputs, its options, and a new length for every dimension that may change. All lengths
    differ and are multiples of the old ones, so that windows and heads fit. None if no dimension may change, or the
    reference's program is long."""
    if len(program_of(case.definition, case.params, inputs, gradients=case.gradients).steps) > LONGEST:
        return None
    larger: tuple[CasePlan, Mapping[str, Array]] | None = None
    taken = {dim.size for dim in sizes_of(case, inputs)}
    for dim in list(sizes_of(case, inputs)):
        for length in (dim.size * factor for factor in FACTORS if dim.size * factor not in taken):
            other = lengthened(*(larger or (case, inputs)), dim, length, KEEPS_ALL)
            if other is not None:
                larger = other
                taken.add(length)
                break
    return larger


def begun(lengths: list[int], ratios: list[float]) -> bool:
    """Whether an error has grown from the first length to the last; in between it may be larger by chance."""
    finite = all(np.isfinite(ratios)) and min(ratios) > 0
    return finite and bool(np.log(ratios[-1] / ratios[0]) >= STARTED * np.log(lengths[-1] / lengths[0]))


def slope(lengths: list[int], ratios: list[float]) -> float:
    """The exponent of the growth: the smaller of that over the whole range and over its second half, 0 if not
    finite."""
    if not all(np.isfinite(ratios)) or min(ratios) <= 0:
        return 0.0
    logs, sizes = np.log(ratios), np.log(lengths)
    return float(min((logs[-1] - logs[i]) / (sizes[-1] - sizes[i]) for i in (0, -2)))
