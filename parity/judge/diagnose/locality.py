"""Where in a tensor is the error? One row, one column, one channel, the border, the last block."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.judge.bound.envelope import OFF, size
from parity.judge.diagnose.causes import DIGITS, Cause, Change
from parity.judge.diagnose.evaluator import Evaluator, Observed, Predicted, Prediction, ratio
from parity.judge.diagnose.generic import stored_in, widened

Array = NDArray[Any]
MOST = 0.5
"""An error in more than half of the places is not local."""
FAINT = 64.0
STRONG = 32.0
"""Near the threshold, a few elements beyond it are the tail of an error that is everywhere."""


def localized(
    evaluator: Evaluator, observed: Observed, prediction: Prediction, left: Mapping[str, float], exact: Collection[str]
) -> Iterator[Cause]:
    """Causes for what nothing else explains: an inner step of a float64 op in float32; errors in one part only."""
    off = [name for name, value in left.items() if value >= STRONG]
    if evaluator.dtype == "float64" and off and not set(off) & set(exact):
        yield from narrow_step(observed, prediction, [name for name, value in left.items() if value >= OFF])
    parts = {}
    for name in off:
        values, predicted = observed.get(name), prediction[name]
        if values is None or predicted.values is None or values.shape != predicted.values.shape:
            continue
        wrong = wrong_places(values, predicted)
        if where := describe(wrong):
            parts[name] = (where, contents(values[wrong]), wrong)
    if parts:
        shown = {name: f"{where}; {holds} there" for name, (where, holds, _) in parts.items()}
        masks = {name: wrong for name, (_, _, wrong) in parts.items()}
        yield Cause("localized", {"where": shown}, change=excusing(masks), weight=2.0)


def excusing(masks: Mapping[str, NDArray[np.bool_]]) -> Change:
    """The change that asks nothing of some places."""

    def change(prediction: Prediction) -> Prediction:
        healed = {n: replace(prediction[n].envelope, excused=mask) for n, mask in masks.items()}
        return {**prediction, **{n: replace(prediction[n], envelope=envelope) for n, envelope in healed.items()}}

    return change


def narrow_step(observed: Observed, prediction: Prediction, off: list[str]) -> Iterator[Cause]:
    """Errors in float64 of the size that one rounding to float32 makes, or careful float32 code."""
    factor = 2.0 ** (DIGITS["float64"] - DIGITS["float32"])
    for change in (stored_in(FORMATS["float32"], off), widened(dict.fromkeys(off, factor))):
        wider = change(prediction)
        if all(ratio(observed.get(n), wider[n]) < OFF and large_enough(observed[n], wider[n]) for n in off):
            shown = {"format": "float32", "step": "one inside; the sizes of the errors say so"}
            yield Cause("reduced-precision", shown, change=change, weight=2.0, portable=False)
            return


def large_enough(values: Array | None, predicted: Predicted) -> bool:
    """Whether the error is not much smaller than the envelope."""
    if values is None or predicted.values is None:
        return False
    return size(values.astype(np.longdouble) - predicted.values).rms * FAINT >= predicted.envelope.rms


def wrong_places(values: Array, predicted: Predicted) -> NDArray[np.bool_]:
    """The elements beyond the envelope."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(values - predicted.values)
    wrong: NDArray[np.bool_] = ~(apart <= OFF * predicted.envelope.max)
    return wrong


def contents(values: Array) -> str:
    """What stands in the wrong places."""
    if not np.isfinite(values).all():
        return "NaN or infinite numbers"
    if not values.any():
        return "zeros"
    return "one number" if np.unique(values).size == 1 and values.size > 1 else "other numbers"


def describe(wrong: NDArray[np.bool_]) -> str:
    """`index 3 of axis 1`, `the last 2 of axis 0`, `12 of 900 elements, ...`; empty where the error is everywhere."""
    share = float(wrong.mean()) if wrong.size else 0.0
    if not 0.0 < share <= MOST:
        return ""
    parts = [part for axis in range(wrong.ndim) if (part := along(wrong, axis))]
    count = f"{int(wrong.sum())} of {wrong.size} elements"
    return f"{count}: {', '.join(parts)}" if parts else ""


def along(wrong: NDArray[np.bool_], axis: int) -> str:
    """Which indices of one axis the error keeps to; empty where it is all over it."""
    length = wrong.shape[axis]
    hit = np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
    if hit.size == length or hit.size > MOST * length:
        return ""
    if hit.size == 1:
        return f"index {hit[0]} of axis {axis} (length {length})"
    if hit[-1] - hit[0] == hit.size - 1:
        end = " (its end)" if hit[-1] == length - 1 else ""
        return f"indices {hit[0]} to {hit[-1]}{end} of axis {axis} (length {length})"
    ends = set(hit.tolist()) == {0, length - 1}
    return f"the border of axis {axis} (length {length})" if ends else f"{hit.size} indices of axis {axis}"
