"""Two nested structures side by side, tensor by tensor, each with its path."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from parity.config.errors import nearest
from parity.library.arrays import Tensor, kind_of, tensor_of

PLAIN = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
"""Keys that a path shows without quotes: `weight`, `grad.weight`, `layers.2.bias`."""

MAX_DEPTH = 100
"""Levels of nesting; each needs a few of the interpreter's 1,000 nested calls."""

MAX_NAMED = 6
MAX_CANDIDATES = 1000
"""The nearest name is looked up for this many missing keys only, among this many unmatched ones, since the search
compares each with each."""

MAX_PLACE = 60

NOT_GIVEN = object()
"""`exact` was not given at all; None means that a part has no exact answer."""


@dataclass(frozen=True)
class TensorPair:
    """One tensor, actual and expected, with its exact answer if there is one."""

    path: str
    actual: Tensor
    expected: Tensor
    exact: Tensor | None = None

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Both tensors."""
        return self.actual, self.expected


@dataclass(frozen=True)
class Unpaired:
    """A path where the structures differ, and how."""

    path: str
    problem: str


Pairs = Iterator[TensorPair | Unpaired]


@dataclass(frozen=True)
class Walk:
    """A walk through both structures; `names` are their names in messages."""

    names: tuple[str, str]

    def pairs(self, actual: Any, expected: Any, exact: Any, path: str = "", depth: int = 0) -> Pairs:
        """Every tensor of either structure, in the order of `expected`; nothing if both are None.

        Raises TypeError for anything but tensors, numbers and structures of them, and ValueError if `exact` lacks a
        part, or both are nested more than MAX_DEPTH deep.
        """
        if actual is None and expected is None:
            return
        if depth > MAX_DEPTH:
            where = f"{shown(path)[:MAX_PLACE]}..."
            raise ValueError(f"{where} is nested more than {MAX_DEPTH} deep or contains itself; compare a part of it")
        left, right = (part_of(v, f"{n}{path}") for v, n in zip((actual, expected), self.names, strict=True))
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            yield TensorPair(shown(path), left, right, exact_part(exact, path, Tensor))
        elif isinstance(left, Branch) and isinstance(right, Branch) and left.keyed == right.keyed:
            yield from self._branches(left, right, exact, path, depth)
        else:
            yield Unpaired(shown(path), f"{self.names[0]} is {left or None}, {self.names[1]} is {right or None}")

    def _branches(self, left: Branch, right: Branch, exact: Any, path: str, depth: int) -> Pairs:
        if not left.keyed and len(left.items) != len(right.items):
            lengths = f"{self.names[0]} has {len(left.items)} items, {self.names[1]} {len(right.items)}"
            yield Unpaired(shown(path), f"{lengths}; the common ones are compared")
        given = exact_part(exact, path, Branch)
        missing = self._missing(left, right)
        for key, (step, _) in {**right.items, **left.items}.items():
            if key in left.items and key in right.items:
                part = exact_item(given, key, f"exact{path}{step}")
                yield from self.pairs(left.items[key][1], right.items[key][1], part, path + step, depth + 1)
            elif left.keyed:
                yield Unpaired(shown(path + step), missing[key])

    def _missing(self, left: Branch, right: Branch) -> dict[Hashable, str]:
        """The message for each key that is missing in one structure."""
        problems = {}
        for name, lacks, has in zip(self.names, (left, right), (right, left), strict=True):
            extra = list(islice((step for k, (step, _) in lacks.items.items() if k not in has.items), MAX_CANDIDATES))
            absent = [(k, step) for k, (step, _) in has.items.items() if k not in lacks.items]
            for i, (key, step) in enumerate(absent):
                meant = nearest(step, extra) if i < MAX_NAMED else None
                problems[key] = f"{name} does not have it" + (f"; it has {shown(meant)}" if meant else "")
        return problems


@dataclass(frozen=True)
class Branch:
    """A mapping, a sequence or a record; `items` maps each key to its step in a path and its value.

    `keyed`: its items have names, and not only an order.
    """

    kind: str
    items: Mapping[Hashable, tuple[str, Any]]
    keyed: bool

    def __str__(self) -> str:
        return f"a {self.kind} of {len(self.items)}"


def part_of(value: Any, where: str) -> Tensor | Branch | None:
    """A tensor, a structure, or None; raises TypeError for anything else."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return Branch(type(value).__name__, {k: (step_of(k), v) for k, v in value.items()}, keyed=True)
    if isinstance(value, (list, tuple)):
        return listed(value)
    tensor = tensor_of(value, where)
    if tensor is not None:
        return tensor
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[Hashable, tuple[str, Any]] = {
            f.name: (f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return Branch(type(value).__name__, fields, keyed=True)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return listed(value)
    raise TypeError(f"{where}: {refusal(value)}")


def listed(value: Sequence[Any]) -> Branch:
    """A sequence; the items of a named tuple are shown by their names."""
    names: Sequence[str] = getattr(value, "_fields", ())
    steps = [f".{name}" for name in names] or [f"[{i}]" for i in range(len(value))]
    return Branch(type(value).__name__, dict(enumerate(zip(steps, value, strict=True))), keyed=False)


def refusal(value: Any) -> str:
    """Why something cannot be compared, and what can be."""
    kind = kind_of(value)
    if isinstance(value, Set):
        return f"a {kind} has no order; compare a sorted list, or a dict"
    if isinstance(value, Iterator):
        return f"a {kind} can be read only once; make it a list"
    if hasattr(value, "state_dict"):
        return f"a {kind} is not a tensor; compare its .state_dict()"
    return f"a {kind} is not a tensor, number, dict, list, tuple or dataclass; leave it out"


def step_of(key: Hashable) -> str:
    """A key as a step of a path: `.weight`, or `['a b']`."""
    return f".{key}" if isinstance(key, str) and PLAIN.fullmatch(key) else f"[{key!r}]"


def shown(path: str) -> str:
    """A path without the dot that it may begin with."""
    return path.removeprefix(".")


Part = TypeVar("Part", Tensor, Branch)


def exact_part(exact: Any, path: str, kind: type[Part]) -> Part | None:
    """The exact answer for a tensor or a structure; raises ValueError for the wrong one."""
    if exact is NOT_GIVEN or exact is None:
        return None
    part = part_of(exact, f"exact{path}")
    if not isinstance(part, kind):
        noun = "tensor" if kind is Tensor else "structure"
        raise ValueError(f"exact{path} is {part}, but a {noun} is compared; give exact the structure of expected")
    return part


def exact_item(branch: Branch | None, key: Hashable, where: str) -> Any:
    """The exact answer for one item; raises ValueError if it is missing."""
    if branch is None:
        return NOT_GIVEN
    if key not in branch.items:
        raise ValueError(f"{where} is missing; use None for parts without an exact answer")
    return branch.items[key][1]
