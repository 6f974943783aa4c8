"""Numbers, factors and lists of names as every format writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


def number(value: Any, digits: int = 3) -> str:
    """A number as a short text; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "?" if value is None else str(value)
    return f"{value:.{digits}g}"


def factor(value: float) -> str:
    """A factor for reading: `0.02`, `7.1`, `340`, `1.2e+06`, `∞`."""
    if math.isinf(value):
        return "∞"
    return f"{value:.2g}" if value < 100 or value >= 1e5 else f"{value:.0f}"


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    names = list(words)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def few(names: Iterable[str], most: int = 4, between: str = ", ") -> str:
    """`y, grad.x`, and how many more there are."""
    every = list(names)
    hidden = len(every) - most
    return between.join(every[:most]) + (f" and {hidden} more" if hidden > 0 else "")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """The items of each key, both in the order of their first pair."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def plural(n: int, noun: str, nouns: str = "") -> str:
    """`1 case`, `2 cases`."""
    return f"{n} {noun if n == 1 else nouns or noun + 's'}"


def cut(text: str, most: int) -> str:
    """The beginning of a name, with a mark where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unique(base: str, taken: set[str]) -> str:
    """`base`, with a number behind it where it is taken; it is taken from now on."""
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}.{n}"
    taken.add(name)
    return name


def digits_of(dtype: str) -> int:
    """How many digits distinguish two values of a dtype."""
    return DIGITS.get(dtype, 9)


DIGITS = {"bfloat16": 4, "float16": 5, "float32": 9, "float64": 17}


def columns_used(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns of a table that are not empty in every row."""
    return [i for i in range(max(map(len, rows), default=0)) if any(row[i] for row in rows)]
