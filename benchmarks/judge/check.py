"""Are the kernels what their labels say? In float64, against the oracle and its variants.

Every healthy variant must agree with the oracle, and a fault for which the oracle has a variant with the oracle under that
variant; every fault must differ from the oracle somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.judge.cases import cases_of
from benchmarks.judge.faults import FAMILIES, FAULTS, Fault, healthy_of
from benchmarks.judge.local import compute
from parity.cases import OPS
from parity.cases.op import call_params
from parity.cases.oracle import evaluate
from parity.config.loader import load_plan
from parity.config.plan import CasePlan, Overrides

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ddof": {"ddof": 1},
    "variance-sum": {"variance_sum": True},
    "eps-outside": {"eps_placement": "outside"},
    "bias-first": {"affine_order": "bias-first"},
    "eps-outside+bias-first": {"eps_placement": "outside", "affine_order": "bias-first"},
    "detached": {"detached": "both"},
    "detached-mean": {"detached": "mean"},
    "detached-variance": {"detached": "variance"},
    "uncentred": {"centered": False},
    "rms": {"root_mean_square": True},
    "running-biased": {"running_ddof": 0},
    "momentum-complement": {"momentum_complement": True},
    "running-biased+momentum-complement": {"running_ddof": 0, "momentum_complement": True},
    "naive": {"variance": "naive"},
    "naive-clamped": {"variance": "naive-clamped"},
    "untransposed": {"transposed": True},
    "per-tensor": {"scope": "per_tensor"},
    "no-denominator-eps": {"denominator_eps": 0.0},
    "per-tensor+no-denominator-eps": {"scope": "per_tensor", "denominator_eps": 0.0},
    "one-norm": {"norm_type": 1.0},
    "two-norm": {"norm_type": 2.0},
    "max-norm": {"norm_type": float("inf")},
    "unclamped": {"clamped": False},
    "by-value": {"by_value": True},
}
"""Faults that are a variant of the oracle."""

TOLERANCE = 2e-12
"""Largest difference, over the largest value of the tensor, at offset 0; conditioning is no matter of this check."""


@dataclass(frozen=True)
class Finding:
    """A kernel that is not what its label says."""

    kernel: str
    case: str
    tensor: str
    difference: float


def plans(ops: tuple[str, ...], n_cases: int, seed: int, folder: Path) -> tuple[CasePlan, ...]:
    """Cases as parity plans them."""
    path = folder / "check.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "backends": ["numpy"], "seed": seed, "cases": [c for op in ops for c in cases_of(op, n_cases, seed)]}))  # fmt: skip
    return load_plan([path], Overrides()).cases


def check(folder: Path, n_cases: int = 10, seed: int = 0) -> Iterator[Finding]:
    """Everything that is not as labelled; `folder` is for a config."""
    for family in FAMILIES:
        for case in plans(family, n_cases, seed, folder):
            inputs = {t.name: t.sample(seed, case.id, "float64") for t in case.tensors}
            inputs = {name: values - centre(values) for name, values in inputs.items()}
            yield from check_case(case, family, inputs)
    yield from without_effect(folder, n_cases, seed)


def centre(values: NDArray[Any]) -> float:
    """What is subtracted so that a case is well conditioned: the mean, where it is large."""
    mean = float(values.mean())
    return round(mean) if abs(mean) > 10 else 0.0


def check_case(case: CasePlan, family: tuple[str, ...], inputs: Mapping[str, NDArray[Any]]) -> Iterator[Finding]:
    params = call_params(case.params)
    exact = evaluate(OPS[case.op], case.params, inputs)
    for healthy in healthy_of(family):
        yield from differences(healthy.name, case, compute(case.op, params, inputs, "float64", healthy.switches), exact)
    for fault in FAULTS:
        if case.op in fault.ops and fault.ops == family and fault.name in VARIANTS and allowed(fault, case):
            wrong = evaluate(OPS[case.op], case.params, inputs, **VARIANTS[fault.name])
            found = compute(case.op, params, inputs, "float64", fault.switches)
            yield from differences(fault.name, case, found, without_ambiguous(fault, wrong))


def allowed(fault: Fault, case: CasePlan) -> bool:
    """Whether variant and kernel mean the same: a transposed weight is square, and the variance is the batch's."""
    if fault.name == "untransposed":
        return len(set(next(t.shape for t in case.tensors if t.name == "weight"))) == 1
    return fault.name != "rms" or getattr(case.params, "training", True)


def without_ambiguous(fault: Fault, wrong: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The oracle takes the running variance from the wrong one and corrects it again; these kernels, as real ones, not."""
    twice = fault.name in ("ddof", "variance-sum")
    return {name: values for name, values in wrong.items() if not (twice and name == "running_var")}


def differences(
    kernel: str, case: CasePlan, found: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]
) -> Iterator[Finding]:
    for name, values in exact.items():
        scale = max(float(np.abs(values).max()), 1e-300)
        difference = float(np.abs(found[name] - values).max()) / scale if name in found else np.inf
        if not difference <= TOLERANCE * max(1.0, condition(case)):
            yield Finding(kernel, case.id, name, difference)


def condition(case: CasePlan) -> float:
    """A naive variance and a tiny eps lose a little more."""
    return 100.0 if case.op in FAMILIES[0] else 1.0


def without_effect(folder: Path, n_cases: int, seed: int) -> Iterator[Finding]:
    """Faults that change nothing in any case of their ops, in float32 and float64."""
    cases = {family: plans(family, n_cases, seed, folder) for family in FAMILIES}
    for fault in FAULTS:
        for op in fault.ops:
            mine = [case for case in cases[fault.ops] if case.op == op]
            if not any(has_effect(fault, case, seed) for case in mine):
                yield Finding(fault.name, op, "every tensor", 0.0)


def has_effect(fault: Fault, case: CasePlan, seed: int) -> bool:
    inputs = {t.name: t.sample(seed, case.id, "float32") for t in case.tensors}
    params = call_params(case.params)
    for dtype in ("float64", "float32"):
        right = compute(case.op, params, inputs, dtype, {})
        found = compute(case.op, params, inputs, dtype, fault.switches)
        if any(not np.array_equal(found.get(name, np.nan), values, equal_nan=True) for name, values in right.items()):
            return True
    return False
