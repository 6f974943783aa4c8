"""The first divergence of two programs: the smallest expression that a variant and the reference compute
differently."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from parity.cases.formula import INVENTED, Formulas, definitions, named_formulas
from parity.cases.program import Program, Ref, Step
from parity.cases.repeats import in_all_turns

Contents = Mapping[int, Hashable]
"""A number for the content of each value; values of two programs with the same content share it."""


def difference(reference: Program, variant: Program) -> str:
    """`sqrt(var) + eps, where the reference has sqrt(var + eps) (in deviation)`; "" if both compute the same.

    It is the first divergence behind the first output that differs, in the first turn of a loop: of a tensor's
    expression, or of a number's if the tensors' expressions are equal.
    """
    known: dict[Hashable, int] = {}
    right, changed = contents(reference, known), contents(variant, known)
    names = {step.label for step in reference.steps}
    programs = in_all_turns(reference, names), in_all_turns(variant, names)
    tensors = of_tensors(reference), of_tensors(variant)
    for name, index in variant.outputs.items():
        other = reference.outputs.get(name)
        if other is not None and right[other] != changed[index]:
            path = list(diverging((other, index), (reference, right), (variant, changed)))
            n = sum(one in tensors[0] and two in tensors[1] for one, two in path)
            has = {content: index for index, content in right.items()}
            texts = (described(programs, (i, j), has.get(changed[j])) for i, j in (path[n - 1], *path[n:]))
            return next(filter(None, texts), f"{named(programs[1], path[n - 1][1])} with other constants")
    return ""


def contents(program: Program, known: dict[Hashable, int]) -> dict[int, int]:
    """A number for the content of each value of a program."""
    computed: dict[int, int] = {}

    def seen(operand: Any) -> Hashable:
        if isinstance(operand, Ref):
            return "value", computed[operand.index]
        if isinstance(operand, (tuple, list)):
            return tuple(map(seen, operand))
        if isinstance(operand, np.ndarray):
            return operand.dtype.str, operand.shape, operand.tobytes()
        return repr(operand)

    for name, index in program.inputs.items():
        computed[index] = known.setdefault(("input", name), len(known))
    for name, (index, _) in program.options.items():
        computed[index] = known.setdefault(("option", name), len(known))
    for step in program.steps:
        key = (step.function, seen(step.operands), repr(sorted(step.keywords.items())))
        computed[step.index] = known.setdefault(key, len(known))
    return computed


def diverging(
    values: tuple[int, int], reference: tuple[Program, Contents], variant: tuple[Program, Contents]
) -> Iterator[tuple[int, int]]:
    """Pairs of different values, from `values` back to the first pair whose steps themselves differ, or of which
    several operands differ and the variant has another value of the reference."""
    (before, right), (after, changed) = reference, variant
    steps, others = ({step.index: step for step in program.steps} for program in (before, after))
    has = set(right.values())
    following: tuple[int, int] | None = values
    while following is not None:
        one, other = following
        yield one, other
        if one not in steps or other not in others or not is_alike(steps[one], others[other]):
            return
        pairs = zip(steps[one].refs, others[other].refs, strict=True)
        apart = [(i, j) for i, j in pairs if right[i] != changed[j]]
        following = apart[0] if apart and (len(apart) == 1 or changed[other] not in has) else None


def of_tensors(program: Program) -> set[int]:
    """The values that depend on a tensor, not only on numbers."""
    reached = set(program.inputs.values())
    for step in program.steps:
        if not reached.isdisjoint(step.refs):
            reached.add(step.index)
    return reached


def is_alike(one: Step, other: Step) -> bool:
    """Whether two steps are equal but for the values of their operands."""
    same = one.function is other.function and repr(one.keywords) == repr(other.keywords)
    return same and len(one.refs) == len(other.refs) and plain(one) == plain(other)


def plain(step: Step) -> list[str]:
    """The operands of a step that are not values."""
    return [repr(operand) for operand in step.operands if not isinstance(operand, (Ref, tuple, list))]


def described(programs: tuple[Program, Program], values: tuple[int, int], taken: int | None) -> str:
    """The expressions of a value in both programs, and the name of the first result that contains them; "" if they are
    the same. `taken` is the reference's value that the variant has instead; its name is used if it has one."""
    right, changed = (expression(program, index) for program, index in zip(programs, values, strict=True))
    if right == changed:
        return ""
    name, is_whole = enclosing(programs[1], values[1])
    elsewhere, has_name = ("", False) if taken is None else enclosing(programs[0], taken)
    within = enclosing(programs[0], values[0])
    if has_name and elsewhere != within[0]:
        changed, (name, is_whole) = elsewhere, within
    text = f"{changed}, where the reference has {right}"
    text = f"{name} = {text}" if is_whole else f"{text} (in {name})"
    return text + definitions(text, {k: v for program in programs for k, v in named_formulas(program)})


def named(program: Program, index: int) -> str:
    """The expression of a value, with the name of the result that it is in."""
    name, is_whole = enclosing(program, index)
    return f"{name} = {expression(program, index)}" if is_whole else f"{expression(program, index)} (in {name})"


def expression(program: Program, index: int) -> str:
    """The expression of a value in the names of a program."""
    step, text = next((step for step in program.steps if step.index == index), None), Formulas(program)
    return text.value(index)[0] if step is None else text.expression(step)


def enclosing(program: Program, index: int) -> tuple[str, bool]:
    """The first named result that contains a value, and whether the value is that result."""
    text, reached = Formulas(program), {index}
    for step in program.steps:
        if step.index in reached or not reached.isdisjoint(step.refs):
            reached.add(step.index)
            name = text.name_of(step)
            if name and not INVENTED.fullmatch(name):
                return name, step.index == index
    return "a result", False
