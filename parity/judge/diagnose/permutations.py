"""The right values at the wrong locations: transposed, rolled, reversed, permuted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.bound.envelope import ERROR_BOUND, Array
from parity.judge.diagnose.causes import NO_COINCIDENCE, Cause, Change, Result, changed
from parity.judge.diagnose.evaluator import Predicted, Prediction, ratio
from parity.judge.diagnose.explanation import KernelExplanation

MAX_ROLL = 3
LONG = 2048


def rearranged(origin: KernelExplanation, name: str) -> Iterator[tuple[Cause, Predicted]]:
    """Causes: the right values at other locations, by a known permutation or an unknown one, with the predicted
    tensor."""
    values, predicted = origin.observed.get(name), origin.prediction[name]
    exact = predicted.values
    if values is None or exact is None or values.size != exact.size or values.size < NO_COINCIDENCE - 1:
        return
    same = same_values(values, exact, predicted.envelope.max)
    for kind, shown, other in arrangements(exact, values.shape, values if same else None):
        results = {name: Result(form_of(shown, values.shape))}
        cause = Cause(kind, shown, change=rearrange(name, kind, shown, values), results=results)
        yield cause, predicted.rearranged(other)
    gaps = np.diff(np.sort(exact, axis=None))
    positive = gaps[gaps > 0]
    distinct = positive.size > 0 and float(np.median(positive)) > predicted.envelope.max
    if same and values.shape == exact.shape and values.size >= NO_COINCIDENCE and distinct:
        yield from permuted(name, values, exact, predicted)


def permuted(name: str, values: Array, exact: Array, predicted: Predicted) -> Iterator[tuple[Cause, Predicted]]:
    """The order of the values: all shifted by the same distance in memory, or without a rule."""
    locations = np.empty(values.size, np.intp)
    locations[np.argsort(values, axis=None, kind="stable")] = np.argsort(exact, axis=None, kind="stable")
    step = int(-locations[0] % values.size)
    flat = np.ravel(exact)
    moved = locations != np.arange(values.size)
    if not np.all(np.abs(flat[locations] - flat)[moved] > ERROR_BOUND * predicted.envelope.max):
        return  # Values this close change places by rounding.
    n_moved = int(moved.sum())
    for kind, shown, order, weight in (
        ("shifted", {"in_memory_by": step}, np.roll(np.arange(values.size), step), 0.0),
        ("permuted-elements", {"moved": n_moved}, locations, 1.0),
    ):
        other = predicted.rearranged(flat[order].reshape(values.shape))
        if any(shown.values()) and ratio(values, other) < ERROR_BOUND:
            results = {name: Result(form_of(shown, values.shape))}
            yield Cause(kind, shown, change=reordered(name, order), weight=weight, results=results), other


def form_of(shown: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """A permutation of an expression."""
    match shown:
        case {"axes": order}:
            return f"transpose({{}}, {tuple(order)})"
        case {"read_in_order": order}:
            return f"reshape(transpose({{}}, {tuple(order)}), {shape})"
        case {"in_memory_by": step}:
            return f"roll({{}}, {step})"
        case {"axis": axis, "by": step}:
            return f"roll({{}}, {step}, axis={axis})"
        case {"flipped": "all"}:
            return "flip({})"
        case {"flipped": axis}:
            return f"flip({{}}, axis={axis})"
    return f"permuted({{}}), {shown.get('moved', 'some')} elements elsewhere"


def reordered(name: str, order: NDArray[np.intp]) -> Change:
    """The change that brings the values of a tensor into this order in memory."""

    def taken(predicted: Predicted) -> Predicted:
        values = predicted.values
        if values is None or values.size != order.size:
            return predicted
        return predicted.rearranged(np.ravel(values)[order].reshape(values.shape))

    return changed([name], taken)


def same_values(values: Array, exact: Array, bound: float) -> bool:
    """Whether two tensors hold the same numbers, in any order."""
    differences = np.abs(np.sort(values, axis=None) - np.sort(exact, axis=None))
    return bool(np.all(differences <= ERROR_BOUND * bound))


def rearrange(name: str, kind: str, shown: Mapping[str, Any], values: Array) -> Change:
    """The change that rearranges a tensor by the rule that is shown."""

    def change(prediction: Prediction) -> Prediction:
        predicted = prediction[name]
        if predicted.values is None:
            return prediction
        for other_kind, other_shown, other in arrangements(predicted.values, values.shape, values):
            if (other_kind, other_shown) == (kind, shown):
                return {**prediction, name: predicted.rearranged(other)}
        return prediction

    return change


def arrangements(
    values: Array, shape: tuple[int, ...], observed: Array | None = None
) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """All permutations that may lead from `values` to `observed`, a tensor of this shape."""
    rank = values.ndim
    if rank <= 4:
        yield from turned(values, shape)
    if values.shape != shape:
        return
    for shift in (*range(1, MAX_ROLL + 1), *range(-MAX_ROLL, 0)):
        if rank > 1 and abs(shift) < values.size:
            yield "shifted", {"in_memory_by": shift}, np.roll(values, shift)
    if rank > 1:
        yield "permuted-axes", {"flipped": "all"}, np.flip(values)
    for axis in range(rank):
        yield "permuted-axes", {"flipped": axis}, np.flip(values, axis)
        for shift in shifts(values, axis, observed):
            yield "shifted", {"axis": axis, "by": shift}, np.roll(values, shift, axis)


def shifts(values: Array, axis: int, observed: Array | None) -> Iterator[int]:
    """Small shifts along an axis, and the one that brings a slice along it closest to `observed`."""
    length = values.shape[axis]
    small = [s for step in range(1, min(MAX_ROLL, length - 1) + 1) for s in (step, -step)]
    yield from small
    if observed is not None and MAX_ROLL < length <= LONG:
        predicted, returned = (
            np.moveaxis(v, axis, 0).reshape(length, -1)[:, 0].astype(np.float64) for v in (values, observed)
        )
        differences = [float(np.abs(np.roll(predicted, s) - returned).max()) for s in range(length)]
        nearest = int(np.argmin(differences))
        if nearest and nearest not in small and nearest - length not in small:
            yield nearest


def turned(values: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """Axes in another order, as a tensor of that order, or read as if the order were unchanged."""
    rank = values.ndim
    for order in list(permutations(range(rank)))[1:]:
        other = values.transpose(order)
        moved = [axis for axis in order if values.shape[axis] > 1]
        if values.shape == shape and moved == sorted(moved):
            continue  # Only axes of length 1 change places.
        if other.shape == shape:
            yield "transposed" if rank == 2 else "permuted-axes", {"axes": list(order)}, other
        elif other.size == np.prod(shape):
            yield "permuted-axes", {"read_in_order": list(order)}, other.reshape(shape)
