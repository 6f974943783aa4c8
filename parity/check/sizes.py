"""Smaller sizes at which a reference still works: they are globals of its file, as benchmarks write them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from parity.check.problem import Problem

MOST_ELEMENTS = 1 << 14
"""Elements of all tensors, weights included: the exact answer, edits and perturbed runs take many evaluations."""
MOST_FLOPS = 1 << 24
"""Longdouble has no BLAS: some 1e8 operations a second."""
MOST_SECONDS = 20.0
PARTS = (64, 16, 4)
"""Of all sizes, before single ones are halved: to compute what a call costs takes long where it is long."""
SMALL = 4
"""Numbers up to this one are no sizes that anything is gained by: kernels, strides, groups, heads."""


def small(problem: Problem) -> dict[str, int]:
    """Values of globals with which a call is small; empty if it is, or if nothing smaller works.

    All sizes are halved together as long as that works, which keeps what must divide each other; then one by one,
    the largest first.
    """
    until = time.monotonic() + MOST_SECONDS
    sizes = problem.numbers
    best, known = started(problem, sizes)
    while not fits(known) and time.monotonic() < until:
        step = next(((s, c) for s in smaller(sizes | best) if is_less(c := problem.cost(s), known)), None)
        if step is None:
            break
        best, known = step
    return {name: value for name, value in best.items() if value != sizes[name]}


def started(problem: Problem, sizes: dict[str, int]) -> tuple[dict[str, int], tuple[int, int] | None]:
    """The sizes to begin with, and what a call costs then: those of the file, or a part of all that are large."""
    known = problem.cost({}) if problem.n_given <= MOST_ELEMENTS or not sizes else None
    if fits(known) or not sizes:
        return {}, known
    for part in PARTS:
        fraction = {name: max(-(-value // part), min(value, 2 * SMALL)) for name, value in sizes.items()}
        cost = problem.cost(fraction)
        if is_less(cost, known):
            return fraction, cost
    return {}, known or problem.cost({})


def smaller(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Sizes that are tried next: halves of all, of those that are equal, of single ones."""
    large = {name: value for name, value in sizes.items() if value > SMALL}
    yield sizes | {name: half(value) for name, value in large.items() if value > 4 * SMALL}
    for value in sorted(set(large.values()), reverse=True):
        equal = [name for name in large if large[name] == value]
        if len(equal) > 1:
            yield sizes | dict.fromkeys(equal, half(value))
        for name in equal:
            yield sizes | {name: half(value)}


def half(value: int) -> int:
    """A half, rounded up."""
    return -(-value // 2)


def fits(cost: tuple[int, int] | None) -> bool:
    """Whether a call is small enough to be judged."""
    return cost is not None and cost[0] <= MOST_ELEMENTS and cost[1] <= MOST_FLOPS


def is_less(cost: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Whether a call works and costs less than another one."""
    return cost is not None and (other is None or (cost[0] + cost[1] < other[0] + other[1]))
