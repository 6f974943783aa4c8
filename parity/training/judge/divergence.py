"""Where a backend first diverges in a training: the first step and stage beyond the error bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.judge.diagnose.causes import Cause
from parity.training.judge.curves import RunCurves
from parity.training.judge.inquiry import StageFault

UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class FirstDivergence:
    """The first step and stage that exceed the error bound; `stage` is None if only a curve exceeds it."""

    step: int
    stage: str | None
    tensor: str
    ratio: float
    fault: StageFault | None = None

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

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes that explain it; empty if unexplained."""
        return () if self.fault is None else self.fault.causes

    @property
    def diagnosis(self) -> str:
        """The id of its first cause."""
        return self.causes[0].id if self.causes else UNEXPLAINED


def first_divergence(faults: Sequence[StageFault], curve: RunCurves | None, *, own: bool) -> FirstDivergence | None:
    """Where a backend first diverges: in a stage, else in a curve, which is compared with the oracle's if `own`."""
    if faults:
        first = faults[0]
        return FirstDivergence(first.first, first.stage, first.tensors[0], first.ratio, first)
    outside = None if curve is None else (curve.own if own else curve.ratio).first_outside()
    return None if outside is None else FirstDivergence(outside[0], None, *outside[1:])
