"""`parity query`: SQL over the rows of a run, which it can only read."""

from __future__ import annotations

import csv
import difflib
import re
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from parity.config.nodes import printable
from parity.errors import UserError
from parity.reporting.results.resume import stored
from parity.reporting.results.store import TABLES, VIEWS, is_broken

EVERYTHING = "SELECT * FROM comparisons"
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
STEPS = 10_000
"""Steps of SQLite's machine between looks for Ctrl-C."""
MAX_SHOWN = 200
"""Rows on a terminal; a file or a pipe gets all."""
MISSING = re.compile(r"no such (table|column): (\S+)")


class QueryError(UserError):
    """SQL that cannot be answered; the message says why, and lists the names that exist."""


@dataclass(frozen=True)
class Answer:
    """The columns and the rows, which are read lazily."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def ask(run_dir: Path, sql: str, show: Any) -> None:
    """Let `show` take the answer to a query of a run; raises QueryError, and ResultsError if the run is unreadable."""
    with stored(run_dir) as store:
        store.db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
        store.db.set_progress_handler(lambda: 0, STEPS)
        try:
            cursor = store.db.execute(sql)
            if cursor.description is None:
                raise QueryError("a query must be a SELECT")
            show(Answer(tuple(column[0] for column in cursor.description), iter(cursor)))
        except (sqlite3.Error, sqlite3.Warning) as error:
            if str(error) == "interrupted":
                raise KeyboardInterrupt from error
            if is_broken(error):
                raise
            store.db.set_authorizer(None)
            raise QueryError(explained(str(error), sql, store.db)) from error


def explained(problem: str, sql: str, db: sqlite3.Connection) -> str:
    """The problem, with the nearest name and all names."""
    names = [*VIEWS, *(table.name for table in TABLES)]
    if problem == "not authorized" or problem.startswith("cannot modify"):
        return "a run can only be read: a query must be a SELECT"
    if "syntax error" in problem and re.search(r"\bcase\b", sql, re.IGNORECASE):
        return f"{problem}; CASE is a word of SQL: the column is case_id"
    missing = MISSING.match(problem)
    if missing is None:
        return problem
    used = [name for name in names if missing[1] == "column" and re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    columns = {name: [row[1] for row in db.execute(f'PRAGMA table_info("{name}")')] for name in used}
    known = list(dict.fromkeys(c for row in columns.values() for c in row)) or names
    near = difflib.get_close_matches(missing[2].rpartition(".")[2], known, 1)
    lines = [f"{problem}" + (f"; did you mean {near[0]}?" if near else "")]
    lines += [f"{name} has {', '.join(row)}" for name, row in columns.items()]
    return "\n".join(lines if used else [*lines, f"the tables are {', '.join(names)}"])


def as_csv(answer: Answer, file: TextIO) -> None:
    """Comma-separated values with a header."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.rows)


def as_lines(answer: Answer, file: TextIO) -> None:
    """A JSON array of objects, one per line; infinite numbers are the texts "inf" and "-inf", as in results.json."""
    from parity.reporting.results.strict_json import encode

    file.write("[")
    for i, row in enumerate(answer.rows):
        file.write(("" if i == 0 else ",\n") + encode(dict(zip(answer.columns, row, strict=True))))
    file.write("]\n")


def as_table(answer: Answer) -> None:
    """A table on the terminal."""
    from rich.console import Console

    from parity.reporting.blocks import Grid, GridColumn
    from parity.reporting.blocks.console import grid_parts, print_parts

    rows = [["" if value is None else cell_text(value) for value in row] for row in islice(answer.rows, MAX_SHOWN)]
    console = Console()
    print_parts(
        grid_parts(Grid([GridColumn(printable(name)) for name in answer.columns], rows), console.width), console
    )
    if next(answer.rows, None) is not None:
        console.print(f"and more rows than these {MAX_SHOWN}; --csv prints all", style="dim")


def cell_text(value: Any) -> str:
    """A value in a table."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_parquet(answer: Answer, path: Path) -> int:
    """Write a Parquet file through DuckDB; the number of its rows. Raises QueryError without DuckDB, and OSError."""
    try:
        import duckdb
    except ImportError:
        raise QueryError("Parquet needs DuckDB: pip install 'parity[parquet]'") from None
    import pandas as pd

    frame = pd.DataFrame.from_records(list(answer.rows), columns=list(answer.columns))
    try:
        duckdb.from_df(frame).write_parquet(str(path))
    except duckdb.Error as error:
        raise OSError(None, str(error), str(path)) from error
    return len(frame)


def show_on_stdout(answer: Answer, *, as_json: bool, in_csv: bool) -> None:
    """JSON or CSV if asked, CSV in a pipe, else a table."""
    if as_json:
        as_lines(answer, sys.stdout)
    elif in_csv or not sys.stdout.isatty():
        as_csv(answer, sys.stdout)
    else:
        as_table(answer)
