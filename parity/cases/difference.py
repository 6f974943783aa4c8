"""Where two programs part: the smallest expression of a variant that the reference computes otherwise."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from parity.cases.formula import INVENTED, Formulas, definitions, named_formulas
from parity.cases.program import Program, Ref, Step
from parity.cases.repeats import in_all_turns

Contents = Mapping[int, Hashable]
"""The number of what a value computes, by the value: equal values of two programs have the same."""


def difference(reference: Program, variant: Program) -> str:
    """`sqrt(var) + eps, where the reference has sqrt(var + eps) (in deviation)`; "" if both compute the same.

    It is the first one behind the first output that differs, in its first turn if the programs have a loop.
    """
    known: dict[Hashable, int] = {}
    ours, theirs = contents(reference, known), contents(variant, known)
    for name, index in variant.outputs.items():
        other = reference.outputs.get(name)
        if other is not None and ours[other] != theirs[index]:
            values = smallest((other, index), (reference, ours), (variant, theirs))
            names = {step.label for step in reference.steps}
            return described((in_all_turns(reference, names), in_all_turns(variant, names)), values)
    return ""


def contents(program: Program, known: dict[Hashable, int]) -> dict[int, int]:
    """What each value of a program computes."""
    found: dict[int, int] = {}

    def seen(operand: Any) -> Hashable:
        if isinstance(operand, Ref):
            return "value", found[operand.index]
        if isinstance(operand, (tuple, list)):
            return tuple(map(seen, operand))
        if isinstance(operand, np.ndarray):
            return operand.dtype.str, operand.shape, operand.tobytes()
        return repr(operand)

    for name, index in program.inputs.items():
        found[index] = known.setdefault(("input", name), len(known))
    for name, (index, _) in program.options.items():
        found[index] = known.setdefault(("option", name), len(known))
    for step in program.steps:
        key = (step.function, seen(step.operands), repr(sorted(step.keywords.items())))
        found[step.index] = known.setdefault(key, len(known))
    return found


def smallest(
    values: tuple[int, int], reference: tuple[Program, Contents], variant: tuple[Program, Contents]
) -> tuple[int, int]:
    """The values of both programs behind two that differ, back to those whose functions or plain operands do."""
    (before, ours), (after, theirs) = reference, variant
    steps, others = ({step.index: step for step in program.steps} for program in (before, after))
    tensors = of_tensors(before), of_tensors(after)
    while values[0] in steps and values[1] in others and is_alike(steps[values[0]], others[values[1]]):
        pairs = zip(steps[values[0]].refs, others[values[1]].refs, strict=True)
        parted = next(((i, j) for i, j in pairs if ours[i] != theirs[j]), None)
        if parted is None or parted[0] not in tensors[0] or parted[1] not in tensors[1]:
            break
        values = parted
    return values


def of_tensors(program: Program) -> set[int]:
    """The values that follow from a tensor, not from numbers only."""
    reached = set(program.inputs.values())
    for step in program.steps:
        if not reached.isdisjoint(step.refs):
            reached.add(step.index)
    return reached


def is_alike(one: Step, other: Step) -> bool:
    """Whether two steps do the same with as many values."""
    same = one.function is other.function and repr(one.keywords) == repr(other.keywords)
    return same and len(one.refs) == len(other.refs) and plain(one) == plain(other)


def plain(step: Step) -> list[str]:
    """The operands of a step that are no values."""
    return [repr(operand) for operand in step.operands if not isinstance(operand, (Ref, tuple, list))]


def described(programs: tuple[Program, Program], values: tuple[int, int]) -> str:
    """The expressions of a value in both programs, and the name of the first result that they are in."""
    texts = []
    for program, index in zip(programs, values, strict=True):
        step = next((step for step in program.steps if step.index == index), None)
        text = Formulas(program)
        texts.append(text.value(index)[0] if step is None else text.expression(step))
    told = f"{texts[1]}, where the reference has {texts[0]}"
    name, is_whole = enclosing(programs[1], values[1])
    told = f"{name} = {told}" if is_whole else f"{told} (in {name})"
    return told + definitions(told, {k: v for program in programs for k, v in named_formulas(program)})


def enclosing(program: Program, index: int) -> tuple[str, bool]:
    """The first named result that a value is in, and whether it is that result."""
    text, reached = Formulas(program), {index}
    for step in program.steps:
        if step.index in reached or not reached.isdisjoint(step.refs):
            reached.add(step.index)
            name = text.name_of(step)
            if name and not INVENTED.fullmatch(name):
                return name, step.index == index
    return "a result", False
