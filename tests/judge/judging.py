"""Judging without processes: cases drawn here, outputs made by the oracle's lines in the dtype, changed on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.draw import Constant, Draw, Integers, Normal, TensorPlan, Uniform
from parity.cases.op import Variant
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.outcome import CellOutcome, Outcome, Output

BOTH = ("float32", "float64")
Tensors = dict[str, np.ndarray]


def planned(
    op: str, dtypes: Sequence[str] = BOTH, draws: Mapping[str, Draw] | None = None, offset: float = 0.0, **given: Any
) -> CasePlan:
    """A case of `op`: shapes by input name, everything else is a param; inputs are drawn as a config would."""
    shapes = {
        name: value
        for name, value in given.items()
        if isinstance(value, tuple) and name in ("x", "weight", "param", "grads_0", "grads_1")
    }
    params = OPS[op].params(**{name: value for name, value in given.items() if name not in shapes})
    infer_shapes = OPS[op].infer_shapes(params, {name.replace("_", "."): shape for name, shape in shapes.items()})
    tensors = []
    for name, shape in infer_shapes.inputs.items():
        item = OPS[op].input(name)
        draw = (draws or {}).get(name) or (item.default if item and item.default else Normal(0.3, 1.2))
        tensors.append(TensorPlan(name, shape, draw, offset=offset if name == "x" else 0.0))
    tensors += [
        TensorPlan(f"grad.{n}", infer_shapes.outputs[n], (draws or {}).get(f"grad.{n}") or Normal())
        for n in OPS[op].grad_outputs
    ]
    return CasePlan(
        f"{op}-{len(tensors)}", op, params, tuple(dtypes), tuple(tensors), DEFAULT_TOLERANCES, WrittenAt("", 0)
    )


def drawn(case: CasePlan) -> Tensors:
    return {plan.name: plan.sample(0, case.id, "float32") for plan in case.tensors}


def kernel(case: CasePlan, inputs: Tensors, dtype: str, variant: Variant | None = None, **how: Any) -> Tensors:
    """What the oracle's lines give in `dtype`, with a variant turned."""
    variant = variant or Variant("")
    kept = {name: values for name, values in inputs.items() if name not in variant.absent}
    found = evaluate(OPS[case.op], variant.changed(case.params), kept, dtype=dtype, **how, **variant.arguments)
    zeros = {f"grad.{name}": np.zeros(inputs[name].shape, dtype) for name in variant.absent}
    return {**found, **zeros}


def judged(case: CasePlan, make: Callable[[Tensors, str], Tensors], *, diagnose: bool = True) -> Judged:
    """The judgement of a backend `mine` whose outputs are `make(inputs, dtype)`, with the oracle as the baseline."""
    inputs = drawn(case)
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle")
    for dtype in case.dtypes:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in make(inputs, dtype).items()}
        judge.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return judge.judged(diagnose=diagnose)


def names(found: Judged, dtype: str) -> list[str]:
    """The ids of the diagnoses in a dtype, first to last, without harmless ones."""
    harmless = ("rounding", "degenerate-gradient")
    return [d.id for d in found.diagnoses if d.dtype == dtype and d.id not in harmless]


def candidates(found: Judged, dtype: str) -> set[str]:
    """The first diagnosis, or what it cannot tell apart."""
    rows = [d for d in found.diagnoses if d.dtype == dtype and d.id not in ("rounding", "degenerate-gradient")]
    if rows and rows[0].id == "not-identifiable":
        return {part for c in rows[0].evidence["candidates"] for part in c["id"].split(" + ")}
    return {rows[0].id} if rows else set()


def verdicts(found: Judged, dtype: str) -> dict[str, str]:
    return {c.tensor: c.verdict.value for c in found.comparisons if c.dtype == dtype}


__all__ = [
    "BOTH",
    "Constant",
    "Integers",
    "Normal",
    "Uniform",
    "candidates",
    "drawn",
    "judged",
    "kernel",
    "names",
    "planned",
    "verdicts",
]
