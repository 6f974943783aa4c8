"""Markdown for a comment on a pull request or the summary of a job: the answer and the findings, a table, then folds.

Whatever a config, a framework or a stored run put into a text stands in code spans or code blocks (`safe.py`). The
document stays below a number of bytes by leaving out whole rows and whole folds, and says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from parity.reporting.blocks.markdown import answer_text
from parity.reporting.kinds import chapters_of, leads_of
from parity.reporting.results.cells import CellResult, Status, cells, tally_text
from parity.reporting.results.rows import Results
from parity.reporting.text.answer import answer, warnings
from parity.reporting.text.cell_text import (
    NO_RESULT,
    accepted_text,
    cell_findings,
    commands,
    details,
    environment,
    failing_entries,
    headline,
    run_dir_of,
)
from parity.reporting.text.findings import findings
from parity.reporting.text.reasons import case_rows
from parity.reporting.text.safe import bounded, code, fenced, html_code, line, table_row
from parity.reporting.text.words import factor, few, grouped, plural

MARKER = "<!-- parity -->"
"""The first line: a bot finds its comment by it."""

LIMIT = 60_000
"""GitHub's comments hold 65,536 characters."""
LEAST = 8_000
FOLD_LIMIT = 3_000
ROOM_FOR_NOTE = 200

URGENT = (Status.FAILED, Status.ERROR, Status.NOT_RUN)
QUIET = (Status.BELOW, Status.SUSPECT)
MAX_CAUSES = 8
CODE_LIMIT = 600
MAX_ROWS = 15
"""Rows of the table that is in view; the others are in a fold."""
TABLE_HEAD = """
| op | case | dtype | backend | verdict | × tol | error ratio | cause |
| --- | --- | --- | --- | --- | ---: | ---: | --- |
"""


@dataclass(frozen=True)
class Section:
    """Pieces between a beginning and an end, of which as many are shown as fit; `what` names those that do not.

    `share` is how much of the room that the sections before it have left it may take.
    """

    begin: str
    pieces: Sequence[str]
    end: str
    what: str
    share: float

    def within(self, room: int) -> str:
        """The section in at most `room` bytes."""
        left, n = room - size(self.begin) - size(self.end) - ROOM_FOR_NOTE, 0
        for piece in self.pieces:
            left -= size(piece)
            if left < 0:
                break
            n += 1
        hidden = len(self.pieces) - n
        note = f"\n{plural(hidden, f'more {self.what}')} left out to keep this short; the report has all.\n"
        shown = f"{self.begin}{''.join(self.pieces[:n])}{self.end}" if n else ""
        return shown + (note if hidden and room >= ROOM_FOR_NOTE else "")


def size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text.encode())


def markdown(results: Results, *, limit: int = LIMIT) -> str:
    """The document in at most `limit` bytes, which have to be LEAST or more (else a ValueError)."""
    if limit < LEAST:
        raise ValueError(f"a comment needs at least {LEAST} bytes, not {limit}")
    all_cells = cells(results)
    text = "\n".join([MARKER, *head(results), ""])
    left = limit - size(text)
    for make in SECTIONS:
        section = make(results, all_cells)
        part = section.within(int(left * section.share))
        text, left = text + part, left - size(part)
    return text


def head(results: Results) -> Iterator[str]:
    """The answer, the findings, the warnings and the counts."""
    status, _, rest = answer(results).plain.partition("  ")
    yield f"### parity: {status}"
    yield ""
    yield line(rest)
    yield ""
    yield from (f"{line(lead.text)}\n" for lead in leads_of(results))
    listed = [*causes(results), *remarks(results)]
    yield from [*listed, ""] if listed else []
    yield line(tally_text(results))


def causes(results: Results) -> Iterator[str]:
    """The worst findings, each with its place, formula and values as a list below it."""
    all_findings = findings(results)
    for finding in all_findings[:MAX_CAUSES]:
        yield f"- {line(finding.sentence().plain)}"
        yield from (f"  - {line(text)}" for text in (finding.scope(), finding.history()) if text)
        yield from (
            f"  - {code(bounded([text], CODE_LIMIT))}" for text in (finding.formula(), finding.values()) if text
        )
        yield from (f"  - {line(text)}" for text in (finding.advice(),) if text)
    if len(all_findings) > MAX_CAUSES:
        yield f"- and {plural(len(all_findings) - MAX_CAUSES, 'more finding')}"


def remarks(results: Results) -> Iterator[str]:
    """The warnings; what belongs to one is a list below it."""
    for text in warnings(results):
        indent = "  " if text.plain.startswith("  ") else ""
        yield f"{indent}- {line(text.plain.strip())}"


def outdated(results: Results, _: Sequence[CellResult]) -> Section:
    """The entries of `known` that fail the run."""
    pieces = [f"- {line(entry.message)}\n" for entry in failing_entries(results)]
    return Section("\n**Known deviations that are out of date**\n\n", pieces, "", "entry", 0.3)


def table(_: Results, all_cells: Sequence[CellResult]) -> Section:
    """The cells that fail the run, the worst first."""
    return Section(TABLE_HEAD, [row(cell) for cell in urgent(all_cells)[:MAX_ROWS]], "", "row", 0.5)


def answers(results: Results, _: Sequence[CellResult]) -> Section:
    """The answers about cases of other kinds than ops, each in a piece."""
    pieces = [
        f"\n**{chapter.title}**\n{text}" if i == 0 else text
        for chapter in chapters_of(results)
        for i, text in enumerate(map(answer_text, chapter.answers))
    ]
    return Section("", pieces, "", "answer", 0.5)


def rest(_: Results, all_cells: Sequence[CellResult]) -> Section:
    """The other cells that fail the run, in one fold."""
    rows = [row(cell) for cell in urgent(all_cells)[MAX_ROWS:]]
    begin = f"\n<details><summary>{plural(len(rows), 'more row')}</summary>\n{TABLE_HEAD}"
    return Section(begin, rows, "\n</details>\n", "row", 0.5)


def urgent(all_cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells that fail the run."""
    return [cell for cell in all_cells if cell.status in URGENT]


def row(cell: CellResult) -> str:
    """A cell as a row of the table."""
    verdict = code(cell.outcome or "not run") if cell.status in NO_RESULT else cell.verdict
    ratio = "" if cell.ratio is None else factor(cell.ratio)
    why = ", ".join(map(code, cell.causes)) or line(cell.message.partition("\n")[0])
    names = (code(cell.op), code(cell.id), code(cell.dtype), code(cell.backend))
    return table_row((*names, verdict, factor(cell.excess) if cell.excess else "", ratio, why))


def by_case(results: Results, all_cells: Sequence[CellResult]) -> Section:
    """A fold for each case that fails the run, in the order of its worst cell."""
    rows, run_dir, by_cell = case_rows(results), run_dir_of(results), cell_findings(results)
    pieces = []
    for case_id, group in grouped((cell.id, cell) for cell in urgent(all_cells)).items():
        texts = (
            text
            for cell in group
            for text in (
                headline(cell),
                *details(cell, rows[case_id], by_cell.get((cell.id, cell.dtype, cell.backend), ())),
                "",
            )
        )
        lines = [bounded(texts, FOLD_LIMIT), *commands(group[0].case, run_dir)]
        names = few(map(html_code, dict.fromkeys(cell.backend for cell in group)))
        pieces.append(fold(f"{html_code(case_id)}: {names}", "\n".join(lines).split("\n")))
    return Section("\n**Case by case**\n\n", pieces, "", "case", 0.7)


def unsupported(_: Results, all_cells: Sequence[CellResult]) -> Section:
    """What a framework cannot do, each reason in a line of one fold."""
    cells_ = [cell for cell in all_cells if cell.status is Status.UNSUPPORTED]
    groups = grouped(((cell.backend, cell.message), cell.id) for cell in cells_)
    lines = [
        f"{code(backend)}: {line(message)} ({few(map(code, dict.fromkeys(ids)))})"
        for (backend, message), ids in groups.items()
    ]
    return listing("Unsupported", lines)


def known(results: Results, all_cells: Sequence[CellResult]) -> Section:
    """What `known` accepts, in one fold."""
    cells_ = [cell for cell in all_cells if cell.status is Status.KNOWN]
    lines = [f"{cell_line(cell)}; {line(accepted_text(cell, results))}" for cell in cells_]
    return listing("Known and accepted", lines)


def quiet(_: Results, all_cells: Sequence[CellResult]) -> Section:
    """Suspect passes and warnings, in one fold."""
    lines = [cell_line(cell) for cell in all_cells if cell.status in QUIET]
    return listing("Warnings and suspect passes", lines)


def machine(results: Results, _: Sequence[CellResult]) -> Section:
    """Versions, seed and host, in one fold."""
    return listing("Environment", [f"{line(key)}: {code(value)}" for key, value in environment(results).items()])


def cell_line(cell: CellResult) -> str:
    """A cell in one line."""
    return f"{code(cell.id)}: {line(headline(cell))}"


def listing(summary: str, lines: Sequence[str]) -> Section:
    """One fold with a list of lines, which are Markdown."""
    pieces = [f"- {text}\n" for text in lines]
    return Section(f"\n<details><summary>{summary}</summary>\n\n", pieces, "\n</details>\n", "line", 0.5)


def fold(summary: str, lines: Sequence[str]) -> str:
    """A fold with plain lines; `summary` is HTML."""
    return f"<details><summary>{summary}</summary>\n\n{fenced(lines)}\n\n</details>\n"


SECTIONS: tuple[Callable[[Results, Sequence[CellResult]], Section], ...] = (
    outdated,
    table,
    answers,
    by_case,
    rest,
    known,
    unsupported,
    quiet,
    machine,
)
"""In the order in which they appear and are given room."""
