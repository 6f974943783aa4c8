"""Tensors that two ports hold with their axes in another order, such as images with the channels last.

Where only another order gives a tensor its partner's shape, it is that order, and by content if there are several. Such
an order is then tried on tensors of the same rank whose shape does not tell, and taken where the values say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from parity.models.layouts import inverse
from parity.models.ports import Array
from parity.models.worker.tape import Recorded, regrouped, squeezed

Axes = tuple[int, ...]
MOST_AXES = 6
"""A tensor of more axes has too many orders."""
CLEARLY = 0.5
"""An order is taken where the plain one fits, too, if with it the values are apart by less than this part."""


@dataclass(frozen=True)
class Sight:
    """A port's tensors at boundaries, as the baseline has them: `axes` by name is the order of the baseline's axes that
    gives the port's; `run` has their shapes, `partners` the entries of the baseline's on its tape."""

    run: Recorded
    axes: Mapping[str, Axes] = field(default_factory=dict)
    partners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def own(self, name: str, array: Array) -> Array:
        """A tensor in the baseline's layout as the port has it."""
        array = array.transpose(self.axes[name]) if name in self.axes else array
        return grouped_as(array, self.run.shape(name)) if name in self.run else array

    def base(self, name: str, array: Array, shape: Sequence[int] | None = None) -> Array:
        """A port's tensor in the baseline's layout, and in its shape if the elements have the same order there.

        A mask of booleans is one of numbers if the baseline's is.
        """
        array = array.transpose(inverse(self.axes[name])) if name in self.axes else array
        partner = self.partners.get(name)
        if partner is not None:
            shape = partner["shape"] if shape is None else shape
            array = array.astype(partner["dtype"]) if array.dtype.kind == "b" else array
        return array if shape is None else grouped_as(array, shape)


def grouped_as(array: Array, shape: Sequence[int]) -> Array:
    """A tensor in a shape that has the same elements in the same order; it may have fewer rows."""
    rows = tuple(shape[:1]) if array.size == np.prod(shape, dtype=int) else array.shape[:1]
    wanted = (*rows, *shape[1:])
    return array.reshape(wanted) if regrouped(array.shape, wanted) else array


def permuted(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes have the same lengths in some order."""
    return sorted(squeezed(a)) == sorted(squeezed(b))


def axis_orders(base: Recorded, other: Recorded, keys: Mapping[str, str]) -> dict[str, Axes]:
    """The order of the baseline's axes that gives each tensor of another port, where it is not the plain one; `keys`
    are the baseline's names."""
    axes: dict[str, Axes] = {}
    plain = []
    for theirs, ours in keys.items():
        if regrouped(base.shape(ours), other.shape(theirs)):
            plain.append(theirs)
        elif 1 < len(base.shape(ours)) <= MOST_AXES:
            candidates = list(fitting(base.shape(ours), other.shape(theirs)))
            if candidates:
                axes[theirs] = nearest(base.load(ours), other.load(theirs), candidates)
    seen = Counter(axes.values())
    for theirs in plain:
        shapes = base.shape(keys[theirs]), other.shape(theirs)
        candidates = [order for order, _ in seen.most_common() if order in set(fitting(*shapes))]
        if candidates:
            a, b = base.load(keys[theirs]), other.load(theirs)
            best = nearest(a, b, candidates)
            if apart(a.transpose(best), b) < CLEARLY * apart(a, b):
                axes[theirs] = best
    return axes


def fitting(a: Sequence[int], b: Sequence[int]) -> Iterator[Axes]:
    """The orders of the axes of one shape that give another one."""
    if len(a) != len(b) or sorted(a) != sorted(b):
        return
    for order in permutations(range(len(a))):
        if all(a[i] == n for i, n in zip(order, b, strict=True)):
            yield order


def nearest(a: Array, b: Array, orders: Sequence[Axes]) -> Axes:
    """The order with which two tensors are nearest; the first of several."""
    return min(orders, key=lambda order: apart(a.transpose(order), b)) if len(orders) > 1 else orders[0]


def apart(a: Array, b: Array) -> float:
    """How far two tensors are apart."""
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=0.0, posinf=0.0).mean()) if a.size else 0.0


def written(axes: Mapping[str, Axes]) -> Iterator[str]:
    """The orders in words, with how many tensors have each, for a mapping file."""
    for order, n in Counter(axes.values()).most_common():
        first: Any = next(name for name, one in axes.items() if one == order)
        layer, _, role, _ = first.split("|")
        where = f"{'the input' if role == 'in' else 'the output'} of {layer or 'the model'}"
        yield f"axes {list(order)} of the baseline's: {n} tensor{'s' * (n > 1)} between layers, first {where}"
