"""What to do about a case, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

from parity.judge.compare.verdict import Verdict
from parity.reporting.blocks import Block, CodeLines, Sentence
from parity.reporting.kinds import report_of
from parity.reporting.results.rows import FINDINGS
from parity.reporting.text.reasons import CaseRows, failing, known_entries, tolerance_entry


def steps(rows: CaseRows, most: int | None = None) -> Iterator[Block]:
    """What to do about a case, with lines to paste; at most so many entries of `known`."""
    open_rows = [row for row in failing(rows.comparisons) if row.known is None and row.counts]
    rounding = [row for row in open_rows if row.verdict == Verdict.ROUNDING]
    if rounding:
        yield Sentence("rounding: set the tolerance that this case needs, or run with --fail-on degraded:")
        yield CodeLines([tolerance_entry(rounding)])
    findings = [row for row in open_rows if row.verdict in FINDINGS]
    yield from map(Sentence, report_of(rows.case.op).advice(findings))
    if open_rows and (entries := list(known_entries(rows))):
        yield Sentence("to accept it: parity accept, or add this to known: in the config, with your reason:")
        yield CodeLines(entries[:most])
