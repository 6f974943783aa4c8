"""A tensor that is off by one factor: fitted, and named where it is the number of something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.bound.envelope import OFF
from parity.judge.diagnose.causes import Cause, Change
from parity.judge.diagnose.evaluator import Evaluator, Observed, Predicted, Prediction, ratio

Array = NDArray[Any]
Left = Mapping[str, float]


BETTER = 4.0
"""A transform is proposed where it leaves less than a quarter."""
NEAR = 1e-3
EXTREME = 1e6
"""Beyond such a factor nothing of a tensor is left but its direction."""
UNNAMED = "no number of this case"
UNNAMED_WEIGHT = 2.5
"""Two plain causes are easier to believe than one factor without a meaning."""
FEW = 3
"""So many numbers at least must be hit before it is no chance: two lie on a line, or are each other's reverse."""
Causes = tuple[Cause, ...]


def fits_scaled(values: Array, predicted: Predicted) -> float | None:
    """The factor with which a prediction lies within the envelope, if one does."""
    factor = best_factor(values, predicted)
    if values.size < FEW or factor is None or not 1 / EXTREME < abs(factor) < EXTREME:
        return None
    return factor if ratio(values, times(predicted, factor)) < OFF else None


def with_factor(evaluator: Evaluator, cause: Cause, factors: Mapping[str, float]) -> Iterator[Causes]:
    """A transform with the factors that its tensors need beside it, by their names where they have one."""
    for value in dict.fromkeys(factors.values()):
        names = [n for n, f in factors.items() if abs(f - value) <= NEAR * abs(value)]
        found = [
            Cause(kind, {"factor": number, "meaning": text}, change=multiplied(dict.fromkeys(names, number)))
            for text, (kind, number) in named_factors(evaluator, names[0]).items()
            if abs(value - number) <= NEAR * abs(number)
        ]
        unnamed = {"factor": value, "meaning": UNNAMED}
        found = found or [
            Cause("scaled", unnamed, change=multiplied(dict.fromkeys(names, value)), weight=UNNAMED_WEIGHT)
        ]
        yield from ((cause, factor) for factor in found)


def scaled(
    evaluator: Evaluator, observed: Observed, prediction: Prediction, left: Left, off: list[str]
) -> Iterator[Cause]:
    """A factor for each tensor that is off, together with all others that have the same; first those with a name."""
    best = {name: best_factor(observed.get(name), prediction[name]) for name in off}
    factors = {name: factor for name, factor in best.items() if factor is not None}
    named: dict[tuple[str, str, float], list[str]] = {}
    for name, factor in factors.items():
        for meaning, (kind, value) in named_factors(evaluator, name).items():
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


def named_factors(evaluator: Evaluator, name: str) -> dict[str, tuple[str, float]]:
    """Factors that mean something for a tensor: signs, doubling, and the numbers of summed elements."""
    found: dict[str, tuple[str, float]] = {
        "the opposite sign": ("sign-flipped", -1.0),
        "2: doubled, as a gradient that is not zeroed in between": ("scaled", 2.0),
        "1/2": ("scaled", 0.5),
    }
    values = evaluator.base[name].values
    for label, count in element_counts(evaluator, 1 if values is None else values.size).items():
        if count > 1:
            found[f"1/{count}: a mean over {label}"] = ("mean-vs-sum", 1.0 / count)
            found[f"{count}: a sum over {label}"] = ("mean-vs-sum", float(count))
            found[f"{count}/{count - 1}"] = ("scaled", count / (count - 1.0))
            found[f"{count - 1}/{count}"] = ("scaled", (count - 1.0) / count)
    return found


def element_counts(evaluator: Evaluator, size: int) -> dict[str, int]:
    """How many elements may have been summed into one of a tensor of this size."""
    x = evaluator.data
    if x is None or not x.ndim:
        return {}
    counts = {x.shape[0]: "the first axis", x.shape[-1]: "the last axis"}
    counts[x.size // x.shape[-1]] = "all axes but the last"
    counts[x.size // max(1, size)] = "the elements that are summed"
    return {label: count for count, label in counts.items()}
