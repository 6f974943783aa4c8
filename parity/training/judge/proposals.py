"""Hypotheses that the observed tensors suggest: zeros, signs, factors, other places, parameters left as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from parity.judge.bound.envelope import OFF
from parity.judge.diagnose.causes import FEW
from parity.judge.diagnose.proposals import EXTREME, NEAR, UNNAMED
from parity.training.judge.hypotheses import FITTED, Hypothesis, reworked, times
from parity.training.judge.measured import Measured, owner, ratio
from parity.training.judge.oracle import Array, Arrays, Changes
from parity.training.model import unprefixed
from parity.training.records import StepRecord
from parity.training.steps import Update

GradientOf = Callable[[Arrays], Array]
"""One gradient from all of them."""


def proposals(stage: str, measured: Measured) -> Iterator[Hypothesis]:
    """Hypotheses about a stage from one probe."""
    propose = PROPOSALS.get(stage)
    if propose is not None and measured.exact:
        yield from propose(measured)


def of_gradients(measured: Measured) -> Iterator[Hypothesis]:
    """What became of gradients, those of one kind together; a factor that many share is one hypothesis."""
    exact = unprefixed("grad", measured.exact)
    outside = sorted(name.removeprefix("grad.") for name in measured.tensors_outside)
    changed: dict[str, dict[str, GradientOf]] = {}
    for name in outside:
        full = f"grad.{name}"
        for diagnosis, other in others(name, exact):
            if ratio(measured.observed[full], other(exact), measured.envelopes[full]) < OFF:
                changed.setdefault(diagnosis, {})[name] = other
                break
    for diagnosis, instead in changed.items():
        yield reworked(diagnosis, {"tensors": sorted(instead)}, partial(replaced, instead), 0.25)
    pairs = {name: (measured.observed[f"grad.{name}"], exact[name]) for name in outside}
    factor = common_factor(pairs)
    if factor is not None:
        shown = {"factor": factor, "meaning": UNNAMED}
        yield reworked("scaled", shown, partial(replaced, {n: scaled(n, factor) for n in outside}), FITTED)


def others(name: str, exact: Arrays) -> Iterator[tuple[str, GradientOf]]:
    """What may have become of one gradient."""
    yield "missing-gradient", lambda grads: np.zeros_like(grads[name])
    yield "sign-flipped", scaled(name, -1.0)
    for other, values in exact.items():
        if other != name and values.shape == exact[name].shape:
            yield "swapped-gradients", scaled(other, 1.0)
    if exact[name].ndim == 2 and len(set(exact[name].shape)) == 1:
        yield "transposed", lambda grads: grads[name].T


def scaled(name: str, factor: float) -> GradientOf:
    """A gradient times a factor."""
    return lambda grads: times(factor)(grads[name])


def replaced(instead: Mapping[str, GradientOf], grads: dict[str, Array], _: StepRecord) -> dict[str, Array]:
    """The gradients with others in the places of some."""
    return {name: instead[name](grads) if name in instead else g for name, g in grads.items()}


def common_factor(tensors: Mapping[str, tuple[Array, Array]]) -> float | None:
    """The factor that all tensors have from what they should be (least squares); None where there is none."""
    pairs = [(observed.astype(np.float64), exact.astype(np.float64)) for observed, exact in tensors.values()]
    pairs = [(o, e) for o, e in pairs if o.shape == e.shape and np.isfinite(o).all()]
    weights = [(float(np.vdot(e, e)), float(np.vdot(e, o))) for o, e in pairs]
    usable = [cross / power for power, cross in weights if power > 0]
    if not usable or sum(e.size for _, e in pairs) < FEW:
        return None
    factor = sum(cross for _, cross in weights) / sum(power for power, _ in weights)
    same = all(abs(f - factor) <= NEAR * abs(factor) for f in usable)
    return factor if same and 1 / EXTREME < abs(factor) < EXTREME else None


def of_loss(measured: Measured) -> Iterator[Hypothesis]:
    """The loss times a factor."""
    exact, observed = float(measured.exact["loss"]), float(measured.observed["loss"])
    if exact and observed and np.isfinite(observed):
        factor = observed / exact
        yield Hypothesis("scaled", {"factor": factor, "meaning": UNNAMED}, Changes(loss=times(factor)), FITTED)


def of_update(measured: Measured) -> Iterator[Hypothesis]:
    """Parameters that stayed as they were, and steps that are longer by one factor."""
    outside, before = measured.tensors_outside, measured.probe.before
    still = frozenset(own for own in map(owner, outside) if left_alone(own, measured))
    if still:
        unmoved = {"parameters": sorted(still), "update": "not applied"}
        yield Hypothesis("stale", unmoved, Changes(update=Update(skipped=still)), 0.25)
    steps = {}
    for name in sorted(name for name in outside if name.startswith("param.")):
        start = before[name].astype(measured.exact[name].dtype)
        steps[name] = (measured.observed[name] - start, measured.exact[name] - start)
    factor = common_factor(steps)
    if factor is not None:
        shown = {"factor": factor, "of": "the step of every parameter"}
        yield Hypothesis("scaled", shown, Changes(update=Update(factor=factor)), FITTED)


def left_alone(own: str, measured: Measured) -> bool:
    """Whether a parameter and its states are what they were before, bit for bit."""
    before = measured.probe.before
    mine = [name for name in measured.observed if owner(name) == own]
    return all(bool(np.all(measured.observed[name] == before.get(name, 0.0))) for name in mine)


PROPOSALS: Mapping[str, Callable[[Measured], Iterator[Hypothesis]]] = {
    "gradient": of_gradients,
    "loss": of_loss,
    "update": of_update,
}
