"""Runs an op's reference as a program: outputs and every gradient, in the dtype that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parity.cases.edits import Edit, edited
from parity.cases.exact.matmul import MATMUL, matmul_in_sequence
from parity.cases.exact.summation import sum_in_sequence
from parity.cases.op import IncompatibleError, Op, flatten_lists, group_lists
from parity.cases.program import Program, trace

Tensors = dict[str, NDArray[Any]]
Functions = Mapping[Callable[..., Any], Callable[..., Any]]

IN_PAIRS: Functions = {}
IN_SEQUENCE: Functions = {np.sum: sum_in_sequence, MATMUL: matmul_in_sequence}
"""The functions that sum one element after the other, as a plain loop does."""


def evaluate(
    op: Op,
    params: Any,
    tensors: Mapping[str, NDArray[Any]],
    *,
    dtype: DTypeLike = np.longdouble,
    gradients: bool = True,
    functions: Functions = IN_PAIRS,
    edits: Sequence[Edit] = (),
    **options: Any,
) -> Tensors:
    """Outputs and gradients of `op` in `dtype`.

    `tensors` maps input names (`x`, `grads.0`) and gradients of outputs (`grad.y`) to arrays. The result maps outputs
    and, where gradients of outputs are given and wanted, `grad.<input>` to arrays. `options` are keyword arguments of
    the reference; TypeError for one that it does not have. `functions` are those of `Program.run`. IncompatibleError
    where one of the `edits` does not fit the program.
    """
    program = program_of(op, params, tensors, gradients=gradients, labelled=False, **options)
    given = {name: tensors[name] for name in program.inputs}
    if not edits:
        return program.run(given, dtype, functions=functions)
    try:
        return edited(program, edits, tensors, params, op.differentiable).run(given, dtype, functions=functions)
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise IncompatibleError(f"the edited program cannot be run: {error}") from error


def program_of(
    op: Op,
    params: Any,
    tensors: Mapping[str, NDArray[Any]],
    *,
    gradients: bool = True,
    labelled: bool = True,
    **options: Any,
) -> Program:
    """The program of `op` for tensors of these shapes; traced once for each params, shapes and options.

    Only where it is `labelled` do its steps have names: to find them out takes as long as the rest of a trace.
    """
    wanted = [f"grad.{name}" for name in op.upstream if f"grad.{name}" in tensors] if gradients else []
    given = {n: np.asarray(v) for n, v in tensors.items() if n in wanted or not is_arriving(op, n)}
    shapes = tuple((name, values.shape) for name, values in given.items())
    key = (op.name, id(op), params, shapes, labelled, repr(options)) if all(map(is_plain, options.values())) else None
    if key is not None and key in PROGRAMS:
        return PROGRAMS[key]
    program, _ = trace(
        partial(op.reference, **options),
        {name: values for name, values in given.items() if name not in wanted},
        params,
        differentiable=op.differentiable,
        gradients={name.removeprefix("grad."): given[name] for name in wanted},
        regroup=partial(group_lists, op=op),
        flatten=flatten_lists,
        labelled=labelled,
    )
    if key is not None:
        if len(PROGRAMS) >= MAX_PROGRAMS:
            PROGRAMS.clear()
        PROGRAMS[key] = program
    return program


PROGRAMS: dict[Any, Program] = {}
MAX_PROGRAMS = 1024


def is_arriving(op: Op, name: str) -> bool:
    """Whether a tensor is the gradient of an output."""
    return name.startswith("grad.") and name.removeprefix("grad.") in op.upstream


def is_plain(value: Any) -> bool:
    """Whether a value is the same where its text is."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
