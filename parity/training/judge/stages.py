"""Judges one backend of a training: measures its steps as they come, and explains those that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.explanation import unaltered
from parity.judge.failures import FAILURES, Failures
from parity.training.judge.alone import AskAbout, OpFault, op_faults
from parity.training.judge.evaluator import StageEvaluator, variants_of
from parity.training.judge.inquiry import StageFault, StageInquiry
from parity.training.judge.measured import APPROXIMATED, KINDS, MeasuredStage, measure, wrong_parts
from parity.training.judge.oracle import NOTHING, StepOracle, UnknownError, merged
from parity.training.judge.recorded import UsedRates, UsedRows
from parity.training.model import Variants
from parity.training.records import Curves, StepRecord
from parity.training.spec import STAGES

KEPT = 3
"""Of every stage, so many wrong and so many right probes are kept for the search: the first ones and the last."""


OF_OPS: Mapping[str, Callable[[OpFault], bool]] = {
    "forward": lambda fault: not fault.of_loss and not fault.of_gradients,
    "loss": lambda fault: fault.of_loss and not fault.of_gradients,
    "gradient": lambda _: True,
}
"""The stages that consist of the model's ops, each with a test for the ops' faults that show in it."""


@dataclass
class StageProbes:
    """What is kept of a stage: some wrong (`outside`) and right (`inside`) probes, the wrong `steps` and all `probed`
    ones, the worst ratio with its `tensor`, and whether all errors are `small` enough to be tolerated."""

    outside: list[MeasuredStage] = field(default_factory=list)
    inside: list[MeasuredStage] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    probed: list[int] = field(default_factory=list)
    worst: float = 0.0
    tensor: str = ""
    metrics: Metrics | None = None
    small: bool = True

    def take(self, measured: MeasuredStage, dtype: str) -> None:
        """Add a probe."""
        if measured.outside:
            self.steps.append(measured.probe.step)
            self.small = self.small and measured.small(dtype)
        kept = self.outside if measured.outside else self.inside
        kept[KEPT - 1 :] = [measured]
        if measured.worst > self.worst or not self.probed:
            self.worst, self.tensor = measured.worst, measured.tensor
            observed, exact = measured.observed.get(measured.tensor), measured.exact.get(measured.tensor)
            if observed is not None and exact is not None and observed.shape == exact.shape:
                self.metrics = compare(observed, exact.astype("float64"), 0.0, 0.0)
        self.probed.append(measured.probe.step)


class StepJudge:
    """Measures one backend's steps against the oracle."""

    def __init__(self, name: str, oracle: StepOracle, ranks: int = 1, ask: AskAbout | None = None) -> None:
        training = oracle.training
        self.name, self.oracle, self.ranks, self._ask = name, oracle, ranks, ask
        self._of_ops: list[OpFault] | None = None
        self.rows = UsedRows(oracle.setting.order, training.accumulation, ranks)
        self.rates = UsedRates(training, oracle.dtype)
        self.stages: dict[str, StageProbes] = {}
        self.probes: dict[int, dict[str, float]] = {}
        self.n_steps = 0
        self.tolerated: set[str] = set()
        self._last: StepRecord | None = None

    def observe(self, curves: Curves) -> None:
        """Take the next steps."""
        self.rows.take(curves.first, curves.rows)
        self.rates.take(curves.lr)
        self.n_steps = curves.first + curves.n_steps - 1

    def take(self, record: StepRecord) -> None:
        """Take the record of a step; steps come in order."""
        follows = self._last is not None and self._last.step == record.step - 1
        probe = replace(record, previous=self._last if follows else None)
        grads = {n: v for n, v in record.tensors.items() if n.startswith(("grad.", "clipped."))}
        self._last = replace(record, before={}, tensors=grads)
        ratios = self.probes.setdefault(record.step, {})
        in_data_set = (record.rows >= 0) & (record.rows < len(self.oracle.setting.x))
        for stage in KINDS if record.rows.size and in_data_set.all() else ():
            measured = measure(self.oracle, stage, probe)
            if measured is not None:
                ratios[stage] = measured.worst
                self.stages.setdefault(stage, StageProbes()).take(measured, self.oracle.dtype)

    def right_at(self, step: int) -> bool:
        """Whether the step and the one before it were probed, and every stage of both is right or tolerated."""
        known = self.ratios()
        return all(
            len(known.get(s, {})) > len(("data", "schedule"))
            and all(ratio < ERROR_BOUND or stage in self.tolerated for stage, ratio in known[s].items())
            for s in (step - 1, step)
            if s > 0
        )

    def ratios(self) -> dict[int, dict[str, float]]:
        """The ratio of each observed stage in every probed step, in the order of the stages."""
        rates = self.rates.ratios
        ratios = {}
        for step, known in sorted(self.probes.items()):
            schedule = {"schedule": float(rates[step - 1])} if step <= len(rates) else {}
            every = {"data": math.inf if step in self.rows.wrong_steps else 0.0, **schedule, **known}
            ratios[step] = {stage: every[stage] for stage in STAGES if stage in every}
        return ratios

    def seen(self, stage: str) -> tuple[float, Metrics | None] | None:
        """The largest ratio of a stage, with the metrics of its worst tensor; None if it was not observed."""
        if not self.n_steps:
            return None
        if stage == "data":
            return (math.inf if self.rows.wrong_steps else 0.0), self.rows.metrics
        if stage == "schedule":
            return self.rates.worst
        probes = self.stages.get(stage)
        return None if probes is None else (probes.worst, probes.metrics)

    def faults(self, *, diagnose: bool = True) -> list[StageFault]:
        """The wrong stages that do not follow from others, in the order of divergence, with causes if `diagnose`.

        Stages with small, unexplained errors are `tolerated` instead.
        """
        self.tolerated = set()
        faults = [fault for fault in (self.rows.fault, self.rates.fault) if fault is not None]
        causes: list[Cause] = []
        for stage, probes in ((stage, self.stages[stage]) for stage in KINDS if stage in self.stages):
            fault = self._fault(stage, probes, causes, diagnose)
            searched = fault is not None and FAILURES not in fault.evidence
            if fault is not None and searched and not fault.causes and stage in APPROXIMATED and probes.small:
                self.tolerated.add(stage)
            elif fault is not None:
                faults.append(fault)
                causes += [cause for cause in fault.causes if cause.alteration is not None]
        return sorted(faults, key=lambda fault: (fault.first, STAGES.index(fault.stage)))

    def _fault(self, stage: str, probes: StageProbes, causes: Sequence[Cause], diagnose: bool) -> StageFault | None:
        """The fault of a stage; None if the stage is right, or follows from the `causes` of earlier stages."""
        outside, known = self._not_explained(stage, probes.outside, causes)
        if not outside:
            return None
        steps = [measured.probe.step for measured in outside] if known else probes.steps
        tensors = tuple(outside[0].tensors_outside)
        fault = StageFault(stage, tuple(steps), tensors, outside[0].worst, parts=wrong_parts(outside))
        comparable = [measured for measured in outside if measured.exact]
        if not comparable or not diagnose:
            return fault
        inside = [] if known else probes.inside
        forward = stage == "gradient" and "forward" in self.stages and not self.stages["forward"].outside
        failures = Failures()
        with failures.contained(f"explaining the stage {stage}"):
            inquiry = StageInquiry(
                self.oracle, stage, comparable, inside, known, self.ranks, forward=forward, failures=failures
            )
            fault = inquiry.explained(fault)
        with failures.contained(f"calling the ops of the stage {stage} alone"):
            fault = fault if fault.causes or probes.small else self._of_op(fault, comparable[0].probe)
        return replace(fault, evidence={**fault.evidence, **failures.evidence})

    def _of_op(self, fault: StageFault, probe: StepRecord) -> StageFault:
        """The fault with the causes of its stage's ops, called alone with the step's tensors."""
        if self._ask is None or fault.stage not in OF_OPS:
            return fault
        if self._of_ops is None:
            self._of_ops = op_faults(self.oracle, probe, self.name, self._ask)
        faults = [one for one in self._of_ops if OF_OPS[fault.stage](one)]
        if not faults:
            return fault
        where = tuple(dict.fromkeys(one.where for one in faults))
        fault = replace(fault, parts=where if set(fault.parts) <= {"output"} else fault.parts)
        alone = f"called alone with the tensors of step {probe.step}"
        named = [(one, one.cause) for one in faults if one.cause is not None]
        if not named:
            return replace(fault, evidence={**fault.evidence, "alone": f"also wrong when {alone}: {', '.join(where)}"})
        evidence = {**fault.evidence, "second": None, "alone": f"found in the op, {alone}"}
        expressions, left = tuple(one.expression for one, _ in named), max(one.left for one, _ in named)
        return replace(fault, causes=tuple(c for _, c in named), left=left, expressions=expressions, evidence=evidence)

    def _not_explained(
        self, stage: str, outside: Sequence[MeasuredStage], causes: Sequence[Cause]
    ) -> tuple[Sequence[MeasuredStage], Variants]:
        """The probes that stay wrong with all `causes`, and these as variants; if the causes explain nothing, all
        probes and no variants."""
        if not outside or not causes:
            return outside, NOTHING
        sets = [[cause] for cause in causes] + [list(causes)]
        sets += [[with_gradients(cause) for cause in one] for one in sets]
        if any(all(self._explains(stage, measured, one) for measured in outside) for one in sets):
            return [], NOTHING
        known = reduce(merged, (variants_of(cause.alteration) for cause in causes if cause.alteration), NOTHING)
        again = [measure(self.oracle, stage, measured.probe, known) or measured for measured in outside]
        left = [measured for measured in again if measured.outside]
        nearer = max((m.worst for m in left), default=0.0) < max(m.worst for m in outside)
        return (left, known) if nearer else (outside, NOTHING)

    def _explains(self, stage: str, measured: MeasuredStage, causes: Sequence[Cause]) -> bool:
        """Whether causes of earlier stages leave only rounding in this one."""
        if not measured.exact:
            return False
        evaluator = StageEvaluator(self.oracle, stage, measured, NOTHING)
        try:
            explanation = unaltered(evaluator, evaluator.observed).extended(*causes)
        except UnknownError:
            return False
        return explanation is not None and not explanation.refined().wrong


def with_gradients(cause: Cause) -> Cause:
    """The cause, with edits that gradients follow too."""
    alteration = cause.alteration
    if alteration is None or not alteration.edits:
        return cause
    edits = tuple(replace(edit, again=True) for edit in alteration.edits)
    return replace(cause, alteration=replace(alteration, edits=edits))
