"""An edit in words: the expression that it changes, in the names of the reference."""

from __future__ import annotations

from parity.cases.edits import (
    BASE,
    COMPUTED,
    DETACHED,
    EVERY,
    MOVED,
    READ,
    RECOMPUTED,
    RESULT,
    RETURNED,
    SAVED,
    STEPWISE,
    Edit,
    Key,
    delta,
    returning,
    spliced,
    states,
)
from parity.cases.formula import ATOM, INVENTED, WRITTEN, Formulas, definitions, named_formulas, written
from parity.cases.op import GRADIENT
from parity.cases.program import Program, Ref, Step
from parity.cases.repeats import in_all_turns, repeats


def described(program: Program, edit: Edit) -> str:
    """The expression of an edited step in the reference's names: `var = a / 7, where the reference has a / 8`."""
    if edit.kind == RETURNED:
        return returned_as(program, edit)
    if edit.kind in (READ, SAVED):
        return read_as(program, edit)
    if edit.kind == STEPWISE:
        return f"every step{'' if edit.operand == EVERY else ' of the forward pass'} is rounded to {edit.value}"
    if edit.kind == DETACHED:
        return detached(program, edit)
    if edit.kind == BASE:
        text, steps = Formulas(program), (program.steps[position] for position in edit.positions)
        expressions = " and in ".join(dict.fromkeys(map(text.expression, steps)))
        return f"base 2, where the reference has base e, in {expressions}"
    return step_as(program, edit)


def described_beside(reference: Program, program: Program, edit: Edit) -> str:
    """`described`, of an edit of a program that other causes have altered: what "the reference has" is an expression
    of the reference itself; where it has none for the step, it is said to be what the other causes give."""
    text = described(program, edit)
    changed, has, right = text.partition(REFERENCE_HAS)
    if not has or is_of(reference, right):
        return text
    if marks_of(program) == marks_of(reference):
        own = described(reference, edit).partition(REFERENCE_HAS)[2]
        if is_of(reference, own) and own.partition(" (in ")[0] != changed.partition(",")[0]:
            return changed + has + own
    return text.replace(REFERENCE_HAS, OTHERS_GIVE)


REFERENCE_HAS, OTHERS_GIVE = "the reference has ", "the other causes give "
BASE_E = "base e"


def is_of(reference: Program, right: str) -> bool:
    """Whether a text begins with a name or an expression of a program."""
    text, texts = Formulas(in_all_turns(reference)), Formulas(reference)
    steps = [*((text, step) for step in in_all_turns(reference).steps), *((texts, step) for step in reference.steps)]
    names = [BASE_E, *reference.inputs, *reference.options, *reference.outputs]
    names += [item for formulas, step in steps for item in (formulas.expression(step), formulas.name_of(step))]
    right = right.removeprefix("those of ")
    return any(right == name or right.startswith((f"{name} (", f"{name}, in ", f"{name}; ")) for name in names if name)


def marks_of(program: Program) -> list[tuple[int, str, bool, int]]:
    """What identifies the steps of a program, whatever they compute."""
    return [(step.index, step.label, step.backward, step.site) for step in program.steps]


def returned_as(program: Program, edit: Edit) -> str:
    """The text of an edit of an output."""
    how, key = edit.value
    if how == COMPUTED:
        changed = returning(program, edit)
        expression = Formulas(changed).expression(changed.steps[-1])
        return f"{edit.function} = {expression}{definitions(expression, dict(named_formulas(changed)))}"
    if how == "after":
        read = [str(key[1])] if key[1] else [name for name in states(program) if name != edit.function]
        return f"{edit.function} is computed from the new {', '.join(read)}"
    other = word_of(program, key)
    if how == "instead":
        own = next((step for step in program.steps if step.index == program.outputs[edit.function]), None)
        if own is None or edit.function.startswith(GRADIENT):
            return f"{edit.function} is {other}"
        reference = f", where the reference has {Formulas(program).expression(own)}"
        return f"{edit.function} is {other}{reference}"
    return f"{other} is added to {edit.function}"


def step_as(program: Program, edit: Edit) -> str:
    """The expression of an edited step, and that of the reference."""
    position = edit.value if edit.kind == MOVED else edit.positions[0]
    program = in_all_turns(program)
    changed = spliced(program, delta(program, edit))
    before, after = Formulas(program), Formulas(changed)
    step = program.steps[position]
    new = next(s for s in changed.steps if s.index == step.index)
    right = before.expression(step)
    expression = f"{right} {filled_up(program, edit)}" if edit.kind == "padded" else after.expression(new)
    name = before.name_of(step)
    also = elsewhere(program, before, edit, name or named_after(program, before, step))
    inside = "" if name else within(program, before, step)
    text = f"{f'{name} = ' if name else ''}{expression}, where the reference has {right}{inside}{also}"
    if not INVENTED.search(text):
        return text
    return text + definitions(text, dict(named_formulas(program)) | dict(named_formulas(changed)))


def detached(program: Program, edit: Edit) -> str:
    """The values through which no gradient flows, and the step that reads them if others read them too."""
    turns = " in any turn" if not repeats(program).keys().isdisjoint(edit.positions) else ""
    named = in_all_turns(program)
    text, steps = Formulas(named), [named.steps[position] for position in edit.positions]
    if edit.operand == RESULT:
        names = dict.fromkeys(text.value(step.index)[0] for step in (steps[:1] if turns else steps))
        return f"no gradient through {' and '.join(names)}{turns}"
    operand = steps[-1].operands[edit.operand]
    value = text.value(operand.index)[0] if isinstance(operand, Ref) else str(operand)
    return f"no gradient through {value} in {text.expression(steps[-1])}{within(named, text, steps[-1])}{turns}"


def filled_up(program: Program, edit: Edit) -> str:
    """How an axis is padded: with which number, and up to which length."""
    key, axis, block, number = edit.value
    whole = f"whole blocks of {block}" if block else "a power of 2"
    return f"over axis {axis} filled up to {whole} with {word_of(program, key)} = {number:g}"


def elsewhere(program: Program, text: Formulas, edit: Edit, first: str) -> str:
    """The named results in which the same edit applies; a loop is edited in every turn."""
    steps = [program.steps[position] for position in edit.positions[1:]]
    names = (text.name_of(s) or named_after(program, text, s) for s in steps)
    others = dict.fromkeys(name for name in names if name not in ("", first))
    return f"; the same in {', '.join(others)}" if others else ""


def read_as(program: Program, edit: Edit) -> str:
    """The text of an edit of a value that is read: its replacement, and where."""
    key, kind, value = edit.value
    name = word_of(program, key)
    words = {kind: lambda: word_of(program, value) for kind in ("replaced", RECOMPUTED)}
    words |= {"fitted": lambda: f"{value:g}"}
    other = words.get(kind, lambda: written(value, (name, ATOM))[0] if value in WRITTEN else f"{value}({name})")()
    if kind == RECOMPUTED:
        return f"the backward pass uses functions of {other} wherever the reference has those of {name}"
    if edit.kind == SAVED:
        return f"the backward pass uses {other} wherever the reference has {name}"
    if not edit.positions:
        return f"{other} wherever the reference has {name}"
    text = Formulas(program)
    steps = (program.steps[position] for position in edit.positions)
    readers = " and in ".join(dict.fromkeys(text.name_of(step) or text.expression(step) for step in steps))
    return f"{other}, where the reference has {name}, in {readers}"


def word_of(program: Program, key: Key) -> str:
    """The name of a value, or its formula if it has none."""
    kind, name = key
    if kind != "step":
        return str(name)
    step, text = program.steps[int(name)], Formulas(program)
    return text.name_of(step) or text.expression(step)


def within(program: Program, text: Formulas, step: Step) -> str:
    """The named value that a step without a name is part of."""
    name = named_after(program, text, step)
    return f" (in {name})" if name else ""


def named_after(program: Program, text: Formulas, step: Step) -> str:
    """The first named value that depends on a step; "" if there is none."""
    reached = {step.index}
    for other in program.steps:
        if other.index > step.index and reached & set(other.refs):
            if text.name_of(other):
                return text.name_of(other)
            reached.add(other.index)
    return ""
