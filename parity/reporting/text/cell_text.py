"""What JUnit, Markdown and annotations say about a cell: lines of plain text without control characters."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from parity.config.nodes import printable
from parity.reporting.console.explain import rows_of, values_text
from parity.reporting.results.cells import NOT_COMPARED, Cell, Status
from parity.reporting.results.known_rows import FAILING_STATES
from parity.reporting.results.results import Results, Row
from parity.reporting.text.answer import plural
from parity.reporting.text.evidence import diagnosis_lines
from parity.reporting.text.reasons import CaseRows, enveloped, factor, number, reason
from parity.training.report.view import cell_lines, where_text
from parity.training.spec import TRAIN

MAX_NAMES = 4
HIDDEN = "hidden by the tolerance"
MAX_PER_TENSOR = 2
"""How many comparisons of one tensor are shown with their values: with the baseline and with the oracle."""

NO_RESULT = (Status.ERROR, Status.NOT_RUN, Status.UNSUPPORTED)


def case_rows(results: Results) -> dict[str, CaseRows]:
    """What the run says about each case, by its id."""
    parts: dict[str, tuple[list[Row], list[Row]]] = {case["id"]: ([], []) for case in results.cases}
    for i, rows in enumerate((results.comparisons, results.diagnoses)):
        for row in rows:
            if row["case"] in parts:
                parts[row["case"]][i].append(row)
    return {case["id"]: rows_of(case, Results(results.run, (), (), (), *parts[case["id"]])) for case in results.cases}


def failing_entries(results: Results) -> list[Row]:
    """The entries of the ledger that fail the run."""
    return [row for row in results.known if row["state"] in FAILING_STATES]


def place(row: Row) -> tuple[str, int]:
    """File and line of the config in which a case or an entry of the ledger stands."""
    source = mapping(row.get("source"))
    line = source.get("line")
    return str(source.get("file", "")), line if isinstance(line, int) and line > 0 else 1


def mapping(value: Any) -> Mapping[str, Any]:
    """What a stored run may leave out or misspell, as a mapping."""
    return value if isinstance(value, dict) else {}


def headline(cell: Cell) -> str:
    """One line: who, in which tensors, by how much and why; or why there is no result."""
    who = f"{cell.backend} {cell.dtype}"
    if cell.verdict == NOT_COMPARED:
        return printable(f"{who}: {no_result(cell)}")
    if not cell.finding:
        size = f", {factor(cell.excess)} tolerances off" if cell.training is None else ""
        return printable(f"{who}: {cell.verdict}{size}")
    told = math.isfinite(cell.excess) and not all(enveloped(row, cell.op) for row in cell.failing)
    size = f", {factor(cell.excess)} tolerances off" if told else ""
    ratio = f", error ratio {factor(cell.ratio)}" if cell.ratio is not None and math.isfinite(cell.ratio) else ""
    parts = parting_text(cell)
    return printable(f"{who}: {parts}{tensors_text(cell)}{size}{ratio}{cause(cell)}")


def parting_text(cell: Cell) -> str:
    """`parts at step 1 in the update; `, or nothing."""
    found = None if cell.training is None else cell.training["parting"]
    return f"{where_text(found)}; " if found else ""


def tensors_text(cell: Cell) -> str:
    """`nonfinite in y; unstable in grad.x; hidden by the tolerance in grad.bias`."""
    groups: dict[str, dict[str, None]] = {}
    told = {row["tensor"] for row in cell.failing}
    hidden = [(HIDDEN, row["tensor"]) for row in cell.hidden if row["tensor"] not in told]
    worst = {row["tensor"]: row["verdict"] for row in reversed(cell.failing)}
    for verdict, tensor in (*((worst[row["tensor"]], row["tensor"]) for row in cell.failing), *hidden):
        groups.setdefault(verdict, {}).setdefault(tensor)
    return "; ".join(f"{verdict} in {several(list(tensors))}" for verdict, tensors in groups.items())


def no_result(cell: Cell) -> str:
    """`crash: it was killed by SIGSEGV`, in one line."""
    if not cell.outcome:
        return "not run: the run was interrupted before it was compared"
    message = " | ".join(cell.message.splitlines()) or "no reason was given"
    return f"{cell.outcome}: {message}"


def cause(cell: Cell) -> str:
    """`; cause: variance-naive (the variance is E[x^2] - E[x]^2)`, or nothing."""
    titles = {row["id"]: row["title"] for row in reversed(cell.diagnoses)}
    said = [f"{name} ({titles[name]})" for name in cell.causes]
    return f"; cause: {several(said)}" if said else ""


def several(names: Sequence[str]) -> str:
    """`y, grad.x`, and how many more there are."""
    hidden = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def details(cell: Cell, rows: CaseRows) -> Iterator[str]:
    """The lines below the headline: every tensor with its values and its verdict's reason, then the causes."""
    if cell.verdict == NOT_COMPARED:
        lines = cell.message.splitlines()
        yield from map(printable, lines if len(lines) > 1 else ())
        return
    if cell.training is not None:
        yield from map(printable, cell_lines(cell.training))
    told: set[str] = set()
    for tensor in cell.tensors:
        group = [row for row in (*cell.failing, *cell.hidden) if row["tensor"] == tensor]
        yield from map(printable, tensor_lines(tensor, group, cell, rows, told))
    for diagnosis in cell.diagnoses:
        first, *rest = (line.plain for line in diagnosis_lines(diagnosis, brief=True))
        yield from (f"cause: {first}", *(f"  {line}" for line in rest))


def tensor_lines(tensor: str, group: Sequence[Row], cell: Cell, rows: CaseRows, told: set[str]) -> Iterator[str]:
    """One tensor: the values at its worst places, every side's error ratio, why it has its verdict.

    `told` takes in the reasons, none of which is said twice.
    """
    worst = group[0]
    yield f"{tensor}: {worst['verdict']}{'' if worst in cell.failing else ', and the tolerance hides it'}"
    yield from (f"  {values_text(row, cell.op)}" for row in group[:MAX_PER_TENSOR])
    if len(group) > MAX_PER_TENSOR:
        yield f"  and {plural(len(group) - MAX_PER_TENSOR, 'more comparison')} of it"
    ratios = rows.ratios(cell.dtype, tensor)
    if ratios:
        shown = ", ".join(f"{side} {number(ratio)}" for side, ratio in ratios.items())
        yield f"  error over that of careful {cell.dtype} code: {shown}"
    why = reason(worst, rows)
    if why not in told:
        yield f"  why: {why}"
        told.add(why)
    yield from (f"  accepted: {row['known']}" for row in group[:1] if row["known"] is not None)


def commands(case: Row, run_dir: str) -> tuple[str, ...]:
    """What to type to see more of a case; a training has no script."""
    arguments = f"{shlex.quote(printable(run_dir))} {shlex.quote(printable(case['id']))}"
    return tuple(f"parity {name} {arguments}" for name in ("explain", *scripts(case)))


def scripts(case: Row) -> tuple[str, ...]:
    """The command that makes a script of a case; there is none for a training."""
    return () if case["op"] == TRAIN else ("repro",)


def run_dir_of(results: Results) -> str:
    """The run directory as its command named it."""
    command = results.run.get("command")
    for word, following in pairwise([*map(str, command), ""] if isinstance(command, list) else ()):
        if word == "--out" or word.startswith("--out="):
            return word.partition("=")[2] or following
    return f"reports/{results.run['id']}" if results.run.get("id") else "RUN_DIR"


def accepted_text(cell: Cell, results: Results) -> str:
    """`known: naive variance, OneFlow 0.9.0 CPU (until 2027-06-30)`."""
    said = []
    for text in cell.reasons:
        dates = dict.fromkeys(str(row["until"]) for row in results.known if row.get("until") and row["reason"] in text)
        said.append(text + (f" (until {', '.join(dates)})" if dates else ""))
    return printable(f"known: {'; '.join(said)}")


def versions(results: Results) -> Mapping[str, str]:
    """Each backend with its framework, release and device."""
    parts = ("framework", "version", "mode", "device", "python")
    return {
        row["name"]: " ".join(f"{'Python ' if key == 'python' else ''}{row[key]}" for key in parts if row.get(key))
        for row in results.backends
    }


def environment(results: Results) -> Mapping[str, str]:
    """What the numbers depend on: versions, baseline, seed, machine, by name."""
    host = mapping(results.run.get("host"))
    wanted = {"parity": results.run.get("parity"), "baseline": results.run["baseline"], "seed": results.run.get("seed")}
    found = {**wanted, **versions(results), **{f"host {key}": value for key, value in host.items()}}
    found |= {"fail-on": results.run.get("fail_on"), "exit code": results.summary["exit_code"]}
    return {printable(str(key)): printable(str(value)) for key, value in found.items() if value not in (None, "")}
