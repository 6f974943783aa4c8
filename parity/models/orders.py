"""Tensors whose axes have another order in the other port, such as images with channels last.

The order follows from the shapes, and from the values if several fit. An order that occurs is then tried on tensors
of the same rank whose shape fits without it, too, and used where the values are clearly closer.
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
"""Where the plain order fits, too, another one is used if it reduces the difference to less than this part."""


@dataclass(frozen=True)
class AxesConverter:
    """Converts between a port's tensors at boundaries and the baseline's layout.

    `axes` is the order of the baseline's axes in the port, by name; `run` has the port's shapes, `partners` the
    baseline's entries on its tape.
    """

    run: Recorded
    axes: Mapping[str, Axes] = field(default_factory=dict)
    partners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_port(self, name: str, array: Array) -> Array:
        """A tensor of the baseline's layout in the port's."""
        array = array.transpose(self.axes[name]) if name in self.axes else array
        return grouped_as(array, self.run.shape(name)) if name in self.run else array

    def to_baseline(self, name: str, array: Array, shape: Sequence[int] | None = None) -> Array:
        """A port's tensor in the baseline's layout, and in its shape if the elements have the same order there.

        A boolean mask becomes numbers if the baseline's is.
        """
        array = array.transpose(inverse(self.axes[name])) if name in self.axes else array
        partner = self.partners.get(name)
        if partner is not None:
            shape = partner["shape"] if shape is None else shape
            array = array.astype(partner["dtype"]) if array.dtype.kind == "b" else array
        return array if shape is None else grouped_as(array, shape)


def grouped_as(array: Array, shape: Sequence[int]) -> Array:
    """A tensor in another shape with the same elements in the same order; it may have fewer rows."""
    rows = tuple(shape[:1]) if array.size == np.prod(shape, dtype=int) else array.shape[:1]
    wanted = (*rows, *shape[1:])
    return array.reshape(wanted) if regrouped(array.shape, wanted) else array


def permuted(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes have the same lengths in some order."""
    return sorted(squeezed(a)) == sorted(squeezed(b))


def axis_orders(base: Recorded, other: Recorded, keys: Mapping[str, str]) -> dict[str, Axes]:
    """The order of the baseline's axes in each tensor of another port where it is not the plain one.

    `keys` maps the port's names to the baseline's.
    """
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
    """The orders of axes that turn one shape into another."""
    if len(a) != len(b) or sorted(a) != sorted(b):
        return
    for order in permutations(range(len(a))):
        if all(a[i] == n for i, n in zip(order, b, strict=True)):
            yield order


def nearest(a: Array, b: Array, orders: Sequence[Axes]) -> Axes:
    """The order in which two tensors are closest; the first of several."""
    return min(orders, key=lambda order: apart(a.transpose(order), b)) if len(orders) > 1 else orders[0]


def apart(a: Array, b: Array) -> float:
    """The mean absolute difference of two tensors."""
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=0.0, posinf=0.0).mean()) if a.size else 0.0


def written(axes: Mapping[str, Axes]) -> Iterator[str]:
    """The orders for a mapping file, with the number of tensors of each."""
    for order, n in Counter(axes.values()).most_common():
        first: Any = next(name for name, one in axes.items() if one == order)
        layer, _, role, _ = first.split("|")
        where = f"{'the input' if role == 'in' else 'the output'} of {layer or 'the model'}"
        yield f"axes {list(order)} of the baseline's: {n} tensor{'s' * (n > 1)} between layers, first {where}"
