"""The comparisons of another port's run with the baseline's: outputs, loss, metrics, buffers, gradients, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, FLOOR
from parity.judge.compare.cell import NOTHING_FINITE
from parity.judge.compare.metrics import Metrics, compare, quotient
from parity.judge.compare.verdict import Comparison, EnvelopeRow, ErrorRatios, Verdict, comparison_of, measures
from parity.judge.diagnose.memory import Memory
from parity.models import orders, steps
from parity.models.findings import Boundary, ModelFinding
from parity.models.measure import Distance, ReferenceRuns
from parity.models.ports import Array, RemotePort
from parity.models.spec import ModelSpec
from parity.models.state import Move
from parity.models.worker.tape import Recorded
from parity.reporting.text.words import plural

NOTHING = 1e-30
"""An absolute tolerance below any difference; with 0, every difference would be infinitely many tolerances."""


@dataclass
class ComparedPorts:
    """The baseline and another port.

    `states` are the folders of their parameters, the other's made of the baseline's by `moves`. `partners` maps the
    other port's layers to the baseline's. `free` and `step` are the baseline's runs: on its own, and in step. `run` is
    the other port's run on its own, with the weights `own` if it has its own. `keys` maps its tensors to the baseline's
    names, `axes` to the order of the baseline's axes. `behind` maps a layer with a folded norm to that norm.
    """

    case: CasePlan
    dtype: str
    base: RemotePort
    other: RemotePort
    states: Mapping[str, Path]
    moves: Sequence[Move]
    partners: Mapping[str, str]
    batch: Path
    folder: Path
    free: ReferenceRuns
    step: ReferenceRuns
    run: Recorded
    own: Path | None = None
    behind: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, orders.Axes] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    findings: list[ModelFinding] = field(default_factory=list)
    first: Boundary | None = None
    n_layers: int = 0
    resized: bool = False
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def model(self) -> ModelSpec:
        """The case's functions."""
        assert isinstance(self.case.params, ModelSpec)  # noqa: S101 - for the type checker
        return self.case.params

    @property
    def _differentiable(self) -> bool:
        """Whether gradients are compared."""
        return bool(self.model.loss) and self.base.differentiable and self.other.differentiable

    def is_wrong(self, name: str) -> bool:
        """Whether an output or the loss differs by more than rounding."""
        return (
            name in self.free.plain
            and name in self.run
            and self.free.distance(name, self.run, name, whole=True).exceeds_bound
        )

    @property
    def _outputs(self) -> list[str]:
        return outputs_of(self.free.plain)

    def _metric(self, run: Recorded) -> dict[str, float]:
        """The user's metric of a run's outputs, as the baseline computes it."""
        return self.base.metric(run, self.batch) if self.model.metric else {}

    def comparisons(self) -> Iterator[Comparison]:
        """The outputs, the loss, metrics, buffers, gradients, and the tensors of findings."""
        moved = {f"grad.{move.target}": move for move in self.moves} if self._differentiable else {}
        otherwise = self._other_outputs()
        for name in dict.fromkeys([*self._outputs, *outputs_of(self.run)]):
            row = self._comparison(name, name, None)
            yield replace(row, message=f"{row.message}: {otherwise}") if otherwise and row.message else row
        if "loss" in self.free.plain and self.other.has_loss:
            yield self._comparison("loss", "loss", None)
        yield from self._metrics()
        for at, distance in steps.distances(self.free, self.run, self.keys, self.axes, whole=True):
            if at.state:
                ours = self.free.plain.load(self.keys[str(at)])
                yield self._row(self._start(f"buffer.{at.layer}.{at.state}"), distance, self.run.load(str(at)), ours)
        for theirs, move in moved.items():
            ours = [f"grad.{source}" for source in move.sources]
            if all(one in self.free.plain for one in ours) or theirs in self.run:
                yield self._gradient(theirs, ours, move)
        for finding in self.findings:
            yield from finding.comparisons or self._boundaries(finding)

    def _weights(self, name: str) -> Comparison:
        """A parameter's own values, compared with those made of the baseline's."""
        start = self._start(f"weights.{name}")
        have, want = (Recorded(str(state)).load(name) for state in (self.other.state, self.states[self.other.name]))
        if have.shape != want.shape:
            return replace(start, message=f"{list(have.shape)}, not {list(want.shape)}", culprit=(self.other.name,))
        metrics = differing(have, want)
        scale = FLOOR[self.dtype] * metrics.expected_rms
        ratio = quotient(metrics.rmse, scale)
        is_wrong = ratio >= ERROR_BOUND or metrics.n_nonfinite_mismatched > 0
        verdict = (
            Verdict.NONFINITE if metrics.n_nonfinite_mismatched else Verdict.SEMANTIC if is_wrong else Verdict.CLOSE
        )
        return replace(
            start, verdict=verdict, error_ratio=ErrorRatios(ratio, None), envelope=EnvelopeRow(scale, scale),
            culprit=(self.other.name,) if is_wrong else (), **measures(metrics),
        )  # fmt: skip

    def _metrics(self) -> Iterator[Comparison]:
        """The metrics; their envelope is that of the perturbed runs."""
        ours = self.metrics.get(self.base.name, {})
        perturbed = [self._metric(run) for run in self.free.perturbed] if ours else []
        for name, value in self.metrics.get(self.other.name, {}).items():
            if name not in ours:
                continue
            metrics = differing(np.array([value]), np.array([ours[name]]))
            start = replace(self._start(f"metric.{name}"), **measures(metrics))
            if not np.isfinite(ours[name]):
                yield replace(start, verdict=Verdict.NOT_COMPARED, message=NOTHING_FINITE)
                continue
            if not np.isfinite(value):
                yield replace(start, verdict=Verdict.NONFINITE, culprit=(self.other.name,))
                continue
            spread = max((abs(run[name] - ours[name]) for run in perturbed if name in run), default=0.0)
            spread = max(spread, abs(ours[name]) * FLOOR[self.dtype])
            ratio = quotient(abs(value - ours[name]), spread)
            verdict = Verdict.EQUAL if value == ours[name] else Verdict.CLOSE
            yield replace(
                start, verdict=Verdict.SEMANTIC if ratio >= ERROR_BOUND else verdict,
                error_ratio=ErrorRatios(ratio, 0.0), envelope=EnvelopeRow(spread, spread),
                culprit=(self.other.name,) if ratio >= ERROR_BOUND else (),
            )  # fmt: skip

    def _other_outputs(self) -> str:
        """A text if the models return different numbers of tensors, or different names."""
        theirs, ours = ([name.partition(".")[2] for name in outputs_of(run)] for run in (self.run, self.free.plain))
        if len(theirs) != len(ours):
            return f"{self.other.name} returns {plural(len(theirs), 'tensor')}, {self.base.name} {len(ours)}"
        if sorted(theirs) != sorted(ours):
            named = (", ".join(name or "a single tensor" for name in names) for names in (theirs, ours))
            return f"{self.other.name} returns {next(named)}, {self.base.name} {next(named)}"
        return ""

    def _start(self, tensor: str) -> Comparison:
        """A comparison without a result yet."""
        return comparison_of(
            self.case.id, self.dtype, tensor, self.other.name, self.base.name, Verdict.STRUCTURE, 0.0, 0.0
        )

    def _comparison(self, tensor: str, ours: str, moved: Array | None) -> Comparison:
        base = self._start(tensor)
        if tensor not in self.run:
            return replace(base, message=f"{self.other.name} has no {tensor}", culprit=(self.other.name,))
        if ours not in self.free.plain:
            return replace(base, message=f"{self.base.name} has no {ours}", culprit=(self.other.name,))
        theirs, wanted = (run.entries[name]["dtype"] for run, name in ((self.run, tensor), (self.free.plain, ours)))
        if tensor in self._outputs and theirs != wanted and theirs.startswith("float") and wanted.startswith("float"):
            message = f"{self.other.name} returns {theirs}, {self.base.name} {wanted}"
            return replace(base, message=message, culprit=(self.other.name,))
        distance = self.free.distance(ours, self.run, tensor, whole=True, moved=moved)
        values, expected = self.run.load(tensor) if moved is None else moved, self.free.plain.load(ours)
        row = self._row(base, distance, values, expected)
        # Two models that return nothing but zeros agree in nothing.
        return replace(row, suspect=tensor in self._outputs and row.verdict.passes and not expected.any())

    def _gradient(self, theirs: str, ours: Sequence[str], move: Move) -> Comparison:
        """A gradient in the baseline's layout; the worst part of one that is made of several."""
        if theirs not in self.run or any(one not in self.free.plain for one in ours):
            return self._comparison(theirs, ours[0], None)
        parts = move.shares(self.run.load(theirs), [self.free.plain.load(one) for one in ours])
        rows = [self._comparison(theirs, one, part) for one, part in zip(ours, parts, strict=True)]
        return max(rows, key=lambda row: row.error_ratio.actual or 0.0)

    def _row(self, base: Comparison, distance: Distance, values: Array, expected: Array) -> Comparison:
        """A comparison with its verdict, by the envelope."""
        if distance.shapes:
            return replace(base, message=f"{self.other.name} has {distance.shapes}", culprit=(self.other.name,))
        metrics = differing(np.asarray(values), np.asarray(expected).astype(values.dtype))
        if not np.isfinite(expected).any() and not metrics.n_nonfinite_mismatched:
            return replace(base, verdict=Verdict.NOT_COMPARED, message=NOTHING_FINITE)
        verdict = Verdict.SEMANTIC if distance.exceeds_bound else Verdict.EQUAL if metrics.equal else Verdict.CLOSE
        if metrics.n_nonfinite_mismatched:
            verdict = Verdict.NONFINITE
        return replace(
            base,
            verdict=verdict,
            **measures(metrics),
            error_ratio=ErrorRatios(distance.ratio, distance.base_ratio),
            envelope=EnvelopeRow(distance.envelope.rms, distance.envelope.max),
            culprit=(self.other.name,) if distance.exceeds_bound else (),
        )

    def _measured(self, values: Array, at: Boundary) -> Metrics | None:
        """The metrics of a tensor at a boundary, against the baseline's; None if their shapes differ."""
        ours = self.free.plain.load(self.keys[str(at)])
        if values.size != ours.size or values.dtype.kind != ours.dtype.kind:
            return None
        return differing(values.reshape(ours.shape), ours.astype(values.dtype))

    def _boundaries(self, finding: ModelFinding) -> Iterator[Comparison]:
        """The comparisons at the boundaries of a finding that was not judged as an op."""
        for at, ratio in finding.boundaries.items():
            start = self._start(f"layer.{at.layer or 'model'}.{at.state or at.role}{at.index or ''}")
            metrics = finding.metrics.get(at)
            yield replace(
                start,
                verdict=Verdict.SEMANTIC,
                **measures(metrics),
                error_ratio=ErrorRatios(ratio, None),
                culprit=(self.other.name,),
            )


def differing(actual: Array, expected: Array) -> Metrics:
    """The metrics without a tolerance; the worst element has the largest difference."""
    return compare(actual, expected, 0.0, NOTHING)


def outputs_of(run: Recorded) -> list[str]:
    """The names of a run's outputs."""
    return [name for name in run if name.partition(".")[0] == "output"]
