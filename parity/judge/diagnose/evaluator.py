"""Predicts what a kernel would return under a hypothesis, for one case in one dtype.

An alteration changes the reference run: options of the reference, params, inputs left out or rounded to a lower
precision. Its prediction has values for every tensor, and how far a careful implementation may be from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.difference import difference
from parity.cases.edit_words import described, described_beside
from parity.cases.edits import Edit, edited
from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.op import GRADIENT, IncompatibleError, Op
from parity.cases.oracle import evaluate, is_plain, program_of
from parity.cases.program import Program
from parity.config.plan import CasePlan
from parity.judge.bound.choices import Chosen
from parity.judge.bound.envelope import (
    ERROR_BOUND,
    FLOOR,
    UNIT_ROUNDOFF,
    Envelope,
    EnvelopeRuns,
    error_ratio,
    work_dtype,
)

Array = NDArray[Any]
BAND_RUNS = 6
LOSSY = 1.5
"""An algorithm counts as unstable if its error is 1.5 times that of a careful implementation."""
WIDE = 8.0
"""A kernel with the same algorithm may sum in another order; its error may be larger by this factor."""
OWN_RUNS = 4
MAX_CACHED_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Alteration:
    """The changes. `operands` names the format to which the inputs in `rounded` are rounded.

    `arguments` are options of the reference, `edits` are done to its program. `unstable` options are right in exact
    arithmetic: they change the rounding error of a run in the working precision, not the exact values.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    unstable: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    operands: str = ""
    rounded: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    def with_(self, other: Alteration) -> Alteration:
        """Both together; IncompatibleError if they contradict each other."""
        parts = [(self.arguments, other.arguments), (self.unstable, other.unstable), (self.params, other.params)]
        options = [{*part.arguments, *part.unstable} for part in (self, other)]
        if options[0] & options[1] or self.params.keys() & other.params.keys() or (self.operands and other.operands):
            raise IncompatibleError("both alterations set the same option, param or format")
        arguments, unstable, params = ({**mine, **theirs} for mine, theirs in parts)
        return Alteration(
            arguments,
            unstable,
            params,
            absent=tuple(dict.fromkeys(self.absent + other.absent)),
            operands=self.operands or other.operands,
            rounded=self.rounded or other.rounded,
            edits=self.edits + other.edits,
        )

    @property
    def key(self) -> str:
        """Equal for equal alterations."""
        parts = (self.arguments, self.unstable, self.params, self.absent, self.operands, self.rounded, self.edits)
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
    """The predicted values (None: not returned), and how far a careful implementation may be from them.

    `unstable`: by an algorithm that loses precision; `coarse`: in a lower precision.
    """

    values: Array | None
    envelope: Envelope
    unstable: bool = False
    coarse: bool = False

    def times(self, factor: float) -> Predicted:
        """The prediction of a multiple."""
        if self.values is None:
            return self
        return Predicted(self.values * factor, self.envelope.scaled(factor), self.unstable)

    def rearranged(self, values: Array) -> Predicted:
        """The prediction of the same numbers in another order."""
        return Predicted(values, replace(self.envelope.whole, excused=None), self.unstable)

    def stored(self, unit: float) -> Predicted:
        """The prediction whose values are rounded once, by at most `unit` relatively."""
        if self.values is None:
            return self
        return replace(self, envelope=self.envelope.joined(Envelope.relative(unit, self.values)), coarse=True)

    def widened(self, factor: float) -> Predicted:
        """The prediction with a multiple of its error bound."""
        return replace(self, envelope=self.envelope.scaled(factor), coarse=True)


Prediction = Mapping[str, Predicted]
Observed = Mapping[str, Array | None]


class Evaluator:
    """Predicts what alterations give for one case in one dtype, and caches the predictions.

    `universal`: a cause means the same for all inputs, since it has no numbers of these. `chosen` are gradients for
    which several values are valid: where the backend's choice is valid, no prediction has to match.
    """

    universal = False

    def __init__(
        self,
        case: CasePlan,
        dtype: str,
        inputs: Mapping[str, Array],
        oracle: Mapping[str, Array],
        envelopes: Mapping[str, Envelope],
        op: Op | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        self.case, self.dtype, self.inputs, self.chosen = case, dtype, inputs, chosen
        self.op = op or case.definition
        self._exact = {n: values.astype(work_dtype(dtype, values), copy=False) for n, values in oracle.items()}
        self.envelopes = self._at_kinks(envelopes)
        self._predictions: dict[str, Prediction | None] = {}
        self._own: dict[str, Mapping[str, Envelope]] = {}

    @cached_property
    def base(self) -> Prediction:
        """The oracle's values: the prediction without any alteration."""
        return {name: Predicted(values, self.envelopes[name]) for name, values in self._exact.items()}

    @property
    def n_elements(self) -> int:
        """Of all inputs."""
        return sum(values.size for values in self.inputs.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs, by name."""
        return {name: values.shape for name, values in self.inputs.items() if not self.op.is_grad_output(name)}

    @property
    def data(self) -> Array | None:
        """The input over whose axes others' gradients are summed; None if the op has none."""
        return None if self.op.data is None else self.inputs.get(self.op.data)

    def shape_of(self, tensor: str) -> tuple[int, ...]:
        """The shape that a tensor should have."""
        return self._exact[tensor].shape

    def is_gradient(self, tensor: str) -> bool:
        """Whether an output is a gradient: a computed one (`grad.*`), or one of a list that the op changes."""
        item = self.op.input(tensor)
        return tensor.startswith(GRADIENT) or (item is not None and item.listed)

    def predict(self, alteration: Alteration) -> Prediction | None:
        """The prediction; None if parts of the alteration contradict each other, or shapes would change."""
        key = alteration.key
        if key not in self._predictions:
            try:
                prediction = self._predicted(alteration)
            except IncompatibleError:
                prediction = None
            if self.n_elements * (len(self._predictions) + 1) > MAX_CACHED_ELEMENTS:
                self._predictions.clear()
            self._predictions[key] = prediction
        return self._predictions[key]

    def _predicted(self, alteration: Alteration) -> Prediction:
        if alteration.params and (outputs := self._resized(alteration)):
            return outputs
        values = self.values_of(alteration)
        prediction = {name: self.predicted(name, given) for name, given in values.items()}
        if not alteration.unstable:
            return prediction
        bands = self._at_kinks(self._runs(alteration, values, **alteration.unstable).envelopes(BAND_RUNS))
        return {n: with_band(predicted, bands[n]) for n, predicted in prediction.items()}

    def _resized(self, alteration: Alteration) -> Prediction:
        """The outputs of an alteration that changes their shapes; no gradients, since no grad_output fits. Nothing if
        the shapes stay."""
        tensors = self.tensors(alteration)
        if len(tensors) == len(self.inputs) - len(alteration.absent):
            return {}
        case, work = replace(self._changed_case(alteration), gradients=False), next(iter(self._exact.values())).dtype
        values = evaluate(self.op, case.params, tensors, dtype=work, gradients=False, **alteration.arguments)
        own = EnvelopeRuns(case, self.dtype, tensors, values, **alteration.arguments).envelopes(OWN_RUNS)
        absent = {name: Predicted(None, self.envelopes[name]) for name in self._exact}
        return absent | {name: Predicted(values[name], own[name]) for name in values if name in absent}

    def predicted(self, name: str, values: Array) -> Predicted:
        """The prediction that a tensor holds these values, within the oracle's error bound."""
        wide = values.astype(self._exact[name].dtype, copy=False)
        return Predicted(wide, self.envelopes[name].joined(Envelope.relative(FLOOR[self.dtype], wide)))

    def own_envelopes(self, alteration: Alteration) -> Mapping[str, Envelope]:
        """How far a careful implementation of the altered reference may be from the prediction."""
        key = alteration.key
        if key not in self._own:
            runs = self._runs(alteration, self.values_of(alteration))
            self._own[key] = self._at_kinks(runs.envelopes(OWN_RUNS))
        return self._own[key]

    def _at_kinks(self, envelopes: Mapping[str, Envelope]) -> Mapping[str, Envelope]:
        """The envelopes, adjusted where gradients are a choice."""
        if self.chosen is None:
            return envelopes
        unit = UNIT_ROUNDOFF[self.dtype]
        return {name: self.chosen.envelope(name, envelope, unit) for name, envelope in envelopes.items()}

    def _runs(self, alteration: Alteration, values: Mapping[str, Array], **unstable: Any) -> EnvelopeRuns:
        case, tensors = self._changed_case(alteration), self.tensors(alteration)
        edits = {"edits": alteration.edits} if alteration.edits else {}
        if not alteration.arguments.keys().isdisjoint(unstable):
            raise IncompatibleError("two causes want the same option")
        return EnvelopeRuns(case, self.dtype, tensors, values, **alteration.arguments, **unstable, **edits)

    def values_of(self, alteration: Alteration, *, gradients: bool = True) -> dict[str, Array]:
        """The exact values of the altered reference; gradients of inputs that are left out are zero.

        IncompatibleError if the alteration contradicts itself, or gives tensors of other shapes.
        """
        case, work = self._changed_case(alteration), next(iter(self._exact.values())).dtype
        computed = evaluate(
            self.op,
            case.params,
            self.tensors(alteration),
            dtype=work,
            gradients=gradients and case.gradients,
            edits=alteration.edits,
            **alteration.arguments,
        )
        if any(name in computed and computed[name].shape != exact.shape for name, exact in self._exact.items()):
            raise IncompatibleError("the altered reference returns tensors of other shapes")
        values = {f"grad.{name}": np.zeros(self.inputs[name].shape, work) for name in alteration.absent} | computed
        return {name: values[name] for name in self._exact if name in values}

    def expression(self, alteration: Alteration, before: Alteration) -> str:
        """The expression that an alteration changes, in the reference's names; "" if it is not a formula.

        `before` are earlier alterations.
        """
        if alteration.edits:
            others, edit = before.with_(replace(alteration, edits=())), alteration.edits[0]
            # A form computes what the reference does, and is no cause.
            form = next((f for f in self.op.forms if f and f.items() <= alteration.arguments.items()), {})
            own, program = Alteration(arguments=form), self.program(others)
            is_alone = others.key == own.key
            return described(program, edit) if is_alone else described_beside(self.program(own), program, edit)
        options = {**alteration.arguments, **alteration.unstable}
        if not all(map(is_plain, options.values())):
            return ""
        case, gradients = self._changed_case(alteration), self.case.gradients
        reference = program_of(self.op, self.case.params, self.inputs, gradients=gradients)
        variant = program_of(self.op, case.params, self.tensors(alteration), gradients=gradients, **options)
        return difference(reference, variant)

    def program(self, alteration: Alteration) -> Program:
        """The program of the altered reference."""
        params, tensors = self._changed_case(alteration).params, self.tensors(alteration)
        gradients, options = self.case.gradients, alteration.arguments
        program = program_of(self.op, params, tensors, gradients=gradients, **options)
        return edited(program, alteration.edits, tensors, params, self.op.differentiable)

    def _changed_case(self, alteration: Alteration) -> CasePlan:
        return replace(self.case, params=replace(self.case.params, **alteration.params))

    def _changes_shapes(self, alteration: Alteration) -> bool:
        """Whether the altered params change an output's shape; IncompatibleError if they do not fit the inputs."""
        try:
            after = self.op.infer_shapes(self._changed_case(alteration).params, self.shapes).outputs
        except ValueError as error:
            raise IncompatibleError(str(error)) from error
        return any(name in self._exact and self._exact[name].shape != shape for name, shape in after.items())

    def tensors(self, alteration: Alteration) -> dict[str, Array]:
        """The altered inputs, without grad_outputs if other params change the outputs' shapes."""
        kept = {name: values for name, values in self.inputs.items() if name not in alteration.absent}
        if alteration.params and self._changes_shapes(alteration):
            kept = {name: values for name, values in kept.items() if not self.op.is_grad_output(name)}
        if not alteration.operands:
            return kept
        bits = FORMATS[alteration.operands]
        touched = [name for name in kept if name in alteration.rounded and kept[name].dtype.kind == "f"]
        return {**kept, **{name: rounded(kept[name].astype(np.float64), bits) for name in touched}}


def excusing(chosen: Chosen, evaluator: Evaluator, observed: Observed) -> Evaluator:
    """The evaluator for a backend whose gradients are a choice at kinks. It excludes the valid choices from comparison;
    all kinks, if other elements are wrong, since the error there may have another size."""
    e, everywhere = evaluator, replace(chosen, valid=chosen.kinks)
    oracle = {name: predicted.values for name, predicted in e.base.items() if predicted.values is not None}
    narrow = Evaluator(e.case, e.dtype, e.inputs, oracle, e.envelopes, e.op, everywhere)
    if any(value >= ERROR_BOUND for value in ratios(observed, narrow.base).values()):
        return narrow
    return Evaluator(e.case, e.dtype, e.inputs, oracle, e.envelopes, e.op, chosen)


def with_band(predicted: Predicted, band: Envelope) -> Predicted:
    """A prediction for an algorithm with the error `band`, if that exceeds rounding."""
    if band.excused is None and band.rms < LOSSY * predicted.envelope.rms:
        return predicted
    # If an algorithm loses precision by chance, a kernel does so in other groups than the reference.
    return Predicted(predicted.values, predicted.envelope.joined(band.scaled(WIDE)).whole, unstable=True)


def ratio(observed: Array | None, predicted: Predicted) -> float:
    """The error ratio of the observed tensor against a prediction; inf if only one of them has the tensor."""
    if observed is None or predicted.values is None:
        return 0.0 if observed is None and predicted.values is None else float("inf")
    if observed.shape != predicted.values.shape:
        return float("inf")
    envelope = predicted.envelope
    if predicted.unstable and envelope.excused is not None:
        # If such an algorithm overflows in some runs, a kernel may overflow at other elements.
        envelope = replace(envelope, excused=envelope.excused | ~np.isfinite(observed))
    return error_ratio(observed, predicted.values, envelope)


def ratios(observed: Observed, prediction: Prediction) -> dict[str, float]:
    """The error ratio of every predicted tensor."""
    return {name: ratio(observed.get(name), predicted) for name, predicted in prediction.items() if name in observed}


def worst(values: Iterable[float]) -> float:
    """The largest value, 0 if there is none."""
    return max(values, default=0.0)
