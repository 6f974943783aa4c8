"""Inputs on which explanations differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from parity.config.plan import CasePlan


def generic(case: CasePlan, number: int) -> tuple[CasePlan, Mapping[str, NDArray[Any]]]:
    """Other inputs for a case."""
    return case, {plan.name: plan.sample(number + 7919, case.id, "float32") for plan in case.tensors}
