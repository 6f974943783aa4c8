"""Mechanical changes of a program: the result of a kernel with one wrong step.

An edit drops an operand, replaces it by another value, applies a function to it, changes a number, replaces a function,
sums over other axes, or returns another tensor. It identifies the step by position, so it applies to every program of
the same structure: to other shapes, and to the op with other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.core import primitive_vjps
from autograd.tracer import getval

from parity.cases.edit_functions import (
    ALONG,
    NUMBERS,
    RUNNING,
    THROUGH,
    filled_to_blocks,
    lane_of,
    largest_products,
    rounded_floats,
    rounded_products,
    rounded_to,
    weighted_sums,
)
from parity.cases.formula import Formulas
from parity.cases.op import GRADIENT, IncompatibleError
from parity.cases.primitives import stopped
from parity.cases.program import LIFTED, Program, Ref, Step, Tensors, filled, in_dtype, trace
from parity.cases.substitutes import INDEXES, substitute


@dataclass(frozen=True)
class Edit:
    """One change of the steps at `positions`, which all have the function `function`.

    `kind` is a key of `COSTS`; `operand` is the changed operand (-1: the result), `value` its change. With `again`,
    gradients are those of the edited outputs; else they are computed as before, from the changed values.
    """

    positions: tuple[int, ...]
    function: str
    kind: str
    operand: int = -1
    value: Any = None
    again: bool = False

    @property
    def cost(self) -> float:
        """How improbable an edit is: the smallest changes cost least."""
        return (
            COSTS[self.kind]
            + UNLIKELY.get(self.value if isinstance(self.value, str) else "", 0.0)
            + 0.1 * (len(self.positions) > 1)
            + 0.1 * ((self.operand == RESULT) != (self.kind == DETACHED))
            + (PER_PART * parts(self.value[1]) if self.kind == RETURNED and self.value[0] == COMPUTED else 0.0)
            + (STORED_TF32 if self.value == "tf32" and self.operand in (RESULT, EVERY) else 0.0)
        )


PER_PART = 0.1
"""The cost of each function of a formula that replaces an output."""


def parts(expression: Expression) -> int:
    """The number of functions in an expression."""
    return 0 if expression[0] in (READ, "number") else 1 + sum(map(parts, expression[1:]))


RESULT, EVERY, PARTS = -1, -2, -3
"""Operand numbers with a meaning: the result of a step, all operands and the result, and the terms of a product."""
RETURNED = "returned"
"""The kind of an edit of an output, whose name replaces that of a function: `value` is `instead`, `added` or `after`,
and the key of the value that is returned instead, or added, or of the state that is read after its update; or
`computed`, and the `Expression` that is returned."""
COMPUTED = "computed"
Expression = tuple[Any, ...]
"""("read", key), ("number", 0.5), or the name of a function and its operands: ("exp", ("number", 2.0))."""
READ, SAVED = "read", "saved"
"""The kinds of edits of a value wherever it is read, or at some positions, and of an input or option that differs
between forward and backward pass: `value` is its key, the kind of change and the change."""
RECOMPUTED = "recomputed"
"""In functions of an input, the backward pass uses another value; where it reads the input itself it does not."""


def format_of(edit: Edit) -> str:
    """The format in which an edited step loses digits; "" if the edit changes the formula."""
    if edit.kind in LOSSY:
        return str(edit.value)
    return str(edit.value[2]) if edit.kind == READ and edit.value[1] == "rounded" else ""


MOVED = "moved"
"""The kind of an edit that applies an operation to the result of a later step, whose position is `value`."""
NORM, BASE = "norm", "base"
"""The kinds of edits of a root of a sum of squares, a norm of another order (`value`), and of exponentials and
logarithms, all with base 2."""
DETACHED = "detached"
"""The kind of an edit that lets no gradient through a step's result (`RESULT`) or through one of its operands."""
ACCUMULATED = "accumulated"
"""The kind of an edit whose sums have running totals in a lower precision."""
STEPWISE = "stepwise"
"""The kind of an edit of all steps (`EVERY`), or of those of the forward pass (`RESULT`), whose results are rounded."""
LOSSY = ("rounded", ACCUMULATED, STEPWISE)
OTHER = ("replaced", "reshaped")
"""The kinds of edits that replace an operand by another value."""


COSTS: Mapping[str, float] = {
    "kept": 1.0,
    "exchanged": 1.0,
    "reordered": 1.2,
    MOVED: 1.3,
    DETACHED: 0.8,
    NORM: 1.3,
    BASE: 1.3,
    "swapped": 1.3,
    "reshaped": 1.3,
    "joined": 1.6,
    "derived": 1.6,
    READ: 1.2,
    SAVED: 1.4,
    RETURNED: 1.2,
    "replaced": 1.1,
    "function": 1.2,
    "number": 1.2,
    "through": 1.3,
    "index": 1.4,
    "padded": 1.7,
    "summed": 1.4,
    "averaged": 1.5,
    "along": 1.5,
    "rounded": 1.6,
    ACCUMULATED: 1.7,
    STEPWISE: 1.9,
    "constant": 1.8,
    "times": 2.5,
    "fitted": 2.5,
    "plus": 2.6,
    "floor": 2.6,
    "cap": 2.6,
}
STORED_TF32 = 0.05
"""Extra cost of a result in tf32, a format for the operands of products; float16 has as many digits."""
UNLIKELY: Mapping[str, float] = {"one": -0.1, "zero": -0.1, "one less": 0.1, "one more": 0.1}
"""Extra cost of some values: an ignored operand is more probable than an index that is wrong by one."""
FITTED: Mapping[str, tuple[Callable[..., Any], float]] = {
    "times": (np.multiply, 1.0),
    "plus": (np.add, 0.0),
    "floor": (np.maximum, -np.inf),
    "cap": (np.minimum, np.inf),
}
"""The functions that apply a fitted number to a value, and the number that changes nothing."""
JOINED: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "maximum": np.maximum,
}
"""The functions that combine a value with an option, an input or another value."""


# Changing a step.


class NewValues:
    """Numbers for values that an edit adds to a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._next = program.size

    def __call__(self) -> int:
        """A number that no value has yet."""
        self._next += 1
        return self._next - 1


def altered(step: Step, edit: Edit, new: NewValues) -> list[Step]:  # noqa: C901 - a table of kinds
    """The steps that replace the edited one; the last of them keeps its number."""
    i, value = edit.operand, edit.value
    match edit.kind:
        case "kept":
            others = (o for k, o in enumerate(step.operands) if k != i and not isinstance(o, (tuple, list)))
            return [replace(step, function=first_of, operands=(step.operands[i], *others), keywords={})]
        case "exchanged":
            return [replace(step, operands=(*reversed(step.operands[:2]), *step.operands[2:]))]
        case "reordered":
            return reordered(step, edit, new)
        case "swapped":
            return [with_operand(with_operand(step, i, step.operands[value]), value, step.operands[i])]
        case "replaced" | "reshaped":
            before, index = early(new.program, edit.positions[0], value, new)
            if edit.kind == "replaced":
                return [*before, with_operand(step, i, Ref(index))]
            return [*before, *inserted(with_operand(step, i, Ref(index)), i, new, like, (step.operands[i],))]
        case "derived":
            number, option = value
            changed = Step(new(), NUMBERS[number], (Ref(value_of(new.program, option)),), {}, "", step.backward)
            return [changed, with_operand(step, i, Ref(changed.index))]
        case "joined":
            name, key = value
            return inserted(step, i, new, JOINED[name], (Ref(value_of(new.program, key)),))
        case "function" if i == PARTS:
            return [replace(step, function=largest_products)]
        case "function":
            function, keywords = substitute(step.name, value)
            return [replace(step, function=function, keywords={**step.keywords, **keywords})]
        case "padded":
            return padded(step, edit, new)
        case "detached":
            return inserted(step, i, new, PASSED)
        case "norm":
            return other_norm(step, value, new)
        case "base":
            return in_base_2(step, new)
        case "index":
            return inserted(step, i, new, *INDEXES[value])
        case "constant" | "fitted":
            return [with_operand(step, i, value)]
        case "number" if not isinstance(step.operands[i], Ref):
            return [with_operand(step, i, NUMBERS[value](step.operands[i]))]
        case "number":
            return inserted(step, i, new, NUMBERS[value])
        case "times" | "plus" | "floor" | "cap":
            return inserted(step, i, new, FITTED[edit.kind][0], (value,))
        case "through":
            return inserted(step, i, new, *THROUGH[value])
        case "summed":
            return [replace(step, keywords={**step.keywords, "axis": value})]
        case "averaged":
            axis, factor = value
            total = replace(step, keywords={**step.keywords, "axis": axis})
            return inserted(total, RESULT, new, np.multiply, (factor,))
        case "along":
            name, *further = value
            return inserted(step, i, new, ALONG[name], further)
        case "accumulated":
            return [replace(step, function=RUNNING[step.name], keywords={**step.keywords, "format": value})]
        case "rounded" if i == PARTS:
            return [replace(step, function=rounded_products, keywords={**step.keywords, "format": value})]
        case "rounded" if i == EVERY:
            return all_rounded(step, value, new)
        case "rounded":
            return inserted(step, i, new, rounded_to, (value,))
    raise ValueError(f"unknown kind of edit: {edit.kind}")


PASSED: Callable[..., Any] = stopped.raw  # type: ignore[attr-defined]  # set by `primitive`


def is_by_element(step: Step) -> bool:
    """Whether a step computes each element from those in its place."""
    return (isinstance(step.function, np.ufunc) and step.function.signature is None) or step.function is np.where


def padded(step: Step, edit: Edit, new: NewValues) -> list[Step]:
    """A reduction along an axis that is padded to whole blocks. The padding goes into a value that the operand follows
    from element by element."""
    key, axis, block, number = edit.value
    source, operand = value_of(new.program, key), step.operands[edit.operand]
    lane = Step(new(), lane_of, (Ref(source), axis, number), {}, "", step.backward)
    steps, renamed = [lane], {source: lane.index}
    for before in new.program.steps:
        if before.index <= operand.index and not renamed.keys().isdisjoint(before.refs) and is_by_element(before):
            steps.append(replace(with_refs(before, renamed), index=new(), label="", backward=step.backward))
            renamed[before.index] = steps[-1].index
    if operand.index not in renamed:
        raise IncompatibleError("the operand does not follow from the value")
    filled_up = Step(
        new(), filled_to_blocks, (operand, Ref(renamed[operand.index]), axis, block), {}, "", step.backward
    )
    return [*steps, filled_up, with_operand(step, edit.operand, Ref(filled_up.index))]


THROUGH_SUMS = frozenset(("add", "divide", "true_divide", "multiply", "ravel", "reshape", "concatenate"))
"""Steps that may lie between the root and the squares of a norm, besides the sum."""


def of_squares(program: Program, root: Step) -> list[Step]:
    """The steps from the squares, which come first, to the operand of a root: a sum of squares, or a mean of them;
    none if it is something else."""
    steps = {step.index: step for step in program.steps}
    path: dict[int, Step] = {}

    def follow(index: int, summed: bool) -> bool:
        step = steps.get(index)
        if step is None or step.name not in (*THROUGH_SUMS, "sum", "square"):
            return False
        square = step.name == "square" or (step.name == "multiply" and len(step.refs) == 2 and len({*step.refs}) == 1)
        below = [] if square else [follow(ref, summed or step.name == "sum") for ref in step.refs]
        if any(below) or (square and summed):
            path[index] = step
        return index in path

    follow(root.refs[0], summed=False)
    return [path[index] for index in sorted(path)]


def other_norm(step: Step, order: str, new: NewValues) -> list[Step]:
    """The norm of order 1 or inf instead of a root of a sum of squares."""
    chain, renamed = of_squares(new.program, step), dict[int, int]()
    if not chain:
        raise IncompatibleError("it is no root of a sum of squares")
    steps = []
    for inner in chain:
        changed = with_refs(inner, renamed)
        if renamed.keys().isdisjoint(inner.refs):
            changed = replace(changed, function=np.absolute, operands=inner.operands[:1])
        elif order == "inf" and inner.name in LARGEST:
            changed = replace(changed, function=LARGEST[inner.name])
        renamed[inner.index] = new()
        steps.append(replace(changed, index=renamed[inner.index], label=""))
    return [*steps, replace(step, function=first_of, operands=(Ref(steps[-1].index),))]


LARGEST: Mapping[str, Callable[..., Any]] = {"sum": np.max, "add": np.maximum}


def in_base_2(step: Step, new: NewValues) -> list[Step]:
    """An exponential or a logarithm with base 2."""
    if step.name == "log1p":
        inner = replace(step, index=new(), function=np.add, operands=(*step.operands, 1.0), label="")
        return [inner, replace(step, function=np.log2, operands=(Ref(inner.index),))]
    if step.name == "expm1":
        inner = replace(step, index=new(), function=np.exp2, label="")
        return [inner, replace(step, function=np.subtract, operands=(Ref(inner.index), 1.0))]
    return [replace(step, function=BASE_2[step.name])]


BASE_2: Mapping[str, Callable[..., Any]] = {"exp": np.exp2, "log": np.log2, "logaddexp": np.logaddexp2}
EXPONENTIAL = frozenset((*BASE_2, "expm1", "log1p"))


def reordered(step: Step, edit: Edit, new: NewValues) -> list[Step]:
    """f(g(a, b), c) as g(f(a, c), b): a step and the one before it in reverse order."""
    child = next((s for s in new.program.steps if Ref(s.index) == step.operands[edit.operand]), None)
    if child is None or edit.value >= len(child.operands):
        raise IncompatibleError("there is no such step before it")
    index = new()
    inner = replace(with_operand(step, edit.operand, child.operands[edit.value]), index=index, label="")
    return [inner, replace(with_operand(child, edit.value, Ref(index)), index=step.index, label=step.label)]


def early(program: Program, position: int, key: Key, new: NewValues) -> tuple[list[Step], int]:
    """The steps that compute a value before the step at `position`, if they come later, and the value's number."""
    index = value_of(program, key)
    if key[0] != "step" or int(key[1]) < position:
        return [], index
    needed = replace(program, outputs={"": index}).needed()
    renamed: dict[int, int] = {}
    before = []
    for step in needed.steps:
        if step.index >= program.steps[position].index:
            before.append(replace(with_refs(step, renamed), index=new(), label=""))
            renamed[step.index] = before[-1].index
    if index not in renamed or program.steps[position].index in {step.index for step in needed.steps}:
        raise IncompatibleError("the value depends on the step, or on none that can be done before it")
    return before, renamed[index]


def moved_later(program: Program, edit: Edit, new: NewValues) -> dict[int, list[Step]]:
    """A step left out, and its operation applied to the result of a later step."""
    position, later = edit.positions[0], edit.value
    step, around = program.steps[position], program.steps[later]
    kept = step.operands[edit.operand]
    others = [o for k, o in enumerate(step.operands) if k != edit.operand]
    inner = replace(around, index=new(), label="")
    outer = replace(with_operand(step, edit.operand, Ref(inner.index)), index=around.index, label=around.label)
    left = replace(step, function=first_of, operands=(kept, *others), keywords={}, label="")
    return {position: [left], later: [inner, outer]}


def inserted(
    step: Step, operand: int, new: NewValues, function: Callable[..., Any], further: Sequence[Any] = ()
) -> list[Step]:
    """The step with `function` applied to one operand, or to its result."""
    index = new()
    if operand == RESULT:
        inner = Step(index, step.function, step.operands, step.keywords, "", step.backward, step.site, step.of)
        return [inner, Step(step.index, function, (Ref(index), *further), {}, step.label, step.backward)]
    around = Step(index, function, (step.operands[operand], *further), {}, "", step.backward)
    return [around, with_operand(step, operand, Ref(index))]


def all_rounded(step: Step, target: str, new: NewValues) -> list[Step]:
    """The step with its operands and its result in a lower precision."""
    around = [Step(new(), rounded_to, (o, target), {}, "", step.backward) for o in step.operands]
    inner = replace(step, operands=tuple(Ref(s.index) for s in around))
    return [*around, *inserted(inner, RESULT, new, rounded_to, (target,))]


def with_operand(step: Step, position: int, operand: Any) -> Step:
    """The step with another operand."""
    operands = (*step.operands[:position], operand, *step.operands[position + 1 :])
    return Step(step.index, step.function, operands, step.keywords, step.label, step.backward, step.site, step.of)


def first_of(value: Any, *others: Any) -> Any:
    """The value, broadcast with the others."""
    shape = np.broadcast_shapes(*map(anp.shape, (value, *others)))
    return value if anp.shape(value) == shape else value * np.ones(shape, np.int8)


def like(value: Any, other: Any) -> Any:
    """The value in the shape of another one with equally many elements."""
    return anp.reshape(value, anp.shape(other))


Key = tuple[str, str | int]
"""A value's key, independent of its number: ("input", "x"), ("option", "eps"), ("step", 7)."""


def value_of(program: Program, key: Key) -> int:
    """The number of a value; IncompatibleError where the program has no such value."""
    kind, name = key
    try:
        if kind == "step":
            return program.steps[int(name)].index
        return program.inputs[str(name)] if kind == "input" else program.options[str(name)][0]
    except (IndexError, KeyError):
        raise IncompatibleError(f"the program has no {kind} {name}") from None


def option_of(program: Program, edit: Edit) -> str:
    """The option whose value an edit changes, "" if it changes something else."""
    if edit.kind in (READ, SAVED):
        kind, name = edit.value[0]
        return str(name) if kind == "option" else ""
    if edit.kind not in ("number", "fitted", "times", "replaced") or edit.operand == RESULT:
        return ""
    operand = program.steps[edit.positions[0]].operands[edit.operand]
    options = {index: name for name, (index, _) in program.options.items()}
    return options.get(operand.index, "") if isinstance(operand, Ref) else ""


def delta(program: Program, edit: Edit) -> dict[int, list[Step]]:
    """The steps that replace those at `edit.positions`; IncompatibleError if the program has no such steps."""
    new = NewValues(program)
    if edit.kind == READ:
        return with_other_reads(program, edit, new)
    if edit.kind == SAVED:
        return with_other_saved(program, edit, new)
    if edit.kind == STEPWISE:
        steps = ((p, s) for p, s in enumerate(program.steps) if edit.operand == EVERY or not s.backward)
        return {p: inserted(step, RESULT, new, rounded_floats, (edit.value,)) for p, step in steps}
    changed = {}
    for turn, position in enumerate(edit.positions):
        if position >= len(program.steps) or edit.function not in ("", program.steps[position].name):
            raise IncompatibleError(f"step {position} is not {edit.function}")
        step = program.steps[position]
        if edit.operand >= len(step.operands):
            raise IncompatibleError(f"step {position} has no operand {edit.operand}")
        if edit.kind == MOVED and edit.value >= len(program.steps):
            raise IncompatibleError(f"there is no step {edit.value}")
        if edit.kind == MOVED:
            return moved_later(program, edit, new)
        changed[position] = altered(step, in_turn(edit, turn), new)
    return changed


def in_turn(edit: Edit, turn: int) -> Edit:
    """The edit of a loop for one turn: an `each` value becomes that turn's own."""
    if edit.kind not in OTHER or edit.value[0] != "each":
        return edit
    return replace(edit, positions=(edit.positions[turn],), value=edit.value[1][turn])


def with_other_reads(program: Program, edit: Edit, new: NewValues) -> dict[int, list[Step]]:
    """The steps that read a value (at the edit's positions, by default all of them), reading the changed value
    instead."""
    key = edit.value[0]
    index, other = value_of(program, key), new()
    steps = program.steps
    readers = [p for p in edit.positions or range(len(steps)) if p < len(steps) and index in steps[p].refs]
    if not readers or len(readers) < len(edit.positions):
        raise IncompatibleError(f"nothing reads {key[1]}")
    changed = {p: [with_refs(steps[p], {index: other})] for p in readers}
    changed[readers[0]].insert(0, changed_read(program, edit, other))
    return changed


def changed_read(program: Program, edit: Edit, other: int) -> Step:
    """The step that gives value `other`, which replaces the edit's value."""
    key, kind, value = edit.value
    index = value_of(program, key)
    if kind in ("replaced", RECOMPUTED):
        return Step(other, first_of, (Ref(value_of(program, value)),))
    if kind == "number":
        return Step(other, NUMBERS[value], (Ref(index),))
    if kind == "fitted":
        return Step(other, first_of, (value,))
    function, further = THROUGH.get(value, (rounded_to, (value,)))
    return Step(other, function, (Ref(index), *further))


def with_other_saved(program: Program, edit: Edit, new: NewValues) -> dict[int, list[Step]]:
    """The backward pass, with the values of the forward pass recomputed from a changed input or option."""
    key, kind, _ = edit.value
    index, other = value_of(program, key), new()
    renamed = {index: other}
    again: list[Step] = []
    for step in program.steps:
        if not step.backward and not renamed.keys().isdisjoint(step.refs):
            again.append(replace(with_refs(step, renamed), index=new(), label="", backward=True))
            renamed[step.index] = again[-1].index
    if kind == RECOMPUTED:
        del renamed[index]
    changed = {
        p: [with_refs(step, renamed)]
        for p, step in enumerate(program.steps)
        if step.backward and not renamed.keys().isdisjoint(step.refs)
    }
    if not changed:
        raise IncompatibleError(f"no gradient depends on {key[1]}")
    changed[min(changed)][:0] = [changed_read(program, edit, other), *again]
    return changed


def with_refs(step: Step, others: Mapping[int, int]) -> Step:
    """The step with some operands replaced."""

    def renamed(operand: Any) -> Any:
        if isinstance(operand, (tuple, list)):
            return type(operand)(map(renamed, operand))
        return Ref(others.get(operand.index, operand.index)) if isinstance(operand, Ref) else operand

    return replace(step, operands=renamed(step.operands))


def returning(program: Program, edit: Edit) -> Program:
    """The program with another output."""
    how, key = edit.value
    if edit.function not in program.outputs:
        raise IncompatibleError(f"there is no output {edit.function}")
    if how == "after":
        return after_update(program, edit.function, str(key[1]))
    if how == COMPUTED:
        return computing(program, edit.function, key)
    index, steps = value_of(program, key), program.steps
    if how == "added":
        operands = Ref(program.outputs[edit.function]), Ref(index)
        index = program.size
        steps = (*steps, Step(index, np.add, operands, backward=True))
    return replace(program, steps=steps, outputs={**program.outputs, edit.function: index})


OWN: Mapping[str, Callable[..., Any]] = {"weighted_sums": weighted_sums}
"""Functions of expressions that NumPy lacks."""


def computing(program: Program, output: str, expression: Expression) -> Program:
    """The program with an output computed by an expression of its values."""
    new, steps = NewValues(program), list[Step]()

    def operand(part: Expression) -> Any:
        if part[0] == "number":
            return part[1]
        if part[0] == READ:
            return Ref(value_of(program, part[1]))
        steps.append(Step(new(), OWN.get(part[0]) or getattr(np, part[0]), tuple(map(operand, part[1:]))))
        return Ref(steps[-1].index)

    shaped = Step(new(), first_of, (operand(expression), Ref(program.outputs[output])), label="")
    return replace(program, steps=(*program.steps, *steps, shaped), outputs={**program.outputs, output: shaped.index})


def states(program: Program) -> list[str]:
    """The tensors that the op updates."""
    return [name for name in program.inputs if name in program.outputs]


def after_update(program: Program, output: str, state: str) -> Program:
    """The program with an output computed again from the updated states: from one `state`, or from all ("")."""
    renamed = {program.inputs[n]: program.outputs[n] for n in states(program) if n != output and state in ("", n)}
    new, reach = NewValues(program), program.reach([output])
    again: list[Step] = []
    for position, step in enumerate(program.steps):
        if position in reach and not renamed.keys().isdisjoint(step.refs):
            again.append(replace(with_refs(step, renamed), index=new(), label=""))
            renamed[step.index] = again[-1].index
    last = renamed.get(program.outputs[output])
    if last is None:
        raise IncompatibleError(f"{output} does not depend on {state or 'a state'}")
    return replace(program, steps=(*program.steps, *again), outputs={**program.outputs, output: last})


def spliced(program: Program, changed: Mapping[int, Sequence[Step]]) -> Program:
    """The program with other steps at some positions."""
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        steps += changed.get(position, (step,))
    return replace(program, steps=tuple(steps))


def edited(
    program: Program, edits: Iterable[Edit], tensors: Tensors, params: Any, differentiable: Sequence[str]
) -> Program:
    """The program after all edits in turn; IncompatibleError if one does not fit the result of those before it.
    `tensors` (inputs and gradients of outputs), `params` and `differentiable` are those of the trace."""
    for edit in edits:
        program = returning(program, edit) if edit.kind == RETURNED else spliced(program, delta(program, edit))
        if edit.again:
            try:
                program = differentiated_again(program, tensors, params, differentiable)
            except (
                TypeError,
                ValueError,
                IndexError,
                AttributeError,
                NotImplementedError,
                ArithmeticError,
                AssertionError,
            ) as error:
                raise IncompatibleError(f"the edited outputs cannot be differentiated: {error}") from error
    return program


def differentiated_again(program: Program, tensors: Tensors, params: Any, differentiable: Sequence[str]) -> Program:
    """The outputs of `program`, with the gradients that follow from them."""
    given = {n: in_dtype(np.asarray(v), np.dtype(np.float64)) for n, v in tensors.items() if n in program.inputs}
    grad_outputs = {name: given.pop(f"grad.{name}") for name in program.outputs if f"grad.{name}" in given}
    names = [name for name in program.outputs if not is_gradient(name, differentiable)]
    forward = program.needed(names)
    result, _ = trace(
        lambda values, numbers: replayed(forward, values, numbers),
        given,
        params,
        differentiable=differentiable,
        gradients=grad_outputs,
        labelled=False,
    )
    return result


def is_gradient(output: str, differentiable: Sequence[str]) -> bool:
    """Whether an output is the gradient of an input."""
    return output.startswith(GRADIENT) and output.removeprefix(GRADIENT) in differentiable


def replayed(program: Program, tensors: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """Repeats the steps of a program on stand-ins."""
    values: list[Any] = [None] * program.size
    for name, index in program.inputs.items():
        values[index] = tensors.get(name)
    for name, (index, _) in program.options.items():
        head, _, item = name.partition(".")
        number = getattr(params, head)
        values[index] = number[int(item)] if item else number
    for step in program.steps:
        function = LIFTED.get(step.function) or getattr(anp, step.name, None) or step.function
        operands = filled(step.operands, values, np.dtype(np.float64))
        if function in LIFTED.values() and function not in primitive_vjps:
            operands = tuple(map(getval, operands))  # no gradient flows through it
        values[step.index] = function(*operands, **step.keywords)
    return {name: values[index] for name, index in program.outputs.items()}


def with_number(edit: Edit, number: float) -> Edit:
    """An edit of `fits_of` with another number."""
    return replace(edit, value=(*edit.value[:-1], number) if edit.kind == READ else number)


def transferred(edit: Edit, program: Program, other: Program) -> Edit:
    """An edit of one program for another one, at the steps that compute the same there; IncompatibleError if there are
    none."""
    if [step.name for step in program.steps] == [step.name for step in other.steps]:
        return edit
    if edit.kind in (READ, SAVED, RETURNED):
        if (
            edit.positions
            or edit.value[0] == COMPUTED
            or any(isinstance(v, tuple) and v[0] == "step" for v in edit.value)
        ):
            raise IncompatibleError("the matching steps of the other program cannot be found")
        return edit
    formulas, others = Formulas(program), Formulas(other)
    positions: dict[str, list[int]] = {}
    for i, step in enumerate(other.steps):
        positions.setdefault(others.expression(step), []).append(i)

    def matching(position: int) -> int:
        matches = positions.get(formulas.expression(program.steps[position]), [])
        if len(matches) != 1:
            raise IncompatibleError(f"{len(matches)} steps compute the same as step {position}")
        return matches[0]

    value = edit.value
    if edit.kind == MOVED:
        value = matching(value)
    elif isinstance(value, tuple) and value[0] == "step":
        value = ("step", matching(value[1]))
    elif isinstance(value, tuple) and value[0] == "each":
        value = ("each", tuple((kind, matching(key) if kind == "step" else key) for kind, key in value[1]))
    return replace(edit, positions=tuple(map(matching, edit.positions)), value=value)
