"""What was found about a training, as comparisons, diagnoses and rows of results.json."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF
from parity.judge.catalogue.entries import CATALOGUE
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.causes import DEGRADED, SEMANTIC, UNSTABLE
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.training.judge.curves import Side as Curve
from parity.training.judge.hypotheses import Hypothesis
from parity.training.judge.recorded import listed
from parity.training.judge.search import Explanation
from parity.training.judge.side import Cause, Side
from parity.training.spec import STAGES

LARGE = 1e4
"""Without another dtype to look at, what no cause explains is not one of arithmetic from so many envelopes on."""
SAME = 2.0
"""Two errors are the same where one is at most so many times the other."""
TENSORS = 8
"""So many tensors of a stage are named."""
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Parting:
    """The first step and stage at which a side leaves rounding; `stage` is None where only a curve does."""

    step: int
    stage: str | None
    tensor: str
    ratio: float
    cause: Cause | None = None

    @property
    def diagnosis(self) -> str:
        """The id of the cause."""
        return UNEXPLAINED if self.cause is None else ids(self.cause)[0]

    def row(self) -> dict[str, Any]:
        """As results.json has it."""
        return {
            "step": self.step,
            "stage": self.stage,
            "tensor": self.tensor,
            "ratio": self.ratio,
            "diagnosis": self.diagnosis,
            "seen": "curve" if self.stage is None else "probe",
        }


def parting_of(causes: Sequence[Cause], curve: Curve | None, *, own: bool) -> Parting | None:
    """Where a side parts: by its first stage outside, else by its curve (`own`: against the oracle's)."""
    if causes:
        first = causes[0]
        return Parting(first.first, first.stage, first.tensors[0], first.ratio, first)
    seen = curve.parting(own=own) if curve is not None else None
    return None if seen is None else Parting(seen[0], None, seen[1], seen[2])


def parts(cause: Cause) -> tuple[Hypothesis, ...]:
    """The hypotheses that explain a stage together; none where nothing does."""
    return () if cause.hypothesis is None else cause.hypothesis.parts or (cause.hypothesis,)


def ids(cause: Cause) -> tuple[str, ...]:
    """The ids of what explains a stage."""
    return tuple(h.id for h in parts(cause)) or (UNEXPLAINED,)


def kind_of(parting: Parting, dtype: str, others: Mapping[str, Parting | None]) -> str:
    """`semantic`, `unstable` or `degraded`, by the cause, else by what the side does in the `others`, the other dtypes
    in which the case was judged."""
    known = [h.kind for h in parts(parting.cause)] if parting.cause is not None else []
    if known:
        return SEMANTIC if SEMANTIC in known else DEGRADED
    if not others:
        return SEMANTIC if parting.ratio >= LARGE else UNSTABLE
    mine = parting.ratio * UNIT_ROUNDOFF[dtype]
    for other, theirs in others.items():
        if theirs is not None:
            both = sorted((mine, theirs.ratio * UNIT_ROUNDOFF[other]))
            return SEMANTIC if both[1] <= SAME * both[0] else UNSTABLE
    if dtype == "float64":
        return DEGRADED if mine < OFF * UNIT_ROUNDOFF["float32"] else SEMANTIC
    return UNSTABLE


def diagnoses_of(case: str, dtype: str, side: Side, causes: Sequence[Cause]) -> Iterator[Diagnosis]:
    """A diagnosis for every cause, the first to part first."""
    for cause in causes:
        best = cause.found.best
        left = cause.ratio if best is None else best.left
        tensors = cause.tensors[:TENSORS]
        for i, name in enumerate(ids(cause)):
            evidence = evidence_of(side, cause, parts(cause)[i] if best is not None else None)
            title = CATALOGUE[name].title
            explained = best is not None and best.explains
            yield Diagnosis(case, dtype, side.name, name, title, tensors, explained, cause.ratio, left, evidence)


def attributed(diagnoses: Sequence[Diagnosis], comparisons: Sequence[Comparison]) -> Iterator[Diagnosis]:
    """The diagnoses with the comparisons that they account for as their tensors, by which the ledger accepts them.

    These are the stage of a cause, the later ones that are off without a cause of their own, and every curve of a side
    that is off. The tensors of the step in which it was found are evidence.
    """
    own = {(d.backend, d.evidence["stage"]) for d in diagnoses}
    for told in diagnoses:
        failing = dict.fromkeys(c.tensor for c in comparisons if told.backend in c.culprit)
        tensors = tuple(name for name in failing if accounts(told, name, own))
        yield replace(told, tensors=tensors, evidence={**told.evidence, "tensors": list(told.tensors)})


def accounts(told: Diagnosis, tensor: str, own: Collection[tuple[str, str | None]]) -> bool:
    """Whether a diagnosis is one of a curve or stage that is off; `own` are the stages with a cause, by backend."""
    stage, first = tensor.removeprefix("stage."), told.evidence["stage"]
    if stage in (tensor, first):
        return True
    later = first is not None and STAGES.index(stage) > STAGES.index(first)
    return later and (told.backend, stage) not in own


def evidence_of(side: Side, cause: Cause, hypothesis: Hypothesis | None) -> dict[str, Any]:
    """Where a stage is outside, by what it is explained, and what else was tried."""
    found = cause.found
    evidence: dict[str, Any] = {"step": cause.first, "stage": cause.stage, "where": where(side, cause)}
    if hypothesis is not None:
        evidence["parameters"] = plain(hypothesis.parameters)
        if hypothesis.told_by:
            evidence["told_by"] = hypothesis.told_by
    if found.best is not None and found.best.missed:
        evidence["not_at_work_in"] = list(found.best.missed)
    if found.rivals:
        evidence["not_told_from"] = [summary(rival) for rival in found.rivals]
    if found.second is not None:
        evidence["second"] = summary(found.second)
    if side.oracle.wide == side.oracle.dtype:
        evidence["oracle"] = "computed in float64: longdouble would take too long"
    if found.n_tried:
        evidence["tried"] = found.n_tried
    return evidence


def where(side: Side, cause: Cause) -> str:
    """At which of the steps that were looked at a stage is outside."""
    if cause.stage in ("data", "schedule"):
        return f"outside at {len(cause.steps)} of {side.n_steps} steps, first at step {cause.first}"
    probed = side.stages[cause.stage].probed
    if len(cause.steps) == 1 < len(probed) and cause.first == probed[0]:
        return f"outside at step {cause.first} only: later steps agree from the same state ({len(probed)} probed)"
    if len(cause.steps) == len(probed):
        return f"outside at all {len(probed)} steps that were probed, first at step {cause.first}"
    return f"outside at {len(cause.steps)} of {len(probed)} steps that were probed: {listed(cause.steps)}"


def summary(explanation: Explanation) -> dict[str, Any]:
    """An explanation in short."""
    hypothesis = explanation.hypothesis
    return {
        "id": hypothesis.id,
        "parameters": plain(hypothesis.parameters),
        "residual_after": explanation.left if math.isfinite(explanation.left) else None,
    }


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def curve_diagnosis(case: str, dtype: str, side: Side, parting: Parting) -> Diagnosis:
    """That a curve parts, and no probed step says why."""
    probed = sorted(step for step, ratios in side.probes.items() if ratios)
    evidence = {
        "step": parting.step,
        "stage": None,
        "where": f"the curve parts at step {parting.step}; no stage of the {len(probed)} steps probed is outside",
        "probed": probed,
    }
    title = CATALOGUE[UNEXPLAINED].title
    tensors = (parting.tensor,)
    return Diagnosis(case, dtype, side.name, UNEXPLAINED, title, tensors, False, parting.ratio, parting.ratio, evidence)


def stage_kind(stage: str, causes: Sequence[Cause]) -> Cause | None:
    """The cause of a stage that is outside: its own, else the first one before it, of which it is a consequence."""
    own = next((cause for cause in causes if cause.stage == stage), None)
    earlier = [c for c in causes if STAGES.index(c.stage) < STAGES.index(stage)]
    return own or (earlier[0] if earlier else None)
