"""What an interrupted run leaves for the one that goes on: checked to be of the same plan, as rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.config.plan import CasePlan, Plan
from parity.engine import EngineOptions
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results import record
from parity.reporting.results.results import Results, ResultsError, Row, encode, read_results
from parity.training.lockstep.session import CHECKPOINT, training_folder
from parity.training.spec import TRAIN

Key = tuple[str, str, str, str, str]


class ResumeError(Exception):
    """A run directory from which this run cannot go on; the message says why."""


@dataclass(frozen=True)
class Finished:
    """What was finished: the cells as (case, dtype), and the rows that speak of them."""

    cells: frozenset[tuple[str, str]] = frozenset()
    started: datetime.datetime | None = None
    seconds: float = 0.0
    judge_seconds: float = 0.0
    backends: Mapping[str, Row] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    outcomes: tuple[Row, ...] = ()
    comparisons: tuple[Row, ...] = ()
    diagnoses: tuple[Row, ...] = ()
    trainings: tuple[Row, ...] = ()

    def holds(self, case: CasePlan) -> bool:
        """Whether every cell of the case is finished."""
        return all((case.id, dtype) in self.cells for dtype in case.dtypes)


def finished(plan: Plan, options: EngineOptions, run_dir: Path) -> Finished:
    """What the run in `run_dir` has finished of the plan; raises ResumeError where it was another plan's."""
    try:
        results = read_results(run_dir)
        for difference in differences(plan, options, results, run_dir):
            raise ResumeError(
                f"{run_dir}: {difference}; --resume goes on with the very same run, so name another --out for a new one"
            )
        return kept(results, frozenset(finished_cells(plan, results, run_dir)))
    except ResultsError as error:
        raise ResumeError(f"{error}; run it without --resume") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResumeError(f"{run_dir}: its results are not those of a run: {error!r}") from error


def kept(results: Results, cells: frozenset[tuple[str, str]]) -> Finished:
    """The rows that speak of `cells`."""
    stored = {case["id"]: Path(path).parent for case in results.cases for path in files(case)}

    def rows(every: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(row for row in every if (row["case"], row["dtype"]) in cells)

    return Finished(
        cells,
        started=datetime.datetime.fromisoformat(results.run["started"]),
        seconds=float(results.run["seconds"]),
        judge_seconds=float(results.run["judge_seconds"]),
        backends={row["name"]: row for row in results.backends if row["version"]},
        folders={case: folder for case, folder in stored.items() if any(case == name for name, _ in cells)},
        outcomes=rows(results.outcomes),
        comparisons=rows(results.comparisons),
        diagnoses=rows(results.diagnoses),
        trainings=rows(results.trainings),
    )


def files(case: Row) -> list[str]:
    """The stored inputs of a case."""
    return [item["file"] for item in case["inputs"].values() if item["file"]]


def differences(plan: Plan, options: EngineOptions, results: Results, run_dir: Path) -> Iterator[str]:
    """What of a stored run is not what is asked for now."""
    run = results.run
    if [config["sha256"] for config in run["configs"]] != [config.sha256 for config in plan.configs]:
        yield "its configs were others, or were changed since"
    asked = {"seed": plan.seed, "baseline": plan.baseline, "threads": options.threads}
    given = {**run, "threads": run["host"]["threads"]}
    for name, value in asked.items():
        if given[name] != value:
            yield f"its {name} was {given[name]} and not {value}"
    if [identity(row) for row in results.backends] != [identity(record.backend_row(spec)) for spec in plan.backends]:
        yield "its backends were others"
    if list(map(question, results.cases)) != [question(plain(record.case_row(case, None))) for case in plan.cases]:
        yield "its cases were others, or other steps or dtypes of them"
    for spec in plan.backends:
        copy = run_dir / record.ops_copy(spec)
        if spec.ops is not None and copy.is_file() and copy.read_bytes() != spec.ops.read_bytes():
            yield f"{spec.ops} was changed since"
    limits = {case.id: case.tolerance for case in plan.cases if case.op != TRAIN}
    for row in results.comparisons:
        if row["case"] in limits and vars(limits[row["case"]].lookup(row["dtype"], row["tensor"])) != given_limits(row):
            yield f"its tolerances were others: {row['rtol']:g} and {row['atol']:g} for {row['tensor']}"


def identity(row: Row) -> tuple[Any, ...]:
    """What a config says of a backend."""
    return tuple(row.get(name) for name in ("name", "framework", "mode", "device", "ranks", "ops"))


def question(row: Row) -> Row:
    """What a row of `cases` says of the question; where it was written and stored does not matter."""
    inputs = {name: (item["shape"], item["draw"]) for name, item in row["inputs"].items()}
    return {**{name: row[name] for name in ("id", "op", "params", "dtypes")}, "inputs": inputs}


def plain(row: Row) -> Row:
    """A row as it is read back."""
    found: Row = json.loads(encode(row))
    return found


def given_limits(row: Row) -> Row:
    """The tolerance of a comparison."""
    return {"rtol": row["rtol"], "atol": row["atol"]}


def finished_cells(plan: Plan, results: Results, run_dir: Path) -> Iterator[tuple[str, str]]:
    """The cells of which everything is known: all cells of a case, but a training in each dtype alone."""
    answered = {(row["case"], row["dtype"], row["backend"]) for row in results.outcomes}
    compared = {(row["case"], row["dtype"]) for row in results.comparisons}
    for index, case in enumerate(plan.cases):
        whole = {
            (case.id, dtype)
            for dtype in case.dtypes
            if (case.id, dtype) in compared
            and all((case.id, dtype, spec.name) in answered for spec in plan.backends)
            and not (case.op == TRAIN and (training_folder(run_dir, index, case) / dtype / CHECKPOINT).exists())
        }
        if case.op == TRAIN or len(whole) == len(case.dtypes):
            yield from whole


def key(row: Row) -> Key:
    """What a comparison is of."""
    return row["case"], row["dtype"], row["tensor"], row["actual"], row["expected"]


def comparison(row: Row) -> Comparison:
    """A stored comparison, for the ledger; its measures stay in the row."""
    case, dtype, tensor, actual, expected = key(row)
    ratio = row["error_ratio"]
    return Comparison(
        case,
        dtype,
        tensor,
        actual,
        expected,
        verdict=Verdict(row["verdict"]),
        rtol=row["rtol"],
        atol=row["atol"],
        error_ratio=(ratio["actual"], ratio["expected"]),
        culprit=tuple(row["culprit"]),
        suspect=row["suspect"],
        message=row["message"],
    )


def diagnosis(row: Row) -> Diagnosis:
    """A stored diagnosis."""
    return Diagnosis(**{**row, "tensors": tuple(row["tensors"])})
