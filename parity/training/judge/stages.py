"""One stage of one probed step: how far what a side had is from what it should have had, in envelopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.cases import OPS
from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF, WORK, Envelope, Size, envelope_of, error_ratio, size
from parity.training.judge.oracle import NOTHING, Array, Arrays, Changes, Probe, StepOracle, UnknownError
from parity.training.spec import walk
from parity.training.steps import Update, params_of
from parity.training.variants import terms as cancelling_terms

FIRST_RUNS = 3
RUNS = 12
EXPONENTIAL = 16.0
"""Unit roundoffs that the exponentials of a loss may be off by, which is what its logarithm is off by absolutely, and
its gradient relatively to what it would be for other classes. Vectorised ones lose so much: the losses of oneflow 0.9.0
are off by 25 in float32, those of torch 2.13.0 and paddle 3.3.1 by less than 2."""
NEAR = 4.0
"""More runs are made where the first ones leave a ratio from here on."""
FAR = 1e4
"""No envelope grows by so much with more runs, except where an activation has a kink."""
POOLED = 1.0 / 16.0
"""The part of a unit roundoff of the largest gradient that any gradient may be off by."""
ZERO = 4.0
"""A gradient of so many envelopes is zero but for rounding."""
CANCELLED = 8.0
"""Unit roundoffs of its terms that such a gradient may hold: each of many terms brings its own."""
TOLERATED = 160.0
"""Unit roundoffs, beside the size of its tensor, of an error in the forward pass, the loss or a gradient that is told
but fails nothing where no cause explains it: the functions of a library are approximations of this order."""
APPROXIMATED = ("forward", "loss", "gradient")
"""The stages in which such functions are at work."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "forward": ("output", "buffer."),
    "loss": ("loss",),
    "gradient": ("grad.",),
    "clip": ("clipped.", "norm"),
    "update": ("param.", "state."),
}
"""The tensors of a record that belong to a stage."""


@dataclass(frozen=True)
class Measured:
    """A stage of a probe: what was observed, what it should be, what careful code loses, and the ratio by tensor."""

    observed: Arrays
    exact: Arrays
    envelopes: Mapping[str, Envelope]
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest ratio."""
        return max(self.ratios.values(), default=0.0)

    @property
    def tensor(self) -> str:
        """The tensor with the largest ratio."""
        return max(self.ratios, key=lambda name: self.ratios[name]) if self.ratios else ""

    @property
    def outside(self) -> bool:
        """Whether a tensor is outside."""
        return self.worst >= OFF

    def small(self, dtype: str) -> bool:
        """Whether every error is at most TOLERATED unit roundoffs of its tensor's size, or a part of the largest's."""
        sizes = {name: size(values).rms for name, values in self.exact.items()}
        floor = POOLED * max(sizes.values(), default=0.0)
        limit = TOLERATED * UNIT_ROUNDOFF[dtype]
        off = [name for name, found in self.ratios.items() if found >= OFF]
        return all(
            name in sizes
            and math.isfinite(self.ratios[name])
            and size(self.observed[name] - self.exact[name]).rms <= limit * max(sizes[name], floor)
            for name in off
        )


class Spread:
    """The largest error of careful code at each element, as runs are added."""

    def __init__(self, exact: Arrays, dtype: str) -> None:
        self._exact = exact
        self._largest = {n: UNIT_ROUNDOFF[dtype] * np.abs(v) for n, v in exact.items()}
        self._finite = {n: np.zeros(v.shape, np.bool_) for n, v in exact.items()}

    def add(self, found: Arrays) -> None:
        """One run more."""
        for name, exact in self._exact.items():
            with np.errstate(invalid="ignore"):
                error = np.abs(found[name] - exact)
            self._finite[name] |= np.isfinite(found[name])
            self._largest[name] = np.fmax(self._largest[name], error)

    @property
    def envelopes(self) -> dict[str, Envelope]:
        """The envelope of every tensor."""
        return {n: envelope_of(v, self._exact[n], self._finite[n]) for n, v in self._largest.items()}


def measure(oracle: StepOracle, stage: str, probe: Probe, changes: Changes = NOTHING) -> Measured | None:
    """A stage under a hypothesis, by default none, with the envelope of careful code that does the same.

    None where the side does not show the stage; inf where its tensors do not fit each other.
    """
    if not shown(stage, probe):
        return None
    try:
        exact = oracle.answer(stage, probe, changes)
    except UnknownError:
        return None
    except IncompatibleError:
        return Measured({}, {}, {}, {stage: math.inf})
    observed = observed_of(probe, exact, oracle.dtype)
    exact = {name: values for name, values in exact.items() if name in observed}
    spread = Spread(exact, oracle.dtype)
    for run in range(FIRST_RUNS):
        spread.add(oracle.answer(stage, probe, changes, run))
    measured = with_ratios(observed, exact, widened(oracle, stage, probe, exact, spread.envelopes))
    if measured.worst < NEAR or (measured.worst > FAR and not kinked(oracle)):
        return measured
    for run in range(FIRST_RUNS, RUNS):
        spread.add(oracle.answer(stage, probe, changes, run))
    if stage == "update" and oracle.dtype != "float64":
        for arguments in narrow_arguments(oracle, probe):
            narrow = Changes(update=Update(arguments))
            spread.add(oracle.answer(stage, probe, narrow.with_(changes), 0))
    return with_ratios(observed, exact, widened(oracle, stage, probe, exact, spread.envelopes))


def shown(stage: str, probe: Probe) -> bool:
    """Whether the record has a tensor of the stage, and rows that are rows."""
    return any(name.startswith(KINDS[stage]) for name in probe.record.tensors)


def kinked(oracle: StepOracle) -> bool:
    """Whether an activation of the model has a kink, at which rounding decides on which side an element is."""
    return any(layer.op == "relu" for layer in walk(oracle.training.layers))


def narrow_arguments(oracle: StepOracle, probe: Probe) -> list[Mapping[str, object]]:
    """The arguments under which the optimizer's lines keep attributes in float32."""
    params = params_of(oracle.training, 0, probe.step, 1.0, Update())
    knobs = OPS[oracle.training.optimizer].knobs(params, {})
    return [knob.arguments for knob in knobs if knob.id == "attribute-precision"]


def observed_of(probe: Probe, exact: Arrays, dtype: str) -> dict[str, Array]:
    """What the side has of the stage's tensors, in the dtype, and in the exact one's shape where that is but a form.

    A whole kind of tensors that the mode does not show is left out; a single one that is missing is NaN.
    """
    seen = probe.record.tensors
    kinds = {kind_of(name) for name in seen}
    found = {}
    for name, values in exact.items():
        if kind_of(name) not in kinds:
            continue
        mine = seen.get(name)
        if mine is None:
            found[name] = np.full(values.shape, np.nan, dtype)
        else:
            found[name] = in_shape(mine, values.shape).astype(dtype, copy=False)
    return found


def kind_of(name: str) -> str:
    """What a tensor is: `param`, `grad`, `state.exp_avg`."""
    head, _, rest = name.partition(".")
    return f"{head}.{rest.partition('.')[0]}" if head == "state" else head


def owner(name: str) -> str:
    """The parameter or buffer that a tracked tensor belongs to: `state.exp_avg.a.weight` to `a.weight`."""
    kind, _, rest = name.partition(".")
    return rest.partition(".")[2] if kind == "state" else rest


def in_shape(values: Array, shape: tuple[int, ...]) -> Array:
    """A scalar as it is wanted; everything else as it is."""
    return values.reshape(shape) if values.size == 1 == math.prod(shape) else values


def with_ratios(observed: Arrays, exact: Arrays, envelopes: Mapping[str, Envelope]) -> Measured:
    """The ratio of every tensor."""
    ratios = {n: ratio(observed[n], exact[n], envelopes[n]) for n in exact}
    return Measured(observed, exact, envelopes, ratios)


def ratio(observed: Array, exact: Array, envelope: Envelope) -> float:
    """A tensor's error ratio; inf for another shape."""
    if observed.shape != exact.shape:
        return float("inf")
    return error_ratio(observed, exact.astype(WORK[str(observed.dtype)]), envelope)


def widened(
    oracle: StepOracle, stage: str, probe: Probe, exact: Arrays, envelopes: Mapping[str, Envelope]
) -> dict[str, Envelope]:
    """The envelopes with a floor for gradients, so that one whose terms cancel has a scale: a part of the others', and
    where it is zero but for rounding, that of its terms."""
    unit = UNIT_ROUNDOFF[oracle.dtype]
    if stage == "loss" and oracle.training.loss.name == "cross_entropy":
        return {n: e.joined(Envelope(EXPONENTIAL * unit, EXPONENTIAL * unit)) for n, e in envelopes.items()}
    if stage != "gradient" or not exact:
        return dict(envelopes)
    sizes = {name: size(values) for name, values in exact.items()}
    floor = unit * POOLED * max(s.rms for s in sizes.values())
    zero = {name for name in exact if sizes[name].rms <= ZERO * envelopes[name].rms}
    terms = oracle.answer(stage, probe, Changes(model=cancelling_terms(oracle.training))) if zero else {}
    classes = oracle.terms(probe)
    found = {}
    for name, envelope in envelopes.items():
        whole = size(terms[name]) if name in zero else Size(0.0, 0.0)
        moved = size(classes[name]) if name in classes else Size(0.0, 0.0)
        lost = CANCELLED * unit
        wide = envelope.joined(Envelope(max(floor, lost * whole.rms), max(floor, lost * whole.max)))
        found[name] = wide.joined(Envelope(moved.rms, moved.max).scaled(EXPONENTIAL * unit))
    return found
