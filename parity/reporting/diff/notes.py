"""Other differences between two runs: versions, host, inputs, tolerances, known deviations."""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.reporting.diff.compared_run import ComparedRun, TensorState, shortened
from parity.reporting.results.rows import FAILING_STATES, CaseRow, KnownRow
from parity.reporting.text.evidence import plain
from parity.reporting.text.words import listed, number

MAX_ENTRY = 300
BACKEND_FIELDS = ("framework", "numpy", "python", "mode", "device", "flags")
RUN_FIELDS = (
    ("parity", "parity"),
    ("seed", "seed"),
    ("baseline", "baseline"),
    ("subject", "subject"),
    ("fail_on", "--fail-on"),
)
HOST_FIELDS = (("cpu", "CPU"), ("os", "OS"), ("threads", "threads"), ("cores", "cores"))
LITERAL = ("values(", "file(")
"""Draws whose description does not determine the numbers."""
CONSTANT = ("constant(", *LITERAL)
"""Draws that do not depend on the seed."""


@dataclass(frozen=True)
class KnownChange:
    """A `known` entry whose state changed; None if a run has no such entry."""

    before: str | None
    after: str | None
    message: str

    @property
    def fails(self) -> bool:
        """Whether the entry is out of date in B but was not in A."""
        return self.after in FAILING_STATES and self.before not in FAILING_STATES


def run_notes(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    """A line for each difference between the runs themselves."""
    for name, run in (("A", a), ("B", b)):
        if run.interrupted:
            yield f"{name} was interrupted; its unfinished cases were not compared"
    yield from backend_notes(a, b)
    for key, label in RUN_FIELDS:
        yield from changed(label, getattr(a.results.run, key), getattr(b.results.run, key))
    for key, label in HOST_FIELDS:
        yield from changed(label, a.results.run.host.get(key), b.results.run.host.get(key))
    configs = [{config.path: config.sha256 for config in run.results.run.configs} for run in (a, b)]
    for path in dict.fromkeys([*configs[0], *configs[1]]):
        if configs[0].get(path) != configs[1].get(path):
            where = "changed" if path in configs[0] and path in configs[1] else "is only in one run"
            yield f"config {path} {where}"


def backend_notes(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    """`torch 2.13.0 -> 2.14.0`, and backends that are in one run only."""
    before, after = a.backends, b.backends
    for name in dict.fromkeys([*before, *after]):
        if name not in after or name not in before:
            yield f"{name} is only in {'A' if name in before else 'B'}"
            continue
        old, new = before[name], after[name]
        if old.name != new.name:
            how = ", because framework and mode are the same; --map changes it" if old.name in a.paired else ""
            yield f"{old.name} in A ({old.version}) is compared with {name} in B ({new.version}){how}"
        else:
            yield from changed(name, old.version or "(version unknown)", new.version or "(version unknown)")
        for field in BACKEND_FIELDS:
            yield from changed(f"{name} {field}", getattr(old, field), getattr(new, field))
        if files_differ(a, old.ops, b, new.ops):
            yield f"{name}: its ops file changed"
    if a.run_dir.resolve() == b.run_dir.resolve():
        return
    for row in a.results.backends:
        if row.name not in a.names:
            yield f"{row.name} of A is not compared: --map gives its name to another backend"


def changed(label: str, before: Any, after: Any) -> Iterator[str]:
    """`threads 1 -> 2`, if it changed."""
    if before != after:
        yield f"{label} {value_text(before)} -> {value_text(after)}"


def value_text(value: Any) -> str:
    """A value as a short text."""
    return "none" if value is None or value == "" else shortened(plain(value))


def case_notes(a: ComparedRun, b: ComparedRun) -> dict[str, tuple[str, ...]]:
    """For each case of both runs whose inputs or params changed: the changes."""
    before, after = a.cases, b.cases
    notes_of = {case: tuple(given_notes(before[case], after[case], a, b)) for case in before if case in after}
    return {case: notes for case, notes in notes_of.items() if notes}


def given_notes(old: CaseRow, new: CaseRow, a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    """The changes of a case: op, params, and every input's shape, draw and numbers."""
    yield from changed("op", old.op, new.op)
    for name in dict.fromkeys([*old.params, *new.params]):
        yield from changed(f"param {name}", old.params.get(name), new.params.get(name))
    seeds = [run.results.run.seed for run in (a, b)]
    for name in dict.fromkeys([*old.inputs, *new.inputs]):
        item, other = old.inputs.get(name), new.inputs.get(name)
        if item is None or other is None:
            yield f"input {name} is only in {'A' if other is None else 'B'}"
            continue
        yield from changed(f"input {name}: shape", item.shape, other.shape)
        yield from changed(f"input {name}:", item.draw, other.draw)
        if (item.shape, item.draw) == (other.shape, other.draw):
            drawn_again = seeds[0] != seeds[1] and not item.draw.startswith(CONSTANT)
            if drawn_again or (item.draw.startswith(LITERAL) and files_differ(a, item.file, b, other.file)):
                yield f"input {name} has other values"


def files_differ(a: ComparedRun, name: Any, b: ComparedRun, other: Any) -> bool:
    """Whether a file of A and one of B differ; False if one was not stored or is outside its run."""
    try:
        old, new = inside(a.run_dir, name), inside(b.run_dir, other)
        return old is not None and new is not None and not filecmp.cmp(old, new, shallow=False)
    except (OSError, RuntimeError, ValueError):
        # An invalid name, a loop of links, an unreadable file: same as not stored.
        return False


def inside(run_dir: Path, name: Any) -> Path | None:
    """A file of a run directory; None if it is outside or missing."""
    path = (run_dir / str(name)).resolve()
    return path if path.is_relative_to(run_dir.resolve()) and path.is_file() else None


def tolerance_note(a: TensorState, b: TensorState) -> str:
    """`tolerance rtol 1e-06 atol 1e-05 -> rtol 0.001 atol 1e-05`, or nothing."""
    if not a.limits or not b.limits or a.limits == b.limits:
        return ""
    old, new = (listed(f"rtol {number(rtol)} atol {number(atol)}" for rtol, atol in p.limits) for p in (a, b))
    return f"tolerance {old} -> {new}"


def known_changes(a: ComparedRun, b: ComparedRun) -> Iterator[KnownChange]:
    """Entries that fail only in B, then those that were added, removed or changed otherwise."""
    before, after = known_rows(a), known_rows(b)
    changes = []
    for key in dict.fromkeys([*after, *before]):
        old, new = before.get(key), after.get(key)
        was, now = (None if row is None else row.state for row in (old, new))
        if was != now:
            message = next(row.message for row in (new, old) if row is not None)
            changes.append(KnownChange(was, now, shortened(message, MAX_ENTRY)))
    yield from sorted(changes, key=lambda change: not change.fails)


def known_rows(run: ComparedRun) -> dict[tuple[str, ...], KnownRow]:
    """A run's entries by content; equal ones are numbered."""
    rows: dict[tuple[str, ...], KnownRow] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    for row in run.results.known:
        backend = str(row.backend)
        entry = (row.case, run.names.get(backend, backend), row.dtype, row.tensor, row.diagnosis, row.reason)
        key = tuple(map(str, entry))
        seen[key] += 1
        rows[*key, str(seen[key])] = row
    return rows
