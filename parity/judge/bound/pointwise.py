"""Outputs whose elements depend on few numbers: no step sums, so that each element has an error bound of its own."""

from __future__ import annotations

import numpy as np

from parity.cases.op import GRADIENT
from parity.cases.primitives import erf, erfc
from parity.cases.program import Program, Step

MOVING = frozenset(
    (
        *(
            "broadcast_to",
            "clip",
            "concatenate",
            "expand_dims",
            "flip",
            "moveaxis",
            "pad",
            "ravel",
            "reshape",
        ),
        *("repeat", "roll", "squeeze", "stack", "swapaxes", "take", "take_along_axis", "tile", "transpose", "where"),
        *("zeros_like", "ones_like", "getitem", "part", "placed", "rows_of", "entries", "gathered"),
        *("in_dtype_of", "root", erf.__name__, erfc.__name__, "fmod"),
    )
)
"""The functions beside NumPy's elementwise ones that compute each element from one element of each operand."""


def pointwise(program: Program) -> frozenset[str]:
    """The outputs that only steps of single elements lead to. Gradients are not among them: kernels compute them from
    outputs that a narrow dtype has rounded, such as 1 - y * y of a tanh."""
    summed = {position for position, step in enumerate(program.steps) if not is_of_elements(step)}
    forward = [name for name in program.outputs if not name.startswith(GRADIENT)]
    return frozenset(name for name in forward if summed.isdisjoint(program.reach([name])))


def is_of_elements(step: Step) -> bool:
    """Whether each element of a step's result depends on one element of each operand."""
    elementwise = isinstance(step.function, np.ufunc) and step.function.signature is None
    return elementwise or step.name in MOVING
