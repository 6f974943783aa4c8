"""A training's comparisons, diagnoses and rows of results.json."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.diagnoses import catalogue
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF
from parity.judge.case import ORDER
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.causes import DEGRADED, SEMANTIC, UNSTABLE, Cause
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import FAILED, FAILURES
from parity.reporting.text.words import listed
from parity.training.judge.divergence import UNEXPLAINED, FirstDivergence
from parity.training.judge.inquiry import StageFault
from parity.training.judge.stages import StepJudge
from parity.training.spec import STAGES

LARGE = 1e4
"""In a training with only one dtype, an unexplained error of this many envelopes is not rounding."""
SAME_SIZE = 2.0
"""Two errors are the same if one is at most this many times the other."""
TENSORS = 8
"""At most so many tensors of a stage are named."""


def worst_kind(causes: Sequence[Cause]) -> str:
    """The worst kind of these causes."""
    return max((cause.kind for cause in causes), key=ORDER.index)


def kind_of(divergence: FirstDivergence, dtype: str, others: Mapping[str, float | None]) -> str:
    """`semantic`, `unstable` or `degraded`: by the cause if known, else by the ratios of the backend's divergences in
    the case's other dtypes."""
    if divergence.causes:
        return worst_kind(divergence.causes)
    if not others:
        return SEMANTIC if divergence.ratio >= LARGE else UNSTABLE
    error = divergence.ratio * UNIT_ROUNDOFF[dtype]
    for other, ratio in others.items():
        if ratio is not None:
            smaller, larger = sorted((error, ratio * UNIT_ROUNDOFF[other]))
            return SEMANTIC if larger <= SAME_SIZE * smaller else UNSTABLE
    if dtype == "float64":
        return DEGRADED if error < ERROR_BOUND * UNIT_ROUNDOFF["float32"] else SEMANTIC
    return UNSTABLE


def diagnoses_of(case: str, dtype: str, backend: StepJudge, faults: Sequence[StageFault]) -> Iterator[Diagnosis]:
    """A diagnosis for every cause, in the order of divergence."""
    for fault in faults:
        left = fault.ratio if fault.left is None else fault.left
        for cause in fault.causes or (None,):
            nameless = FAILED if FAILURES in fault.evidence else UNEXPLAINED
            name = nameless if cause is None else cause.id
            yield Diagnosis(
                case,
                dtype,
                backend.name,
                name,
                catalogue()[name].title,
                fault.tensors[:TENSORS],
                cause is not None,
                fault.ratio,
                left,
                evidence_of(backend, fault, cause),
            )


def curve_diagnosis(case: str, dtype: str, backend: StepJudge, divergence: FirstDivergence) -> Diagnosis:
    """The diagnosis of a curve that diverges although no probed step is wrong."""
    probed = sorted(step for step, ratios in backend.probes.items() if ratios)
    where = (
        f"the curve diverges at step {divergence.step}; none of the {len(probed)} probed steps exceeds the error bound"
    )
    evidence = {"step": divergence.step, "stage": None, "where": where, "probed": probed}
    title, ratio = catalogue()[UNEXPLAINED].title, divergence.ratio
    tensors = (divergence.tensor,)
    return Diagnosis(case, dtype, backend.name, UNEXPLAINED, title, tensors, False, ratio, ratio, evidence)


def attributed(diagnoses: Sequence[Diagnosis], comparisons: Sequence[Comparison]) -> Iterator[Diagnosis]:
    """The diagnoses, with the comparisons that they account for as tensors, by which `known` entries accept them.

    They are the stage of a cause, later stages without their own cause, and every curve of the backend that exceeds the
    error bound. The tensors of the step in which the cause was identified become evidence.
    """
    own = {(d.backend, d.evidence["stage"]) for d in diagnoses}
    for diagnosis in diagnoses:
        failing = dict.fromkeys(c.tensor for c in comparisons if diagnosis.backend in c.culprit)
        tensors = tuple(name for name in failing if accounts(diagnosis, name, own))
        evidence = {**diagnosis.evidence, "tensors": list(diagnosis.tensors)}
        yield replace(diagnosis, tensors=tensors, evidence=evidence)


def accounts(diagnosis: Diagnosis, tensor: str, own: Collection[tuple[str, str | None]]) -> bool:
    """Whether a diagnosis accounts for a curve or stage; `own` are the (backend, stage) with their own cause."""
    stage, first = tensor.removeprefix("stage."), diagnosis.evidence["stage"]
    if stage in (tensor, first):
        return True
    later = first is not None and STAGES.index(stage) > STAGES.index(first)
    return later and (diagnosis.backend, stage) not in own


def evidence_of(backend: StepJudge, fault: StageFault, cause: Cause | None) -> dict[str, Any]:
    """Where a stage exceeds the error bound, why, and what else was tried."""
    slow = "the oracle ran in float64, because longdouble takes too long"
    evidence: dict[str, Any] = {
        "parameters": None if cause is None else cause.parameters,
        "expression": fault.expressions[fault.causes.index(cause)]
        if cause in fault.causes and fault.expressions
        else "",
        "told_by": cause and cause.shown_by,
        **fault.evidence,
        "oracle": slow if backend.oracle.wide == backend.oracle.dtype else "",
    }
    evidence |= {"off": fault.parts, **once(backend, fault)}
    known = {name: plain(value) for name, value in evidence.items() if value or (name == "parameters" and cause)}
    return {"step": fault.first, "stage": fault.stage, "where": where(backend, fault), **known}


def once(backend: StepJudge, fault: StageFault) -> dict[str, Any]:
    """The worst tensor, and the number of probed steps (`only`) if just one, before the last, is wrong."""
    probes = backend.stages.get(fault.stage)
    if probes is None:
        return {}
    alone = len(fault.steps) == 1 and fault.first < probes.probed[-1]
    return {"worst_tensor": probes.tensor, "only": len(probes.probed) if alone else None}


def where(backend: StepJudge, fault: StageFault) -> str:
    """In which of the probed steps a stage exceeds the error bound."""
    if fault.stage not in backend.stages:
        return f"beyond the error bound at {len(fault.steps)} of {backend.n_steps} steps, first at step {fault.first}"
    probed = backend.stages[fault.stage].probed
    if len(fault.steps) == 1 < len(probed) and fault.first == probed[0]:
        return f"beyond the error bound at step {fault.first} only: later steps are right ({len(probed)} probed)"
    if len(fault.steps) == len(probed):
        return f"beyond the error bound at all {len(probed)} probed steps, first at step {fault.first}"
    steps = listed(map(str, fault.steps))
    return f"beyond the error bound at {len(fault.steps)} of {len(probed)} probed steps: {steps}"


def plain(value: Any) -> Any:
    """The value in JSON's types."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def fault_of(stage: str, faults: Sequence[StageFault]) -> StageFault | None:
    """The fault behind a wrong stage: its own, else the first earlier one, which the stage follows from."""
    own = next((fault for fault in faults if fault.stage == stage), None)
    earlier = (fault for fault in faults if STAGES.index(fault.stage) < STAGES.index(stage))
    return own or next(earlier, None)
