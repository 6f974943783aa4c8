"""What can be wrong with a tensor whatever the op: another one in its place, transposed, scaled, zero, stale, coarse.

Each function looks at what was observed and proposes causes whose change of the prediction comes nearer to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.causes import DIGITS, Cause, Change
from parity.judge.envelope import OFF, Envelope
from parity.judge.formats import FORMATS, on_grid
from parity.judge.lab import Lab, Observed, Predicted, Prediction, ratio

Array = NDArray[Any]
Left = Mapping[str, float]
BETTER = 4.0
"""A transform is proposed where it leaves less than a quarter."""
NEAR = 1e-3
EXACT = Envelope(0.0, 0.0)
MAX_ROLL = 3
FEW = 3
"""So many numbers at least must be hit before it is no chance: two lie on a line, or are each other's reverse."""


def proposals(lab: Lab, observed: Observed, prediction: Prediction, left: Left) -> Iterator[Cause]:
    """All transforms that come nearer to `observed`; `left` are the error ratios of `prediction`."""
    off = [name for name, value in left.items() if value >= OFF]
    yield from absent(observed, off)
    yield from stale(lab, observed, off)
    for name in off:
        yield from rearranged(name, observed, prediction)
    yield from exchanged(observed, prediction, left, off)
    yield from scaled(lab, observed, prediction, left, off)
    yield from coarse(lab, observed, prediction, off)


def replaced(others: Mapping[str, Predicted]) -> Change:
    """The change that puts others in the places of some tensors' predictions."""
    return lambda prediction: {**prediction, **others}


def absent(observed: Observed, off: list[str]) -> Iterator[Cause]:
    """Nothing, or nothing but zeros."""
    for kind, gradient in (("missing-gradient", True), ("missing-output", False)):
        names = [n for n in off if n.startswith("grad") is gradient]
        nothing = {n: Predicted(None, EXACT) for n in names if observed.get(n) is None}
        if nothing:
            yield Cause(kind, {"returned": "nothing"}, change=replaced(nothing))
        given = {n: v for n in names if (v := observed.get(n)) is not None}
        zeros = {n: Predicted(np.zeros_like(v), EXACT) for n, v in given.items() if v.size and not v.any()}
        if zeros:
            yield Cause(kind, {"returned": "zeros"}, change=replaced(zeros))


def stale(lab: Lab, observed: Observed, off: list[str]) -> Iterator[Cause]:
    """The very values of an input."""
    sources: dict[str, str] = {}
    for name in off:
        values = observed.get(name)
        if values is None or values.size < FEW - 1 or not values.any():
            continue
        for source, given in lab.inputs.items():
            if given.shape == values.shape and np.array_equal(given.astype(values.dtype), values):
                sources[name] = source
    if sources:
        same = {n: Predicted(v, EXACT) for n in sources if (v := observed.get(n)) is not None}
        yield Cause("stale", {"equals": sources}, change=replaced(same))


def rearranged(name: str, observed: Observed, prediction: Prediction) -> Iterator[Cause]:
    """The right values in other places, by a rule or by none."""
    values, predicted = observed.get(name), prediction[name]
    if values is None or predicted.values is None or not same_values(values, predicted):
        return
    for kind, shown, moved in arrangements(predicted.values, values.shape):
        if ratio(values, moved_to(predicted, moved)) < OFF:
            yield Cause(kind, shown, change=rearrange(name, kind, shown, values.shape))
    gaps = np.diff(np.sort(predicted.values, axis=None))
    told_apart = gaps.any() and float(np.median(gaps[gaps > 0])) > predicted.envelope.max
    if values.shape == predicted.values.shape and values.size >= FEW and told_apart:
        yield from permuted(name, values, predicted, predicted.values)


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


def rearrange(name: str, kind: str, shown: Mapping[str, Any], shape: tuple[int, ...]) -> Change:
    """The change that rearranges a tensor by the rule that is shown."""

    def change(prediction: Prediction) -> Prediction:
        predicted = prediction[name]
        if predicted.values is None:
            return prediction
        for other_kind, other_shown, moved in arrangements(predicted.values, shape):
            if (other_kind, other_shown) == (kind, shown):
                return {**prediction, name: moved_to(predicted, moved)}
        return prediction

    return change


def arrangements(values: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """All rules by which `values` may have come into other places of a tensor of this shape."""
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
        for step in range(1, min(MAX_ROLL, values.shape[axis] - 1) + 1):
            for shift in (step, -step):
                yield "shifted", {"axis": axis, "by": shift}, np.roll(values, shift, axis)


def turned(values: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any], Array]]:
    """Axes in another order, as a tensor of that order or read as if they were not."""
    rank = values.ndim
    for order in list(permutations(range(rank)))[1:]:
        found = values.transpose(order)
        if found.shape == shape:
            yield "transposed" if rank == 2 else "permuted-axes", {"axes": list(order)}, found
        elif found.size == np.prod(shape):
            yield "permuted-axes", {"read_in_order": list(order)}, found.reshape(shape)


def exchanged(observed: Observed, prediction: Prediction, left: Left, off: list[str]) -> Iterator[Cause]:
    """Another gradient of the same shape in the place of one that is off."""
    sources = {}
    for name in off:
        peers = [n for n, p in prediction.items() if n != name and gradients(n, name) and alike(p, prediction[name])]
        peers = [n for n in peers if np.any(prediction[n].values)]
        others = {n: ratio(observed.get(name), prediction[n]) for n in peers}
        nearest = min(others, key=others.__getitem__, default=None)
        if nearest is not None and others[nearest] < left[name] / BETTER:
            sources[name] = nearest
    if sources:
        shown = {"holds": sources}
        yield Cause("swapped-gradients", shown, change=lambda p: {**p, **{n: p[s] for n, s in sources.items()}})


def gradients(one: str, other: str) -> bool:
    """Whether both tensors are gradients (`grad.weight`, or `grads.0` of clipping)."""
    return one.startswith("grad") and other.startswith("grad")


def alike(one: Predicted, other: Predicted) -> bool:
    """Whether both have values of one shape."""
    return one.values is not None and other.values is not None and one.values.shape == other.values.shape


def scaled(lab: Lab, observed: Observed, prediction: Prediction, left: Left, off: list[str]) -> Iterator[Cause]:
    """A factor for each tensor that is off, together with all others that have the same; first those with a name."""
    best = {name: best_factor(observed.get(name), prediction[name]) for name in off}
    factors = {name: factor for name, factor in best.items() if factor is not None}
    named: dict[tuple[str, str, float], list[str]] = {}
    for name, factor in factors.items():
        for meaning, (kind, value) in named_factors(lab, name).items():
            if abs(factor - value) <= NEAR * abs(value) and closer(observed, prediction, name, value, left):
                named.setdefault((kind, meaning, value), []).append(name)
    for (kind, meaning, value), names in named.items():
        yield Cause(kind, {"factor": value, "meaning": meaning}, change=multiplied(dict.fromkeys(names, value)))
    for names in groups(factors):
        value = factors[names[0]]
        n_elements = sum(values.size for n in names if (values := observed[n]) is not None)
        inside = all(ratio(observed[n], times(prediction[n], value)) < OFF for n in names)
        if n_elements >= FEW and inside:
            shown = {"factor": value, "meaning": "no number of this case"}
            yield Cause("scaled", shown, change=multiplied(dict.fromkeys(names, value)), weight=2.0)


def groups(factors: Mapping[str, float]) -> Iterator[list[str]]:
    """Tensors with about the same factor, together."""
    waiting = list(factors)
    while waiting:
        first = waiting[0]
        group = [n for n in waiting if abs(factors[n] - factors[first]) <= NEAR * abs(factors[first])]
        yield group
        waiting = [n for n in waiting if n not in group]


def best_factor(values: Array | None, predicted: Predicted) -> float | None:
    """The factor by which `predicted` comes nearest to `values` (least squares)."""
    if values is None or predicted.values is None or values.shape != predicted.values.shape:
        return None
    usable = np.isfinite(values) & np.isfinite(predicted.values)
    exact = predicted.values[usable]
    power = float(np.sum(exact * exact))
    return float(np.sum(exact * values[usable])) / power if power > 0 else None


def closer(observed: Observed, prediction: Prediction, name: str, factor: float, left: Left) -> bool:
    """Whether the factor leaves less than a quarter."""
    return ratio(observed.get(name), times(prediction[name], factor)) < left[name] / BETTER


def times(predicted: Predicted, factor: float) -> Predicted:
    """The prediction of a multiple."""
    if predicted.values is None:
        return predicted
    return Predicted(predicted.values * factor, predicted.envelope.scaled(factor), predicted.unstable)


def multiplied(factors: Mapping[str, float]) -> Change:
    """The change that multiplies tensors."""
    return lambda prediction: {**prediction, **{n: times(prediction[n], f) for n, f in factors.items()}}


def named_factors(lab: Lab, name: str) -> dict[str, tuple[str, float]]:
    """Factors that mean something for a tensor: signs, doubling, and the numbers of summed elements."""
    found: dict[str, tuple[str, float]] = {
        "the opposite sign": ("sign-flipped", -1.0),
        "2: doubled, as a gradient that is not zeroed in between": ("scaled", 2.0),
        "1/2": ("scaled", 0.5),
    }
    values = lab.base[name].values
    for label, count in element_counts(lab, 1 if values is None else values.size).items():
        if count > 1:
            found[f"1/{count}: a mean over {label}"] = ("mean-vs-sum", 1.0 / count)
            found[f"{count}: a sum over {label}"] = ("mean-vs-sum", float(count))
            found[f"{count}/{count - 1}"] = ("scaled", count / (count - 1.0))
            found[f"{count - 1}/{count}"] = ("scaled", (count - 1.0) / count)
    return found


def element_counts(lab: Lab, size: int) -> dict[str, int]:
    """How many elements may have been summed into one of a tensor of this size."""
    x = lab.inputs.get("x")
    if x is None or not x.ndim:
        return {}
    counts = {x.shape[0]: "the first axis", x.shape[-1]: "the last axis"}
    counts[x.size // x.shape[-1]] = "all axes but the last"
    counts[x.size // max(1, size)] = "the elements that are summed"
    return {label: count for count, label in counts.items()}


def coarse(lab: Lab, observed: Observed, prediction: Prediction, off: list[str]) -> Iterator[Cause]:
    """Every value on the grid of a format of fewer digits, and the error of that format's size."""
    for target in FORMATS.values():
        if target.digits >= DIGITS[lab.dtype]:
            continue
        names = [n for n in off if lies_on(observed.get(n), prediction[n], target.name)]
        if names:
            factor = 2.0 ** (DIGITS[lab.dtype] - target.digits)
            shown = {"format": target.name, "every_value_is_of_this_format": names}
            change = widened(dict.fromkeys(names, factor))
            told_by = "values of more digits than the format has"
            yield Cause("reduced-precision", shown, change=change, weight=1.0, told_by=told_by)


def lies_on(values: Array | None, predicted: Predicted, target: str) -> bool:
    """Whether a tensor is on a grid that its prediction is not on."""
    if values is None or values.size <= FEW or predicted.values is None:
        return False
    exact = predicted.values.astype(np.float64)
    return on_grid(values.astype(np.float64), FORMATS[target]) and not on_grid(exact, FORMATS[target])


def widened(factors: Mapping[str, float]) -> Change:
    """The change that allows more rounding."""

    def change(prediction: Prediction) -> Prediction:
        wider = {n: replace(prediction[n], envelope=prediction[n].envelope.scaled(f)) for n, f in factors.items()}
        return {**prediction, **wider}

    return change
