"""The call traces of a layer's code in two ports: where they diverge, as an expression of each.

Both ports are called with the same tensors, in a wide dtype, and the value of every call is recorded. Equal values
correspond to each other. Values of one port are then put into the other's run: the first one that makes its outputs
right is where the code diverges. The report shows how each port computes it from values that both have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from parity.models.orders import MOST_AXES, fitting, nearest, permuted
from parity.models.ports import Array
from parity.models.worker.tape import regrouped
from parity.program.recorded import WHOLE, RecordedCall, Text, written
from parity.reporting.text.words import few

AGAIN = re.compile(r"_\d+$")
"""The suffix of a name that the source uses for several values."""
EQUAL_VALUES = 1e-6
"""The largest difference of equal values, relative to each element's size plus that of small elements."""
ROUGHLY = 1e-4
"""The same where the calls do not run in a wider dtype."""
SMALL = 0.2
"""The quantile of the elements' sizes that counts as small, so that a mask's -10000 does not hide the others."""
NOTHING = 1e-15
"""Differences up to this, relative to the largest element, are ignored."""
REPAIRED = 1e-3
"""A replaced value repairs an output if no more than this part of the difference, and of the output, remains."""
MOST_TRIED = 160
SHORT = 48
"""A value without a name is shown as an expression of at most so many characters."""
LONGEST, FAIR = 200, 120
"""Expressions longer than `LONGEST` are not shown; for those longer than `FAIR` a shorter form is searched first."""


@dataclass(frozen=True)
class Trail:
    """The calls of a layer's code, in order.

    `inputs` maps marks to locations (`in:0`, `child:<tensor>`, `param:weight`, `constant:`), `outputs` boundaries to
    marks; `backward` are the calls that change only gradients, and the names of children without gradients.
    """

    steps: Sequence[RecordedCall]
    values: Mapping[str, Array]
    names: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    backward: Sequence[RecordedCall | str] = ()

    @classmethod
    def of(cls, reply: Mapping[str, Any], values: Mapping[str, Array]) -> Trail:
        """The trail of a worker's reply.

        A call that returns its operand, such as dropout in eval mode, is replaced by it in later calls and in outputs.
        """
        source: dict[str, str] = {}
        steps = []
        for step in map(RecordedCall.of, reply["calls"]):
            step = step.reading(source)
            given = (mark for mark in step.reads if unchanged(values[mark], values[step.mark]))
            if (mark := next(given, None)) is not None:
                source[step.mark] = mark
            steps.append(step)
        outputs = {key: source.get(mark, mark) for key, mark in reply["outputs"].items()}
        backward = [
            row["layer"] if "layer" in row else RecordedCall.of(row).reading(source) for row in reply["backward"]
        ]
        return cls(steps, values, reply["names"], reply["inputs"], outputs, backward)

    @cached_property
    def by_mark(self) -> dict[str, RecordedCall]:
        """The steps by the mark of their result."""
        return {step.mark: step for step in self.steps}

    def behind(self, mark: str) -> list[str]:
        """A value and all values that it depends on, in the order of the calls, inputs first."""
        seen, waiting = set[str](), [mark]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += self.by_mark[one].reads if one in self.by_mark else ()
        return [mark for mark in (*self.inputs, *self.by_mark) if mark in seen]

    def named(self, mark: str) -> Text:
        """A value's name."""
        return self.names[mark], WHOLE

    def worded(self, mark: str, most: int = SHORT) -> Text:
        """A value's name in the source, else an expression of at most `most` characters, else a generated name."""
        step = self.by_mark.get(mark)
        if step is None or step.labelled:
            return self.named(mark)
        text = written(step, lambda one: self.worded(one, most))
        return text if len(text[0]) <= most else self.named(mark)

    def expressed(self, mark: str, known: Mapping[str, str]) -> Text:
        """A value as an expression of inputs and of `known` values, which have names."""
        step = self.by_mark.get(mark)
        if mark in known or step is None:
            return known.get(mark, self.names[mark]), WHOLE
        return written(step, lambda one: self.expressed(one, known))

    def cuts(self) -> list[str]:
        """The calls that change only gradients, and those and the children that have none."""
        return [f"{one} without gradients" if isinstance(one, str) else self._cut(one) for one in self.backward]

    def _cut(self, call: RecordedCall) -> str:
        """A call of `backward` in words."""
        return f"{written(call, self.worded)[0]}{' without gradients' if call.cut else ''}"

    @property
    def text(self) -> str:
        """All calls, a line each."""
        return "".join(f"{step.name} = {written(step, self.named)[0]}\n" for step in self.steps)


Rerun = Callable[[Mapping[str, Array]], "Trail | None"]
"""From replacement values by mark to the trail of a run with them; None if that fails."""


@dataclass
class TrailComparison:
    """The baseline's trail (`ours`) and another port's; `keys` maps their boundaries to ours."""

    ours: Trail
    theirs: Trail
    keys: Mapping[str, str]
    rerun: Rerun
    base: str
    layer: str = ""
    near: float = EQUAL_VALUES
    tried: int = 0
    _twins: dict[str, str] = field(default_factory=dict)
    _firsts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ours = [(mark, self.ours.values[mark]) for mark in (*self.ours.inputs, *self.ours.by_mark)]
        for mark in (*self.theirs.inputs, *self.theirs.by_mark):
            value = self.theirs.values[mark]
            twins = [there for there, other in ours if same(value, other, self.near)]
            alike = [there for there in twins if self.ours.values[there].shape == value.shape]
            if twins:
                self._twins[mark] = [*alike, *twins][0]
        for mark, value in ours:
            self._firsts[mark] = next(there for there, other in ours if other is value or same(value, other, self.near))

    @cached_property
    def known(self) -> set[str]:
        """Our values that occur in their trail, too."""
        firsts = {self._firsts[twin] for twin in self._twins.values()}
        return {mark for mark, first in self._firsts.items() if first in firsts}

    @property
    def wrong_outputs(self) -> list[str]:
        """Their outputs that differ from ours; if any, only those of layers that both call equally often."""
        wrong = [
            key for key, mark in self.theirs.outputs.items()
            if (ours := self.keys.get(key, "")) in self.ours.outputs
            and not same_in_order(self.theirs.values[mark], self.ours.values[self.ours.outputs[ours]], self.near)
        ]  # fmt: skip
        calls = [Counter(map(layer_of, trail.outputs)) for trail in (self.ours, self.theirs)]
        as_often = [key for key in wrong if calls[0][layer_of(self.keys[key])] == calls[1][layer_of(key)]]
        return as_often or wrong

    @np.errstate(all="ignore")
    def divergences(self) -> list[str]:
        """A text for each location where the code diverges; empty if none is found."""
        texts: dict[str, None] = {}
        for key in self.wrong_outputs:
            self.tried = 0
            texts |= dict.fromkeys(self._explained(key))
        return self._joined(list(texts))

    def _explained(self, key: str) -> list[str]:
        """Where the code that computes one output diverges."""
        root, goal = self.theirs.outputs[key], self.ours.outputs[self.keys[key]]
        whole = self._texts([(root, goal)], key)
        if whole and self._is_first(root) and len(whole[0]) <= FAIR:
            return whole
        single = next(self._single(key), None)
        if single is not None and len(single) <= FAIR:
            return [single]
        every = [self._everywhere(key), self._texts(self.pairs(root, goal), key), whole]
        known = [texts for texts in ([single] if single else [], *every) if texts]
        return min(known, key=lambda texts: sum(map(len, texts)), default=[])

    def _is_first(self, mark: str) -> bool:
        """Whether all direct operands of a value are known."""
        step = self.theirs.by_mark.get(mark)
        return mark in self._twins or step is None or all(one in self._twins for one in step.reads)

    def _joined(self, texts: Sequence[str]) -> list[str]:
        """The texts; those that differ only in an input become one, which names the other inputs."""
        inputs = "|".join(sorted({re.escape(self.ours.names[mark]) for mark in self.ours.inputs}, key=len)[::-1])
        word = re.compile(rf"\b(?:{inputs})\b" if inputs else r"$^")
        groups: dict[str, list[str]] = {}
        for text in texts:
            one = len(set(word.findall(text))) == 1
            groups.setdefault(word.sub("_", re.sub(r"^\w+ = ", "", text)) if one else text, []).append(text)
        joined_texts = []
        for first, *rest in groups.values():
            names = dict.fromkeys(name for text in rest for name in word.findall(text))
            joined_texts.append(f"{first}; the same for {few(list(names))}" if names else first)
        return joined_texts

    # Replaced values

    def _single(self, key: str) -> Iterator[str]:
        """Divergences at a single value: one of ours in place of one of theirs makes the output right."""
        root, goal = self.theirs.outputs[key], self.ours.outputs[self.keys[key]]
        behind = self.ours.behind(goal)
        for exact, mark in product((True, False), self._replaceable(root)):
            value = self.theirs.values[mark]
            for other in behind:
                shape = self.ours.values[other].shape
                if (shape == value.shape) != exact or not permuted(shape, value.shape):
                    continue
                if mark == root or (mark in self._twins and self._in_order(mark, other)):
                    continue
                repaired = self._repaired(key, {mark: other})
                if repaired is None:
                    continue
                if not self._is_more(repaired, mark, root):
                    yield from self._texts([(self._wrong_after(key, mark, other), other)])

    def _wrong_after(self, key: str, mark: str, other: str) -> str:
        """The value itself, or if that is right, a wrong result of it that `other` repairs, too: that step is the
        cause, even if later steps do not depend on it."""
        if mark not in self._twins:
            return mark
        shape, root = self.ours.values[other].shape, self.theirs.outputs[key]
        made = (step.mark for step in self.theirs.steps if mark in step.reads and step.mark not in self._twins)
        fits = (one for one in made if one != root and permuted(shape, self.theirs.values[one].shape))
        return next((one for one in fits if self._repaired(key, {one: other}) is not None), mark)

    def _is_more(self, repaired: Trail, mark: str, root: str) -> bool:
        """Whether a later step has become an identity in the repaired run: then it belongs to the divergence."""
        after = [step for step in self.theirs.steps if mark in self.theirs.behind(step.mark) and step.mark != mark]
        needed = set(self.theirs.behind(root))
        return any(
            idle(step, repaired) and not idle(step, self.theirs)
            for step in after if step.mark in needed and step.mark in repaired.by_mark
        )  # fmt: skip

    def _replaceable(self, root: str) -> list[str]:
        """The values that an output depends on and that can be replaced, in the order of calls; those that all
        differing values pass through come first."""
        behind = self.theirs.behind(root)
        other = [mark for mark in behind if mark not in self._twins]
        read = {one for mark in other if mark in self.theirs.by_mark for one in self.theirs.by_mark[mark].reads}
        usable = [mark for mark in behind if (mark in read or mark not in self._twins) and self._is_open(mark)]
        return sorted(usable, key=lambda mark: not self._leads(root, mark))

    def _is_open(self, mark: str) -> bool:
        """Whether a value can be replaced."""
        location = self.theirs.inputs.get(mark, "in:")
        return location.partition(":")[0] in ("in", "child")

    def _leads(self, root: str, through: str) -> bool:
        """Whether all differing values that an output depends on pass through one value."""
        waiting, seen = [root], set[str]()
        while waiting:
            mark = waiting.pop()
            if mark == through or mark in seen or mark in self._twins:
                continue
            seen.add(mark)
            reads = self.theirs.by_mark[mark].reads if mark in self.theirs.by_mark else []
            others = [one for one in reads if one not in self._twins]
            if not others and through not in reads:
                return False
            waiting += others
        return True

    def _repaired(self, key: str, replacements: Mapping[str, str]) -> Trail | None:
        """The trail with some of their values replaced by ours, if that makes an output right."""
        if self.tried >= MOST_TRIED:
            return None
        self.tried += 1
        given = {
            mark: fitted(self.ours.values[other], self.theirs.values[mark]) for mark, other in replacements.items()
        }
        if any(array is None for array in given.values()):
            return None
        repaired = self.rerun({mark: array for mark, array in given.items() if array is not None})
        goal, before = self.ours.values[self.ours.outputs[self.keys[key]]], self.theirs.values[self.theirs.outputs[key]]
        if repaired is None or key not in repaired.outputs:
            return None
        after = repaired.values[repaired.outputs[key]]
        if after.size != goal.size:
            return None
        least = REPAIRED * min(apart(before, goal), apart(np.zeros_like(goal), goal))
        return repaired if same_in_order(after, goal, self.near) or apart(after, goal) <= least else None

    def _everywhere(self, key: str) -> list[str]:
        """Divergences at several values: the first differing ones, all replaced by ours with the same operands."""
        root, goal = self.theirs.outputs[key], self.ours.outputs[self.keys[key]]
        theirs = self._first(self.theirs, self.theirs.behind(root), self._twins)
        ours = self._first(self.ours, self.ours.behind(goal), self.known)
        pairs: dict[str, str] = {}
        for mark in theirs:
            reads = {self._firsts[self._twins[one]] for one in self.theirs.by_mark[mark].reads}
            fits = (
                other for other in ours
                if other not in pairs.values()
                and reads == {self._firsts[one] for one in self.ours.by_mark[other].reads}
                and permuted(self.ours.values[other].shape, self.theirs.values[mark].shape)
            )  # fmt: skip
            other = next(fits, None)
            if other is not None:
                pairs[mark] = other
        return self._texts(pairs.items()) if pairs and self._repaired(key, pairs) is not None else []

    @staticmethod
    def _first(trail: Trail, behind: Sequence[str], shared: Container[str]) -> list[str]:
        """The steps whose operands the other trail has, but not their results."""
        steps = [trail.by_mark[mark] for mark in behind if mark in trail.by_mark and mark not in shared]
        return [step.mark for step in steps if all(one in shared for one in step.reads)]

    def pairs(self, mark: str, other: str) -> list[tuple[str, str]]:
        """The pairs of values at which two values diverge, as far as the same functions lead to both."""
        one, two = self.theirs.by_mark.get(mark), self.ours.by_mark.get(other)
        if self._is_same(mark, other):
            return []
        if one is None or two is None or one.kind != two.kind or len(one.reads) != len(two.reads):
            return [(mark, other)]
        inner = [pair for both in zip(one.reads, two.reads, strict=True) for pair in self.pairs(*both)]
        given = zip(one.reads, two.reads, strict=True)
        named = any(pair in inner for pair in given if pair[0] in self.theirs.inputs and pair[1] in self.ours.inputs)
        return list(dict.fromkeys(inner)) if inner and not named else [(mark, other)]

    def _is_same(self, mark: str, other: str) -> bool:
        theirs, ours = squeezed(self.theirs.values[mark]), squeezed(self.ours.values[other])
        return same_in_order(theirs, ours, self.near) if theirs.shape == ours.shape else same(theirs, ours, self.near)

    # Words

    def _texts(self, pairs: Iterable[tuple[str, str]], key: str = "") -> list[str]:
        """The texts for pairs of values (`key`: those that this boundary depends on); empty if an expression is too
        long."""
        texts = [self._both(*pair, key) for pair in pairs]
        return [] if None in texts else list(dict.fromkeys(text for text in texts if text is not None))

    def _both(self, mark: str, other: str, key: str = "") -> str | None:
        """`scores = q @ k, where torch has q @ k / 2.83`; None if that is too long, or both are the same."""
        known = mark in self._twins and self._in_order(mark, self._twins[mark]) and other in self.known
        if known and mark != self.theirs.outputs.get(key):
            mark, other = self._wired(mark, other)
        theirs, ours = self._theirs(mark, 0)[0], self._ours(other, 0)[0]
        right = self.ours.by_mark.get(other)
        if other in self.known and right is not None and re.search(rf"\b{right.name}\b(?!\()", theirs):
            ours = right.name
        if max(len(theirs), len(ours)) > LONGEST:
            theirs, ours = self._theirs(mark, 0, brief=True)[0], self._ours(other, 0, brief=True)[0]
        if theirs == ours:  # but for where axes of length 1 are
            theirs = self._theirs(mark, 0, exact=True)[0]
        if max(len(theirs), len(ours)) > LONGEST or theirs == ours:
            return None
        layer, _, role, _ = key.split("|") if mark == self.theirs.outputs.get(key) else ("", "", "", "")
        if role == "in":
            return f"{layer.removeprefix(f'{self.layer}.')} gets {theirs}, where {self.base} gives it {ours}"
        return f"{self._label(mark, other)}{theirs}, where {self.base} has {ours}"

    def _label(self, mark: str, other: str) -> str:
        """The name of a value in their source, else in ours."""
        named = [self.theirs.by_mark.get(mark)] if mark not in self._twins else []
        named += [self.ours.by_mark.get(other)] if other not in self.known else []
        return next((f"{step.name} = " for step in named if step is not None and step.labelled), "")

    def _wired(self, mark: str, other: str) -> tuple[str, str]:
        """The step that reads a value, and ours that reads the right one: a wrong operand is shown within its step."""
        users = [step for step in self.theirs.steps if mark in step.reads and step.mark not in self._twins]
        rights = [step for step in self.ours.steps if other in step.reads and step.mark not in self.known]
        same_kind = [(a.mark, b.mark) for a in users for b in rights if a.kind == b.kind]
        return same_kind[0] if len(same_kind) == 1 else (mark, other)

    def _theirs(self, mark: str, depth: int = 1, *, brief: bool = False, exact: bool = False) -> Text:
        """Their expression of a value and its precedence, in terms of values that both have (`exact`: in one shape)
        and, if it is to be `brief`, of values that the source names."""
        twin, step = self._twins.get(mark), self.theirs.by_mark.get(mark)
        is_shared = twin is not None and (not exact or self.theirs.values[mark].shape == self.ours.values[twin].shape)
        if twin is not None and (step is None or (is_shared and self._in_order(mark, twin))):
            return self._named(self.ours, twin)
        if step is None or (brief and depth and step.labelled):
            return self.theirs.names[mark], WHOLE
        return written(step, lambda one: self._theirs(one, depth + 1, brief=brief, exact=exact))

    def _ours(self, mark: str, depth: int = 1, *, brief: bool = False) -> Text:
        """Our expression of a value."""
        step = self.ours.by_mark.get(mark)
        if step is None or (brief and depth and step.labelled):
            return self.ours.names[mark], WHOLE
        if mark in self.known and depth:
            return self._named(self.ours, mark)
        return written(step, lambda one: self._ours(one, depth + 1, brief=brief))

    def _in_order(self, mark: str, twin: str) -> bool:
        """Whether two equal values have one shape but for lengths of 1, and their elements in one order."""
        theirs, ours = self.theirs.values[mark], self.ours.values[twin]
        return squeezed(theirs).shape == squeezed(ours).shape and same_in_order(theirs, ours, self.near)

    def _named(self, trail: Trail, mark: str) -> Text:
        """A value that both have: its name, or a short expression."""
        step = trail.by_mark.get(mark)
        if step is None or (step.labelled and not AGAIN.search(step.name)):
            return trail.names[mark], WHOLE
        text = written(step, lambda one: self._named(trail, one))
        return text if len(text[0]) <= SHORT else trail.named(mark)


def unchanged(one: Array, other: Array) -> bool:
    """Whether a step's result is its operand, in shape and dtype, too."""
    return one.shape == other.shape and one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)


def layer_of(boundary: str) -> str:
    """The layer and role of a boundary."""
    layer, _, role, _ = boundary.split("|")
    return f"{layer}|{role}"


def idle(step: RecordedCall, trail: Trail) -> bool:
    """Whether a step returns one of its operands."""
    value = trail.values[step.mark]
    return any(
        trail.values[mark].shape == value.shape and same_in_order(value, trail.values[mark]) for mark in step.reads
    )


def same(one: Array, other: Array, near: float = EQUAL_VALUES) -> bool:
    """Whether two values are equal, up to the order of their axes."""
    if one.size != other.size:
        return False
    if regrouped(one.shape, other.shape) and same_in_order(one, other, near):
        return True
    if not 1 < other.ndim <= MOST_AXES or not permuted(one.shape, other.shape):
        return False
    orders = fitting(squeezed(other).shape, squeezed(one).shape)
    return any(same_in_order(squeezed(one), squeezed(other).transpose(order), near) for order in orders)


def squeezed(array: Array) -> Array:
    """Without axes of length 1."""
    return array.reshape(tuple(n for n in array.shape if n != 1))


def same_in_order(one: Array, other: Array, near: float = EQUAL_VALUES) -> bool:
    """Whether two values have the same numbers in the same order."""
    if one.size != other.size:
        return False
    a, b = one.ravel(), other.ravel()
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return np.array_equal(a, b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    finite = np.isfinite(a)
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    sizes = np.abs(b[b != 0])
    small = float(np.quantile(sizes, SMALL)) if sizes.size else 0.0
    least = NOTHING * float(sizes.max(initial=0.0))
    return bool(np.all(np.abs(a - b) <= near * (np.abs(b) + small) + least))


def apart(one: Array, other: Array) -> float:
    """The root mean square of a difference; infinite where only one of them is finite."""
    a, b = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.sqrt(np.mean((a - b) ** 2)), nan=np.inf)) if a.size == b.size else float("inf")


def fitted(value: Array, like: Array) -> Array | None:
    """A value in the shape of another one, with its axes in the order that fits best; None if no order fits, or if
    fractions would become integers."""
    if value.dtype.kind == "f" and like.dtype.kind != "f" and not np.array_equal(value, np.rint(value)):
        return None
    if regrouped(value.shape, like.shape):
        return value.reshape(like.shape)
    orders = list(fitting(squeezed(value).shape, squeezed(like).shape))
    if not orders:
        return None
    return squeezed(value).transpose(nearest(squeezed(value), squeezed(like), orders)).reshape(like.shape)
