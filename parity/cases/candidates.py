"""All edits of a program that are tried: of each step, of what is read and returned, and of all steps of a kind
together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations, product
from typing import Any

import numpy as np

from parity.cases.draw import Shape
from parity.cases.edit_functions import NUMBERS, RUNNING, THROUGH
from parity.cases.edits import (
    ACCUMULATED,
    BASE,
    COSTS,
    DETACHED,
    EVERY,
    EXPONENTIAL,
    FITTED,
    JOINED,
    MOVED,
    NORM,
    OTHER,
    PARTS,
    READ,
    RECOMPUTED,
    RESULT,
    RETURNED,
    SAVED,
    STEPWISE,
    Edit,
    Key,
    of_squares,
    states,
)
from parity.cases.exact.formats import FORMATS
from parity.cases.op import GRADIENT
from parity.cases.program import Program, Ref, Step
from parity.cases.repeats import Repeats, grouped, repeats, turns_of
from parity.cases.substitutes import BLOCKS, INDEXED, INDEXES, SUBSTITUTES

DEPTH = 3
MAX_STEPS = 400
"""A longer program has too many edits to try them all."""
FILLS = (0.0, 1.0)
"""What a kernel writes behind the end of an axis; it may not be neutral in a reduction."""
MOST_GROUPS = 32
MOST_NUMBERS = 64
MOST_AXES = 4
"""The most axes of a value that is tried with every other order of them."""
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
    "argmax": ("argmin",),
    "exp": ("expm1", "exp2"),
    "log": ("log1p", "log2"),
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
CHOOSING = frozenset(("where", "maximum", "minimum"))
COMMUTE = frozenset(("add", "multiply", "maximum", "minimum"))
PRODUCTS = frozenset(("matmul", "dot", "einsum"))
"""Functions that kernels compute in a lower precision, operands and result."""
UNARY = frozenset(("absolute", "sqrt", "square", "exp", "log", "negative", "tanh"))
APPROXIMABLE: Mapping[str, int] = {
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "erf", "erfc", "sin", "cos", "power"), 0
    ),
    **dict.fromkeys(("arctan", "sinh", "cosh", "reciprocal"), 0),
    **dict.fromkeys(("divide", "true_divide"), 1),
}
"""Functions that kernels approximate, with the operand that the approximation depends on; the others are numbers."""
MOVABLE = ARITHMETIC | UNARY | {"maximum", "minimum"}
CHAIN = 3
"""An operation is tried after this many of the steps that read its result, and at every later value with a name."""
REDUCING = PRODUCTS | {"sum", "mean", "max", "min"}


def edits_of(program: Program, shapes: Mapping[int, Shape], output: str) -> Iterator[Edit]:
    """The edits of the steps that an output depends on, and of all steps of a kind together. A step that a long program
    repeats is edited in every turn at once.

    `shapes` are those of the program's values by number (`Trial.shapes`).
    """
    reach, same = program.reach([output]), repeats(program)
    single = representatives(reach, same)
    if len(single) > MAX_STEPS:
        return
    table = ProgramValues(program, shapes, same)
    groups: dict[Any, list[int]] = {}
    for position, step in enumerate(program.steps):
        groups.setdefault(pattern(program, step), []).append(position)
    for position in single:
        edits = step_edits(program, position, table)
        yield from in_every_turn(edits, position, table) if position in same else edits
    yield from (Edit((), "", STEPWISE, operand, name) for operand in (RESULT, EVERY) for name in FORMATS)
    for chain in chains(program, reach) if not same else ():
        yield from (Edit(chain, "sum", "function", RESULT, name) for name in FUNCTIONS["sum"])
    yield from output_edits(program, output, table)
    yield from read_edits(program, table)
    yield from listed_edits(program, table, single)
    yield from partly_read_edits(program, table, {p for p in reach if p not in same})
    if any(program.steps[p].backward for p in reach):
        yield from saved_edits(program, table)
    yield from group_edits(program, table, groups.values(), reach)
    yield from whole_edits(program, reach)


ORDERS = ("1", "inf")


def whole_edits(program: Program, reach: set[int]) -> Iterator[Edit]:
    """Norms of another order, each and all of them; exponentials and logarithms with base 2."""
    roots = [p for p, s in enumerate(program.steps) if s.name == "sqrt" and s.refs and of_squares(program, s)]
    for positions in dict.fromkeys([*((p,) for p in roots), tuple(roots)]):
        if not reach.isdisjoint(positions):
            yield from (Edit(positions, "sqrt", NORM, RESULT, order) for order in ORDERS)
    powers = tuple(p for p, s in enumerate(program.steps) if s.name in EXPONENTIAL and not s.backward)
    if len(powers) > 1 and not reach.isdisjoint(powers):
        yield Edit(powers, "", BASE, RESULT, 2)


MOST_NAMED = 6


def detachments(program: Program, shapes: Mapping[int, Shape], gradient: str) -> Iterator[Edit]:
    """The edits that let no gradient through a value on the path to an input: wherever it is read, or where one of
    several steps reads it; in a loop in every turn, or from the second turn on; or through two named values."""
    same = repeats(program)
    table = ProgramValues(program, shapes, same)
    way = between(program, gradient.removeprefix(GRADIENT))
    reads = Counter(ref for position in way for ref in program.steps[position].refs)
    on_way = {program.steps[position].index for position in way} | {program.inputs[gradient.removeprefix(GRADIENT)]}
    ends = {index for name, index in program.outputs.items() if not name.startswith(GRADIENT)}
    named = []
    for position in representatives(way, same):
        step, positions = program.steps[position], same.get(position, (position,))
        if step.label or position in table.named or reads[step.index] > 1:
            yield Edit(positions, step.name, DETACHED, RESULT)
        if step.label and step.index not in ends and position not in same:
            named.append(position)
        for i, operand in enumerate(step.operands):
            if isinstance(operand, Ref) and operand.index in on_way and reads[operand.index] > 1:
                yield Edit(positions, step.name, DETACHED, i)
                later = tuple(p for p in positions if table.is_computed(program.steps[p].operands[i]))
                if 0 < len(later) < len(positions):
                    yield Edit(later, step.name, DETACHED, i)
    yield from (Edit(pair, "", DETACHED, RESULT) for pair in combinations(named[-MOST_NAMED:], 2))


def between(program: Program, name: str) -> set[int]:
    """The positions of the steps of the forward pass that depend on an input and that an output depends on."""
    reach = program.reach([output for output in program.outputs if not output.startswith(GRADIENT)])
    reached, positions = {program.inputs[name]}, set[int]()
    for position in sorted(reach):
        if not reached.isdisjoint(program.steps[position].refs):
            reached.add(program.steps[position].index)
            positions.add(position)
    return positions


def group_edits(
    program: Program, table: ProgramValues, groups: Collection[list[int]], reach: Collection[int]
) -> Iterator[Edit]:
    """The edits of all steps of a kind together, and of all steps from one call in the source, if any is in `reach`."""
    known, sites = {*map(tuple, groups), *table.same.values()}, by_site(program).values()
    same_site = {position: positions for positions in sites for position in positions}
    kinds: tuple[tuple[Iterable[list[int]], Collection[str]], ...] = (
        (groups, WHOLESALE if table.same else COSTS),
        ((positions for positions in sites if tuple(positions) not in known), EVERYWHERE),
    )
    for lists, tried in kinds:
        for positions in (one for one in lists if len(one) > 1 and not set(one).isdisjoint(reach)):
            edits = step_edits(program, positions[0], table)
            yield from (at_all(e, positions, same_site) for e in edits if e.kind in tried)


def at_all(edit: Edit, positions: Sequence[int], same_site: Mapping[int, Sequence[int]]) -> Edit:
    """The edit of the first of some positions, applied to all of them; a value it reads is replaced by each position's
    own."""
    others: Sequence[int] = ()
    if edit.kind in OTHER and edit.value[0] == "step":
        others = same_site[edit.value[1]]
    if len(others) != len(positions) or edit.value[1] != others[0]:
        return replace(edit, positions=tuple(positions))
    return replace(edit, positions=tuple(positions), value=("each", tuple(("step", other) for other in others)))


WHOLESALE = ("rounded", ACCUMULATED, "function", "number", "constant")
"""Edits that a kernel with loops makes in all steps of a kind, not only in those from one call in the source."""


EVERYWHERE = ("kept", "exchanged", "function", "number", "through", "index", "replaced")
"""Edits that a kernel makes in one call of its source, for each axis or each corner with its own numbers."""


def by_site(program: Program) -> dict[Any, list[int]]:
    """The positions of the steps from each call in the reference's source, or of their gradients."""
    sites = {step.index: step.site for step in program.steps}
    return grouped(program, {p: (s.site, sites.get(s.of, s.of)) for p, s in enumerate(program.steps)})


def chains(program: Program, reach: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Groups of sums of sums, axis by axis, which kernels compute as one."""
    sums = {step.index: p for p, step in enumerate(program.steps) if step.name == "sum" and p in reach}
    before = {p: sums[i] for p in sums.values() for i in program.steps[p].refs if i in sums}
    for last in set(sums.values()) - set(before.values()):
        chain = [last]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        if len(chain) > 1:
            yield tuple(chain)


def representatives(reach: Collection[int], same: Repeats) -> list[int]:
    """The positions that are reached, but of each step of a loop only one: that of the second turn, which follows
    another."""
    groups = {same.get(position, (position,)) for position in reach}
    return sorted(next(p for p in (*turns[1:], *turns) if p in reach) for turns in groups)


def in_every_turn(edits: Iterable[Edit], position: int, table: ProgramValues) -> Iterator[Edit]:
    """The edits of a loop's step in all turns; if they read another step's value, each turn reads its own."""
    same, turns = table.same, table.turns
    for edit in edits:
        if edit.kind == MOVED:
            continue
        if edit.kind not in OTHER or edit.value[0] != "step" or edit.value[1] not in same:
            yield replace(edit, positions=same[position])
            continue
        others = {turns[p]: p for p in same[edit.value[1]]}
        shift = turns[edit.value[1]] - turns[position]
        pairs: list[tuple[int, Key]] = [
            (p, ("step", others[turns[p] + shift])) for p in same[position] if turns[p] + shift in others
        ]
        if shift < 0:
            first = carried(table, position, table.program.steps[edit.value[1]].index)
            pairs += [(p, first) for p in same[position] if first and turns[p] + shift == -1]
        if not pairs:
            continue
        positions, keys = zip(*sorted(pairs), strict=True)
        yield replace(edit, positions=positions, value=("each", keys))


def carried(table: ProgramValues, position: int, index: int) -> Key | None:
    """What the first turn of a loop reads in place of a value of the turn before; None if no step of the turn of
    `position` reads it."""
    steps, same, turns = table.program.steps, table.same, table.turns
    for reader in (p for p in same if turns[p] == turns[position] and index in steps[p].refs):
        first = next((p for p in same[reader] if turns[p] == 0), None)
        if first is not None:
            # A part of an index or of a sequence has no counterpart of its own.
            pairs = zip(steps[reader].operands, steps[first].operands, strict=False)
            start = next((b for a, b in pairs if a == Ref(index) and isinstance(b, Ref)), None)
            return None if start is None else table.keys.get(start.index)
    return None


def output_edits(program: Program, output: str, table: ProgramValues) -> Iterator[Edit]:
    """The edits of an output itself: another tensor returned instead or added to it, or a part not written."""
    index = program.outputs[output]
    shape = table.shapes[index]
    for other in dict.fromkeys((*program.inputs.values(), *program.outputs.values())):
        if other != index and table.shapes[other] == shape and other in table.keys:
            yield from (Edit((), output, RETURNED, value=(how, table.keys[other])) for how in ("instead", "added"))
    names = [name for name in states(program) if name != output]
    for state in ("", *names) if len(names) > 1 else names:
        yield Edit((), output, RETURNED, value=("after", ("input", state)))
    position = next((p for p, step in enumerate(program.steps) if step.index == index), None)
    if position is None:
        return
    for kind, operand, value in along_axes(RESULT, shape, reduced=True):
        if value[0] in ("without one", "without tail"):
            yield Edit((position,), program.steps[position].name, kind, operand, value)


def read_edits(program: Program, table: ProgramValues) -> Iterator[Edit]:
    """The edits of the inputs and options that several steps read."""
    keys: dict[Key, int] = {("input", name): index for name, index in program.inputs.items()}
    keys |= {("option", name): index for name, (index, _) in program.options.items()}
    for key, index in keys.items():
        if table.reads[index] < 2:
            continue
        changes = [("number", name) for name in NUMBERS] if key[0] == "option" else [("through", n) for n in THROUGH]
        changes += [("rounded", name) for name in FORMATS] if key[0] == "input" else []
        yield from (Edit((), "", READ, value=(key, *change)) for change in changes)
        others = [
            k for k, other in keys.items() if k != key and k[0] == key[0] and table.shapes[other] == table.shapes[index]
        ]
        yield from (Edit((), "", READ, value=(key, "replaced", other)) for other in others)


def listed_edits(program: Program, table: ProgramValues, positions: Iterable[int]) -> Iterator[Edit]:
    """The edits of values that a step reads in a list, as a concatenation does, and the list in reverse order."""
    for position in positions:
        step = program.steps[position]
        for i, operand in enumerate(step.operands):
            listed = [o.index for o in operand if isinstance(o, Ref)] if isinstance(operand, (tuple, list)) else []
            if len(listed) > 1:
                yield Edit((position,), step.name, "constant", i, type(operand)(reversed(operand)))
            for index in dict.fromkeys(listed):
                changes = [("through", name) for name in THROUGH]
                others = [("replaced", key) for key in table.alike(index, position)]
                key = table.keys[index]
                yield from (Edit((position,), "", READ, value=(key, *change)) for change in (*changes, *others))


MOST_READERS = 5


def partly_read_edits(program: Program, table: ProgramValues, reach: Collection[int]) -> Iterator[Edit]:
    """Another value of the same shape, or another number, read at all positions but one, if there are three or more."""
    readers: dict[int, list[int]] = {}
    for position in sorted(reach):
        for index in set(program.steps[position].refs):
            readers.setdefault(index, []).append(position)
    for index, positions in readers.items():
        if 2 < len(positions) <= MOST_READERS and index in table.keys:
            key = table.keys[index]
            for left_out in positions:
                changed = tuple(p for p in positions if p != left_out)
                if key[0] == "option":
                    yield from (Edit(changed, "", READ, value=(key, "number", name)) for name in NUMBERS)
                if not table.shapes[index]:
                    continue
                for other in table.alike(index, changed[0]):
                    yield Edit(changed, "", READ, value=(table.keys[index], "replaced", other))


def saved_edits(program: Program, table: ProgramValues) -> Iterator[Edit]:
    """Another tensor or number in the backward pass: an output for an input, another value of an option, a value of the
    forward pass that is kept in a lower precision."""
    outputs = [i for i in program.outputs.values() if i in table.steps and not table.steps[i].backward]
    for name, index in program.inputs.items():
        peers = [
            i for i in (*program.inputs.values(), *outputs) if i != index and table.shapes[i] == table.shapes[index]
        ]
        kinds = product(("replaced", RECOMPUTED), peers)
        yield from (Edit((), "", SAVED, value=(("input", name), kind, table.keys[i])) for kind, i in kinds)
    for name in program.options:
        yield from (Edit((), "", SAVED, value=(("option", name), "number", number)) for number in NUMBERS)
    readers_of: dict[int, list[int]] = {}
    for position, step in enumerate(program.steps):
        for index in set(step.refs) if step.backward else ():
            readers_of.setdefault(index, []).append(position)
    for position, step in enumerate(program.steps):
        readers = tuple(readers_of.get(step.index, ()))
        if readers and not step.backward:
            yield from (Edit(readers, "", READ, value=(("step", position), "rounded", name)) for name in FORMATS)


def pattern(program: Program, step: Step) -> Any:
    """A key that is equal for steps that compute the same of different values."""
    options = {index: name for name, (index, _) in program.options.items()}
    operands = [options.get(o.index, "value") if isinstance(o, Ref) else repr(o)[:80] for o in step.operands]
    return step.name, tuple(operands), repr(sorted(step.keywords.items())), step.backward


class ProgramValues:
    """The shape of every value of a program, and the values of equal shape."""

    def __init__(self, program: Program, shapes: Mapping[int, Shape], same: Repeats) -> None:
        self.program, self.shapes, self.same = program, shapes, same
        self.turns = turns_of(program, same)
        self.named = {
            p for p, positions in same.items() if any(program.steps[position].label for position in positions)
        }
        self.steps = {step.index: step for step in program.steps}
        self.reads = Counter(ref for step in program.steps for ref in step.refs)
        self.reads.update(program.outputs.values())
        self.given = frozenset(program.inputs.values())
        self.keys: dict[int, Key] = {index: ("input", name) for name, index in program.inputs.items()}
        self.keys |= {index: ("option", name) for name, (index, _) in program.options.items()}
        self.keys |= {step.index: ("step", position) for position, step in enumerate(program.steps)}

    def is_shared(self, index: int) -> bool:
        """Whether a value is read more than once; otherwise it is edited where it is read."""
        return self.reads[index] > 1 or index in self.program.outputs.values()

    def is_computed(self, operand: Any) -> bool:
        """Whether an operand is the result of a step; that of a loop's first turn may be an array of constants."""
        return isinstance(operand, Ref) and operand.index in self.steps

    def alike(self, index: int, before: int) -> Iterator[Key]:
        """The other values of the same shape before the step at `before`: the named ones, those that `index` depends on
        within a few steps, and the corresponding values of the previous and next turn of a loop.

        A loop's values have names in its last turn; those of the same turn count as named, too.
        """
        shape, near = self.shapes.get(index), self.near(index, DEPTH) | self.neighbours(index)
        turn = self.turns.get(before)
        for other, key in self.keys.items():
            step = self.steps.get(other)
            position = int(key[1]) if step is not None else -1
            named = step is None or step.label or (position in self.named and self.turns[position] == turn)
            usable = position < before and (named or other in near)
            if other != index and self.shapes.get(other) == shape and usable:
                yield key

    def neighbours(self, index: int) -> set[int]:
        """The corresponding values of the previous and next turn of a loop."""
        position = int(self.keys[index][1]) if index in self.steps else -1
        positions = [p for p in self.same.get(position, ()) if abs(self.turns[p] - self.turns[position]) == 1]
        return {self.program.steps[p].index for p in positions}

    def reshapable(self, index: int, position: int) -> Iterator[Key]:
        """The named values of another shape with equally many elements along axes longer than 1, and those of the same
        shape that are computed after the step at `position`."""
        shape, backward = self.shapes.get(index, ()), self.program.steps[position].backward
        for other, key in self.keys.items():
            step, reshaped = self.steps.get(other), self.shapes.get(other, ())
            later = step is not None and int(key[1]) > position
            named = step is None or (step.label and step.backward <= backward)
            if named and (reshaped != shape or later) and squeezed(reshaped) == squeezed(shape) != ():
                yield key

    def later(self, position: int) -> list[int]:
        """The positions of the steps that depend on a step: the first `CHAIN` of them, the named ones and outputs."""
        reached, chain, positions = {self.program.steps[position].index}, 0, []
        outputs = set(self.program.outputs.values())
        for later in range(position + 1, len(self.program.steps)):
            step = self.program.steps[later]
            if reached.isdisjoint(step.refs):
                continue
            reached.add(step.index)
            chain += 1
            if chain <= CHAIN or step.label or step.index in outputs:
                positions.append(later)
        return positions

    def near(self, index: int, depth: int) -> set[int]:
        """The values that a value depends on within `depth` steps."""
        step = self.steps.get(index)
        if step is None or not depth:
            return set()
        return set(step.refs).union(*(self.near(ref, depth - 1) for ref in step.refs))


def squeezed(shape: Shape) -> Shape:
    """The shape without axes of length 1."""
    return tuple(n for n in shape if n != 1)


def step_edits(program: Program, position: int, table: ProgramValues) -> Iterator[Edit]:
    """All edits of one step."""
    step = program.steps[position]
    for kind, operand, value in changes(program, step, position, table):
        yield Edit((position,), step.name, kind, operand, value)


COMPARISONS = frozenset(("greater", "greater_equal", "less", "less_equal"))


def fits_of(program: Program, output: str) -> Iterator[Edit]:
    """The edits with a number to be fitted, and its current value: a number of the reference, a factor of a value, or
    an option with which a value is compared."""
    same = repeats(program)
    for position in representatives(program.reach([output]), same)[-MAX_STEPS:]:
        step, positions = program.steps[position], same.get(position, (position,))
        for i, operand in enumerate(step.operands):
            if is_number(program, operand):
                value = dict(program.options.values())[operand.index] if isinstance(operand, Ref) else operand
                yield Edit(positions, step.name, "fitted", i, float(value))
                if step.name in COMPARISONS and isinstance(operand, Ref) and value:
                    yield Edit(positions, step.name, "times", i, 1.0)
            elif isinstance(operand, Ref):
                yield from (Edit(positions, step.name, kind, i, start) for kind, (_, start) in FITTED.items())
    reads = Counter(ref for step in program.steps for ref in step.refs)
    for name, (index, number) in program.options.items():
        if reads[index] > 1:
            yield Edit((), "", READ, value=(("option", name), "fitted", float(number)))


ChangeOf = tuple[str, int, Any]


def changes(program: Program, step: Step, position: int, table: ProgramValues) -> Iterator[ChangeOf]:
    """The kind, operand and value of each edit of a step."""
    values = [i for i, operand in enumerate(step.operands) if isinstance(operand, Ref)]
    options = {index for index, _ in program.options.values()}
    tensors = [i for i in values if step.operands[i].index not in options]
    if len(step.operands) > 1 or step.keywords or step.name not in ("reshape", "broadcast_to"):
        yield from (("kept", i, None) for i in values if step.name != "where" or i)
    if len(values) == 2 == len(step.operands) and step.name not in COMMUTE:
        yield "exchanged", 0, None
    yield from other_functions(step)
    yield from other_values(step, position, values, table)
    if step.name in MOVABLE:
        yield from ((MOVED, i, later) for later in table.later(position) for i in tensors)
    yield from swaps(step)
    yield from in_one_axis(step)
    yield from other_ends(step)
    yield from block_means(step, table)
    for i in range(len(step.operands)):
        if i not in tensors and is_number(program, step.operands[i]):
            yield from numbers(program, step, i, table)
    for i in [*tensors, RESULT] if table.is_shared(step.index) else tensors:
        yield from (("through", i, name) for name in THROUGH)
        yield from joints(program, step, i, table)
        yield from (("rounded", i, name) for name in FORMATS)
    yield from totals(step, table)
    yield from of_constants(step)
    for i in tensors:
        shape = table.shapes.get(step.operands[i].index, ())
        yield from orders(step, i, table)
        yield from along_axes(i, shape, reduced=step.name in REDUCING or step.operands[i].index in table.given)
        if i == tensors[0] and "axis" in step.keywords:
            yield from other_axes(step, shape)
            yield from paddings(step, shape, table)
        yield from rearranged(step, i, shape, given=step.operands[i].index in table.given)


def other_functions(step: Step) -> Iterator[ChangeOf]:
    """Other functions of the same operands, and of another index."""
    yield from (("function", RESULT, name) for name in FUNCTIONS.get(step.name, ()))
    yield from (("function", RESULT, name) for name in SUBSTITUTES.get(step.name, ()))
    if step.name in INDEXED:
        yield from (("index", INDEXED[step.name], name) for name in INDEXES)


def totals(step: Step, table: ProgramValues) -> Iterator[ChangeOf]:
    """Sums and products of matrices in a lower precision, the products of a batch in reverse order, and the largest
    term of a product instead of the sum."""
    yield from (("accumulated", RESULT, name) for name in FORMATS if step.name in RUNNING)
    yield from (("rounded", EVERY, name) for name in FORMATS if step.name in PRODUCTS)
    if step.name == "matmul":
        batch = range(len(table.shapes[step.index]) - 2)
        yield from (("along", RESULT, ("flipped", axis)) for axis in batch if table.shapes[step.index][axis] > 1)
        yield "function", PARTS, "max"
        yield from (("rounded", PARTS, name) for name in FORMATS)


def other_values(step: Step, position: int, operands: Sequence[int], table: ProgramValues) -> Iterator[ChangeOf]:
    """Other values for the operands that are values."""
    for i in operands:
        index = step.operands[i].index
        yield from (("replaced", i, key) for key in table.alike(index, position))
        yield from (("reshaped", i, key) for key in table.reshapable(index, position))
        if index in table.steps and table.shapes[index] == ():
            options: list[Key] = [("option", name) for name in table.program.options]
            yield from (("derived", i, (number, key)) for key in options for number in NUMBERS)


CONSTANT = ("negative", "absolute", "double", "half", "zero", "one")


def of_constants(step: Step) -> Iterator[ChangeOf]:
    """The edits of a few numbers of the reference, such as the signs of a pair."""
    for i, operand in enumerate(step.operands):
        if isinstance(operand, np.ndarray) and operand.dtype.kind in "fi" and 1 < operand.size <= MOST_NUMBERS:
            yield from (("through", i, name) for name in CONSTANT)
            axes = [axis for axis, n in enumerate(operand.shape) if n > 1]
            kinds = product(("flipped", "first for all", "last for all"), axes)
            yield from (("along", i, kind) for kind in kinds)


def numbers(program: Program, step: Step, operand: int, table: ProgramValues) -> Iterator[ChangeOf]:
    """The other values of a number."""
    yield from (("number", operand, name) for name in NUMBERS)
    value = step.operands[operand]
    if not isinstance(value, Ref):
        yield from (("replaced", operand, ("option", name)) for name in program.options)
        others = dict.fromkeys((*sizes(table, step), *rounded_up(value)))
        yield from (("constant", operand, type(value)(n)) for n in others if n != value)


def rounded_up(number: float) -> list[int]:
    """A number of elements, rounded up to whole blocks or to a power of 2."""
    n = int(number) if np.isfinite(number) else 0
    if n != number or n < 2:
        return []
    return [-(-n // block) * block for block in BLOCKS] + [1 << (n - 1).bit_length()]


def swaps(step: Step) -> Iterator[ChangeOf]:
    """Two integers of a step, such as a stride and a dilation, exchanged, or one of them twice; or two branches."""
    if step.name == "where" and all(isinstance(operand, Ref) for operand in step.operands):
        yield "swapped", 1, 2
    whole = [i for i, operand in enumerate(step.operands) if is_whole(operand)]
    for i, j in permutations(whole, 2):
        if step.operands[i] != step.operands[j]:
            yield "constant", i, step.operands[j]
            if i < j:
                yield "swapped", i, j


def in_one_axis(step: Step) -> Iterator[ChangeOf]:
    """An integer for all axes of a window, such as its stride or padding, one more or less in one of them."""
    n_axes = max((len(o) for o in step.operands if isinstance(o, tuple) and is_whole(o)), default=0)
    for i, operand in enumerate(step.operands):
        if not is_whole(operand) or (isinstance(operand, tuple) and len(operand) != n_axes):
            continue
        integers = operand if isinstance(operand, tuple) else (operand,) * n_axes
        for axis, more in product(range(n_axes), (-1, 1)):
            yield "constant", i, (*integers[:axis], integers[axis] + more, *integers[axis + 1 :])


def other_ends(step: Step) -> Iterator[ChangeOf]:
    """A padding of the same total, with more elements at one end, so that windows begin elsewhere."""
    pads = step.operands[1] if step.name == "pad" else ()
    for axis, (before, behind) in enumerate(pads):
        whole = before + behind
        for first in dict.fromkeys(n for n in (0, whole, before - 1, before + 1) if 0 <= n <= whole and n != before):
            yield "constant", 1, [*pads[:axis], (first, whole - first), *pads[axis + 1 :]]


def block_means(step: Step, table: ProgramValues) -> Iterator[ChangeOf]:
    """A value less its mean along an axis; instead less the mean of each block, or of each half."""
    if step.name != "subtract" or not all(isinstance(operand, Ref) for operand in step.operands):
        return
    shape, mean = (table.shapes[operand.index] for operand in step.operands)
    if len(mean) != len(shape) or not fits_into(mean, shape):
        return
    axes = tuple(a for a, (m, n) in enumerate(zip(mean, shape, strict=True)) if m == 1 and n > 1)
    for axis in (a for a in axes if shape[a] > 2):
        n, others = shape[axis], axes if len(axes) > 1 else ()
        yield from (("along", RESULT, ("centred in blocks", axis, block, *others)) for block in BLOCKS if block < n)
        yield from (("along", RESULT, ("centred in halves", axis, more, *others)) for more in range(1 + n % 2))


def is_whole(operand: Any) -> bool:
    """Whether an operand is an integer, or several."""
    items = operand if isinstance(operand, tuple) else (operand,)
    return bool(items) and all(type(item) is int for item in items)


def joints(program: Program, step: Step, operand: int, table: ProgramValues) -> Iterator[ChangeOf]:
    """An option, another input or an earlier named value: added to a value, multiplied with it, or dividing it."""
    index = step.index if operand == RESULT else step.operands[operand].index
    shape = table.shapes.get(index, ())
    if not shape:
        return
    keys: list[Key] = [("option", name) for name in program.options]
    keys += [("input", n) for n, i in program.inputs.items() if i != index and fits_into(table.shapes[i], shape)]
    yield from (("joined", operand, (name, key)) for key in keys for name in JOINED if name != "subtract")
    earlier = (i for i, other in table.steps.items() if other.label and index != i < step.index)
    named = [table.keys[i] for i in earlier if table.shapes[i] == shape]
    yield from (("joined", operand, (name, key)) for key in named for name in ("subtract", "add", "multiply", "divide"))


def fits_into(shape: Shape, other: Shape) -> bool:
    """Whether a value broadcasts to another one's shape."""
    return len(shape) <= len(other) and all(n in (1, m) for n, m in zip(shape[::-1], other[::-1], strict=False))


def orders(step: Step, operand: int, table: ProgramValues) -> Iterator[ChangeOf]:
    """A step and the one before it in reverse order."""
    child = table.steps.get(step.operands[operand].index)
    movable = step.name in ARITHMETIC | UNARY
    if child is not None and movable and child.name in CHOOSING | ARITHMETIC - {step.name}:
        yield from (("reordered", operand, k) for k in range(len(child.operands)))


def along_axes(operand: int, shape: Sequence[int], *, reduced: bool) -> Iterator[ChangeOf]:
    """The edits of an operand along its axes, over which a step may sum (`reduced`)."""
    if len(shape) > 1 and shape[-1] == shape[-2] > 1:
        yield "along", operand, ("transposed", -1, -2)
    for axis, length in enumerate(shape):
        if length > 1:
            yield "along", operand, ("first for all", axis)
        if reduced and length > 1:
            yield "along", operand, ("flipped", axis)
            yield "along", operand, ("first twice", axis)
            kinds = product(("without one", "only one"), (0, -1))
            yield from (("along", operand, (kind, axis, index)) for kind, index in kinds)
            tails = [block for block in BLOCKS if length > block and length % block]
            yield from (("along", operand, ("without tail", axis, block)) for block in tails)
            yield from (("along", operand, ("only block", axis, block, -1)) for block in BLOCKS if length > block)


def rearranged(step: Step, operand: int, shape: Shape, *, given: bool) -> Iterator[ChangeOf]:
    """The edits of an input (`given`), or of a reshaped value, that read elements at other positions."""
    if given:
        yield from shifts(operand, shape)
    if step.name == "getitem":
        kinds = product(("mean for all", "largest for all"), range(len(shape)))
        yield from (("along", operand, (kind, axis)) for kind, axis in kinds if shape[axis] > 1)
    if given or step.name == "reshape":
        yield from groupings(operand, shape, reordered=step.name == "reshape" and len(shape) <= MOST_AXES)


def shifts(operand: int, shape: Shape) -> Iterator[ChangeOf]:
    """The edits that read an operand one position further along an axis."""
    for axis, length in enumerate(shape):
        if length > 1:
            kinds = product(("shifted", "shifted in zeros"), (1, -1))
            yield from (("along", operand, (kind, axis, by)) for kind, by in kinds)


def groupings(operand: int, shape: Shape, *, reordered: bool) -> Iterator[ChangeOf]:
    """The edits of an operand whose elements along an axis belong to other groups, or whose axes are `reordered`."""
    orders = permutations(range(len(shape))) if reordered else ()
    yield from (("along", operand, ("axes", *order)) for order in islice(orders, 1, None))
    for axis, n in enumerate(shape):
        yield from (("along", operand, ("interleaved", axis, d)) for d in range(2, min(n, MOST_GROUPS)) if n % d == 0)


def other_axes(step: Step, shape: Shape) -> Iterator[ChangeOf]:
    """The sums over as many other axes, or one axis less or more; also as means, if the division comes later."""
    axis, n_axes = step.keywords.get("axis"), len(shape)
    if not n_axes:
        return
    many = isinstance(axis, tuple)
    axes = tuple(range(n_axes)) if axis is None else tuple(a % n_axes for a in np.atleast_1d(axis).tolist())
    sets = [(a,) for a in range(n_axes)] + [tuple(b for b in axes if b != a) for a in axes if len(axes) > 1]
    sets += [tuple(sorted((*axes, a))) for a in range(n_axes) if a not in axes]
    count = math.prod(shape[a] for a in axes)
    for other in dict.fromkeys(s for s in sets if s != axes):
        value = other if many or len(other) != 1 else other[0]
        yield "summed", RESULT, value
        factor = count / max(1, math.prod(shape[a] for a in other))
        if step.name == "sum" and factor != 1:
            yield "averaged", RESULT, (value, factor)


def paddings(step: Step, shape: Shape, table: ProgramValues) -> Iterator[ChangeOf]:
    """The reductions along one axis that is filled up with numbers that are not neutral."""
    axes, index = np.atleast_1d(step.keywords["axis"]).tolist(), step.operands[0].index
    if step.name not in REDUCING or len(axes) != 1 or axes[0] is None or not shape:
        return
    axis, length = axes[0] % len(shape), shape[axes[0]]
    sources = [i for i in (index, *table.near(index, DEPTH)) if table.shapes.get(i) == shape and i in table.keys]
    for block in (b for b, whole in zip((*BLOCKS, 0), rounded_up(length), strict=False) if whole > length):
        yield from (("padded", 0, (table.keys[i], axis, block, fill)) for i in sources for fill in FILLS)


def is_number(program: Program, operand: Any) -> bool:
    """Whether an operand is a number of the reference, or of the op."""
    if isinstance(operand, Ref):
        return any(index == operand.index for index, _ in program.options.values())
    return isinstance(operand, (int, float)) and not isinstance(operand, bool)


def sizes(table: ProgramValues, step: Step) -> list[int]:
    """The numbers of elements along adjacent axes of a step's operands, and those less one. Of single axes only, unless
    the step calculates with the number: a padding of that many elements in each axis would need too much memory."""
    inputs = [table.shapes.get(index, ()) for index in step.refs] + [
        table.shapes[i] for i in table.program.inputs.values()
    ]
    most = max(map(len, inputs), default=0) if step.name in ARITHMETIC else 1
    parts = {s[i:j] for s in inputs for i in range(len(s)) for j in range(i + 1, min(i + most, len(s)) + 1)}
    lengths = {1, *map(math.prod, parts)}
    return sorted({m for n in lengths for m in (n, n - 1) if m > 0})
