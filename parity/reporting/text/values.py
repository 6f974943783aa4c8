"""The values at the worst element of a comparison, in a line."""

from __future__ import annotations

from parity.judge.compare.verdict import Comparison
from parity.reporting.kinds import CaseReport
from parity.reporting.text.words import digits_of, number


def values_text(row: Comparison, report: CaseReport) -> str:
    """`paddle 163.2 against torch 0.53 at [0, 1], oracle 0.531; rtol 1.3e-06 atol 1e-05, needs rtol 306`."""
    if row.worst_index is None:
        return f"{row.actual} against {row.expected}: {row.message or 'nothing to compare'}"
    digits = digits_of(row.dtype)
    values = ((row.actual, row.actual_value), (row.expected, row.expected_value))
    shown = " against ".join(f"{name} {number(value, digits)}" for name, value in values)
    exact = not row.with_oracle and report.shows_oracle(row)
    oracle = f", oracle {number(row.oracle_value, digits)}" if exact else ""
    at = f"{shown} at {report.location(row)}{oracle}"
    if report.enveloped(row):
        return at
    outside = f"; {row.n_mismatched} of {row.n_elements} outside" if row.n_mismatched else ""
    limits = f"rtol {number(row.rtol)} atol {number(row.atol)}, needs rtol {number(row.required_rtol, 2)}"
    return f"{at}{outside}; {limits}"
