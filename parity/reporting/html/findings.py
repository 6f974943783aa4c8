"""The report's findings, case by case: values, reasons, pictures, causes, and what to do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from parity.diagnoses import Entry, catalogue
from parity.engine.inputs import slug
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.blocks import CodeLines, Folded, Grid, GridColumn, Sentence
from parity.reporting.blocks.html import blocks_html
from parity.reporting.html.pictures import Gallery
from parity.reporting.kinds import Anchors, CaseReport, report_of
from parity.reporting.plots.figures import residuals
from parity.reporting.results.cells import CellResult
from parity.reporting.results.rows import CaseRow, Results
from parity.reporting.text.cell_text import scripts
from parity.reporting.text.evidence import HARMLESS, evidence_text, residual_text
from parity.reporting.text.reasons import CaseRows, aligned, case_rows
from parity.reporting.text.steps import steps
from parity.reporting.text.words import digits_of, factor, grouped, listed, number, unique

MAX_COMPARISONS = 10
MAX_ALIKE = 8
MAX_EVIDENCE = 8
MAX_ENTRIES = 6
INPUTS = [GridColumn(title) for title in ("input", "shape", "drawn from")]


class FindingRenderer:
    """Renders the findings of one run; what several cells of a case share is looked up once."""

    def __init__(self, results: Results, run_dir: Path, links: Anchors) -> None:
        self.results = results
        self.run_dir = run_dir
        self.gallery = Gallery(results, run_dir)
        self.links = links
        self._cases = case_rows(results)
        self._tensors: dict[tuple[str, str], CaseRows] = {}

    def tensor_rows(self, cell: CellResult, tensor: str) -> CaseRows:
        """The rows of a tensor in all dtypes, on which its reasons depend."""
        key = (cell.id, tensor)
        if key not in self._tensors:
            rows = [row for row in self._cases[cell.id].every if row.tensor == tensor]
            self._tensors[key] = CaseRows(cell.case, rows, (), rows)
        return self._tensors[key]

    def finding(self, cell: CellResult, n_pictures: int) -> dict[str, Any]:
        """Everything shown of a cell, with pictures of so many tensors; `training` is the anchor of its curves."""
        rows = [*cell.failing, *cell.hidden]
        n_pictures = n_pictures if report_of(cell.op).pictured else 0
        shown = cell.tensors[:n_pictures]
        pictures = [self.gallery.picture(cell, name, self.ratios(cell, name), unit_of(rows, name)) for name in shown]
        return {
            "cell": cell,
            "excess": factor(cell.excess),
            "ratio": "" if cell.ratio is None else factor(cell.ratio),
            "comparisons": by_tensor(rows[:MAX_COMPARISONS], report_of(cell.op)),
            "n_hidden": max(len(rows) - MAX_COMPARISONS, 0),
            "whys": list(self.whys(cell, rows, {picture.tensor for picture in pictures if picture.histogram})),
            "pictures": pictures,
            "not_pictured": cell.tensors[n_pictures:] if n_pictures else (),
            "causes": [cause(row) for row in cell.diagnoses],
            "accepted": list(self.accepted(cell)),
            "training": self.links.get((cell.id, cell.dtype), ""),
        }

    def whys(
        self, cell: CellResult, rows: Sequence[Comparison], pictured: Collection[str]
    ) -> Iterator[tuple[str, str, str, str]]:
        """The reason for each verdict: the worst tensor that has it, the reason in words, the ratios of every backend
        where no picture shows them, and the other tensors of which the same is true.
        """
        worst = {row.tensor: row for row in reversed(rows)}
        tensors = dict.fromkeys(row.tensor for row in rows)
        alike = grouped(((worst[tensor].verdict, worst[tensor].suspect), tensor) for tensor in tensors)
        for first, *others in alike.values():
            ratios = self.ratios(cell, first).items() if first not in pictured else ()
            known = " · ".join(f"{backend} {factor(ratio)}" for backend, ratio in ratios)
            same = [with_ratio(name, self.ratios(cell, name).get(cell.backend)) for name in others[:MAX_ALIKE]]
            same += [f"{len(others) - MAX_ALIKE} more"] if len(others) > MAX_ALIKE else []
            yield first, report_of(cell.op).reason(worst[first], self.tensor_rows(cell, first)), known, listed(same)

    def ratios(self, cell: CellResult, tensor: str) -> dict[str, float]:
        """The error ratio of every backend for a tensor."""
        return self.tensor_rows(cell, tensor).ratios(cell.dtype, tensor)

    def accepted(self, cell: CellResult) -> Iterator[tuple[str, str]]:
        """Each reason for which the cell is accepted, and until when."""
        for text in cell.reasons:
            until = [row.until for row in self.results.known if row.reason == text and row.until]
            yield text, min(until, default="")

    def command(self, name: str, case_id: str) -> str:
        """A command of parity on a case, as a shell takes it."""
        return " ".join(["parity", name, shlex.quote(str(self.run_dir)), shlex.quote(case_id)])

    def head(self, case: CaseRow) -> dict[str, Any]:
        """What is shown once for all cells of a case: the computation, its inputs, and what to do."""
        return {
            "call": report_of(case.op).call(case),
            "source": f"{case.source.file}:{case.source.line}",
            "aligned": aligned(self._cases[case.id].comparisons),
            "inputs": blocks_html([inputs(case)], "How the inputs are drawn"),
            "steps": blocks_html([self.steps(case)]),
        }

    def steps(self, case: CaseRow) -> Folded:
        """What to do about a case."""
        commands = [self.command(name, case.id) for name in (*scripts(case), "explain")]
        what = "a script without parity, and everything" if len(commands) > 1 else "everything"
        blocks = [*steps(self._cases[case.id], MAX_ENTRIES), Sentence(f"{what} that is known:"), CodeLines(commands)]
        return Folded("What to do", "", blocks, kind="steps")


def inputs(case: CaseRow) -> Folded:
    """How the inputs of a case are drawn."""
    shapes = ", ".join(f"{name} {item.shape}" for name, item in case.inputs.items())
    rows = [(name, str(item.shape), item.draw) for name, item in case.inputs.items()]
    return Folded("Inputs", shapes, [Grid(INPUTS, rows)], kind="inputs")


def case_anchors(cells: Sequence[CellResult]) -> dict[str, str]:
    """`case-` and the slug of each case's id, made unique in the page."""
    taken = {cell.anchor for cell in cells}
    return {case_id: unique(f"case-{slug(case_id)}", taken) for case_id in dict.fromkeys(cell.id for cell in cells)}


def by_tensor(rows: Iterable[Comparison], report: CaseReport) -> list[tuple[str, list[dict[str, str]]]]:
    """The comparisons of each tensor."""
    return list(grouped((row.tensor, comparison(row, report)) for row in rows).items())


def comparison(row: Comparison, report: CaseReport) -> dict[str, str]:
    """A comparison as a row of a finding's table, with its three values at the worst element.

    The actual value is in two parts: the digits that it shares with the exact answer, and those in which it differs.
    """
    compared, digits = row.worst_index is not None, digits_of(row.dtype)
    numbers = (row.actual_value, row.expected_value, row.oracle_value)
    actual, expected, oracle = (signed(number, digits) if compared else "" for number in numbers)
    by_oracle = row.with_oracle or report.shows_oracle(row)
    n_shared = common(actual, oracle if by_oracle else expected)
    judged = report.enveloped(row)
    return {
        "against": row.expected,
        "verdict": row.verdict,
        "place": report.location(row) if compared else "",
        "shared": actual[:n_shared],
        "differing": actual[n_shared:],
        "expected": expected,
        "oracle": oracle if not row.with_oracle and by_oracle else "",
        "outside": "" if row.n_mismatched is None else f"{row.n_mismatched} of {row.n_elements}",
        "allowed": f"{ERROR_BOUND:g} envelopes" if judged else f"{row.rtol:.2g}, {row.atol:.2g}",
        "needs": "" if judged or row.required_rtol is None else factor(row.required_rtol),
        "message": row.message,
    }


def common(one: str, other: str) -> int:
    """How many leading digits two numbers share; none where one of them is ten times larger."""
    if magnitude(one) != magnitude(other):
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def magnitude(text: str) -> tuple[int, str]:
    """Where a number has its point, and its exponent."""
    mantissa, _, exponent = text.partition("e")
    return len(mantissa.partition(".")[0]), exponent


def signed(value: float | None, digits: int) -> str:
    """A value with room for its sign, so that the digits of several stand below each other."""
    text = number(value, digits)
    return text if text.startswith("-") else f" {text}"


def with_ratio(tensor: str, ratio: float | None) -> str:
    """`grad.x (4.2e+04)`."""
    return tensor if ratio is None else f"{tensor} ({factor(ratio)})"


def unit_of(rows: Iterable[Comparison], tensor: str) -> float | None:
    """The envelope, root mean square, where the run kept it."""
    for row in rows:
        if row.tensor == tensor and row.envelope is not None and 0 < row.envelope.rms < math.inf:
            return row.envelope.rms
    return None


def cause(row: Diagnosis) -> dict[str, Any]:
    """A diagnosis with what it leaves of the error, and its evidence; `listed` where the glossary has it."""
    before, after = row.residual_before, row.residual_after
    bars = None
    if before is not None and after is not None and row.id not in (*HARMLESS, "unexplained"):
        bars = None if math.isnan(before + after) else residuals(before, after)
    evidence = [text for key, item in row.evidence.items() if (text := evidence_text(str(key), item))]
    return {
        "id": row.id,
        "listed": row.id in catalogue(),
        "title": row.title,
        "tensors": ", ".join(row.tensors),
        "residual": residual_text(row),
        "bars": bars,
        "evidence": evidence[:MAX_EVIDENCE],
    }


def glossary(causes: Iterable[str]) -> list[Entry]:
    """What the catalogue says about the causes that are named, in its own order."""
    named = set(causes)
    return [entry for entry in catalogue().values() if entry.id in named]
