"""Smaller sizes at which a reference still works: they are globals of its file, as benchmarks write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from parity.check.problem import ReferenceProblem, Size
from parity.program.torch_reference import MOST_STEPS

Sizes = dict[str, Size]

MOST_ELEMENTS = 1 << 14
"""Elements of all tensors, weights included: the exact answer, edits and perturbed runs take many evaluations."""
WRITTEN = 4
"""So many times the elements are allowed where a file has no globals for its sizes: it is made for one size."""
MOST_FLOPS = 1 << 24
"""Longdouble has no BLAS: some 1e8 operations a second."""
MOST_SECONDS = 20.0
PARTS = (64, 16, 4)
"""Of all sizes, before single ones are halved: to compute what a call costs takes long where it is long."""
SMALL = 4
"""Numbers up to this one are no sizes that anything is gained by: kernels, strides, groups, heads."""
LESS = 0.75
"""The part of its calls that code makes at most where a loop has become shorter."""
COUNT, LEAST = 16, 2
"""Numbers of the constructor up to the first, such as windows and heads, may become as small as the second: they stay
smaller than lengths and widths."""


def small(problem: ReferenceProblem) -> Sizes:
    """Values of globals with which a call is small; empty if it is, or if nothing smaller works.

    All sizes are halved together as long as that works, which keeps what must divide each other; then one by one,
    the largest first.
    """
    until = time.monotonic() + MOST_SECONDS
    sizes = problem.numbers
    more = WRITTEN if is_written(problem) else 1
    best, known = started(problem, sizes, more)
    while not fits(known, 1 if best else more) and time.monotonic() < until:
        step = next(((s, c) for s in smaller(sizes | best) if is_less(c := problem.cost(s), known)), None)
        if step is None:
            break
        best, known = step
    if problem.n_counted > MOST_STEPS:
        best = shorter(problem, sizes, best, until)
    return {name: value for name, value in best.items() if value != sizes[name]}


def shorter(problem: ReferenceProblem, sizes: Sizes, best: Sizes, until: float) -> Sizes:
    """Sizes with which loops are so short that each call can be a step, as far as halving one size after another makes
    them shorter."""
    for name in sorted(sizes, key=lambda name: -largest((sizes | best)[name])):
        while largest(now := (sizes | best)[name]) > SMALL and time.monotonic() < until:
            n_before, tried = problem.n_counted, best | {name: half(now)}
            if problem.cost(sizes | tried) is None or problem.n_counted > LESS * n_before:
                problem.n_counted = n_before
                break
            best = tried
            if problem.n_counted <= MOST_STEPS:
                return best
    return best


def started(problem: ReferenceProblem, sizes: Sizes, more: int) -> tuple[Sizes, tuple[int, int] | None]:
    """The sizes to begin with, and what a call costs then: those of the file, or a part of all that are large."""
    known = problem.cost({}) if problem.n_given <= more * MOST_ELEMENTS or not sizes else None
    if fits(known, more) or not sizes:
        return {}, known
    own = problem.literals.init
    counts = {name for name, value in sizes.items() if name in own and largest(value) <= COUNT}
    for part in PARTS:
        fraction = {n: scaled(value, part, LEAST if n in counts else 2 * SMALL) for n, value in sizes.items()}
        cost = problem.cost(fraction)
        if is_less(cost, known):
            return fraction, cost
    return {}, known or problem.cost({})


def is_written(problem: ReferenceProblem) -> bool:
    """Whether all sizes are numbers in the functions for inputs, no globals."""
    return problem.numbers.keys() <= problem.literals.names.keys()


def smaller(sizes: Sizes) -> Iterator[Sizes]:
    """Sizes that are tried next: halves of all, of those that are equal, of single ones."""
    large = {name: largest(size) for name, size in sizes.items() if largest(size) > SMALL}
    yield sizes | {name: half(sizes[name]) for name, n in large.items() if n > 4 * SMALL}
    for value in sorted(set(large.values()), reverse=True):
        equal = [name for name in large if large[name] == value]
        if len(equal) > 1:
            yield sizes | {name: half(sizes[name]) for name in equal}
        for name in equal:
            yield sizes | {name: half(sizes[name])}


def scaled(size: Any, part: int, least: int) -> Any:
    """A part of a size, no smaller than `least`; of a shape, of all its axes."""
    if isinstance(size, int):
        return max(-(-size // part), min(size, least))
    return type(size)(scaled(n, part, least) for n in size)


def half(size: Any) -> Any:
    """A half, rounded up; of a shape, of all its large axes."""
    if isinstance(size, int):
        return -(-size // 2)
    return type(size)(-(-n // 2) if n > SMALL else n for n in size)


def largest(size: Size) -> int:
    """A size, or the largest of a shape."""
    return size if isinstance(size, int) else max(size)


def fits(cost: tuple[int, int] | None, more: int = 1) -> bool:
    """Whether a call is small enough to be judged; `more` times the elements are allowed."""
    return cost is not None and cost[0] <= more * MOST_ELEMENTS and cost[1] <= MOST_FLOPS


def is_less(cost: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Whether a call works and costs less than another one."""
    return cost is not None and (other is None or (cost[0] + cost[1] < other[0] + other[1]))
