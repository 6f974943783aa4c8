"""All backends of one training in one dtype: chunk by chunk and record by record, then verdicts and causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.config.plan import DEFAULT_TOLERANCES, ORACLE, BackendSpec, CasePlan
from parity.judge.bound.envelope import OFF, WORK
from parity.judge.case import KINDS, ORDER
from parity.judge.compare.cell import verdict_of
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome, Curves, Ensemble, Outcome, Setting, StepRecord
from parity.training.cost import LONGDOUBLE, cost
from parity.training.judge.curves import SCALARS, CurveJudge, Runs
from parity.training.judge.curves import Side as Curve
from parity.training.judge.findings import (
    UNEXPLAINED,
    Parting,
    attributed,
    curve_diagnosis,
    diagnoses_of,
    kind_of,
    parting_of,
    stage_kind,
)
from parity.training.judge.oracle import StepOracle
from parity.training.judge.probes import around, planned_steps, within
from parity.training.judge.side import Cause, Side
from parity.training.spec import CURVES, STAGES, Training

SLOW_S = 10.0
"""Seconds that a step of the oracle in longdouble may take; float64 is judged by float64 where it takes longer."""
APPROXIMATE = "no cause explains it, and it is as little as a library's approximate functions lose"
ONE_DTYPE = "judged in one dtype only, so that the kind of the error is less certain"


@dataclass(frozen=True)
class TrainingFinding:
    """A row of `trainings` in results.json, as JSON values."""

    case: str
    dtype: str
    backend: str
    expected: str
    steps: int
    planned: int
    ensemble: Mapping[str, Any]
    parting: Mapping[str, Any] | None
    probes: Sequence[Mapping[str, Any]]
    curves: Mapping[str, Any]


@dataclass(frozen=True)
class JudgedTraining:
    """What is known about a training in one dtype; `partings` are where each backend parts."""

    comparisons: tuple[Comparison, ...]
    diagnoses: tuple[Diagnosis, ...]
    findings: tuple[TrainingFinding, ...]
    partings: Mapping[str, Parting | None] = field(default_factory=dict)


class TrainingJudge:
    """Judges a training in one dtype as it goes on; `parted` has the steps at which curves have parted so far."""

    def __init__(
        self,
        case: CasePlan,
        dtype: str,
        setting: Setting,
        backends: Sequence[BackendSpec],
        baseline: str,
        ensemble: Ensemble,
    ) -> None:
        self.case, self.dtype, self.baseline, self.ensemble = case, dtype, baseline, ensemble
        self.training: Training = case.params
        slow = dtype == "float64" and LONGDOUBLE * cost(self.training) > SLOW_S
        oracle = StepOracle(case.id, self.training, dtype, setting, np.float64 if slow else WORK[dtype])
        self.sides = {spec.name: Side(spec.name, oracle, spec.ranks) for spec in backends}
        self._wanted = {name: set(planned_steps(self.training, len(backends), dtype)) for name in self.sides}
        self.parted: dict[str, int] = {}
        true = ORACLE if ensemble.of == ORACLE else None
        self.curves = CurveJudge(self.training, dtype, Runs(baseline, ensemble.base, ensemble.members, true))

    def observe(self, curves: Mapping[str, Curves]) -> dict[str, tuple[int, ...]]:
        """The next steps of everybody; the steps among them whose records are wanted, by backend."""
        self.curves.take(curves)
        for name, side in self.sides.items():
            if name in curves:
                side.observe(curves[name])
                self._want_partings(name)
        chunks = {name: (c.first, c.first + c.n_steps - 1) for name, c in curves.items() if name in self.sides}
        return {name: steps for name, chunk in chunks.items() if (steps := within(self._wanted[name], *chunk))}

    def _want_partings(self, name: str) -> None:
        """Ask for the steps around the one at which a curve parts, of both sides."""
        curve = self.curves.sides.get(name)
        if curve is None:
            return
        for step in (*curve.crossings(), *curve.crossings(own=True)):
            self.parted[name] = min(step, self.parted.get(name, step))
            for side in (name, self.baseline):
                self._wanted.get(side, set()).update(around(step, self.training.steps))

    def take(self, name: str, record: StepRecord) -> None:
        """A record that was wanted."""
        self.sides[name].take(record)

    def judged(
        self,
        outcomes: Mapping[str, CellOutcome],
        others: Mapping[str, JudgedTraining] | None = None,
        *,
        diagnose: bool = True,
    ) -> JudgedTraining:
        """Verdicts and causes of everybody, without causes where there is no time for them; `others` are the case's
        dtypes that were judged before."""
        causes = {name: side.causes(diagnose=diagnose) for name, side in self.sides.items()}
        partings, drifts = self._partings(causes)
        kinds = {name: self._kind(name, p, others or {}) for name, p in partings.items() if p is not None}
        comparisons = [c for name in self.sides for c in self._comparisons(name, causes, kinds, drifts, outcomes)]
        diagnoses: list[Diagnosis] = []
        for name, side in self.sides.items():
            diagnoses += diagnoses_of(self.case.id, self.dtype, side, causes[name])
            parting = partings[name]
            if parting is not None and parting.stage is None:
                diagnoses.append(curve_diagnosis(self.case.id, self.dtype, side, parting))
        findings = [self._row(name, partings.get(name)) for name in self._shown()]
        if not diagnose:
            diagnoses = [told for told in diagnoses if told.id != UNEXPLAINED]
            findings = [replace(found, parting=unsearched(found.parting)) for found in findings]
        told = tuple(attributed(diagnoses, comparisons))
        return JudgedTraining(tuple(comparisons), told, tuple(findings), partings)

    @property
    def _expected(self) -> str:
        """Whose curves the others are compared with: the baseline's, the oracle's where the baseline has none."""
        alone = self.baseline not in self.curves.sides and ORACLE in self.curves.sides
        return ORACLE if alone else self.baseline

    def _shown(self) -> list[str]:
        """The backends, and the oracle where its own curve was run."""
        return [*(n for n in self.sides if n in self.curves.sides), *([ORACLE] if ORACLE in self.curves.sides else [])]

    def _partings(self, causes: Mapping[str, Sequence[Cause]]) -> tuple[dict[str, Parting | None], dict[str, Parting]]:
        """Where everybody parts, and whose curves drift.

        A curve that leaves only a baseline which is off itself is no parting. Nor is one that leaves the ensemble in a
        step that is right from its own state: an element went to the other side of a kink, or chaos went further
        than the few moved runs did.
        """
        own = self.ensemble.of == ORACLE
        found: dict[str, Parting | None] = {}
        drifts: dict[str, Parting] = {}
        for name, side in self.sides.items():
            guilty = name != self.baseline and bool(causes.get(self.baseline))
            curve = None if guilty and not own else self.curves.sides.get(name)
            parting = found[name] = parting_of(causes[name], curve, own=own)
            if parting is not None and parting.stage is None and self._drifts(side):
                drifts[name], found[name] = parting, None
        return found, drifts

    def _drifts(self, side: Side) -> bool:
        """Whether the curves of a side left the envelopes at once, and every stage was right in each step in which they
        went on to 8 envelopes, 64, 512, ..."""
        curve = self.curves.sides[side.name]
        finite = all(np.isfinite(curve.worst(q, own=own) or 0.0) for q in CURVES for own in (False, True))
        at_once = curve.jumped() and curve.jumped(own=True)
        steps = {*curve.crossings(), *curve.crossings(own=True)}
        return finite and at_once and all(map(side.right_at, steps))

    def _kind(self, name: str, parting: Parting, others: Mapping[str, JudgedTraining]) -> str:
        elsewhere = {dtype: j.partings.get(name) for dtype, j in others.items() if name in j.partings}
        return kind_of(parting, self.dtype, elsewhere)

    def _comparisons(
        self,
        name: str,
        causes: Mapping[str, Sequence[Cause]],
        kinds: Mapping[str, str],
        drifts: Mapping[str, Parting],
        outcomes: Mapping[str, CellOutcome],
    ) -> Iterator[Comparison]:
        """One backend against the baseline by its curves, and against the oracle by its stages."""
        if name != self.baseline:
            stopped = next((o for n in (name, self._expected) if (o := outcomes.get(n)) and ended(o)), None)
            for quantity in self._quantities(name):
                yield self._excused(self._curve_comparison(name, quantity, kinds, stopped), kinds, drifts)
        yield from self._stage_comparisons(name, causes[name], kinds.get(name))

    def _quantities(self, name: str) -> list[str]:
        """What is compared: what either side or the plan has of it."""
        tracked = {tensor.partition(".")[0] for tensor in self.curves.tracked}
        shown = [q for q in CURVES if q in SCALARS or q in tracked]
        curve = self.curves.sides.get(name)
        if curve is not None and curve.loss and not any(np.isfinite(curve.grad_norm)):
            shown.remove("grad_norm")
        return shown

    def _curve_comparison(
        self, name: str, quantity: str, kinds: Mapping[str, str], stopped: CellOutcome | None
    ) -> Comparison:
        limits = self.case.tolerance.lookup(self.dtype, quantity)
        given = any(
            rule not in DEFAULT_TOLERANCES.rules and rule.applies_to(self.dtype, quantity)
            for rule in self.case.tolerance.rules
        )
        rtol, atol = (limits.rtol, limits.atol) if given else (0.0, 0.0)
        base = Comparison(self.case.id, self.dtype, quantity, name, self._expected, Verdict.NOT_COMPARED, rtol, atol)
        curve, expected = (self.curves.sides.get(side) for side in (name, self._expected))
        if stopped is not None or curve is None or expected is None:
            told = "" if stopped is None else f"{stopped.backend}: {stopped.outcome.value}: {stopped.message}"
            return replace(base, message=told)
        metrics = curve_metrics(curve, expected, quantity, rtol, atol)
        alone = self._expected != self.baseline
        ratio = curve.worst(quantity, own=alone)
        culprit = self._culprits(name, kinds) if ratio is not None and ratio >= OFF else ()
        verdict = curve_verdict(metrics, ratio, culprit, kinds, given=given)
        own = self.ensemble.of == ORACLE
        theirs = expected.worst(quantity, own=True) if own and not alone else None
        ratios = (curve.worst(quantity, own=True) if own else ratio, theirs)
        spread = self.curves.envelope.get(quantity, [])
        return replace(
            base,
            verdict=verdict,
            metrics=metrics,
            error_ratio=ratios,
            envelope=(spread[-1], spread[-1]) if spread else None,
            culprit=culprit if verdict.fails else (),
            message=ONE_DTYPE if verdict.fails and len(self.case.dtypes) == 1 else "",
        )

    def _excused(self, comparison: Comparison, kinds: Mapping[str, str], drifts: Mapping[str, Parting]) -> Comparison:
        """A curve that only drifts passes, and says so."""
        sides = (comparison.actual, self.baseline)
        mine = [drifts[side] for side in sides if side in drifts]
        limited = comparison.rtol or comparison.atol
        off = not comparison.verdict.passes and comparison.verdict not in (Verdict.NOT_COMPARED, Verdict.NONFINITE)
        if not off or not mine or limited or any(side in kinds for side in sides):
            return comparison
        told = f"leaves the ensemble at step {mine[0].step}, where every stage is right from its own state"
        return replace(comparison, verdict=Verdict.CLOSE, suspect=True, message=told)

    def _culprits(self, name: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
        """Who is off where two curves part: whoever parts from the oracle, else the side under test."""
        return tuple(side for side in (name, self.baseline) if side in kinds) or (name,)

    def _stage_comparisons(self, name: str, causes: Sequence[Cause], kind: str | None) -> Iterator[Comparison]:
        """The worst probe of every stage that was observed."""
        for stage in STAGES:
            seen = self._seen(name, stage)
            if seen is None:
                continue
            ratio, metrics = seen
            off = ratio >= OFF
            tolerated = off and stage in self.sides[name].tolerated
            outside = off and not tolerated
            cause = stage_kind(stage, causes)
            mine = kind if cause is None or not cause.found.best else cause.found.best.hypothesis.kind
            verdict = KINDS[mine or ORDER[-1]] if outside else Verdict.CLOSE
            yield Comparison(
                self.case.id,
                self.dtype,
                f"stage.{stage}",
                name,
                ORACLE,
                verdict,
                0.0,
                0.0,
                metrics=metrics,
                error_ratio=(ratio, None),
                culprit=(name,) if off else (),
                suspect=tolerated,
                message=APPROXIMATE if tolerated else "",
            )

    def _seen(self, name: str, stage: str) -> tuple[float, Metrics | None] | None:
        """The largest ratio of a stage, with the metrics of its worst tensor; None where it was not observed."""
        side = self.sides[name]
        if not side.n_steps:
            return None
        if stage == "data":
            return (float("inf") if side.rows.off else 0.0), side.rows.metrics
        if stage == "schedule":
            return side.rates.worst
        found = side.stages.get(stage)
        return None if found is None else (max(found.worst, 0.0), found.metrics)

    def _row(self, name: str, parting: Parting | None) -> TrainingFinding:
        """A row of `trainings`."""
        curve = self.curves.sides[name]
        side = self.sides.get(name)
        probes = side.ratios() if side is not None else {}
        shown = {} if name == self._expected else curve.ratio if self._expected == self.baseline else curve.own
        return TrainingFinding(
            case=self.case.id,
            dtype=self.dtype,
            backend=name,
            expected=self._expected,
            steps=len(curve.loss),
            planned=self.training.steps,
            ensemble={"of": self.ensemble.of, "members": self.curves.n_members},
            parting=None if parting is None else parting.row(),
            probes=[{"step": step, "ratios": ratios} for step, ratios in probes.items()],
            curves={
                "loss": curve.loss,
                "grad_norm": curve.grad_norm,
                "lr": curve.lr,
                "ratio": {q: shown[q] for q in CURVES if q in shown},
                "envelope": dict(self.curves.envelope),
            },
        )


def unsearched(parting: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A parting for whose cause there was no time to look."""
    return {**parting, "diagnosis": None} if parting and parting["diagnosis"] == UNEXPLAINED else parting


def ended(outcome: CellOutcome) -> bool:
    """Whether a backend did not come to its last step."""
    return outcome.outcome is not Outcome.OK


def curve_metrics(curve: Curve, expected: Curve, quantity: str, rtol: float, atol: float) -> Metrics:
    """The metrics of a plain curve, or of the norms of all tensors after the last step."""
    if quantity in SCALARS:
        mine, theirs = getattr(curve, quantity), getattr(expected, quantity)
        n = min(len(mine), len(theirs))
        return compare(np.array(mine[:n]), np.array(theirs[:n]), rtol, atol)
    names = [n for n in curve.norms if n in expected.norms and n.startswith(f"{quantity}.")]
    return compare(np.array([curve.norms[n] for n in names]), np.array([expected.norms[n] for n in names]), rtol, atol)


def curve_verdict(
    metrics: Metrics, ratio: float | None, culprit: Sequence[str], kinds: Mapping[str, str], *, given: bool
) -> Verdict:
    """What a curve comes to: by the envelope, or by a tolerance that was `given`."""
    if given or ratio is None:
        found = verdict_of(metrics)
        if found is not Verdict.ROUNDING or not culprit:
            return found
    elif ratio < OFF:
        return Verdict.EQUAL if metrics.equal else Verdict.CLOSE
    if metrics.n_nonfinite_mismatched:
        return Verdict.NONFINITE
    worst = max((kinds[side] for side in culprit if side in kinds), key=ORDER.index, default=ORDER[1])
    return KINDS[worst]
