"""Measures one stage of one probed step: the distance of a backend's tensors from the oracle's, in envelopes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.cases import OPS
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, WORK, Envelope, envelope_of, error_ratio, size
from parity.outcome import Array, Arrays
from parity.training.judge.oracle import NOTHING, StepOracle, UnknownError, merged
from parity.training.model import Variants
from parity.training.records import StepRecord
from parity.training.spec import Training, walk
from parity.training.steps import Update, params_of
from parity.training.variants import terms as cancelling_terms

FIRST_RUNS = 3
RUNS = 12
EXPONENTIAL = 16.0
"""The allowed error of a loss's exponentials in unit roundoffs. It is an absolute error of their logarithm, and an
error of the gradient relative to the gradient for other classes. Vectorised exponentials lose that much: in float32,
losses of oneflow 0.9.0 have an error of 25, those of torch 2.13.0 and paddle 3.3.1 less than 2."""
WORTH_MORE_RUNS = 4.0
"""More runs are made if the first ones give a ratio of at least this."""
FAR = 1e4
"""More runs never enlarge an envelope by so much, unless an activation has a kink."""
POOLED = 1.0 / 16.0
"""The allowed error of any gradient, in unit roundoffs of the largest gradient."""
ZERO = 4.0
"""A gradient of at most so many envelopes is zero except for rounding."""
CANCELLED = 8.0
"""The allowed error of such a gradient in unit roundoffs of its terms, since each of many terms is rounded."""
TOLERATED = 160.0
"""An unexplained error in the forward pass, the loss or a gradient is shown, but fails nothing, if it is at most so
many unit roundoffs of its tensor's size: a library's functions are approximations of this order."""
APPROXIMATED = ("forward", "loss", "gradient")
"""The stages that call such functions."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "forward": ("output", "buffer."),
    "loss": ("loss",),
    "gradient": ("grad.",),
    "clip": ("clipped.", "norm"),
    "update": ("param.", "state."),
}
"""Stage to the names, or prefixes of names, of its tensors in a record."""


@dataclass(frozen=True)
class MeasuredStage:
    """A stage of a probe: the observed and the exact tensors, their envelopes, and the error ratio by tensor."""

    probe: StepRecord
    observed: Arrays = field(default_factory=dict)
    exact: Arrays = field(default_factory=dict)
    envelopes: Mapping[str, Envelope] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def tensors_outside(self) -> list[str]:
        """The tensors that exceed the error bound, the worst first."""
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
        """Whether any tensor exceeds the error bound."""
        return self.worst >= ERROR_BOUND

    def small(self, dtype: str) -> bool:
        """Whether every error is at most TOLERATED unit roundoffs of its tensor's size, or POOLED of the largest."""
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
    """Measures a stage under `changes`, by default none, with the envelope of careful implementations that share them.

    Returns None if the backend does not expose the stage; the ratio is inf if its tensors do not fit together.
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
    if measured.worst < WORTH_MORE_RUNS or (measured.worst > FAR and not kinked(oracle)):
        return measured
    for run in range(FIRST_RUNS, RUNS):
        runs.add(oracle.answer(stage, probe, changes, run))
    for narrow in narrow_updates(oracle, probe) if stage == "update" and oracle.dtype != "float64" else ():
        runs.add(oracle.answer(stage, probe, merged(narrow, changes), 0))
    envelopes = widened(oracle, stage, probe, exact, runs.envelopes)
    return MeasuredStage(probe, observed, exact, envelopes, ratios(observed, exact, envelopes))


class EnsembleErrors:
    """The largest error of all runs of careful implementations, element by element."""

    def __init__(self, exact: Arrays, dtype: str) -> None:
        self._exact = exact
        self._largest = {n: UNIT_ROUNDOFF[dtype] * np.abs(v) for n, v in exact.items()}
        self._finite = {n: np.zeros(v.shape, np.bool_) for n, v in exact.items()}

    def add(self, tensors: Arrays) -> None:
        """Add a run."""
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
    """The variants of the update that keep attributes in float32."""
    params = params_of(oracle.training, 0, probe.step, 1.0, Update())
    variants = OPS[oracle.training.optimizer].variants(params, {})
    return [{"update": variant.arguments} for variant in variants if variant.id == "attribute-precision"]


def fits(training: Training, probe: StepRecord) -> bool:
    """Whether the tensors that stages start from have the model's shapes."""
    shapes = {tensor.name: tensor.shape for tensor in training.tensors}
    grads = {name: values for name, values in probe.tensors.items() if name.startswith(("grad.", "clipped."))}
    return all(values.shape == shapes.get(owner(name)) for name, values in {**probe.before, **grads}.items())


def shown(stage: str, probe: StepRecord) -> bool:
    """Whether the record has any tensor of the stage."""
    return any(name.startswith(KINDS[stage]) for name in probe.tensors)


def kinked(oracle: StepOracle) -> bool:
    """Whether an activation of the model has a kink, which rounding may make an element cross."""
    return any(layer.op == "relu" for layer in walk(oracle.training.layers))


def wrong_parts(probes: Sequence[MeasuredStage]) -> tuple[str, ...]:
    """The parameters, buffers and other tensors that are wrong in any of these probes of a stage; empty if all are
    wrong."""
    every = {own: None for one in probes for own in map(belonging, one.exact)}
    outside = {own for one in probes for own in map(belonging, one.tensors_outside)}
    return tuple(own for own in every if own in outside) if outside < every.keys() else ()


def belonging(name: str) -> str:
    """The parameter or buffer that a tensor of a record belongs to, else the tensor's own name."""
    return owner(name) or name


def observed_of(probe: StepRecord, exact: Arrays, dtype: str) -> dict[str, Array]:
    """The backend's tensors of the stage in `dtype`; scalars get the shape of the exact ones.

    A kind of tensors that the mode does not expose is left out; a single missing tensor is NaN.
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
    """The kind of a tensor: `param`, `grad`, `state.exp_avg`."""
    head, _, rest = name.partition(".")
    return f"{head}.{rest.partition('.')[0]}" if head == "state" else head


def owner(name: str) -> str:
    """The parameter or buffer that a tracked tensor belongs to: `state.exp_avg.a.weight` to `a.weight`."""
    kind, _, rest = name.partition(".")
    return rest.partition(".")[2] if kind == "state" else rest


def ratio(observed: Array, exact: Array, envelope: Envelope) -> float:
    """A tensor's error ratio; inf if the shapes differ."""
    if observed.shape != exact.shape:
        return float("inf")
    return error_ratio(observed, exact.astype(WORK[str(observed.dtype)]), envelope)


def widened(
    oracle: StepOracle, stage: str, probe: StepRecord, exact: Arrays, envelopes: Mapping[str, Envelope]
) -> dict[str, Envelope]:
    """The envelopes with a floor for gradients, so that one whose terms cancel has a scale: a part of the largest
    gradient's, and if it is zero except for rounding, that of its terms."""
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
    """The envelope of an error that is this part of a tensor."""
    own = size(values)
    return Envelope(part * own.rms, part * own.max)
