"""Writes the scripts of a run's findings, with the files that they need."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.config.nodes import printable
from parity.reporting.console.explain import case_called, choices, hint
from parity.reporting.results.cells import CellResult, cells
from parity.reporting.results.results import read_results, write_atomically
from parity.reporting.results.rows import Results
from parity.reporting.text.reasons import case_rows
from parity.repro import ReproError
from parity.repro.issue import issue
from parity.repro.recipe import ScriptRecipe, recipe, shown
from parity.repro.script import is_small, render
from parity.repro.words import header, not_theirs, title

MAX_ISSUE = 65536
"""The limit of GitHub for the text of an issue."""


@dataclass(frozen=True)
class WrittenScript:
    """A script, what it shows, the issue beside it (None: none), and the interpreter that runs it.

    `note` says why a requested issue is missing, else it is empty.
    """

    title: str
    script: Path
    issue: Path | None
    python: str
    note: str = ""

    def __str__(self) -> str:
        """The title, the command to type, and the issue."""
        command = f"{shlex.quote(self.python)} {shlex.quote(str(self.script))}"
        lines = [self.title, f"  {command}", *([f"  {self.issue}"] if self.issue else [])]
        return "\n".join(map(printable, lines))


def write_scripts(
    run_dir: Path,
    case: str | None,
    *,
    every: bool = False,
    backend: str | None = None,
    dtype: str | None = None,
    out: Path | None = None,
    issues: bool = False,
) -> Iterator[WrittenScript | ReproError]:
    """A script for each finding of a case, or of the whole run, or the reason why there is none.

    Raises ExplainError and ResultsError, and ReproError if there is no such finding.
    """
    results = read_results(run_dir)
    asked = None if every else case_called(case, results).id
    chosen = cells_to_show(cells(results), results, asked, backend, dtype)
    yield from scripts_of(chosen, results, run_dir, folder_for(run_dir, out), issues=issues)


def scripts_of(
    chosen: Iterable[CellResult], results: Results, run_dir: Path, folder: Path, *, issues: bool = False
) -> Iterator[WrittenScript | ReproError]:
    """A script in `folder` for each of these cells of a run, or the reason why there is none."""
    rows = case_rows(results)
    for cell in chosen:
        try:
            item = recipe(cell, rows[cell.id], results, run_dir)
            yield write(item, results, folder, interpreter(item, run_dir), issues=issues)
        except ReproError as error:
            yield error


def cells_to_show(
    recorded: Sequence[CellResult], results: Results, case: str | None, backend: str | None, dtype: str | None
) -> list[CellResult]:
    """The cells that have something to show; raises ReproError with the reason if there is none."""
    for what, name, known in (
        ("backend", backend, results.backend_names),
        ("dtype", dtype, dict.fromkeys(cell.dtype for cell in recorded if case in (None, cell.id))),
    ):
        if name is not None and name not in known:
            raise ReproError(f'there is no {what} "{printable(name)}"{hint(name, known)}: {choices(known)}')
    asked = [c for c in recorded if case in (None, c.id) and backend in (None, c.backend) and dtype in (None, c.dtype)]
    able = [cell for cell in asked if shown(cell)]
    if not able:
        raise ReproError(f"there is nothing to show: {'; '.join(map(nothing, asked)) or 'no cell was asked for'}")
    return able


def nothing(cell: CellResult) -> str:
    """Why a cell has nothing to show."""
    reason = f"{cell.outcome}, {cell.message}" if cell.outcome not in ("", "ok") else cell.status.value
    return printable(f"{cell.backend} {cell.dtype}: {reason}")


def folder_for(run_dir: Path, out: Path | None) -> Path:
    """The folder of the scripts."""
    folder = run_dir / "repro" if out is None else out
    if out is None and not folder.resolve().is_relative_to(run_dir.resolve()):
        raise ReproError(f"{printable(str(folder))} points outside the run directory; choose another --out")
    return folder


@dataclass(frozen=True)
class Texts:
    """A script, its issue (empty where there is none), and the files that the script needs (empty: not needed)."""

    script: str
    issue: str
    archive: str
    user_ops: str


def write(item: ScriptRecipe, results: Results, folder: Path, python: str, *, issues: bool) -> WrittenScript:
    """One script with all that it needs."""
    script = folder / f"{item.cell.anchor}.py"
    note = f"{title(item)}: {why}, so there is nothing to report upstream" if (why := not_theirs(item)) else ""
    texts = composed(item, results, script.name, issues=issues and not note, inline=is_small(item))
    folder.mkdir(parents=True, exist_ok=True)
    if texts.archive:
        write_atomically(folder / texts.archive, packed(item))
    if item.ops:
        write_atomically(folder / texts.user_ops, item.ops.read_bytes())
    write_atomically(script, texts.script)
    if len(texts.issue) >= MAX_ISSUE:
        note = f"{title(item)}: the text of its issue would exceed GitHub's limit"
    markdown = script.with_name(f"{item.cell.anchor}.md") if issues and not note else None
    if markdown:
        write_atomically(markdown, texts.issue)
    return WrittenScript(title(item), script, markdown, python, printable(note) if issues else "")


def composed(item: ScriptRecipe, results: Results, name: str, *, issues: bool, inline: bool) -> Texts:
    """The script `name` and its issue, with the numbers in them if `inline` and the issue has room for them."""
    archive = "" if inline else f"{item.cell.anchor}.npz"
    # With a dot in its name a file cannot shadow a module.
    user_ops = f"{item.label}.ops.py" if item.ops else ""
    text = render(item, header(item, results, name, [file for file in (archive, user_ops) if file]), archive, user_ops)
    said = issue(item, results, text, name, archive, user_ops) if issues else ""
    if len(said) >= MAX_ISSUE and not archive:
        return composed(item, results, name, issues=issues, inline=False)
    return Texts(text, said, archive, user_ops)


def packed(item: ScriptRecipe) -> bytes:
    """The arrays as an `.npz`, which holds no pickle."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **item.data)
    return file.getvalue()


def interpreter(item: ScriptRecipe, run_dir: Path) -> str:
    """The interpreter that ran the backend, if it still exists; never a file of the run directory."""
    recorded = Path(item.backend.executable)
    if not (recorded.is_absolute() and recorded.name.startswith("python") and recorded.is_file()):
        return "python"
    # An environment's interpreter is a link to a file elsewhere: both its ends count.
    ends = recorded.parent.resolve(), recorded.resolve()
    inside = any(end.is_relative_to(run_dir.resolve()) for end in ends)
    return "python" if inside or not os.access(recorded, os.X_OK) else str(recorded)
