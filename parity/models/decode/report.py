"""How a case of `kind: decode` is told: the answer first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from parity.engine.inputs import slug
from parity.judge.bound.envelope import OFF
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.models.decode.spec import DECODE
from parity.models.decode.ways import WAYS
from parity.models.report import UNMEASURED, ModelReport, parts
from parity.reporting.kinds import Anchors
from parity.reporting.results.rows import CaseRow, ComparisonRow, OutcomeRow, Results
from parity.reporting.text.words import grouped, listed, number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parity.reporting.results.cells import CellResult
    from parity.reporting.text.reasons import CaseRows

HEAD = ("way", "first token", "cause", "tokens off", "greedy choices changed", "KL at most", "error ratio")
NOTHING = "-"


@dataclass(frozen=True)
class DecodeView:
    """A backend in a case and dtype: `rows` are the comparisons of its ways, `causes` the diagnoses."""

    case: CaseRow
    dtype: str
    backend: str
    rows: Sequence[ComparisonRow]
    causes: Sequence[Diagnosis]
    ended: OutcomeRow | None

    @property
    def anchor(self) -> str:
        """Its place in a page."""
        return f"decode-{slug(self.case.id)}-{self.dtype}-{slug(self.backend)}"

    @property
    def is_off(self) -> bool:
        """Whether anything is more than rounding."""
        return any(row.fails for row in self.rows)

    @property
    def title(self) -> str:
        """`decode gpt float32: torch`."""
        return f"decode {self.case.id} {self.dtype}: {self.backend}"

    @property
    def by_way(self) -> dict[str, list[ComparisonRow]]:
        """The comparisons of each way."""
        return grouped((row.tensor.partition(".")[0], row) for row in self.rows)

    def answer(self) -> list[str]:
        """The answer in a sentence for each cause."""
        if self.ended is not None and self.ended.outcome != "ok":
            return [self.ended.message]
        notes = [self.ended.message] if self.ended is not None and self.ended.message else []
        fine = [way for way, rows in self.by_way.items() if not any(row.fails for row in rows)]
        said = [sentence(cause) for cause in self.causes]
        if not self.is_off:
            apart = max((row.max_abs_diff or 0.0 for row in self.rows), default=0.0)
            expected = max((row.envelope.max for row in self.rows if row.envelope), default=0.0)
            said = [
                f"aligned: {listed([WAYS[way].words for way in fine])}; log-probabilities differ from those of one pass by "
                f"{number(apart)} at most, rounding does {number(expected)}"
            ]
        elif fine:
            said.append(f"aligned: {listed([WAYS[way].words for way in fine])}")
        return [*said, *notes]

    def table(self) -> list[tuple[str, ...]]:
        """A row for each way, in the texts of `HEAD`."""
        causes = {cause.evidence.get("way"): cause for cause in self.causes}
        return [row_of(way, rows, causes.get(way)) for way, rows in self.by_way.items()]


def row_of(way: str, rows: Sequence[ComparisonRow], cause: Diagnosis | None) -> tuple[str, ...]:
    """A way in the texts of `HEAD`."""
    worst = max((row.largest_ratio for row in rows), default=0.0)
    if cause is None:
        return WAYS[way].words, NOTHING, NOTHING, "0", NOTHING, NOTHING, number(worst)
    e = cause.evidence
    off, altered = (f"{e[name]} of {e['tokens']}" for name in ("off", "changed"))
    return WAYS[way].words, str(e["token"]), cause.id, off, altered, number(e["kl"]), number(worst)


def sentence(cause: Diagnosis) -> str:
    """What begins a difference, and how large it is."""
    e = cause.evidence
    said = f"{WAYS[e['way']].words}, prompt {e['prompt']} from token {e['token']} on: {e['place']}: {e['cause']}"
    size = (
        f"{e['off']} of {e['tokens']} tokens are more than rounding, by {number(cause.residual_before)} times at most; "
        f"{e['changed']} greedy choices change; KL {number(e['kl'])} at most"
    )
    if e["left"] is None:
        return f"{said}; {size}"
    left = "all tokens are within rounding" if e["left"] < OFF else f"{number(e['left'])} times rounding is left"
    return f"{said}; {size}; with that mended, {left}"


def views(results: Results) -> list[DecodeView]:
    """Every backend of every case that decodes; those that are off first."""
    found = []
    for case in results.cases:
        of = results.of(case)
        for dtype in case.dtypes if case.op == DECODE else ():
            for backend in of.backend_names:
                key = case.id, dtype, backend
                rows = [row for row in results.comparisons if (row.case, row.dtype, row.actual) == key]
                causes = [one for one in results.diagnoses if (one.case, one.dtype, one.backend) == key]
                ended = next((one for one in results.outcomes if one.key == key), None)
                if rows or ended:
                    found.append(DecodeView(case, dtype, backend, rows, causes, ended))
    return sorted(found, key=lambda one: not one.is_off)


class DecodeReport(ModelReport):
    """Ways to decode: judged token by token by the envelope of the full pass."""

    no_script = "there are scripts for single ops, not for models that decode"
    legend = f"Of a model that decodes, {OFF:g} envelopes of a token are the tolerance. "

    def reason(self, row: ComparisonRow, rows: CaseRows) -> str:
        """How far a way is from the full pass."""
        if row.verdict in UNMEASURED:
            return super().reason(row, rows)
        way, _, prompt = row.tensor.partition(".")
        return (
            f"{WAYS[way].words}, the log-probabilities of prompt {prompt} are {number(row.largest_ratio)} times as far "
            f"from those of one pass without a cache as in passes with weights perturbed by an ulp; the error bound is "
            f"{OFF:g}"
        )

    def advice(self, findings: Sequence[ComparisonRow]) -> Iterator[str]:  # noqa: ARG002 - the answer says it
        """Nothing beside the answer."""
        yield from ()

    def screen(self, case: CaseRow, dtypes: Iterable[str], results: Results) -> Iterator[RenderableType]:
        """The answer and the ways."""
        for one in views(results):
            if one.case.id == case.id and one.dtype in dtypes:
                yield from parts(one, HEAD)

    def anchors(self, results: Results) -> Anchors:
        """The anchor of each case and dtype: that of its first backend."""
        return {(one.case.id, one.dtype): one.anchor for one in reversed(views(results))}

    def html_section(self, results: Results, cells: Sequence[CellResult]) -> Markup:  # noqa: ARG002 - the rows say all
        """A table for each backend."""
        from parity.reporting.html.templates import rendered

        shown = [
            {"anchor": one.anchor, "title": one.title, "lines": one.answer(), "rows": one.table()}
            for one in views(results)
        ]
        return rendered("decodings", models=shown, head=HEAD) if shown else Markup()

    def markdown_pieces(self, results: Results) -> Sequence[str]:
        """The same in Markdown, a piece for each backend."""
        return [markdown(one, HEAD) for one in views(results)]

    def console_parts(self, results: Results, width: int, *, verbose: bool) -> Iterator[RenderableType]:  # noqa: ARG002 - as it fits
        """The same on the console."""
        for one in views(results):
            yield from parts(one, HEAD)
