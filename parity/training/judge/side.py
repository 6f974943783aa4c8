"""One side of a training: what is measured of its steps as they come, and why it is outside where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from parity.judge.bound.envelope import OFF
from parity.judge.compare.metrics import Metrics, compare
from parity.outcome import Curves, StepRecord
from parity.training.judge.hypotheses import Hypothesis
from parity.training.judge.oracle import NOTHING, Array, Changes, Probe, StepOracle
from parity.training.judge.recorded import Rates, Rows, Told
from parity.training.judge.search import Explanation, Found, Outside, Question, competing, explanation, search
from parity.training.judge.stages import APPROXIMATED, KINDS, Measured, measure
from parity.training.spec import STAGES

KEPT = 3
"""So many probes outside, and so many inside, are kept of every stage for the search."""


@dataclass(frozen=True)
class Cause:
    """A stage that is outside and no consequence of an earlier one: where, by how much, and why.

    `tensors` are those outside at the first step, the worst first.
    """

    stage: str
    steps: tuple[int, ...]
    tensors: tuple[str, ...]
    ratio: float
    found: Found

    @property
    def first(self) -> int:
        """The first step outside."""
        return self.steps[0]

    @property
    def hypothesis(self) -> Hypothesis | None:
        """What explains it."""
        return None if self.found.best is None else self.found.best.hypothesis


@dataclass
class StageSeen:
    """What is kept of a stage: the probes outside and inside, the steps outside, the worst measurement, and whether all
    errors are `small` enough to be tolerated."""

    outside: list[Outside] = field(default_factory=list)
    inside: list[Outside] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    probed: list[int] = field(default_factory=list)
    worst: float = -1.0
    tensor: str = ""
    metrics: Metrics | None = None
    small: bool = True

    def take(self, probe: Probe, measured: Measured, dtype: str) -> None:
        """One probe more."""
        self.probed.append(probe.step)
        if measured.outside:
            self.steps.append(probe.step)
            self.small = self.small and measured.small(dtype)
        kept = self.outside if measured.outside else self.inside
        if len(kept) < KEPT:
            kept.append(Outside(probe, measured))
        if measured.worst > self.worst and measured.tensor:
            self.worst, self.tensor = measured.worst, measured.tensor
            mine, exact = measured.observed.get(self.tensor), measured.exact.get(self.tensor)
            if mine is not None and exact is not None and mine.shape == exact.shape:
                self.metrics = compare(mine, exact.astype("float64"), 0.0, 0.0)


class Side:
    """Measures one backend's steps against the oracle."""

    def __init__(self, name: str, oracle: StepOracle, ranks: int = 1) -> None:
        training = oracle.training
        self.name, self.oracle, self.ranks = name, oracle, ranks
        self.rows = Rows(oracle.setting.order, training.accumulation, ranks)
        self.rates = Rates(training, oracle.dtype)
        self.stages: dict[str, StageSeen] = {}
        self.probes: dict[int, dict[str, float]] = {}
        self.n_steps = 0
        self.tolerated: dict[str, Cause] = {}
        self._last: StepRecord | None = None

    def observe(self, curves: Curves) -> None:
        """The next steps."""
        self.rows.take(curves.first, curves.rows)
        self.rates.take(curves.lr)
        self.n_steps = curves.first + curves.n_steps - 1

    def take(self, record: StepRecord) -> None:
        """The record of a step, later than those before."""
        last = self._last if self._last is not None and self._last.step == record.step - 1 else None
        probe = Probe(record, last)
        self._last = replace(record, before={}, tensors=gradients_of(record))
        ratios = self.probes.setdefault(record.step, {})
        for stage in KINDS:
            measured = measure(self.oracle, stage, probe) if self._usable(record) else None
            if measured is not None:
                ratios[stage] = measured.worst
                self.stages.setdefault(stage, StageSeen()).take(probe, measured, self.oracle.dtype)

    def _usable(self, record: StepRecord) -> bool:
        """Whether the rows are rows of the data set."""
        rows = record.rows
        return bool(rows.size) and bool(((rows >= 0) & (rows < len(self.oracle.setting.x))).all())

    def right_at(self, step: int) -> bool:
        """Whether the step and the one before it were looked at, and every stage of both is inside or tolerated."""
        known = self.ratios()
        steps = [s for s in (step - 1, step) if s > 0]
        return all(
            len(known.get(s, {})) > len(("data", "schedule"))
            and all(ratio < OFF or stage in self.tolerated for stage, ratio in known[s].items())
            for s in steps
        )

    def ratios(self) -> dict[int, dict[str, float]]:
        """Of every probe, the ratio of each stage that was observed, in the order of the stages."""
        rates = self.rates.ratios
        found = {}
        for step, known in sorted(self.probes.items()):
            every = {"data": math.inf if step in self.rows.off else 0.0, **known}
            if step <= len(rates):
                every["schedule"] = float(rates[step - 1])
            found[step] = {stage: every[stage] for stage in STAGES if stage in every}
        return found

    def causes(self, *, diagnose: bool = True) -> list[Cause]:
        """Every stage outside that is no consequence of another, the first to part first; why, where to `diagnose`.

        Those that no cause explains and that are off by little are `tolerated` instead.
        """
        self.tolerated = {}
        found = [cause_of(stage, told) for stage, told in self._told() if told is not None]
        known: list[Hypothesis] = []
        for stage in KINDS:
            cause = self._cause(stage, known, diagnose)
            if cause is None:
                continue
            if cause.hypothesis is None and stage in APPROXIMATED and self.stages[stage].small:
                self.tolerated[stage] = cause
                continue
            found.append(cause)
            if cause.hypothesis is not None:
                known.append(cause.hypothesis)
        return sorted(found, key=lambda cause: (cause.first, STAGES.index(cause.stage)))

    def _told(self) -> Sequence[tuple[str, Told | None]]:
        return ("data", self.rows.told), ("schedule", self.rates.told)

    def _cause(self, stage: str, causes: Sequence[Hypothesis], diagnose: bool) -> Cause | None:
        """Why a stage is outside; None where it is not, or only as a consequence of the `causes` of stages before."""
        seen = self.stages.get(stage)
        outside, known = self._left(stage, seen.outside if seen is not None else [], causes)
        if seen is None or not outside:
            return None
        inside = seen.inside if known is NOTHING else []
        question = Question(stage, outside, inside, known, self.ranks, competing(stage, outside[0].probe))
        found = search(self.oracle, question) if diagnose else Found(None)
        ratios = outside[0].measured.ratios
        tensors = tuple(n for n, r in sorted(ratios.items(), key=lambda item: -item[1]) if r >= OFF)
        steps = tuple(seen.steps) if known is NOTHING else tuple(o.probe.step for o in outside)
        return Cause(stage, steps, tensors, outside[0].measured.worst, found)

    def _left(
        self, stage: str, outside: Sequence[Outside], causes: Sequence[Hypothesis]
    ) -> tuple[Sequence[Outside], Changes]:
        """The probes that stay outside where all `causes` are at work, and these, if they come nearer to the side."""
        if not outside or not causes:
            return outside, NOTHING
        if any(explanation(self.oracle, Question(stage, outside, []), cause).explains for cause in causes):
            return [], NOTHING
        known = reduce(Changes.with_, (cause.changes for cause in causes), NOTHING)
        again = [o for o in (self._under(stage, known, o) for o in outside) if o.measured.outside]
        worst = max((o.measured.worst for o in again), default=0.0)
        return (again, known) if worst < max(o.measured.worst for o in outside) else (outside, NOTHING)

    def _under(self, stage: str, known: Changes, outside: Outside) -> Outside:
        """A probe measured again under what is known already."""
        measured = measure(self.oracle, stage, outside.probe, known)
        return outside if measured is None else Outside(outside.probe, measured)


def gradients_of(record: StepRecord) -> dict[str, Array]:
    """What the next step may ask of a record: its gradients."""
    return {n: v for n, v in record.tensors.items() if n.startswith(("grad.", "clipped."))}


def cause_of(stage: str, told: Told) -> Cause:
    """The cause of a stage that needs no oracle."""
    best = None if told.hypothesis is None else Explanation(told.hypothesis, told.left)
    rivals = tuple(Explanation(h, told.left) for h in told.others)
    return Cause(stage, told.steps, (stage,), told.before, Found(best, rivals))
