"""The report of a case of `kind: decode`: the answer first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.models.decode.spec import DECODE
from parity.models.decode.ways import WORDS
from parity.models.report import UNMEASURED, ModelReport
from parity.models.view import CaseView
from parity.reporting.blocks import GridColumn
from parity.reporting.results.rows import OutcomeRow, Results
from parity.reporting.text.words import grouped, listed, number

if TYPE_CHECKING:
    from parity.reporting.text.reasons import CaseRows

COLUMNS: Sequence[GridColumn] = (
    GridColumn("way", prose=True),
    GridColumn("first token", number=True),
    GridColumn("cause"),
    *(
        GridColumn(title, number=True)
        for title in ("wrong tokens", "greedy choices changed", "KL at most", "error ratio")
    ),
)
NOTHING = "-"


@dataclass(frozen=True)
class DecodeView(CaseView):
    """A backend that decodes: `rows` are the comparisons of its ways, `causes` the diagnoses."""

    rows: Sequence[Comparison]
    causes: Sequence[Diagnosis]
    ended: OutcomeRow | None

    @property
    def fails(self) -> bool:
        """Whether anything exceeds the error bound."""
        return any(row.fails for row in self.rows)

    @property
    def by_way(self) -> dict[str, list[Comparison]]:
        """The comparisons of each way."""
        return grouped((row.tensor.partition(".")[0], row) for row in self.rows)

    def answer(self) -> list[str]:
        """The answer in a sentence for each cause."""
        if self.ended is not None and self.ended.outcome != "ok" and not any(row.compared for row in self.rows):
            return [self.ended.message]
        notes = [self.ended.message] if self.ended is not None and self.ended.message else []
        compared = {way: rows for way, rows in self.by_way.items() if rows[0].compared}
        fine = [way for way, rows in compared.items() if not any(row.fails for row in rows)]
        lines = sentences([cause for cause in self.causes if "way" in cause.evidence])
        lines += [f"{WORDS.get(way, way)}: {rows[0].message}" for way, rows in self.by_way.items() if rows[0].message]
        if not self.fails and compared:
            apart = max((row.max_abs_diff or 0.0 for row in self.rows), default=0.0)
            expected = max((row.envelope.max for row in self.rows if row.envelope), default=0.0)
            lines.append(
                f"aligned: {listed([WORDS[way] for way in fine])}; log-probabilities differ from one pass's by "
                f"{number(apart)} at most, {number(expected)} expected from rounding"
            )
        elif fine:
            lines.append(f"aligned: {listed([WORDS[way] for way in fine])}")
        return [*lines, *notes]

    def table(self) -> list[tuple[str, ...]]:
        """A row for each way, in the order of `COLUMNS`."""
        causes = {cause.evidence.get("way"): cause for cause in self.causes}
        return [row_of(way, rows, causes.get(way)) for way, rows in self.by_way.items()]


def row_of(way: str, rows: Sequence[Comparison], cause: Diagnosis | None) -> tuple[str, ...]:
    """A way in the order of `COLUMNS`."""
    worst = max((row.largest_ratio for row in rows), default=0.0)
    if rows[0].message:
        return WORDS.get(way, way), *[NOTHING] * (len(COLUMNS) - 1)
    if cause is None:
        return WORDS[way], NOTHING, NOTHING, "0", NOTHING, NOTHING, number(worst)
    e = cause.evidence
    wrong, altered = (f"{e[name]} of {e['tokens']}" for name in ("off", "changed"))
    return WORDS[way], str(e["token"]), cause.id, wrong, altered, number(e["kl"]), number(worst)


def sentences(causes: Sequence[Diagnosis]) -> list[str]:
    """A sentence for each origin of differences: the ways that it affects, and how large they are."""
    alike = grouped(
        (tuple(cause.evidence[key] for key in ("place", "cause", "prompt", "token")), cause) for cause in causes
    )
    return [sentence(group) for group in alike.values()]


def sentence(causes: Sequence[Diagnosis]) -> str:
    """The sentence for diagnoses with one origin."""
    e, ways = causes[0].evidence, listed([WORDS[cause.evidence["way"]] for cause in causes])
    largest = max(cause.residual_before or 0.0 for cause in causes)
    parts = [
        f"{ways}, prompt {e['prompt']} from token {e['token']} on: {e['place']}: {e['cause']}",
        f"{sum(cause.evidence['off'] for cause in causes)} of {sum(cause.evidence['tokens'] for cause in causes)} "
        f"tokens are wrong, by up to {number(largest)} times the rounding error",
        f"greedy choices that change: {sum(cause.evidence['changed'] for cause in causes)}; "
        f"KL {number(max(cause.evidence['kl'] for cause in causes))} at most",
    ]
    left = [cause.evidence["left"] for cause in causes if cause.evidence["left"] is not None]
    if left:
        enough = max(left) < ERROR_BOUND
        rest = "all is rounding" if enough else f"{number(max(left))} times the rounding error remains"
        parts.append(f"once fixed, {rest}")
    return "; ".join(parts)


def views(results: Results) -> list[DecodeView]:
    """Every backend of every case that decodes; those that fail first."""
    decodings = []
    for case in results.cases:
        of = results.of(case)
        for dtype in case.dtypes if case.op == DECODE else ():
            for backend in of.backend_names:
                key = case.id, dtype, backend
                rows = [row for row in results.comparisons if (row.case, row.dtype, row.actual) == key]
                causes = [one for one in results.diagnoses if (one.case, one.dtype, one.backend) == key]
                ended = next((one for one in results.outcomes if one.key == key), None)
                if rows or ended:
                    decodings.append(DecodeView(case, dtype, backend, rows, causes, ended))
    return sorted(decodings, key=lambda one: not one.fails)


class DecodeReport(ModelReport):
    """Ways to decode: judged token by token by the envelope of the full pass."""

    no_script = "there are scripts for single ops, not for models that decode"
    heading = "Decoding"
    lead_text = (
        "Each way is compared with one pass over the prompt alone, without a cache, token by token, by "
        "log-probabilities. What begins a difference is looked for with the full pass's values in the place of the "
        "way's, layer by layer."
    )
    columns = COLUMNS
    legend = f"Of a model that decodes, {ERROR_BOUND:g} envelopes of a token are the tolerance. "

    def reason(self, row: Comparison, rows: CaseRows) -> str:
        """How far a way is from the full pass."""
        if row.verdict in UNMEASURED:
            return super().reason(row, rows)
        way, _, prompt = row.tensor.partition(".")
        return (
            f"{WORDS[way]}, the log-probabilities of prompt {prompt} are {number(row.largest_ratio)} times as far "
            f"from those of one pass without a cache as in passes with weights perturbed by an ulp; the error bound is "
            f"{ERROR_BOUND:g}"
        )

    def location(self, row: Comparison) -> str:
        """The token and the id of the largest difference."""
        index = row.worst_index
        return f"token {index[0]}, id {index[1]}" if index and len(index) == 2 else super().location(row)

    def advice(self, findings: Sequence[Comparison]) -> Iterator[str]:  # noqa: ARG002 - the answer says it
        """Nothing beside the answer."""
        yield from ()

    def views(self, results: Results) -> Sequence[CaseView]:
        """A view of each backend, those that fail first."""
        return views(results)
