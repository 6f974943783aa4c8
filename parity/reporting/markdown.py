"""Markdown for a comment on a pull request or the summary of a job: the answer and the findings, a table, then folds.

Whatever a config, a framework or a stored run put into a text stands in code spans or code blocks (`safe.py`). The
document stays below a number of bytes by leaving out whole rows and whole folds, and says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parity.reporting.blocks import Block, Bullets, CodeLines, Folded, Grid, GridColumn
from parity.reporting.blocks.markdown import block_text, size
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
from parity.reporting.text.safe import bounded, code, line
from parity.reporting.text.words import factor, few, grouped, plural

MARKER = "<!-- parity -->"
"""The first line: a bot finds its comment by it."""

LIMIT = 60_000
"""GitHub's comments hold 65,536 characters."""
LEAST = 8_000
FOLD_LIMIT = 3_000

URGENT = (Status.FAILED, Status.ERROR, Status.NOT_RUN)
QUIET = (Status.BELOW, Status.SUSPECT)
MAX_CAUSES = 8
CODE_LIMIT = 600
MAX_ROWS = 15
"""Rows of the table that is in view; the others are in a fold."""
COLUMNS = (
    *(GridColumn(title) for title in ("op", "case", "dtype", "backend")),
    GridColumn("verdict", prose=True),
    *(GridColumn(title, number=True) for title in ("× tol", "error ratio")),
    GridColumn("cause", prose=True),
)
ELSEWHERE = "the report has all"


def markdown(results: Results, *, limit: int = LIMIT) -> str:
    """The document in at most `limit` bytes, which have to be LEAST or more (else a ValueError)."""
    if limit < LEAST:
        raise ValueError(f"a comment needs at least {LEAST} bytes, not {limit}")
    all_cells = cells(results)
    texts = ["\n".join([MARKER, *head(results)])]
    left = limit - size(texts)
    for make, share in SECTIONS:
        for block in make(results, all_cells):
            if text := block_text(block, left * share):
                left -= size([text])
                texts.append(text)
    return "\n\n".join(texts) + "\n"


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


def outdated(results: Results, _: Sequence[CellResult]) -> Iterator[Block]:
    """The entries of `known` that fail the run."""
    lines = [entry.message for entry in failing_entries(results)]
    yield Folded("Known deviations that are out of date", "", [Bullets(lines)], is_open=True)


def table(_: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """The cells that fail the run, the worst first."""
    yield Grid(COLUMNS, [row(cell) for cell in urgent(all_cells)[:MAX_ROWS]], elsewhere=ELSEWHERE)


def rest(_: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """The other cells that fail the run, in one fold."""
    rows = [row(cell) for cell in urgent(all_cells)[MAX_ROWS:]]
    yield Folded(plural(len(rows), "more row"), "", [Grid(COLUMNS, rows, elsewhere=ELSEWHERE)])


def urgent(all_cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells that fail the run."""
    return [cell for cell in all_cells if cell.status in URGENT]


def row(cell: CellResult) -> list[str]:
    """A cell as a row of the table."""
    verdict = (cell.outcome or "not run") if cell.status in NO_RESULT else cell.verdict
    sizes = factor(cell.excess) if cell.excess else "", "" if cell.ratio is None else factor(cell.ratio)
    why = ", ".join(cell.causes) or cell.message.partition("\n")[0]
    return [cell.op, cell.id, cell.dtype, cell.backend, verdict, *sizes, why]


def chapters(results: Results, _: Sequence[CellResult]) -> Iterator[Block]:
    """The answers about cases of other kinds than ops."""
    for chapter in chapters_of(results):
        yield Folded(chapter.title, "", chapter.answers, is_open=True, what="answer")


def by_case(results: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """A fold for each case that fails the run, in the order of its worst cell."""
    rows, run_dir, by_cell = case_rows(results), run_dir_of(results), cell_findings(results)
    folds = []
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
        names = few(dict.fromkeys(cell.backend for cell in group))
        folds.append(Folded(f"{case_id}: {names}", "", [CodeLines("\n".join(lines).split("\n"))]))
    yield Folded("Case by case", "", folds, is_open=True, what="case")


def unsupported(_: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """What a framework cannot do, each reason in a line of one fold."""
    cells_ = [cell for cell in all_cells if cell.status is Status.UNSUPPORTED]
    groups = grouped(((cell.backend, cell.message), cell.id) for cell in cells_)
    lines = [f"{backend}: {message} ({few(dict.fromkeys(ids))})" for (backend, message), ids in groups.items()]
    yield Folded("Unsupported", "", [Bullets(lines)])


def known(results: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """What `known` accepts, in one fold."""
    cells_ = [cell for cell in all_cells if cell.status is Status.KNOWN]
    lines = [f"{cell_line(cell)}; {accepted_text(cell, results)}" for cell in cells_]
    yield Folded("Known and accepted", "", [Bullets(lines)])


def quiet(_: Results, all_cells: Sequence[CellResult]) -> Iterator[Block]:
    """Suspect passes and warnings, in one fold."""
    lines = [cell_line(cell) for cell in all_cells if cell.status in QUIET]
    yield Folded("Warnings and suspect passes", "", [Bullets(lines)])


def machine(results: Results, _: Sequence[CellResult]) -> Iterator[Block]:
    """Versions, seed and host, in one fold."""
    lines = [f"{key}: {value}" for key, value in environment(results).items()]
    yield Folded("Environment", "", [Bullets(lines)])


def cell_line(cell: CellResult) -> str:
    """A cell in one line."""
    return f"{cell.id}: {headline(cell)}"


SECTIONS: tuple[tuple[Callable[[Results, Sequence[CellResult]], Iterator[Block]], float], ...] = (
    (outdated, 0.3),
    (table, 0.5),
    (chapters, 0.5),
    (by_case, 0.7),
    (rest, 0.5),
    (known, 0.5),
    (unsupported, 0.5),
    (quiet, 0.5),
    (machine, 0.5),
)
"""In the order in which they appear, with the share of the room that those before have left."""
