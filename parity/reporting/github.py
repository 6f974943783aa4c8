"""Annotations on the lines of configs, and the summary of the step, for a job on GitHub.

The limits are the runner's: ten annotations of a level for a step and 4,096 characters for one (`_maxCountPerIssueType`
and `_maxIssueMessageLength` in `src/Runner.Worker/ExecutionContext.cs`), 1 MiB for a step's summary, which is dropped
where it is larger (`AttachmentSizeLimit` in `FileCommandManager.cs`).

The runner obeys any line of the output that begins with `::` and a command, and `##[command]` anywhere in a line
(`ActionCommand.cs`); so what is annotated is escaped, and everything else that a run prints stands between
`::stop-commands::` and its token (`silenced`).
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from parity import exit_codes
from parity.config.nodes import printable
from parity.reporting.markdown import LEAST, markdown
from parity.reporting.results.cells import CellResult, Status, cells
from parity.reporting.results.rows import Results
from parity.reporting.text.answer import answer
from parity.reporting.text.cell_text import (
    commands,
    config_location,
    failing_entries,
    headline,
    narrowed,
    run_dir_of,
)
from parity.reporting.text.findings import Finding, findings
from parity.reporting.text.safe import bounded
from parity.reporting.text.words import few, grouped, plural

MAX_ANNOTATIONS = 10
SUMMARY_LIMIT = 1024 * 1024
MESSAGE_LIMIT = 1_000
TITLE_LIMIT = 200

LEVELS: Mapping[Status, str] = {
    Status.FAILED: "error",
    Status.ERROR: "error",
    Status.NOT_RUN: "error",
    Status.UNSUPPORTED: "warning",
}
"""How a case is annotated, by its worst cell; what is accepted or passes is not."""


@dataclass(frozen=True)
class Annotation:
    """A message at a line of a config; `file` may be empty."""

    level: str
    file: str
    line: int
    title: str
    message: str

    def command(self, workspace: Path | None) -> str:
        """The workflow command, in one line."""
        location = f"file={escaped(inside(self.file, workspace))},line={self.line}," if self.file else ""
        title = escaped(bounded([printable(self.title)], TITLE_LIMIT))
        return f"::{self.level} {location}title={title}::{data(bounded([printable(self.message)], MESSAGE_LIMIT))}"


def annotations(results: Results, *, limit: int = MAX_ANNOTATIONS, workspace: Path | None = None) -> list[str]:
    """At most `limit` workflow commands, the worst first: entries of `known` that fail, then one for each case.

    The last one says how many more there are. Paths are relative to `workspace` where they are inside.
    """
    notes = [*known_annotations(results), *case_annotations(results)]
    if not notes and results.summary.exit_code != exit_codes.PASSED:
        notes = [Annotation("error", "", 1, "parity", answer(results).plain)]
    if len(notes) > limit:
        shown = max(limit - 1, 0)
        more = f"{len(notes) - shown} more are not annotated; see the job's summary and the report"
        level = "error" if any(note.level == "error" for note in notes[shown:]) else "warning"
        notes = [*notes[:shown], Annotation(level, "", 1, "parity", more)]
    return [note.command(workspace) for note in notes[:limit]]


def known_annotations(results: Results) -> Iterator[Annotation]:
    """An error for each entry of `known` that is out of date."""
    for row in failing_entries(results):
        yield Annotation("error", *config_location(row.source), f"parity: known deviation {row.case}", row.message)


def case_annotations(results: Results) -> Iterator[Annotation]:
    """An annotation for each case that fails the run or lacks a result: its worst finding, else its worst cell."""
    case_findings = narrowed(findings(results), lambda d: d.row.case)
    by_case = grouped((cell.id, cell) for cell in cells(results) if cell.status in LEVELS)
    for case_id, group in by_case.items():
        worst = group[0]
        explain, *_ = commands(worst.case, run_dir_of(results))
        message = (
            f"{finding_text(case_findings[case_id])}; {explain}"
            if case_id in case_findings
            else f"{cells_text(group)}; {explain}"
        )
        yield Annotation(LEVELS[worst.status], *config_location(worst.case.source), f"parity: {case_id}", message)


def finding_text(case_findings: Sequence[Finding]) -> str:
    """The first finding of a case, with its formula, and how many more there are."""
    first, *others = case_findings
    parts = [first.line().plain, first.formula(), f"and {plural(len(others), 'more finding')}" if others else ""]
    return "; ".join(filter(None, parts))


def cells_text(group: Sequence[CellResult]) -> str:
    """Why a case has no result, in the words of its first cell."""
    others = [f"{cell.backend} {cell.dtype}" for cell in group[1:]]
    return f"{headline(group[0])}{f'; also {few(others)}' if others else ''}"


def inside(file: str, workspace: Path | None) -> str:
    """The path as GitHub knows it: relative to the workspace, where it is inside."""
    if workspace is None:
        return printable(file)
    path, root = Path(file).resolve(), workspace.resolve()
    return printable(path.relative_to(root).as_posix() if path.is_relative_to(root) else file)


def data(text: str) -> str:
    """A command's message, escaped as the runner unescapes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escaped(text: str) -> str:
    """A command's property, escaped as the runner unescapes it."""
    return data(text).replace(":", "%3A").replace(",", "%2C")


def publish(results: Results, stream: TextIO, environ: Mapping[str, str]) -> None:
    """Print the annotations, and append the summary to the file that GITHUB_STEP_SUMMARY names.

    A summary that cannot be written is a warning: the results are not less valid for it.
    """
    workspace = environ.get("GITHUB_WORKSPACE")
    lines = annotations(results, workspace=Path(workspace) if workspace else None)
    if file := environ.get("GITHUB_STEP_SUMMARY"):
        lines += append_summary(results, Path(file))
    for line in lines:
        print(line, file=stream, flush=True)


def append_summary(results: Results, file: Path) -> Iterator[str]:
    """Append the summary where there is room; yields a warning where there is none, or where it cannot be written."""
    try:
        room = SUMMARY_LIMIT - (file.stat().st_size if file.exists() else 0) - 1
        if room < LEAST:
            yield Annotation("warning", "", 1, "parity", "no room for a summary: the step has one already").command(
                None
            )
            return
        with file.open("a", encoding="utf-8") as out:
            out.write("\n" + markdown(results, limit=room))
    except OSError as error:
        message = f"cannot write the step's summary to {file}: {error.strerror or error}"
        yield Annotation("warning", "", 1, "parity", message).command(None)


@contextmanager
def silenced(stream: TextIO) -> Iterator[None]:
    """Within the context, GitHub interprets nothing that is printed as a command."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", file=stream, flush=True)
    try:
        yield
    finally:
        print(f"\n::{token}::", file=stream, flush=True)
