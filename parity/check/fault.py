"""Where one computation leaves the other: the first value that it has and the other never computes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from parity.check.match import MOVED, NONE, PART, SCALED, Array, Known, difference

WIDE = {"float64": 1e-8, "float32": 3e-5, "float16": 2e-2, "bfloat16": 1e-1}
"""What two values may differ by, in relation to their largest element, by the narrowest dtype that they came from."""
ORDER = ("float64", "float32", "float16", "bfloat16")
MADE = 1e-6
"""Differences of outputs from which on a fault shows in float64, too."""
LEAST = 2.0**-24


SELECTING = frozenset(
    (
        *(
            "masked_fill",
            "where",
            "tril",
            "triu",
            "clamp",
            "clip",
            "clamp_min",
            "clamp_max",
            "relu",
            "minimum",
            "maximum",
        ),
        *(
            "amax",
            "amin",
            "max",
            "min",
            "topk",
            "sort",
            "kthvalue",
            "median",
            "masked_select",
            "masked_scatter",
            "cummax",
        ),
        *("nan_to_num", "dropout", "max_pool2d", "max_pool1d", "hardtanh", "relu6", "scatter", "gather", "index_put"),
    )
)
"""Functions that choose elements: that all of them are known says nothing of the choice."""
PADDING = frozenset(("pad", "setitem", "copy", "cat", "concat", "stack", "zeros_like", "new_zeros"))
"""Functions whose results may have zeros beside known elements."""


@dataclass(frozen=True)
class TrailRow:
    """A call: the numbers of the values that it reads and returns."""

    function: str
    line: int
    reads: tuple[int, ...]
    results: tuple[int, ...]
    after: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    gradients: tuple[int, ...] = ()
    writes: tuple[str, ...] = ()
    backward: bool = False
    cut: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> TrailRow:
        """The row of a trail. Raises ValueError or TypeError for one that is not well formed."""
        given: dict[str, Any] = {n: tuple(map(int, row[n])) for n in ("reads", "results", "after", "gradients")}
        given |= {"writes": tuple(map(str, row["writes"])), "numbers": tuple(map(float, row["numbers"]))}
        given |= {name: bool(row[name]) for name in ("backward", "cut")}
        return cls(str(row["function"]), int(row["line"]), **given)


@dataclass(frozen=True, eq=False)
class Computation:
    """One computation: its rows, and values by number with their dtypes; `more` are values inside its calls."""

    rows: Sequence[TrailRow]
    values: Sequence[Array]
    dtypes: Sequence[str]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    gradients: Mapping[str, int]
    error_line: int = 0
    more: Sequence[Array] = field(default=())

    @classmethod
    def of(cls, trail: Mapping[str, Any], values: Sequence[Array], dtypes: Sequence[str]) -> Computation:
        """The code of a trail. Raises LookupError, ValueError or TypeError for one that is not well formed."""
        named: dict[str, Any] = {
            key: {str(n): int(i) for n, i in trail[key].items()} for key in ("inputs", "outputs", "gradients")
        }
        line = int(trail["error"]["line"]) if trail["error"] else 0
        code = cls(tuple(map(TrailRow.of, trail["rows"])), values, dtypes, **named, error_line=line)
        used = [*code.inputs.values(), *code.outputs.values(), *code.gradients.values()]
        used += [i for row in code.rows for i in (*row.reads, *row.results, *row.gradients)]
        if any(not 0 <= i < len(values) for i in used):
            raise ValueError("no such value")
        return code

    @cached_property
    def makers(self) -> dict[int, int]:
        """The number of the row that first made each value."""
        made: dict[int, int] = {}
        given = set(self.inputs.values())
        for number, row in enumerate(self.rows):
            for value in row.results:
                if value not in given and value not in row.reads:
                    made.setdefault(value, number)
        return made

    @cached_property
    def narrow(self) -> dict[int, int]:
        """The narrowest floating-point dtype through which each value went, as a location in ORDER."""
        hit: dict[int, int] = {}
        for row in self.rows:
            before = max((hit.get(value, 0) for value in row.reads), default=0)
            for value in row.results:
                dtype = self.dtypes[value]
                own = ORDER.index(dtype) if dtype in ORDER else 0
                hit.setdefault(value, max(before, own))
        return hit

    def own(self, *, gradients: bool = False) -> list[int]:
        """The values in the order of calls, inputs first."""
        numbers = [*self.inputs.values()]
        for row in self.rows:
            numbers += row.results
        if gradients:
            numbers += [value for row in self.rows for value in row.gradients] + [*self.gradients.values()]
        return list(dict.fromkeys(numbers))

    def arrays(self, *, gradients: bool = False) -> list[Array]:
        """All values, those inside its calls last."""
        return [*(self.values[i] for i in self.own(gradients=gradients)), *self.more]

    @property
    def numbers(self) -> set[float]:
        """The numbers among arguments."""
        return {abs(number) for row in self.rows for number in row.numbers}


class FaultSearch:
    """The values of a code, each with how well the other code knows it; `widest` is the dtype of the case."""

    def __init__(self, code: Computation, known: Known, widest: str = "float32") -> None:
        self.code, self.known = code, known
        self.least = max(
            (ORDER.index(code.dtypes[i]) for i in code.inputs.values() if code.dtypes[i] in ORDER),
            default=0,
        )
        self.most = ORDER.index(widest) if widest in ORDER else 1
        self.levels: dict[int, int] = {}

    def level(self, value: int) -> int:
        """How well a value is known."""
        if value not in self.levels:
            maker = self.code.makers.get(value)
            named = "" if maker is None else self.code.rows[maker].function
            narrow = min(self.code.narrow.get(value, 0), self.most)
            hit = self.known.level(self.code.values[value], WIDE[ORDER[narrow]], padded=named in PADDING)
            self.levels[value] = NONE if hit in (PART, MOVED) and named in SELECTING else hit
        return self.levels[value]

    def is_known(self, value: int) -> bool:
        """Whether a value is known, or made of no other."""
        maker = self.code.makers.get(value)
        return maker is None or not self.code.rows[maker].reads or self.level(value) != NONE

    def sources(self, row: TrailRow) -> list[int]:
        """The rows that made what a row reads."""
        makers = self.code.makers
        hit = [makers[value] for value in row.reads if value in makers]
        lost = [value for value in row.reads if value not in makers and value not in self.given]
        return sorted({*hit, *(row.after if lost else ())})

    @cached_property
    def given(self) -> set[int]:
        """The inputs."""
        return set(self.code.inputs.values())

    def entries(self, ends: Iterable[int]) -> list[int]:
        """The rows through which what is unknown begins, of all that the wrong `ends` depend on, in their order."""
        makers, rows = self.code.makers, self.code.rows
        waiting = [makers[value] for value in ends if value in makers]
        seen: set[int] = set()
        begun: list[int] = []
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            unknown = [
                source
                for source in self.sources(rows[number])
                if source < number and not any(map(self.is_known, rows[source].results))
            ]
            waiting += unknown
            if not unknown:
                begun.append(number)
        return sorted(begun)

    def location(self, ends: Iterable[int]) -> TrailRow | None:
        """The last of the rows through which what is unknown begins, or what has moved an operand of it: one of numbers
        before one of indices, which may only be another way to the same."""
        begun = [number for number in self.entries(ends) if self.code.rows[number].line]
        if not begun:
            return None
        of_numbers = [n for n in begun if any(self.code.dtypes[i] in ORDER for i in self.code.rows[n].results)]
        return self.code.rows[self.moved((of_numbers or begun)[-1])]

    def moved(self, number: int) -> int:
        """The row that first moved or scaled the elements of an operand, where such one is before; else the row."""
        row, makers = self.code.rows[number], self.code.makers
        for level in (MOVED, SCALED):
            for value in row.reads:
                source = makers.get(value, number)
                if source < number and self.level(value) == level and self.changes(source, value):
                    return self.moved(source)
        return number

    def changes(self, number: int, value: int) -> bool:
        """Whether a row has a line and makes a value of others that are no larger, such as no part of one."""
        row = self.code.rows[number]
        larger = any(self.code.values[i].size > self.code.values[value].size for i in row.reads)
        return bool(row.line) and not larger


def amplified(narrow: Computation, wide: Computation, ends: Iterable[str]) -> TrailRow | None:
    """The row that loses most digits, from the same computation in a wider dtype; None if the two are not alike."""
    if [row.function for row in narrow.rows] != [row.function for row in wide.rows]:
        return None
    errors: dict[int, float] = {}
    needed = reached(narrow, [narrow.outputs[name] for name in ends if name in narrow.outputs])
    worst: tuple[float, TrailRow | None] = (0.0, None)
    for number, (row, other) in enumerate(zip(narrow.rows, wide.rows, strict=True)):
        before = max((errors.get(value, 0.0) for value in row.reads), default=0.0)
        own = 0.0
        for value, exact in zip(row.results, other.results, strict=False):
            own = max(own, difference(narrow.values[value], wide.values[exact]))
            errors[value] = own
        if np.isinf(own) and not np.isinf(before) and number in needed and row.line:
            return row
        gain = own / max(before, LEAST)
        if number in needed and row.line and gain > worst[0]:
            worst = gain, row
    return worst[1]


def reached(code: Computation, ends: Iterable[int]) -> set[int]:
    """The rows that some values depend on."""
    waiting = [code.makers[value] for value in ends if value in code.makers]
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            row = code.rows[number]
            waiting += [i for i in {*(code.makers[v] for v in row.reads if v in code.makers), *row.after} if i < number]
    return seen


def not_finite(search: FaultSearch, numbers: Sequence[int], asked: Collection[bool]) -> TrailRow | None:
    """The first row, of some in their order, that makes what is finite of what is not, if True is asked, or the
    reverse, if False is; what it makes is unknown to the other code."""
    code = search.code

    def is_finite(values: Iterable[int]) -> bool:
        return all(np.isfinite(code.values[i]).all() for i in values)

    for number in numbers:
        row = code.rows[number]
        results = [i for i in row.results if code.dtypes[i] in ORDER]
        own = is_finite(results)
        if (
            row.line
            and results
            and own in asked
            and own != is_finite(row.reads)
            and not any(map(search.level, results))
        ):
            return row
    return None


def cut(code: Computation, other: Computation) -> TrailRow | None:
    """The first row at which gradients end, where the other code has none that ends there."""
    theirs = Known([other.values[i] for row in other.rows if row.cut for i in row.results])
    for row in code.rows:
        if row.cut and row.line and not any(theirs.level(code.values[i], WIDE["float32"]) for i in row.results):
            return row
    return None


def of_gradients(search: FaultSearch, wrong: Iterable[int]) -> TrailRow | None:
    """The last row whose results have known gradients, and what it reads an unknown one, or one that is `wrong`."""
    code = search.code
    ends = set(wrong)
    gradients = {value: row.gradients for row in code.rows for value in row.results if row.gradients}
    gradients |= {code.inputs[name]: (value,) for name, value in code.gradients.items()}

    def is_wrong(value: int) -> bool:
        own = gradients.get(value, ())
        return not ends.isdisjoint(own) or any(search.level(gradient) == NONE for gradient in own)

    for row in reversed(code.rows):
        if not row.line or row.backward or not row.gradients or any(map(is_wrong, row.results)):
            continue
        if any(map(is_wrong, row.reads)):
            return row
    return None
