"""results.sqlite: the rows of a run, written as its cases are judged, and readable while it runs.

A table has a row type's fields as columns (`case`, a word of SQL, is `case_id`): numbers and texts as they are, lists
and objects as JSON. What SQLite cannot hold (NaN, -0.0, integers beyond 64 bits) is in the column `odd`, as JSON by
column. So a row that is read is the one that was written. `VIEWS` are for people; docs/store.md describes them.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import json
import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect, structs

from parity.exit_codes import DEFAULT_FAIL_ON, INTERRUPTED
from parity.exit_codes import FAILING as LEVELS
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import (
    FAILING,
    FILE_NAME,
    PASSING,
    REFERENCED,
    SEVERITY,
    BackendRow,
    CaseRow,
    KnownRow,
    MatrixRow,
    OutcomeRow,
    Results,
    ResultsError,
    RunRow,
    Summary,
    TrainingRow,
)
from parity.reporting.results.strict_json import as_number, encode, problem

STORE = "results.sqlite"
SCHEMA_VERSION = 3
LARGE = 20_000
"""From this many outcomes on, there is no results.json, and reports show only cases worth showing."""
COMMIT_S = 1.0
"""Most seconds that rows wait for the transaction that writes them; a killed run loses waiting rows."""
MAX_CASES = 2_000
"""Number of a large run's cases in a report, the most urgent ones."""
BUSY_S = 30.0
WAL_PAGES = 250
"""Pages of 4 KiB in the write-ahead log before a checkpoint."""
MAX_COLUMN = 1 << 63
RENAMED = {"case": "case_id"}
KINDS: Mapping[type, str] = {
    inspect.StrType: "TEXT", inspect.LiteralType: "TEXT", inspect.EnumType: "TEXT", inspect.IntType: "INTEGER",
    inspect.BoolType: "INTEGER", inspect.FloatType: "REAL",
}  # fmt: skip
"""SQL types of fields; all others are JSON."""


@dataclass(frozen=True)
class Column:
    """A column: the field that it holds, and the field's part, if the field is an object with a column for each."""

    name: str
    kind: str
    field: str
    part: str = ""
    is_json: bool = False
    default: Any = None
    """What rows of an older store have in it."""


@dataclass(frozen=True)
class Table:
    """A table of rows of one type, in the order in which they were written."""

    name: str
    row: Any
    key: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Its columns but for `odd`, in the order of the fields."""
        return tuple(itertools.chain.from_iterable(map(columns_of, inspect.type_info(self.row).fields)))  # type: ignore[attr-defined]

    @property
    def definition(self) -> Iterator[str]:
        """The statements that create it."""
        columns = [f'"{c.name}" {c.kind}'.strip() for c in self.columns]
        yield f'CREATE TABLE "{self.name}" ({", ".join([*columns, "odd TEXT"])})'
        if self.key:
            yield f'CREATE INDEX "{self.name}_by_key" ON "{self.name}" ({", ".join(self.key)})'

    @cached_property
    def insert(self) -> str:
        """The statement that adds a row."""
        names = ", ".join(f'"{name}"' for name in (*(c.name for c in self.columns), "odd"))
        return f'INSERT INTO "{self.name}" ({names}) VALUES ({", ".join("?" * (len(self.columns) + 1))})'  # noqa: S608

    def values(self, row: Any) -> tuple[Any, ...]:
        """A row as its columns have it."""
        given: dict[str, Any] = msgspec.to_builtins(row)
        values: list[Any] = []
        odd: dict[str, Any] = {}
        for column in self.columns:
            value = given[column.field]
            value = value[column.part] if column.part else value
            if column.is_json and value is not None:
                value = plain(encode(value))
            elif is_odd(value):
                odd[column.name], value = value if isinstance(value, float) else str(value), None
            values.append(plain(value) if isinstance(value, str) else value)
        return (*values, encode(odd) if odd else None)

    def read(self, record: Sequence[Any]) -> Any:
        """A row from its columns; raises msgspec.ValidationError or ValueError."""
        odd = json.loads(record[-1]) if record[-1] else {}
        given: dict[str, Any] = {}
        for column, stored in zip(self.columns, record, strict=False):
            value = odd.get(column.name, stored)
            value = json.loads(value) if column.is_json and value is not None else value
            if column.part:
                given.setdefault(column.field, {})[column.part] = value
            else:
                given[column.field] = value
        row = msgspec.convert(given, self.row, strict=False)
        return replace(row, evidence=as_number(row.evidence)) if isinstance(row, Diagnosis) else row


def columns_of(field: inspect.Field) -> Iterator[Column]:
    """The columns of a field: one, or one for each part of an object of numbers."""
    name, kind = RENAMED.get(field.name, field.name), single(field.type)
    parts = kind.fields if isinstance(kind, inspect.StructType) and kind is field.type else ()
    if parts and all(isinstance(single(part.type), inspect.FloatType) for part in parts):
        for part in parts:
            yield Column(f"{name}_{part.name}", "REAL", field.name, part.name)
        return
    sql = KINDS.get(type(kind))
    scalars = isinstance(kind, inspect.UnionType) and all(type(each) in KINDS for each in kind.types)
    default = field.default_factory() if callable(field.default_factory) else field.default
    default = None if default is msgspec.NODEFAULT else default
    yield Column(
        name, sql or ("" if scalars else "TEXT"), field.name, is_json=sql is None and not scalars, default=default
    )


def single(kind: inspect.Type) -> inspect.Type:
    """A type without its None and its limits."""
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    if isinstance(kind, inspect.UnionType):
        left = tuple(each for each in kind.types if not isinstance(each, inspect.NoneType))
        return single(left[0]) if len(left) == 1 else inspect.UnionType(left)
    return kind


def is_odd(value: Any) -> bool:
    """Whether SQLite would change a number."""
    if isinstance(value, float):
        return math.isnan(value) or (value == 0.0 and math.copysign(1.0, value) < 0)
    return isinstance(value, int) and not -MAX_COLUMN <= value < MAX_COLUMN


def plain(text: str) -> str:
    """A text with lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


RUN, SUMMARY, BACKENDS = Table("run", RunRow), Table("summary", Summary), Table("backends", BackendRow)
CASES, KNOWN = Table("cases", CaseRow, ("id",)), Table("known", KnownRow)
CELL = ("case_id", "dtype")
OUTCOMES, COMPARISONS = Table("outcomes", OutcomeRow, CELL), Table("comparisons", Comparison, CELL)
DIAGNOSES, TRAININGS = Table("diagnoses", Diagnosis, CELL), Table("trainings", TrainingRow, CELL)
TABLES = (RUN, SUMMARY, BACKENDS, CASES, OUTCOMES, COMPARISONS, DIAGNOSES, KNOWN, TRAININGS)
BY_CELL = (OUTCOMES, COMPARISONS, DIAGNOSES, TRAININGS)
"""The tables whose rows belong to a case in one dtype."""
BY_ROW = {table.row: table for table in TABLES}

VERDICTS = "CREATE TABLE verdicts (verdict TEXT PRIMARY KEY, severity INTEGER, passes INTEGER, fails INTEGER)"
LEVEL = "CREATE TABLE levels (fail_on TEXT, verdict TEXT, PRIMARY KEY (fail_on, verdict)) WITHOUT ROWID"

VIEWS: Mapping[str, str] = {
    "owned": """
        SELECT p.*, coalesce(j.value, p.actual) AS backend,
            CASE coalesce(j.value, p.actual) WHEN p.actual THEN p.error_ratio_actual
                WHEN p.expected THEN p.error_ratio_expected END AS error_ratio,
            v.severity, v.fails, l.verdict IS NOT NULL AND p.known IS NULL AND p.counted IS NOT '[]' AS fails_run
        FROM comparisons p
            LEFT JOIN json_each(coalesce(nullif(p.counted, '[]'), p.culprit)) j ON j.value IN (p.actual, p.expected)
            JOIN verdicts v USING (verdict) CROSS JOIN run r
            LEFT JOIN levels l ON l.fail_on = r.fail_on AND l.verdict = p.verdict
        WHERE p.counted IS NOT '[]' OR p.culprit != '[]' OR p.expected = 'oracle'""",
    "cells": f"""
        WITH asked AS (
            SELECT c.rowid AS number, c.id AS case_id, c.op, d.value AS dtype, b.name AS backend,
                coalesce(nullif(c.baseline, ''), r.baseline) AS baseline
            FROM cases c JOIN json_each(c.dtypes) d CROSS JOIN backends b LEFT JOIN run r ON 1
            WHERE c.backends = '[]' OR b.name IN (SELECT value FROM json_each(c.backends))
        ), compared AS (
            SELECT case_id, dtype, backend, count(*) AS n_comparisons, sum(fails) AS n_failing,
                max(fails_run) AS fails_run, max(counted IS NOT '[]') AS counts,
                sum(verdict != 'not-compared') AS n_made,
                max(CASE WHEN verdict = 'not-compared' THEN -1 ELSE severity END) AS severity,
                count(known) AS n_known, max(CASE WHEN verdict != 'not-compared' THEN known END) AS known,
                max(suspect) AS suspect, max(error_ratio) AS error_ratio, max(max_abs_diff) AS max_abs_diff
            FROM owned GROUP BY case_id, dtype, backend
        )
        SELECT a.case_id, a.op, a.dtype, a.backend,
            CASE WHEN m.fails_run THEN 'failed'
                WHEN o.outcome IS NULL THEN 'not-run'
                WHEN o.outcome = 'unsupported' THEN
                    CASE WHEN m.n_known = m.n_comparisons THEN 'known' ELSE 'unsupported' END
                WHEN o.outcome != 'ok' THEN iif(m.counts = 0, 'below', 'error')
                WHEN coalesce(m.n_made, 0) = 0 THEN
                    CASE WHEN a.op IN {REFERENCED} AND a.backend = a.baseline THEN 'passed' ELSE 'not-run' END
                WHEN m.known IS NOT NULL THEN 'known'
                WHEN m.n_failing THEN 'below'
                WHEN m.suspect THEN 'suspect' ELSE 'passed' END AS status,
            coalesce(v.verdict, 'not-compared') AS verdict, o.outcome, o.seconds, o.message, o.composed,
            coalesce(m.n_comparisons, 0) AS n_comparisons, coalesce(m.n_failing, 0) AS n_failing,
            m.error_ratio, m.max_abs_diff, m.known
        FROM asked a LEFT JOIN outcomes o USING (case_id, dtype, backend)
            LEFT JOIN compared m USING (case_id, dtype, backend)
            LEFT JOIN verdicts v ON v.severity = m.severity
        ORDER BY a.number""",  # noqa: S608 - REFERENCED is a constant
    "findings": """
        SELECT w.case_id, c.op, w.dtype, w.backend, w.tensor, w.verdict, w.error_ratio,
            (SELECT group_concat(g.id, ', ') FROM diagnoses g, json_each(g.tensors) t
                WHERE (g.case_id, g.dtype, g.backend) = (w.case_id, w.dtype, w.backend) AND t.value = w.tensor
            ) AS diagnosis,
            w.known, sum(w.fails_run) > 0 AS fails_run, w.actual, w.expected,
            w.max_abs_diff, w.max_rel_diff, w.max_ulp_diff, w.rtol, w.atol,
            w.n_elements, w.n_mismatched, w.actual_value, w.expected_value, w.oracle_value
        FROM owned w JOIN cases c ON c.id = w.case_id
        WHERE w.fails OR (w.suspect AND w.culprit != '[]')
        GROUP BY w.case_id, w.dtype, w.backend, w.tensor
        HAVING max(2 * w.severity + (w.expected = 'oracle'))""",
    "tensors": """
        SELECT case_id, dtype, tensor,
            CASE WHEN NOT max(p.counted IS NOT '[]') THEN
                    CASE WHEN count(p.known) THEN 'known'
                        WHEN max(v.fails OR p.verdict = 'not-compared') THEN 'below' ELSE 'passed' END
                WHEN max(l.verdict IS NOT NULL AND p.known IS NULL AND p.counted IS NOT '[]') THEN 'failed'
                WHEN max(p.verdict = 'not-compared' AND p.known IS NULL AND p.counted IS NOT '[]') THEN 'error'
                WHEN sum(p.verdict != 'not-compared' AND p.counted IS NOT '[]') = 0
                    OR max(p.verdict != 'not-compared' AND p.known IS NOT NULL AND p.counted IS NOT '[]') THEN 'known'
                WHEN max(v.fails AND p.counted IS NOT '[]') THEN 'below'
                WHEN max(p.verdict != 'not-compared' AND p.suspect AND p.counted IS NOT '[]') THEN 'suspect'
                ELSE 'passed' END AS status
        FROM comparisons p JOIN verdicts v USING (verdict) CROSS JOIN run r
            LEFT JOIN levels l ON l.fail_on = r.fail_on AND l.verdict = p.verdict
        GROUP BY case_id, dtype, tensor""",
}
"""Views for queries: `owned` has a row for each comparison and backend that it belongs to, `cells` one for each case,
dtype and backend, `tensors` one for each tensor, and `findings` one for each tensor in which a backend differs: its
worst comparison, that with the oracle if several are as bad (SQLite takes bare columns from the row of the maximum)."""

AMONG = "case_id IN (SELECT value FROM json_each(?))"
OVERVIEW = "SELECT op, backend, dtype, status, verdict, case_id, error_ratio FROM cells"
URGENCY = ("failed", "error", "not-run", "unsupported", "known", "below", "suspect", "passed")
"""The values of `cells.Status`, in its order."""


class Store:
    """A store, open for reading and writing; without a path it is in memory.

    If the disk refuses to write, the store continues in memory, `lost` is called with the reason, and the file is
    removed.
    """

    def __init__(self, path: Path | None = None, lost: Callable[[OSError], None] | None = None) -> None:
        self.path, self._lost = path, lost
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        self._due = time.monotonic() + COMMIT_S
        self._overview: tuple[list[MatrixRow], list[str]] | None = None
        try:
            self.db = connected(path)
            self._prepare()
        except sqlite3.Error as error:
            self._continue_in_memory(error)

    def _prepare(self) -> None:
        """Create the tables of a new store."""
        if self.path is not None:
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        version = version_of(self.db)
        if version < SCHEMA_VERSION:
            with self.db:
                self.db.execute("BEGIN")
                for statement in list(upgrade(self.db)) if version else schema():
                    self.db.execute(statement)

    def add(self, rows: Iterable[Any]) -> None:
        """Rows of any type, all or none of them, to be written with the next transaction."""
        self._waiting += [(table.insert, table.values(row)) for row in rows for table in (BY_ROW[type(row)],)]
        self._overview = None
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write the waiting rows if they have waited long enough."""
        if self._waiting and time.monotonic() > self._due:
            self.flush()

    def put(self, table: Table, rows: Iterable[Any]) -> None:
        """Replace a whole table."""
        self._waiting.append((f'DELETE FROM "{table.name}"', ()))  # noqa: S608
        self._waiting += [(table.insert, table.values(row)) for row in rows]
        self._overview = self._overview if table in (KNOWN, SUMMARY) else None

    def keep(self, cells: Iterable[tuple[str, str]]) -> None:
        """Delete all rows but those of these (case, dtype)."""
        self.change("CREATE TEMP TABLE kept (case_id, dtype, PRIMARY KEY (case_id, dtype))")
        self._waiting += [("INSERT INTO kept VALUES (?, ?)", cell) for cell in cells]
        for table in BY_CELL:
            rest = "(case_id, dtype) NOT IN kept"
            self.change(f"DELETE FROM {table.name} WHERE {rest}")  # noqa: S608
        self.change("DROP TABLE kept")
        self.flush()

    def change(self, statement: str, *values: Any) -> None:
        """Any other change."""
        self._waiting.append((statement, values))
        self._overview = None

    def revise(self, cell: tuple[str, str, str], ids: Iterable[str], rows: Iterable[Diagnosis]) -> None:
        """Replace the diagnoses of a case, dtype and backend that have these ids."""
        among = "id IN (SELECT value FROM json_each(?))"
        statement = f"DELETE FROM diagnoses WHERE case_id = ? AND dtype = ? AND backend = ? AND {among}"  # noqa: S608
        self.change(statement, *map(plain, cell), json.dumps(list(ids)))
        self.add(rows)

    def flush(self) -> None:
        """Write the waiting rows in one transaction, exactly once even if Ctrl-C interrupts it."""
        waiting, self._due, has_begun = self._waiting, time.monotonic() + COMMIT_S, False
        if not waiting:
            return
        try:
            self.db.execute("BEGIN IMMEDIATE")
            has_begun = True
            for statement, alike in itertools.groupby(waiting, key=itemgetter(0)):
                self.db.executemany(statement, map(itemgetter(1), alike))
            self.db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._undo()
            if self.path is None:
                raise
            self._continue_in_memory(error)
            self.flush()
        except BaseException:
            if has_begun and not self.db.in_transaction:
                self._waiting = []
            self._undo()
            raise
        self._waiting = []

    def _undo(self) -> None:
        """Roll back a failed transaction."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def _continue_in_memory(self, error: sqlite3.Error) -> None:
        """Continue in memory with the rows written so far; raises the error if there is no `lost`."""
        if self._lost is None or self.path is None:
            raise reason(error) from error
        memory = connected(None)
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self.db.backup(memory)
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self.db.close()
        remove(self.path)
        self._lost(reason(error))
        self.path, self.db = None, memory
        self._prepare()

    def select(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        self.flush()
        return self.db.execute(statement, values).fetchall()

    def rows(self, table: Table, where: str = "1", *values: Any) -> Iterator[Any]:
        """The rows of a table in the order in which they were written, a batch at a time; raises ResultsError."""
        self.flush()
        columns = ", ".join(f'"{c.name}"' for c in table.columns)
        statement = f'SELECT {columns}, odd FROM "{table.name}" WHERE {where} ORDER BY rowid'  # noqa: S608
        try:
            yield from map(table.read, self.db.execute(statement, values))
        except (msgspec.ValidationError, ValueError, KeyError) as error:
            raise ResultsError(f"{self.path or STORE}: {table.name}: {problem(error)}") from error
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error

    def one(self, table: Table) -> Any:
        """The only row of a table; raises ResultsError if there is none."""
        row = next(self.rows(table), None)
        if row is None:
            raise ResultsError(f"{self.path or STORE}: it has no {table.name}")
        return row

    def results(self, where: str = "1", *values: Any) -> Results:
        """The rows of the cases that a condition on `case_id` selects, by default all."""
        summary = self.one(SUMMARY)
        picked: dict[str, Any] = {table.name: list(self.rows(table, where, *values)) for table in BY_CELL}
        return Results(
            run=self.one(RUN),
            backends=list(self.rows(BACKENDS)),
            cases=list(self.rows(CASES, where.replace("case_id", "id"), *values)),
            known=list(self.rows(KNOWN)),
            summary=self.numbers(INTERRUPTED) if summary.exit_code == INTERRUPTED else summary,
            **picked,
        )

    def shown(self) -> Results:
        """All rows; of a large run, those of the most urgent cases worth showing."""
        if self.n_outcomes < LARGE:
            return self.results()
        rows, cases = self.overview()
        part = self.results(AMONG, json.dumps(cases))
        return structs.replace(part, left_out=sum(row.n_cells for row in rows) - n_cells(part), matrix=rows)

    def overview(self) -> tuple[list[MatrixRow], list[str]]:
        """How many cells of each op, backend and dtype have each status, and the most urgent cases that have not
        passed; kept until rows change, since going over all cells takes seconds where they are 10^5."""
        self.flush()
        if self._overview is None:
            counts: Counter[tuple[str, str, str, str]] = Counter()
            worst: dict[tuple[str, str, str, str], str] = {}
            urgent: dict[str, tuple[int, float]] = {}
            for op, backend, dtype, status, verdict, case, ratio in self.db.execute(OVERVIEW):
                key = op, backend, dtype, status
                counts[key] += 1
                worst[key] = max(worst.get(key, verdict), verdict, key=SEVERITY.__getitem__)
                if status != URGENCY[-1]:
                    rank = URGENCY.index(status), -(ratio or 0.0)
                    urgent[case] = min(urgent.get(case, rank), rank)
            rows = [MatrixRow(*key, verdict=worst[key], n_cells=n) for key, n in counts.items()]
            self._overview = rows, heapq.nsmallest(MAX_CASES, urgent, key=urgent.__getitem__)
        return self._overview

    @property
    def n_outcomes(self) -> int:
        """The number of outcomes."""
        return int(self.select("SELECT count(*) FROM outcomes")[0][0])

    def numbers(self, exit_code: int) -> Summary:
        """Number of each outcome, verdict and status, in the order of first appearance or of urgency."""
        outcomes, verdicts = (
            dict(self.select(f"SELECT {name}, count(*) FROM {table} GROUP BY 1 ORDER BY min(rowid)"))  # noqa: S608
            for name, table in (("outcome", "outcomes"), ("verdict", "comparisons"))
        )
        tensors = dict(self.select("SELECT status, count(*) FROM tensors GROUP BY 1"))
        statuses: Counter[str] = Counter()
        for row in self.overview()[0]:
            statuses[row.status] += row.n_cells
        cells = {status: statuses[status] for status in URGENCY if statuses[status]}
        return Summary(outcomes=outcomes, verdicts=verdicts, cells=cells, tensors=tensors, exit_code=exit_code)

    def close(self) -> None:
        """Write the waiting rows, and leave a single file that can be copied and read anywhere."""
        self.flush()
        if self.path is not None:
            with contextlib.suppress(sqlite3.Error):  # another process is reading it
                self.db.execute("PRAGMA journal_mode = DELETE")
        self.db.close()


def placed(case: CaseRow) -> tuple[str, str, str]:
    """The change that says where the inputs of a case are."""
    return "UPDATE cases SET inputs = ? WHERE id = ?", plain(encode(msgspec.to_builtins(case.inputs))), plain(case.id)


def n_cells(results: Results) -> int:
    """The cells that the cases of results consist of."""
    n = len(results.backends)
    return sum(len(case.dtypes) * (len(case.backends) or n) for case in results.cases)


def schema() -> Iterator[str]:
    """The statements that create a store."""
    for table in TABLES:
        yield from table.definition
    yield VERDICTS
    yield LEVEL
    for verdict, severity in SEVERITY.items():
        yield f"INSERT INTO verdicts VALUES ('{verdict}', {severity}, {verdict in PASSING}, {verdict in FAILING})"  # noqa: S608
    for level, verdicts in {"": LEVELS[DEFAULT_FAIL_ON], **LEVELS}.items():
        yield f"INSERT INTO levels VALUES {', '.join(f'{(level, verdict)}' for verdict in sorted(verdicts))}"  # noqa: S608
    yield from views()


def views() -> Iterator[str]:
    """The statements that create the views, and say which version of the schema this is."""
    for name, query in VIEWS.items():
        yield f"CREATE VIEW {name} AS {query}"
    yield f"PRAGMA user_version = {SCHEMA_VERSION}"


def upgrade(db: sqlite3.Connection) -> Iterator[str]:
    """The statements that add to an older store what it lacks."""
    for table in TABLES:
        for column in lacking_columns(db, table):
            value = encode(column.default) if column.is_json and column.default is not None else column.default
            [literal] = db.execute("SELECT quote(?)", (value,)).fetchone()
            yield f'ALTER TABLE "{table.name}" ADD COLUMN "{column.name}" {column.kind} DEFAULT {literal}'
    for name in VIEWS:
        yield f"DROP VIEW IF EXISTS {name}"
    yield from views()


def lacking_columns(db: sqlite3.Connection, table: Table) -> list[Column]:
    """The columns of a table that an older store does not have."""
    present = {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (table.name,))}
    return [column for column in table.columns if present and column.name not in present]


def connected(path: Path | None) -> sqlite3.Connection:
    """A connection without transactions of its own."""
    db = sqlite3.connect(":memory:" if path is None else path, timeout=BUSY_S, isolation_level=None)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def version_of(db: sqlite3.Connection) -> int:
    """The version of a store's schema; 0 if it is new."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def reason(error: sqlite3.Error) -> OSError:
    """Why a store cannot be written, as the system says it."""
    full = getattr(error, "sqlite_errorname", "").startswith("SQLITE_FULL")
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else OSError(errno.EIO, str(error))


def remove(path: Path) -> None:
    """Remove a store with its log; raises OSError."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[Store]:
    """A store as it is, also while a run writes it; raises ResultsError if it cannot be read."""
    if not path.is_file():
        raise ResultsError(f"{path}: No such file or directory; is {path.parent} a run directory?")
    store = Store.__new__(Store)
    store.path, store._lost, store._waiting, store._overview = path, None, [], None
    try:
        store.db = opened(path)
        with contextlib.closing(store.db):
            version = version_of(store.db)
            if version > SCHEMA_VERSION:
                raise ResultsError(
                    f"{path} was written by a newer release of parity (format {version}, this one reads "
                    f"{SCHEMA_VERSION}): update parity"
                )
            if not version:
                raise ResultsError(f"{path} holds no run: it is empty, or no file of parity; {instead_of(path)}")
            if version < SCHEMA_VERSION:
                store.db = upgraded(store.db)
            yield store
    except sqlite3.Error as error:
        raise unreadable(path, error) from error


def upgraded(db: sqlite3.Connection) -> sqlite3.Connection:
    """A copy in memory of a store of an earlier release, with the columns and views of this one."""
    memory = connected(None)
    db.backup(memory)
    for statement in list(upgrade(memory)):
        memory.execute(statement)
    memory.execute("PRAGMA query_only = ON")
    return memory


def unreadable(path: Path | None, error: sqlite3.Error) -> ResultsError:
    """Why a store cannot be read, and what to do."""
    if path is None or not is_broken(error):
        return ResultsError(f"{path or STORE}: {error}")
    return ResultsError(f"{path} is broken ({error}); {instead_of(path)}")


def is_broken(error: Exception) -> bool:
    """Whether a store's file is the reason of an error."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def instead_of(path: Path) -> str:
    """What to do if a store is lost."""
    if path.with_name(FILE_NAME).is_file():
        return f"delete it, then parity reads {FILE_NAME} beside it"
    return "its rows are lost: delete the directory and run the config again"


def opened(path: Path) -> sqlite3.Connection:
    """A read-only connection; it ignores a log beside the store if the folder is not writable."""
    uri = path.resolve().as_uri()
    for query in ("mode=ro", "mode=ro&immutable=1"):
        db = sqlite3.connect(f"{uri}?{query}", uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            version_of(db)
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError:
            db.close()
            if os.access(path.parent, os.W_OK):
                raise
            continue
        return db
    raise sqlite3.OperationalError("it cannot be opened")


def store_of(results: Results) -> Store:
    """A store of results in memory."""
    store = Store()
    fill(store, results)
    return store


def fill(store: Store, results: Results) -> None:
    """Put all rows of results into a store."""
    store.put(RUN, [results.run])
    store.put(SUMMARY, [results.summary])
    for table in (BACKENDS, CASES, KNOWN, *BY_CELL):
        store.put(table, getattr(results, table.name))
    store.flush()
