"""The text of a script about itself, and what it prints if the backend returns what it returned in the run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from parity.config.nodes import printable
from parity.diagnoses import Entry, catalogue
from parity.judge.compare.verdict import Comparison, Verdict
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import CellResult
from parity.reporting.results.rows import Results, SourceLocation
from parity.reporting.text.evidence import HARMLESS
from parity.reporting.text.words import few as first_few
from parity.reporting.text.words import listed, plural
from parity.repro.literals import Code, paragraph
from parity.repro.recipe import ArrayLayout, Check, ScriptRecipe, lacks

MAX_TENSORS = 6
"""How many tensors are listed with their reasons; the script compares all."""

ABSENT = "no such tensor"
FIRST_CALL = "in call 1"
SUSPECT = "suspect"
ANOTHER = "follows a different convention"
TITLES: Mapping[str, str] = {
    "rounding": "differs by rounding",
    "choice": "returns another valid result",
    "degraded": "has only float32 accuracy",
    "unstable": "is less accurate than a careful implementation",
    "semantic": "computes a different formula",
    "nonfinite": "differs in NaN or infinity",
    "structure": "returns a different shape, dtype or set of outputs",
    SUSPECT: "exceeds the error bound",
    "error": "raises an error",
    "crash": "crashes",
    "timeout": "does not finish",
}
"""What a script shows, by verdict or outcome."""


def title(recipe: ScriptRecipe) -> str:
    """`layer_norm of paddle 3.3.1 has only float32 accuracy in float64: y, grad.x`."""
    cell, entry = recipe.cell, convention(recipe)
    if entry is not None:
        return printable(f"{subject(recipe)} {ANOTHER}: {entry.title} ({cell.dtype}: {few(cell.tensors)})")
    tensors = f": {few(cell.tensors)}" if recipe.checks else ""
    return printable(f"{subject(recipe)} {TITLES[kind(recipe)]} in {cell.dtype}{tensors}")


def subject(recipe: ScriptRecipe) -> str:
    """`layer_norm of paddle 3.3.1`, or `layer_norm in ops.py (paddle 3.3.1)`."""
    release = f"{recipe.framework} {recipe.backend.version}".rstrip()
    if recipe.cell.composed:
        return f"{recipe.op.name}, parity's own composition of {release} calls,"
    return f"{recipe.op.name} in {user_file(recipe)} ({release})" if recipe.ops else f"{recipe.op.name} of {release}"


def kind(recipe: ScriptRecipe) -> str:
    """The key of TITLES."""
    cell = recipe.cell
    return cell.outcome if not recipe.checks else cell.verdict if cell.failing else SUSPECT


def convention(recipe: ScriptRecipe) -> Entry | None:
    """The convention of the first explained diagnosis, if the finding is about it."""
    named = (row.id for row in recipe.cell.diagnoses if row.explained and row.id not in HARMLESS)
    entry = catalogue().get(next(named, ""))
    meant = recipe.checks and kind(recipe) in ("semantic", SUSPECT)
    return entry if meant and entry and entry.framework_choice else None


def only_rounding(recipe: ScriptRecipe) -> bool:
    """Whether every difference is rounding: no backend exceeds the error bound."""
    return bool(recipe.checks) and all(check.row.verdict == Verdict.ROUNDING for check in recipe.checks)


def not_theirs(recipe: ScriptRecipe) -> str:
    """Why a finding is not for the framework's maintainers; empty if it is."""
    if recipe.cell.composed:
        return f"parity composes the {recipe.framework} calls"
    return "only rounding" if only_rounding(recipe) else ""


def user_file(recipe: ScriptRecipe) -> str:
    """The name of the user's file as the config has it."""
    return str(recipe.backend.flags.get("ops") or "the user's ops")


def few(names: tuple[str, ...]) -> str:
    """The first of many tensors."""
    return first_few(names, MAX_TENSORS)


def versions(recipe: ScriptRecipe, results: Results) -> str:
    """The versions of the run."""
    row, host = recipe.backend, results.run.host
    parts = [f"{recipe.framework} {row.version or '(version unknown)'}", f"Python {row.python or '?'}"]
    parts += [f"NumPy {row.numpy or '?'}", row.device, plural(recipe.threads, "thread")]
    return ", ".join([*parts, *(str(host[name]) for name in ("os", "cpu") if host.get(name))])


def location(source: SourceLocation) -> str:
    """File and line of the case; for an absolute path only the name, since a script may be published."""
    path = PurePath(source.file)
    return f"{path.name if path.is_absolute() else path}:{source.line}"


def recorded_names(recipe: ScriptRecipe, results: Results) -> Iterator[tuple[str, str]]:
    """The meaning of the recorded names."""
    versions = {row.name: f"{row.framework} {row.version}" for row in results.backends}
    named = {check.label: getattr(check.row, check.other) for check in recipe.checks if check.label != "exact"}
    if recipe.checks:
        formula = (
            "the textbook formula" if recipe.cell.case.brought is None else "the reference at the end of this file"
        )
        same = "the same inputs" if recipe.n_calls == 1 else f"the inputs of call {recipe.n_calls}"
        yield "exact", f"{formula} in extended precision on {same}, rounded to float64"
    for label, backend in named.items():
        yield label, f"the result of {versions.get(backend, backend)} in the same run"


def reasons(recipe: ScriptRecipe) -> Iterator[tuple[str, str]]:
    """Each tensor with its verdict and the reason."""
    if not recipe.checks:
        yield recipe.cell.outcome, recipe.cell.message
    rows = {check.row.tensor: check.row for check in reversed(recipe.checks)}
    for tensor in recipe.cell.tensors[:MAX_TENSORS]:
        if tensor in rows:
            yield tensor, f"{rows[tensor].verdict}: {report_of(recipe.rows.case.op).reason(rows[tensor], recipe.rows)}"


def causes(cell: CellResult) -> Iterator[str]:
    """Each diagnosis in one sentence."""
    for row in cell.diagnoses:
        yield f"{row.id}: {row.title} ({listed(row.tensors)})"


def header(recipe: ScriptRecipe, results: Results, name: str, files: list[str]) -> list[Code]:
    """The docstring of the script `name`, which needs `files` beside it."""
    source = recipe.cell.case.source
    beside = f"; {listed(files)} must be beside it" if files else ""
    copies = [file for file in files if file.endswith(".py")]
    beside += f"; it tests {listed(copies)}, the copy of the run: fix that, or copy yours over it" if copies else ""
    exits = (
        "1 while the difference is there, 0 once it is fixed"
        if recipe.checks
        else "0 once the call works, another code until then"
    )
    parts = [
        ("case", f"{recipe.cell.id} ({location(source)})"),
        ("seen with", versions(recipe, results)),
    ]
    if recipe.n_calls > 1:
        parts.append(("calls", f"{recipe.n_calls}, each later one on other inputs in the memory of the first ones"))
    parts += [*reasons(recipe), *(("cause", text) for text in causes(recipe.cell)), *recorded_names(recipe, results)]
    parts += [("run", f"python {name} (needs {recipe.framework} and numpy{beside})"), ("exit code", exits)]
    width = 2 + max(len(printable(label)) for label, _ in parts)
    lines = [line for label, text in parts for line in paragraph(printable(label), text, width)]
    return [*paragraph("", title(recipe), 0), Code(""), *lines]


def recorded(recipe: ScriptRecipe) -> list[str]:
    """What the script prints if its backend returns what it returned in the run."""
    if not recipe.checks:
        return [f"{recipe.cell.outcome}: {printable(recipe.cell.message)}"]
    lines = [line for check in recipe.checks for line in recorded_check(check, recipe.label)]
    return [*lines, "the difference is there"]


def recorded_check(check: Check, label: str) -> Iterator[str]:
    """One comparison."""
    row = check.row
    tensor, live = row.tensor, check.shown or unheld(check)
    if check.structural and live is None and not lacks(row, getattr(row, check.live)):
        yield printable(f"{tensor}: {row.message}")
        return
    if check.structural:
        yield f"{tensor}: {label} has {live or ABSENT}, {check.label} has {check.expected or ABSENT}"
        return
    shape, n = (list(live.shape), math.prod(live.shape)) if live else ("?", "?")
    outside = "?" if row.n_mismatched is None else row.n_mismatched
    yield (
        f"{tensor} {shape} against {check.label}: {outside} of {n} elements exceed "
        f"rtol={row.rtol} atol={row.atol}; {odd_or_largest(row)}"
    )
    values = {
        label: getattr(row, f"{check.live}_value"),
        check.label: getattr(row, f"{check.other}_value"),
        "exact": row.oracle_value,
        **({} if check.first is None else {FIRST_CALL: check.first}),
    }
    yield f"    worst at {row.worst_index}: {', '.join(f'{name} {value}' for name, value in values.items())}"
    if check.accuracy:
        size = check.accuracy
        bound = f"the error bound is {size.limit:g}"
        where = f" in {size.where}" if size.where else ""
        yield f"    its error{where} is {size.ratio:.3g} times that of a careful implementation; {bound}"


def odd_or_largest(row: Comparison) -> str:
    """What is expected where only one value is finite, or the largest difference."""
    if row.verdict != Verdict.NONFINITE:
        return f"largest difference {row.max_abs_diff}"
    got, wanted = (
        "a number" if value is None or math.isfinite(value) else str(value).replace("nan", "NaN")
        for value in (row.actual_value, row.expected_value)
    )
    return f"{got} where {wanted} is expected"


def unheld(check: Check) -> ArrayLayout | None:
    """Shape and dtype of a tensor that NumPy cannot hold, from the comparison's message: only the dtype differs."""
    actual, expected = (re.escape(name) for name in (check.row.actual, check.row.expected))
    dtypes = re.fullmatch(rf"{actual} has dtype (?P<actual>\w+), {expected} (?P<expected>\w+)", check.row.message)
    return ArrayLayout(check.expected.shape, dtypes[check.live]) if dtypes and check.expected else None
