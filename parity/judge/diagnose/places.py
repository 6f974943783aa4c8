"""The right values in the wrong places: transposed, rolled, reversed, permuted, or in another gradient's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.bound.envelope import OFF, size
from parity.judge.diagnose.causes import Cause, Change, replaced
from parity.judge.diagnose.evaluator import Evaluator, Observed, Predicted, Prediction, is_gradient, ratio
from parity.judge.diagnose.factors import BETTER, FEW, Causes, Left, fits_scaled, with_factor

Array = NDArray[Any]


MAX_ROLL = 3
LONG = 2048


def rearranged(evaluator: Evaluator, name: str, observed: Observed, prediction: Prediction) -> Iterator[Causes]:
    """The right values in other places, by a rule or by none; or a multiple of them."""
    values, predicted = observed.get(name), prediction[name]
    if values is None or predicted.values is None or values.size != predicted.values.size or values.size < FEW - 1:
        return
    same = same_values(values, predicted)
    for kind, shown, moved in arrangements(predicted.values, values.shape, values if same else None):
        other = moved_to(predicted, moved)
        cause = Cause(kind, shown, change=rearrange(name, kind, shown, values))
        if ratio(values, other) < OFF:
            yield (cause,)
        elif (factor := fits_scaled(values, other)) is not None:
            yield from with_factor(evaluator, cause, {name: factor})
    gaps = np.diff(np.sort(predicted.values, axis=None))
    positive = gaps[gaps > 0]
    told_apart = positive.size > 0 and float(np.median(positive)) > predicted.envelope.max
    if same and values.shape == predicted.values.shape and values.size >= FEW and told_apart:
        yield from ((cause,) for cause in permuted(name, values, predicted, predicted.values))


def permuted(name: str, values: Array, predicted: Predicted, exact: Array) -> Iterator[Cause]:
    """The order that the values have: all moved by the same number of places in memory, or without a rule."""
    places = np.empty(values.size, np.intp)
    places[np.argsort(values, axis=None, kind="stable")] = np.argsort(exact, axis=None, kind="stable")
    step = int(-places[0] % values.size)
    found = ("shifted", {"in_memory_by": step}, np.roll(np.ravel(exact), step), 0.0)
    n_moved = int((places != np.arange(values.size)).sum())
    for kind, shown, moved, weight in (found, ("permuted-elements", {"moved": n_moved}, np.ravel(exact)[places], 1.0)):
        other = moved_to(predicted, moved.reshape(values.shape))
        if ratio(values, other) < OFF:
            yield Cause(kind, shown, change=replaced({name: other}), weight=weight)


def same_values(values: Array, predicted: Predicted) -> bool:
    """Whether both hold the same numbers, in whatever order."""
    exact = predicted.values
    if exact is None or values.size != exact.size or values.size < FEW - 1:
        return False
    apart = np.abs(np.sort(values, axis=None) - np.sort(exact, axis=None))
    return bool(np.all(apart <= OFF * predicted.envelope.max))


def moved_to(predicted: Predicted, values: Array) -> Predicted:
    """A prediction of the same numbers in other places."""
    return Predicted(values, replace(predicted.envelope, excused=None), predicted.unstable)


def rearrange(name: str, kind: str, shown: Mapping[str, Any], values: Array) -> Change:
    """The change that rearranges a tensor by the rule that is shown."""

    def change(prediction: Prediction) -> Prediction:
        predicted = prediction[name]
        if predicted.values is None:
            return prediction
        for other_kind, other_shown, moved in arrangements(predicted.values, values.shape, values):
            if (other_kind, other_shown) == (kind, shown):
                return {**prediction, name: moved_to(predicted, moved)}
        return prediction

    return change


def arrangements(
    values: Array, shape: tuple[int, ...], found: Array | None = None
) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """All rules by which `values` may have come into other places of a tensor of this shape, which holds `found`."""
    rank = values.ndim
    if rank <= 4:
        yield from turned(values, shape)
    if values.shape != shape:
        return
    for shift in (*range(1, MAX_ROLL + 1), *range(-MAX_ROLL, 0)):
        if rank > 1 and abs(shift) < values.size:
            yield "shifted", {"in_memory_by": shift}, np.roll(values, shift)
    for axis in range(rank):
        yield "permuted-axes", {"flipped": axis}, np.flip(values, axis)
        for shift in shifts(values, axis, found):
            yield "shifted", {"axis": axis, "by": shift}, np.roll(values, shift, axis)


def shifts(values: Array, axis: int, found: Array | None) -> Iterator[int]:
    """Small shifts along an axis, and the one that brings a line of it nearest to `found`."""
    length = values.shape[axis]
    small = [s for step in range(1, min(MAX_ROLL, length - 1) + 1) for s in (step, -step)]
    yield from small
    if found is not None and MAX_ROLL < length <= LONG:
        line, other = (np.moveaxis(v, axis, 0).reshape(length, -1)[:, 0].astype(np.float64) for v in (values, found))
        apart = [float(np.abs(np.roll(line, s) - other).max()) for s in range(length)]
        nearest = int(np.argmin(apart))
        if nearest and nearest not in small and nearest - length not in small:
            yield nearest


def turned(values: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """Axes in another order, as a tensor of that order or read as if they were not."""
    rank = values.ndim
    for order in list(permutations(range(rank)))[1:]:
        found = values.transpose(order)
        if found.shape == shape:
            yield "transposed" if rank == 2 else "permuted-axes", {"axes": list(order)}, found
        elif found.size == np.prod(shape):
            yield "permuted-axes", {"read_in_order": list(order)}, found.reshape(shape)


def exchanged(
    evaluator: Evaluator, observed: Observed, prediction: Prediction, left: Left, off: list[str]
) -> Iterator[Causes]:
    """Another gradient, or a multiple of it, in the place of one that is off."""
    sources: dict[str, str] = {}
    factors: dict[str, float] = {}
    for name in off:
        values = observed.get(name)
        peers = {n: p for n, p in prediction.items() if n != name and gradients(n, name) and holds(p, values)}
        others = {n: ratio(values, p) for n, p in peers.items()}
        nearest = min(others, key=others.__getitem__, default=None)
        if nearest is not None and others[nearest] < left[name] / BETTER:
            sources[name] = nearest
            continue
        multiples = {n: f for n, p in peers.items() if values is not None and (f := fits_scaled(values, p)) is not None}
        if multiples:
            sources[name], factors[name] = next(iter(multiples.items()))
    if sources:
        cause = Cause("swapped-gradients", {"holds": sources}, change=exchange(sources))
        yield from with_factor(evaluator, cause, factors) if factors else ((cause,),)


def exchange(sources: Mapping[str, str]) -> Change:
    """The change that puts other tensors in the places of some."""
    return lambda prediction: {**prediction, **{n: prediction[s] for n, s in sources.items()}}


def gradients(one: str, other: str) -> bool:
    """Whether both tensors are gradients (`grad.weight`, or `grads.0` of clipping)."""
    return is_gradient(one) and is_gradient(other)


def holds(predicted: Predicted, values: Array | None) -> bool:
    """Whether a prediction has the shape of these values, and is more than rounding around zero."""
    exact = predicted.values
    if values is None or exact is None or exact.shape != values.shape:
        return False
    return size(exact).rms > predicted.envelope.rms
