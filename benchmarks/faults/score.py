"""Runs parity's judge over faults and healthy forms, in this process, and counts what it says."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.cases import DTYPES, OFFSETS, SCALES, case_of, drawn
from benchmarks.faults.forms import FORMS, UNSTABLE, Form, run
from benchmarks.faults.generate import Fault, attempted
from benchmarks.faults.measure import RULES, Truth, detectable, effect
from benchmarks.faults.predict import Right, explanations, fresh_inputs, predicts
from benchmarks.faults.published import Published
from parity.config.plan import CasePlan
from parity.judge.case import CaseJudge, Judged, Results
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import CellOutcome, Outcome, Output

Tensors = Mapping[str, NDArray[Any]]
HARMLESS = ("rounding", "degenerate-gradient")
UNDECIDED, UNEXPLAINED, CRASHED = "not-identifiable", "unexplained", "crashed"
ASKING = True
"""Whether the judge may ask kernels again, as a run may; else it judges as a stored run."""
LARGEST = 1e6
"""Elements of the largest healthy case; sizes are log-uniform."""
LOCALIZED = "localized"
"""A diagnosis that says where an error is, and without an expression no more."""


@dataclass(frozen=True)
class Crashed:
    """What became of a judge that raised: nobody is blamed, nothing is said."""

    message: str
    comparisons: tuple[Comparison, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    results: Results = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What is known about one kernel in one cell. `passes` says which other rules let it pass.

    `status`: `clean`, `diagnosed`, `not-identifiable`, `unexplained`, `crashed` (`message` says how). `right`: how well the first diagnosis predicts
    the kernel on inputs never seen; None where it cannot be asked.
    """

    op: str
    form: str
    fault: str
    kinds: tuple[str, ...]
    case: str
    params: str
    shapes: Mapping[str, tuple[int, ...]]
    size: int
    dtype: str
    effect: float
    status: str
    verdicts: Mapping[str, str]
    ratios: Mapping[str, float | None]
    diagnoses: Sequence[Mapping[str, Any]]
    passes: Mapping[str, bool]
    seconds: float
    right: Right | None = None
    edits: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether the fault can be detected in this dtype."""
        return detectable(self.effect)

    @property
    def detected(self) -> bool:
        return self.status not in ("clean", CRASHED)


def judge(
    case: CasePlan,
    inputs: Tensors,
    truth: Truth,
    backends: Mapping[str, Mapping[str, Tensors]],
    kernels: Mapping[str, Form],
) -> Judged | Crashed:
    """The judgement of backends whose outputs are given by name and dtype, with the oracle as the baseline.

    `kernels` are asked again; what raises an error gives no answer.
    """

    def ask(name: str, other: CasePlan, dtype: str, tensors: Tensors) -> Tensors | None:
        return attempted(kernels[name], other, tensors, dtype)

    judging = CaseJudge(case, inputs, truth.exact, "oracle", ask=ask if ASKING else None)
    for dtype in case.dtypes:
        outcomes = [
            CellOutcome(case.id, dtype, name, Outcome.OK, outputs={n: Output(named_dtype(v, dtype), v.shape, v) for n, v in by_dtype[dtype].items()})
            for name, by_dtype in backends.items()
        ]  # fmt: skip
        judging.take(dtype, outcomes)
    with np.errstate(all="ignore"):
        try:
            return judging.judged()
        except Exception as error:  # a judge that fails costs one case, and is counted
            return Crashed(f"{type(error).__name__}: {error}, {traceback.extract_tb(error.__traceback__)[-1]}")


def named_dtype(values: NDArray[Any], dtype: str) -> str:
    """What a backend says that it returned: bfloat16 is held in float32."""
    return str(values.dtype) if values.dtype.kind in "iu" else dtype


def score_fault(fault: Fault, seed: int) -> list[Row]:
    """A fault's rows, one for each dtype."""
    planted = {
        "fault": fault.label,
        "kinds": tuple(e.kind for e in fault.edits),
        "edits": tuple(map(asdict, fault.edits)),
    }
    return score_kernel(fault.case, fault.inputs, fault.truth, fault.form, fault.kernel, planted, seed)


def score_published(published: Published, seed: int) -> list[Row]:
    """The rows of a published case."""
    case = published.case
    inputs = drawn(case, seed)
    planted = {"fault": published.conclusion, "kinds": ("published",), "edits": ({"thread": published.thread},)}
    return score_kernel(case, inputs, Truth.of(case, inputs), published.name, published.kernel, planted, seed)


def score_kernel(
    case: CasePlan, inputs: Tensors, truth: Truth, name: str, kernel: Form, planted: Mapping[str, Any], seed: int
) -> list[Row]:
    """The rows of a kernel on a case, one for each dtype."""
    outputs = {dtype: run(kernel, case.op, case.params, inputs, dtype) for dtype in case.dtypes}
    started = time.process_time()
    judged = judge(case, inputs, truth, {"mine": outputs}, {"mine": kernel})
    seconds = time.process_time() - started
    rows = []
    for dtype in case.dtypes:
        said = causes(judged, dtype, "mine")
        row = row_of(case, inputs, truth, judged, dtype, "mine", name, outputs[dtype])
        right = None
        if said and row["status"] in ("diagnosed", UNDECIDED):
            offered = explanations(judged.results.get((dtype, "mine")))
            right = predicts(offered, case, fresh_inputs(case, seed), kernel, dtype)
        measured = {"effect": effect(outputs[dtype], truth, dtype), "seconds": seconds, "right": right}
        rows.append(Row(**row | planted | measured))
    return rows


def healthy_rows(ops: Sequence[str], n: int, seed: int, dtypes: Sequence[str] = DTYPES) -> Iterator[Row]:
    """At least `n` rows of healthy forms: all forms and dtypes of cases of all ops in turn."""
    rng = np.random.default_rng([seed, 2])
    made = i = 0
    while made < n:
        op, size = ops[i % len(ops)], int(LARGEST ** rng.random())
        offset, scale = float(rng.choice(OFFSETS)), float(rng.choice(SCALES))
        name = f"{op}-healthy-{seed}-{i}"
        case = case_of(op, rng, size, name, offset=offset, scale=scale, dtypes=dtypes)
        rows = score_healthy(case, seed)
        yield from rows
        made, i = made + len(rows), i + 1


def score_healthy(case: CasePlan, seed: int) -> list[Row]:
    """The rows of all healthy forms of an op in one case; none where not all is finite."""
    inputs = drawn(case, seed)
    truth = Truth.of(case, inputs)
    if not truth.finite:
        return []
    forms = [form.__name__ for form in FORMS[case.op] if form not in UNSTABLE]
    started = time.process_time()
    outputs = {name: {d: truth.healthy[d][name] for d in case.dtypes} for name in forms}
    judged = judge(case, inputs, truth, outputs, {form.__name__: form for form in FORMS[case.op]})
    seconds = (time.process_time() - started) / len(forms)
    return [
        Row(**row_of(case, inputs, truth, judged, dtype, name, name, truth.healthy[dtype][name]) | {"seconds": seconds})
        for dtype in case.dtypes
        for name in forms
    ]


def row_of(
    case: CasePlan,
    inputs: Tensors,
    truth: Truth,
    judged: Judged | Crashed,
    dtype: str,
    backend: str,
    form: str,
    outputs: Tensors,
) -> dict[str, Any]:
    """What the judge and the other rules say about one backend in one cell."""
    mine = [c for c in judged.comparisons if (c.dtype, c.actual, c.expected) == (dtype, backend, "oracle")]
    said = causes(judged, dtype, backend)
    return {
        "op": case.op,
        "form": form,
        "fault": "",
        "kinds": (),
        "case": case.id,
        "params": str(case.params),
        "shapes": {name: tuple(values.shape) for name, values in inputs.items()},
        "size": max((v.size for v in inputs.values()), default=0),
        "dtype": dtype,
        "effect": 0.0,
        "status": CRASHED if isinstance(judged, Crashed) else status_of(any(backend in c.culprit for c in mine), said),
        "message": judged.message if isinstance(judged, Crashed) else "",
        "verdicts": {c.tensor: c.verdict.value for c in mine},
        "ratios": {c.tensor: c.error_ratio.actual for c in mine},
        "diagnoses": [told(d) for d in said],
        "passes": {name: rule(outputs, truth, dtype) for name, rule in RULES.items()},
    }


def causes(judged: Judged | Crashed, dtype: str, backend: str) -> list[Diagnosis]:
    """The diagnoses of a backend in a cell that blame it."""
    return [d for d in judged.diagnoses if (d.dtype, d.backend) == (dtype, backend) and d.id not in HARMLESS]


def status_of(culprit: bool, said: Sequence[Diagnosis]) -> str:
    """`clean` where nobody is blamed; else the least that is known about any part of the error."""
    if not culprit:
        return "clean"
    if not said or any(d.id == UNEXPLAINED or not d.explained or is_vague(d) for d in said if d.id != UNDECIDED):
        return UNEXPLAINED
    return UNDECIDED if any(d.id == UNDECIDED for d in said) else "diagnosed"


def is_vague(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis predicts nothing."""
    return diagnosis.id == LOCALIZED and not diagnosis.evidence.get("expression")


def told(diagnosis: Diagnosis) -> dict[str, Any]:
    """What a person who looks at a miss wants to see of a diagnosis."""
    evidence = diagnosis.evidence
    return {
        "id": diagnosis.id,
        "tensors": diagnosis.tensors,
        "explained": diagnosis.explained,
        "residual": [diagnosis.residual_before, diagnosis.residual_after],
        **{key: evidence[key] for key in ("expression", "parameters", "candidates") if key in evidence},
    }
