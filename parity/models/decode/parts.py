"""Compares a call of a layer's code with one pass: the first value of the call that one pass does not have.

Every value of a call should be a part of one pass's: its new tokens along one axis, all tokens so far along another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from parity.models.call_traces import EQUAL_VALUES, Trail, same, same_in_order
from parity.models.decode.ways import DecodeCall
from parity.models.ports import Array
from parity.program.recorded import RecordedCall, written
from parity.reporting.text.words import number

FORMATS: Mapping[str, Callable[[Array], Array]] = {
    "float16": lambda values: values.astype(np.float16).astype(values.dtype),
    "bfloat16": lambda values: shortened(values, 16),
}
LEVELS = 127
"""The largest multiple of a step in 8 bits."""
ROUNDED = 0.05
"""The largest relative error of values in 8 bits."""
MULTIPLE = 1e-5
WHOLE_WITHIN = 1e-4


@dataclass(frozen=True)
class View:
    """The columns of a row's real tokens in a call: `new` are those of new tokens, `every` those of all tokens so far.

    `width` is the number of columns, `start` the first new token's index in one pass.
    """

    row: int
    n_rows: int
    n: int
    new: Sequence[int]
    every: Sequence[int]
    width: int
    start: int

    @classmethod
    def of(cls, call: DecodeCall, prompt: int) -> View:
        """The view of a prompt's row."""
        i, row = next((i, row) for i, row in enumerate(call.rows) if row.prompt == prompt)
        n, mask = len(call.tokens[0]), call.mask[i]
        new = range(row.offset, row.offset + row.count)
        return cls(i, len(call.rows), n, new, [j for j, real in enumerate(mask) if real], len(mask), row.start)

    @property
    def is_clear(self) -> bool:
        """Whether the length of an axis determines what it runs over."""
        lengths = [self.n, self.width, self.width - self.n, self.n_rows]
        return self.width == self.n or len({n for n in lengths if n > 1}) == len([n for n in lengths if n > 1]) > 1

    def index_pairs(self, length: int, full: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """The indices along an axis of a call, with those of one pass that they may correspond to."""
        stop, past = self.start + len(self.new), [j for j in self.every if j < self.width - self.n]
        if length == full:
            yield range(length), range(full)
        if length == self.n and full >= stop:
            yield self.new, range(self.start, stop)
        if length == self.width and full >= len(self.every):
            yield self.every, range(len(self.every))
        if length == self.width - self.n and full >= len(past):
            yield past, range(len(past))
        if length == self.n_rows and full == 1:
            yield [self.row], [0]

    def pairs(self, value: Array, full: Array) -> Iterator[tuple[Array, Array]]:
        """The parts of a call's value and of one pass's that may be equal."""
        if value.ndim != full.ndim or value.ndim > MOST_AXES:
            return
        each = [list(self.index_pairs(a, b)) for a, b in zip(value.shape, full.shape, strict=True)]
        for per_axis in product(*each):
            mine, theirs = (np.ix_(*(pair[i] for pair in per_axis)) for i in range(2))
            yield value[mine], full[theirs]


NO_PART = "matches no value of one pass"
MOST_AXES = 6
SHORT = 40
"""A value is shown as an expression of at most so many characters, else by its name."""
MOVES = frozenset(("transpose", "reshape"))


@dataclass(frozen=True)
class PassComparison:
    """The code of a layer in a call, and in one pass (`whole`). `others` are one pass's cached tensors, by name."""

    call: Trail
    whole: Trail
    view: View
    others: Mapping[str, Array]
    near: float = EQUAL_VALUES

    @cached_property
    def known(self) -> list[Array]:
        """One pass's values, the last ones first."""
        return [self.whole.values[mark] for mark in (*reversed(self.whole.by_mark), *self.whole.inputs)]

    @cached_property
    def twins(self) -> dict[str, str]:
        """The call's values that are parts of one pass's, with the latter."""
        twins = {}
        whole = [(mark, self.whole.values[mark]) for mark in (*self.whole.inputs, *self.whole.by_mark)]
        for mark in (*self.call.inputs, *self.call.by_mark):
            twin = next((there for there, full in whole if self._is_part(self.call.values[mark], full)), None)
            if twin is not None:
                twins[mark] = twin
        return twins

    def _is_part(self, value: Array, full: Array) -> bool:
        return any(same_in_order(a, b, self.near) for a, b in self.view.pairs(value, full))

    def first(self, boundaries: Sequence[str]) -> str | None:
        """The first value that one pass does not have, although it has all its operands.

        If the call has some of the `boundaries`, only values that these depend on count.
        """
        ends = [self.call.outputs[name] for name in boundaries if name in self.call.outputs]
        needed = {mark for end in ends for mark in self.call.behind(end)}
        for mark in (*self.call.inputs, *self.call.by_mark):
            step = self.call.by_mark.get(mark)
            reads = step.reads if step is not None else []
            if mark not in self.twins and (mark in needed or not ends) and all(one in self.twins for one in reads):
                return mark
        return None

    @np.errstate(all="ignore")
    def difference(self, boundaries: Sequence[str]) -> tuple[str, bool] | None:
        """The first difference as a text, and whether it is in the cache."""
        mark = self.first(boundaries)
        if mark is None:
            return None
        step = self.call.by_mark.get(mark)
        if step is None:
            explanation = self._of_cache(self.call.values[mark], self.known) or self._shorter(self.call.values[mark])
            return (f"what it gets as `{self.call.names[mark]}` {explanation}", True) if explanation else None
        while step.kind in MOVES and len(step.reads) == 1 and (before := self.call.by_mark.get(step.reads[0])):
            step = before
        value, text = self.call.values[step.mark], f"`{self._text(step)}`"
        text = f"{step.name} = {text}" if step.labelled else text
        explanation = self._beside(step) or self._shorter(value)
        if explanation:
            return f"{text} {explanation}", False
        explanation = self._joint(value) or self._of_cache(value, self.known)
        return f"{text} {explanation or NO_PART}", bool(explanation)

    # Explanations

    def _text(self, step: RecordedCall) -> str:
        """A step's expression with the names of values."""
        return written(step, lambda mark: self.call.worded(mark, SHORT))[0]

    def _beside(self, step: RecordedCall) -> str:
        """The corresponding step of one pass, if its expression differs."""
        reads = [self.twins.get(mark) for mark in step.reads]
        for other in self.whole.steps:
            if other.kind == step.kind and (other.reads == reads or (step.labelled and other.name == step.name)):
                text = written(other, lambda mark: self.whole.worded(mark, SHORT))[0]
                return f"where one pass has `{text}`" if text != self._text(step) else ""
        return ""

    def _joint(self, value: Array) -> str:
        """A text if cached tokens are joined with new tokens of another value."""
        past = self.view.width - self.view.n
        for axis in [axis for axis, length in enumerate(value.shape) if past and length == self.view.width]:
            old, new = np.split(value, [past], axis)
            fresh = [full for full in self.known if full.ndim == new.ndim and self._is_part(new, full)]
            if fresh and not any(self._is_part(old, full) for full in fresh):
                explanation = self._of_cache(old, fresh)
                if explanation:
                    return f"joins new tokens with a cache that {explanation}{self._meant(fresh)}"
        return ""

    def _meant(self, fresh: Sequence[Array]) -> str:
        """The name of what a cache should be that is joined with new tokens of these values."""
        names = (name for name, other in self.others.items() for full in fresh if same(other, full, self.near))
        name = next(names, "")
        return f", not {name}" if name else ""

    def _of_cache(self, value: Array, known: Sequence[Array]) -> str:
        """What a cached tensor is, compared with one pass's values that it should be a part of."""
        pairs = [pair for full in known for pair in self.view.pairs(value, full)]
        explanation = next(filter(None, (relation(*pair) for pair in pairs)), "")
        names = (f"is {name}" for name, other in self.others.items() if self._is_part(value, other))
        return explanation or next(names, "")

    def _shorter(self, value: Array) -> str:
        """A text if some of the tokens are missing."""
        for total, mark in product((len(self.view.every), self.view.start), self.whole.by_mark):
            full = self.whole.values[mark]
            if value.ndim != full.ndim or not value.ndim or len(value) not in (len(full), self.view.n_rows):
                continue
            mine = value if len(value) == len(full) else value[self.view.row : self.view.row + 1]
            for axis, (m, n) in enumerate(zip(mine.shape, full.shape, strict=True)):
                if (
                    0 < m < total <= n
                    and mine.shape[:axis] + mine.shape[axis + 1 :] == full.shape[:axis] + full.shape[axis + 1 :]
                ):
                    for word, at in (("last", total - m), ("first", 0)):
                        if same_in_order(mine, np.take(full, np.arange(at, at + m), axis), self.near):
                            return f"has the {word} {m} of {total} tokens only"
        return ""


def relation(mine: Array, full: Array) -> str:
    """How a value differs from the part of one pass's that it should equal; "" if that is not known."""
    if mine.shape != full.shape or mine.dtype.kind != "f" or not mine.size or not np.any(full):
        return ""
    if same_in_order(mine, full):
        return ""
    for name, held in FORMATS.items():
        if same_in_order(mine, held(full)):
            return f"is rounded to {name}"
    error = float(np.sqrt(np.mean((mine - full) ** 2)) / np.sqrt(np.mean(full**2)))
    if error < ROUNDED and is_grid(mine):
        return "is rounded to 8 bits"
    best = float(np.sum(mine * full) / np.sum(full * full))
    if best and np.linalg.norm(mine - best * full) <= MULTIPLE * np.linalg.norm(mine):
        return f"is {number(best)} times what it should be"
    return rearranged(mine, full)


def is_grid(values: Array) -> bool:
    """Whether all values are multiples of a step, at most as many as 8 bits have."""
    sizes = np.unique(np.abs(values))
    step = float(np.min(np.diff(sizes), initial=np.inf, where=np.diff(sizes) > EQUAL_VALUES * sizes[-1]))
    if not 0 < step < np.inf:
        return False
    for part in (1, 2, 3):
        multiples = values * part / step
        if np.abs(multiples).max() <= LEVELS + 1 and np.abs(multiples - np.rint(multiples)).max() <= WHOLE_WITHIN:
            return True
    return False


def rearranged(mine: Array, full: Array) -> str:
    """A text if tokens have another order, are 0, or are rotated."""
    for axis in range(mine.ndim):
        a, b = np.moveaxis(mine, axis, 0), np.moveaxis(full, axis, 0)
        if len(a) < 2:
            continue
        order = [next((j for j in range(len(b)) if same_in_order(one, b[j])), None) for one in a]
        if None not in order and len(set(order)) == len(order):
            return f"has the tokens in the order {', '.join(map(str, order))}"
        empty = [i for i, one in enumerate(a) if not one.any()]
        if empty and all(order[i] == i for i in range(len(a)) if i not in empty):
            return f"is 0 for tokens {', '.join(map(str, empty))}"
    for axis in range(max(0, mine.ndim - 2), mine.ndim):
        sizes = [np.sqrt(np.sum(values**2, axis)) for values in (mine, full)]
        if mine.shape[axis] > 1 and same_in_order(*sizes):
            return "is rotated: its vectors have the right length and another direction, as with other rotary positions"
    return ""


def shortened(values: Array, bits: int) -> Array:
    """float32 without its last bits, rounded to nearest even."""
    whole = values.astype(np.float32).view(np.uint32)
    half = (whole >> bits & 1) + np.uint32((1 << (bits - 1)) - 1)
    return ((whole + half) >> bits << bits).view(np.float32).astype(values.dtype)
