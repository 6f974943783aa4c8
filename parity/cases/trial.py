"""Tries many edits of one program on one set of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.cases.draw import Shape
from parity.cases.edits import COMPUTED, RETURNED, Edit, delta, returning, value_of
from parity.cases.op import IncompatibleError
from parity.cases.program import Array, Program, Ref, Step, Tensors, call, filled, in_dtype


class Trial:
    """The values of every step for one set of tensors; those of edited programs are computed from them.

    `work` counts the computed steps. Overflows warn as the caller's `np.errstate` says: entering one for each of
    thousands of edits takes longer than many an edit.
    """

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program = program
        self.kind = np.dtype(np.float64)
        self.work = 0
        self._values: dict[int, Any] = {}
        for name, index in program.inputs.items():
            self._values[index] = in_dtype(np.asarray(tensors[name]), self.kind)
        for index, number in program.options.values():
            self._values[index] = number
        with np.errstate(all="ignore"):
            for step in program.steps:
                self._values[step.index] = self._called(step, self._values)
        self._refs = [frozenset(step.refs) for step in program.steps]
        self._ready = [self._prepared(step) for step in program.steps]
        self._indices = [step.index for step in program.steps]
        self._needed = {name: program.reach([name]) for name in program.outputs}
        self._followers: dict[tuple[tuple[int, ...], str], Sequence[int]] = {}
        self._shapes = {index: np.shape(value) for index, value in self._values.items()}
        self.base = {name: np.asarray(self._values[index]) for name, index in program.outputs.items()}

    @property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of every value."""
        return self._shapes

    def value(self, index: int) -> Any:
        """A value of the unchanged program."""
        return self._values[index]

    def _called(self, step: Step, values: Any) -> Any:
        self.work += 1
        return call(step.function, filled(step.operands, values, self.kind), step.keywords)

    def _prepared(self, step: Step) -> tuple[Any, ...] | None:
        """The operands of a step that gives an array, constants in the dtype; None if values are nested in them."""
        n_values = sum(isinstance(operand, Ref) for operand in step.operands)
        if not isinstance(self._values[step.index], np.ndarray) or n_values < len(step.refs):
            return None
        return tuple(o if isinstance(o, Ref) else filled(o, (), self.kind) for o in step.operands)

    def _repeated(self, position: int, values: Mapping[int, Any]) -> Any:
        """The result of an unchanged step for changed values."""
        step, operands = self.program.steps[position], self._ready[position]
        if operands is None:
            return self._called(step, values)
        self.work += 1
        given = [values[o.index] if type(o) is Ref else o for o in operands]
        return step.function(*given, **step.keywords)

    @property
    def costs(self) -> Mapping[str, int]:
        """The number of steps that every output depends on."""
        return {name: len(needed) for name, needed in self._needed.items()}

    def output(self, edit: Edit, name: str) -> Array | None:
        """An output of the edited program; None if the edit does not fit, or does not change it."""
        try:
            if edit.kind == RETURNED:
                return self._returned(edit) if edit.function == name else None
            return self.with_steps(delta(self.program, edit), name)
        except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError, MemoryError, IncompatibleError):
            return None

    def overflows(self, edit: Edit) -> bool:
        """Whether a value that an edit changes becomes infinite."""
        values, changed = self._values.copy(), delta(self.program, edit)
        steps = [step for replacing in changed.values() for step in replacing]
        with np.errstate(all="ignore"):
            for step in steps:
                values[step.index] = self._called(step, values)
        return any(np.isinf(values[step.index]).any() for step in steps)

    def _returned(self, edit: Edit) -> Array | None:
        how, key = edit.value
        if how in ("after", COMPUTED):
            program, values = returning(self.program, edit), self._values.copy()
            for step in program.steps[len(self.program.steps) :]:
                values[step.index] = self._called(step, values)
            return np.asarray(values[program.outputs[edit.function]])
        value = np.asarray(self._values[value_of(self.program, key)])
        return self.base[edit.function] + value if how == "added" else value

    def _following(self, changed: tuple[int, ...], name: str) -> Sequence[int]:
        """The changed positions and those that depend on them, of the steps behind an output, or ("") of all."""
        key = changed, name
        if key not in self._followers:
            needed = self._needed.get(name, range(len(self.program.steps)))
            reached, positions = set[int](), list[int]()
            for position in range(min(changed), len(self.program.steps)):
                if position in changed or (position in needed and not self._refs[position].isdisjoint(reached)):
                    reached.add(self.program.steps[position].index)
                    positions.append(position)
            self._followers[key] = positions
        return self._followers[key]

    def with_steps(self, changed: Mapping[int, Sequence[Step]], name: str, *, whole: bool = False) -> Array | None:
        """An output with other steps at some positions; None if they do not change it. If a value gets another shape,
        the `whole` program must run with it."""
        values, others = self._values.copy(), set[int]()
        for position in self._following(tuple(changed), "" if whole else name):
            index = self._indices[position]
            if position in changed:
                for new in changed[position]:
                    values[new.index] = self._called(new, values)
                    others.add(new.index)
                if same(values[index], self._values[index]):
                    values[index] = self._values[index]
                    others.discard(index)
                    continue
            elif self._refs[position].isdisjoint(others):
                continue
            else:
                values[index] = self._repeated(position, values)
                others.add(index)
            shape, before = np.shape(values[index]), self._shapes[index]
            if shape != before and not whole and not can_replace(shape, before):
                return self.with_steps(changed, name, whole=True) if broadcast_together(shape, before) else None
        index = self.program.outputs[name]
        if index not in others or np.shape(values[index]) != self._shapes[index]:
            return None
        return np.asarray(values[index])


def can_replace(shape: Shape, of: Shape) -> bool:
    """Whether a value of one shape can replace one of another: as large, or broadcastable."""
    if math.prod(shape) == math.prod(of):
        return True
    return len(shape) == len(of) and all(n in (1, m) for n, m in zip(shape, of, strict=True))


def broadcast_together(one: Shape, other: Shape) -> bool:
    """Whether two shapes differ only where one of them has length 1."""
    return len(one) == len(other) and all(n == m or 1 in (n, m) for n, m in zip(one, other, strict=True))


def same(values: Any, others: Any) -> bool:
    """Whether two values have the same numbers; NaN equals NaN."""
    values, others = np.asarray(values), np.asarray(others)
    if values.shape != others.shape:
        return False
    apart = (values != others).ravel()
    if not apart.any():
        return True
    number = values.ravel()[apart.argmax()]
    return bool(number != number) and np.array_equal(values, others, equal_nan=True)
