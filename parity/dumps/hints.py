"""What a difference between two dumps looks like: the library's experiments, and those that only weights need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.dumps.compare import Partners, Rules
from parity.dumps.tensors import NARROW, Array, Stored
from parity.library.arrays import Tensor
from parity.library.distance import excess
from parity.library.hints import EXPERIMENTS, Scene, coarse, rearranged, scaled, taken, zeros
from parity.library.pairs import TensorPair
from parity.library.report import Hint

MOST_IN_MEMORY = 1 << 20
"""Elements of the largest tensor that is examined as a whole: its experiments take half a second and 100 MB."""
CORNER = 1 << 17
"""Elements of a larger one that are examined."""
SAMPLE = 1 << 12
"""Elements of these that are enough to refute an experiment."""
MAX_PEERS = 8
"""Number of other differing tensors whose values are searched for in a tensor."""
GATES = (2, 3, 4)
"""Numbers of blocks that are tried in all orders: four gates of an LSTM; three of a GRU, or query, key and value."""
MAX_SPLITS = 400
"""Number of ways to split an axis that are tried."""
MAX_LENGTH = 1 << 16
MOST_FITTED = 4
"""Least number of elements per fitted number."""
JOINED = (3, 2, 4)
MAX_JOINED = 24
"""Number of unpaired tensors that are searched for parts of another one."""


GENERAL = ("permuted-elements", "localized", "")
"""Diagnoses that a more specific experiment may replace."""


def hint_of(pair: Partners, peers: Iterable[Partners], names: tuple[str, str], rules: Rules) -> Hint | None:
    """What explains a tensor that differs, or a corner of a large one; raises DumpError.

    Other shapes are tried if the tensors are small; `peers` are searched for its values if all of them are small.
    """
    large = pair.left.size > MOST_IN_MEMORY
    if pair.left.size < 2 or pair.left.size != pair.right.size or (large and pair.left.shape != pair.right.shape):
        return None
    alike = [peer for peer in peers if peer.left.size == pair.left.size <= MOST_IN_MEMORY // MAX_PEERS and peer != pair]
    mine, *others = (in_memory(each) for each in [pair, *alike[:MAX_PEERS]])
    limits = rules.tolerance(pair.left.name, pair.dtypes)
    scene = Scene(mine.path, mine.actual.values, mine.expected.values, limits, names, [mine, *others])
    with np.errstate(all="ignore"):
        if large:
            return of_a_corner(scene)
        general = next((named(hint, experiment) for experiment in EXPERIMENTS for hint in experiment(scene)), None)
        if general is not None and general.diagnosis not in GENERAL:
            return general
        return next((hint for experiment in OWN for hint in experiment(scene)), general)


def of_a_corner(scene: Scene) -> Hint | None:
    """What explains a corner of a large tensor; first a few elements of it, which refute most experiments."""
    few = sample(scene)
    refutes = differs(few) and few.distinguishes(few.expected)
    if refutes and not any(hint for experiment in OF_A_CORNER for hint in experiment(few)):
        return None
    if not differs(scene):
        return None  # What differs is elsewhere.
    hint = next((hint for experiment in OF_A_CORNER for hint in experiment(scene)), None)
    return None if hint is None or hint.diagnosis not in PARTIAL else hint


def differs(scene: Scene) -> bool:
    """Whether an element exceeds its tolerance, a few rows at a time: fresh memory costs more than the arithmetic."""
    rows = max(1, SAMPLE * len(scene.expected) // scene.expected.size)
    return any(
        (excess(scene.actual[i : i + rows], scene.expected[i : i + rows], scene.tolerance) > 1).any()
        for i in range(0, len(scene.expected), rows)
    )


def sample(scene: Scene) -> Scene:
    """Every n-th element along every axis, so that the same holds for them, and for their transpose."""
    step = max(1, math.ceil((scene.expected.size / SAMPLE) ** (1 / max(scene.expected.ndim, 1))))
    every = tuple(slice(None, None, step) for _ in scene.expected.shape)
    return replace(scene, actual=scene.actual[every], expected=scene.expected[every])


OF_A_CORNER = (zeros, scaled, rearranged, coarse)
PARTIAL = ("scaled", "sign-flipped", "transposed", "reduced-precision", "missing-output", "missing-gradient")
"""Diagnoses that hold for a tensor if they hold for a corner of it, as far as can be known."""


def named(hint: Hint, experiment: object) -> Hint:
    """A hint, with the diagnosis of another tensor's values."""
    return replace(hint, diagnosis=hint.diagnosis or "swapped-outputs") if experiment is taken else hint


def in_memory(pair: Partners) -> TensorPair:
    """Two tensors as the library has them."""
    values = pair.corners(MOST_IN_MEMORY if pair.left.size <= MOST_IN_MEMORY else CORNER)
    mine, theirs = (
        Tensor(array, "float32" if dtype in NARROW else dtype) for array, dtype in zip(values, pair.dtypes, strict=True)
    )
    return TensorPair(pair.left.name, mine, theirs)


def regated(scene: Scene) -> Iterator[Hint]:
    """Blocks along an axis in another order."""
    if not scene.same_shape or not scene.same_values():
        return
    for axis, n in itertools.product(range(min(2, scene.expected.ndim)), GATES):
        if scene.expected.shape[axis] % n or scene.expected.shape[axis] == n:
            continue
        blocks = np.split(scene.expected, n, axis)
        for order in itertools.islice(itertools.permutations(range(n)), 1, None):
            if scene.explains(np.concatenate([blocks[i] for i in order], axis)):
                yield Hint(f"{scene.names[0]} is {scene.names[1]} with its {n} blocks along axis {axis} in the order "
                           f"{list(order)}, as gates or as query, key and value", "gate-order")  # fmt: skip


def interleaved(scene: Scene) -> Iterator[Hint]:
    """An axis that is taken apart and put together in another order: fused projections by head, or rotary pairs."""
    if not scene.same_shape or not scene.same_values():
        return
    for axis in range(min(2, scene.expected.ndim)):
        values = np.moveaxis(scene.expected, axis, 0)
        for outer, a, b, rest in splits(values.shape[0]):
            moved = values.reshape(outer, a, b, rest, -1).swapaxes(1, 2).reshape(values.shape)
            if scene.explains(np.moveaxis(moved, 0, axis)):
                same, other = scene.names
                theirs, mine = ([n for n in (outer, *two, rest) if n > 1] for two in ((a, b), (b, a)))
                yield Hint(f"axis {axis} of {other} is {theirs}, that of {same} {mine}: interleaved, as in a fused "
                           "projection of query, key and value", "head-grouping")  # fmt: skip


def splits(length: int) -> Iterator[tuple[int, int, int, int]]:
    """The ways to write an axis as four, of which the middle ones are exchanged; query, key and value by head first."""
    divisors = [n for n in range(1, length + 1) if length % n == 0] if length <= MAX_LENGTH else []
    factorizations = [
        (outer, a, b, length // (outer * a * b))
        for outer in divisors
        for a in divisors
        for b in divisors
        if a > 1 and b > 1 and length % (outer * a * b) == 0
    ]
    yield from sorted(factorizations, key=lambda way: (way[0] > 1, 3 not in way[1:3], 2 not in way[1:3]))[:MAX_SPLITS]


def by_slice(scene: Scene) -> Iterator[Hint]:
    """A number is added, or every slice has a factor or a number of its own: a bias, another normalisation."""
    if not scene.same_shape or scene.actual.dtype.kind != "f" or scene.expected.dtype.kind != "f":
        return
    a, e = scene.actual.astype(np.float64), scene.expected.astype(np.float64)
    same, other = scene.names
    for kept in kept_axes(a.shape):
        rest = tuple(axis for axis in range(a.ndim) if axis not in kept)
        factors = (a * e).sum(rest, keepdims=True) / (e * e).sum(rest, keepdims=True)
        numbers = (a - e).mean(rest, keepdims=True)
        where = (
            f" for every index of {'axis' if len(kept) == 1 else 'axes'} {', '.join(map(str, kept))}" if kept else ""
        )
        for fitted, made, words in ((numbers, e + numbers, "plus"), (factors, e * factors, "times")):
            if not scene.explains(made):
                continue
            low, high = float(fitted.min()), float(fitted.max())
            shown = f"{low:.6g}" if not kept else f"a number of its own ({low:.6g} to {high:.6g})"
            yield Hint(f"{same} is {other} {words} {shown}{where}", "scaled" if words == "times" else "")


def kept_axes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """No axis, all but the last, and each single one, if their slices have enough elements."""
    wanted = [(), tuple(range(len(shape) - 1)), *((axis,) for axis in range(len(shape)))]
    size = math.prod(shape)
    return [kept for kept in dict.fromkeys(wanted) if MOST_FITTED * math.prod(shape[i] for i in kept) <= size]


def coarse_expected(scene: Scene) -> Iterator[Hint]:
    """The other tensor is the one of lower precision."""
    turned = replace(scene, actual=scene.expected, expected=scene.actual, names=(scene.names[1], scene.names[0]))
    yield from coarse(turned)


OWN = (regated, interleaved, by_slice, coarse_expected)


def joined(lonely: Stored, others: Sequence[Stored], names: tuple[str, str], rules: Rules) -> str:
    """The other dump's tensors that a tensor without a partner is joined from, in words; raises DumpError.

    `names`: the dump that has it, and the other one.
    """
    if not 1 < lonely.size <= MOST_IN_MEMORY or len(others) > MAX_JOINED:
        return ""
    parts = [other for other in others if len(other.shape) == len(lonely.shape) and other.size < lonely.size]
    whole: Array | None = None
    for n in JOINED:
        for group in itertools.permutations(parts, n) if len(parts) <= n + 1 else windows(parts, n):
            if sum(part.size for part in group) != lonely.size:
                continue
            whole = values_of(lonely) if whole is None else whole
            for axis, moved in joins([values_of(part) for part in group], whole.shape):
                limits = rules.tolerance(lonely.name, [lonely.dtype, *(part.dtype for part in group)])
                if Scene(lonely.name, whole, moved, limits, names).explains(moved):
                    listed = ", ".join(part.name for part in group)
                    return f"it is {listed} of {names[1]}, joined along axis {axis}"
    return ""


def twin(lonely: Stored, others: Sequence[Stored]) -> str:
    """A note if another tensor of the same dump has the same values, as tied weights have; raises DumpError."""
    if not 1 < lonely.size <= MOST_IN_MEMORY:
        return ""
    alike = [o for o in others if (o.shape, o.dtype) == (lonely.shape, lonely.dtype) and o.name != lonely.name]
    values = values_of(lonely)
    equal = any(np.array_equal(values_of(other), values) for other in alike[:MAX_JOINED])
    return "another tensor has the same values" if equal else ""


def windows(parts: Sequence[Stored], n: int) -> Iterator[tuple[Stored, ...]]:
    """Neighbours."""
    return (tuple(parts[i : i + n]) for i in range(len(parts) - n + 1))


def values_of(tensor: Stored) -> Array:
    """A tensor in memory, in a dtype of NumPy."""
    values = tensor.whole()
    return values.astype(np.float32) if values.dtype.name in NARROW else values


def joins(parts: Sequence[Array], shape: tuple[int, ...]) -> Iterator[tuple[Any, Array]]:
    """The ways to join tensors into one of this shape, transposed or not."""
    for axis in range(len(shape)):
        for words, each in (("", parts), (", transposed", [part.T for part in parts])):
            try:
                whole = np.concatenate(each, axis)
            except ValueError:
                continue
            if whole.shape == shape:
                yield f"{axis}{words}", whole
