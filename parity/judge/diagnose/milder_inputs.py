"""Identifies a lossy algorithm that leaves no correct digit, by milder inputs.

If a subtraction cancels everything, the error depends on the order of the sums and does not identify the formula. With
a smaller offset the same kernel loses only some digits, and their number identifies the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, Array
from parity.judge.diagnose.causes import BAND_WEIGHT, standing_causes
from parity.judge.diagnose.evaluator import Predicted, Prediction
from parity.judge.diagnose.explanation import KernelExplanation

PARTS = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
"""What is left of the offset: each step changes the loss of a naive variance by a factor of 16."""
FAR = 8.0
"""An offset of more than this many standard deviations is large."""


def milder_inputs(case: CasePlan, inputs: Mapping[str, Array]) -> Iterator[tuple[float, dict[str, Array]]]:
    """The inputs with smaller and smaller offsets of the op's data, and what part of the offset is left; none if it is
    small."""
    name = case.definition.data
    values = None if name is None else inputs.get(name)
    if name is None or values is None or values.dtype.kind != "f" or not np.isfinite(values).all():
        return
    mean, spread = float(np.mean(values, dtype=np.float64)), float(np.std(values, dtype=np.float64))
    for part in PARTS:
        if abs(mean) > FAR * spread > 0:
            yield part, {**inputs, name: (values - mean * (1 - part)).astype(values.dtype)}


def widest(predicted: Predicted, left: float) -> Predicted:
    """A prediction that accepts any error of this size, or NaN: a negative variance has no root."""
    if np.isfinite(left) or predicted.values is None:
        return predicted.widened(2 * left / ERROR_BOUND)
    everywhere = np.ones(predicted.values.shape, bool)
    return replace(predicted, envelope=replace(predicted.envelope, excused=everywhere), coarse=True)


def lost(start: KernelExplanation, milder: KernelExplanation, part: float) -> KernelExplanation | None:
    """The lossy causes of milder inputs for tensors that have lost all digits; None if that is not what happened.

    The algorithm must lose digits of these tensors too, computed in this dtype.
    """
    wrong = start.wrong
    ids = {cause.id for cause in milder.causes}
    if not milder.causes or not all(cause.lossy for cause in milder.causes):
        return None
    same = [cause for cause in standing_causes(start.evaluator) if cause.lossy and cause.id in ids]
    predictions = [start.evaluator.predict(cause.alteration) for cause in same if cause.alteration is not None]
    if not any(p is not None and all(p[name].unstable for name in wrong) for p in predictions):
        return None

    def widened(prediction: Prediction) -> Prediction:
        wide = {n: widest(prediction[n], start.left[n]) for n in wrong}
        return {**prediction, **{name: replace(predicted, unstable=True) for name, predicted in wide.items()}}

    cause = milder.causes[0]
    return start.extended(
        replace(
            cause,
            parameters={"recognised_at": f"1/{1 / part:g} of the offset"},
            alteration=None,
            change=widened,
            weight=BAND_WEIGHT,
            portable=False,
            expression=milder.expression(cause),
        )
    )
