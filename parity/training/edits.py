"""Edits of an op that is a stage of a training: an optimizer, a clip or a loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from autograd.tracer import getval

from parity.cases.edits import Edit, edited, replayed, transferred
from parity.cases.op import CaseError, IncompatibleError, Op
from parity.cases.oracle import IN_PAIRS, Functions, program_of
from parity.cases.program import Program
from parity.outcome import Array, Arrays


@dataclass(frozen=True)
class ProgramEdits:
    """Edits of an op's `program`, which apply to the same steps of the op with other params and shapes."""

    program: Program = field(repr=False)
    edits: tuple[Edit, ...]

    def run(
        self, op: Op, params: Any, tensors: Arrays, functions: Functions = IN_PAIRS, **arguments: Any
    ) -> dict[str, Array]:
        """The outputs of the edited op in the tensors' dtype; raises IncompatibleError if it cannot run."""
        program = whole_program(op, params, tensors, **arguments)
        try:
            for edit in self.edits:
                program = edited(program, self._placed(edit, program), tensors, params, op.differentiable)
            dtype = next(values.dtype for values in tensors.values() if values.dtype.kind == "f")
            return program.run({n: tensors[n] for n in program.inputs}, dtype, functions=functions)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise IncompatibleError(f"the edited program cannot be run: {error}") from error

    def replayed(self, op: Op, tensors: Mapping[str, Any], params: Any, **arguments: Any) -> dict[str, Any]:
        """The outputs of the edited op as part of a larger program that is being traced."""
        values = {name: getval(item) for name, item in tensors.items()}
        shaped = {name: np.zeros(item.shape, item.dtype) for name, item in values.items()}
        program = whole_program(op, params, shaped, **arguments)
        for edit in self.edits:
            program = edited(program, self._placed(edit, program), shaped, params, op.differentiable)
        return replayed(program, tensors, params)

    def _placed(self, edit: Edit, program: Program) -> tuple[Edit, ...]:
        """The edit of the same step of `program`; none if it has no such step (a first step may lack some)."""
        try:
            return (transferred(edit, self.program, program),)
        except IncompatibleError:
            return ()


def whole_program(op: Op, params: Any, tensors: Arrays, **arguments: Any) -> Program:
    """The op's program, with steps for options that are 0 as well, so that edits can give them another value."""
    shapes = {name: values.shape for name, values in tensors.items() if op.input(name) is not None}
    whole = params
    for name, value in vars(params).items():
        if isinstance(value, float) and not value:
            with suppress(CaseError):
                changed = replace(whole, **{name: NOT_ZERO})
                whole = changed if op.infer_shapes(changed, shapes) == op.infer_shapes(params, shapes) else whole
    program = program_of(op, whole, tensors, **arguments)
    numbers = program_of(op, params, tensors, **arguments).options
    return replace(program, options={n: (index, numbers[n][1]) for n, (index, _) in program.options.items()})


NOT_ZERO = 0.5
