"""Verdicts, and the comparison of one tensor that carries one."""

from __future__ import annotations

from dataclasses import dataclass

from parity.judge.compare.metrics import Metrics
from parity.outcome import Judgement


class Verdict(Judgement):
    """Whether tensors agree, worst last."""

    EQUAL = "equal"
    CLOSE = "close"
    NOT_COMPARED = "not-compared"
    ROUNDING = "rounding"
    CHOICE = "choice"
    DEGRADED = "degraded"
    UNSTABLE = "unstable"
    SEMANTIC = "semantic"
    NONFINITE = "nonfinite"
    STRUCTURE = "structure"

    @property
    def passes(self) -> bool:
        """Whether the tensors agree."""
        return self in (Verdict.EQUAL, Verdict.CLOSE)

    @property
    def fails(self) -> bool:
        """Whether the tensors were compared and disagree."""
        return not self.passes and self is not Verdict.NOT_COMPARED


ON_OTHER_INPUTS = "on other inputs"
"""The end of the message of a comparison of a later call."""


@dataclass(frozen=True)
class Comparison:
    """One tensor of one cell, the backend under test (`actual`) against the baseline or the oracle (`expected`).

    `metrics` is None if nothing could be measured: not compared, or the structure differs (`message` says how).
    `envelope` is the error that a careful implementation in the working precision reaches (root mean square and maximum
    over the tensor), `error_ratio` (actual, expected) the error of both from the oracle over it, in the tensor or in
    its worst row, channel or column; both are known if the comparison fails or is suspect. `culprit` names those whose
    ratio is 8 or more. `suspect` marks a pass that proves little: the tolerance hides an error ratio of 8 or more (then
    there is a culprit), zeros would have passed too, or no element is finite. `hidden` is the verdict that the former
    would have under a tight tolerance. `known` is the reason why it is accepted. `counted` are the backends against
    which it counts in a run that judges some of its backends only (`judge/subject.py`), None where it judges all.
    `call` is the number of the call on other inputs that it is about, None for the case's own inputs.
    """

    case: str
    dtype: str
    tensor: str
    actual: str
    expected: str
    verdict: Verdict
    rtol: float
    atol: float
    metrics: Metrics | None = None
    oracle_value: float | None = None
    error_ratio: tuple[float | None, float | None] = (None, None)
    envelope: tuple[float, float] | None = None
    culprit: tuple[str, ...] = ()
    suspect: bool = False
    message: str = ""
    known: str | None = None
    hidden: Verdict | None = None
    counted: tuple[str, ...] | None = None
    call: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it is about what the run judges."""
        return self.counted is None or bool(self.counted)
