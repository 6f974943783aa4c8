"""Predicts a stage of a step under a cause, for the judge's search, and presents the stage as an op.

An optimizer's step of one parameter, the clipping of some gradients and the loss of an output are cases of ops, with
the recorded tensors as inputs and outputs. Forward pass and gradient are one program, that of the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.edit_words import described, described_beside
from parity.cases.op import IncompatibleError, Op, TensorShapes
from parity.cases.program import Program
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import ToleranceTable
from parity.judge.bound.envelope import UNIT_ROUNDOFF, Envelope, size
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Predicted, Prediction
from parity.outcome import Array
from parity.training.edits import ProgramEdits, whole_program
from parity.training.judge.measured import MeasuredStage, measure, owner
from parity.training.judge.oracle import StepOracle, clipping_of, merged, update_of
from parity.training.model import Variants, counted, program_of, unprefixed
from parity.training.spec import RESIDUAL, Training, walk
from parity.training.steps import by_parameter, clip_params, params_of, units, zero_states

BAND = 8.0
"""Reduced precision explains errors between 1 / BAND and BAND times its own."""
LEAST_CORRELATION = 0.3
"""The least correlation of these errors: PyTorch 2.13.0's autocast to bfloat16 has 0.4 to 0.8 with products of rounded
operands, noise of the same size 0.14 and less."""
PROGRAM = "program"


def variants_of(alteration: Alteration) -> Variants:
    """An alteration as variants; its edits are those of the model's program."""
    variants: dict[str, dict[str, Any]] = {}
    for name, value in {**alteration.arguments, **alteration.unstable}.items():
        of, _, option = name.rpartition(".")
        variants.setdefault(of, {})[option] = value
    if alteration.edits:
        variants[PROGRAM] = {"edits": alteration.edits}
    return variants


def stage_op(stage: str, training: Training) -> Op:
    """A stage as an op without variants; its forms are those of the model's ops."""
    names = {layer.op: OPS[layer.op] for layer in walk(training.layers) if layer.op != RESIDUAL}
    ops = {**names, "loss": OPS[training.loss.name]} if stage in ("forward", "gradient") else {}
    forms = [{f"{key}.{k}": v for k, v in form.items()} for key, op in ops.items() for form in op.forms]
    return Op(stage, "", Training, (), no_shapes, no_reference, grad_outputs=("loss",), forms=tuple(forms))


def no_shapes(_params: Any, given: Mapping[str, Any]) -> TensorShapes:
    """A stage has the shapes of the recorded tensors."""
    return TensorShapes(given, {})


def no_reference(*_: Any) -> Mapping[str, Any]:
    """The oracle computes a stage."""
    return {}


def case_of(oracle: StepOracle, op: str, params: Any) -> CasePlan:
    """A case that is not in a config."""
    return CasePlan(oracle.case_id, op, params, (oracle.dtype,), (), ToleranceTable(()), WrittenAt("", 0))


class StageEvaluator(Evaluator):
    """Predicts a stage of one probe under alterations, in addition to the `known` causes."""

    universal = True

    def __init__(self, oracle: StepOracle, stage: str, measured: MeasuredStage, known: Variants) -> None:
        case, op = case_of(oracle, stage, oracle.training), stage_op(stage, oracle.training)
        super().__init__(case, oracle.dtype, {}, measured.exact, measured.envelopes, op)
        self.oracle, self.stage, self.measured, self.known = oracle, stage, measured, known
        self.n_tried = 0

    @property
    def n_elements(self) -> int:
        """The elements of the stage's tensors, and of those that a pass through the model starts from."""
        before = {} if self.stage in PARTS else self.measured.probe.before
        return sum(values.size for values in (*self.measured.exact.values(), *before.values()))

    @property
    def data(self) -> Array | None:
        """The examples of the step, over which a gradient is summed; None in other stages."""
        return self.oracle.setting.x[self.measured.probe.rows] if self.stage == "gradient" else None

    @property
    def observed(self) -> Observed:
        """The backend's tensors."""
        return self.measured.observed

    def values_of(self, alteration: Alteration, *, gradients: bool = True) -> dict[str, Array]:  # noqa: ARG002 - as for ops
        """The tensors of the altered stage; raises UnknownError if the records lack what it starts from."""
        self.n_tried += 1
        values = self.oracle.answer(self.stage, self.measured.probe, merged(self.known, variants_of(alteration)))
        exact = self.measured.exact
        if any(n not in values or values[n].shape != v.shape for n, v in exact.items()):
            raise IncompatibleError("the altered stage returns tensors of other shapes")
        return {name: values[name] for name in exact}

    def _predicted(self, alteration: Alteration) -> Prediction:
        values = self.values_of(alteration)
        if alteration.unstable:
            return self._in_band(values)
        return {name: self.predicted(name, given) for name, given in values.items()}

    def predicted(self, name: str, values: Array) -> Predicted:
        """The prediction, whose envelope is scaled to the size of these values."""
        wide, exact = values.astype(self._exact[name].dtype, copy=False), size(self._exact[name])
        theirs, unit = size(wide), UNIT_ROUNDOFF[self.dtype]
        envelope = self.envelopes[name].scaled(max(1.0, theirs.rms / exact.rms if exact.rms else 1.0))
        return Predicted(wide, envelope.joined(Envelope(unit * theirs.rms, unit * theirs.max)))

    def _in_band(self, values: Mapping[str, Array]) -> Prediction:
        """For operands in a lower precision: predicts errors as large as the observed ones, if in the median tensor
        these have the predicted size and are correlated with it. A tensor that is all error is ignored."""
        sizes, factors, correlations = {}, [], []
        for name in self.measured.tensors_outside:
            exact = self._exact[name]
            error, loss = self.measured.observed[name].astype(exact.dtype) - exact, values[name] - exact
            sizes[name], lost = size(error), size(loss)
            if lost.rms < size(exact).rms or not np.isfinite(self.measured.ratios[name]):
                known = np.isfinite(self.measured.ratios[name]) and lost.rms > 0
                factors.append(max(sizes[name].rms / lost.rms, lost.rms / sizes[name].rms) if known else np.inf)
                correlations.append(float(np.mean(error / sizes[name].rms * (loss / lost.rms))) if known else 0.0)
        if (
            not factors
            or median(factors) >= BAND
            or max(factors) >= BAND**2
            or median(correlations) < LEAST_CORRELATION
        ):
            raise IncompatibleError("the errors do not match")
        left = max(1.0, median(factors))
        bands = {name: Envelope(error.rms / left, error.max / left) for name, error in sizes.items()}
        return {n: replace(base, envelope=bands.get(n, base.envelope)) for n, base in self.base.items()}

    def own_envelopes(self, alteration: Alteration) -> Mapping[str, Envelope]:
        """The envelopes of careful implementations with the same alteration."""
        if alteration.unstable:
            return self.envelopes
        changes = merged(self.known, variants_of(alteration))
        own = measure(self.oracle, self.stage, self.measured.probe, changes)
        return self.envelopes if own is None else own.envelopes

    def program(self, alteration: Alteration) -> Program:
        """The program of a pass through the model over all rows of the step."""
        variants = merged(self.known, variants_of(alteration))
        arriving = {"loss": np.ones(())}
        program = program_of(self.oracle.training, self._given, arriving, variants, labelled=True)
        outputs = {n.replace("grad.param.", "grad.", 1): i for n, i in program.outputs.items()}
        return replace(program, outputs={n: i for n, i in outputs.items() if n in self.measured.exact})

    def tensors(self, _alteration: Alteration) -> dict[str, Array]:
        """What a pass through the model starts from."""
        return {**self._given, "grad.loss": np.ones(())}

    @cached_property
    def _given(self) -> dict[str, Array]:
        oracle, probe = self.oracle, self.measured.probe
        own = {n: v.astype(np.float64) for n, v in probe.before.items() if n.startswith(("param.", "buffer."))}
        x, target = (values[probe.rows] for values in (oracle.setting.x, oracle.setting.target))
        return {"x": x.astype(np.float64) if x.dtype.kind == "f" else x, "target": counted(target), **own}

    @cached_property
    def reference(self) -> StageEvaluator:
        """The evaluator of the same stage without known causes."""
        return StageEvaluator(self.oracle, self.stage, self.measured, {}) if self.known else self

    def expression(self, alteration: Alteration, before: Alteration) -> str:
        """What an alteration computes instead, if that is a formula, else an empty string.

        What "the reference has" is an expression of the reference without `known` causes and alterations `before`.
        """
        is_alone = not self.known and before.key == Alteration().key
        part = part_of(self.reference)
        if alteration.edits:
            program = self.program(before.with_(replace(alteration, edits=())))
            own, edit = self.reference.program(Alteration(arguments=self._form(alteration))), alteration.edits[0]
            return described(program, edit) if is_alone else described_beside(own, program, edit)
        for name, value in alteration.arguments.items():
            if isinstance(value, ProgramEdits):
                form = {
                    n.rpartition(".")[2]: v for n, v in alteration.arguments.items() if n not in (name, "update.of")
                }
                own = value.program if is_alone or part is None else part.program(Alteration(form))
                return described_beside(own, value.program, value.edits[0])
        prefix = f"{self.stage}."
        if part is None or not all(name.startswith(prefix) for name in alteration.arguments):
            return ""
        options = {n.removeprefix(prefix): value for n, value in alteration.arguments.items() if n != "update.of"}
        try:
            return part.expression(Alteration(options), Alteration())
        except (TypeError, ValueError):
            return ""

    def _form(self, alteration: Alteration) -> dict[str, Any]:
        """The form among an alteration's arguments, which computes what the reference does."""
        return next((dict(form) for form in self.op.forms if form and form.items() <= alteration.arguments.items()), {})


class PartEvaluator(Evaluator):
    """Evaluates a stage, or a part of one, that is an op; `names` maps the op's tensors to those of the stage."""

    def __init__(
        self, stage: StageEvaluator, op: str, params: Any, inputs: Mapping[str, Array], names: Mapping[str, str]
    ) -> None:
        exact = {own: stage.measured.exact[name] for own, name in names.items()}
        envelopes = {own: stage.envelopes[name] for own, name in names.items()}
        super().__init__(case_of(stage.oracle, op, params), stage.dtype, inputs, exact, envelopes)
        self.observed: Observed = {own: stage.observed[name] for own, name in names.items()}

    def program(self, alteration: Alteration) -> Program:
        """The program, with steps for options that are 0 as well."""
        return whole_program(self.op, self.case.params, self.tensors(alteration), **alteration.arguments)


MOST_EDITED = 1 << 12
"""The largest parameter, in elements, that edits of an optimizer are tried on, unless all are larger."""


def part_of(stage: StageEvaluator) -> PartEvaluator | None:
    """The stage's op with the recorded tensors; None if it is a pass through the model, or tensors are unknown."""
    part = PARTS.get(stage.stage)
    return None if part is None else part(stage)


def of_loss(stage: StageEvaluator) -> PartEvaluator | None:
    """The loss of all rows, which is the mean over micro-batches of equal size."""
    probe, name = stage.measured.probe, stage.oracle.training.loss.name
    if "output" not in probe.tensors:
        return None
    target = counted(stage.oracle.setting.target[probe.rows])
    inputs = {"x": probe.tensors["output"], "target": target}
    return PartEvaluator(stage, name, OPS[name].params(), inputs, {"y": "loss"})


def of_clip(stage: StageEvaluator) -> PartEvaluator | None:
    """The clipping of the first gradients that are clipped together and exceed the error bound."""
    training, grads = stage.oracle.training, unprefixed("grad", stage.measured.probe.tensors)
    how = clipping_of(training, stage.known)
    recipe = training.clip if how is None else how.recipe
    if recipe is None or not grads:
        return None
    every = units(training, recipe, grads)
    outside = {owner(name) for name in stage.measured.tensors_outside}
    together = next((unit for unit in every if outside & set(unit)), every[0])
    names = {f"grads.{i}": f"clipped.{name}" for i, name in enumerate(together)}
    names |= {"total_norm": "norm"} if len(every) == 1 and recipe.name == "norm" else {}
    names = {own: name for own, name in names.items() if name in stage.measured.exact}
    inputs = {f"grads.{i}": grads[name] for i, name in enumerate(together)}
    return PartEvaluator(stage, f"clip_grad_{recipe.name}", clip_params(recipe), inputs, names)


def of_update(stage: StageEvaluator) -> PartEvaluator | None:
    """The optimizer's step of one wrong parameter: the largest one up to MOST_EDITED elements, else the smallest."""
    oracle, measured = stage.oracle, stage.measured
    training, probe = oracle.training, measured.probe
    grads = unprefixed("clipped", probe.tensors) or unprefixed("clipped", oracle.clip(probe, stage.known, None))
    outside = {owner(name) for name in measured.tensors_outside} & grads.keys()
    sizes = {name: grads[name].size for name in outside if any(grads[name].flat)}
    if not sizes:
        return None
    fitting = {name: n for name, n in sizes.items() if n <= MOST_EDITED}
    name = max(fitting, key=lambda n: (fitting[n], n)) if fitting else min(sizes, key=lambda n: (sizes[n], n))
    group, lr = training.group_of(name), np.ravel(probe.tensors["lr"])
    params = params_of(training, group, probe.step, float(lr[min(group, len(lr) - 1)]), update_of(stage.known))
    op = OPS[training.optimizer]
    param = probe.before[f"param.{name}"]
    states = zero_states(op, params, param) | by_parameter(unprefixed("state", probe.before)).get(name, {})
    names = {"param": f"param.{name}", **{state: f"state.{state}.{name}" for state in states}}
    names = {own: full for own, full in names.items() if full in measured.exact}
    return PartEvaluator(stage, op.name, params, {"param": param, "grad": grads[name], **states}, names)


PARTS = {"loss": of_loss, "clip": of_clip, "update": of_update}
