"""`parity merge`: the rows of several runs in one store, each cell once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from parity.engine.inputs import slug
from parity.errors import UserError
from parity.exit_codes import INTERRUPTED
from parity.judge.compare.verdict import Comparison
from parity.reporting.results.outputs import IN_RUN_DIR, Outputs, rendered
from parity.reporting.results.results import as_json, write_atomically
from parity.reporting.results.resume import identity, question, stored
from parity.reporting.results.rows import (
    FILE_NAME,
    BackendRow,
    CaseRow,
    KnownRow,
    OutcomeRow,
    Results,
    RunRow,
    TrainingRow,
)
from parity.reporting.results.store import (
    BACKENDS,
    BY_CELL,
    CASES,
    DIAGNOSES,
    KNOWN,
    LARGE,
    OUTCOMES,
    RUN,
    STORE,
    SUMMARY,
    TRAININGS,
    Store,
)
from parity.reporting.results.strict_json import encode
from parity.reporting.results.summary import settle_again

Rows = dict[str, list[Any]]
"""The rows of a case in one dtype, by table."""


class MergeError(UserError):
    """Runs that cannot be merged or disagree; the message names both and the difference."""


def merge(runs: Sequence[Path], out: Path) -> tuple[Results, list[str]]:
    """Merge runs into the empty directory `out`; the tensors that they stored are linked, or copied. Also returns the
    shards that are missing.

    Raises MergeError, ResultsError if a run cannot be read, and OSError if something cannot be written.
    """
    with contextlib.closing(Store(out / STORE)) as store:
        merged = Merger(out, store)
        for run_dir in runs:
            with stored(run_dir) as source:
                merged.take(run_dir, source)
        merged.settle()
        results = store.shown()
        is_small = store.n_outcomes < LARGE
    if is_small:
        write_atomically(out / FILE_NAME, as_json(results))
    for name, file in IN_RUN_DIR.items():
        write_atomically(out / file, rendered(name, results, out, Outputs({})))
    return results, missing_shards(merged.commands)


SHARD = re.compile(r"--shard[= ]([1-9]\d*)/([1-9]\d*)")


def missing_shards(commands: Iterable[Sequence[str]]) -> list[str]:
    """The shards that no command ran, though another ran one of as many: `3/4`."""
    seen: dict[int, set[int]] = {}
    for match in filter(None, (SHARD.search(" ".join(command)) for command in commands)):
        seen.setdefault(int(match[2]), set()).add(int(match[1]))
    return [f"{i}/{n}" for n, there in sorted(seen.items()) for i in range(1, n + 1) if i not in there]


class Merger:
    """The runs that were merged so far."""

    def __init__(self, out: Path, store: Store) -> None:
        self.out, self.store = out, store
        self.run: RunRow | None = None
        self.backends: dict[str, BackendRow] = {}
        self.known: dict[tuple[Any, ...], KnownRow] = {}
        self.cases: dict[str, tuple[bytes, Path]] = {}
        """The digest of what each case computes, and the first run that has it."""
        self.cells: dict[tuple[str, str], Path] = {}
        self.first: Path | None = None
        self.commands: list[Sequence[str]] = []
        self.is_interrupted = False

    def take(self, run_dir: Path, source: Store) -> None:
        """Add the rows and files of a run."""
        run, backends = source.one(RUN), list(source.rows(BACKENDS))
        self.check(run_dir, run, backends)
        self.first = self.first or run_dir
        self.commands.append(run.command)
        self.run = run if self.run is None else joined(self.run, run)
        for row in backends:
            if not self.backends.get(row.name, row).version or row.name not in self.backends:
                self.backends[row.name] = row
            if row.ops is not None:
                self.copy(run_dir, row.ops, row.ops)
        for row in source.rows(KNOWN):
            self.known.setdefault(spoken_of(row), row)
        self.is_interrupted |= source.one(SUMMARY).exit_code == INTERRUPTED
        for case in source.rows(CASES):
            self.take_case(run_dir, source, case)
        self.store.flush()

    def check(self, run_dir: Path, run: RunRow, backends: Sequence[BackendRow]) -> None:
        """Raise MergeError if a run had another seed, baseline, subject, level or other backends than the first."""
        if self.run is None:
            return
        same = ("seed", "baseline", "subject", "fail_on")
        asked = {name: (getattr(self.run, name), getattr(run, name)) for name in same}
        asked["backends"] = tuple([identity(row) for row in rows] for rows in (self.backends.values(), backends))  # type: ignore[assignment]
        versions = {row.name: row.version for row in backends if row.version}
        for name, version in versions.items():
            if name in self.backends:
                asked[f"version of {name}"] = self.backends[name].version or version, version
        for name, (one, other) in asked.items():
            if one != other:
                raise MergeError(f"{self.first} and {run_dir} differ in {name}: {one} and {other}")

    def take_case(self, run_dir: Path, source: Store, case: CaseRow) -> None:
        """Add a case with its cells, or check that those that are there already are the same."""
        own = hashlib.blake2b(encode(question(case)).encode("utf-8", "backslashreplace")).digest()
        if case.id not in self.cases:
            self.cases[case.id] = own, run_dir
            self.store.add([self.placed(run_dir, case)])
        known, first = self.cases[case.id]
        if known != own:
            raise MergeError(f"{case.id} is not the same case in {run_dir} as in {first}")
        for dtype, rows in cells_of(source, case.id):
            there = self.cells.setdefault((case.id, dtype), run_dir)
            if there == run_dir:
                rows[TRAININGS.name] = [self.with_norms(run_dir, row) for row in rows[TRAININGS.name]]
                for table in BY_CELL:
                    self.store.add(rows[table.name])
            elif comparable(rows) != comparable(dict(cells_of(self.store, case.id, dtype))[dtype]):
                raise MergeError(f"{case.id} in {dtype} has different results in {run_dir} and in {there}")

    def placed(self, run_dir: Path, case: CaseRow) -> CaseRow:
        """The case with its files in the directory of all."""
        if not case.files:
            return case
        old = str(Path(case.files[0]).parent)
        new = f"tensors/{len(self.cases) - 1:04d}-{slug(case.id)}"
        self.copy(run_dir, old, new)
        inputs = {
            name: item if item.file is None else structs.replace(item, file=f"{new}/{Path(item.file).name}")
            for name, item in case.inputs.items()
        }
        return structs.replace(case, inputs=inputs)

    def with_norms(self, run_dir: Path, row: TrainingRow) -> TrainingRow:
        """The row of a training with its file in the directory of all."""
        if row.norms is None:
            return row
        folder = f"training/{list(self.cases).index(row.case):04d}-{slug(row.case)}"
        new = str(Path(folder, *Path(row.norms).parts[2:]))
        self.copy(run_dir, row.norms, new)
        return structs.replace(row, norms=new)

    def copy(self, run_dir: Path, old: str, new: str) -> None:
        """Link or copy a file or a folder of a run; raises MergeError if it is not within the run."""
        source, target = run_dir / old, self.out / new
        for path, folder in ((source, run_dir), (target, self.out)):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise MergeError(f"{run_dir}: {old} is not inside the run directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link, dirs_exist_ok=True, symlinks=True)
        elif source.is_file():
            if target.is_file() and target.read_bytes() != source.read_bytes():
                raise MergeError(f"{self.first} and {run_dir} have different copies of {old}")
            link(source, target)

    def settle(self) -> None:
        """Write the run's own rows, and those that depend on all cells."""
        if self.run is None:
            return
        self.store.put(RUN, [structs.replace(self.run, id=self.out.name)])
        self.store.put(BACKENDS, self.backends.values())
        n_asked = sum(len(case.dtypes) for case in self.store.rows(CASES))
        is_interrupted = self.is_interrupted and len(self.cells) < n_asked
        settle_again(self.store, list(self.known.values()), interrupted=is_interrupted)


def cells_of(store: Store, case: str, dtype: str | None = None) -> Iterator[tuple[str, Rows]]:
    """The dtypes of a case that have outcomes, with their rows."""
    rows_by_dtype: dict[str, Rows] = {}
    for table in BY_CELL:
        for row in store.rows(table, "case_id = ? AND (? IS NULL OR dtype = ?)", case, dtype, dtype):
            rows_by_dtype.setdefault(row.dtype, {t.name: [] for t in BY_CELL})[table.name].append(row)
    yield from ((name, rows) for name, rows in rows_by_dtype.items() if rows[OUTCOMES.name])


def comparable(rows: Rows) -> list[str]:
    """The rows without times and without what other cells influence, as they do diagnoses; NaN equals itself."""
    tables = (table for name, table in rows.items() if name != DIAGNOSES.name)
    return [repr(without_times(row)) for table in tables for row in table]


def without_times(row: Any) -> Any:
    """A row as another run of the same cell gives it."""
    if isinstance(row, OutcomeRow):
        return structs.replace(row, seconds=0.0)
    if isinstance(row, TrainingRow):
        return structs.replace(row, norms=None)
    return structs.replace(row, known=None) if isinstance(row, Comparison) else row


def joined(one: RunRow, other: RunRow) -> RunRow:
    """Two runs as one."""
    return structs.replace(
        one,
        started=min(one.started, other.started),
        configs=list(dict.fromkeys((*one.configs, *other.configs))),
        stopped=one.stopped or other.stopped,
        seconds=added(one.seconds, other.seconds),
        judge_seconds=added(one.judge_seconds, other.judge_seconds),
    )


def added(*seconds: float | None) -> float | None:
    """The sum, None if none is known."""
    known: Iterable[float] = [s for s in seconds if s is not None]
    return round(sum(known), 3) if known else None


def spoken_of(row: KnownRow) -> tuple[Any, ...]:
    """The content of an entry of `known`, without its state."""
    location = row.source and (row.source.file, row.source.line)
    return (
        row.case,
        row.backend,
        row.dtype,
        row.tensor,
        row.diagnosis,
        row.outcome,
        row.until,
        row.error_ratio,
        location,
    )


def link(source: Any, target: Any) -> None:
    """Link a file, or copy it where that cannot be; a link to elsewhere is not followed."""
    if Path(source).is_symlink():
        return
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            shutil.copyfile(source, target)
