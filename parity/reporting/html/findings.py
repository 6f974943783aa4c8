"""The report's findings, case by case: values, reasons, pictures, causes, and what to do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from markupsafe import Markup

from parity.engine.inputs import slug
from parity.judge.bound.envelope import OFF
from parity.judge.catalogue.entries import CATALOGUE, Entry
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.html.figures import residuals
from parity.reporting.html.pictures import Gallery, Picture
from parity.reporting.kinds import CaseReport, anchors_of, report_of
from parity.reporting.results.cells import CellResult
from parity.reporting.results.rows import FINDINGS, CaseRow, ComparisonRow, Results
from parity.reporting.text.cell_text import scripts
from parity.reporting.text.evidence import HARMLESS, evidence_text, residual_text
from parity.reporting.text.reasons import CaseRows, aligned, case_rows, failing, known_entries, tolerance_entry
from parity.reporting.text.words import digits_of, factor, listed, number, unique

MAX_COMPARISONS = 10
MAX_ALIKE = 8
MAX_EVIDENCE = 8
MAX_ENTRIES = 6


@dataclass(frozen=True)
class Value:
    """A comparison with its three values at the worst place.

    The actual value is in two parts: the digits that it shares with the exact answer, and those in which it differs.
    """

    expected: str
    verdict: str
    place: str
    shared: str
    differing: str
    expected_value: str
    oracle_value: str
    outside: str
    allowed: str
    needs: str
    message: str


@dataclass(frozen=True)
class Why:
    """The reason for a verdict in words, of the worst tensor that has it; `ratios` are those of every side, where no
    picture shows them. `others` are the tensors of which the same is true, each with its error ratio.
    """

    tensor: str
    text: str
    ratios: str
    others: str


@dataclass(frozen=True)
class ExplainedCause:
    """A diagnosis with what it leaves of the error, and its evidence; `listed` where the glossary has it."""

    id: str
    listed: bool
    title: str
    tensors: str
    residual: str
    bars: Markup | None
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Accepted:
    """A reason of the ledger, with the day until which it holds."""

    reason: str
    until: str


@dataclass(frozen=True)
class Finding:
    """A cell with all that is told of it; `training` is the anchor of its curves."""

    cell: CellResult
    excess: str
    ratio: str
    values: tuple[tuple[str, tuple[Value, ...]], ...]
    n_hidden: int
    whys: tuple[Why, ...]
    pictures: tuple[Picture, ...]
    not_pictured: tuple[str, ...]
    causes: tuple[ExplainedCause, ...]
    accepted: tuple[Accepted, ...]
    training: str = ""


@dataclass(frozen=True)
class NextStep:
    """What may be done: a sentence, and lines to paste."""

    text: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseHead:
    """A case: what was computed, from what, and what to do about it."""

    id: str
    anchor: str
    call: str
    source: str
    inputs: tuple[tuple[str, str, str], ...]
    aligned: str
    commands: tuple[str, ...]
    steps: tuple[NextStep, ...]


class FindingRenderer:
    """Renders the findings of one run; what several cells of a case share is looked up once."""

    def __init__(self, results: Results, run_dir: Path) -> None:
        self.results = results
        self.run_dir = run_dir
        self.gallery = Gallery(results, run_dir)
        self.links = anchors_of(results)
        self._cases = case_rows(results)
        self._tensors: dict[tuple[str, str], CaseRows] = {}

    def tensor_rows(self, cell: CellResult, tensor: str) -> CaseRows:
        """What the run says about a tensor in all dtypes, which is what its reasons rest on."""
        key = (cell.id, tensor)
        if key not in self._tensors:
            rows = [row for row in self._cases[cell.id].every if row.tensor == tensor]
            self._tensors[key] = CaseRows(cell.case, rows, (), rows)
        return self._tensors[key]

    def finding(self, cell: CellResult, n_pictures: int) -> Finding:
        """All that is told of a cell, with pictures of so many tensors."""
        rows = [*cell.failing, *cell.hidden]
        n_pictures = n_pictures if cell.report.pictured else 0
        shown = cell.tensors[:n_pictures]
        pictures = [self.gallery.picture(cell, name, self.ratios(cell, name), unit_of(rows, name)) for name in shown]
        return Finding(
            cell=cell,
            excess=factor(cell.excess),
            ratio="" if cell.ratio is None else factor(cell.ratio),
            values=tuple(by_tensor(rows[:MAX_COMPARISONS], cell.report)),
            n_hidden=max(len(rows) - MAX_COMPARISONS, 0),
            whys=tuple(self.whys(cell, rows, {picture.tensor for picture in pictures if picture.histogram})),
            pictures=tuple(pictures),
            not_pictured=cell.tensors[n_pictures:] if n_pictures else (),
            causes=tuple(cause(row) for row in cell.diagnoses),
            accepted=tuple(self.accepted(cell)),
            training=self.links.get((cell.id, cell.dtype), ""),
        )

    def whys(self, cell: CellResult, rows: Sequence[ComparisonRow], pictured: Collection[str]) -> Iterator[Why]:
        """The reason for each verdict, of the worst tensor that has it."""
        worst: dict[str, ComparisonRow] = {}
        for row in rows:
            worst.setdefault(row.tensor, row)
        alike: dict[tuple[str, bool], list[str]] = {}
        for tensor, row in worst.items():
            alike.setdefault((row.verdict, row.suspect), []).append(tensor)
        for first, *others in alike.values():
            sides = self.ratios(cell, first).items() if first not in pictured else ()
            known = " · ".join(f"{side} {factor(ratio)}" for side, ratio in sides)
            same = [with_ratio(name, self.ratios(cell, name).get(cell.backend)) for name in others[:MAX_ALIKE]]
            same += [f"{len(others) - MAX_ALIKE} more"] if len(others) > MAX_ALIKE else []
            yield Why(first, cell.report.reason(worst[first], self.tensor_rows(cell, first)), known, listed(same))

    def ratios(self, cell: CellResult, tensor: str) -> dict[str, float]:
        """The error ratio of every side for a tensor."""
        return self.tensor_rows(cell, tensor).ratios(cell.dtype, tensor)

    def accepted(self, cell: CellResult) -> Iterator[Accepted]:
        """Why the cell is accepted, and until when."""
        for text in cell.reasons:
            until = [row.until for row in self.results.known if row.reason == text and row.until]
            yield Accepted(text, min(until, default=""))

    def command(self, name: str, case_id: str) -> str:
        """A command of parity on a case, as a shell takes it."""
        return " ".join(["parity", name, shlex.quote(str(self.run_dir)), shlex.quote(case_id)])

    def head(self, case: CaseRow, anchor: str) -> CaseHead:
        """What is told of a case once for all of its cells."""
        rows = self._cases[case.id]
        inputs = [(name, str(item.shape), item.draw) for name, item in case.inputs.items()]
        return CaseHead(
            id=case.id,
            anchor=anchor,
            call=report_of(case.op).call(case),
            source=f"{case.source.file}:{case.source.line}",
            inputs=tuple(inputs),
            aligned=aligned(rows.comparisons),
            commands=tuple(self.command(name, case.id) for name in (*scripts(case), "explain")),
            steps=tuple(steps(rows)),
        )


def case_anchors(found: Iterable[CellResult]) -> dict[str, str]:
    """`case-` and the slug of each case's id, made unique in the page."""
    found = list(found)
    taken = {cell.anchor for cell in found}
    return {case_id: unique(f"case-{slug(case_id)}", taken) for case_id in dict.fromkeys(cell.id for cell in found)}


def by_tensor(rows: Iterable[ComparisonRow], report: CaseReport) -> Iterator[tuple[str, tuple[Value, ...]]]:
    """The comparisons of each tensor."""
    tensors: dict[str, list[Value]] = {}
    for row in rows:
        tensors.setdefault(row.tensor, []).append(value(row, report))
    yield from ((tensor, tuple(values)) for tensor, values in tensors.items())


def value(row: ComparisonRow, report: CaseReport) -> Value:
    """A comparison as a row of a finding's table."""
    compared, digits = row.worst_index is not None, digits_of(row.dtype)
    numbers = (row.actual_value, row.expected_value, row.oracle_value)
    actual, expected, oracle = (signed(number, digits) if compared else "" for number in numbers)
    by_oracle = row.with_oracle or report.shows_oracle(row)
    n_shared = common(actual, oracle if by_oracle else expected)
    judged = report.enveloped(row)
    return Value(
        expected=row.expected,
        verdict=row.verdict,
        place=report.place(row) if compared else "",
        shared=actual[:n_shared],
        differing=actual[n_shared:],
        expected_value=expected,
        oracle_value=oracle if not row.with_oracle and by_oracle else "",
        outside="" if row.n_mismatched is None else f"{row.n_mismatched} of {row.n_elements}",
        allowed=f"{OFF:g} envelopes" if judged else f"{row.rtol:.2g}, {row.atol:.2g}",
        needs="" if judged or row.required_rtol is None else factor(row.required_rtol),
        message=row.message,
    )


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


def unit_of(rows: Iterable[ComparisonRow], tensor: str) -> float | None:
    """The error of careful code, root mean square, where the run kept it."""
    for row in rows:
        if row.tensor == tensor and row.envelope is not None and 0 < row.envelope.rms < math.inf:
            return row.envelope.rms
    return None


def cause(row: Diagnosis) -> ExplainedCause:
    """A diagnosis."""
    before, after = row.residual_before, row.residual_after
    bars = None
    if before is not None and after is not None and row.id not in (*HARMLESS, "unexplained"):
        bars = None if math.isnan(before + after) else residuals(before, after)
    texts = [text for key, item in row.evidence.items() if (text := evidence_text(str(key), item))]
    return ExplainedCause(
        id=row.id,
        listed=row.id in CATALOGUE,
        title=row.title,
        tensors=", ".join(row.tensors),
        residual=residual_text(row),
        bars=bars,
        evidence=tuple(texts[:MAX_EVIDENCE]),
    )


def steps(rows: CaseRows) -> Iterator[NextStep]:
    """What to do about a case."""
    found = [row for row in failing(rows.comparisons) if row.known is None]
    rounding = [row for row in found if row.verdict not in FINDINGS]
    yield from (NextStep(f"{said}.") for said in rows.report.advice([row for row in found if row.verdict in FINDINGS]))
    if rounding:
        text = "rounding: give this case the tolerance that it needs, or run with --fail-on degraded."
        yield NextStep(text, (tolerance_entry(rounding),))
    entries = list(known_entries(rows))
    if entries:
        yield NextStep("To accept it, with your reason, under known: in the config:", tuple(entries[:MAX_ENTRIES]))


def glossary(causes: Iterable[str]) -> list[Entry]:
    """What the catalogue says about the causes that are named, in its own order."""
    named = set(causes)
    return [entry for entry in CATALOGUE.values() if entry.id in named]
