"""Finds a formula for a tensor that no edit explains: a product, a quotient or a sum of a few values of the reference,
in all elements or a part of them.

A kernel may be written differently from the reference and its forms, and the error may be in a step that only the
kernel has. Its result is still a short formula of the reference's values. All formulas of a kind are tried at once, as
a least-squares problem of two terms; other inputs must confirm the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Shape
from parity.cases.edits import COMPUTED, READ, RETURNED, Edit, Expression, Key
from parity.cases.op import GRADIENT
from parity.cases.program import Program
from parity.cases.trial import Trial
from parity.judge.bound.envelope import Array

MOST_ATOMS, MOST_POINTS = 24, 80
MOST_TERMS = 160
MOST_KEPT, FEW = 8, 8
RESOLVED = 1e-9
"""The residual of an exact solution of a least-squares problem in float64, relative to the data."""
WITHIN = 8.0
"""How many unit roundoffs a formula may be from the data."""

Columns = NDArray[np.float64]
UNARY: Mapping[str, Callable[[Columns], Columns]] = {
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sqrt": np.sqrt,
    "absolute": np.absolute,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "sign": np.sign,
}
"""Functions of a value before it is a term or a factor."""
LIMITS = (0.0, 1.0, -1.0)


@dataclass(frozen=True)
class Observation:
    """A program's values for some inputs, the returned values, and whether the reference is right there."""

    trial: Trial
    observed: Array
    right: NDArray[np.bool_]


@dataclass(frozen=True)
class Terms:
    """Values at the same points, a row each, and their expressions."""

    rows: Columns
    expressions: tuple[Expression, ...]

    def at(self, chosen: Any) -> Terms:
        """The same at some of the points."""
        return Terms(self.rows[:, chosen], self.expressions)


def formulas_of(output: str, data: Sequence[Observation], unit: float) -> list[Edit]:
    """The formulas for an output, the simplest first, within rounding in units of `unit`."""
    program, rng = data[0].trial.program, np.random.default_rng(0)
    points = [sampled(one, one.trial.base[output], rng, MOST_POINTS // len(data)) for one in data]
    observed = gathered([one.observed for one in data], points).astype(np.float64)
    right = gathered([one.right for one in data], points)
    tolerance = max(WITHIN * unit, RESOLVED)
    if not enough(observed.size, tolerance):
        return []
    with np.errstate(all="ignore"):
        atoms = atoms_of(program, output, data, points)
        terms = unary_terms(atoms)
        formulas = fitted(terms, observed, tolerance)
        if not formulas and right.any():
            whole = (READ, key_of(program, program.outputs[output]))
            formulas = piecewise(whole, atoms, terms, observed, right, tolerance)
        for name in () if formulas else alike(output, data[0]):
            formulas = formulas or two_sided(name, atoms, terms, observed, tolerance)
    kept = sorted(dict.fromkeys(map(simple, formulas)), key=length)[:MOST_KEPT]
    return [Edit((), output, RETURNED, value=(COMPUTED, expression)) for expression in kept]


EVIDENCE = 100.0
"""How many bits of data distinguish a formula from the others: millions are tried, with two numbers each."""


def gathered(arrays: Sequence[Array], points: Sequence[NDArray[np.intp]]) -> Array:
    """The elements of arrays at the points."""
    return np.concatenate([np.ravel(array)[at] for array, at in zip(arrays, points, strict=True)])


def evaluated(expression: Expression, atoms: Terms) -> Columns:
    """The values of an expression of atoms."""
    if expression[0] == "number":
        return np.full(atoms.rows.shape[1], expression[1])
    if expression in atoms.expressions:
        return np.asarray(atoms.rows[atoms.expressions.index(expression)], float)
    return np.asarray(getattr(np, expression[0])(*(evaluated(part, atoms) for part in expression[1:])), float)


def sampled(one: Observation, reference: Array, rng: np.random.Generator, most: int) -> NDArray[np.intp]:
    """The indices of some elements: at least half of them wrong ones if there are as many, and of both kinds the `FEW`
    at which the reference is largest, since it may be zero nearly everywhere."""
    finite, right, size = np.isfinite(np.ravel(one.observed)), np.ravel(one.right), np.abs(np.ravel(reference))

    def mixed(indices: NDArray[np.intp]) -> NDArray[np.intp]:
        largest = indices[np.argsort(-size[indices], kind="stable")[:FEW]]
        return np.concatenate([largest, rng.permutation(np.setdiff1d(indices, largest))])

    wrong, others = (mixed(np.flatnonzero(finite & part)) for part in (~right, right))
    wrong = wrong[: max(most // 2, most - others.size)]
    return np.concatenate([wrong, others[: most - wrong.size]])


def key_of(program: Program, index: int) -> Key:
    """The key of a value of a program."""
    named = {i: ("input", name) for name, i in program.inputs.items()}
    named |= {i: ("option", name) for name, (i, _) in program.options.items()}
    positions = (p for p, step in enumerate(program.steps) if step.index == index)
    return named.get(index) or ("step", next(positions))


def atoms_of(program: Program, output: str, data: Sequence[Observation], points: Sequence[NDArray[np.intp]]) -> Terms:
    """The different values of a program that have an output's shape, or can be repeated to it: the right output and the
    inputs first, then options, named steps and others."""
    reach = program.reach([output])
    steps = [step for position, step in enumerate(program.steps) if not step.backward or position in reach]
    steps.sort(key=lambda step: (step.index not in program.outputs.values(), not step.label, -step.index))
    order = [program.outputs[output], *program.inputs.values(), *(i for i, _ in program.options.values())]
    rows: list[Columns] = [np.ones(sum(map(len, points)))]
    expressions: list[Expression] = [ONE]
    for index in dict.fromkeys((*order, *(step.index for step in steps))):
        axes = missing(np.shape(data[0].trial.value(index)), data[0].observed.shape)
        row = row_of(index, axes, data, points)
        if row is None or not np.isfinite(row).all() or any(proportional(row, other) for other in rows):
            continue
        rows.append(row)
        value = (READ, key_of(program, index))
        expressions.append(("expand_dims", value, ("number", axes)) if axes else value)
        if len(rows) == MOST_ATOMS:
            break
    return Terms(np.array(rows), tuple(expressions))


def row_of(
    index: int, axes: tuple[int, ...], data: Sequence[Observation], points: Sequence[NDArray[np.intp]]
) -> Columns | None:
    """A value at the points, with `axes` of length 1 inserted; None if it does not broadcast to every point."""
    parts = []
    for one, at in zip(data, points, strict=True):
        given = np.asarray(one.trial.value(index))
        if given.dtype.kind not in "fib":
            return None
        try:
            parts.append(np.broadcast_to(np.expand_dims(given, axes), one.observed.shape).ravel()[at].astype(float))
        except ValueError:
            return None
    return np.concatenate(parts)


def missing(shape: Shape, whole: Shape) -> tuple[int, ...]:
    """The axes to insert so that a value broadcasts to the `whole`; none if it does without, or if no axes fit."""
    n = len(whole) - len(shape)
    if n <= 0 or not shape or shape == whole[n:]:
        return ()
    fits = (axes for axes in combinations(range(len(whole)), n) if shape == tuple(np.delete(whole, axes)))
    return next(fits, ())


def proportional(row: Columns, other: Columns) -> bool:
    """Whether two rows differ only by a factor."""
    size = float(np.linalg.norm(row) * np.linalg.norm(other))
    return abs(float(row @ other)) >= (1 - RESOLVED**2) * size if size else True


def unary_terms(atoms: Terms) -> Terms:
    """The values, functions of each, one more and one less, and where each is positive."""
    rows, expressions = list(atoms.rows), list(atoms.expressions)

    def add(row: Columns, expression: Expression) -> None:
        if np.isfinite(row).all() and row.any() and len(rows) < MOST_TERMS:
            rows.append(row)
            expressions.append(expression)

    with np.errstate(all="ignore"):
        for row, expression in zip(atoms.rows[1:], atoms.expressions[1:], strict=True):
            for name, function in UNARY.items():
                add(function(row), (name, expression))
            if row.min() < 0 < row.max():
                add((row > 0).astype(float), ("greater", expression, ("number", 0.0)))
            for limit in LIMITS if expression[1][0] == "input" else ():
                add(np.maximum(row, limit), ("maximum", expression, ("number", limit)))
                add(np.minimum(row, limit), ("minimum", expression, ("number", limit)))
            add(1 + row, ("add", ("number", 1.0), expression))
            add(1 - row, ("subtract", ("number", 1.0), expression))
    table = Terms(np.array(rows), tuple(expressions))
    return distinct(table)


def distinct(terms: Terms) -> Terms:
    """The terms without those that differ from an earlier one only by a factor."""
    unit = terms.rows / np.linalg.norm(terms.rows, axis=1, keepdims=True)
    alike = np.abs(unit @ unit.T) >= 1 - RESOLVED**2
    kept = [i for i in range(len(unit)) if not alike[i, :i].any()]
    return Terms(terms.rows[kept], tuple(terms.expressions[i] for i in kept))


def fitted(terms: Terms, observed: Columns, tolerance: float) -> list[Expression]:
    """The formulas a (c b + e d), a / (c b + e d), c a b d, and c a b + e d or a function of it, that give the observed
    values."""
    size = np.abs(observed) + np.sqrt(np.mean(observed**2)) * SMALLEST
    if not size.all():
        return []
    formulas: list[Expression] = []
    for row, expression in zip(terms.rows, terms.expressions, strict=True):
        if row.all():
            formulas += [
                ("multiply", expression, e) for e in sums(terms, terms, observed / row, np.abs(row) / size, tolerance)
            ]
            formulas += (
                [("divide", expression, e) for e in sums(terms, terms, row / observed, size / np.abs(row), tolerance)]
                if observed.all()
                else []
            )
    products = products_of(terms)
    formulas += sums(products, terms, observed, 1 / size, tolerance)
    formulas += triple_products(terms, products, observed, 1 / size, tolerance)
    for name, inverse in OUTER.items():
        target = inverse(observed)
        if np.isfinite(target).all() and target.any():
            spread = np.abs(inverse(observed * (1 + STEP)) - target) / STEP + np.abs(target)
            formulas += [outer(name, e) for e in sums(products, terms, target, 1 / spread, tolerance)]
    return formulas


SMALLEST = 1e-2
"""Elements smaller than this part of the root mean square count as if they had that size."""
LOGISTIC = "logistic"
OUTER: Mapping[str, Callable[[Columns], Columns]] = {
    "exp": np.log,
    "log": np.exp,
    "sqrt": lambda values: np.where(values >= 0, np.square(values), np.nan),
    "tanh": np.arctanh,
    LOGISTIC: lambda values: np.log(values / (1 - values)),
}
"""Functions of a sum, and their inverses."""
STEP = 2.0**-20
"""The relative step that shows how much an inverse magnifies rounding."""


def outer(name: str, inner: Expression) -> Expression:
    """A function of an expression."""
    return ("reciprocal", ("add", ONE, ("exp", ("negative", inner)))) if name == LOGISTIC else (name, inner)


INDEPENDENT = 1e-6
"""Two terms whose directions differ by less count as one."""
MOST_CHECKED, MOST_RANKED = 24, 400
"""So many of the best sums are computed, and as many of the shortest among the `MOST_RANKED` best: in a part of the
elements many terms differ only by a factor."""


def products_of(terms: Terms) -> Terms:
    """The products of any two terms."""
    i, j = np.triu_indices(len(terms.expressions))
    rows = terms.rows[i] * terms.rows[j]
    usable = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
    expressions = tuple(
        ("multiply", terms.expressions[m], terms.expressions[n]) for m, n in zip(i[usable], j[usable], strict=True)
    )
    return Terms(rows[usable], expressions)


def sums(firsts: Terms, seconds: Terms, target: Columns, weights: Columns, tolerance: float) -> list[Expression]:
    """The sums of a multiple of a first term and of a second one that give the target, within the weighted
    tolerance."""
    goal = target * weights
    if not np.isfinite(goal).all() or not goal.any():
        return []
    first, second = normal(firsts.rows * weights), normal(seconds.rows * weights)
    goal = goal / np.linalg.norm(goal)
    r, s = first @ goal, second @ goal
    enough = 1 - max((SLACK * tolerance) ** 2, INDEPENDENT**1.5)
    single = np.flatnonzero(r**2 >= enough)[:MOST_CHECKED]
    if single.size:
        weighted = (weighed(firsts, seconds, [(0, int(i))], target, weights, tolerance) for i in single)
    else:
        pairs = [(int(i), int(j)) for i, j in most_explained(r, s, first @ second.T, enough)]
        shortest = sorted(
            pairs, key=lambda pair: length(firsts.expressions[pair[0]]) + length(seconds.expressions[pair[1]])
        )
        tried = dict.fromkeys((*pairs[:MOST_CHECKED], *shortest[:MOST_CHECKED]))
        weighted = (weighed(firsts, seconds, [(0, i), (1, j)], target, weights, tolerance) for i, j in tried)
    return [expression for expression in weighted if expression is not None]


SLACK = 4.0


def most_explained(r: Columns, s: Columns, g: Columns, enough: float) -> NDArray[np.intp]:
    """The pairs of directions that explain `enough` of a goal, the best first: `r` and `s` are its projections on
    them, `g` theirs on each other.

    A pair explains (r^2 + s^2 - 2 r s g) / (1 - g^2); nearly all of them are excluded without the division.
    """
    beyond = g * enough
    beyond -= 2 * np.multiply.outer(r, s)
    beyond *= g
    beyond += (r**2 - enough)[:, None]
    beyond += s**2
    i, j = np.divmod(np.flatnonzero(beyond >= -ROUNDING), s.size)
    apart = 1 - g[i, j] ** 2
    i, j, apart = (values[apart > INDEPENDENT] for values in (i, j, apart))
    explained = (r[i] ** 2 + s[j] ** 2 - 2 * r[i] * s[j] * g[i, j]) / apart
    order = np.argsort(-explained, kind="stable")
    pairs: NDArray[np.intp] = np.stack([i, j], axis=1)[order[explained[order] >= enough]]
    return pairs[:MOST_RANKED]


ROUNDING = 1e-14
"""The rounding error of a sum of numbers up to 1."""


def triple_products(
    terms: Terms, products: Terms, target: Columns, weights: Columns, tolerance: float
) -> list[Expression]:
    """The multiples of products of three terms that give the target."""
    weighted = terms.rows * weights
    size = np.sqrt(products.rows**2 @ (weighted**2).T) * np.linalg.norm(target * weights)
    alike = np.abs(products.rows @ (weighted * target * weights).T) / size
    at = np.argwhere(alike**2 >= 1 - max((SLACK * tolerance) ** 2, INDEPENDENT**1.5))[:MOST_CHECKED]
    multiples = []
    for i, j in at:
        expression = ("multiply", terms.expressions[j], products.expressions[i])
        whole = Terms((products.rows[i] * terms.rows[j])[None], (expression,))
        multiples.append(weighed(whole, whole, [(0, 0)], target, weights, tolerance))
    return [expression for expression in multiples if expression is not None]


def normal(rows: Columns) -> Columns:
    """Rows of length 1; rows that are not finite become zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(np.isfinite(length) & (length > 0), rows / np.where(length > 0, length, 1), 0)


def weighed(
    firsts: Terms, seconds: Terms, which: Sequence[tuple[int, int]], target: Columns, weights: Columns, tolerance: float
) -> Expression | None:
    """The least-squares combination of some terms, its factors in few digits where that is enough; None if it is not
    the target."""
    tables = (firsts, seconds)
    rows = np.array([tables[k].rows[i] for k, i in which])
    factors = np.asarray(np.linalg.lstsq((rows * weights).T, target * weights, rcond=None)[0], np.float64)

    def fits(numbers: NDArray[np.float64]) -> bool:
        error, size = np.abs(numbers @ rows - target), np.abs(numbers) @ np.abs(rows)
        return bool((error * weights <= tolerance * (1 + size * weights)).all())

    if not fits(factors):
        return None
    for at, factor in enumerate(factors):
        short = (float(f"{factor:.{digits}g}") for digits in range(1, FEW_DIGITS))
        others = (np.concatenate([factors[:at], [number], factors[at + 1 :]]) for number in short)
        factors = next(filter(fits, others), factors)
    parts = [times(float(f), tables[k].expressions[i]) for f, (k, i) in zip(factors, which, strict=True) if f]
    return parts[0] if len(parts) == 1 else ("add", *parts) if parts else None


FEW_DIGITS = 6
"""People write numbers with fewer digits."""


def times(factor: float, expression: Expression) -> Expression:
    """A multiple of an expression."""
    if factor == 1:
        return expression
    if expression == ONE:
        return ("number", factor)
    return ("negative", expression) if factor == -1 else ("multiply", ("number", factor), expression)


ONE = ("number", 1.0)


def simple(expression: Expression) -> Expression:
    """Without factors of 1."""
    head, *rest = expression
    if head in (READ, "number"):
        return expression
    operands = [simple(part) for part in rest]
    if head in ("multiply", "divide") and operands[1] == ONE:
        return operands[0]
    return operands[1] if head == "multiply" and operands[0] == ONE else (head, *operands)


def length(expression: Expression) -> float:
    """The length of an expression; a number counts by its digits."""
    if expression[0] == "number":
        return 0.1 * len(f"{abs(expression[1]):g}") if isinstance(expression[1], float) else 0.0
    return 1.0 if expression[0] == READ else 1.0 + sum(map(length, expression[1:]))


def enough(n: Any, tolerance: float) -> bool:
    """Whether this many elements distinguish a formula from the others."""
    return bool(-n * np.log2(tolerance) >= EVIDENCE)


def best(terms: Terms, observed: Columns, part: NDArray[np.bool_], tolerance: float) -> list[Expression]:
    """The simplest formulas for a part of the elements."""
    if not enough(part.sum(), tolerance):
        return []
    return sorted(map(simple, fitted(terms.at(part), observed[part], tolerance)), key=length)[:MOST_KEPT]


def piecewise(
    whole: Expression, atoms: Terms, terms: Terms, observed: Columns, right: NDArray[np.bool_], tolerance: float
) -> list[Expression]:
    """The formulas for the wrong elements, with the condition under which the `whole` is wrong."""
    formulas = []
    for expression in best(terms, observed, ~right, tolerance):
        values = evaluated(expression, atoms)
        agrees = np.abs(values - observed) <= tolerance * (np.abs(observed) + np.abs(values))
        conditions = conditions_of(terms, right, agrees)
        formulas += [("where", condition, expression, whole) for condition in conditions]
    return formulas


def alike(output: str, one: Observation) -> list[str]:
    """The inputs whose elements may each decide about one element of an output: a gradient's own input, else those of
    the same shape."""
    shapes = {name: np.shape(one.trial.value(index)) for name, index in one.trial.program.inputs.items()}
    names = [name for name, shape in shapes.items() if shape == one.observed.shape]
    own = output.removeprefix(GRADIENT)
    return [own] if own in names else names


def two_sided(name: str, atoms: Terms, terms: Terms, observed: Columns, tolerance: float) -> list[Expression]:
    """Two formulas: for the positive elements of an input, and for the others."""
    value = (READ, ("input", name))
    if value not in atoms.expressions:
        return []
    positive = atoms.rows[atoms.expressions.index(value)] > 0
    one = best(terms, observed, positive, tolerance)[:1]
    other = one and best(terms, observed, ~positive, tolerance)[:1]
    return [("where", ("greater", value, ("number", 0.0)), *one, *other)] if other else []


def conditions_of(terms: Terms, right: NDArray[np.bool_], agrees: NDArray[np.bool_]) -> list[Expression]:
    """The conditions that hold where the reference is wrong, and nowhere the formula does not agree: a value lies above
    or below a number or between two, or two inputs do. The shortest of either kind; other inputs refute one."""
    values = list(zip(terms.rows[1:], terms.expressions[1:], strict=True))
    conditions: dict[bool, list[Expression]] = {}
    for several in chain(((value,) for value in values), combinations(filter(is_input, values), 2)):
        within = [(row >= row[~right].min()) & (row <= row[~right].max()) for row, _ in several]
        if not agrees[np.all(within, axis=0)].all():
            continue
        limits: list[Expression] = []
        for i, (row, expression) in enumerate(several):
            outside = ~agrees & np.all([w for j, w in enumerate(within) if j != i] or [~agrees], axis=0)
            limits += limits_of(row[~right], row[outside], expression)
        if limits:
            conditions.setdefault(len(several) > 1, []).append(
                reduce(lambda one, other: ("logical_and", one, other), limits)
            )
    return [min(group, key=length) for group in conditions.values()]


def limits_of(inside: Columns, outside: Columns, expression: Expression) -> Iterator[Expression]:
    """Conditions: at least the smallest number of those `inside`, and at most the largest, if some `outside` lie beyond
    it."""
    low, high = inside.min(), inside.max()
    if (outside < low).any():
        yield ("greater", expression, ("number", between(outside[outside < low].max(), low)))
    if (outside > high).any():
        yield ("less", expression, ("number", between(high, outside[outside > high].min())))


def is_input(value: tuple[Columns, Expression]) -> bool:
    """Whether a value is an input."""
    _, expression = value
    return bool(expression[0] == READ and expression[1][0] == "input")


def between(low: float, high: float) -> float:
    """The shortest number between two."""
    middle = float(low + high) / 2
    shorter = (n for d in range(17) if low < (n := round(middle, d)) < high or low <= n == 0 <= high)
    return 0.0 if low < 0 < high else next(shorter, middle)
