"""One stage of one probed step: how far a backend's tensors are from what they should be, in envelopes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.cases import OPS
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, WORK, Envelope, envelope_of, error_ratio, size
from parity.training.judge.oracle import NOTHING, Array, Arrays, StepOracle, UnknownError, merged
from parity.training.model import Variants
from parity.training.records import StepRecord
from parity.training.spec import Training, walk
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
"""Unit roundoffs, beside the size of its tensor, of an error in the forward pass, the loss or a gradient that is
shown but fails nothing where no cause explains it: the functions of a library are approximations of this order."""
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
class MeasuredStage:
    """A stage of a probe: the tensors as observed and as they should be, the error bounds, and the ratio by tensor."""

    probe: StepRecord
    observed: Arrays = field(default_factory=dict)
    exact: Arrays = field(default_factory=dict)
    envelopes: Mapping[str, Envelope] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def tensors_outside(self) -> list[str]:
        """The tensors that are outside, the worst first."""
        outside = [name for name, ratio in self.ratios.items() if ratio >= ERROR_BOUND]
        return sorted(outside, key=lambda name: -self.ratios[name])

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
        return self.worst >= ERROR_BOUND

    def small(self, dtype: str) -> bool:
        """Whether every error is at most TOLERATED unit roundoffs of its tensor's size, or a part of the largest's."""
        sizes = {name: size(values).rms for name, values in self.exact.items()}
        floor = POOLED * max(sizes.values(), default=0.0)
        limit = TOLERATED * UNIT_ROUNDOFF[dtype]
        return all(
            name in sizes
            and math.isfinite(self.ratios[name])
            and size(self.observed[name] - self.exact[name]).rms <= limit * max(sizes[name], floor)
            for name in self.tensors_outside
        )


def measure(oracle: StepOracle, stage: str, probe: StepRecord, changes: Variants = NOTHING) -> MeasuredStage | None:
    """A stage under a hypothesis, by default none, with the envelope of careful implementations that do the same.

    None where the backend does not show the stage; inf where its tensors do not fit each other.
    """
    if not shown(stage, probe):
        return None
    if not fits(oracle.training, probe):
        return MeasuredStage(probe, ratios={stage: math.inf})
    try:
        exact = oracle.answer(stage, probe, changes)
    except UnknownError:
        return None
    except (ValueError, TypeError, IndexError):
        if changes:
            raise
        return MeasuredStage(probe, ratios={stage: math.inf})
    observed = observed_of(probe, exact, oracle.dtype)
    exact = {name: values for name, values in exact.items() if name in observed}
    runs = EnsembleErrors(exact, oracle.dtype)
    for run in range(FIRST_RUNS):
        runs.add(oracle.answer(stage, probe, changes, run))
    envelopes = widened(oracle, stage, probe, exact, runs.envelopes)
    measured = MeasuredStage(probe, observed, exact, envelopes, ratios(observed, exact, envelopes))
    if measured.worst < NEAR or (measured.worst > FAR and not kinked(oracle)):
        return measured
    for run in range(FIRST_RUNS, RUNS):
        runs.add(oracle.answer(stage, probe, changes, run))
    for narrow in narrow_updates(oracle, probe) if stage == "update" and oracle.dtype != "float64" else ():
        runs.add(oracle.answer(stage, probe, merged(narrow, changes), 0))
    envelopes = widened(oracle, stage, probe, exact, runs.envelopes)
    return MeasuredStage(probe, observed, exact, envelopes, ratios(observed, exact, envelopes))


class EnsembleErrors:
    """The largest error of careful implementations at each element, as runs are added."""

    def __init__(self, exact: Arrays, dtype: str) -> None:
        self._exact = exact
        self._largest = {n: UNIT_ROUNDOFF[dtype] * np.abs(v) for n, v in exact.items()}
        self._finite = {n: np.zeros(v.shape, np.bool_) for n, v in exact.items()}

    def add(self, tensors: Arrays) -> None:
        """One run more."""
        for name, exact in self._exact.items():
            with np.errstate(invalid="ignore"):
                self._largest[name] = np.fmax(self._largest[name], np.abs(tensors[name] - exact))
            self._finite[name] |= np.isfinite(tensors[name])

    @property
    def envelopes(self) -> dict[str, Envelope]:
        """The envelope of every tensor."""
        return {n: envelope_of(v, self._exact[n], self._finite[n]) for n, v in self._largest.items()}


def ratios(observed: Arrays, exact: Arrays, envelopes: Mapping[str, Envelope]) -> dict[str, float]:
    """The error ratio of every tensor."""
    return {name: ratio(observed[name], exact[name], envelopes[name]) for name in exact}


def narrow_updates(oracle: StepOracle, probe: StepRecord) -> list[Variants]:
    """The updates whose attributes are kept in float32."""
    params = params_of(oracle.training, 0, probe.step, 1.0, Update())
    variants = OPS[oracle.training.optimizer].variants(params, {})
    return [{"update": variant.arguments} for variant in variants if variant.id == "attribute-precision"]


def fits(training: Training, probe: StepRecord) -> bool:
    """Whether the tensors that a stage starts from have the shapes of the model's."""
    shapes = {tensor.name: tensor.shape for tensor in training.tensors}
    grads = {name: values for name, values in probe.tensors.items() if name.startswith(("grad.", "clipped."))}
    return all(values.shape == shapes.get(owner(name)) for name, values in {**probe.before, **grads}.items())


def shown(stage: str, probe: StepRecord) -> bool:
    """Whether the record has a tensor of the stage."""
    return any(name.startswith(KINDS[stage]) for name in probe.tensors)


def kinked(oracle: StepOracle) -> bool:
    """Whether an activation of the model has a kink, which an element may cross by rounding."""
    return any(layer.op == "relu" for layer in walk(oracle.training.layers))


def wrong_parts(probes: Sequence[MeasuredStage]) -> tuple[str, ...]:
    """The parameters, buffers and other tensors that are outside in any of these probes of a stage; nothing where all
    are, or where the stage has one tensor only."""
    every = {own: None for one in probes for own in map(belonging, one.exact)}
    outside = {own for one in probes for own in map(belonging, one.tensors_outside)}
    return tuple(own for own in every if own in outside) if outside < every.keys() else ()


def belonging(name: str) -> str:
    """The parameter or buffer that a tensor of a record belongs to; the tensor itself where it belongs to none."""
    return owner(name) or name


def observed_of(probe: StepRecord, exact: Arrays, dtype: str) -> dict[str, Array]:
    """The backend's tensors of the stage in the dtype, a scalar in the exact one's shape.

    A whole kind of tensors that the mode does not show is left out; a single one that is missing is NaN.
    """
    tensors = probe.tensors
    kinds = {kind_of(name) for name in tensors}
    observed = {}
    for name, values in exact.items():
        if name in tensors:
            own = tensors[name]
            own = own.reshape(values.shape) if own.size == 1 == values.size else own
            observed[name] = own.astype(dtype, copy=False)
        elif kind_of(name) in kinds:
            observed[name] = np.full(values.shape, np.nan, dtype)
    return observed


def kind_of(name: str) -> str:
    """What a tensor is: `param`, `grad`, `state.exp_avg`."""
    head, _, rest = name.partition(".")
    return f"{head}.{rest.partition('.')[0]}" if head == "state" else head


def owner(name: str) -> str:
    """The parameter or buffer that a tracked tensor belongs to: `state.exp_avg.a.weight` to `a.weight`."""
    kind, _, rest = name.partition(".")
    return rest.partition(".")[2] if kind == "state" else rest


def ratio(observed: Array, exact: Array, envelope: Envelope) -> float:
    """A tensor's error ratio; inf for another shape."""
    if observed.shape != exact.shape:
        return float("inf")
    return error_ratio(observed, exact.astype(WORK[str(observed.dtype)]), envelope)


def widened(
    oracle: StepOracle, stage: str, probe: StepRecord, exact: Arrays, envelopes: Mapping[str, Envelope]
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
    terms = oracle.answer(stage, probe, cancelling_terms(oracle.training)) if zero else {}
    classes = oracle.terms(probe)
    wide = {}
    for name, envelope in envelopes.items():
        wide[name] = envelope.joined(Envelope(floor, floor))
        if name in zero:
            wide[name] = wide[name].joined(error_of(terms[name], CANCELLED * unit))
        if name in classes:
            wide[name] = wide[name].joined(error_of(classes[name], EXPONENTIAL * unit))
    return wide


def error_of(values: Array, part: float) -> Envelope:
    """The envelope that is this part of a tensor."""
    own = size(values)
    return Envelope(part * own.rms, part * own.max)
