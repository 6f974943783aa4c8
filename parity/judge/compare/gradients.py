"""Gradients that nobody can have wrong: where a user's reference has none, and those that are always zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.dtypes import as_dtype
from parity.cases.op import GRADIENT
from parity.cases.oracle import program_of
from parity.config.plan import CasePlan
from parity.outcome import CellOutcome, Outcome, Output

Arrays = Mapping[str, NDArray[Any]]


def with_gradients(case: CasePlan, dtype: str, inputs: Arrays, oracle: Arrays, outcome: CellOutcome) -> CellOutcome:
    """The outcome, with zeros for a gradient that it lacks and that does not depend on the inputs, and, of an op with a
    user's reference, with the exact answer where this is not finite and the backend's gradient is.

    At a kink or a singularity a framework chooses a value, and the derivative of a formula has none.
    """
    if outcome.outcome is not Outcome.OK:
        return outcome
    own = {name: exact for name, exact in oracle.items() if name.startswith(GRADIENT)}
    added = {n: exact for n, exact in own.items() if n not in outcome.outputs and n not in outcome.lacking}
    outputs = {n: zeros(oracle[n], dtype) for n in always_zero(case, inputs, added)}
    for name, exact in own.items() if case.brought is not None else ():
        output = outcome.outputs.get(name)
        if output is not None and (changed := undefined_left_out(output, exact)) is not None:
            outputs[name] = changed
    return replace(outcome, outputs={**outcome.outputs, **outputs}) if outputs else outcome


def zeros(exact: NDArray[Any], dtype: str) -> Output:
    """A gradient of zeros."""
    return Output(dtype, exact.shape, as_dtype(np.zeros(exact.shape), dtype))


def always_zero(case: CasePlan, inputs: Arrays, gradients: Arrays) -> list[str]:
    """Those of some gradients that are zero whatever the inputs."""
    if not any(exact.size and not exact.any() for exact in gradients.values()):
        return []
    program = program_of(case.definition, case.params, inputs, gradients=case.gradients, labelled=False)
    constant = {step.index for step in program.steps if step.function is np.zeros_like}
    return [name for name in gradients if program.outputs.get(name) in constant]


def undefined_left_out(output: Output, exact: NDArray[Any]) -> Output | None:
    """A gradient with the exact answer where only that is not finite; None if there is no such element."""
    if output.values is None or output.shape != exact.shape or exact.dtype.kind != "f" or np.isfinite(exact).all():
        return None
    undefined = ~np.isfinite(exact) & np.isfinite(output.values)
    return replace(output, values=np.where(undefined, exact, output.values).astype(output.values.dtype))
