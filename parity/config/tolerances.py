"""Tolerances by dtype and tensor: the rules, and the table of defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Tolerance:
    """`|actual - expected| <= atol + rtol * |expected|`."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class ToleranceRule:
    """Sets rtol, atol or both for some dtypes and tensors (None: all; tensors may be globs)."""

    dtype: str | None = None
    tensor: str | None = None
    rtol: float | None = None
    atol: float | None = None

    def applies_to(self, dtype: str, tensor: str) -> bool:
        """Whether this rule applies to `tensor` in `dtype`."""
        return self.dtype in (None, dtype) and (self.tensor is None or fnmatchcase(tensor, self.tensor))


@dataclass(frozen=True)
class ToleranceTable:
    """Rules from general to specific; the last one that applies wins."""

    rules: tuple[ToleranceRule, ...]

    def extended(self, rules: Sequence[ToleranceRule]) -> ToleranceTable:
        """This table with more specific rules appended."""
        return ToleranceTable(self.rules + tuple(rules))

    def lookup(self, dtype: str, tensor: str) -> Tolerance:
        """The tolerance for `tensor` in `dtype`; the default table has a row for every dtype."""
        rtol = atol = None
        for rule in self.rules:
            if rule.applies_to(dtype, tensor):
                rtol = rule.rtol if rule.rtol is not None else rtol
                atol = rule.atol if rule.atol is not None else atol
        if rtol is None or atol is None:
            raise LookupError(f"no tolerance for {tensor} in {dtype}")
        return Tolerance(rtol, atol)


DEFAULT_TOLERANCES = ToleranceTable(
    (
        ToleranceRule(dtype="float16", rtol=1e-3, atol=1e-5),
        ToleranceRule(dtype="bfloat16", rtol=1.6e-2, atol=1e-5),
        ToleranceRule(dtype="float32", rtol=1.3e-6, atol=1e-5),
        ToleranceRule(dtype="float64", rtol=1e-7, atol=1e-7),
        ToleranceRule(dtype="float16", tensor="grad.*", rtol=1e-2, atol=1e-3),
        ToleranceRule(dtype="bfloat16", tensor="grad.*", rtol=5e-2, atol=1e-3),
        ToleranceRule(dtype="float32", tensor="grad.*", rtol=1e-4, atol=1e-5),
        ToleranceRule(dtype="float64", tensor="grad.*", rtol=1e-7, atol=1e-7),
    )
)
