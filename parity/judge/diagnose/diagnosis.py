"""One cause, for one backend in one cell, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Diagnosis:
    """One cause, for one backend in one cell.

    `id` is one of `parity.diagnoses`. `tensors` are those that the cause changes. Residuals are error ratios (worst of
    `tensors`): `residual_before` with every other cause, `residual_after` with this one too. `explained`: the residual
    lies within rounding. `evidence` has the parameters of the cause and what else was tried, as JSON values.
    """

    case: str
    dtype: str
    backend: str
    id: str
    title: str
    tensors: tuple[str, ...]
    explained: bool
    residual_before: float | None = None
    residual_after: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
