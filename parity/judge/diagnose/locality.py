"""Locates an error in a tensor: one row, one column, one channel, the border, the last block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.judge.bound.envelope import ERROR_BOUND, Array, size
from parity.judge.diagnose.causes import DIGITS, Cause, Change, Result, narrowed
from parity.judge.diagnose.evaluator import Predicted, Prediction, ratio
from parity.judge.diagnose.explanation import KernelExplanation

MOST_LOCAL = 0.5
"""An error at more than half of the positions is not local."""
FULL = 0.8
"""An error is in a part if nearly all of the part's elements have it; some may be right by chance."""
FAINT = 64.0
STRONG = 32.0
"""Below this error ratio, few elements beyond the error bound are the tail of an error that is everywhere."""


def localized(origin: KernelExplanation) -> Iterator[Cause]:
    """Causes for errors that nothing else explains: an inner step of a float64 op in float32; errors in one part
    only."""
    strong = [name for name, value in origin.left.items() if value >= STRONG]
    if origin.evaluator.dtype == "float64" and strong and origin.exact.isdisjoint(strong):
        yield from narrow_step(origin)
    where: dict[str, str] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    for name in strong:
        values, predicted = origin.observed.get(name), origin.prediction[name]
        if values is None or predicted.values is None or values.shape != predicted.values.shape:
            continue
        wrong = wrong_elements(values, predicted)
        if part := describe(wrong):
            where[name], masks[name] = f"{part}; {contents(values[wrong])} there", wrong
    if where:
        yield Cause("localized", {"where": where}, change=excusing(masks), weight=2.0)


def excusing(masks: Mapping[str, NDArray[np.bool_]]) -> Change:
    """The change that excludes some elements from comparison; nothing if the tensor's shape differs."""

    def change(prediction: Prediction) -> Prediction:
        excused = {
            n: replace(prediction[n].envelope, excused=mask)
            for n, mask in masks.items()
            if (values := prediction[n].values) is not None and mask.shape == values.shape
        }
        return {**prediction, **{n: replace(prediction[n], envelope=envelope) for n, envelope in excused.items()}}

    return change


def narrow_step(origin: KernelExplanation) -> Iterator[Cause]:
    """Errors in float64 as large as one rounding to float32, or as those of a careful implementation in float32."""
    observed, wrong = origin.observed, origin.wrong
    for change in narrowed(wrong, FORMATS["float32"], DIGITS["float64"]):
        wider = change(origin.prediction)
        if all(ratio(observed.get(n), wider[n]) < ERROR_BOUND and large_enough(observed[n], wider[n]) for n in wrong):
            shown = {"format": "float32", "step": "an inner one, judging by the size of the errors"}
            results = dict.fromkeys(wrong, Result("{} with a step in float32"))
            yield Cause("reduced-precision", shown, change=change, weight=2.0, portable=False, results=results)
            return


def large_enough(values: Array | None, predicted: Predicted) -> bool:
    """Whether the error is not much smaller than the error bound."""
    if values is None or predicted.values is None:
        return False
    return size(values.astype(np.longdouble) - predicted.values).rms * FAINT >= predicted.envelope.rms


def wrong_elements(values: Array, predicted: Predicted) -> NDArray[np.bool_]:
    """The elements that exceed the error bound."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(values - predicted.values)
    wrong: NDArray[np.bool_] = ~(difference <= ERROR_BOUND * predicted.envelope.max)
    return wrong


def contents(values: Array) -> str:
    """The content of the wrong elements."""
    if not np.isfinite(values).all():
        return "NaN or infinity"
    if not values.any():
        return "zeros"
    return "one number" if np.unique(values).size == 1 and values.size > 1 else "other numbers"


def describe(wrong: NDArray[np.bool_]) -> str:
    """`12 of 900 elements: index 3 of axis 1`, `the last 2 of axis 0`, ...; empty if the error is everywhere."""
    share = float(wrong.mean()) if wrong.size else 0.0
    if not 0.0 < share <= MOST_LOCAL:
        return ""
    hits = [
        np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis))) for axis in range(wrong.ndim)
    ]
    parts = ", ".join(part for axis, hit in enumerate(hits) if (part := along(hit, axis, wrong.shape[axis])))
    if not parts or wrong.sum() < FULL * np.prod([hit.size for hit in hits]):
        parts = border(wrong) or in_memory_order(np.flatnonzero(wrong), wrong.size) or parts
    return f"{int(wrong.sum())} of {wrong.size} elements: {parts}" if parts else ""


def along(hit: NDArray[np.intp], axis: int, length: int) -> str:
    """Which indices of one axis hold the error; empty if most do."""
    if hit.size == length or hit.size > MOST_LOCAL * length:
        return ""
    if hit.size == 1:
        return f"index {hit[0]} of axis {axis} (length {length})"
    if hit[-1] - hit[0] == hit.size - 1:
        end = " (its end)" if hit[-1] == length - 1 else ""
        return f"indices {hit[0]} to {hit[-1]}{end} of axis {axis} (length {length})"
    if set(hit.tolist()) == {0, length - 1}:
        return f"the border of axis {axis} (length {length})"
    step = step_of(hit, length)
    return f"indices {every(hit, step)} of axis {axis}" if step else f"{hit.size} indices of axis {axis}"


def border(wrong: NDArray[np.bool_]) -> str:
    """The axes at whose ends the whole error lies; empty if there are none."""
    axes = [axis for axis in range(wrong.ndim) if wrong.shape[axis] > 2]
    for number in range(2, len(axes) + 1):
        for chosen in combinations(axes, number):
            inside = tuple(slice(1, -1) if axis in chosen else slice(None) for axis in range(wrong.ndim))
            if not wrong[inside].any():
                return f"the border of axes {' and '.join(map(str, chosen))}"
    return ""


def in_memory_order(hit: NDArray[np.intp], size: int) -> str:
    """The wrong elements, if they are adjacent in memory or equally spaced; else empty."""
    if hit.size >= FULL * (hit[-1] - hit[0] + 1):
        return f"elements {hit[0]} to {hit[-1]} in memory order" if hit.size > 1 else ""
    step = step_of(hit, size)
    return f"elements {every(hit, step)} in memory order" if step else ""


def step_of(hit: NDArray[np.intp], length: int) -> int:
    """The period of the wrong indices if nearly all repeat over the whole length; else 0."""
    step = int(np.gcd.reduce(np.diff(hit))) if hit.size > 2 else 0
    covers = step > 1 and hit[0] < step and hit[-1] >= length - step
    return step if covers and hit.size * step >= FULL * length else 0


def every(hit: NDArray[np.intp], step: int) -> str:
    """`0, 7, 14, ...`."""
    return f"{hit[0]}, {hit[0] + step}, {hit[0] + 2 * step}, ..."
