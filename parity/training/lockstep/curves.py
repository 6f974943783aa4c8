"""Curves of a training: read from a worker's reply, joined and cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.outcome import Arrays
from parity.training.records import Curves

PARTS = {"loss": 1, "grad_norm": 1, "lr": 2, "rows": 2, "norms": 2, "sketches": 2}
"""What is known of every step, and the number of axes: the first counts the steps."""


def read(first: int, n_steps: int, arrays: Arrays, tracked: Sequence[str]) -> Curves:
    """The curves in a reply of `n_steps`, the first of which is `first`; raises ValueError where they are none."""
    parts = {name: part(arrays, name, n_steps, n_axes) for name, n_axes in PARTS.items()}
    for name in ("norms", "sketches"):
        if parts[name].shape[1] != len(tracked):
            raise ValueError(f"{name} are of {parts[name].shape[1]} tensors and not of {len(tracked)}")
    return Curves(first, **parts, tracked=tuple(tracked))


def check_like(curves: Curves, earlier: Curves) -> None:
    """Raise ValueError where one has other rows, groups or tensors than the other, so that they cannot be joined."""
    for name in PARTS:
        mine, others = (getattr(one, name).shape[1:] for one in (curves, earlier))
        if mine != others:
            raise ValueError(f"{name} of step {curves.first} has {list(mine)} numbers and had {list(others)} before")


def part(arrays: Arrays, name: str, n_steps: int, n_axes: int) -> NDArray[Any]:
    """One of PARTS in int64 or float64; raises ValueError where it is missing or of another shape."""
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    found = arrays[name]
    if found.ndim != n_axes or len(found) != n_steps:
        raise ValueError(f"{name} has shape {found.shape} after {n_steps} steps")
    return found.astype(np.int64 if name == "rows" else np.float64)


def joined(parts: Sequence[Curves]) -> Curves:
    """Curves that follow each other as one; `parts` has one at least."""
    arrays = {name: np.concatenate([getattr(curves, name) for curves in parts]) for name in PARTS}
    return Curves(parts[0].first, **arrays, tracked=parts[0].tracked)


def between(curves: Curves, after: int, last: int) -> Curves:
    """The steps from `after` + 1 to `last`."""
    start, end = after + 1 - curves.first, last + 1 - curves.first
    return replace(curves, first=after + 1, **{name: getattr(curves, name)[start:end] for name in PARTS})
