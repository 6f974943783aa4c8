"""Numbers of an op whose value may differ in a kernel, fitted to the observed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parity.cases.op import GRADIENT, Fit, IncompatibleError
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.evaluator import Alteration, Evaluator
from parity.judge.diagnose.explanation import KernelExplanation

COARSE = tuple(10.0 ** (k / 2) for k in range(-18, 13))
FEW = 3
SAME = 1e-9
MOST = 10.0
STEPS = 8
STEP = 2.0**-18


def fitted(origin: KernelExplanation) -> Iterator[Cause]:
    """For every number that can be fitted, the values that fit the wrong tensors best: together, and one by one."""
    evaluator, observed = origin.evaluator, origin.observed
    tensors = [name for name in origin.wrong if observed.get(name) is not None]
    if any(cause.change is not None for cause in origin.causes) or not tensors:
        return
    usable = [name for name in tensors if evaluator.base[name].envelope.rms > 0]
    forward = [name for name in usable if not name.startswith(GRADIENT)]
    if sum(given.size for name in forward if (given := observed[name]) is not None) < FEW:
        forward = usable
    for fit in evaluator.op.fits:
        start = fit.start(evaluator.case.params)
        values: list[float] = []
        for names in [forward, *([name] for name in forward if len(forward) > 1)]:
            value = fit_value(origin, fit, names)
            if value is None or value > max(fit.most, MOST * start) or is_float32(value, start):
                continue
            if all(abs(value - other) > SAME * other for other in values):
                values.append(value)
                alteration = alteration_of(evaluator, fit, value)
                yield Cause(fit.id, {fit.target: value}, alteration, weight=1.0, shown_by=fit.shown_by)


def is_float32(value: float, start: float) -> bool:
    """Whether a fitted value is only the float32 form of the right one, or of its complement to 1."""
    forms = (float(np.float32(start)), 1.0 - float(np.float32(1.0 - start)))
    return any(abs(value - narrow) < abs(start - narrow) / 2 for narrow in forms)


def alteration_of(evaluator: Evaluator, fit: Fit, value: float) -> Alteration:
    """The alteration that gives the fitted number another value."""
    change = {fit.target: value}
    return Alteration(params=change) if hasattr(evaluator.case.params, fit.target) else Alteration(arguments=change)


def fit_value(origin: KernelExplanation, fit: Fit, tensors: list[str]) -> float | None:
    """The value with the smallest residual, by a coarse search over decades and Gauss-Newton steps from there."""
    evaluator = origin.evaluator
    given = {n: values for n in tensors if (values := origin.observed.get(n)) is not None}
    start = fit.start(evaluator.case.params)
    if start <= 0 or sum(values.size for values in given.values()) < FEW:
        return None
    gradients = any(n.startswith(GRADIENT) for n in given)

    def residuals(value: float) -> Array | None:
        try:
            alteration = origin.alteration.with_(alteration_of(evaluator, fit, value))
            predicted = evaluator.values_of(alteration, gradients=gradients)
        except IncompatibleError:
            return None
        if any(given[n].shape != predicted[n].shape for n in given):
            return None
        joined = np.concatenate([np.ravel((given[n] - predicted[n]) / evaluator.base[n].envelope.rms) for n in given])
        return joined.astype(np.float64) if np.isfinite(joined).all() else None

    tried = [(residuals(value), value) for value in (start * factor for factor in COARSE)]
    norms = [(float(np.linalg.norm(left)), value) for left, value in tried if left is not None]
    return newton(residuals, min(norms)[1]) if norms else None


def newton(residuals: Callable[[float], Array | None], value: float) -> float:
    """The positive number near `value` that minimizes the residuals (Gauss-Newton, the slope by a difference)."""
    for _ in range(STEPS):
        here, there = residuals(value), residuals(value * (1 + STEP))
        if here is None or there is None or not (slope := (there - here) / (value * STEP)).any():
            break
        better = value - float(slope @ here / (slope @ slope))
        value = better if better > 0 else value / 2
    return value
