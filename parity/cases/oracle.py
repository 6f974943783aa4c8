"""Runs an op's reference as a program: outputs and every gradient, in the requested dtype."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parity.cases.blocked import LARGE, SUM, in_blocks, split
from parity.cases.dtypes import COMPUTED_IN
from parity.cases.edit_functions import rounded_to
from parity.cases.edits import Edit, edited, spliced, with_refs
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.exact.matmul import MATMUL, from_bias, matmul_in_sequence
from parity.cases.exact.summation import in_one_chain, sum_in_sequence
from parity.cases.factorizations import FACTORIZATIONS, factorized, perturbed_operand
from parity.cases.op import GRADIENT, IncompatibleError, Op, flatten_lists, group_lists
from parity.cases.primitives import ERF, ERFC, SCATTER, scatter_in_sequence
from parity.cases.program import OUTLINED, Program, Ref, Step, numbers_of, trace

Tensors = dict[str, NDArray[Any]]
Functions = Mapping[Callable[..., Any], Callable[..., Any]]

IN_PAIRS: Functions = {}
IN_SEQUENCE: Functions = {
    np.sum: sum_in_sequence,
    MATMUL: matmul_in_sequence,
    SCATTER: scatter_in_sequence,
}
"""The functions that sum one element after the other, as a plain loop does; a product begins with its bias."""


SUMS = (np.add, np.subtract)
APPROXIMATE = (np.exp, np.log, np.tanh, np.cosh, np.power, ERF, ERFC)
"""Functions that a careful library may round wrongly (SLEEF's errors reach 1.0 ulp, CUDA's 2)."""


def perturbed_rounding(rng: np.random.Generator) -> Functions:
    """Sums of two and approximate functions, with results perturbed by at most a unit roundoff (for a sum, of its
    larger operand). So the remainder of a cancellation differs from run to run, even if an operand does not, such as a
    tanh near 1. An exact cancellation stays zero: an element that equals its group's mean has no error. A factorization
    gets a perturbed matrix."""

    def perturbed(function: Callable[..., Any], size: Callable[..., Any]) -> Callable[..., Any]:
        def result(*operands: Any) -> Any:
            values = function(*operands)
            if getattr(values, "dtype", np.dtype(int)).kind != "f":
                return values
            shift = np.asarray(rng.uniform(-0.5, 0.5, values.shape) * np.finfo(values.dtype).eps, values.dtype)
            # In its dtype: a number among the operands is float64 here.
            largest = np.asarray(size(values, *map(np.abs, operands)), values.dtype)
            return values + np.where(np.isfinite(largest), largest, 0) * shift

        return result

    def larger(values: Any, one: Any, other: Any) -> Any:
        return np.where(values == 0, 0, np.maximum(one, other))

    def perturbed_matrix(function: Callable[..., Any]) -> Callable[..., Any]:
        def result(*operands: Any, **keywords: Any) -> Any:
            return factorized(function, [perturbed_operand(np.asarray(item), rng) for item in operands], keywords)

        return result

    sums: dict[Callable[..., Any], Callable[..., Any]] = {f: perturbed(f, larger) for f in SUMS}
    sums |= {function: perturbed_matrix(function) for function in FACTORIZATIONS - {np.linalg.norm}}
    return sums | {function: perturbed(function, lambda values, *_: values) for function in APPROXIMATE}


def composed_in(dtype: str) -> Functions:
    """The values that a graph of kernels keeps in a narrow dtype: outputs that the backward pass reads, and products of
    matrices, which do not overflow here, since that would excuse a wrong backend."""

    def product(a: Any, b: Any) -> Any:
        exact = MATMUL(a, b)
        narrow = rounded(exact, FORMATS[dtype])
        return np.where(np.isinf(narrow), exact, narrow)

    def saved(values: Any) -> Any:
        return rounded_to(values, target=dtype) if values.dtype.kind == "f" else values

    return {MATMUL: product, saved_output: saved} if dtype in COMPUTED_IN else {}


def saved_output(values: Any) -> Any:
    """An output as the backward pass reads it."""
    return values


def with_saved_outputs(program: Program) -> Program:
    """The program whose backward steps read outputs through `saved_output`."""
    forward = {step.index for step in program.steps if not step.backward}
    for index in {index for index in program.outputs.values() if index in forward}:
        readers = [position for position, step in enumerate(program.steps) if step.backward and index in step.refs]
        if readers:
            saved = Step(program.size, saved_output, (Ref(index),), backward=True)
            changed = {p: [with_refs(program.steps[p], {index: saved.index})] for p in readers}
            changed[readers[0]].insert(0, saved)
            program = spliced(program, changed)
    return program


def evaluate(
    op: Op,
    params: Any,
    tensors: Mapping[str, NDArray[Any]],
    *,
    dtype: DTypeLike = np.longdouble,
    gradients: bool = True,
    functions: Functions = IN_PAIRS,
    outputs: Collection[str] | None = None,
    edits: Sequence[Edit] = (),
    **options: Any,
) -> Tensors:
    """Outputs and gradients of `op` in `dtype`, or those in `outputs`; of large tensors a few rows at a time.

    `tensors` maps input names (`x`, `grads.0`) and gradients of outputs (`grad.y`) to arrays. The result maps outputs
    and, where gradients of outputs are given and wanted, `grad.<input>` to arrays. `options` are keyword arguments of
    the reference; TypeError for one that it does not have. `functions` are those of `Program.run`. IncompatibleError
    where one of the `edits` does not fit the program.
    """
    evaluation = Evaluation(op, params, dtype, gradients, functions, outputs, tuple(edits), options)
    names_and_kinds = rows_and_sums(evaluation, tensors)
    if names_and_kinds is None:
        return evaluation(tensors)
    names, kinds = names_and_kinds
    summed = any(kind == SUM for name, kind in kinds.items() if outputs is None or name in outputs)
    # Sums of blocks are not one sequence.
    return evaluation(tensors) if functions is IN_SEQUENCE and summed else in_blocks(tensors, names, kinds, evaluation)


@dataclass(frozen=True)
class Evaluation:
    """How a reference is evaluated, whatever the number of rows."""

    op: Op
    params: Any
    dtype: DTypeLike
    gradients: bool
    functions: Functions
    outputs: Collection[str] | None
    edits: tuple[Edit, ...]
    options: Mapping[str, Any]

    def __call__(self, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
        """The outputs for these tensors, all rows at once."""
        program = program_of(self.op, self.params, tensors, gradients=self.gradients, labelled=False, **self.options)
        if self.edits:
            return self._edited(program, tensors)
        program = program if self.outputs is None else program.needed(tuple(self.outputs))
        program = in_one_chain(from_bias(program)) if self.functions is IN_SEQUENCE else program
        program = with_saved_outputs(program) if saved_output in self.functions else program
        return program.run({n: tensors[n] for n in program.inputs}, self.dtype, functions=self.functions)

    def _edited(self, program: Program, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
        try:
            program = edited(program, self.edits, tensors, self.params, self.op.differentiable)
            return program.run({n: tensors[n] for n in program.inputs}, self.dtype, functions=self.functions)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise IncompatibleError(f"the edited program cannot be run: {error}") from error


def rows_and_sums(run: Evaluation, tensors: Mapping[str, NDArray[Any]]) -> tuple[frozenset[str], dict[str, str]] | None:
    """How a large case is cut into blocks of rows; None if it cannot or need not be."""
    shapes = tuple((name, np.shape(values)) for name, values in tensors.items())
    if sum(prod(shape) for _, shape in shapes) < LARGE or not all(map(is_plain, run.options.values())):
        return None
    key = (
        run.op.name,
        id(run.op),
        run.params,
        shapes,
        run.gradients,
        run.edits,
        repr(run.options),
    )
    if key not in SPLITS:
        SPLITS[key] = split(run.op, tensors, replace(run, dtype=np.float64, functions=IN_PAIRS, outputs=None))
    return SPLITS[key]


SPLITS: dict[Any, tuple[frozenset[str], dict[str, str]] | None] = {}
"""The results for large cases so far."""


def program_of(
    op: Op,
    params: Any,
    tensors: Mapping[str, NDArray[Any]],
    *,
    gradients: bool = True,
    labelled: bool = True,
    **options: Any,
) -> Program:
    """The program of `op` for tensors of these shapes; traced once for each params, shapes and options. Programs that
    differ only in the numbers of floating-point params are traced once, unless the reference branches on them.

    Steps have names only if it is `labelled`: finding them takes as long as the rest of a trace.
    """
    wanted = [f"grad.{name}" for name in op.grad_outputs if f"grad.{name}" in tensors] if gradients else []
    given = {n: traced_as(np.asarray(v)) for n, v in tensors.items() if n in wanted or not op.is_grad_output(n)}
    shapes = tuple((name, values.shape) for name, values in given.items())
    plain = all(map(is_plain, options.values()))
    numbers = numbers_of(params)
    rest = {n: np.shape(numbers[n]) if n in numbers else v for n, v in vars(params).items()}
    general = (op.name, id(op), repr(rest), shapes, labelled, repr(options))
    key = (*general, repr(numbers))
    if plain and (cached := PROGRAMS.get(general, PROGRAMS.get(key))) is not None:
        return cached.with_numbers(numbers)
    program, _ = trace(
        partial(op.reference, **options),
        {name: values for name, values in given.items() if name not in wanted},
        params,
        differentiable=op.differentiable,
        gradients={name.removeprefix(GRADIENT): given[name] for name in wanted},
        regroup=partial(group_lists, op=op),
        flatten=flatten_lists,
        labelled=labelled,
    )
    if plain:
        if len(PROGRAMS) >= MAX_PROGRAMS:
            PROGRAMS.clear()
        PROGRAMS[key if program.branches else general] = program
    return program


def traced_as(values: NDArray[Any]) -> NDArray[Any]:
    """A tensor for a trace, in which float64 is the dtype of whoever runs the program, whatever the tensor's own."""
    if values.dtype.kind != "f" or values.dtype.itemsize >= np.dtype(np.float64).itemsize:
        return values
    one = values.ravel()[:1] if values.size >= OUTLINED else values
    return np.broadcast_to(one.astype(np.float64), values.shape)


PROGRAMS: dict[Any, Program] = {}
MAX_PROGRAMS = 1024


def is_plain(value: Any) -> bool:
    """Whether equal texts mean equal values."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
