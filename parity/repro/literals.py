"""Writes what comes from a results file into a script, as data only: literals, prose and arrays."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.config.nodes import printable

WIDTH = 100
INDENT = "    "


class Code(str):
    """Source text that needs no escaping."""

    __slots__ = ()


def literal(value: Any) -> Code:
    """A Python literal for text, numbers, booleans, None and sequences of them; raises TypeError for anything else."""
    if isinstance(value, (list, tuple)):
        items = [literal(item) for item in value]
        text = ", ".join(items) + ("," if isinstance(value, tuple) and len(items) == 1 else "")
        return Code(f"({text})" if isinstance(value, tuple) else f"[{text}]")
    if isinstance(value, float) and not math.isfinite(value):
        return Code(f'float("{value}")')
    if isinstance(value, str):
        return Code(quoted(value))
    if value is None or type(value) in (bool, int, float):
        return Code(repr(value))
    raise TypeError(f"no literal for a {type(value).__name__}")


def quoted(text: str) -> str:
    """A string literal, in double quotes unless that needs an escape."""
    plain = repr(text)
    return f'"{text}"' if plain == f"'{text}'" and '"' not in text else plain


def prose(text: str) -> Code:
    """One line of a docstring."""
    return Code(printable(text).replace("\\", "\\\\").replace('"""', "'''").rstrip('"'))


def paragraph(label: str, text: str, width: int = 10) -> list[Code]:
    """Lines of a docstring: `text` wrapped beside its label."""
    lines = textwrap.wrap(printable(text), WIDTH - width, break_on_hyphens=False) or [""]
    heads = [label, *[""] * (len(lines) - 1)]
    return [prose(f"{head:<{width}}{line}".rstrip()) for head, line in zip(heads, lines, strict=True)]


def array(values: NDArray[Any], margin: str = "") -> Code:
    """A call of np.array that makes `values` again, bit for bit but for the payload of a NaN.

    `margin` precedes every line but the first.
    """
    dtype = literal(str(values.dtype))
    if not values.size:
        return Code(f"np.zeros({literal(values.shape)}, {dtype})")
    nested = f"np.array({nested_list(values)}, {dtype})"
    if len(nested) <= WIDTH - 3 * len(INDENT):
        return Code(nested)
    numbers = textwrap.wrap(", ".join(map(number, values.ravel())), WIDTH - 2 * len(INDENT), break_on_hyphens=False)
    lines = [
        "np.array(",
        f"{INDENT}[",
        *(2 * INDENT + line for line in numbers),
        f"{INDENT}],",
        f"{INDENT}{dtype},",
        ")",
    ]
    lines[-1] += "" if values.ndim == 1 else f".reshape({', '.join(map(str, values.shape))})"
    return Code(f"\n{margin}".join(lines))


def nested_list(values: NDArray[Any]) -> str:
    """The numbers in brackets, as `tolist` nests them."""
    return f"[{', '.join(map(nested_list, values))}]" if values.ndim else number(values[()])


def number(value: Any) -> str:
    """The shortest text that is `value` in its own dtype."""
    return str(value) if np.isfinite(value) else str(value).replace("nan", "np.nan").replace("inf", "np.inf")


def block(lines: Iterable[str]) -> Code:
    """Lines of source below each other."""
    return Code("\n".join(lines))
