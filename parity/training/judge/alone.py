"""Calls the ops of a step alone, with the tensors of that step, and judges them like any other case of an op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.draw import Normal, TensorPlan, generator
from parity.cases.dtypes import as_dtype
from parity.config.plan import ORACLE, CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.case import CaseJudge
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.kernel import Ask
from parity.outcome import Array, CellOutcome, Outcome, Output
from parity.training.judge.oracle import StepOracle
from parity.training.model import Pass, counted, unprefixed
from parity.training.records import StepRecord
from parity.training.spec import RESIDUAL, Layer, walk

LOSS = "loss"
RIGHT = frozenset(("rounding", "degenerate-gradient", "gradient-choice", "index-choice"))
"""Diagnoses of correct results."""
MOST_OPS, MOST_ELEMENTS = 16, 1 << 16
"""Limits on the number of different ops that are called, and on the elements of each: a search takes seconds."""
AskAbout = Callable[[], Ask]
"""Returns a function that asks about one case, with its own budget."""


@dataclass
class RecordingPass(Pass):
    """A forward pass that records the input of each layer."""

    given: dict[str, Any] = field(default_factory=dict)

    def apply(self, layer: Layer, x: Any) -> Any:
        """The output of one layer for `x`."""
        self.given[layer.name] = x
        return super().apply(layer, x)


@dataclass(frozen=True)
class OpCase:
    """An op of the model, or its loss, with its inputs in a step; `layers` are those that are this op."""

    case: CasePlan
    inputs: Mapping[str, Array]
    layers: tuple[str, ...]

    @property
    def of_loss(self) -> bool:
        """Whether it is the loss."""
        return self.layers == (LOSS,)

    @property
    def where(self) -> str:
        """`relu (activation0, activation1)`, or the name of the loss."""
        return self.case.op if self.of_loss else f"{self.case.op} ({', '.join(self.layers)})"


@dataclass(frozen=True)
class OpFault:
    """An op that is wrong when called alone: `where` names it, `tensors` are the wrong ones, and the `cause` (None:
    unexplained) leaves the error ratio `left`."""

    where: str
    tensors: tuple[str, ...]
    of_loss: bool
    cause: Cause | None = None
    expression: str = ""
    left: float = 0.0

    @property
    def of_gradients(self) -> bool:
        """Whether only gradients are wrong."""
        return all(name.startswith("grad.") for name in self.tensors)


def op_faults(oracle: StepOracle, probe: StepRecord, backend: str, ask: AskAbout) -> list[OpFault]:
    """The faults of the ops of a step, when the backend computes each alone."""
    return [fault for one in op_cases(oracle, probe) for fault in faults_of(one, oracle.dtype, backend, ask())]


def op_cases(oracle: StepOracle, probe: StepRecord) -> Iterator[OpCase]:
    """The different ops of the model, and its loss."""
    training = oracle.training
    before = {**unprefixed("param", probe.before), **unprefixed("buffer", probe.before)}
    tensors = {name: values.astype(np.float64) for name, values in before.items()}
    x = oracle.setting.x[probe.rows]
    n_rows = len(x) // training.accumulation
    seen = RecordingPass(tensors)
    with np.errstate(all="ignore"):
        output = seen.run(training.layers, (x.astype(np.float64) if x.dtype.kind == "f" else x)[:n_rows])
    same_op: dict[str, list[Layer]] = {}
    for layer in (layer for layer in walk(training.layers) if layer.op != RESIDUAL):
        shapes = [p.shape for p in layer.parameters]
        same_op.setdefault(repr((layer.op, layer.params, np.shape(seen.given[layer.name]), shapes)), []).append(layer)
    for layers in list(same_op.values())[:MOST_OPS]:
        layer, op = layers[0], OPS[layers[0].op]
        mine = {p.name.removeprefix(f"{layer.name}."): tensors[p.name] for p in layer.parameters}
        given = {op.inputs[0].name: seen.given[layer.name], **mine}
        yield case_of(oracle, op.name, layer.params, given, tuple(one.name for one in layers))
    target = counted(oracle.setting.target[probe.rows])[:n_rows]
    loss = OPS[training.loss.name]
    yield case_of(oracle, loss.name, loss.params(), {"x": output, "target": target}, (LOSS,))


def case_of(oracle: StepOracle, name: str, params: Any, given: Mapping[str, Array], layers: tuple[str, ...]) -> OpCase:
    """A case of an op with these inputs and random grad_outputs."""
    op, dtype = OPS[name], oracle.dtype
    inputs = {n: v if v.dtype.kind in "iu" else as_dtype(v, dtype) for n, v in given.items()}
    shapes = op.infer_shapes(params, {n: v.shape for n, v in inputs.items()})
    for output in op.grad_outputs if op.differentiable else ():
        drawn = generator(0, name, output).normal(size=shapes.outputs[output])
        inputs[f"grad.{output}"] = as_dtype(drawn, dtype)
    draws = {item.name: item.default for item in op.inputs}
    plans = tuple(
        TensorPlan(n, v.shape, draws.get(n) or Normal(), integers=v.dtype.kind in "iu") for n, v in inputs.items()
    )
    case = CasePlan(oracle.case_id, name, params, (dtype,), plans, DEFAULT_TOLERANCES, WrittenAt("", 0))
    return OpCase(replace(case, gradients=bool(op.differentiable)), inputs, layers)


def faults_of(one: OpCase, dtype: str, backend: str, ask: Ask) -> Iterator[OpFault]:
    """The op's faults as the judge of ops finds them; none if the op is right, too large, or cannot be called."""
    if sum(values.size for values in one.inputs.values()) > MOST_ELEMENTS:
        return
    returned = ask(backend, one.case, dtype, one.inputs)
    if returned is None:
        return
    oracle = consult_oracle(one.case, one.inputs)
    outputs = {n: Output(dtype, v.shape, v) for n, v in returned.items() if n in oracle}
    judge = CaseJudge(one.case, one.inputs, oracle, ORACLE, ask=ask)
    judge.take(dtype, [CellOutcome(one.case.id, dtype, backend, Outcome.OK, outputs=outputs)])
    wrong = tuple(judge.cells[dtype].wrong[backend])
    diagnoses = [d for d in judge.judged().diagnoses if d.explained and d.id not in RIGHT] if wrong else []
    yield from (fault_of(one, diagnosis) for diagnosis in diagnoses)
    if wrong and not diagnoses:
        yield OpFault(one.where, wrong, one.of_loss)


def fault_of(one: OpCase, diagnosis: Diagnosis) -> OpFault:
    """A diagnosis of an op as a fault of the step that has it."""
    own = diagnosis.evidence.get("parameters")
    cause = Cause(diagnosis.id, {"in": one.where, **(own if isinstance(own, Mapping) else {})})
    expression, left = str(diagnosis.evidence.get("expression", "")), diagnosis.residual_after or 0.0
    return OpFault(one.where, diagnosis.tensors, one.of_loss, cause, expression, left)
