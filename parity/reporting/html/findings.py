"""The report's findings, case by case: values, reasons, pictures, causes, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from markupsafe import Markup

from parity.config.plan import ORACLE
from parity.engine.inputs import slug
from parity.judge.bound.envelope import OFF
from parity.judge.catalogue.entries import CATALOGUE, Entry
from parity.reporting.html.figures import residuals
from parity.reporting.html.pictures import Gallery, Picture
from parity.reporting.results.cells import Cell
from parity.reporting.results.record import DIGITS
from parity.reporting.results.results import Results, Row, as_number
from parity.reporting.text.advice import advice
from parity.reporting.text.cell_text import scripts
from parity.reporting.text.evidence import HARMLESS, evidence_text, residual_text
from parity.reporting.text.reasons import (
    FINDINGS,
    CaseRows,
    aligned,
    enveloped,
    factor,
    failing,
    known_entries,
    listed,
    number,
    place_text,
    reason,
    tolerance_entry,
)
from parity.training.report.view import call_text, training_links
from parity.training.spec import TRAIN

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
class Cause:
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

    cell: Cell
    excess: str
    ratio: str
    values: tuple[tuple[str, tuple[Value, ...]], ...]
    n_hidden: int
    whys: tuple[Why, ...]
    pictures: tuple[Picture, ...]
    not_pictured: tuple[str, ...]
    causes: tuple[Cause, ...]
    accepted: tuple[Accepted, ...]
    training: str = ""


@dataclass(frozen=True)
class Step:
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
    steps: tuple[Step, ...]


class Teller:
    """Tells the findings of one run; what several cells of a case share is looked up once."""

    def __init__(self, results: Results, run_dir: Path) -> None:
        self.results = results
        self.run_dir = run_dir
        self.gallery = Gallery(results, run_dir)
        self._trainings = training_links(results)
        self._compared = by_case(results.comparisons)
        self._diagnosed = by_case(results.diagnoses)
        self._tensors: dict[tuple[str, str], CaseRows] = {}

    def rows(self, case: Row) -> CaseRows:
        """What the run says about a case."""
        compared = self._compared.get(case["id"], [])
        diagnoses = [as_number(row) for row in self._diagnosed.get(case["id"], [])]
        return CaseRows(case, compared, diagnoses, compared, str(self.results.run.get("started", "")))

    def tensor_rows(self, cell: Cell, tensor: str) -> CaseRows:
        """What the run says about a tensor in all dtypes, which is what its reasons rest on."""
        key = (cell.id, tensor)
        if key not in self._tensors:
            rows = [row for row in self._compared.get(cell.id, []) if row["tensor"] == tensor]
            self._tensors[key] = CaseRows(cell.case, rows, (), rows)
        return self._tensors[key]

    def finding(self, cell: Cell, n_pictures: int) -> Finding:
        """All that is told of a cell, with pictures of so many tensors."""
        rows = [*cell.failing, *cell.hidden]
        n_pictures = 0 if cell.op == TRAIN else n_pictures
        shown = cell.tensors[:n_pictures]
        pictures = [self.gallery.picture(cell, name, self.ratios(cell, name), unit_of(rows, name)) for name in shown]
        return Finding(
            cell=cell,
            excess=factor(cell.excess),
            ratio="" if cell.ratio is None else factor(cell.ratio),
            values=tuple(by_tensor(rows[:MAX_COMPARISONS], cell.op)),
            n_hidden=max(len(rows) - MAX_COMPARISONS, 0),
            whys=tuple(self.whys(cell, rows, {picture.tensor for picture in pictures if picture.histogram})),
            pictures=tuple(pictures),
            not_pictured=cell.tensors[n_pictures:] if n_pictures else (),
            causes=tuple(cause(as_number(row)) for row in cell.diagnoses),
            accepted=tuple(self.accepted(cell)),
            training=self._trainings.get((cell.id, cell.dtype), ""),
        )

    def whys(self, cell: Cell, rows: Sequence[Row], pictured: Collection[str]) -> Iterator[Why]:
        """The reason for each verdict, of the worst tensor that has it."""
        worst: dict[str, Row] = {}
        for row in rows:
            worst.setdefault(row["tensor"], row)
        alike: dict[tuple[str, bool], list[str]] = {}
        for tensor, row in worst.items():
            alike.setdefault((row["verdict"], row["suspect"]), []).append(tensor)
        for first, *others in alike.values():
            sides = self.ratios(cell, first).items() if first not in pictured else ()
            known = " · ".join(f"{side} {factor(ratio)}" for side, ratio in sides)
            same = [with_ratio(name, self.ratios(cell, name).get(cell.backend)) for name in others[:MAX_ALIKE]]
            same += [f"{len(others) - MAX_ALIKE} more"] if len(others) > MAX_ALIKE else []
            yield Why(first, reason(worst[first], self.tensor_rows(cell, first)), known, listed(same))

    def ratios(self, cell: Cell, tensor: str) -> dict[str, float]:
        """The error ratio of every side for a tensor."""
        return self.tensor_rows(cell, tensor).ratios(cell.dtype, tensor)

    def accepted(self, cell: Cell) -> Iterator[Accepted]:
        """Why the cell is accepted, and until when."""
        for text in cell.reasons:
            until = [str(row["until"]) for row in self.results.known if row["reason"] == text and row.get("until")]
            yield Accepted(text, min(until, default=""))

    def command(self, name: str, case_id: str) -> str:
        """A command of parity on a case, as a shell takes it."""
        return " ".join(["parity", name, shlex.quote(str(self.run_dir)), shlex.quote(case_id)])

    def head(self, case: Row, anchor: str) -> CaseHead:
        """What is told of a case once for all of its cells."""
        rows = self.rows(case)
        inputs = [(name, sizes(item["shape"]), str(item["draw"])) for name, item in case["inputs"].items()]
        return CaseHead(
            id=case["id"],
            anchor=anchor,
            call=call_text(case),
            source=f"{case['source']['file']}:{case['source']['line']}",
            inputs=tuple(inputs),
            aligned=aligned(rows.comparisons),
            commands=tuple(self.command(name, case["id"]) for name in (*scripts(case), "explain")),
            steps=tuple(steps(rows)),
        )


def by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by the id of their case."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["case"], []).append(row)
    return found


def case_anchors(found: Iterable[Cell]) -> dict[str, str]:
    """`case-` and the slug of each case's id, made unique in the page."""
    found = list(found)
    taken = {cell.anchor for cell in found}
    anchors: dict[str, str] = {}
    for cell in found:
        if cell.id not in anchors:
            name = base = f"case-{slug(cell.id)}"
            n = 1
            while name in taken:
                n += 1
                name = f"{base}.{n}"
            taken.add(name)
            anchors[cell.id] = name
    return anchors


def by_tensor(rows: Iterable[Row], op: str) -> Iterator[tuple[str, tuple[Value, ...]]]:
    """The comparisons of each tensor."""
    found: dict[str, list[Value]] = {}
    for row in rows:
        found.setdefault(row["tensor"], []).append(value(row, op))
    yield from ((tensor, tuple(values)) for tensor, values in found.items())


def value(row: Row, op: str) -> Value:
    """A comparison as a row of a finding's table."""
    digits = DIGITS.get(row["dtype"], 9)
    compared = row["worst_index"] is not None
    sides = ("actual", "expected", "oracle")
    actual, expected, oracle = (signed(row[f"{side}_value"], digits) if compared else "" for side in sides)
    by_oracle = row["expected"] == ORACLE or row["oracle_value"] is not None or op != TRAIN
    n_shared = common(actual, oracle if by_oracle else expected)
    judged = enveloped(row, op)
    n_outside, n = row.get("n_mismatched"), row.get("n_elements")
    return Value(
        expected=row["expected"],
        verdict=row["verdict"],
        place=place_text(row, op) if compared else "",
        shared=actual[:n_shared],
        differing=actual[n_shared:],
        expected_value=expected,
        oracle_value=oracle if row["expected"] != ORACLE and by_oracle else "",
        outside=f"{n_outside} of {n}" if n_outside is not None else "",
        allowed=f"{OFF:g} envelopes" if judged else f"{row['rtol']:.2g}, {row['atol']:.2g}",
        needs=factor(needed) if not judged and isinstance(needed := row["required_rtol"], (int, float)) else "",
        message=row["message"],
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


def signed(found: Any, digits: int) -> str:
    """A value with room for its sign, so that the digits of several stand below each other."""
    text = number(found, digits)
    return text if text.startswith("-") else f" {text}"


def with_ratio(tensor: str, ratio: float | None) -> str:
    """`grad.x (4.2e+04)`."""
    return tensor if ratio is None else f"{tensor} ({factor(ratio)})"


def sizes(values: Any) -> str:
    """A shape or an index."""
    return f"[{', '.join(map(str, values))}]" if isinstance(values, list) else str(values)


def unit_of(rows: Iterable[Row], tensor: str) -> float | None:
    """The error of careful code, root mean square, where the run kept it."""
    for row in rows:
        envelope = row.get("envelope")
        rms = as_number(envelope.get("rms")) if isinstance(envelope, Mapping) else None
        if row["tensor"] == tensor and isinstance(rms, (int, float)) and 0 < rms < float("inf"):
            return float(rms)
    return None


def cause(row: Row) -> Cause:
    """A diagnosis."""
    before, after = row["residual_before"], row["residual_after"]
    measured = all(isinstance(size, (int, float)) and size == size for size in (before, after))
    drawn = measured and row["id"] not in HARMLESS and row["id"] != "unexplained"
    texts = [text for key, item in row["evidence"].items() if (text := evidence_text(str(key), item))]
    return Cause(
        id=row["id"],
        listed=row["id"] in CATALOGUE,
        title=row["title"],
        tensors=", ".join(map(str, row["tensors"])),
        residual=residual_text(row),
        bars=residuals(float(before), float(after)) if drawn else None,
        evidence=tuple(texts[:MAX_EVIDENCE]),
    )


def steps(rows: CaseRows) -> Iterator[Step]:
    """What to do about a case."""
    found = [row for row in failing(rows.comparisons) if row["known"] is None]
    rounding = [row for row in found if row["verdict"] not in FINDINGS]
    yield from (Step(f"{said}.") for said in advice(rows, found))
    if rounding:
        text = "rounding: give this case the tolerance that it needs, or run with --fail-on degraded."
        yield Step(text, (tolerance_entry(rounding),))
    entries = list(known_entries(rows))
    if entries:
        yield Step("To accept it, with your reason, under known: in the config:", tuple(entries[:MAX_ENTRIES]))


def glossary(causes: Iterable[str]) -> list[Entry]:
    """What the catalogue says about the causes that are named, in its own order."""
    named = set(causes)
    return [entry for entry in CATALOGUE.values() if entry.id in named]
