"""Pairs the tensors of two sides: by a mapping, by name, by content, by order and shape.

Every tensor is used at most once, a pair says how it was found, and where several pairings are equally good none is
taken: the tensors stay unpaired, with a note.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

ROLES = {
    "gamma": "weight",
    "kernel": "weight",
    "scale": "weight",
    "w": "weight",
    "embedding": "weight",
    "embeddings": "weight",
    "beta": "bias",
    "b": "bias",
    "running_mean": "running_mean",
    "running_var": "running_var",
    "mean": "running_mean",
    "moving_mean": "running_mean",
    "var": "running_var",
    "variance": "running_var",
    "moving_var": "running_var",
    "moving_variance": "running_var",
    "running_variance": "running_var",
    "recurrent_kernel": "weight_hh",
}
"""What the last part of a name means, in PyTorch's words: the names of Keras, Flax, Paddle, ONNX and TensorFlow."""

WRAPPERS = frozenset(
    (
        *("module", "model", "orig", "mod", "fsdp", "wrapped", "state", "dict", "params", "param", "variables"),
        *("batch", "stats", "network", "net", "backbone", "layers", "layer"),
    )
)
"""Words without meaning: prefixes of DataParallel, torch.compile, FSDP and Flax, and words for a list."""

LAYOUTS = (
    (1, 0), (2, 1, 0), (0, 2, 1),
    (3, 2, 0, 1), (2, 3, 1, 0), (0, 3, 1, 2), (0, 2, 3, 1),
    (4, 3, 0, 1, 2), (2, 3, 4, 1, 0), (0, 4, 1, 2, 3), (0, 2, 3, 4, 1),
)  # fmt: skip
"""Orders of axes by which frameworks differ: IO and OI, WIO and OIW, NWC and NCW; HWIO and OIHW, NHWC and NCHW; the
same with depth."""

MAX_PERMUTED = 6
"""A tensor of more axes is not transposed: there are too many orders."""

NEAR_PRINTS = 1e-2
"""Fingerprints this close may be one tensor's: a cast to bfloat16 changes the largest element by 2^-8 of itself."""
APART = 10.0
"""The second nearest must be this many times further away than the nearest."""
MAX_ALIKE = 4096
"""Most tensors of one size whose contents are compared, since each is compared with each."""
MAX_LISTED = 4


class How(Enum):
    """How two tensors were paired."""

    EXACT = "exact"
    MAPPING = "mapping"
    NAME = "name"
    CONTENT = "content"
    ORDER = "order"


@dataclass(frozen=True)
class Transform:
    """What brings the right tensor into the left one's layout: axes in another order, then blocks along the first axis
    in another order (gates), then another shape of the same size."""

    axes: Shape = ()
    blocks: Shape = ()
    reshape: bool = False

    def __str__(self) -> str:
        """`transpose`, `axes [3, 2, 0, 1], reshape`, or nothing."""
        parts = []
        if self.axes:
            parts.append("transpose" if self.axes == (1, 0) else f"axes {list(self.axes)}")
        if self.blocks:
            parts.append(f"blocks {list(self.blocks)}")
        return ", ".join([*parts, *["reshape"] * self.reshape])

    def apply(self, right: Array, shape: Shape) -> Array:
        """The right tensor as the left one has it, of `shape`. Raises ValueError if it has not as many elements."""
        values = right.transpose(self.axes) if self.axes else right
        if self.blocks:
            parts = np.split(values, len(self.blocks))
            values = np.concatenate([parts[i] for i in self.blocks])
        return values.reshape(shape) if self.reshape else values


@dataclass(frozen=True)
class TensorSummary:
    """A tensor of one side; `order` is its position among them, `fingerprint` that of its values (`fingerprint_of`),
    `layer` what the layer that has it computes, where that is known."""

    name: str
    shape: Shape
    dtype: str
    order: int
    fingerprint: Array | None = field(default=None, compare=False)
    layer: str = ""

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Pair:
    """Two tensors that are taken for the same; `doubt` says what contradicts it or is not known."""

    left: str
    right: str
    how: How
    transform: Transform = Transform()
    doubt: str = ""


@dataclass(frozen=True)
class Matching:
    """The pairs in the order of the left side, the unpaired tensors of both, and why they were not paired."""

    pairs: tuple[Pair, ...]
    left_only: tuple[str, ...]
    right_only: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[How, int]:
        """Number of pairs per way of pairing, without zeros."""
        counted = {how: sum(pair.how is how for pair in self.pairs) for how in How}
        return {how: n for how, n in counted.items() if n}


class MatchingError(ValueError):
    """A mapping names a tensor that is not there, or one twice."""


def match(
    left: Sequence[TensorSummary],
    right: Sequence[TensorSummary],
    mapping: Mapping[str, tuple[str, Transform]] | None = None,
    *,
    by_order: bool = True,
) -> Matching:
    """Pair the tensors of two sides, whose names are unique.

    In this order: what `mapping` says (left name to right name and transform); equal names; equal names once spelling,
    framework and wrappers are taken away; fingerprints, of those that have one; order, among tensors of the same shape
    and role, unless `by_order` is false. Raises MatchingError for a mapping that does not fit.
    """
    matcher = Matcher({entry.name: entry for entry in left}, {entry.name: entry for entry in right})
    matcher.mapped(mapping or {})
    matcher.by_key(How.EXACT, lambda entry: entry.name)
    for key in (spelled, unwrapped):
        matcher.by_key(How.NAME, key)
    matcher.by_suffix()
    matcher.by_content()
    if by_order:
        matcher.in_layers()
        matcher.by_order()
    return matcher.result()


PairedEntries = tuple[TensorSummary, TensorSummary, Pair]


@dataclass
class Matcher:
    """What is not paired yet, by name and in order; each step takes its pairs out."""

    left: dict[str, TensorSummary]
    right: dict[str, TensorSummary]
    pairs: dict[str, PairedEntries] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, ours: TensorSummary, theirs: TensorSummary, how: How, transform: Transform | None = None) -> None:
        """Pair two tensors."""
        del self.left[ours.name], self.right[theirs.name]
        doubt = ""
        if transform is None:
            transform, doubt = layout(ours.shape, theirs.shape)
        self.pairs[ours.name] = ours, theirs, Pair(ours.name, theirs.name, how, transform, doubt)

    def mapped(self, mapping: Mapping[str, tuple[str, Transform]]) -> None:
        """The pairs of a mapping."""
        for ours, (theirs, transform) in mapping.items():
            for name, unpaired, which in ((ours, self.left, "left"), (theirs, self.right, "right")):
                if name not in unpaired:
                    raise MatchingError(f"the {which} side has no tensor {name!r} that is not paired already")
            self.take(self.left[ours], self.right[theirs], How.MAPPING, transform)

    def by_key(self, how: How, key: Callable[[TensorSummary], Hashable]) -> None:
        """Tensors whose key is equal, and unique on both sides."""
        ours, theirs = grouped(self.left.values(), key), grouped(self.right.values(), key)
        for shared in [name for name in ours if name in theirs]:
            if len(ours[shared]) == len(theirs[shared]) == 1:
                self.take(ours[shared][0], theirs[shared][0], how)

    def by_suffix(self) -> None:
        """A name that ends with all of the other one's, and as many elements: one side has a prefix more, and of
        several such names the one whose prefix most names have."""
        endings: dict[tuple[str, ...], list[tuple[Hashable, TensorSummary]]] = defaultdict(list)
        for entry in self.right.values():
            for prefix, tail in cuts(unwrapped(entry)):
                endings[tail].append((("right", prefix), entry))
        wholes = grouped(self.right.values(), unwrapped)
        by_name: dict[str, list[tuple[Hashable, TensorSummary]]] = {}
        for ours in self.left.values():
            parts = unwrapped(ours)
            longer = [(("left", prefix), theirs) for prefix, tail in cuts(parts) for theirs in wholes.get(tail, ())]
            both = (*endings.get(parts, ()), *longer)
            by_name[ours.name] = [(prefix, theirs) for prefix, theirs in both if ours.size == theirs.size]
        votes = Counter(prefix for candidates in by_name.values() for prefix, _ in candidates)
        best = {name: favourite(candidates, votes) for name, candidates in by_name.items()}
        claims = Counter(theirs.name for theirs in best.values() if theirs is not None)
        for name, theirs in best.items():
            if theirs is not None and claims[theirs.name] == 1:
                self.take(self.left[name], theirs, How.NAME)

    def by_content(self) -> None:
        """Tensors of one size whose fingerprints are near, and far from all others."""
        ours, theirs = (
            grouped(marked(unpaired.values()), lambda entry: entry.size) for unpaired in (self.left, self.right)
        )
        for size in [size for size in ours if size in theirs]:
            if max(len(ours[size]), len(theirs[size])) > MAX_ALIKE:
                self.notes.append(f"more than {MAX_ALIKE} tensors of {size} elements: their contents are not compared")
                continue
            for a, b in nearest(ours[size], theirs[size]):
                self.take(a, b, How.CONTENT)

    def by_order(self) -> None:
        """Tensors of one role and one shape up to the order of axes, if both sides have equally many."""
        ours, theirs = (grouped(unpaired.values(), kind_of) for unpaired in (self.left, self.right))
        for key, mine in list(ours.items()):
            others = theirs.get(key, [])
            if len(mine) == len(others):
                self.in_turn(mine, others)
            elif others:
                kind = f"{key[0]} {list(mine[0].shape)}".strip()
                counts = f"{len(mine)} on the left ({listed(mine)}), {len(others)} on the right ({listed(others)})"
                self.notes.append(f"not paired, since the numbers differ: {kind}, {counts}")

    def in_layers(self) -> None:
        """The same within layers that compute the same op."""
        ours, theirs = (
            grouped(unpaired.values(), lambda entry: (kind_of(entry), entry.layer))
            for unpaired in (self.left, self.right)
        )
        for key, mine in list(ours.items()):
            if key[1] and len(mine) == len(theirs.get(key, [])):
                self.in_turn(mine, theirs[key])

    def in_turn(self, mine: Sequence[TensorSummary], others: Sequence[TensorSummary]) -> None:
        """Pair equally many tensors of both sides in order."""
        for a, b in zip(in_order(mine), in_order(others), strict=True):
            self.take(a, b, How.ORDER)

    def result(self) -> Matching:
        """The matching."""
        paired = sorted(self.pairs.values(), key=lambda item: item[0].order)
        pairs = scattered([pair for _, _, pair in conventional(paired)])
        return Matching(tuple(pairs), tuple(self.left), tuple(self.right), tuple(self.notes))


def grouped(entries: Iterable[TensorSummary], key: Callable[[TensorSummary], Any]) -> dict[Any, list[TensorSummary]]:
    """Tensors by key."""
    groups: dict[Any, list[TensorSummary]] = defaultdict(list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return groups


def in_order(entries: Sequence[TensorSummary]) -> list[TensorSummary]:
    """In the order of their side."""
    return sorted(entries, key=lambda entry: entry.order)


def listed(entries: Sequence[TensorSummary]) -> str:
    """A few names."""
    more = f" and {len(entries) - MAX_LISTED} more" if len(entries) > MAX_LISTED else ""
    return ", ".join(entry.name for entry in entries[:MAX_LISTED]) + more


def marked(entries: Iterable[TensorSummary]) -> Iterator[TensorSummary]:
    """Those with a fingerprint."""
    return (entry for entry in entries if entry.fingerprint is not None)


# Names


def words(name: str) -> list[str]:
    """The parts of a name in lower case: `encoder/layer_0/LayerNorm/gamma:0` is encoder, layer, 0, layernorm, gamma."""
    name = re.sub(r":\d+$", "", name)
    return [word for word in re.split(r"[\W_]+|(?<=[a-z])(?=\d)", name.casefold()) if word]


def spelled(entry: TensorSummary) -> tuple[str, ...]:
    """A name's parts, the last ones in PyTorch's words."""
    parts = words(entry.name)
    for n in (2, 1):
        known = ROLES.get("_".join(parts[-n:]))
        if known is not None:
            return (*parts[:-n], *known.split("_"))
    return tuple(parts)


def unwrapped(entry: TensorSummary) -> tuple[str, ...]:
    """The same without what wrappers add; the whole if nothing would be left."""
    parts = spelled(entry)
    return tuple(part for part in parts if part not in WRAPPERS) or parts


def cuts(parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """All ways to cut a prefix off, which leave two words or more, or one that is no role."""
    for i in range(1, len(parts)):
        if len(parts) - i > 1 or parts[-1] not in KNOWN:
            yield parts[:i], parts[i:]


def favourite(
    candidates: Sequence[tuple[Hashable, TensorSummary]], votes: Mapping[Hashable, int]
) -> TensorSummary | None:
    """The candidate whose prefix has most votes, if there is one."""
    ranked = sorted(candidates, key=lambda item: -votes[item[0]])
    if not ranked or (len(ranked) > 1 and votes[ranked[0][0]] == votes[ranked[1][0]]):
        return None
    return ranked[0][1]


def role(entry: TensorSummary) -> str:
    """`weight`, `bias`, `running_mean`, ..., or nothing."""
    parts = spelled(entry)
    return next((word for n in (2, 1) if (word := "_".join(parts[-n:])) in KNOWN), "")


KNOWN = frozenset(ROLES.values())


def kind_of(entry: TensorSummary) -> tuple[str, Shape]:
    """The role, and the shape whatever the order of axes."""
    return role(entry), tuple(sorted(entry.shape))


def parent(name: str) -> str:
    """The layer of a parameter: its name without the last part."""
    return re.sub(r":\d+$", "", name).replace("/", ".").rpartition(".")[0]


def scattered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """The pairs, with a doubt about those by order whose layer's other parameters belong to another layer."""
    partners: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        partners[parent(pair.left)].add(parent(pair.right))
    for pair in pairs:
        split = pair.how is How.ORDER and len(partners[parent(pair.left)]) > 1
        yield replace(pair, doubt=SCATTERED) if split and not pair.doubt else pair


SCATTERED = "paired by order, but the other tensors of its layer belong to several layers"


# Layouts


def layout(ours: Shape, theirs: Shape) -> tuple[Transform, str]:
    """The transform from shape `theirs` to `ours`, and what the shapes leave open."""
    if ours == theirs:
        return Transform(), ""
    orders = orders_between(ours, theirs)
    if orders:
        usual = sum(axes in LAYOUTS for axes in orders)
        open_ = len(orders) > 1 and usual != 1
        return Transform(axes=orders[0]), f"the shapes also allow axes {list(orders[1])}" if open_ else ""
    if math.prod(ours) == math.prod(theirs):
        return Transform(reshape=True), "only the number of elements is the same"
    return Transform(), ""


def conventional(paired: Sequence[PairedEntries]) -> Iterator[PairedEntries]:
    """The pairs; square ones, whose shapes show no order of axes, are transposed if all others of their kind are.

    A kind is a number of axes, both names' last words, and whether the layer has more tensors (an embedding has not).
    """
    layers = Counter(parent(pair.left) for _, _, pair in paired)
    kinds = [(len(a.shape), role(a), role(b), layers[parent(a.name)] > 1) for a, b, _ in paired]
    shown: dict[Hashable, set[Shape]] = defaultdict(set)
    for kind, (a, b, pair) in zip(kinds, paired, strict=True):
        if not is_square(a, b):
            shown[kind].add(pair.transform.axes)
    for kind, (a, b, pair) in zip(kinds, paired, strict=True):
        axes = shown[kind] - {()}
        if pair.how is How.MAPPING or not is_square(a, b) or not axes:
            yield a, b, pair
        elif len(shown[kind]) > 1:
            yield a, b, replace(pair, doubt="square; some tensors of its kind are transposed, others not")
        else:
            doubt = "square; transposed as all others of its kind are"
            yield a, b, replace(pair, transform=Transform(axes=axes.pop()), doubt=doubt)


def is_square(a: TensorSummary, b: TensorSummary) -> bool:
    """Whether the shapes fit as they are and with the axes in a usual order."""
    return a.shape == b.shape and any(axes in LAYOUTS for axes in orders_between(a.shape, b.shape))


def orders_between(ours: Shape, theirs: Shape) -> list[Shape]:
    """The orders of axes that make `theirs` to `ours`, known layouts first."""
    if sorted(ours) != sorted(theirs) or not 1 < len(ours) <= MAX_PERMUTED:
        return []
    fitting = [axes for axes in permutations(range(len(theirs))) if tuple(theirs[i] for i in axes) == ours]
    return sorted(fitting, key=lambda axes: axes not in LAYOUTS)


# Contents


@dataclass
class Moments:
    """The fingerprint of values that arrive in parts, independent of their order and shape."""

    n: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(4))
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Array) -> None:
        """Count some values; those that are not finite are left out."""
        x = np.ravel(values).astype(np.float64, copy=False)
        finite = np.isfinite(x)
        x = x if finite.all() else x[finite]
        if x.size:
            with np.errstate(all="ignore"):
                square = x * x
                self.sums += np.array((x.sum(), np.abs(x).sum(), square.sum(), (square * x).sum()))
            self.low, self.high, self.n = min(self.low, x.min()), max(self.high, x.max()), self.n + x.size

    def fingerprint(self) -> Array | None:
        """Root mean square, mean, mean magnitude, third moment's root, least and largest value; None for a constant,
        which many tensors are."""
        if not self.n or self.low == self.high:
            return None
        mean, magnitude, square, cube = self.sums / self.n
        marks = np.array([math.sqrt(square), mean, magnitude, np.cbrt(cube), self.low, self.high])
        return marks if np.isfinite(marks).all() else None


def fingerprint_of(values: Array) -> Array | None:
    """The fingerprint of a tensor in memory."""
    moments = Moments()
    moments.add(values)
    return moments.fingerprint()


def nearest(
    ours: Sequence[TensorSummary], theirs: Sequence[TensorSummary]
) -> Iterator[tuple[TensorSummary, TensorSummary]]:
    """Those that are each other's nearest by far; identical ones on one side are never taken."""
    a, b = (
        np.stack([entry.fingerprint for entry in entries if entry.fingerprint is not None])
        for entries in (ours, theirs)
    )
    for i, mark in enumerate(a):
        j, near = by_far(mark, b)
        if j is not None and near <= NEAR_PRINTS and by_far(b[j], a)[0] == i:
            yield ours[i], theirs[j]


def by_far(mark: Array, marks: Array) -> tuple[int | None, float]:
    """The nearest fingerprint and its distance in units of the root mean square; None if another is as near."""
    distances = np.abs(marks - mark).max(axis=1) / max(mark[0], np.finfo(np.float64).tiny)
    order = np.argsort(distances, kind="stable")[:2]
    first = int(order[0])
    if len(order) > 1 and distances[order[1]] <= APART * distances[first] + np.finfo(np.float32).eps:
        return None, math.inf
    return first, float(distances[first])
