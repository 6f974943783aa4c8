"""Hypotheses that the observed tensors suggest: zeros, signs, factors, other places, parameters left as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parity.judge.bound.envelope import OFF
from parity.judge.diagnose.factors import EXTREME, FEW, NEAR, UNNAMED
from parity.training.judge.hypotheses import FITTED, Hypothesis
from parity.training.judge.oracle import Array, Changes, Probe
from parity.training.judge.stages import Measured, owner, ratio
from parity.training.steps import Update

Transform = Callable[[dict[str, Array]], Array]
"""One gradient from all of them."""


def proposals(stage: str, probe: Probe, measured: Measured) -> Iterator[Hypothesis]:
    """Hypotheses about a stage from one probe."""
    if not measured.exact:
        return
    if stage == "gradient":
        yield from of_gradients(measured)
    if stage == "loss":
        yield from of_loss(measured)
    if stage == "update":
        yield from of_update(probe, measured)


def of_gradients(measured: Measured) -> Iterator[Hypothesis]:
    """What became of gradients, those of one kind together; a factor that many share is one hypothesis."""
    off = [name for name, value in measured.ratios.items() if value >= OFF]
    found: dict[str, dict[str, Transform]] = {}
    for name in off:
        for kind, transform in transforms(name, measured):
            if fits(name, measured, transform):
                found.setdefault(kind, {})[name.removeprefix("grad.")] = transform
                break
    for kind, changed in found.items():
        yield Hypothesis(kind, {"tensors": sorted(changed)}, Changes(rework=(replacing(changed),)), 0.25)
    shared = common_factor(measured, off)
    if shared is not None:
        names = frozenset(n.removeprefix("grad.") for n in off)
        changed = {n: scaled_by(n, shared) for n in names}
        shown = {"factor": shared, "meaning": UNNAMED}
        yield Hypothesis("scaled", shown, Changes(rework=(replacing(changed),)), FITTED)


def transforms(name: str, measured: Measured) -> Iterator[tuple[str, Transform]]:
    """What may have become of one gradient."""
    own = name.removeprefix("grad.")
    exact = measured.exact[name]
    yield "missing-gradient", lambda grads: np.zeros_like(grads[own])
    yield "sign-flipped", lambda grads: -grads[own]
    for other, values in measured.exact.items():
        if other != name and values.shape == exact.shape:
            yield "swapped-gradients", taken_from(other.removeprefix("grad."))
    if exact.ndim == 2 and exact.shape[0] == exact.shape[1]:
        yield "transposed", lambda grads: grads[own].T


def taken_from(other: str) -> Transform:
    """Another one's gradient."""
    return lambda grads: grads[other]


def scaled_by(name: str, factor: float) -> Transform:
    """The gradient times a factor."""
    return lambda grads: grads[name] * grads[name].dtype.type(factor)


def fits(name: str, measured: Measured, transform: Transform) -> bool:
    """Whether a transform leaves rounding."""
    grads = {n.removeprefix("grad."): v for n, v in measured.exact.items()}
    return ratio(measured.observed[name], transform(grads), measured.envelopes[name]) < OFF


def replacing(changed: dict[str, Transform]) -> Callable[[dict[str, Array], Probe], dict[str, Array]]:
    """The change that puts others in the places of some gradients."""

    def rework(grads: dict[str, Array], _: Probe) -> dict[str, Array]:
        return {name: changed[name](grads) if name in changed else g for name, g in grads.items()}

    return rework


def common_factor(measured: Measured, names: list[str]) -> float | None:
    """The factor that all these tensors have from what they should be (least squares); None where there is none."""
    pairs = [(measured.observed[n].astype(np.float64), measured.exact[n].astype(np.float64)) for n in names]
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
    factor = common_of_scalars(measured)
    if factor is not None:
        shown = {"factor": factor, "meaning": UNNAMED}
        yield Hypothesis("scaled", shown, Changes(loss=lambda v: v * v.dtype.type(factor)), FITTED)


def common_of_scalars(measured: Measured) -> float | None:
    """The loss over what it should be."""
    exact, observed = float(measured.exact["loss"]), float(measured.observed["loss"])
    return observed / exact if exact and np.isfinite(observed) and observed else None


def of_update(probe: Probe, measured: Measured) -> Iterator[Hypothesis]:
    """Parameters that stayed as they were, and steps that are longer by one factor."""
    before = probe.group("param", before=True)
    moved: dict[str, Any] = {}
    every = [n for n, r in measured.ratios.items() if r >= OFF]
    off = [n for n in every if n.startswith("param.")]
    still = frozenset(own for own in map(owner, every) if left_alone(own, probe, measured))
    if still:
        unmoved = {"parameters": sorted(still), "update": "not applied"}
        yield Hypothesis("stale", unmoved, Changes(update=Update(skipped=still)), 0.25)
    for name in off:
        start = before[name.removeprefix("param.")].astype(measured.exact[name].dtype)
        moved[name] = (measured.observed[name] - start, measured.exact[name] - start)
    steps = Measured({n: o for n, (o, _) in moved.items()}, {n: e for n, (_, e) in moved.items()}, {})
    factor = common_factor(steps, list(moved))
    if factor is not None:
        shown = {"factor": factor, "of": "the step of every parameter"}
        yield Hypothesis("scaled", shown, Changes(update=Update(factor=factor)), FITTED)


def left_alone(own: str, probe: Probe, measured: Measured) -> bool:
    """Whether a parameter and its states are what they were before, bit for bit."""
    mine = [name for name in measured.observed if owner(name) == own]
    return all(bool(np.all(measured.observed[name] == probe.record.before.get(name, 0.0))) for name in mine)
