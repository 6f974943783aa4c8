"""Mechanical changes of a program: what a kernel computes whose author got one step wrong.

An edit drops an operand, replaces it by another value, reads it through a function, gives a number another value, swaps
a function, or sums over another part. It says which step it changes by position, so that it can be applied to every
program of the same structure: to other shapes, and to the op with other numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import autograd.numpy as anp
import numpy as np

from parity.cases.draw import Shape
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.formula import Formulas
from parity.cases.op import IncompatibleError
from parity.cases.program import LIFTED, Array, Program, Ref, Step, Tensors, call, filled, in_dtype, trace

DEPTH = 3
MAX_STEPS = 400
"""A longer program has too many edits to try them all."""
BLOCKS = (128, 64, 32, 16, 8, 4)
"""Elements that a kernel handles together; what is left of a sum is its tail."""


@dataclass(frozen=True)
class Edit:
    """One change of the steps at `positions`, which all have the function `function`.

    `kind` is a key of `COSTS`; `operand` is the operand that is changed (-1: the result), `value` says how. `again`:
    the gradients are those of the edited outputs; else they are computed as before, from the values that changed.
    """

    positions: tuple[int, ...]
    function: str
    kind: str
    operand: int = -1
    value: Any = None
    again: bool = False

    @property
    def cost(self) -> float:
        """How much has to be believed: the smallest changes cost least."""
        return COSTS[self.kind] + 0.1 * (len(self.positions) > 1) + (0.1 if self.operand == RESULT else 0.0)


RESULT = -1
READ = "read"
"""The kind of an edit of an input or an option, wherever it is read: `value` is its key, the kind of change and how."""


# Functions of one value.


def rounded_to(values: Any, target: str) -> Any:
    """`values` in a format of fewer digits; their dtype stays."""
    return rounded(np.asarray(values), FORMATS[target])


def tail_dropped(values: Array, axis: int, block: int) -> Array:
    """`values` with zeros in what is left of `axis` after whole blocks."""
    kept = np.array(values)
    length = kept.shape[axis]
    kept[(slice(None),) * (axis % kept.ndim) + (slice(length // block * block, length),)] = 0
    return kept


def with_first_twice(values: Array, axis: int) -> Array:
    """`values` with the first one along `axis` doubled."""
    kept = np.array(values)
    kept[(slice(None),) * (axis % kept.ndim) + (0,)] *= 2
    return kept


def without(values: Array, axis: int, index: int) -> Array:
    """`values` with a zero at one index of `axis`."""
    kept = np.array(values)
    kept[(slice(None),) * (axis % kept.ndim) + (index,)] = 0
    return kept


THROUGH: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "negative": (np.negative, ()),
    "double": (np.multiply, (2.0,)),
    "half": (np.multiply, (0.5,)),
    "square": (np.square, ()),
    "sqrt": (np.sqrt, ()),
    "absolute": (np.absolute, ()),
    "reciprocal": (np.power, (-1.0,)),
    "zero": (np.multiply, (0.0,)),
    "one more": (np.add, (1.0,)),
    "one less": (np.subtract, (1.0,)),
    "exp": (np.exp, ()),
}
"""What an operand or a result is read through, with the further operands of the function."""
ALONG: Mapping[str, Callable[..., Any]] = {
    "flipped": np.flip,
    "transposed": np.swapaxes,
    "first twice": with_first_twice,
    "without one": without,
    "without tail": tail_dropped,
}
"""What is done along an axis, or two."""
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "add": ("subtract", "multiply"),
    "subtract": ("add", "multiply"),
    "multiply": ("add", "divide"),
    "divide": ("multiply",),
    "true_divide": ("multiply",),
    "sum": ("max", "mean"),
    "mean": ("sum", "max"),
    "max": ("min", "mean"),
    "maximum": ("minimum", "add"),
    "minimum": ("maximum",),
    "exp": ("expm1",),
    "log": ("log1p",),
    "log1p": ("log",),
    "expm1": ("exp",),
    "sqrt": ("square", "cbrt"),
    "square": ("absolute",),
    "tanh": ("sin", "arctan"),
    "greater": ("greater_equal", "less"),
    "greater_equal": ("greater", "less"),
    "less": ("less_equal", "greater"),
    "less_equal": ("less", "greater"),
}
ARITHMETIC = frozenset(("add", "subtract", "multiply", "divide", "true_divide"))
COMMUTE = frozenset(("add", "multiply", "maximum", "minimum"))
REDUCING = frozenset(("sum", "mean", "max", "min", "matmul", "dot", "einsum"))
NUMBERS: Mapping[str, Callable[[float], float]] = {
    "zero": lambda v: 0.0 * v,
    "one less": lambda v: v - 1,
    "one more": lambda v: v + 1,
    "double": lambda v: 2 * v,
    "half": lambda v: v / 2,
    "complement": lambda v: 1 - v,
    "negative": lambda v: -v,
    "square": lambda v: v * v,
    "root": lambda v: v**0.5 if v >= 0 else v,
    "inverse": lambda v: 1 / v if v else v,
    "float32": lambda v: float(np.float32(v)),
}
"""Other values of a number of the reference."""
for _name, _function in NUMBERS.items():
    _function.__name__ = _name  # what formulas call the step
COSTS: Mapping[str, float] = {
    "kept": 1.0,
    "exchanged": 1.0,
    "reordered": 1.2,
    READ: 1.2,
    "replaced": 1.1,
    "function": 1.2,
    "number": 1.2,
    "through": 1.3,
    "summed": 1.4,
    "along": 1.5,
    "rounded": 1.6,
    "constant": 1.8,
    "times": 2.5,
    "fitted": 2.5,
}
FITTED = ("times", "fitted")
"""Edits with a number that must be fitted."""


# Changing a step.


class NewValues:
    """Numbers for values that an edit adds to a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._next = program.size

    def __call__(self) -> int:
        """One more."""
        self._next += 1
        return self._next - 1


def altered(step: Step, edit: Edit, new: NewValues) -> list[Step]:  # noqa: C901 - a table of kinds
    """The steps in the place of an edited one; the last of them has its number."""
    i, value = edit.operand, edit.value
    match edit.kind:
        case "kept":
            others = (*step.operands[:i], *step.operands[i + 1 :])
            return [replace(step, function=first_of, operands=(step.operands[i], *others), keywords={})]
        case "exchanged":
            return [replace(step, operands=(*reversed(step.operands[:2]), *step.operands[2:]))]
        case "replaced" if i == RESULT:
            return [replace(step, function=first_of, operands=(Ref(value_of(new.program, value)),), keywords={})]
        case "reordered":
            return reordered(step, edit, new)
        case "replaced":
            return [with_operand(step, i, Ref(value_of(new.program, value)))]
        case "function":
            return [replace(step, function=getattr(np, value))]
        case "constant" | "fitted":
            return [with_operand(step, i, value)]
        case "number" if not isinstance(step.operands[i], Ref):
            return [with_operand(step, i, NUMBERS[value](step.operands[i]))]
        case "number":
            return inserted(step, i, new, NUMBERS[value])
        case "times":
            return inserted(step, i, new, np.multiply, (value,))
        case "through":
            return inserted(step, i, new, *THROUGH[value])
        case "summed":
            return [replace(step, keywords={**step.keywords, "axis": value})]
        case "along":
            name, *further = value
            return inserted(step, i, new, ALONG[name], further)
        case "rounded":
            return inserted(step, i, new, rounded_to, (value,))
    raise ValueError(f"there is no kind of edit {edit.kind}")


def reordered(step: Step, edit: Edit, new: NewValues) -> list[Step]:
    """f(g(a, b), c) as g(f(a, c), b): a step and the one before it in the other order."""
    child = next((s for s in new.program.steps if Ref(s.index) == step.operands[edit.operand]), None)
    if child is None or edit.value >= len(child.operands):
        raise IncompatibleError("there is no such step before it")
    index = new()
    inner = replace(with_operand(step, edit.operand, child.operands[edit.value]), index=index, label="")
    return [inner, replace(with_operand(child, edit.value, Ref(index)), index=step.index, label=step.label)]


def inserted(
    step: Step, operand: int, new: NewValues, function: Callable[..., Any], further: Sequence[Any] = ()
) -> list[Step]:
    """The step with `function` around one operand, or around its result."""
    index = new()
    if operand == RESULT:
        inner = replace(step, index=index, label="")
        return [inner, Step(step.index, function, (Ref(index), *further), {}, step.label, step.backward)]
    around = Step(index, function, (step.operands[operand], *further), {}, "", step.backward)
    return [around, with_operand(step, operand, Ref(index))]


def with_operand(step: Step, position: int, operand: Any) -> Step:
    """The step with another operand."""
    operands = (*step.operands[:position], operand, *step.operands[position + 1 :])
    return replace(step, operands=operands)


def first_of(value: Any, *others: Any) -> Any:
    """The value, in the shape that it has together with the others."""
    if not np.ndim(value) and not any(map(np.ndim, others)):
        return value
    return np.broadcast_to(value, np.broadcast_shapes(np.shape(value), *map(np.shape, others)))


Key = tuple[str, str | int]
"""A value whatever its number: ("input", "x"), ("option", "eps"), ("step", 7)."""


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
    """The option of which an edit takes another value, "" where it changes something else."""
    if edit.kind == READ:
        kind, name = edit.value[0]
        return str(name) if kind == "option" else ""
    if edit.kind not in ("number", "fitted", "times", "replaced") or edit.operand == RESULT:
        return ""
    operand = program.steps[edit.positions[0]].operands[edit.operand]
    options = {index: name for name, (index, _) in program.options.items()}
    return options.get(operand.index, "") if isinstance(operand, Ref) else ""


def delta(program: Program, edit: Edit) -> dict[int, list[Step]]:
    """The steps that take the place of those at `edit.positions`; IncompatibleError where the program has none such."""
    new = NewValues(program)
    if edit.kind == READ:
        return read_otherwise(program, edit, new)
    changed = {}
    for position in edit.positions:
        if position >= len(program.steps) or program.steps[position].name != edit.function:
            raise IncompatibleError(f"step {position} is not {edit.function}")
        step = program.steps[position]
        if edit.operand >= len(step.operands):
            raise IncompatibleError(f"step {position} has no operand {edit.operand}")
        changed[position] = altered(step, edit, new)
    return changed


def read_otherwise(program: Program, edit: Edit, new: NewValues) -> dict[int, list[Step]]:
    """Every step that reads an input or an option, with a changed one in its place."""
    key, kind, value = edit.value
    index, other = value_of(program, key), new()
    changed = {p: [with_ref(step, index, other)] for p, step in enumerate(program.steps) if index in step.refs}
    if not changed:
        raise IncompatibleError(f"nothing reads {key[1]}")
    if kind == "replaced":
        read = Step(other, first_of, (Ref(value_of(program, value)),))
    elif kind == "number":
        read = Step(other, NUMBERS[value], (Ref(index),))
    elif kind == "fitted":
        read = Step(other, first_of, (value,))
    else:
        function, further = THROUGH.get(value, (rounded_to, (value,)))
        read = Step(other, function, (Ref(index), *further))
    changed[min(changed)].insert(0, read)
    return changed


def with_ref(step: Step, index: int, other: int) -> Step:
    """The step with one value read for another."""

    def renamed(operand: Any) -> Any:
        if isinstance(operand, (tuple, list)):
            return type(operand)(map(renamed, operand))
        return Ref(other) if isinstance(operand, Ref) and operand.index == index else operand

    return replace(step, operands=renamed(step.operands))


def spliced(program: Program, changed: Mapping[int, Sequence[Step]]) -> Program:
    """The program with other steps at some positions."""
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        steps += changed.get(position, (step,))
    return replace(program, steps=tuple(steps))


def edited(
    program: Program, edits: Iterable[Edit], tensors: Tensors, params: Any, differentiable: Sequence[str]
) -> Program:
    """The program with one edit after the other; IncompatibleError where one does not fit what those before it left.

    `tensors` (inputs and gradients of outputs), `params` and `differentiable` are what it was traced for.
    """
    for edit in edits:
        program = spliced(program, delta(program, edit))
        if edit.again:
            try:
                program = differentiated_again(program, tensors, params, differentiable)
            except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError, ArithmeticError) as error:
                raise IncompatibleError(f"the edited outputs cannot be differentiated: {error}") from error
    return program


def differentiated_again(program: Program, tensors: Tensors, params: Any, differentiable: Sequence[str]) -> Program:
    """The outputs of `program`, with the gradients that follow from them."""
    arriving = {name: values for name, values in tensors.items() if name in program.inputs and name.startswith("grad.")}
    upstream = {n.removeprefix("grad."): v for n, v in arriving.items() if n.removeprefix("grad.") in program.outputs}
    names = [name for name in program.outputs if not is_gradient(name, differentiable)]
    forward = program.needed(names)
    given = {n: v for n, v in tensors.items() if n in program.inputs and n.removeprefix("grad.") not in upstream}
    result, _ = trace(
        lambda values, numbers: replayed(forward, values, numbers),
        {n: in_dtype(np.asarray(v), np.dtype(np.float64)) for n, v in given.items()},
        params,
        differentiable=differentiable,
        gradients={n: in_dtype(np.asarray(v), np.dtype(np.float64)) for n, v in upstream.items()},
        labelled=False,
    )
    return result


def is_gradient(output: str, differentiable: Sequence[str]) -> bool:
    """Whether an output is the gradient of an input."""
    return output.startswith("grad.") and output.removeprefix("grad.") in differentiable


def replayed(program: Program, tensors: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """The steps of a program done once more, on stand-ins."""
    values: list[Any] = [None] * program.size
    for name, index in program.inputs.items():
        values[index] = tensors.get(name)
    for name, (index, _) in program.options.items():
        head, _, item = name.partition(".")
        number = getattr(params, head)
        values[index] = number[int(item)] if item else number
    for step in program.steps:
        function = LIFTED.get(step.function) or getattr(anp, step.name, None) or step.function
        values[step.index] = function(*filled(step.operands, values, np.dtype(np.float64)), **step.keywords)
    return {name: values[index] for name, index in program.outputs.items()}


# All edits of a program.


def edits_of(program: Program, shapes: Mapping[int, Shape], output: str) -> Iterator[Edit]:
    """The edits of the steps that an output follows from, and of all steps of a kind together.

    `shapes` are those of the program's values by number (`Trial.shapes`).
    """
    reach = positions_of(program, output)
    if len(reach) > MAX_STEPS:
        return
    scope = Scope(program, shapes)
    groups: dict[Any, list[int]] = {}
    for position, step in enumerate(program.steps):
        groups.setdefault(pattern(program, step), []).append(position)
    for position in sorted(reach):
        yield from step_edits(program, position, scope)
    yield from output_edits(program, output, scope)
    yield from read_edits(program, scope)
    for positions in groups.values():
        if len(positions) > 1 and not reach.isdisjoint(positions):
            for edit in step_edits(program, positions[0], scope):
                yield replace(edit, positions=tuple(positions))


def output_edits(program: Program, output: str, scope: Scope) -> Iterator[Edit]:
    """The edits of an output itself: an input in its place, or a part of it that is not written."""
    index = program.outputs[output]
    position = next((p for p, step in enumerate(program.steps) if step.index == index), None)
    if position is None:
        return
    name, shape = program.steps[position].name, scope.of[index]
    for source, other in program.inputs.items():
        if scope.of[other] == shape:
            yield Edit((position,), name, "replaced", RESULT, ("input", source))
    for kind, operand, value in along_axes(RESULT, shape, reduced=True):
        if value[0] in ("without one", "without tail"):
            yield Edit((position,), name, kind, operand, value)


def read_edits(program: Program, scope: Scope) -> Iterator[Edit]:
    """The edits of the inputs and options that are read more than once."""
    keys: dict[Key, int] = {("input", name): index for name, index in program.inputs.items()}
    keys |= {("option", name): index for name, (index, _) in program.options.items()}
    for key, index in keys.items():
        if scope.reads[index] < 2:
            continue
        changes = [("number", name) for name in NUMBERS] if key[0] == "option" else [("through", n) for n in THROUGH]
        changes += [("rounded", name) for name in FORMATS] if key[0] == "input" else []
        yield from (Edit((), "", READ, value=(key, *change)) for change in changes)
        others = [k for k, other in keys.items() if k != key and k[0] == key[0] and scope.of[other] == scope.of[index]]
        yield from (Edit((), "", READ, value=(key, "replaced", other)) for other in others)


def positions_of(program: Program, output: str) -> set[int]:
    """The positions of the steps that an output follows from."""
    wanted = {program.outputs[output]}
    reach = set()
    for position in range(len(program.steps) - 1, -1, -1):
        step = program.steps[position]
        if step.index in wanted:
            reach.add(position)
            wanted.update(step.refs)
    return reach


def pattern(program: Program, step: Step) -> Any:
    """Equal for steps that do the same to different values."""
    options = {index: name for name, (index, _) in program.options.items()}
    operands = [options.get(o.index, "value") if isinstance(o, Ref) else repr(o)[:80] for o in step.operands]
    return step.name, tuple(operands), repr(sorted(step.keywords.items())), step.backward


class Scope:
    """The shape of every value of a program, and what else has it."""

    def __init__(self, program: Program, shapes: Mapping[int, Shape]) -> None:
        self.program, self.of = program, shapes
        self.steps = {step.index: step for step in program.steps}
        self.reads = Counter(ref for step in program.steps for ref in step.refs)
        self.reads.update(program.outputs.values())
        self.keys: dict[int, Key] = {index: ("input", name) for name, index in program.inputs.items()}
        self.keys |= {index: ("option", name) for name, (index, _) in program.options.items()}
        self.keys |= {step.index: ("step", position) for position, step in enumerate(program.steps)}

    def is_shared(self, index: int) -> bool:
        """Whether a value is read more than once; what is read once is changed where it is read."""
        return self.reads[index] > 1 or index in self.program.outputs.values()

    def alike(self, index: int, before: int) -> Iterator[Key]:
        """The other values of the same shape that are there before the step at `before`: the named ones, and what
        `index` follows from in a few steps."""
        shape, near = self.of.get(index), self.near(index, DEPTH)
        for other, key in self.keys.items():
            step = self.steps.get(other)
            usable = step is None or (int(key[1]) < before and (step.label or other in near))
            if other != index and self.of.get(other) == shape and usable:
                yield key

    def near(self, index: int, depth: int) -> set[int]:
        """The values that one follows from in at most `depth` steps."""
        step = self.steps.get(index)
        if step is None or not depth:
            return set()
        return set(step.refs).union(*(self.near(ref, depth - 1) for ref in step.refs))


def step_edits(program: Program, position: int, scope: Scope) -> Iterator[Edit]:
    """All edits of one step."""
    step = program.steps[position]
    for kind, operand, value in changes(program, step, position, scope):
        yield Edit((position,), step.name, kind, operand, value)


def fits_of(program: Program, output: str) -> Iterator[Edit]:
    """The edits that give a number of the reference another value, or multiply a value, each with the value of now."""
    reach = sorted(positions_of(program, output))
    for position in reach[-MAX_STEPS:]:
        step = program.steps[position]
        for i, operand in enumerate(step.operands):
            if is_number(program, operand):
                value = dict(program.options.values())[operand.index] if isinstance(operand, Ref) else operand
                yield Edit((position,), step.name, "fitted", i, float(value))
            elif isinstance(operand, Ref):
                yield Edit((position,), step.name, "times", i, 1.0)
    reads = Counter(ref for step in program.steps for ref in step.refs)
    for name, (index, number) in program.options.items():
        if reads[index] > 1:
            yield Edit((), "", READ, value=(("option", name), "fitted", float(number)))


def with_number(edit: Edit, number: float) -> Edit:
    """An edit of `fits_of` with another number."""
    return replace(edit, value=(*edit.value[:-1], number) if edit.kind == READ else number)


def moved(edit: Edit, program: Program, other: Program) -> Edit:
    """An edit of one program for another one, at the steps that compute the same there; IncompatibleError where there
    are none such."""
    if edit.kind == READ or [step.name for step in program.steps] == [step.name for step in other.steps]:
        return edit
    ours, theirs = Formulas(program), Formulas(other)
    places: dict[str, list[int]] = {}
    for i, step in enumerate(other.steps):
        places.setdefault(theirs.expression(step), []).append(i)

    def place(position: int) -> int:
        found = places.get(ours.expression(program.steps[position]), [])
        if len(found) != 1:
            raise IncompatibleError(f"{len(found)} steps compute the same as step {position}")
        return found[0]

    value = edit.value
    if isinstance(value, tuple) and value[0] == "step":
        value = ("step", place(value[1]))
    return replace(edit, positions=tuple(map(place, edit.positions)), value=value)


ChangeOf = tuple[str, int, Any]


def changes(program: Program, step: Step, position: int, scope: Scope) -> Iterator[ChangeOf]:
    """The kind, operand and value of each edit of a step."""
    values = [i for i, operand in enumerate(step.operands) if isinstance(operand, Ref)]
    options = {index for index, _ in program.options.values()}
    tensors = [i for i in values if step.operands[i].index not in options]
    if len(step.operands) > 1 or step.keywords or step.name not in ("reshape", "broadcast_to"):
        yield from (("kept", i, None) for i in values)
    if len(values) == 2 == len(step.operands) and step.name not in COMMUTE:
        yield "exchanged", 0, None
    yield from (("function", RESULT, name) for name in FUNCTIONS.get(step.name, ()))
    for i in values:
        yield from (("replaced", i, key) for key in scope.alike(step.operands[i].index, position))
    for i in range(len(step.operands)):
        if i not in tensors and is_number(program, step.operands[i]):
            yield from numbers(program, step, i, scope)
    for i in [*tensors, RESULT] if scope.is_shared(step.index) else tensors:
        yield from (("through", i, name) for name in THROUGH)
        yield from (("rounded", i, name) for name in FORMATS)
    for i in tensors:
        yield from orders(step, i, scope)
        yield from along_axes(i, scope.of.get(step.operands[i].index, ()), reduced=step.name in REDUCING)
    if "axis" in step.keywords and tensors:
        yield from other_axes(step, len(scope.of.get(step.operands[tensors[0]].index, ())))


def numbers(program: Program, step: Step, operand: int, scope: Scope) -> Iterator[ChangeOf]:
    """The other values of a number."""
    yield from (("number", operand, name) for name in NUMBERS)
    value = step.operands[operand]
    if not isinstance(value, Ref):
        yield from (("replaced", operand, ("option", name)) for name in program.options)
        yield from (("constant", operand, float(n)) for n in sizes(scope, step) if n != value)


def orders(step: Step, operand: int, scope: Scope) -> Iterator[ChangeOf]:
    """A step and the one before it in the other order."""
    child = scope.steps.get(step.operands[operand].index)
    if child is not None and {child.name, step.name} <= ARITHMETIC and child.name != step.name:
        yield from (("reordered", operand, k) for k in range(len(child.operands)))


def along_axes(operand: int, shape: Sequence[int], *, reduced: bool) -> Iterator[ChangeOf]:
    """The edits of an operand along its axes, over which a step may sum (`reduced`)."""
    if len(shape) > 1 and shape[-1] == shape[-2] > 1:
        yield "along", operand, ("transposed", -1, -2)
    for axis, length in enumerate(shape):
        if reduced and length > 1:
            yield "along", operand, ("flipped", axis)
            yield "along", operand, ("first twice", axis)
            yield from (("along", operand, ("without one", axis, index)) for index in (0, -1))
            tails = [block for block in BLOCKS if length > block and length % block]
            yield from (("along", operand, ("without tail", axis, block)) for block in tails)


def other_axes(step: Step, n_axes: int) -> Iterator[ChangeOf]:
    """The sums over as many other axes, and over one axis less or more."""
    axis = step.keywords.get("axis")
    many = isinstance(axis, tuple)
    axes = tuple(range(n_axes)) if axis is None else tuple(a % n_axes for a in np.atleast_1d(axis).tolist())
    sets = [(a,) for a in range(n_axes)] + [tuple(b for b in axes if b != a) for a in axes if len(axes) > 1]
    sets += [tuple(sorted((*axes, a))) for a in range(n_axes) if a not in axes]
    for other in dict.fromkeys(s for s in sets if s != axes):
        yield "summed", RESULT, other if many or len(other) != 1 else other[0]


def is_number(program: Program, operand: Any) -> bool:
    """Whether an operand is a number of the reference, or of the op."""
    if isinstance(operand, Ref):
        return any(index == operand.index for index, _ in program.options.values())
    return isinstance(operand, (int, float)) and not isinstance(operand, bool)


def sizes(scope: Scope, step: Step) -> list[int]:
    """The numbers of elements along the axes of the values that a step reads, and less one."""
    inputs = [scope.of.get(index, ()) for index in step.refs] + [scope.of[i] for i in scope.program.inputs.values()]
    lengths = {n for shape in inputs for n in (*shape, int(np.prod(shape, dtype=int)))}
    return sorted({m for n in lengths for m in (n, n - 1) if m > 0})


# Trying many edits on one set of tensors.


class Trial:
    """The values of every step for one set of tensors, from which those of edited programs follow quickly."""

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program = program
        self.kind = np.dtype(np.float64)
        self._values: dict[int, Any] = {}
        for name, index in program.inputs.items():
            self._values[index] = in_dtype(np.asarray(tensors[name]), self.kind)
        for index, number in program.options.values():
            self._values[index] = number
        with np.errstate(all="ignore"):
            for step in program.steps:
                self._values[step.index] = self._called(step, self._values)
        self._refs = [step.refs for step in program.steps]
        self._needed = {name: positions_of(program, name) for name in program.outputs}
        self._shapes = {index: np.shape(value) for index, value in self._values.items()}
        self.base = {name: np.asarray(self._values[index]) for name, index in program.outputs.items()}

    @property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of every value."""
        return self._shapes

    def _called(self, step: Step, values: Any) -> Any:
        return call(step.function, filled(step.operands, values, self.kind), step.keywords)

    @property
    def costs(self) -> Mapping[str, int]:
        """How many steps every output follows from."""
        return {name: len(needed) for name, needed in self._needed.items()}

    def output(self, edit: Edit, name: str) -> Array | None:
        """An output of the edited program; None where the edit does not fit, or changes no number of it."""
        try:
            changed = delta(self.program, edit)
            with np.errstate(all="ignore"):
                return self._output(changed, name)
        except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError, IncompatibleError):
            return None

    def _output(self, changed: Mapping[int, Sequence[Step]], name: str) -> Array | None:
        values, needed = Overlay(self._values), self._needed[name]
        for position in range(min(changed), len(self.program.steps)):
            if position not in needed and position not in changed:
                continue
            step = self.program.steps[position]
            if position in changed:
                for new in changed[position]:
                    values.over[new.index] = self._called(new, values)
                if same(values.over[step.index], self._values[step.index]):
                    del values.over[step.index]
                    continue
            elif any(ref in values.over for ref in self._refs[position]):
                values.over[step.index] = self._called(step, values)
            else:
                continue
            if np.shape(values.over[step.index]) != self._shapes[step.index]:
                return None
        index = self.program.outputs[name]
        return np.asarray(values.over[index]) if index in values.over else None


def same(values: Any, others: Any) -> bool:
    """Whether two values have the same numbers."""
    return bool(np.array_equal(values, others, equal_nan=True))


class Overlay:
    """Values by number: the changed ones over the others."""

    def __init__(self, base: Mapping[int, Any]) -> None:
        self.base, self.over = base, dict[int, Any]()

    def __getitem__(self, index: int) -> Any:
        return self.over[index] if index in self.over else self.base[index]


# Words.


def described(program: Program, edit: Edit) -> str:
    """What an edited step computes, in the reference's own names: `var = a / 7, where the reference has a / 8`."""
    if edit.kind == READ:
        return read_as(edit)
    position = edit.positions[0]
    changed = spliced(program, delta(program, edit))
    before, after = Formulas(program), Formulas(changed)
    step = program.steps[position]
    new = next(s for s in changed.steps if s.index == step.index)
    ours, theirs = before.expression(step), after.expression(new)
    name = before.name_of(step)
    if name:
        return f"{name} = {theirs}, where the reference has {ours}"
    return f"{theirs}, where the reference has {ours}{within(program, before, step)}"


def read_as(edit: Edit) -> str:
    """What is read for an input or an option."""
    (_, name), kind, value = edit.value
    if kind == "replaced":
        return f"{value[1]} wherever the reference has {name}"
    if kind == "fitted":
        return f"{value:g} wherever the reference has {name}"
    return f"{value}({name}) wherever the reference has {name}"


def within(program: Program, text: Formulas, step: Step) -> str:
    """The named value that a step without a name is part of."""
    reached = {step.index}
    for other in program.steps:
        if other.index > step.index and reached & set(other.refs):
            if text.name_of(other):
                return f" (in {text.name_of(other)})"
            reached.add(other.index)
    return ""
