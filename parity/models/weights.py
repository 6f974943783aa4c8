"""Parameters whose own values differ: not loaded, transposed, another parameter's, or no longer shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from pathlib import Path

import numpy as np

from parity.adapters.bits import bits_of, values_of
from parity.models.findings import WEIGHTS, ModelFinding
from parity.models.ports import Array, RemotePort
from parity.models.state import UNTIED, Move, folded
from parity.models.worker.tape import Recorded, TensorTape

CAST = 2.0**-8
"""Values that differ by at most a cast to bfloat16 are equal."""
EXACT = 2.0**-22
"""The relative difference up to which a converted port's values are the baseline's."""
FOLDED = 1e-5
"""The error of folded values, computed in float32, relative to the largest."""
GRID = 256
"""The number of values of 8 bits."""
STALE = "from another training step, rounded, or folded differently"
ANOTHER_STEP = 0.2
"""The largest relative distance at which values count as another training step's."""
SHIFTS = tuple(by for n in range(1, 5) for by in (n, -n))
"""Shifts of rows that are tried: tables of positions often begin with one or two rows for special tokens."""
BLOCKS = (2, 3, 4)
"""Gates of recurrent layers, and query, key and value."""


def untied(moves: Sequence[Move], base: RemotePort, other: RemotePort) -> Iterator[ModelFinding]:
    """Parameters that share their memory only in the baseline."""
    for move in moves:
        if move.how == UNTIED:
            first = next(m.target for m in moves if m.sources == move.sources and m.how != UNTIED)
            title = f"one parameter in {base.name}, two in {other.name}, so the gradient of one is not that of both"
            yield ModelFinding(
                WEIGHTS, move.target.rpartition(".")[0], 0, move.sources[0].rpartition(".")[0], {}, title=title,
                id="weights-untied", explained=True, parameters=(first, move.target),
            )  # fmt: skip


def differing(moves: Sequence[Move], base: RemotePort, other: RemotePort, moved: Path) -> Iterator[ModelFinding]:
    """Parameters whose own values are not those made of the baseline's (`moved`)."""
    theirs, wanted = Recorded(str(other.state)), Recorded(str(moved))
    for move in moves:
        have, want = theirs.load(move.target), wanted.load(move.target)
        least = 0.0 if move.eps is None else FOLDED * float(np.abs(want).max(initial=0.0))
        same = close(have, want, EXACT if other.converted else CAST, least)
        if np.array_equal(have, want) or (same and rounded(have, want, base.name) is None):
            continue
        others = {m.target: wanted for m in moves if m is not move}
        looked = None if move.eps is None else misfolded(have, move, base)
        evidence, title = looked or looks(have, want, base.name, others)
        if move.eps is not None and have.ndim == 1:
            title = title.replace(STALE, "another running mean, running variance or bias of the BatchNorm")
        yield ModelFinding(
            WEIGHTS, move.target.rpartition(".")[0], 0, move.sources[0].rpartition(".")[0], {}, title=title,
            id="weights-differ", explained=True, parameters=(move.target,), evidence={"looks": evidence},
        )  # fmt: skip


def close(a: Array, b: Array, part: float = CAST, least: float = 0.0) -> bool:
    """Whether values are equal up to a cast."""
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= part * np.abs(b) + least + 1e-30))


def looks(have: Array, want: Array, base: str, others: Mapping[str, Recorded]) -> tuple[str, str]:
    """What a parameter's values look like: an id and a text."""
    if not have.any():
        return "zeros", f"all zeros: it was not loaded from {base}'s"
    if have.size > 1 and (have == have.flat[0]).all() and not (want == want.flat[0]).all():
        return "constant", f"all {have.flat[0]:g}: it was not loaded from {base}'s"
    match = rounded(have, want, base) or arranged(have, want, base)
    if match:
        return match
    for name, stored in others.items():
        if stored.shape(name) == have.shape and close(stored.load(name), have):
            return "another", f"the values that {name} should have"
    apart = float(np.sqrt(np.mean((have - want) ** 2) / (np.mean(want**2) or 1.0))) if have.shape == want.shape else 1.0
    if apart < ANOTHER_STEP:
        coarse = have.size > 2 * GRID and np.unique(have).size <= GRID
        why = "quantised to 8 bits" if coarse else STALE
        return "near", f"{100 * apart:.2g} % away from {base}'s (root mean square): {why}"
    return "other", f"other values than {base}'s: it was not loaded from them"


def misfolded(have: Array, move: Move, base: RemotePort) -> tuple[str, str] | None:
    """The mistake in folding a BatchNorm into a convolution; None if none is found."""
    stored = Recorded(str(base.state))
    eps, arrays = move.eps or 0.0, [stored.load(name).astype(np.float64) for name in move.sources]
    weight, bias, mean, variance, *own = arrays
    least = FOLDED * float(np.abs(have).max(initial=0.0))
    norm = {
        "without the running mean": (weight, bias, 0 * mean, variance),
        "with the running mean added": (weight, bias, -mean, variance),
        "without the running variance": (weight, bias, mean, 0 * variance + 1 - eps),
        "with the running variance instead of its root": (weight, bias, mean, (variance + eps) ** 2 - eps),
        "without the BatchNorm's weight": (0 * weight + 1, bias, mean, variance),
        "without the BatchNorm's bias": (weight, 0 * bias, mean, variance),
        "without the BatchNorm": (np.sqrt(variance + eps), mean, mean, variance),
    }
    tried = {how: folded([*given, *own], eps, have.shape) for how, given in norm.items()}
    if own and have.ndim == 1:
        tried["without the convolution's bias"] = folded(arrays[:4], eps, have.shape)
        tried["with the convolution's bias not scaled"] = tried["without the convolution's bias"] + own[0]
    for how, values in tried.items():
        if close(have, values, 0.0, least):
            return "folded", f"folded {how}"
    return another_eps(have, arrays, eps, base.name)


def another_eps(have: Array, arrays: Sequence[Array], eps: float, base: str) -> tuple[str, str] | None:
    """Whether a fold has another epsilon or, for a weight, another scale for each channel."""
    weight, bias, mean, variance, *own = arrays
    least = FOLDED * float(np.abs(have).max(initial=0.0))
    with np.errstate(all="ignore"):
        if have.ndim == 1:
            scale = (have - bias) / ((own[0] if own else 0.0) - mean)
        else:
            inner = tuple(range(1, have.ndim))
            scale = (have * own[0]).sum(inner) / (own[0] ** 2).sum(inner)
        fitted_eps = float(np.median((weight / scale) ** 2 - variance))
    if np.isfinite(fitted_eps) and close(have, folded(arrays, fitted_eps, have.shape), 0.0, least):
        return "folded", f"folded with eps {fitted_eps:.2g} instead of {eps:g}"
    if have.ndim > 1 and close(have, own[0] * scale.reshape(-1, *[1] * (have.ndim - 1)), 0.0, least):
        far = float(np.sqrt(np.mean((have / folded(arrays, eps, have.shape) - 1) ** 2)))
        return "folded", f"{100 * far:.2g} % away from {base}'s, by a factor for each channel: another running variance"
    return None


def rounded(have: Array, want: Array, base: str) -> tuple[str, str] | None:
    """Whether values are rounded to a narrower dtype."""
    for name, narrow in (("bfloat16", values_of(bits_of(want))), ("float16", want.astype(np.float16))):
        if close(have, narrow.astype(have.dtype), EXACT):
            return name, f"{base}'s rounded to {name}"
    return None


def arranged(have: Array, want: Array, base: str) -> tuple[str, str] | None:
    """Whether values are in another order: of axes, or of equal blocks."""
    for axes in permutations(range(have.ndim)):
        if axes != tuple(range(have.ndim)) and close(np.transpose(have, axes), want):
            return "transposed", f"{base}'s {'transposed' if have.ndim == 2 else f'with axes {list(axes)}'}"
    if order := reordered(have, want):
        return "blocks", f"{base}'s with its {len(order)} blocks in the order {order}"
    moved = shift(have, want)
    if moved is not None:
        return "shifted", f"{base}'s shifted by {moved[1]} along axis {moved[0]}"
    return None


def reordered(have: Array, want: Array) -> list[int]:
    """The order of blocks along the first axis that gives these values; empty if there is none."""
    for n in BLOCKS:
        if have.ndim and have.shape[0] % n == 0:
            parts = np.split(want, n)
            for order in [order for order in permutations(range(n)) if order != tuple(range(n))]:
                if close(have, np.concatenate([parts[i] for i in order])):
                    return list(order)
    return []


def shift(have: Array, want: Array) -> tuple[int, int] | None:
    """The axis along which values are shifted, and by how many elements."""
    for axis, by in product(range(have.ndim), SHIFTS):
        if 2 * abs(by) < have.shape[axis] and close(part_of(have, axis, by), part_of(want, axis, -by)):
            return axis, by
    return None


def part_of(values: Array, axis: int, by: int) -> Array:
    """The values from index `by` on along an axis; for a negative `by` those before it, counted from the end."""
    return values[(slice(None),) * axis + (slice(by, None) if by > 0 else slice(None, by),)]


def combined(own: Path, moved: Path, names: Sequence[str], folder: Path) -> None:
    """Store a state with some of its parameters, `names`, from another one."""
    theirs, wanted, tape = Recorded(str(own)), Recorded(str(moved)), TensorTape(str(folder))
    for name in theirs:
        tape.put(name, (wanted if name in names else theirs).load(name))
    tape.close()
