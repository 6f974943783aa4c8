"""Presents the rates of a training as the output of an op, the schedule, so that edits of its formula apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.cases.op import Input, Op, TensorShapes
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import ToleranceTable
from parity.judge.bound.envelope import Envelope
from parity.judge.diagnose.edits import edit_causes, fitted_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator
from parity.judge.diagnose.explanation import KernelExplanation, unaltered
from parity.judge.diagnose.inquiry import extended
from parity.outcome import Array
from parity.training.judge.causes import NAMED
from parity.training.judge.inquiry import OPTION, other_value
from parity.training.schedules import SCHEDULES, ScheduleKind
from parity.training.spec import Schedule

RATE = "rate"
FEWEST, FEWEST_FITTED = 2, 3
"""An edit, or one with a fitted number, must explain at least so many different wrong rates."""


def rates_as_tensors(tensors: Mapping[str, Any], params: Any, *, kind: ScheduleKind) -> dict[str, Any]:
    """The rates [steps, groups] in the steps `t` = 0, 1, ... [steps, 1] from the groups' base rates `lr`."""
    return {RATE: kind.formula(tensors["lr"], tensors["t"], params)}


def shape_of_rates(_params: Any, given: Mapping[str, Any]) -> TensorShapes:
    """One rate for each step and group."""
    return TensorShapes(given, {RATE: np.broadcast_shapes(*given.values())})


OPS_OF_SCHEDULES: Mapping[str, Op] = {
    name: Op(
        name,
        kind.summary,
        kind.options,
        (Input("lr"), Input("t")),
        shape_of_rates,
        partial(rates_as_tensors, kind=kind),
        grad_outputs=(),
    )
    for name, kind in SCHEDULES.items()
}


class RatesEvaluator(Evaluator):
    """Predicts the rates of all steps under edits of the schedule's formula."""

    universal = True

    def __init__(self, schedule: Schedule, lr: Array, exact: Array, unit: Array) -> None:
        op = OPS_OF_SCHEDULES[schedule.name]
        options = {name: float(value) for name, value in schedule.options.items()}
        case = CasePlan("", op.name, op.params(**options), ("float64",), (), ToleranceTable(()), WrittenAt("", 0))
        inputs = {"lr": lr, "t": np.arange(len(exact), dtype=np.float64)[:, None]}
        super().__init__(case, "float64", inputs, {RATE: exact}, {RATE: Envelope.relative(1.0, unit)}, op)

    def own_envelopes(self, _alteration: Alteration) -> Mapping[str, Envelope]:
        """The same for every alteration: a rate takes only a few operations."""
        return self.envelopes


@np.errstate(all="ignore")
def explanations(schedule: Schedule, lr: Array, seen: Array, exact: Array, unit: Array) -> list[KernelExplanation]:
    """The edits of the schedule that give the `seen` rates [steps, groups] within `unit`, the simplest first; `lr` are
    the groups' base rates. Empty if there are too few wrong rates to tell edits apart."""
    evaluator = RatesEvaluator(schedule, lr, exact, unit)
    start = unaltered(evaluator, {RATE: seen})
    n_wrong = len(np.unique(seen[np.abs(seen - exact) > unit]))
    for least, causes in ((FEWEST, edit_causes), (FEWEST_FITTED, fitted_causes)):
        edits = [with_option(e) for e in extended(start, causes(start)) if e.explains] if n_wrong >= least else []
        if edits:
            return sorted(edits, key=lambda e: e.rank)
    return []


def with_option(explanation: KernelExplanation) -> KernelExplanation:
    """The explanation; if it only changes the value of an option, as the cause `option-value`."""
    (cause,) = explanation.causes
    alteration = cause.alteration or Alteration()
    program = explanation.evaluator.program(Alteration(alteration.arguments))
    other = other_value(program, alteration.edits[0])
    if other is None:
        return explanation
    option, value, asked = other
    named = replace(cause, id=OPTION, parameters={option: value, "asked": asked}, weight=NAMED)
    return replace(explanation, causes=(named,))
