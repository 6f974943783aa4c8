"""The answer in a few lines: does anything differ at the level that was asked for, who is off, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from parity import exit_codes
from parity.config.nodes import printable
from parity.judge.known import State
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import failing_level
from parity.reporting.results.results import ResultsError
from parity.reporting.results.rows import ComparisonRow, KnownRow, Results
from parity.reporting.text.evidence import HARMLESS, called
from parity.reporting.text.words import plural

MAX_CAUSES = 12


def answer(results: Results) -> Text:
    """The verdict line: what differs and who is off."""
    code = results.summary.exit_code
    level = failing_level(results)
    failing = [row for row in results.comparisons if row.verdict in level and row.known is None]
    n_cells = count_tensors(results.comparisons)
    if code == exit_codes.INTERRUPTED:
        found = f"; {differ(failing, n_cells)} in them" if failing else ""
        return Text.assemble(("INTERRUPTED", "bold yellow"), f"  {len(results.outcomes)} outcomes were kept{found}")
    n_bad = sum(row.fails for row in results.known)
    tail = f"{plural(n_bad, 'entry of the ledger', 'entries of the ledger')} of known deviations must be mended"
    if failing:
        ledger = f"; {tail}" if n_bad else ""
        said = (
            differ(failing, n_cells),
            blame(failing),
            hidden_text(results),
            left_out(results),
            ledger,
            stopped_text(results),
        )
        return Text.assemble(("FAIL", "bold red"), "  ", *said)
    if n_bad:
        return Text.assemble(("FAIL", "bold red"), f"  nothing else differs, but {tail}", left_out(results))
    if code == exit_codes.INCOMPLETE:
        return Text.assemble(("INCOMPLETE", "bold yellow"), "  nothing differs, but", left_out(results)[1:])
    if code != exit_codes.PASSED:
        raise ResultsError(f"its exit code is {code}, but nothing in it differs")
    return Text.assemble(("PASS", "bold green"), f"  {passed(results)}")


def hidden_text(results: Results) -> str:
    """`; 5 more pass in which somebody is off`, or nothing."""
    n = count_tensors([row for row in results.comparisons if row.hides and row.known is None])
    return f"; {n} more pass though somebody is off" if n else ""


def stopped_text(results: Results) -> str:
    """`; stopped at the first finding: 5 of 8 cases were not run`, or nothing."""
    left = {case.id for case in results.cases} - {row.case for row in results.comparisons}
    if not results.run.stopped or not left:
        return ""
    return f"; stopped at the first finding: {len(left)} of {plural(len(results.cases), 'case')} were not run"


def passed(results: Results) -> str:
    """`96 tensors of 8 cases agree`, and what is let pass beside them."""
    made = [row for row in results.comparisons if row.compared]
    accepted = [row for row in made if row.known is not None]
    below = [row for row in made if row.fails and row.known is None]
    n_agree, n_missing = count_tensors(made) - count_tensors([*accepted, *below]), len(results.comparisons) - len(made)
    parts = [f"{plural(n_agree, 'tensor')} of {plural(n_cases(made), 'case')} agree"]
    parts += [f"{count_tensors(accepted)} deviate as known"] if accepted else []
    parts += [f"{plural(n_missing, 'comparison')} cannot be made, as known"] if n_missing else []
    if below:
        kinds = ", ".join(sorted({row.verdict for row in below}))
        parts.append(f"{count_tensors(below)} are outside the tolerance below the level that fails ({kinds})")
    return "; ".join(parts)


def differ(failing: Sequence[ComparisonRow], n_cells: int) -> str:
    """`12 of 240 tensors differ, in 3 cases`."""
    return f"{count_tensors(failing)} of {n_cells} tensors differ, in {plural(n_cases(failing), 'case')}"


def blame(failing: Sequence[ComparisonRow]) -> str:
    """`; off: oneflow in 9, paddle in 3`; what is only rounding counts for nobody."""
    off = Counter(side for _, _, _, side in {(r.case, r.dtype, r.tensor, s) for r in failing for s in r.culprit})
    worse = {row.tensor_key for row in failing if row.verdict != "rounding"}
    n_rounding = len({row.tensor_key for row in failing} - worse)
    if not worse:
        return "; in these, all of it is rounding"
    if not off:
        return "; nobody is further from the oracle than careful code"
    ranked = sorted(off.items(), key=lambda item: (-item[1], item[0]))
    rounding = f"; rounding only in {n_rounding}" if n_rounding else ""
    return "; off: " + ", ".join(f"{printable(side)} in {n}" for side, n in ranked) + rounding


def left_out(results: Results) -> str:
    """`; 4 comparisons could not be made`, or nothing; accepted ones count only where nothing at all was compared."""
    if not results.comparisons:
        return "; nothing was compared"
    missing = [row for row in results.comparisons if not row.compared]
    wanted = [row for row in missing if row.known is None or len(missing) == len(results.comparisons)]
    return f"; {plural(len(wanted), 'comparison')} could not be made" if wanted else ""


@dataclass(frozen=True)
class CauseFound:
    """A cause of one backend in the cells of an op: how many of them, and in which dtypes."""

    backend: str
    id: str
    op: str
    n_cells: int
    dtypes: tuple[str, ...]
    title: str

    def line(self) -> Text:
        """`paddle: variance-naive in 4 cells of group_norm (float32, float64): the variance is E[x^2] - E[x]^2`."""
        where = f" in {plural(self.n_cells, 'cell')} of {self.op} ({', '.join(self.dtypes)})"
        said = f": {self.title}" if self.id != "not-identifiable" else ""
        who = (printable(f"{self.backend}: "), "bold")
        return Text.assemble(who, (printable(self.id), "red"), printable(where), (printable(said), "dim"))


EDIT = "reference-edit"
LONGEST = 160
"""Characters of an expression in one line; `explain` has all of it."""


def short(text: str) -> str:
    """A text of at most `LONGEST` characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def causes_found(results: Results) -> list[CauseFound]:
    """The causes that call somebody off: first the most frequent one of each backend, then the others by cells."""
    ops = {case.id: case.op for case in results.cases}
    found: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    titles: dict[tuple[str, str, str], str] = {}
    for row in results.diagnoses:
        if row.id not in HARMLESS:
            key = (row.backend, called(row), ops.get(row.case, ""))
            found.setdefault(key, set()).add((row.case, row.dtype))
            titles.setdefault(
                key, short(str(row.evidence.get("expression") or row.title) if row.id == EDIT else row.title)
            )
    causes = [CauseFound(*key, len(c), tuple(sorted({d for _, d in c})), titles[key]) for key, c in found.items()]
    causes.sort(key=lambda cause: -cause.n_cells)
    firsts = {cause.backend: cause for cause in reversed(causes)}
    return sorted(causes, key=lambda cause: firsts[cause.backend] is not cause)


def causes(results: Results, limit: int = MAX_CAUSES) -> Iterator[Text]:
    """A line for each of the first causes, and how many are left out."""
    found = causes_found(results)
    yield from (cause.line() for cause in found[:limit])
    if len(found) > limit:
        yield Text(f"and {plural(len(found) - limit, 'more cause')}", style="dim")


def suspects(results: Results) -> Iterator[Text]:
    """One line for the passes that hide an error, for curves that drift, and for passes that say little, each with an
    example."""
    found = [row for row in results.comparisons if row.suspect and row.known is None]
    ops = {case.id: case.op for case in results.cases}
    drifting = [row for row in found if row.message and report_of(ops[row.case]).drifts(row)]
    hidden = [row for row in found if row.culprit and row not in drifting]
    vacuous = [row for row in found if not row.culprit and row not in drifting]
    for rows, text in (
        (hidden, "the tolerance hides who is off"),
        (drifting, "the curve leaves the ensemble, though every stage of that step is right"),
        (vacuous, "zeros would have passed as well"),
    ):
        if rows:
            example = printable(f"{rows[0].case} {rows[0].dtype} {rows[0].tensor}")
            n = count_tensors(rows)
            yield Text.assemble(("suspect", "yellow"), f": {text} in {plural(n, 'tensor')}, for example {example}")


def count_tensors(rows: Sequence[ComparisonRow]) -> int:
    """How many tensors of how many cells the rows are about."""
    return len({row.tensor_key for row in rows})


def n_cases(rows: Sequence[ComparisonRow]) -> int:
    """How many cases the rows are about."""
    return len({row.case for row in rows})


KNOWN_STYLES = {
    State.STALE.value: "bold red",
    State.EXPIRED.value: "bold red",
    State.WORSE.value: "bold red",
    State.MATCHED.value: "dim",
    State.NOT_CHECKED.value: "yellow",
}
"""The states of entries of `known`: first those that fail, then what is accepted, last what was not checked."""


def known_lines(rows: Sequence[KnownRow]) -> Iterator[Text]:
    """A line for each entry of `known`."""
    for state, style in KNOWN_STYLES.items():
        yield from (Text.assemble(("known", style), " ", printable(row.message)) for row in rows if row.state == state)
