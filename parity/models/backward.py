"""Where gradients diverge although the forward pass agrees: a cut, or a wrong factor, in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parity.models.findings import Boundary
from parity.models.ports import Array
from parity.models.worker.tape import Recorded
from parity.reporting.text.words import few, number

MULTIPLE_OF = 1e-3
"""A gradient is a multiple of another one if at most this part of it remains after subtraction."""


def order_of(run: Recorded, parameters: Sequence[str]) -> list[str]:
    """Parameters in the order in which a run calls their layers, without those of layers that are not called."""
    called = dict.fromkeys(at.layer for name in run if (at := Boundary.of(name)) is not None)
    by_layer: dict[str, list[str]] = {}
    for name in parameters:
        by_layer.setdefault(name.rpartition(".")[0], []).append(name)
    return [name for layer in called for name in by_layer.get(layer, [])]


def factor(theirs: Array | None, ours: Array) -> float | None:
    """The factor between a gradient and ours; None if it is no multiple."""
    if theirs is None or not theirs.any():
        return 0.0
    a, b = theirs.astype(np.float64).ravel(), ours.astype(np.float64).ravel()
    best = float(a @ b / (b @ b)) if a.shape == b.shape and b.any() else 0.0
    return best if best and np.linalg.norm(a - best * b) <= MULTIPLE_OF * np.linalg.norm(a) else None


def divergence(order: Sequence[str], factors: Mapping[str, float | None], base: str) -> tuple[str, str] | None:
    """The layer around the location where gradients diverge, and a text; `factors` are those of the wrong gradients.

    Gradients flow from the last layer to the first: the last wrong one is next to that location.
    """
    wrong = [name for name in order if name in factors]
    if not wrong:
        return None
    last = order.index(wrong[-1])
    layer = wrong[-1].rpartition(".")[0]
    same = [name for name in wrong if factors[name] == factors[wrong[-1]] or name.rpartition(".")[0] == layer]
    behind = next((name.rpartition(".")[0] for name in order[last + 1 :]), "")
    wrong_gradients = f"the gradient of {few(same[::-1])} is {times(factors[wrong[-1]], base)}"
    right = f", that of {behind}, which comes next, is right" if behind else ""
    return around(layer, behind), f"passes back a wrong gradient: {wrong_gradients}{right}"


def around(layer: str, other: str) -> str:
    """The innermost layer that contains both."""
    mine, theirs = layer.split("."), other.split(".") if other else []
    shared = [a for a, b in zip(mine[:-1], theirs, strict=False) if a == b]
    return ".".join(shared if theirs else mine[:-1])


def times(by: float | None, base: str) -> str:
    """A factor in words: `0.5 times torch's`, `0`, or `other than torch's` if it is None."""
    if by is None:
        return f"other than {base}'s"
    return f"{number(by)} times {base}'s" if by else "0"
