"""The finished rows of an interrupted run, for `--resume`, which must have the same plan."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from parity.config.plan import CasePlan, Plan
from parity.engine import EngineOptions
from parity.errors import UserError
from parity.judge.compare.verdict import Comparison
from parity.reporting.results import record
from parity.reporting.results.measures import measures_of
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import FILE_NAME, BackendRow, CaseRow, ResultsError, RunRow
from parity.reporting.results.store import BACKENDS, CASES, RUN, STORE, Store, fill, read_only, store_of
from parity.reporting.results.strict_json import spelled

Key = tuple[str, str, str, str, str]


class ResumeError(UserError):
    """The run in this directory cannot be resumed; the message says why."""


@dataclass(frozen=True)
class Finished:
    """The finished cells as (case, dtype), and the run's properties; their rows are in the store."""

    cells: frozenset[tuple[str, str]] = frozenset()
    started: datetime.datetime | None = None
    seconds: float = 0.0
    judge_seconds: float = 0.0
    backends: Mapping[str, BackendRow] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)

    def holds(self, case: CasePlan) -> bool:
        """Whether every cell of the case is finished."""
        return all((case.id, dtype) in self.cells for dtype in case.dtypes)


def finished(plan: Plan, options: EngineOptions, run_dir: Path) -> Finished:
    """The finished part of the run in `run_dir`; raises ResumeError if its plan was another one."""
    if not any((run_dir / name).exists() for name in (STORE, FILE_NAME)):
        raise ResumeError(f"{run_dir} holds no run to continue; run it without --resume")
    try:
        with stored(run_dir) as store:
            for name in missing(store.one(RUN)):
                raise ResumeError(
                    f"{run_dir}: its results are not those of a run: {name} is missing; run it without --resume"
                )
            for difference in differences(plan, options, store, run_dir):
                raise ResumeError(
                    f"{run_dir}: {difference}; --resume needs the same plan. For a new run, name another --out"
                )
            return kept(store, frozenset(finished_cells(plan, store, run_dir)))
    except ResultsError as error:
        raise ResumeError(f"{error}, or run it without --resume") from error
    except ValueError as error:
        raise ResumeError(f"{run_dir}: its results are not those of a run: {error!r}") from error


@contextlib.contextmanager
def stored(run_dir: Path) -> Iterator[Store]:
    """The rows of a run: its store, or one in memory of its results.json; raises ResultsError."""
    if (run_dir / STORE).is_file():
        with read_only(run_dir / STORE) as store:
            yield store
    else:
        with contextlib.closing(store_of(read_results(run_dir))) as store:
            yield store


def going_on(run_dir: Path, cells: Iterable[tuple[str, str]], lost: Callable[[OSError], None]) -> Store:
    """The store of a run that is resumed, with the rows of `cells` alone; raises ResultsError."""
    path = run_dir / STORE
    if not path.is_file():
        results = read_results(run_dir)
        store = Store(path, lost)
        fill(store, results)
    else:
        store = Store(path, lost)
    store.keep(cells)
    return store


def missing(run: RunRow) -> Iterator[str]:
    """The parts that a resumable run needs but this one lacks."""
    given = {"started": run.started, "seconds": run.seconds, "judge_seconds": run.judge_seconds, "host": run.host}
    yield from (name for name, value in given.items() if value in (None, "", {}))


def kept(store: Store, cells: frozenset[tuple[str, str]]) -> Finished:
    """The state from which a run resumes, with these finished cells."""
    ids, run = {case for case, _ in cells}, store.one(RUN)
    return Finished(
        cells,
        started=datetime.datetime.fromisoformat(run.started),
        seconds=run.seconds or 0.0,
        judge_seconds=run.judge_seconds or 0.0,
        backends={row.name: row for row in store.rows(BACKENDS) if row.version},
        folders={case.id: Path(case.files[-1]).parent for case in store.rows(CASES) if case.files and case.id in ids},
    )


def differences(plan: Plan, options: EngineOptions, store: Store, run_dir: Path) -> Iterator[str]:
    """The differences between a stored run and the requested one."""
    run = store.one(RUN)
    if [config.sha256 for config in run.configs] != [config.sha256 for config in plan.configs]:
        yield "its configs were different or have changed"
    asked = {"seed": plan.seed, "baseline": plan.baseline, "threads": options.threads}
    given = {"seed": run.seed, "baseline": run.baseline, "threads": run.host.get("threads")}
    for name, value in asked.items():
        if given[name] != value:
            yield f"its {name} was {given[name]}, now it is {value}"
    if list(map(identity, store.rows(BACKENDS))) != [identity(record.backend_row(spec)) for spec in plan.backends]:
        yield "its backends were different"
    elif run.subject != list(plan.subject):
        was, now = (", ".join(names) or "every backend" for names in (run.subject, plan.subject))
        yield f"its subject was {was}, now it is {now}"
    if list(map(question, store.rows(CASES))) != [question(record.case_row(case, None)) for case in plan.cases]:
        yield "its cases, or their dtypes or steps, were different"
    for spec in plan.backends:
        copy = run_dir / record.ops_copy(spec)
        if spec.ops is not None and copy.is_file() and copy.read_bytes() != spec.ops.read_bytes():
            yield f"{spec.ops} has changed"
    yield from other_limits(plan, store)


LIMITS = """
SELECT DISTINCT case_id, dtype, tensor, rtol, atol FROM comparisons WHERE verdict != 'not-compared' ORDER BY rowid
"""
"""Where nothing could be compared, a row may stand for all tensors of its case."""


def other_limits(plan: Plan, store: Store) -> Iterator[str]:
    """The stored tolerances that are not those of the plan."""
    limits = {case.id: case.tolerance for case in plan.cases if not measures_of(case.op).resumes_by_dtype}
    for case_id, dtype, tensor, rtol, atol in store.select(LIMITS):
        limit = limits[case_id].lookup(dtype, tensor) if case_id in limits else None
        if limit is not None and (limit.rtol, limit.atol) != (rtol, atol):
            yield f"its tolerances were different: rtol {rtol:g} and atol {atol:g} for {tensor}"


def identity(row: BackendRow) -> tuple[Any, ...]:
    """The fields of a backend that a config determines."""
    return row.name, row.framework, row.mode, row.device, row.ops


def question(row: CaseRow) -> Any:
    """The content of a row of `cases`, without its location in the config and its files."""
    inputs = {name: (item.shape, item.draw) for name, item in row.inputs.items()}
    brought = row.brought and (row.brought.text, row.brought.differentiable)
    own = row.backends, row.baseline, row.subject
    return spelled(to_builtins((row.id, row.op, row.params, row.dtypes, inputs, *own, brought)))


def finished_cells(plan: Plan, store: Store, run_dir: Path) -> Iterator[tuple[str, str]]:
    """The finished cells: a case counts with all its cells, a training per dtype."""
    answered = set(store.select("SELECT case_id, dtype, backend FROM outcomes"))
    compared = set(store.select("SELECT DISTINCT case_id, dtype FROM comparisons"))
    for index, case in enumerate(plan.cases):
        kind = measures_of(case.op)
        whole = {
            (case.id, dtype)
            for dtype in case.dtypes
            if (case.id, dtype) in compared
            and all((case.id, dtype, spec.name) in answered for spec in plan.of(case).backends)
            and not kind.is_going(run_dir, index, case, dtype)
        }
        if kind.resumes_by_dtype or len(whole) == len(case.dtypes):
            yield from whole


def key(row: Comparison) -> Key:
    """The identity of a comparison."""
    return row.case, row.dtype, row.tensor, row.actual, row.expected
