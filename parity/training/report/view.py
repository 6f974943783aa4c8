"""Trainings for reports: groups rows by case and dtype, and has the texts that all formats share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from parity.config.plan import ORACLE
from parity.diagnoses import catalogue
from parity.engine.inputs import slug
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import CaseRow, DivergenceRow, Results, TrainingRow
from parity.reporting.text.words import factor, few, grouped, listed, plural, unique
from parity.training.spec import STAGES, TRAIN

STAGE_WORDS: Mapping[str, str] = {
    "data": "order of the data",
    "forward": "forward pass",
    "loss": "loss",
    "gradient": "gradient",
    "clip": "clipping",
    "schedule": "learning-rate schedule",
    "update": "update",
}
"""The names of stages within a sentence, after `in the`."""

BLOCKS = "▁▂▃▄▅▆▇█"
LOST = "✕"
"""The mark in a sparkline for a loss that is not finite."""

NOTHING = "–"
FINAL_DIGITS = 7
MAX_PARTS = MAX_PROBES = 4


@dataclass(frozen=True)
class TrainingRun:
    """A training in one dtype: a row for each backend, in the order of the run, and the oracle's if it ran.

    `missing` are the backends without a row, each with its outcome. `diagnoses` are those of the case in this dtype.
    """

    case: CaseRow
    dtype: str
    rows: tuple[TrainingRow, ...]
    oracle: TrainingRow | None
    missing: Mapping[str, str]
    diagnoses: tuple[Diagnosis, ...]
    anchor: str

    @property
    def id(self) -> str:
        """The case's id."""
        return self.case.id

    @property
    def every(self) -> tuple[TrainingRow, ...]:
        """The backends, and the oracle if it ran."""
        return (*self.rows, *([self.oracle] if self.oracle else []))

    @property
    def diverged(self) -> list[tuple[TrainingRow, DivergenceRow]]:
        """The backends that diverge, each with its first divergence, the earliest first."""
        return sorted(((row, row.parting) for row in self.rows if row.parting), key=lambda pair: pair[1].step)

    @property
    def expected(self) -> str:
        """The backend that the curves are compared with."""
        return self.rows[0].expected if self.rows else ""

    @property
    def planned(self) -> int:
        """The number of requested steps."""
        return max((row.planned for row in self.rows), default=0)

    def title(self, row: TrainingRow, name: str) -> str:
        """The title of a backend's cause; empty if unknown."""
        known = (cause.title for cause in self.causes(row) if cause.id == name)
        return next(known, catalogue()[name].title if name in catalogue() else "")

    def causes(self, row: TrainingRow) -> list[Diagnosis]:
        """The diagnoses of a backend."""
        return [cause for cause in self.diagnoses if cause.backend == row.backend]

    def others(self, row: TrainingRow) -> list[tuple[str, Diagnosis]]:
        """The diagnoses of a backend in other stages than that of its first divergence, each with its stage."""
        first = row.parting.stage if row.parting else None
        staged = ((cause.evidence.get("stage"), cause) for cause in self.causes(row))
        return [(stage, cause) for stage, cause in staged if stage in STAGES and stage != first]

    def ids(self, row: TrainingRow) -> list[str]:
        """The causes of a backend, that of its first divergence first."""
        first = [row.parting.diagnosis] if row.parting and row.parting.diagnosis else []
        return list(dict.fromkeys([*first, *(cause.id for _, cause in self.others(row))]))


def training_runs(results: Results) -> list[TrainingRun]:
    """The trainings of a run by case and dtype, in the order of the configs."""
    order = results.backend_names
    every: dict[tuple[str, str], dict[str, TrainingRow]] = {}
    for row in results.trainings:
        every.setdefault((row.case, row.dtype), {})[row.backend] = row
    outcomes = {row.key: row.outcome for row in results.outcomes}
    asked = [(case, dtype) for case in results.cases if case.op == TRAIN for dtype in case.dtypes]
    taken: set[str] = set()
    runs = []
    for case, dtype in asked:
        rows = every.get((case.id, dtype), {})
        missing = {
            name: outcomes.get((case.id, dtype, name), "not run") for name in case.backends or order if name not in rows
        }
        causes = (cause for cause in results.diagnoses if (cause.case, cause.dtype) == (case.id, dtype))
        runs.append(
            TrainingRun(
                case=case,
                dtype=dtype,
                rows=tuple(rows[name] for name in order if name in rows),
                oracle=rows.get(ORACLE),
                missing=missing,
                diagnoses=tuple(causes),
                anchor=unique(f"training-{slug(case.id)}.{slug(dtype)}", taken),
            )
        )
    return runs


def clauses(run: TrainingRun) -> list[str]:
    """The result: a clause for each diverging backend, where and why; then those about the others."""
    return [*(divergence_text(run, row, at) for row, at in run.diverged), *rest(run)] or ["nothing was run"]


def rest(run: TrainingRun) -> Iterator[str]:
    """Clauses for the backends that stopped, stay within rounding, or have no result."""
    not_diverging = [row for row in run.rows if not row.parting]
    stops = {row.backend: stop_text(row) for row in not_diverging if row.steps < row.planned}
    yield from (
        f"{listed(names)} {text}" for text, names in grouped((text, name) for name, text in stops.items()).items()
    )
    whole = [row for row in not_diverging if row.backend not in stops]
    alone = [row.backend for row in whole if row.backend != row.expected and not len(ratio_curve(row))]
    drifts = {row.backend: drift_text(step) for row in whole if (step := drift_step(row)) is not None}
    if together := [row.backend for row in whole if row.backend not in (*alone, *drifts)]:
        yield within_rounding_text(together, run)
    yield from (
        f"{listed(names)} {text}" for text, names in grouped((text, name) for name, text in drifts.items()).items()
    )
    for row in not_diverging:
        if stages := [STAGE_WORDS[stage] for stage in wrong_stages(row)]:
            verb = "exceeds" if len(stages) == 1 else "exceed"
            yield f"the {listed(stages)} of {row.backend} {verb} the error bound in a probe, but little enough to pass"
    if alone:
        yield f"no probed step of {listed(alone)} exceeds the error bound; no curve to compare with{remedy(run)}"
    outcomes = grouped((outcome, name) for name, outcome in run.missing.items())
    yield from (f"{listed(names)} gave no result ({outcome})" for outcome, names in outcomes.items())


def remedy(run: TrainingRun) -> str:
    """How to get a curve to compare with, if the baseline has none."""
    return "" if run.rows[0].ensemble.of == ORACLE else " (`ensemble: {of: oracle}` in the case gives one)"


def divergence_text(run: TrainingRun, row: TrainingRow, at: DivergenceRow) -> str:
    """`oneflow diverges at step 1 in the update: the first step is dampened too (dampening-first-step)`."""
    stop = f" (and {stop_text(row)})" if row.steps < row.planned else ""
    where = f"{where_text(at)}{parts_at(at, run.causes(row))}"
    return f"{row.backend} {where}{why_text(run, row, at)}{also_text(run, row)}{stop}"


def parts_at(at: DivergenceRow, causes: Iterable[Diagnosis]) -> str:
    """The wrong parts of the diverging stage, from the backend's diagnoses."""
    return next((parts_text(row.evidence) for row in causes if at.stage and row.evidence.get("stage") == at.stage), "")


def parts_text(evidence: Mapping[str, Any]) -> str:
    """` of fc1.weight and fc1.bias`, the wrong parts of a stage; empty if the whole stage is wrong."""
    parts = evidence.get("off")
    return f" of {few(map(str, parts), MAX_PARTS)}" if parts and isinstance(parts, (list, tuple)) else ""


def where_text(at: DivergenceRow) -> str:
    """`diverges at step 1 in the update`."""
    step = f"{at.step:,}"
    if at.stage is not None:
        return f"diverges at step {step} in the {STAGE_WORDS[at.stage]}"
    tensor = f" ({at.tensor})" if at.tensor else ""
    return f"leaves the envelope at step {step}{tensor}, although every probed step is within the error bound"


def also_text(run: TrainingRun, row: TrainingRow) -> str:
    """`, and exceeds the error bound in the gradient (unexplained) too`, or nothing."""
    stages = grouped((STAGE_WORDS[stage], cause.id) for stage, cause in run.others(row))
    texts = [f"{stage} ({', '.join(ids)})" for stage, ids in stages.items()]
    return f", and exceeds the error bound in the {listed(texts)} too" if texts else ""


def why_text(run: TrainingRun, row: TrainingRow, at: DivergenceRow) -> str:
    """`: the first step is dampened too (dampening-first-step)`."""
    name = at.diagnosis
    if name is None:
        return ", and there was no time to look for the cause"
    if name in ("", "unexplained"):
        return "" if at.stage is None else ", and no known cause explains it"
    title = run.title(row, name)
    return f": {title} ({name})" if title else f": {name}"


def stop_text(row: TrainingRow) -> str:
    """`stopped after 7 of 12 steps`."""
    return f"stopped after {row.steps:,} of {plural_steps(row.planned)}"


def plural_steps(n: int) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{n:,} {'step' if n == 1 else 'steps'}"


def within_rounding_text(names: Sequence[str], run: TrainingRun) -> str:
    """`all 4 backends stay within rounding over 1,000 steps`."""
    is_all = len(names) == len(run.rows) + len(run.missing) > 2
    subject = f"all {len(names)} backends" if is_all else listed(names)
    verb = "stays" if len(names) == 1 else "stay"
    return f"{subject} {verb} within rounding over {plural_steps(run.planned)}"


def drift_step(row: TrainingRow) -> int | None:
    """The step from which a curve drifts: it exceeds the error bound although every stage is right."""
    outside = np.flatnonzero(np.nan_to_num(ratio_curve(row)) >= ERROR_BOUND)
    is_backend = row.parting is None and row.backend != ORACLE
    return int(outside[0]) + 1 if is_backend and outside.size else None


def drift_text(step: int) -> str:
    """`drifts out of the envelope at step 63, where every stage is right given the backend's own state`."""
    return f"drifts out of the envelope at step {step:,}, where every stage is right given the backend's own state"


def location_text(at: DivergenceRow | None) -> str:
    """Step and stage of a divergence in a table: `step 1, update`, `step 500, curve of loss`."""
    if at is None:
        return ""
    curve = f"curve of {at.tensor}" if at.tensor else "curve"
    return f"step {at.step:,}, {at.stage or curve}"


def ratio_curve(row: TrainingRow) -> NDArray[np.float64]:
    """The largest ratio of any quantity in each step, NaN if none is known."""
    known = [np.asarray(values, dtype=np.float64) for values in row.curves.ratio.values() if values]
    length = max(map(len, known), default=0)
    padded = [np.pad(values, (0, length - len(values)), constant_values=np.nan) for values in known]
    return np.fmax.reduce(padded) if padded else np.zeros(0)


def largest_ratio(row: TrainingRow) -> float | None:
    """The largest ratio of a curve or a probe; None if none is known."""
    ratios = [*ratio_curve(row), *(ratio for probe in row.probes for ratio in probe.ratios.values())]
    return max((float(ratio) for ratio in ratios if not math.isnan(ratio)), default=None)


def table_row(run: TrainingRun, row: TrainingRow) -> tuple[str, ...]:
    """A row of a training's table: backend, steps, final loss, largest ratio, where it diverges, cause."""
    steps = f"{row.steps:,}" + (f" of {row.planned:,}" if row.steps < row.planned else "")
    name = f"{row.backend} = baseline" if row.backend == row.expected else row.backend
    ratio, step = largest_ratio(row), drift_step(row)
    drift = NOTHING if step is None else f"drifts from step {step:,}"
    values = (steps, final_loss(row), NOTHING if ratio is None else factor(ratio))
    return (name, *values, location_text(row.parting) or drift, ", ".join(run.ids(row)))


def final_loss(row: TrainingRow) -> str:
    """The last loss that is known."""
    losses = row.curves.loss
    return f"{losses[-1]:.{FINAL_DIGITS}g}" if losses else NOTHING


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line of block characters, from its least value to its largest; LOST where it is not finite."""
    if not len(values):
        return ""
    groups = np.array_split(np.asarray(values, dtype=np.float64), min(width, len(values)))
    means = np.array([group[-1] for group in groups])
    finite = means[np.isfinite(means)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    top = len(BLOCKS) - 1
    with np.errstate(over="ignore", invalid="ignore"):
        share = (means / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.zeros(len(means))
    return "".join(
        BLOCKS[round(top * float(part))] if math.isfinite(value) else LOST
        for part, value in zip(share, means, strict=True)
    )


def cell_lines(row: TrainingRow) -> Iterator[str]:
    """A cell's training in lines: its steps, its first divergence, and the probed steps that exceed the error bound."""
    ratio = largest_ratio(row)
    largest = "" if ratio is None else f", largest ratio {factor(ratio)}"
    yield f"training: {row.steps:,} of {plural_steps(row.planned)}, final loss {final_loss(row)}{largest}"
    if at := row.parting:
        size = "" if at.ratio is None else f", ratio {factor(at.ratio)}"
        tensor = f" in {at.tensor}" if at.tensor else ""
        yield f"it {where_text(replace(at, tensor=None))}{tensor}{size}, seen by a {at.seen}"
    stages = stages_of([row])
    wrong = [item for item in probed(row, stages) if item.outside is not None]
    for item in wrong[:MAX_PROBES]:
        ratios = zip(stages, item.ratios, strict=True)
        yield f"probe of step {item.step:,}: " + ", ".join(f"{s} {factor(r)}" for s, r in ratios if r is not None)
    if len(wrong) > MAX_PROBES:
        yield f"and {plural(len(wrong) - MAX_PROBES, 'more probed step')} that exceed the error bound"


@dataclass(frozen=True)
class Probed:
    """A probed step: the ratio of each stage in the order of the columns, None where it was not observed.

    `outside` is the first stage that exceeds the error bound, None if none does.
    """

    step: int
    ratios: tuple[float | None, ...]
    outside: int | None

    @property
    def styles(self) -> list[str]:
        """The style of each ratio: `first` for the stage that diverges first, `off` for others beyond the error
        bound."""
        styles = ("off" if ratio is not None and not ratio < ERROR_BOUND else "" for ratio in self.ratios)
        return ["first" if i == self.outside else style for i, style in enumerate(styles)]


def ratio_texts(item: Probed) -> list[str]:
    """The ratios of a probed step as texts."""
    return ["" if ratio is None else factor(ratio) for ratio in item.ratios]


def wrong_stages(row: TrainingRow) -> list[str]:
    """The stages of a backend that exceed the error bound in some probe."""
    return [stage for stage in STAGES if any(not item.ratios.get(stage, 0.0) < ERROR_BOUND for item in row.probes)]


def stages_of(rows: Iterable[TrainingRow]) -> tuple[str, ...]:
    """The stages that were observed in some probe, in order."""
    seen = {stage for row in rows for item in row.probes for stage in item.ratios}
    return tuple(stage for stage in STAGES if stage in seen)


def probed(row: TrainingRow, stages: Sequence[str]) -> Iterator[Probed]:
    """The probes of a backend by step."""
    for item in sorted(row.probes, key=lambda item: item.step):
        ratios = tuple(item.ratios.get(stage) for stage in stages)
        outside = [i for i, ratio in enumerate(ratios) if ratio is not None and not ratio < ERROR_BOUND]
        yield Probed(item.step, ratios, outside[0] if outside else None)


def remark(run: TrainingRun) -> str:
    """How the ratios were measured, and whether the baseline itself diverges."""
    baseline_diverges = any(row.backend == run.expected for row, _ in run.diverged)
    own = f"; the baseline {run.expected} diverges itself, so other curves may be far from it"
    return ensemble_text(run) + (own if baseline_diverges else "")


def ensemble_text(run: TrainingRun) -> str:
    """How the envelope was measured."""
    ensemble = next((row.ensemble for row in run.rows if row.ensemble.members), None)
    if ensemble is None:
        return "no envelope was measured"
    source = "the oracle" if ensemble.of == ORACLE else ensemble.of or "the baseline"
    return (
        f"the envelope is that of {plural(ensemble.members, 'run')} of {source}, each from a start perturbed by an ulp"
    )


def value_text(value: Any) -> str:
    """A param of a training in one line: `sgd, lr=0.05, momentum=0.9`."""
    if isinstance(value, Mapping):
        named = [str(value["name"])] if "name" in value else []
        return ", ".join([*named, *(f"{k}={value_text(v)}" for k, v in value.items() if k != "name")])
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (Mapping, str)) for item in value):
            return "; ".join(map(value_text, value))
        return f"[{', '.join(map(value_text, value))}]"
    return "none" if value is None else str(value)
