"""Experiments on one case in one dtype: what would a kernel return if a hypothesis about it were true?

A question is the oracle's with something changed: arguments of its lines, params, inputs left out or rounded to a
format of fewer digits. The answer is a prediction: values for every tensor, and how far careful code may be from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.op import IncompatibleError
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import UNIT_ROUNDOFF, WORK, Envelope, EnvelopeRuns, error_ratio, size

Array = NDArray[Any]
BAND_RUNS = 6
LOSSY = 1.5
"""An algorithm counts as one that loses digits where it loses half as much again as careful code."""
WIDE = 8.0
"""A kernel with the same algorithm may sum in another order, and lose this much more than the textbook's lines."""
OWN_RUNS = 4
MAX_CACHED_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Alteration:
    """What is changed. `operands` names the format that the inputs in `rounded` are rounded to.

    `unstable` arguments are right in exact arithmetic: they change what careful code would lose, not the values.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    unstable: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    operands: str = ""
    rounded: tuple[str, ...] = ()

    def with_(self, other: Alteration) -> Alteration | None:
        """Both changes together; None where they contradict each other."""
        parts = [(self.arguments, other.arguments), (self.unstable, other.unstable), (self.params, other.params)]
        if any(mine.keys() & theirs.keys() for mine, theirs in parts) or (self.operands and other.operands):
            return None
        arguments, unstable, params = ({**mine, **theirs} for mine, theirs in parts)
        return Alteration(
            arguments,
            unstable,
            params,
            absent=tuple(dict.fromkeys(self.absent + other.absent)),
            operands=self.operands or other.operands,
            rounded=self.rounded or other.rounded,
        )

    @property
    def key(self) -> str:
        """The same for the same question."""
        parts = (self.arguments, self.unstable, self.params, self.absent, self.operands, self.rounded)
        return repr(spelled(parts))


def spelled(value: Any) -> Any:
    """`value` with arrays as bytes and mappings in order, so that equal ones have one representation."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return [(name, spelled(value[name])) for name in sorted(value)]
    return [spelled(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Predicted:
    """What a tensor would hold, and how far from it careful code may be; `values` is None where it is not returned.

    `unstable`: by an algorithm that loses digits; `coarse`: in a format of fewer digits.
    """

    values: Array | None
    envelope: Envelope
    unstable: bool = False
    coarse: bool = False


Prediction = Mapping[str, Predicted]
Observed = Mapping[str, Array | None]


class Evaluator:
    """Answers questions about one case in one dtype, and remembers the answers."""

    def __init__(
        self,
        case: CasePlan,
        dtype: str,
        inputs: Mapping[str, Array],
        oracle: Mapping[str, Array],
        envelopes: Mapping[str, Envelope],
    ) -> None:
        self.case, self.dtype, self.inputs = case, dtype, inputs
        self.op = OPS[case.op]
        self._exact = {name: values.astype(WORK[dtype]) for name, values in oracle.items()}
        self.envelopes = envelopes
        self._answers: dict[str, Prediction | None] = {}
        self._own: dict[str, Mapping[str, Envelope]] = {}

    @cached_property
    def base(self) -> Prediction:
        """What the oracle says."""
        return {name: Predicted(values, self.envelopes[name]) for name, values in self._exact.items()}

    @property
    def n_elements(self) -> int:
        """Of all inputs."""
        return sum(values.size for values in self.inputs.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs, by name."""
        return {name: values.shape for name, values in self.inputs.items() if not self.is_upstream(name)}

    @property
    def data(self) -> Array | None:
        """The input that gradients of others are summed over; None where the op has none."""
        return None if self.op.data is None else self.inputs.get(self.op.data)

    def is_upstream(self, name: str) -> bool:
        """Whether `name` is an upstream gradient among the inputs."""
        return name.startswith("grad.") and name.removeprefix("grad.") in self.op.upstream

    def ask(self, alteration: Alteration) -> Prediction | None:
        """The prediction; None where the op's lines refuse."""
        if alteration.key not in self._answers:
            try:
                answer = self._answer(alteration)
            except IncompatibleError:
                answer = None
            if self.n_elements * (len(self._answers) + 1) > MAX_CACHED_ELEMENTS:
                self._answers.clear()
            self._answers[alteration.key] = answer
        return self._answers[alteration.key]

    def _answer(self, alteration: Alteration) -> Prediction | None:
        values = self.values_of(alteration)
        if values is None:
            return None
        found = {name: Predicted(values[name], self._envelope(name, values[name])) for name in values}
        if not alteration.unstable:
            return found
        case = self._changed_case(alteration)
        runs = EnvelopeRuns(
            case, self.dtype, self._tensors(alteration), values, **alteration.arguments, **alteration.unstable
        )
        bands = runs.envelopes(BAND_RUNS)
        return {n: with_band(predicted, bands[n]) for n, predicted in found.items()}

    def own_envelopes(self, alteration: Alteration) -> Mapping[str, Envelope]:
        """How far careful code that does what the question says may be from the prediction."""
        if alteration.key not in self._own:
            values = self.values_of(alteration)
            runs = EnvelopeRuns(
                self._changed_case(alteration),
                self.dtype,
                self._tensors(alteration),
                values or {},
                **alteration.arguments,
            )
            self._own[alteration.key] = runs.envelopes(OWN_RUNS)
        return self._own[alteration.key]

    def values_of(self, alteration: Alteration, *, gradients: bool = True) -> dict[str, Array] | None:
        """The oracle's answer to the changed question; gradients of inputs that are left out are zero."""
        case = self._changed_case(alteration)
        try:
            found = evaluate(
                self.op,
                case.params,
                self._tensors(alteration),
                dtype=WORK[self.dtype],
                gradients=gradients and case.gradients,
                **alteration.arguments,
            )
        except IncompatibleError:
            return None
        if any(name in found and found[name].shape != self._exact[name].shape for name in self._exact):
            return None
        zeros = {f"grad.{n}": np.zeros(self.inputs[n].shape, WORK[self.dtype]) for n in alteration.absent}
        every = {**zeros, **found}
        return {n: every[n] for n in self._exact if n in every}

    def _changed_case(self, alteration: Alteration) -> CasePlan:
        return replace(self.case, params=replace(self.case.params, **alteration.params))

    def _tensors(self, alteration: Alteration) -> dict[str, Array]:
        kept = {name: values for name, values in self.inputs.items() if name not in alteration.absent}
        if not alteration.operands:
            return kept
        bits = FORMATS[alteration.operands]
        touched = [name for name in kept if name in alteration.rounded and kept[name].dtype.kind == "f"]
        return {**kept, **{name: rounded(kept[name].astype(np.float64), bits) for name in touched}}

    def _envelope(self, name: str, values: Array) -> Envelope:
        """The oracle's own, at least a unit roundoff of what is predicted."""
        found, unit = size(values), UNIT_ROUNDOFF[self.dtype]
        return self.envelopes[name].joined(Envelope(unit * found.rms, unit * found.max))


def with_band(predicted: Predicted, band: Envelope) -> Predicted:
    """A prediction for an algorithm that loses as much as `band`, where that is more than careful code loses."""
    if band.excused is None and band.rms < LOSSY * predicted.envelope.rms:
        return predicted
    return Predicted(predicted.values, predicted.envelope.joined(band.scaled(WIDE)), unstable=True)


def ratio(observed: Array | None, predicted: Predicted) -> float:
    """The error ratio of what was observed against a prediction; inf where only one of them has the tensor."""
    if observed is None or predicted.values is None:
        return 0.0 if observed is None and predicted.values is None else float("inf")
    if observed.shape != predicted.values.shape:
        return float("inf")
    envelope = predicted.envelope
    if predicted.unstable and envelope.excused is not None:
        # Where such an algorithm fails in some runs, a kernel's may fail in other places.
        envelope = replace(envelope, excused=envelope.excused | ~np.isfinite(observed))
    return error_ratio(observed, predicted.values, envelope)


def ratios(observed: Observed, prediction: Prediction) -> dict[str, float]:
    """The error ratio of every predicted tensor."""
    return {name: ratio(observed.get(name), predicted) for name, predicted in prediction.items() if name in observed}


def worst(values: Iterable[float]) -> float:
    """The largest, 0 of none."""
    return max(values, default=0.0)


def is_gradient(tensor: str) -> bool:
    """Whether an output is a gradient: one that was computed (`grad.x`), or one of a list (`grads.0`)."""
    return tensor.startswith(("grad.", "grads."))
