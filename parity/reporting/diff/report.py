"""A diff in blocks: differences between the runs, then a table for each kind of change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parity.reporting.blocks import Block, BlockReport, Bullets, Commands, Folded, Grid, GridCell, GridColumn, Sentence
from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.text import (
    GROUPED,
    LEGEND,
    MEANINGS,
    OPEN,
    columns,
    count_text,
    differences,
    groups,
    headline,
    runs_text,
    sections,
)
from parity.reporting.text.cell_text import commands
from parity.reporting.text.words import columns_used

MAX_ROWS = 2000
"""The most rows of one kind on a page, and cases with their commands; a browser is slow with more."""
COLUMNS = (
    *(GridColumn(title) for title in ("case", "dtype", "backend", "tensors")),
    GridColumn("verdict", prose=True),
    *(GridColumn(title, number=True) for title in ("× tol", "error ratio")),
    *(GridColumn(title, prose=True) for title in ("cause", "note")),
)
"""What a change is, then how it changed."""
N_NAMES = 4
ELSEWHERE = "parity diff --json has them all"
REASON = GridColumn("reason", prose=True)
WORDS = {"WORSE": "bad", "INCOMPLETE": "doubtful", "CHANGED": "doubtful"}
"""The styles of verdicts; that of the others is `well`."""
STYLES = {
    ChangeKind.NEW: "off",
    ChangeKind.WORSE: "off",
    ChangeKind.VANISHED: "warning",
    ChangeKind.FIXED: "good",
    ChangeKind.BETTER: "good",
}


def diff_report(diff: Diff) -> BlockReport:
    """The report on a diff."""
    word, sentence = headline(diff)
    return BlockReport("parity diff", word, WORDS.get(word, "well"), sentence, list(blocks(diff)))


def blocks(diff: Diff) -> Iterator[Block]:
    """What follows the verdict."""
    cases = cases_named(diff)
    links = {name: f"case-{i}" for i, name in enumerate(cases)}
    yield Sentence(runs_text(diff), "quiet")
    yield Bullets(list(differences(diff)), "warning")
    for kind, changes in sections(diff):
        grid = reasons(changes, links) if kind in GROUPED else table(changes, links)
        style = STYLES.get(kind, "strong")
        yield Folded(count_text(kind, len(changes)), MEANINGS[kind], [grid], kind in OPEN, kind.value, style)
    if any(kind not in GROUPED for kind, _ in sections(diff)):
        yield Sentence(LEGEND, "quiet")
    yield Commands("To see more of a case", list(zip(links.values(), cases, case_commands(diff, cases), strict=True)))


def table(changes: Sequence[Change], links: Mapping[str, str]) -> Grid:
    """A row for each change, without the columns that are empty in all."""
    rows = [columns(change) for change in changes]
    used = columns_used(rows)
    shown = [
        [GridCell(change.case, link=links.get(change.case, "")), *(GridCell(row[i]) for i in used if i)]
        for change, row in zip(changes, rows, strict=True)
    ]
    return Grid([COLUMNS[i] for i in used], shown, most=MAX_ROWS, elsewhere=ELSEWHERE, n_names=N_NAMES)


def reasons(changes: Sequence[Change], links: Mapping[str, str]) -> Grid:
    """A row for each reason."""
    shown = [[GridCell(group.text, link=links.get(group.changes[0].case, ""))] for group in groups(changes)]
    return Grid([REASON], shown, most=MAX_ROWS, elsewhere=ELSEWHERE)


def cases_named(diff: Diff) -> list[str]:
    """The cases that a page names, each once, in the order of their changes."""
    listed = (change for change in diff.changes if change.kind not in GROUPED)
    grouped = (group.changes[0] for kind in GROUPED for group in groups(diff.of(kind)))
    return list(dict.fromkeys(change.case for change in (*listed, *grouped)))[:MAX_ROWS]


def case_commands(diff: Diff, names: Sequence[str]) -> Iterator[list[str]]:
    """The commands that show each case, in B if B has it; a script only for a finding."""
    stored = {name: (run, case) for run in (diff.a, diff.b) for name, case in run.cases.items()}
    with_finding = {run.run_dir: {cell.id for cell in run.cells.values() if cell.finding} for run in (diff.a, diff.b)}
    for name in names:
        run, case = stored[name]
        explain, *repro = commands(case, str(run.run_dir))
        yield [explain, *repro] if name in with_finding[run.run_dir] else [explain]
