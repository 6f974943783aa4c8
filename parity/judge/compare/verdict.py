"""Verdicts, and the comparison of one tensor that carries one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from msgspec import Struct

from parity.config.plan import ORACLE
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
UNDEFINED = "not compared in "
"""The beginning of the message of a pass if the exact answer has no value in some elements."""
MEASURES = tuple(f.name for f in fields(Metrics) if f.name not in ("n_nonfinite_mismatched", "equal", "expected_rms"))
"""The fields of metrics that a comparison has."""


class ErrorRatios(Struct, frozen=True):
    """The error ratios of the two backends of a comparison, None where they were not measured."""

    actual: float | None
    expected: float | None


UNMEASURED = ErrorRatios(None, None)


class EnvelopeRow(Struct, frozen=True):
    """The error of a careful implementation: root mean square and largest."""

    rms: float
    max: float


class Comparison(Struct, frozen=True, kw_only=True):
    """One tensor of one cell, the backend under test (`actual`) against the baseline or the oracle (`expected`): a row
    of results.json, of the store, and of a cluster's messages.

    The fields of `Metrics` are None if nothing could be measured: not compared, or the structure differs (`message`
    says how). `envelope` is the error that a careful implementation in the working precision reaches (over the tensor),
    `error_ratio` the error of both from the oracle over it, in the tensor or in its worst row, channel or column; both
    are known if the comparison fails or is suspect. `culprit` names those whose ratio is 8 or more. `suspect` marks a
    pass that proves little: the tolerance hides an error ratio of 8 or more (then there is a culprit), zeros would have
    passed too, or no element is finite. `hidden` is the verdict that the former would have under a tight tolerance.
    `known` is the reason why it is accepted. `frontier`: the points (|expected|, |difference|) that decide for every
    tolerance, for `parity judge`. `counted`: the backends of the subject against which it counts
    (`judge/subject.py`), empty if it is only a warning; None if the run judges all. `call`: the number of the call on
    other inputs that it is about, whose tensors are stored; None for the case's own inputs.
    """

    case: str
    dtype: str
    tensor: str
    actual: str
    expected: str
    verdict: Verdict
    culprit: tuple[str, ...]
    suspect: bool
    known: str | None
    n_elements: int | None = None
    n_mismatched: int | None = None
    max_abs_diff: float | None
    max_rel_diff: float | None = None
    max_ulp_diff: int | None = None
    rmse: float | None = None
    cosine: float | None = None
    required_rtol: float | None
    worst_index: list[int] | None
    actual_value: float | None
    expected_value: float | None
    rtol: float
    atol: float
    oracle_value: float | None
    error_ratio: ErrorRatios
    envelope: EnvelopeRow | None = None
    message: str
    frontier: list[tuple[float, float]] | None = None
    hidden: Verdict | None = None
    counted: tuple[str, ...] | None = None
    call: int | None = None

    def __post_init__(self) -> None:
        if self.worst_index is not None and (self.actual_value is None or self.expected_value is None):
            raise ValueError("a worst element without its values")

    @property
    def backend_ratios(self) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
        """The two backends, each with its error ratio."""
        return (self.actual, self.error_ratio.actual), (self.expected, self.error_ratio.expected)

    @property
    def ratios(self) -> dict[str, float]:
        """The error ratios that are known, by backend."""
        return {name: ratio for name, ratio in self.backend_ratios if ratio is not None}

    @property
    def largest_ratio(self) -> float:
        """The largest error ratio that is known, 0 where none is."""
        return max((ratio for ratio in self.ratios.values() if not math.isnan(ratio)), default=0.0)

    @property
    def compared(self) -> bool:
        """Whether its numbers were compared."""
        return self.verdict is not Verdict.NOT_COMPARED

    @property
    def fails(self) -> bool:
        """Whether it differs, accepted or not."""
        return self.verdict.fails

    @property
    def not_stored(self) -> str:
        """Why its tensors are not those that are stored, in older files; empty if they are."""
        later = self.call is None and self.message.endswith(ON_OTHER_INPUTS)
        return f"the difference is {self.message}, and the tensors of the first call are stored" if later else ""

    @property
    def counts(self) -> bool:
        """Whether it is about what the run judges."""
        return self.counted is None or bool(self.counted)

    @property
    def agrees_in_part(self) -> bool:
        """Whether it passes, and the exact answer has no value in some elements."""
        return self.verdict.passes and self.message.startswith(UNDEFINED)

    @property
    def is_of_others(self) -> bool:
        """Whether it is about a backend that the run does not judge."""
        return not self.counts and (bool(self.culprit) or self.with_oracle)

    @property
    def hides(self) -> bool:
        """Whether it passes only because the tolerance is loose."""
        return self.suspect and bool(self.culprit)

    @property
    def tensor_key(self) -> tuple[str, str, str]:
        """Case, dtype and tensor."""
        return self.case, self.dtype, self.tensor

    @property
    def owners(self) -> Sequence[str]:
        """The backends that it belongs to: those against which it counts, else those that exceed the error bound in it,
        else the one under test. What the subject and a baseline that is not judged differ by belongs to nobody."""
        named = self.counted or [name for name in self.culprit if name in (self.actual, self.expected)]
        return named or ([self.actual] if self.counts or self.with_oracle else [])

    @property
    def with_oracle(self) -> bool:
        """Whether the oracle is one of the two backends."""
        return self.expected == ORACLE


def measures(metrics: Metrics | None) -> dict[str, Any]:
    """The fields of a comparison that come from metrics."""
    given: dict[str, Any] = {name: getattr(metrics, name, None) for name in MEASURES}
    return given | {name: None if given[name] is None else list(given[name]) for name in ("worst_index", "frontier")}


def comparison_of(
    case: str,
    dtype: str,
    tensor: str,
    actual: str,
    expected: str,
    verdict: Verdict,
    rtol: float = 0.0,
    atol: float = 0.0,
    *,
    metrics: Metrics | None = None,
    oracle_value: float | None = None,
    error_ratio: ErrorRatios = UNMEASURED,
    envelope: EnvelopeRow | None = None,
    culprit: tuple[str, ...] = (),
    suspect: bool = False,
    message: str = "",
) -> Comparison:
    """A comparison as it is made, before what a run judges and accepts is known."""
    return Comparison(
        case=case,
        dtype=dtype,
        tensor=tensor,
        actual=actual,
        expected=expected,
        verdict=verdict,
        culprit=culprit,
        suspect=suspect,
        known=None,
        rtol=rtol,
        atol=atol,
        oracle_value=oracle_value,
        error_ratio=error_ratio,
        envelope=envelope,
        message=message,
        **measures(metrics),
    )
