"""Judges all backends of a training in one dtype: takes curves and records as they come, then finds the causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import convert, structs

from parity.config.plan import ORACLE, BackendSpec, CasePlan
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.case import KINDS, ORDER
from parity.judge.compare.cell import verdict_of
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.verdict import Comparison, EnvelopeRow, ErrorRatios, Verdict, comparison_of, measures
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome, Outcome
from parity.reporting.results.rows import TrainingRow
from parity.training.judge.alone import AskAbout
from parity.training.judge.curves import SCALARS, CurveJudge, RunCurves
from parity.training.judge.divergence import UNEXPLAINED, FirstDivergence, first_divergence
from parity.training.judge.findings import attributed, curve_diagnosis, diagnoses_of, fault_of, kind_of, worst_kind
from parity.training.judge.inquiry import StageFault
from parity.training.judge.oracle import oracle_of
from parity.training.judge.probes import around, planned_steps
from parity.training.judge.stages import StepJudge
from parity.training.records import Curves, Ensemble, Setting, StepRecord
from parity.training.spec import CURVES, STAGES, Training

APPROXIMATE = "no cause explains it, and it is as small as the error of a library's approximate functions"
ONE_DTYPE = "judged in one dtype only, so the kind of the error is less certain"

FirstRatios = Mapping[str, float | None]
"""The ratio of each backend's first divergence; None if there is none."""


@dataclass(frozen=True)
class JudgedTraining:
    """The result of a training in one dtype; `rows` are those of results.json, without `norms`."""

    comparisons: tuple[Comparison, ...]
    diagnoses: tuple[Diagnosis, ...]
    rows: tuple[TrainingRow, ...]
    divergences: Mapping[str, FirstDivergence | None] = field(default_factory=dict)


@dataclass(frozen=True)
class BackendFaults:
    """One backend's faults, its first divergence and the kind of that error, or where its curve only drifts out of
    the envelope."""

    faults: Sequence[StageFault]
    divergence: FirstDivergence | None = None
    kind: str | None = None
    drift: FirstDivergence | None = None


class TrainingJudge:
    """Judges a training in one dtype as it runs; `diverged` has the step at which each backend's curves diverged."""

    def __init__(
        self,
        case: CasePlan,
        dtype: str,
        setting: Setting,
        backends: Sequence[BackendSpec],
        baseline: str,
        ensemble: Ensemble,
        ask: AskAbout | None = None,
    ) -> None:
        self.case, self.dtype, self.baseline, self.ensemble = case, dtype, baseline, ensemble
        self.training: Training = case.params
        oracle = oracle_of(case.id, self.training, dtype, setting)
        self.backends = {spec.name: StepJudge(spec.name, oracle, spec.ranks, ask) for spec in backends}
        self._wanted = {name: set(planned_steps(self.training, len(backends), dtype)) for name in self.backends}
        self.diverged: dict[str, int] = {}
        self.curves = CurveJudge(self.training, dtype, baseline, ensemble)

    def observe(self, curves: Mapping[str, Curves]) -> dict[str, tuple[int, ...]]:
        """Take the next steps of all participants; returns the steps whose records are needed, by backend."""
        self.curves.take(curves)
        taken = {name: range(c.first, c.first + c.n_steps) for name, c in curves.items() if name in self.backends}
        for name in taken:
            self.backends[name].observe(curves[name])
            for step in self._crossings(name):
                self.diverged[name] = min(step, self.diverged.get(name, step))
                for one in {name, self.baseline} & self._wanted.keys():
                    self._wanted[one].update(around(step, self.training.steps))
        wanted = {name: tuple(sorted(self._wanted[name].intersection(steps))) for name, steps in taken.items()}
        return {name: steps for name, steps in wanted.items() if steps}

    def take(self, name: str, record: StepRecord) -> None:
        """Take a requested record."""
        self.backends[name].take(record)

    def judged(
        self,
        outcomes: Mapping[str, CellOutcome],
        others: Mapping[str, FirstRatios] | None = None,
        *,
        diagnose: bool = True,
    ) -> JudgedTraining:
        """Verdicts and causes of all backends; without causes unless `diagnose`. `others` are the ratios in the case's
        dtypes that were judged before."""
        wrong = self._faults(others or {}, diagnose=diagnose)
        comparisons = [c for name in self.backends for c in self._comparisons(name, wrong, outcomes)]
        diagnoses: list[Diagnosis] = []
        for name, backend in self.backends.items():
            diagnoses += diagnoses_of(self.case.id, self.dtype, backend, wrong[name].faults)
            first = wrong[name].divergence
            if first is not None and first.stage is None:
                diagnoses.append(curve_diagnosis(self.case.id, self.dtype, backend, first))
        divergences = {name: faults.divergence for name, faults in wrong.items()}
        names = [name for name in (*self.backends, ORACLE) if name in self.curves.runs]
        rows = [self._row(name, divergences.get(name), searched=diagnose) for name in names]
        diagnoses = [diagnosis for diagnosis in diagnoses if diagnose or diagnosis.id != UNEXPLAINED]
        diagnoses = list(attributed(diagnoses, comparisons))
        return JudgedTraining(tuple(comparisons), tuple(diagnoses), tuple(rows), divergences)

    @property
    def _expected(self) -> str:
        """The run that the others are compared with: the baseline, or the oracle if the baseline has no curves."""
        alone = self.baseline not in self.curves.runs and ORACLE in self.curves.runs
        return ORACLE if alone else self.baseline

    def _crossings(self, name: str) -> set[int]:
        """The steps at which a backend's curves first reach 8, 64, 512, ... envelopes."""
        curve = self.curves.runs[name]
        return curve.ratio.crossings() | curve.own.crossings()

    def _faults(self, others: Mapping[str, FirstRatios], *, diagnose: bool) -> dict[str, BackendFaults]:
        """The faults of all backends.

        A curve does not diverge if it differs only from a baseline that is wrong itself. Nor does it if it leaves the
        envelope in a step that is right given its own state: then an element crossed a kink, or chaos went further than
        the few perturbed runs show.
        """
        own = self.ensemble.of == ORACLE
        faults = {name: backend.faults(diagnose=diagnose) for name, backend in self.backends.items()}
        wrong = {}
        for name in self.backends:
            is_baseline_wrong = name != self.baseline and bool(faults.get(self.baseline))
            curve = None if is_baseline_wrong and not own else self.curves.runs.get(name)
            first = first_divergence(faults[name], curve, own=own)
            if first is None:
                wrong[name] = BackendFaults(faults[name])
            elif first.stage is None and self._drifts(name):
                wrong[name] = BackendFaults(faults[name], drift=first)
            else:
                own_ratios = {dtype: ratios[name] for dtype, ratios in others.items() if name in ratios}
                wrong[name] = BackendFaults(faults[name], first, kind_of(first, self.dtype, own_ratios))
        return wrong

    def _drifts(self, name: str) -> bool:
        """Whether a backend's curves left the envelope at once, and every stage was right in each step in which they
        first reached 8, 64, 512, ... envelopes."""
        both = (self.curves.runs[name].ratio, self.curves.runs[name].own)
        finite = all(np.isfinite(ratios.worst(q) or 0.0) for q in CURVES for ratios in both)
        at_once = all(ratios.jumped() for ratios in both)
        return finite and at_once and all(map(self.backends[name].right_at, self._crossings(name)))

    def _comparisons(
        self, name: str, wrong: Mapping[str, BackendFaults], outcomes: Mapping[str, CellOutcome]
    ) -> Iterator[Comparison]:
        """Compares a backend's curves with the baseline's, and its stages with the oracle's."""
        if name != self.baseline:
            ended = [outcomes[n] for n in (name, self._expected) if n in outcomes]
            ended = [outcome for outcome in ended if outcome.outcome is not Outcome.OK]
            yield from (self._curve_comparison(name, quantity, wrong, ended[:1]) for quantity in self._quantities(name))
        yield from self._stage_comparisons(name, wrong[name])

    def _quantities(self, name: str) -> list[str]:
        """The tensors to compare: those that any backend or the plan has."""
        tracked = {tensor.partition(".")[0] for tensor in self.curves.tracked}
        curve = self.curves.runs.get(name)
        hidden = curve is not None and bool(curve.loss) and not any(np.isfinite(curve.grad_norm))
        shown = [q for q in CURVES if q in SCALARS or q in tracked]
        return [q for q in shown if not (hidden and q == "grad_norm")]

    def _curve_comparison(
        self, name: str, quantity: str, wrong: Mapping[str, BackendFaults], ended: Sequence[CellOutcome]
    ) -> Comparison:
        """Compares a curve by the envelope, or by a given tolerance; one that only drifts passes as a suspect."""
        limits = self.case.tolerance.lookup(self.dtype, quantity)
        own_rules = [rule for rule in self.case.tolerance.rules if rule not in DEFAULT_TOLERANCES.rules]
        given = any(rule.applies_to(self.dtype, quantity) for rule in own_rules)
        rtol, atol = (limits.rtol, limits.atol) if given else (0.0, 0.0)
        base = comparison_of(self.case.id, self.dtype, quantity, name, self._expected, Verdict.NOT_COMPARED, rtol, atol)
        curve, expected = (self.curves.runs.get(one) for one in (name, self._expected))
        if ended or curve is None or expected is None:
            return structs.replace(base, message="".join(f"{o.backend}: {o.outcome.value}: {o.message}" for o in ended))
        metrics = curve_metrics(curve, expected, quantity, rtol, atol)
        alone, own = self._expected != self.baseline, self.ensemble.of == ORACLE
        ratio = (curve.own if alone else curve.ratio).worst(quantity)
        # Of two diverging curves, the culprit is the one that diverges from the oracle, else the backend under test.
        both = [n for n in (name, self.baseline) if n in wrong]
        diverging = [n for n in both if wrong[n].kind]
        culprit = tuple(diverging or [name]) if ratio is not None and ratio >= ERROR_BOUND else ()
        kinds = [kind for n in diverging if n in culprit and (kind := wrong[n].kind)]
        verdict = curve_verdict(metrics, ratio, kinds, given=given, diverges=bool(culprit))
        spread = self.curves.envelope.get(quantity, [])
        comparison = structs.replace(
            base,
            verdict=verdict,
            **measures(metrics),
            error_ratio=ErrorRatios(
                curve.own.worst(quantity) if own else ratio,
                expected.own.worst(quantity) if own and not alone else None,
            ),
            envelope=EnvelopeRow(spread[-1], spread[-1]) if spread else None,
            culprit=culprit if verdict.fails else (),
            message=ONE_DTYPE if verdict.fails and len(self.case.dtypes) == 1 else "",
        )
        drifts = [drift for n in both if (drift := wrong[n].drift)]
        if verdict.passes or verdict is Verdict.NONFINITE or rtol or atol or diverging or not drifts:
            return comparison
        message = (
            f"leaves the envelope at step {drifts[0].step}, where every stage is right given the backend's own state"
        )
        return structs.replace(comparison, verdict=Verdict.CLOSE, suspect=True, message=message)

    def _stage_comparisons(self, name: str, wrong: BackendFaults) -> Iterator[Comparison]:
        """The worst probe of every stage that was observed."""
        for stage in STAGES:
            seen = self.backends[name].seen(stage)
            if seen is None:
                continue
            ratio, metrics = seen
            outside = ratio >= ERROR_BOUND
            tolerated = outside and stage in self.backends[name].tolerated
            fault = fault_of(stage, wrong.faults)
            kind = worst_kind(fault.causes) if fault is not None and fault.causes else wrong.kind
            yield comparison_of(
                self.case.id,
                self.dtype,
                f"stage.{stage}",
                name,
                ORACLE,
                KINDS[kind or ORDER[-1]] if outside and not tolerated else Verdict.CLOSE,
                0.0,
                0.0,
                metrics=metrics,
                error_ratio=ErrorRatios(ratio, None),
                culprit=(name,) if outside else (),
                suspect=tolerated,
                message=APPROXIMATE if tolerated else "",
            )

    def _row(self, name: str, divergence: FirstDivergence | None, *, searched: bool) -> TrainingRow:
        """A row of `trainings`; unless causes were `searched` for, a missing one is None, not unexplained."""
        curve = self.curves.runs[name]
        probes = self.backends[name].ratios() if name in self.backends else {}
        shown = {} if name == self._expected else curve.ratio if self._expected == self.baseline else curve.own
        first = None if divergence is None else divergence.row()
        if first is not None and not searched and first["diagnosis"] == UNEXPLAINED:
            first["diagnosis"] = None
        row = {
            "case": self.case.id,
            "dtype": self.dtype,
            "backend": name,
            "expected": self._expected,
            "steps": len(curve.loss),
            "planned": self.training.steps,
            "ensemble": {"of": self.ensemble.of, "members": self.curves.n_members},
            "parting": first,
            "probes": [{"step": step, "ratios": ratios} for step, ratios in probes.items()],
            "curves": {
                "loss": curve.loss,
                "grad_norm": curve.grad_norm,
                "lr": curve.lr,
                "ratio": {q: shown[q] for q in CURVES if q in shown},
                "envelope": dict(self.curves.envelope),
            },
        }
        return convert(row, TrainingRow)


def curve_metrics(curve: RunCurves, expected: RunCurves, quantity: str, rtol: float, atol: float) -> Metrics:
    """The metrics of a plain curve, or of the norms of all tensors after the last step."""
    if quantity in SCALARS:
        mine, theirs = getattr(curve, quantity), getattr(expected, quantity)
        n = min(len(mine), len(theirs))
        return compare(np.array(mine[:n]), np.array(theirs[:n]), rtol, atol)
    names = [n for n in curve.norms if n in expected.norms and n.startswith(f"{quantity}.")]
    return compare(np.array([curve.norms[n] for n in names]), np.array([expected.norms[n] for n in names]), rtol, atol)


def curve_verdict(
    metrics: Metrics, ratio: float | None, kinds: Sequence[str], *, given: bool, diverges: bool
) -> Verdict:
    """The verdict of a curve by the envelope, or by a `given` tolerance; `kinds` are those of the culprits' errors."""
    if given or ratio is None:
        verdict = verdict_of(metrics)
        if verdict is not Verdict.ROUNDING or not diverges:
            return verdict
    elif ratio < ERROR_BOUND:
        return Verdict.EQUAL if metrics.equal else Verdict.CLOSE
    if metrics.n_nonfinite_mismatched:
        return Verdict.NONFINITE
    return KINDS[max(kinds, key=ORDER.index, default=ORDER[1])]
