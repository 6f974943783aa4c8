"""A call of a layer's code beside that of one pass: the first value that is no part of what one pass computes.

Every value of a call should be a part of one pass's: its new tokens along one axis, all up to them along another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from parity.models.decode.ways import Call
from parity.models.ports import Array
from parity.models.trails import LONGEST, MARK, Step, Trail, is_place, joined
from parity.models.worker.calls import WHOLE
from parity.reporting.text.words import number

FORMATS: Mapping[str, Callable[[Array], Array]] = {
    "float16": lambda values: values.astype(np.float16).astype(values.dtype),
    "bfloat16": lambda values: shortened(values, 16),
}
LEVELS = 256
"""So many different values fit into 8 bits."""
ROUNDED = 0.05
"""The largest error of 8 bits, as a part of the values."""
MULTIPLE = 1e-5


@dataclass(frozen=True)
class View:
    """Where the real tokens of a row are in a call: `new` and `every` are the columns of the new tokens, and of all up
    to them; `width` the columns in all. In one pass the new ones come from token `start` on."""

    row: int
    n_rows: int
    n: int
    new: Sequence[int]
    every: Sequence[int]
    width: int
    start: int

    @classmethod
    def of(cls, call: Call, prompt: int) -> View:
        """That of a prompt's row."""
        i, row = next((i, row) for i, row in enumerate(call.rows) if row.prompt == prompt)
        n, mask = len(call.tokens[0]), call.mask[i]
        new = range(row.offset, row.offset + row.count)
        return cls(i, len(call.rows), n, new, [j for j, real in enumerate(mask) if real], len(mask), row.start)

    def sides(self, length: int, full: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """The indices along an axis of a call that may belong to those of one pass."""
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
        """A call's value and one pass's where they may be the same numbers."""
        if value.ndim != full.ndim or value.ndim > MOST_AXES:
            return
        each = [list(self.sides(a, b)) for a, b in zip(value.shape, full.shape, strict=True)]
        for sides in product(*each):
            mine, theirs = (np.ix_(*(side[i] for side in sides)) for i in range(2))
            yield value[mine], full[theirs]


MOST_AXES = 6


@dataclass(frozen=True)
class Part:
    """The code of a layer in a call, and in one pass. `others` are the caches of one pass, by what they are called."""

    call: Trail
    whole: Trail
    view: View
    others: Mapping[str, Array]

    @cached_property
    def twins(self) -> dict[str, str]:
        """One pass's values by those of the call that are parts of them."""
        found = {}
        whole = [(mark, self.whole.values[mark]) for mark in (*self.whole.inputs, *self.whole.by_mark)]
        for mark in (*self.call.inputs, *self.call.by_mark):
            value = self.call.values[mark]
            same = (there for there, full in whole if any(is_place(a, b) for a, b in self.view.pairs(value, full)))
            if (twin := next(same, None)) is not None:
                found[mark] = twin
        return found

    def first(self, boundaries: Sequence[str]) -> str | None:
        """The first value that is no part of what one pass computes, though what it follows from is; of those that lead
        to some boundaries, if the call has them."""
        ends = [self.call.outputs[name] for name in boundaries if name in self.call.outputs]
        needed = {mark for end in ends for mark in self.call.behind(end)}
        for mark in (*self.call.inputs, *self.call.by_mark):
            step = self.call.by_mark.get(mark)
            reads = step.reads if step is not None else []
            if mark not in self.twins and (mark in needed or not ends) and all(one in self.twins for one in reads):
                return mark
        return None

    def told(self, boundaries: Sequence[str]) -> tuple[str, bool] | None:
        """In words, with whether it is what the cache holds."""
        mark = self.first(boundaries)
        if mark is None:
            return None
        value, step = self.call.values[mark], self.call.by_mark.get(mark)
        if step is None:
            known = [self.whole.values[one] for one in (*self.whole.by_mark, *self.whole.inputs)]
            said = self._of_cache(value, known)
            return (f"what it gets as `{self.call.names[mark]}` {said}", True) if said else None
        text = f"`{self._text(step)}`"
        if step.labelled:
            text = f"{step.name} = {text}"
        said = self._joint(value) or self._beside(step) or self._shorter(value)
        return f"{text} {said}" if said else f"{text} is no part of what one pass computes", bool(self._joint(value))

    # What it is instead

    def _text(self, step: Step) -> str:
        """A step's expression with the names of values."""
        text = joined(step, lambda mark: self._short(self.call, mark))
        return text if len(text) <= LONGEST else MARK.sub(lambda found: self.call.names[found[0]], step.text)

    def _short(self, trail: Trail, mark: str) -> tuple[str, int]:
        step = trail.by_mark.get(mark)
        if step is None or step.labelled:
            return trail.names[mark], WHOLE
        return joined(step, lambda one: self._short(trail, one)), step.level

    def _beside(self, step: Step) -> str:
        """The same step of one pass, if that is another expression."""
        reads = [self.twins[mark] for mark in step.reads]
        for other in self.whole.steps:
            if other.kind == step.kind and (other.reads == reads or other.name == step.name):
                text = joined(other, lambda mark: self._short(self.whole, mark))
                return f"where one pass has `{text}`" if len(text) <= LONGEST and text != self._text(step) else ""
        return ""

    def _joint(self, value: Array) -> str:
        """That tokens of the cache are joined with new ones of something else."""
        n, past = self.view.n, self.view.width - self.view.n
        axes = [axis for axis, length in enumerate(value.shape) if length == past + n] if past else []
        for axis in axes:
            old, new = np.split(value, [past], axis)
            known = [self.whole.values[mark] for mark in (*self.whole.by_mark, *self.whole.inputs)]
            fresh = [full for full in known if any(is_place(a, b) for a, b in self.view.pairs(new, full))]
            if fresh:
                said = self._of_cache(old, fresh) or self._of_cache(old, known)
                if said:
                    return f"joins them with a cache that {said}"
        return self._of_cache(value, [])

    def _of_cache(self, value: Array, known: Sequence[Array]) -> str:
        """What a cached tensor is, beside one pass's values that it may be meant to be part of."""
        pairs = [pair for full in known for pair in self.view.pairs(value, full)]
        for mine, full in pairs:
            if said := relation(mine, full):
                return said
        for name, other in self.others.items():
            if any(is_place(a, b) for a, b in self.view.pairs(value, other)):
                return f"is {name}"
        return ""

    def _shorter(self, value: Array) -> str:
        """That some of the tokens are left out."""
        total = len(self.view.every)
        for mark in self.whole.by_mark:
            full = self.whole.values[mark]
            if value.ndim != full.ndim:
                continue
            for axis, (m, n) in enumerate(zip(value.shape, full.shape, strict=True)):
                if m < total <= n:
                    last, first = (np.take(full, np.arange(a, a + m), axis) for a in (total - m, 0))
                    for part, word in ((last, "last"), (first, "first")):
                        if any(is_place(a, b) for a, b in self.view.pairs(value, part)):
                            return f"has the {word} {m} of {total} tokens only"
        return ""


def relation(mine: Array, full: Array) -> str:
    """What a part of one pass's values has become."""
    if mine.shape != full.shape or mine.dtype.kind != "f" or not mine.size or not np.any(full):
        return ""
    if is_place(mine, full):
        return "is right"
    for name, held in FORMATS.items():
        if is_place(mine, held(full)):
            return f"is rounded to {name}"
    error = float(np.sqrt(np.mean((mine - full) ** 2)) / np.sqrt(np.mean(full**2)))
    if error < ROUNDED and len(np.unique(mine)) <= min(LEVELS, mine.size // 2):
        return "is rounded to 8 bits"
    best = float(np.sum(mine * full) / np.sum(full * full))
    if best and np.linalg.norm(mine - best * full) <= MULTIPLE * np.linalg.norm(mine):
        return f"is {number(best)} times what it should be"
    return rearranged(mine, full)


def rearranged(mine: Array, full: Array) -> str:
    """That tokens have another order, are empty, or are turned."""
    for axis in range(mine.ndim):
        a, b = np.moveaxis(mine, axis, 0), np.moveaxis(full, axis, 0)
        if len(a) < 2:
            continue
        order = [next((j for j in range(len(b)) if is_place(one, b[j])), None) for one in a]
        if None not in order and len(set(order)) == len(order):
            return f"has the tokens in the order {', '.join(map(str, order))}"
        empty = [i for i, one in enumerate(a) if not one.any()]
        if empty and all(order[i] == i for i in range(len(a)) if i not in empty):
            return f"is 0 for tokens {', '.join(map(str, empty))}"
    if mine.ndim and mine.shape[-1] > 1:
        sizes = [np.sqrt(np.sum(values**2, -1)) for values in (mine, full)]
        if is_place(*sizes):
            return "is turned: its vectors have the right length and another direction, as with other rotary positions"
    return ""


def shortened(values: Array, bits: int) -> Array:
    """float32 without its last bits, rounded to nearest even."""
    whole = values.astype(np.float32).view(np.uint32)
    half = (whole >> bits & 1) + np.uint32((1 << (bits - 1)) - 1)
    return ((whole + half) >> bits << bits).view(np.float32).astype(values.dtype)
