"""What can be wrong with a tensor whatever the op: another one in its place, transposed, scaled, zero, stale, coarse.

Each function looks at what was observed and proposes causes whose change of the prediction comes nearer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.causes import DIGITS, Cause, Change
from parity.judge.envelope import OFF, Envelope, size
from parity.judge.formats import FORMATS, Format, on_grid
from parity.judge.lab import Lab, Observed, Predicted, Prediction, ratio

Array = NDArray[Any]
Left = Mapping[str, float]
BETTER = 4.0
"""A transform is proposed where it leaves less than a quarter."""
NEAR = 1e-3
EXACT = Envelope(0.0, 0.0)
EXTREME = 1e6
"""Beyond such a factor nothing of a tensor is left but its direction."""
UNNAMED = "no number of this case"
UNNAMED_WEIGHT = 2.5
"""Two plain causes are easier to believe than one factor without a meaning."""
MAX_ROLL = 3
LONG = 2048
VARIED = 64
FEW = 3
"""So many numbers at least must be hit before it is no chance: two lie on a line, or are each other's reverse."""


Causes = tuple[Cause, ...]


def proposals(lab: Lab, observed: Observed, prediction: Prediction, left: Left) -> Iterator[Causes]:
    """All transforms that come nearer to `observed`, some with a factor; `left` are the ratios of `prediction`."""
    off = [name for name, value in left.items() if value >= OFF]
    single = [*absent(observed, off), *stale(lab, observed, off), *scaled(lab, observed, prediction, left, off)]
    single += coarse(lab, observed, prediction, off)
    yield from ((cause,) for cause in single)
    for name in off:
        yield from rearranged(lab, name, observed, prediction)
    yield from exchanged(lab, observed, prediction, left, off)


def replaced(others: Mapping[str, Predicted]) -> Change:
    """The change that puts others in the places of some tensors' predictions."""
    return lambda prediction: {**prediction, **others}


def absent(observed: Observed, off: list[str]) -> Iterator[Cause]:
    """Nothing, or nothing but zeros."""
    for kind, gradient in (("missing-gradient", True), ("missing-output", False)):
        names = [n for n in off if n.startswith("grad") is gradient]
        nothing = {n: Predicted(None, EXACT) for n in names if observed.get(n) is None}
        if nothing:
            yield Cause(kind, {"returned": "nothing that can be compared"}, change=replaced(nothing))
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


def rearranged(lab: Lab, name: str, observed: Observed, prediction: Prediction) -> Iterator[Causes]:
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
            yield from with_factor(lab, cause, {name: factor})
    gaps = np.diff(np.sort(predicted.values, axis=None))
    told_apart = gaps.any() and float(np.median(gaps[gaps > 0])) > predicted.envelope.max
    if same and values.shape == predicted.values.shape and values.size >= FEW and told_apart:
        yield from ((cause,) for cause in permuted(name, values, predicted, predicted.values))


def fits_scaled(values: Array, predicted: Predicted) -> float | None:
    """The factor with which a prediction lies within the envelope, if one does."""
    factor = best_factor(values, predicted)
    if values.size < FEW or factor is None or not 1 / EXTREME < abs(factor) < EXTREME:
        return None
    return factor if ratio(values, times(predicted, factor)) < OFF else None


def with_factor(lab: Lab, cause: Cause, factors: Mapping[str, float]) -> Iterator[Causes]:
    """A transform with the factors that its tensors need beside it, by their names where they have one."""
    for value in dict.fromkeys(factors.values()):
        names = [n for n, f in factors.items() if abs(f - value) <= NEAR * abs(value)]
        found = [
            Cause(kind, {"factor": number, "meaning": text}, change=multiplied(dict.fromkeys(names, number)))
            for text, (kind, number) in named_factors(lab, names[0]).items()
            if abs(value - number) <= NEAR * abs(number)
        ]
        unnamed = {"factor": value, "meaning": UNNAMED}
        found = found or [
            Cause("scaled", unnamed, change=multiplied(dict.fromkeys(names, value)), weight=UNNAMED_WEIGHT)
        ]
        yield from ((cause, factor) for factor in found)


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


def exchanged(lab: Lab, observed: Observed, prediction: Prediction, left: Left, off: list[str]) -> Iterator[Causes]:
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
        yield from with_factor(lab, cause, factors) if factors else ((cause,),)


def exchange(sources: Mapping[str, str]) -> Change:
    """The change that puts other tensors in the places of some."""
    return lambda prediction: {**prediction, **{n: prediction[s] for n, s in sources.items()}}


def gradients(one: str, other: str) -> bool:
    """Whether both tensors are gradients (`grad.weight`, or `grads.0` of clipping)."""
    return one.startswith("grad") and other.startswith("grad")


def holds(predicted: Predicted, values: Array | None) -> bool:
    """Whether a prediction has the shape of these values, and is more than rounding around zero."""
    exact = predicted.values
    if values is None or exact is None or exact.shape != values.shape:
        return False
    return size(exact).rms > predicted.envelope.rms


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
        if n_elements >= FEW and inside and 1 / EXTREME < abs(value) < EXTREME:
            shown = {"factor": value, "meaning": UNNAMED}
            yield Cause("scaled", shown, change=multiplied(dict.fromkeys(names, value)), weight=UNNAMED_WEIGHT)


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
    """Every value on the grid of a format of fewer digits: rounded to it in the end, or computed in it."""
    for target in FORMATS.values():
        if target.digits >= DIGITS[lab.dtype]:
            continue
        names = [n for n in off if lies_on(observed.get(n), prediction[n], target.name)]
        if names:
            shown = {"format": target.name, "every_value_is_of_this_format": names}
            told_by = "values of more digits than the format has"
            stored, computed = stored_in(target, names), widened(dict.fromkeys(names, factor_of(lab, target)))
            for change, weight in ((stored, 1.0), (computed, 1.5)):
                yield Cause("reduced-precision", shown, change=change, weight=weight, told_by=told_by, portable=False)


def factor_of(lab: Lab, target: Format) -> float:
    """How much more a computation in a format loses."""
    return float(2.0 ** (DIGITS[lab.dtype] - target.digits))


def lies_on(values: Array | None, predicted: Predicted, target: str) -> bool:
    """Whether a tensor of many different values is on a grid that its prediction is not on."""
    if values is None or values.size <= FEW or predicted.values is None or predicted.coarse:
        return False
    if np.unique(values).size < min(values.size / 2, VARIED):
        return False
    exact = predicted.values.astype(np.float64)
    return on_grid(values.astype(np.float64), FORMATS[target]) and not on_grid(exact, FORMATS[target])


def stored_in(target: Format, names: Iterable[str]) -> Change:
    """The change that rounds tensors to a format."""

    def change(prediction: Prediction) -> Prediction:
        return {**prediction, **{n: rounded_to(prediction[n], target.unit_roundoff) for n in names}}

    return change


def rounded_to(predicted: Predicted, unit: float) -> Predicted:
    """A prediction whose values are rounded once, by at most `unit` relatively."""
    if predicted.values is None:
        return predicted
    found = size(predicted.values)
    return replace(
        predicted, envelope=predicted.envelope.joined(Envelope(unit * found.rms, unit * found.max)), coarse=True
    )


def widened(factors: Mapping[str, float]) -> Change:
    """The change that allows more rounding."""

    def change(prediction: Prediction) -> Prediction:
        wider = {
            n: replace(prediction[n], envelope=prediction[n].envelope.scaled(f), coarse=True)
            for n, f in factors.items()
        }
        return {**prediction, **wider}

    return change
