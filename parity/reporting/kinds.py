"""How reports show cases of each kind: ops, and what other rooms compute, looked up by the case's op."""

# ruff: noqa: ARG002 - what an op does not need, another kind of case does

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.blocks import Chapter, Listed
from parity.reporting.diff.compared_run import ComparedRun
from parity.reporting.results.cells import CellResult
from parity.reporting.results.measures import CaseMeasures, measures_of
from parity.reporting.results.rows import CaseRow, Results
from parity.reporting.text.reasons import ADVICE, REASONS, CaseRows

Anchors = Mapping[tuple[str, str], str]
"""Anchors of answers by case and dtype."""


class CaseReport(CaseMeasures):
    """How reports show the cases of an op; other kinds of cases override what differs."""

    no_script = ""
    """Why there can be no script of a case; empty if there can."""
    pictured = True
    """Whether a finding has pictures of its tensors."""
    legend = ""
    """The console's legend for the column of tolerances."""

    def call(self, case: CaseRow) -> str:
        """What a case computes: `layer_norm(eps=1e-05)`."""
        return f"{case.op}({', '.join(f'{name}={value}' for name, value in case.params.items())})"

    def recipe(self, case: CaseRow) -> list[tuple[str, str]]:
        """The same in labelled lines."""
        return [("op", self.call(case))]

    def enveloped(self, row: Comparison) -> bool:
        """Whether a comparison is judged by its envelope and by no tolerance."""
        return False

    def location(self, row: Comparison) -> str:
        """The location of a comparison's worst element."""
        return str(row.worst_index)

    def shows_oracle(self, row: Comparison) -> bool:
        """Whether the oracle's value belongs beside the values of a comparison."""
        return True

    def reason(self, row: Comparison, rows: CaseRows) -> str:
        """Why a comparison has its verdict, in its own numbers."""
        return REASONS[row.verdict](row, rows)

    def advice(self, findings: Sequence[Comparison]) -> Iterator[str]:
        """Where to look next, by the comparisons that fail and are not accepted."""
        verdicts = dict.fromkeys(row.verdict for row in findings)
        yield from (f"{verdict}: {ADVICE[verdict]}" for verdict in verdicts)

    def part(self, row: Comparison, diagnosis: Diagnosis | None) -> str:
        """The part of the compared tensor that the values belong to, if the diagnosis names one."""
        return ""

    def since(self, diagnosis: Diagnosis | None) -> str:
        """Since when a backend differs, if its diagnosis says so."""
        return ""

    def drifts(self, row: Comparison) -> bool:
        """Whether a suspect pass is a curve that leaves its ensemble."""
        return False

    def lead(self, results: Results) -> list[Listed]:
        """The sentences right after the verdict."""
        return []

    def headline(self, cell: CellResult) -> str:
        """The beginning of a cell's headline, or nothing."""
        return ""

    def details(self, cell: CellResult) -> Iterator[str]:
        """The lines about a cell before its tensors."""
        yield from ()

    def chapter(self, results: Results) -> Chapter | None:
        """What the reports say about the cases of this kind beside their tensors, if anything."""
        return None

    def diff_notes(self, a: ComparedRun, b: ComparedRun) -> Iterator[str]:
        """How the cases of this kind changed between two runs."""
        yield from ()


def report_of(op: str) -> CaseReport:
    """The report of the cases of this op."""
    return cast(CaseReport, measures_of(op))


def reports_of(results: Results) -> list[CaseReport]:
    """The reports of all kinds of cases in a run."""
    return list(dict.fromkeys(report_of(case.op) for case in results.cases))


def leads_of(results: Results) -> list[Listed]:
    """The sentences right after the verdict."""
    return [said for report in reports_of(results) for said in report.lead(results)]


def chapters_of(results: Results) -> list[Chapter]:
    """The chapters of a run that say anything."""
    chapters = (report.chapter(results) for report in reports_of(results))
    return [chapter for chapter in chapters if chapter is not None and chapter.answers]


def anchors_of(chapters: Sequence[Chapter]) -> Anchors:
    """The first answer about each case and dtype."""
    answers = [answer for chapter in reversed(chapters) for answer in reversed(chapter.answers)]
    return {(answer.case, answer.dtype): answer.anchor for answer in answers}
