"""What can be wrong with a tensor whatever the op: nothing in it, an input's values, too few digits; and all the rest.

Each function looks at what was observed and proposes causes whose change of the prediction comes nearer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS, Format, on_grid
from parity.judge.bound.envelope import OFF, Envelope, size
from parity.judge.diagnose.causes import DIGITS, Cause, Change, replaced
from parity.judge.diagnose.evaluator import Evaluator, Observed, Predicted, Prediction, is_gradient
from parity.judge.diagnose.factors import FEW, Causes, Left, scaled
from parity.judge.diagnose.places import exchanged, rearranged

Array = NDArray[Any]


EXACT = Envelope(0.0, 0.0)
VARIED = 64


def proposals(evaluator: Evaluator, observed: Observed, prediction: Prediction, left: Left) -> Iterator[Causes]:
    """All transforms that come nearer to `observed`, some with a factor; `left` are the ratios of `prediction`."""
    off = [name for name, value in left.items() if value >= OFF]
    single = [
        *absent(observed, off),
        *stale(evaluator, observed, off),
        *scaled(evaluator, observed, prediction, left, off),
    ]
    single += coarse(evaluator, observed, prediction, off)
    yield from ((cause,) for cause in single)
    for name in off:
        yield from rearranged(evaluator, name, observed, prediction)
    yield from exchanged(evaluator, observed, prediction, left, off)


def absent(observed: Observed, off: list[str]) -> Iterator[Cause]:
    """Nothing, or nothing but zeros."""
    for kind, gradient in (("missing-gradient", True), ("missing-output", False)):
        names = [n for n in off if is_gradient(n) is gradient]
        nothing = {n: Predicted(None, EXACT) for n in names if observed.get(n) is None}
        if nothing:
            yield Cause(kind, {"returned": "nothing that can be compared"}, change=replaced(nothing))
        given = {n: v for n in names if (v := observed.get(n)) is not None}
        zeros = {n: Predicted(np.zeros_like(v), EXACT) for n, v in given.items() if v.size and not v.any()}
        if zeros:
            yield Cause(kind, {"returned": "zeros"}, change=replaced(zeros))


def stale(evaluator: Evaluator, observed: Observed, off: list[str]) -> Iterator[Cause]:
    """The very values of an input."""
    sources: dict[str, str] = {}
    for name in off:
        values = observed.get(name)
        if values is None or values.size < FEW - 1 or not values.any():
            continue
        for source, given in evaluator.inputs.items():
            if given.shape == values.shape and np.array_equal(given.astype(values.dtype), values):
                sources[name] = source
    if sources:
        same = {n: Predicted(v, EXACT) for n in sources if (v := observed.get(n)) is not None}
        yield Cause("stale", {"equals": sources}, change=replaced(same))


def coarse(evaluator: Evaluator, observed: Observed, prediction: Prediction, off: list[str]) -> Iterator[Cause]:
    """Every value on the grid of a format of fewer digits: rounded to it in the end, or computed in it."""
    for target in FORMATS.values():
        if target.digits >= DIGITS[evaluator.dtype]:
            continue
        names = [n for n in off if lies_on(observed.get(n), prediction[n], target.name)]
        if names:
            shown = {"format": target.name, "every_value_is_of_this_format": names}
            shown_by = "values of more digits than the format has"
            stored, computed = stored_in(target, names), widened(dict.fromkeys(names, factor_of(evaluator, target)))
            for change, weight in ((stored, 1.0), (computed, 1.5)):
                yield Cause("reduced-precision", shown, change=change, weight=weight, shown_by=shown_by, portable=False)


def factor_of(evaluator: Evaluator, target: Format) -> float:
    """How much more a computation in a format loses."""
    return float(2.0 ** (DIGITS[evaluator.dtype] - target.digits))


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
