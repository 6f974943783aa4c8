"""What a kernel really does on a case, without the judge, and what other rules of comparison say of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms import FORMS, run
from benchmarks.judge.measure import DETECTABLE, Errors, dynamo_same, error_of, over
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import UNIT_ROUNDOFF
from parity.judge.compare.cell import consult_oracle

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Truth:
    """The exact outputs of a case, and what every healthy form returns, by dtype and form."""

    exact: Tensors
    healthy: Mapping[str, Mapping[str, Tensors]]

    @classmethod
    def of(cls, case: CasePlan, inputs: Tensors) -> Truth:
        """Consult the oracle and run all forms."""
        healthy = {
            d: {f.__name__: run(f, case.op, case.params, inputs, d) for f in FORMS[case.op]} for d in case.dtypes
        }
        return cls(consult_oracle(case, inputs), healthy)

    @property
    def finite(self) -> bool:
        """Whether everything is."""
        every = [self.exact, *(outputs for forms in self.healthy.values() for outputs in forms.values())]
        return all(np.isfinite(values).all() for outputs in every for values in outputs.values())

    @cached_property
    def yardsticks(self) -> Mapping[str, Mapping[str, Errors]]:
        """The largest error of a healthy form, at least a unit roundoff, by dtype and tensor."""
        return {d: {n: yardstick(n, self.exact, forms.values(), d) for n in self.exact} for d, forms in self.healthy.items()}  # fmt: skip

    def reference(self, dtype: str) -> Tensors:
        """The plainest form's outputs: another implementation in the same dtype."""
        return next(iter(self.healthy[dtype].values()))


def yardstick(name: str, exact: Tensors, healthy: Iterable[Tensors], dtype: str) -> Errors:
    """The largest finite error of healthy forms in a tensor, at least a unit roundoff of the exact values."""
    found = [error_of(outputs[name], exact[name]) for outputs in healthy]
    size, u = error_of(np.zeros_like(exact[name]), exact[name]), UNIT_ROUNDOFF[dtype]
    every = [Errors(u * size.rms, u * size.max), *found]
    return Errors(max(e.rms for e in every if math.isfinite(e.rms)), max(e.max for e in every if math.isfinite(e.max)))


def effect(outputs: Tensors, truth: Truth, dtype: str) -> float:
    """The largest error of a kernel over that of healthy forms."""
    units = truth.yardsticks[dtype]
    return max(over(error_of(outputs.get(n), exact), units[n]) for n, exact in truth.exact.items())


def detectable(found: float) -> bool:
    """Whether an effect is one that rounding does not make."""
    return found >= DETECTABLE


ASSERT_CLOSE = {"bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
"""rtol and atol of torch.testing.assert_close."""


def assert_close(outputs: Tensors, truth: Truth, dtype: str) -> bool:
    """torch.testing.assert_close against the reference in the same dtype."""
    rtol, atol = ASSERT_CLOSE[dtype]
    return all(np.allclose(outputs[n], r, rtol, atol) for n, r in truth.reference(dtype).items())


def dynamo(outputs: Tensors, truth: Truth, dtype: str) -> bool:
    """torch._dynamo.utils.same: the error from float64 at most 2 or 3 times the reference's."""
    return all(dynamo_same(r, outputs[n], truth.exact[n]) for n, r in truth.reference(dtype).items())


def flash_attention(outputs: Tensors, truth: Truth, dtype: str) -> bool:
    """tests/test_flash_attn.py: the largest error at most twice that of the reference in the same dtype."""
    reference = truth.reference(dtype)
    return all(largest(outputs[n], exact) <= 2.0 * largest(reference[n], exact) for n, exact in truth.exact.items())


def largest(values: NDArray[Any], exact: NDArray[Any]) -> float:
    """The largest error; inf where it is not a number."""
    found = float(np.max(np.abs(values.astype(np.longdouble) - exact), initial=0.0))
    return found if math.isfinite(found) else math.inf


RULES = {"assert_close": assert_close, "dynamo": dynamo, "2x": flash_attention}
"""Other rules: whether they let outputs pass."""
