"""Writes the scripts of a run's findings, with the files that they need."""

from __future__ import annotations

import io
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.config.nodes import printable
from parity.reporting.cell_text import case_rows
from parity.reporting.cells import Cell, cells
from parity.reporting.explain import case_called, choices, hint
from parity.reporting.results import Results, read_results, write_atomically
from parity.repro import ReproError
from parity.repro.issue import issue
from parity.repro.recipe import Recipe, recipe, shown
from parity.repro.script import is_small, render
from parity.repro.words import header, title


@dataclass(frozen=True)
class Written:
    """A script, what it shows, the issue beside it (None: not asked for), and the interpreter that runs it."""

    title: str
    script: Path
    issue: Path | None
    python: str

    def __str__(self) -> str:
        """What it is, and below it what to type, and the issue."""
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
) -> Iterator[Written | ReproError]:
    """A script for each finding of a case, or of the whole run, or the reason why there is none.

    Raises ExplainError and ResultsError, and ReproError where there is no such finding.
    """
    results = read_results(run_dir)
    wanted = None if every else str(case_called(case, results)["id"])
    found = chosen(cells(results), results, wanted, backend, dtype)
    folder, rows = folder_for(run_dir, out), case_rows(results)
    for cell in found:
        try:
            yield write(recipe(cell, rows[cell.id], results, run_dir), results, folder, issues=issues)
        except ReproError as error:
            yield error


def chosen(
    found: Sequence[Cell], results: Results, case: str | None, backend: str | None, dtype: str | None
) -> list[Cell]:
    """The cells that have something to show; raises ReproError where there is none, and says why."""
    for what, name, known in (
        ("backend", backend, [row["name"] for row in results.backends]),
        ("dtype", dtype, dict.fromkeys(cell.dtype for cell in found if case in (None, cell.id))),
    ):
        if name is not None and name not in known:
            raise ReproError(f'there is no {what} "{printable(name)}"{hint(name, known)}: {choices(known)}')
    asked = [c for c in found if case in (None, c.id) and backend in (None, c.backend) and dtype in (None, c.dtype)]
    able = [cell for cell in asked if shown(cell)]
    if not able:
        raise ReproError(f"there is nothing to show: {'; '.join(map(nothing, asked)) or 'no cell was asked for'}")
    return able


def nothing(cell: Cell) -> str:
    """Why there is nothing to show of a cell."""
    reason = f"{cell.outcome}, {cell.message}" if cell.outcome not in ("", "ok") else cell.status.value
    return printable(f"{cell.backend} {cell.dtype}: {reason}")


def folder_for(run_dir: Path, out: Path | None) -> Path:
    """Where the scripts go."""
    folder = run_dir / "repro" if out is None else out
    if out is None and not folder.resolve().is_relative_to(run_dir.resolve()):
        raise ReproError(f"{printable(str(folder))} leads out of the run directory; name another --out")
    return folder


def write(item: Recipe, results: Results, folder: Path, *, issues: bool) -> Written:
    """One script with all that it needs."""
    stem = item.cell.anchor
    script = folder / f"{stem}.py"
    archive = "" if is_small(item) else f"{stem}.npz"
    # With a dot in its name a file cannot shadow a module.
    user_ops = f"{item.label}.ops.py" if item.ops else ""
    text = render(
        item, header(item, results, script.name, [name for name in (archive, user_ops) if name]), archive, user_ops
    )
    folder.mkdir(parents=True, exist_ok=True)
    if archive:
        write_bytes(folder / archive, packed(item))
    if item.ops:
        write_bytes(folder / user_ops, item.ops.read_bytes())
    write_atomically(script, text)
    markdown = folder / f"{stem}.md" if issues else None
    if markdown:
        write_atomically(markdown, issue(item, results, text, script.name, archive, user_ops))
    return Written(title(item), script, markdown, interpreter(item))


def packed(item: Recipe) -> bytes:
    """The arrays as an `.npz`, which holds no pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in item.data.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
    return file.getvalue()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; what lies there is replaced and not followed."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def interpreter(item: Recipe) -> str:
    """The interpreter that ran the backend, where it is still there."""
    recorded = str(item.backend.get("executable") or "")
    return recorded if recorded and Path(recorded).is_file() and os.access(recorded, os.X_OK) else "python"
