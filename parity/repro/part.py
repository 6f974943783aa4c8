"""The part of a tensor whose error is largest against a careful implementation's: a row, a channel, an element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.op import Op
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.bound.envelope import Envelope, EnvelopeRuns, work_dtype
from parity.judge.bound.groups import group_means
from parity.judge.case import Cell
from parity.judge.compare.cell import consult_oracle

Array = NDArray[Any]
Part = tuple[int | None, ...]
"""An index along each axis; None for all of it."""


class CarefulRuns:
    """A cell's reference runs, repeated: a run keeps the size of a tensor's envelope, not that of its parts."""

    def __init__(self, case_id: str, op: Op, params: Any, dtype: str, inputs: Mapping[str, Array]) -> None:
        self._dtype, self._inputs = dtype, inputs
        gradients = any(op.input(name) is None for name in inputs)
        written = WrittenAt("", 0)
        self._case = CasePlan(case_id, op.name, params, (dtype,), (), DEFAULT_TOLERANCES, written, gradients)

    @cached_property
    def _envelopes(self) -> Mapping[str, Envelope]:
        oracle = consult_oracle(self._case, self._inputs)
        given = self._case, self._dtype, self._inputs, oracle
        return Cell(*given).with_terms(EnvelopeRuns(*given).envelopes())

    def worst(self, tensor: str, values: Array, exact: Array) -> tuple[Part, float]:
        """The part with the largest error ratio, and that ratio; raises what the reference raises for bad inputs."""
        with np.errstate(invalid="ignore"):
            errors = np.abs(np.subtract(values, exact, dtype=work_dtype(self._dtype, exact)))
        errors, envelope = np.where(np.isfinite(errors), errors, 0), self._envelopes[tensor]
        part, ratio = worst_part(errors, envelope)
        alone = envelope.own_ratio(errors)
        return (worst_element(errors, envelope), alone) if alone > ratio else (part, ratio)


def worst_element(errors: Array, envelope: Envelope) -> Part:
    """The element with the largest ratio to its own envelope (`Envelope.own_ratio`)."""
    assert envelope.own is not None  # noqa: S101 - else no element has a ratio of its own
    return tuple(map(int, np.unravel_index(int(np.argmax(errors / envelope.own)), errors.shape)))


def worst_part(errors: Array, envelope: Envelope) -> tuple[Part, float]:
    """The group with the largest error ratio (`Envelope.local_ratio`), and that ratio; errors are finite."""
    if not envelope.inflation:
        return (), 0.0
    squares = np.square(np.divide(errors, envelope.scale, out=np.zeros(errors.shape), where=errors > 0))
    kinds = [*envelope.inflation, ()]
    means = [(np.sqrt(group_means(squares, axes)), axes) for axes in kinds]
    ratios = [
        float(sizes.max(initial=0.0) / level) for (sizes, _), level in zip(means, envelope.levels[1:], strict=True)
    ]
    sizes, axes = means[int(np.argmax(ratios))]
    index = np.unravel_index(int(sizes.argmax()), sizes.shape)
    return tuple(None if axis in axes else int(i) for axis, i in enumerate(index)), max(ratios)
