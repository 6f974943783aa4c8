"""Measures which common mistakes a training reveals, on steps that the oracle takes itself. No backend runs.

A mistake is what the judge would try as a cause: one of `causes.py`, of the schedule or of the rows. It is seen if a
tensor of its stage then exceeds the error bound in one of the steps that are always probed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.cases.op import IncompatibleError
from parity.config.plan import CasePlan
from parity.judge.audit import ONLY_FLOAT64, CaseAudit, Mistake
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.proposals import UNNAMED_WEIGHT
from parity.training.cost import cost
from parity.training.judge.causes import Stage, standing
from parity.training.judge.evaluator import variants_of
from parity.training.judge.inquiry import identity, is_slow
from parity.training.judge.measured import KINDS, MeasuredStage, measure, ratios
from parity.training.judge.oracle import StepOracle, UnknownError, oracle_of
from parity.training.judge.probes import planned_steps
from parity.training.judge.recorded import UsedRates, other_orders
from parity.training.records import Setting, StepRecord
from parity.training.spec import Clip, Group, Training
from parity.training.steps import rates

STEPS_S, SEARCH_S = 20.0, 60.0
"""Limits in seconds for a dtype: on the oracle's own steps, and on passes through the model for causes."""
OTHER_OPTION = 0.5

Ratios = Mapping[str, float]


@dataclass
class TriedMistake:
    """A mistake in one dtype: the largest error ratio of each tensor, in the steps tried so far."""

    cause: Cause
    ratios: dict[str, float]

    @property
    def seen(self) -> bool:
        """Whether the judge sees it."""
        return any(ratio >= ERROR_BOUND for ratio in self.ratios.values())

    def take(self, ratios: Ratios) -> None:
        """Add the effect in another step or stage."""
        for name, value in ratios.items():
            self.ratios[name] = max(value, self.ratios.get(name, 0.0))


def audit_training(case: CasePlan, setting: Setting, n_ranks: int) -> CaseAudit:
    """What a training reveals with these data, if `n_ranks` is the largest number of ranks of a backend."""
    training: Training = case.params
    by_dtype: dict[str, dict[str, TriedMistake]] = {}
    remarks: list[str] = []
    for dtype in case.dtypes:
        audit = DtypeAudit(case.id, training, dtype, setting, n_ranks)
        by_dtype[dtype] = audit.tried()
        remarks += audit.remarks()
    remarks += not_possible(training, n_ranks)
    return CaseAudit(case.id, case.op, case.dtypes, tuple(mistakes(by_dtype)), remarks=tuple(dict.fromkeys(remarks)))


def mistakes(by_dtype: Mapping[str, Mapping[str, TriedMistake]]) -> Iterator[Mistake]:
    """Every mistake, with its effect by dtype. What exceeds the error bound fails: trainings have no tolerance."""
    for key in dict.fromkeys(key for of_dtype in by_dtype.values() for key in of_dtype):
        own = {dtype: of_dtype[key] for dtype, of_dtype in by_dtype.items() if key in of_dtype}
        cause = next(iter(own.values())).cause
        beyond = {dtype: tuple(n for n, r in one.ratios.items() if r >= ERROR_BOUND) for dtype, one in own.items()}
        effects = {dtype: one.ratios for dtype, one in own.items()}
        yield Mistake(cause.id, cause.parameters, cause.shown_by, False, effects, beyond)


class DtypeAudit:
    """The audit of a training in one dtype."""

    def __init__(self, case_id: str, training: Training, dtype: str, setting: Setting, n_ranks: int) -> None:
        self.training, self.dtype, self.n_ranks = training, dtype, n_ranks
        self.oracle = oracle_of(case_id, training, dtype, setting)
        self._n_left_out = 0
        last = max(2, int(STEPS_S / cost(training)))
        self.steps = tuple(step for step in planned_steps(training, 1, dtype) if step <= last)

    def tried(self) -> dict[str, TriedMistake]:
        """Every mistake that can be computed, by its identity."""
        known: dict[str, TriedMistake] = {}
        probes = list(self._probes())
        self.steps = tuple(probe.step for probe in probes)
        for stage in KINDS:
            measured = [
                one for probe in probes if (one := measure(self.oracle, stage, probe)) is not None and one.exact
            ]
            end = time.monotonic() + SEARCH_S
            for cause in self._causes(stage, measured):
                if is_slow(stage, cause) and time.monotonic() > end:
                    self._n_left_out += 1
                    continue
                entry = known.get(identity(cause), TriedMistake(cause, {}))
                self._try(stage, cause, measured, entry)
                if entry.ratios:
                    known[identity(cause)] = entry
        for cause, ratio in (*self._of_rates(), *self._of_rows()):
            known[identity(cause)] = TriedMistake(cause, {cause.id: ratio})
        return known

    def remarks(self) -> Iterator[str]:
        """What the audit has not looked at."""
        planned = planned_steps(self.training, 1, self.dtype)
        if len(self.steps) < len(planned):
            yield f"audited in steps {', '.join(map(str, self.steps))} only, since a step of the oracle takes long"
        if self._n_left_out:
            yield f"{self._n_left_out} mistakes in the model were not tried in {self.dtype}, since a pass takes long"

    def _probes(self) -> Iterator[StepRecord]:
        """The records of the steps, as a backend without a fault would give them, as far as there is time."""
        wanted, last = set(self.steps), max(self.steps, default=0)
        end, is_first = time.monotonic() + STEPS_S, True
        before = self.oracle.setting.tensors
        names = {parameter.name for parameter in self.training.buffers}
        state = {f"{'buffer' if name in names else 'param'}.{name}": v.astype(self.dtype) for name, v in before.items()}
        previous: StepRecord | None = None
        for step in range(1, last + 1):
            record = replace(taken(self.oracle, step, state), previous=previous)
            state = {n: v for n, v in record.tensors.items() if n.startswith(("param.", "state.", "buffer."))}
            previous = replace(record, before={}, previous=None)
            if step in wanted:
                yield record
                is_first = False
            if not is_first and time.monotonic() > end:
                return

    def _causes(self, stage: str, measured: Sequence[MeasuredStage]) -> list[Cause]:
        """The causes of a stage that the steps suggest, last those with a pass through the model."""
        asked = [Stage(self.training, self.n_ranks, self.dtype, one) for one in measured]
        stated = {identity(c): c for one in asked for c in standing(stage, one) if self._is_common(c)}
        return sorted(stated.values(), key=lambda cause: (is_slow(stage, cause), cause.weight))

    def _is_common(self, cause: Cause) -> bool:
        """Whether to ask about a cause: no fitted number, in all layers of a kind, possible in this dtype."""
        fitted, of_one_layer = cause.weight >= UNNAMED_WEIGHT, "@" in str(cause.parameters.get("in", ""))
        return not fitted and not of_one_layer and (self.dtype == "float64" or cause.id != ONLY_FLOAT64)

    def _try(self, stage: str, cause: Cause, measured: Sequence[MeasuredStage], entry: TriedMistake) -> None:
        """Adds the effect of a cause in a stage, step by step until one sees it."""
        if cause.alteration is None:
            return
        changes = variants_of(cause.alteration)
        for one in measured:
            if entry.seen:
                return
            try:
                values = self.oracle.answer(stage, one.probe, changes)
            except (UnknownError, IncompatibleError):
                continue
            if all(name in values and values[name].shape == exact.shape for name, exact in one.exact.items()):
                own = {name: values[name].astype(self.dtype) for name in one.exact}
                entry.take(ratios(own, one.exact, one.envelopes))

    def _of_rates(self) -> Iterator[tuple[Cause, float]]:
        """Mistakes in the schedule, in all steps."""
        used = UsedRates(self.training, self.dtype)
        used.take(np.array([rates(self.training, step) for step in range(1, self.training.steps + 1)]))
        yield from ((cause, ratio) for cause, ratio in used.effects() if self._is_common(cause))

    def _of_rows(self) -> Iterator[tuple[Cause, float]]:
        """Mistakes in the choice of rows, in all steps."""
        order = self.oracle.setting.order
        for cause, other in other_orders(order, self.training.data.rows):
            yield cause, 0.0 if np.array_equal(order, other) else float("inf")


def taken(oracle: StepOracle, step: int, before: Mapping[str, Any]) -> StepRecord:
    """The record of a step that the oracle takes from the tensors `before` it, in the case's dtype."""
    training = oracle.training
    rows = oracle.setting.order[step - 1]
    record = StepRecord(step, rows, before, {"lr": np.array(rates(training, step))})
    for stage in KINDS:
        own = {name: np.asarray(v).astype(oracle.dtype) for name, v in oracle.answer(stage, record).items()}
        record = replace(record, tensors={**record.tensors, **own})
    return record


def not_possible(training: Training, n_ranks: int) -> Iterator[str]:
    """The mistakes that a larger recipe could have and this one cannot, each with what would show it."""
    own = possible(training, n_ranks)
    for name, shown_by in possible(larger(training), max(2, n_ranks)).items():
        if name not in own:
            yield f"{name} is not possible in this recipe{f'; {shown_by} would show it' if shown_by else ''}"


def possible(training: Training, n_ranks: int) -> dict[str, str]:
    """The ids of the causes outside the model that a recipe has, each with what shows it."""
    nothing = MeasuredStage(StepRecord(2, np.zeros(0, np.int32), {}, {}))
    stage = Stage(training, n_ranks, "float32", nothing)
    causes = [
        cause for name in ("gradient", "clip", "update") for cause in standing(name, stage) if not is_slow(name, cause)
    ]
    return {cause.id: cause.shown_by for cause in reversed(causes)}


def larger(training: Training) -> Training:
    """The recipe with what it lacks: options that are not 0, two groups, a clip, an accumulation."""
    groups = [
        Group(
            group.parameters, {name: OTHER_OPTION if value == 0.0 else value for name, value in group.options.items()}
        )
        for group in training.groups
    ]
    other = replace(groups[0], options={**groups[0].options, "weight_decay": 2 * OTHER_OPTION})
    return replace(
        training,
        groups=tuple(groups) if len(groups) > 1 else (*groups, other),
        clip=training.clip or Clip(),
        accumulation=max(2, training.accumulation),
    )
