"""Trials of where a candidate is at fault: with a value of the reference in a row, all its outputs agree.

This is activation patching (causal tracing; Meng et al. 2022, arXiv 2202.05262) on the calls of a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, permutations, product

import numpy as np

from parity.check.fault import WIDE, Computation, FaultSearch, reached
from parity.check.match import KNOWN, MOST_AXES, Array, difference

MOST_PATCHES = 48
"""Calls of the candidate, each with another patch."""
MOST_WAYS = 12
"""Values of the reference, in their layouts, that are tried in one row."""
MOST_TOGETHER = 8
"""Patches of rows of one line that are tried together."""
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class RightValue:
    """Results of a row of the reference, none of which the candidate has, and the line; 0 inside a call."""

    arrays: Sequence[Array]
    line: int = 0


@dataclass(frozen=True, eq=False)
class Patch:
    """Other results for some rows of one line of a candidate, and the line of the reference that they are from."""

    results: Mapping[int, Sequence[Array]]
    reference_line: int

    @property
    def row(self) -> int:
        """The first of the rows."""
        return min(self.results)

    @property
    def shifted(self) -> Patch:
        """The same with other numbers. Where outputs agree with these, too, the rows do not matter, such as a maximum
        that is subtracted for the range of numbers only."""
        moved = {row: [array + 0.5 for array in arrays] for row, arrays in self.results.items()}
        return Patch(moved, self.reference_line)


@dataclass(frozen=True, eq=False)
class Patching:
    """What may be patched: the rows of a candidate of which the `search` knows no result, by values of the reference
    that `missing` does not know."""

    search: FaultSearch
    missing: FaultSearch
    ends: Sequence[int]

    def patches(self) -> Iterator[Patch]:
        """The trials, those of the candidate's first rows first."""
        yield from islice(chain.from_iterable(map(self.of_line, self.lines())), MOST_PATCHES)

    @property
    def own(self) -> Computation:
        """The candidate."""
        return self.search.code

    def lines(self) -> list[list[int]]:
        """The rows with unknown results that wrong outputs depend on, between inputs and outputs: those of one line and
        function, as in a loop, together."""
        ends = set(self.own.outputs.values())
        groups: dict[tuple[int, str], list[int]] = {}
        for number in sorted(reached(self.own, self.ends)):
            row = self.own.rows[number]
            is_between = row.reads and not ends.intersection(row.results)
            if row.line and is_between and any(self.search.level(i) < KNOWN for i in row.results):
                groups.setdefault((row.line, row.function), []).append(number)
        return list(groups.values())

    @cached_property
    def right(self) -> list[RightValue]:
        """The values of the reference that the candidate never computes, in their order."""
        code = self.missing.code
        rows = (r for r in code.rows if r.line and any(self.missing.level(i) < KNOWN for i in r.results))
        hit = [RightValue([code.values[i] for i in row.results], row.line) for row in rows]
        inner = (array for array in code.more if self.missing.known.level(array, WIDE["float64"]) < KNOWN)
        every = [*hit, *(RightValue([array]) for array in inner)]
        return list({tuple(map(bits, value.arrays)): value for value in reversed(every)}.values())[::-1]

    def of_line(self, numbers: Sequence[int]) -> Iterator[Patch]:
        """The trials of rows of one line."""
        if len(numbers) == 1:
            yield from (Patch({numbers[0]: arrays}, line) for arrays, line in self.ways(numbers[0]))
            return
        yield from self.in_order(numbers)
        ways = [list(self.ways(number)) for number in numbers]
        if len(set(map(len, ways))) == 1:
            # The same value in all of them, or values of one place in a function that is called several times.
            yield from (together(numbers, chosen) for chosen in zip(*ways, strict=True))
        if np.prod([float(len(some)) for some in ways]) <= MOST_TOGETHER:
            yield from (together(numbers, chosen) for chosen in product(*ways))

    def in_order(self, numbers: Sequence[int]) -> Iterator[Patch]:
        """All rows of a line at once, by the values of a line of the reference that has as many."""
        by_line: dict[int, list[RightValue]] = {}
        for value in self.right:
            by_line.setdefault(value.line, []).append(value)
        for line, values in by_line.items():
            if not line or len(values) != len(numbers):
                continue
            laid = [next(self.laid_out(number, value), None) for number, value in zip(numbers, values, strict=True)]
            given = {n: arrays for n, arrays in zip(numbers, laid, strict=True) if arrays is not None}
            if len(given) == len(numbers):
                yield Patch(given, line)

    def ways(self, number: int) -> Iterator[Way]:
        """What may stand in a row, each with its line in the reference."""
        tried = ((arrays, value.line) for value in self.right for arrays in self.laid_out(number, value))
        yield from islice(tried, MOST_WAYS)

    def laid_out(self, number: int, value: RightValue) -> Iterator[Sequence[Array]]:
        """A value of the reference in the shapes of a row's results."""
        own = [self.own.values[i] for i in self.own.rows[number].results]
        if len(own) != len(value.arrays):
            return
        for arrays in zip(
            *(shaped(array, like.shape) for array, like in zip(value.arrays, own, strict=True)), strict=False
        ):
            if not all(
                one is not None and difference(one, like) <= SAME for one, like in zip(arrays, own, strict=True)
            ):
                yield arrays


Way = tuple[Sequence[Array], int]
"""What may stand in a row, and its line in the reference."""


def together(numbers: Sequence[int], chosen: Sequence[Way]) -> Patch:
    """Some rows with what was chosen for each."""
    return Patch({n: arrays for n, (arrays, _) in zip(numbers, chosen, strict=True)}, chosen[0][1])


def bits(array: Array) -> tuple[tuple[int, ...], bytes]:
    """What two arrays share if they are equal."""
    return array.shape, array.tobytes()


def shaped(array: Array, shape: Sequence[int]) -> Iterator[Array]:
    """An array in another shape: with its axes in another order, or split and merged."""
    if array.size != np.prod(shape, dtype=np.int64):
        return
    plain, wanted = array.reshape([n for n in array.shape if n != 1]), [n for n in shape if n != 1]
    orders = permutations(range(plain.ndim)) if plain.ndim <= MOST_AXES else [tuple(range(plain.ndim))]
    if sorted(plain.shape) == sorted(wanted):
        yield from (plain.transpose(o).reshape(shape) for o in orders if [plain.shape[a] for a in o] == wanted)
    else:
        yield array.reshape(shape)
