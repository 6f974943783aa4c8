"""Measures which elements of an input a tensor adds up, if not those of the reference: in the windows of a pooling, the
border of a padding, the neighbours of an interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np

from parity.cases.edit_functions import Weights
from parity.cases.edits import COMPUTED, READ, RETURNED, Edit
from parity.judge.bound.envelope import Array

MOST_ELEMENTS = 96
"""The most elements of an input that share their leading axes: measuring their weights takes as many results."""
SPARE = 1.25
"""How many times as many results as weights are used."""
RESOLVED = 1e-6
"""The largest error of what measured weights predict, relative to the results, which may be rounded to float32."""
NOTHING = 1e-5
"""Weights below this part of the largest count as zero."""
DENOMINATORS = 4096
"""Weights are fractions with at most this denominator if one is close enough."""


def copied(source: Sequence[Array], observed: Sequence[Array]) -> Weights | None:
    """Which element of the source each element of a tensor is, or which number; None if one is neither."""
    element_of: dict[bytes, int] = {}
    columns, targets = (
        np.stack([np.ravel(values) for values in samples], axis=1) + 0.0 for samples in (source, observed)
    )
    for element, column in enumerate(columns.astype(np.float64)):
        element_of.setdefault(column.tobytes(), element)
    weights, numbers = [], []
    for element, column in enumerate(targets.astype(np.float64)):
        if column.tobytes() in element_of:
            weights.append((element, element_of[column.tobytes()], 1.0))
        elif (-column + 0.0).tobytes() in element_of:
            weights.append((element, element_of[(-column + 0.0).tobytes()], -1.0))
        elif (column == column[0]).all():
            numbers.append((element, float(column[0])))
        else:
            return None
    shapes = source[0].shape, observed[0].shape
    return Weights((), *shapes, tuple(weights), tuple((p, n) for p, n in numbers if n)) if weights else None


def leading(source: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, ...]:
    """The axes at the beginning that two shapes share, up to two, such as images and channels."""
    n = next((i for i, (a, b) in enumerate(zip(source, output, strict=False)) if a != b), min(len(source), len(output)))
    return source[: max(0, min(n, 2, len(source) - 1, len(output) - 1))]


def n_results(source: tuple[int, ...], output: tuple[int, ...]) -> int:
    """How many results measuring the weights takes; 0 if too many."""
    shared = leading(source, output)
    size = prod(source) // max(1, prod(shared))
    return 0 if not shared or size > MOST_ELEMENTS else int(np.ceil((SPARE * size + 2) / prod(shared)))


def summed(source: Sequence[Array], observed: Sequence[Array]) -> Weights | None:
    """The weights with which each element adds up those of the source with the same leading indices."""
    shared = leading(source[0].shape, observed[0].shape)
    x, y = (
        np.stack(values).reshape(len(values) * prod(shared), -1).astype(np.float64) for values in (source, observed)
    )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    given = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    solution = np.linalg.lstsq(given, y, rcond=None)[0]
    if not (np.abs(given @ solution - y) <= RESOLVED * (np.abs(given) @ np.abs(solution) + np.abs(y).max())).all():
        return None
    solution = np.where(np.abs(solution) > NOTHING * np.abs(solution).max(), solution, 0)
    weights = tuple((int(o), int(i), fraction(solution[i, o])) for o, i in np.argwhere(solution[:-1].T))
    numbers = tuple((int(o), float(solution[-1, o])) for o in np.flatnonzero(solution[-1]))
    return Weights(shared, source[0].shape, observed[0].shape, weights, numbers)


def fraction(weight: float) -> float:
    """The nearest simple fraction, if it is close enough."""
    simple = float(Fraction(float(weight)).limit_denominator(DENOMINATORS))
    return simple if abs(simple - weight) <= RESOLVED * abs(weight) else float(weight)


def differences_first(weights: Weights, reference: Weights | None) -> Weights:
    """The weights, with the elements that differ from the reference first."""
    measured, right = weights_by_element(weights), weights_by_element(reference) if reference else {}
    least = NOTHING * max((abs(weight) for _, _, weight in weights.weights), default=0.0)

    def is_same(element: int) -> bool:
        given, other = measured[element], right.get(element, {})
        return all(abs(given.get(there, 0.0) - other.get(there, 0.0)) <= least for there in {*given, *other})

    same = {element: is_same(element) for element in measured}
    order = sorted(weights.weights, key=lambda row: same[row[0]])
    return replace(weights, weights=tuple(order))


def weights_by_element(weights: Weights) -> dict[int, dict[int, float]]:
    """The weight of each element of the source, by the element that adds it up."""
    by_element: dict[int, dict[int, float]] = {}
    for element, there, weight in weights.weights:
        by_element.setdefault(element, {})[there] = weight
    return by_element


def edit_of(output: str, name: str, weights: Weights) -> Edit:
    """The output as sums of an input's elements."""
    expression = ("weighted_sums", (READ, ("input", name)), ("number", weights))
    return Edit((), output, RETURNED, value=(COMPUTED, expression))
