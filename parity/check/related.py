"""What a value at fault is to the values of the reference, in words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from parity.check.fault import Computation, TrailRow, reached
from parity.check.match import Array, Item
from parity.check.relation import PRODUCTS, SUMS, aligned, is_equal, partial_sum, relation

ELEMENTWISE = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "square"),
        *("reciprocal", "abs", "neg", "sign"),
        *("sigmoid", "tanh", "relu", "gelu", "silu", "elu", "selu", "softplus", "mish", "hardswish", "hardsigmoid"),
        *("sin", "cos", "erf", "softmax", "log_softmax", "floor", "ceil", "round", "trunc"),
    )
)
"""Functions of one value that stand for one another where a formula is confused."""
IT = re.compile(r"\bit\b")


def related(row: TrailRow, own: Computation, theirs: Computation, lost: TrailRow | None, until: float) -> str:
    """What the results of a candidate's row are to those of the reference's row `lost`, else to other values that have
    names; empty where nothing simple is known. Nothing is looked for after `until`."""
    if not row.backward and (hit := part_of_sum(row, own, theirs, until)):
        return hit
    same_line = [r for r in own.rows if r.line == row.line and r.backward == row.backward]
    values = [own.values[i] for r in (row, *reversed(same_line)) for i in r.results]
    near = list(values_near(theirs, lost))
    others = list(named_values(theirs, gradients=row.backward))
    for value in values:
        alike = [array for _, array in (*near, *others) if array.size == value.size]
        if any(is_equal(value, aligned(value, array)) for array in alike if aligned(value, array).shape == value.shape):
            continue
        few = Item(value).few
        for name, array in near if few else (*near, *others):
            if time.monotonic() > until:
                return ""
            if words := relation(value, array, weak=name == "it"):
                return IT.sub(name, words)
    return of_function(row, own, theirs) or of_outputs(own, theirs)


def of_function(row: TrailRow, own: Computation, theirs: Computation) -> str:
    """`of the same value, the reference takes sigmoid (line 12)`, for a function of a value that the reference has."""
    if row.function not in ELEMENTWISE or row.backward:
        return ""
    value = own.values[row.reads[0]]
    rows = (r for r in theirs.rows if r.line and not r.backward and r.function in ELEMENTWISE)
    readers = [r for r in rows if any(is_same(theirs.values[i], value) for i in r.reads)]
    names = dict.fromkeys(f"{r.function} (line {r.line})" for r in readers)
    if not names or any(r.function == row.function for r in readers):
        return ""
    return f"of the same value, the reference takes {' and '.join(names)}"


def is_same(one: Array, other: Array) -> bool:
    """Whether two values are equal in shape and elements."""
    return one.shape == other.shape and is_equal(one, other)


def of_outputs(own: Computation, theirs: Computation) -> str:
    """`y is 1/2 times that of the reference`."""
    for name in (n for n in own.outputs if n in theirs.outputs):
        if words := relation(own.values[own.outputs[name]], theirs.values[theirs.outputs[name]], weak=True):
            return f"{name} is {IT.sub('that of the reference', words)}"
    return ""


def values_near(code: Computation, row: TrailRow | None) -> Iterator[tuple[str, Array]]:
    """The results of a row, then the others of its line, the last first; each is called "it"."""
    line = [] if row is None else [row, *(r for r in reversed(code.rows) if r.line == row.line)]
    yield from (("it", code.values[i]) for r in line for i in r.results)


def named_values(code: Computation, *, gradients: bool) -> Iterator[tuple[str, Array]]:
    """The values of a computation, each with what it is called."""
    yield from ((name, code.values[i]) for name, i in {**code.inputs, **code.outputs}.items())
    yield from ((f"the value of line {r.line}", code.values[i]) for r in code.rows if r.line for i in r.results)
    if gradients:
        yield from ((f"the gradient of {name}", code.values[i]) for name, i in code.gradients.items())
        yield from ((f"the gradient at line {r.line}", code.values[i]) for r in code.rows for i in r.gradients)


def part_of_sum(row: TrailRow, own: Computation, theirs: Computation, until: float) -> str:
    """`the sum of only 0 to 511 of the 513 elements of axis 1`, of the last value after a row that is a part of one of
    the reference's sums; empty where the whole sum is there, too."""
    first = own.rows.index(row)
    later = [n for n in reached(own, own.outputs.values()) if n >= first]
    values = [own.values[i] for n in sorted(later, reverse=True) for i in own.rows[n].results]
    for other in theirs.rows:
        if not other.line or other.function not in SUMS | PRODUCTS:
            continue
        whole = theirs.values[other.results[0]]
        alike = [value for value in values if value.size == whole.size]
        if any(is_equal(value.ravel(), whole.ravel()) for value in alike):
            continue
        for value in alike:
            if time.monotonic() > until:
                return ""
            if hit := partial_sum(value, other.function, [theirs.values[i] for i in other.reads]):
                return hit
    return ""
