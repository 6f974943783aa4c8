"""The words of `parity diff`, which all of its formats share: the answer, the sections, a row for each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parity import exit_codes
from parity.reporting.diff.compare import Change, ChangeKind, Diff, total_cells
from parity.reporting.diff.sides import ComparedRun, TensorState, shortened
from parity.reporting.results.cells import LABELS, Status
from parity.reporting.text.words import factor, few, grouped, listed, plural

ARROW = "->"
UNKNOWN = "–"
MAX_SHOWN = 2
"""How many names are shown where there may be many."""

NOUNS: Mapping[ChangeKind, str] = {ChangeKind.CAUSE: "with another cause", ChangeKind.GAINED: "compared now"}
"""What is said of some kinds of changes behind their number, in place of the kind's own name."""

MEANINGS: Mapping[ChangeKind, str] = {
    ChangeKind.NEW: "failing in B, but passing, accepted or not compared in A",
    ChangeKind.WORSE: "the verdict is worse or the error larger than in A, even where the tolerance hides it",
    ChangeKind.VANISHED: "compared in A, not compared in B",
    ChangeKind.FIXED: "failing or accepted in A, passing in B",
    ChangeKind.BETTER: "a milder verdict or a smaller error in B",
    ChangeKind.CAUSE: "the verdict is the same, the diagnosis is not",
    ChangeKind.ACCEPTED: "the ledger accepts in B what it did not in A",
    ChangeKind.TOLERATED: "worse, but the run lets it pass: suspect, accepted or below the level that fails",
    ChangeKind.GAINED: "not compared in A, passing in B",
}
"""A kind of change in words."""

COLUMNS = ("case", "dtype", "backend", "tensors", "verdict", "× tol", "error ratio", "cause", "note")
"""The columns of the changes that are listed one by one."""

GROUPED = (ChangeKind.VANISHED, ChangeKind.GAINED)
"""The kinds that are told by their reason: one backend that is gone takes hundreds of cells along."""

OPEN = (ChangeKind.NEW, ChangeKind.WORSE, ChangeKind.VANISHED)
"""The kinds that are not folded."""

LEGEND = (
    "× tol: the worst element's difference in tolerances. error ratio: the error over that of careful code in the same "
    "dtype, from 8 on a finding; a dash where it was not measured."
)


@dataclass(frozen=True)
class ReasonGroup:
    """The changes that have one reason, with the number of cells, and how many of them had failed."""

    reason: str
    changes: tuple[Change, ...]

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return total_cells(self.changes)

    @property
    def n_findings(self) -> int:
        """How many of them failed in A."""
        return total_cells(change for change in self.changes if change.was_finding)

    @property
    def text(self) -> str:
        """`the backend is not in B: 12 cells on oneflow, 4 of them findings (not fixed), for example ...`."""
        backends = few(dict.fromkeys(change.backend for change in self.changes), MAX_SHOWN)
        first = self.changes[0]
        example = f"{first.case} {first.dtype} {tensors_text(first)}"
        lost = f", {self.n_findings} of them had failed and count as not fixed" if self.n_findings else ""
        shown = f"for example {example}" if self.n_cells > 1 else example
        return f"{self.reason}: {plural(self.n_cells, 'cell')} on {backends}{lost}; {shown}"


def sections(diff: Diff) -> list[tuple[ChangeKind, tuple[Change, ...]]]:
    """The changes of each kind that there is."""
    return [(kind, changes) for kind in ChangeKind if (changes := diff.of(kind))]


def headline(diff: Diff) -> tuple[str, str]:
    """The answer in a word, and behind it the numbers."""
    if diff.exit_code == exit_codes.MISMATCH:
        return "WORSE", changed_text(diff)
    if not diff.met:
        return "INCOMPLETE", f"nothing was compared in both runs: {changed_text(diff)}"
    if diff.exit_code == exit_codes.INCOMPLETE:
        return "INCOMPLETE", f"nothing is worse, but {changed_text(diff)}"
    if not diff.changes:
        return "SAME", f"no difference: {changed_text(diff)}"
    kinds = {change.kind for change in diff.changes}
    return "BETTER" if kinds <= {ChangeKind.FIXED, ChangeKind.BETTER, ChangeKind.GAINED} else "CHANGED", changed_text(
        diff
    )


def changed_text(diff: Diff) -> str:
    """`2 new findings, 1 worse; 540 cells the same`."""
    counted = ", ".join(count_text(kind, n) for kind, n in diff.counts.items() if n)
    return f"{counted}{'; ' if counted else ''}{same_text(diff)}{only_b_text(diff)}{ledger_text(diff)}"


def count_text(kind: str, n: int) -> str:
    """`1 new finding`, `2 new findings`, `3 vanished`."""
    return plural(n, "new finding") if kind == ChangeKind.NEW else f"{n} {NOUNS.get(ChangeKind(kind), kind)}"


def same_text(diff: Diff) -> str:
    """`543 cells the same (11 of them compared in neither run)`."""
    never = f" ({diff.never} of them compared in neither run)" if diff.never else ""
    return f"{plural(diff.same + diff.never, 'cell')} the same{never}"


def only_b_text(diff: Diff) -> str:
    """`; 12 more in B only (10 passed, 2 no result)`, or nothing."""
    if not diff.only_b:
        return ""
    parts = ", ".join(f"{n} {LABELS[Status(status)]}" for status, n in diff.only_b.items())
    return f"; {sum(diff.only_b.values())} more in B only ({parts})"


def ledger_text(diff: Diff) -> str:
    """`; 1 entry of the ledger must be mended`, or nothing."""
    n = sum(change.fails for change in diff.ledger)
    return f"; {plural(n, 'entry of the ledger', 'entries of the ledger')} must be mended" if n else ""


def runs_text(diff: Diff) -> str:
    """Which run is A and which is B."""
    return f"A {run_text(diff.a)} {ARROW} B {run_text(diff.b)}"


def run_text(side: ComparedRun) -> str:
    """`reports/a (2026-11-21T06:26:20)`."""
    started = shortened(side.results.run.started)[:19]
    return f"{side.run_dir} ({started})" if started else str(side.run_dir)


def differences(diff: Diff) -> Iterator[str]:
    """What else is not the same: where trainings part, the runs, the cases, the ledger."""
    yield from diff.partings
    yield from diff.run_notes
    if diff.not_alike:
        n = len(diff.not_alike)
        kinds = few(dict.fromkeys(note for notes in diff.not_alike.values() for note in notes), MAX_SHOWN, "; ")
        yield f"{plural(n, 'case')} {'was' if n == 1 else 'were'} not given the same, numbers do not compare: {kinds}"
    for change in diff.ledger:
        yield f"ledger: {change.before or 'no entry'} {ARROW} {change.after or 'no entry'}: {change.message}"


def columns(change: Change) -> tuple[str, ...]:
    """A change as a row of a table, in the order of `COLUMNS`."""
    return (
        change.case,
        change.dtype,
        change.backend,
        tensors_text(change),
        moved(standing(change.before), standing(change.after)),
        moved(size_text(change.before.excess, change.before), size_text(change.after.excess, change.after)),
        moved(size_text(change.before.ratio, change.before), size_text(change.after.ratio, change.after)),
        moved(", ".join(change.before.causes), ", ".join(change.after.causes)),
        "; ".join([*reasons_text(change), *comparability(change)]),
    )


def change_table(changes: Sequence[Change]) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of the columns in which any change says something."""
    rows = [columns(change) for change in changes]
    used = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    return [COLUMNS[i] for i in used], [[row[i] for i in used] for row in rows]


def comparability(change: Change) -> Iterator[str]:
    """What forbids to compare the numbers."""
    if change.notes:
        yield f"not comparable: {few(change.notes, MAX_SHOWN, '; ')}"


def moved(before: str, after: str) -> str:
    """`before -> after`, or one of them where that says it all."""
    if before in ("", UNKNOWN, after):
        return after
    return f"{before} {ARROW} {after or 'none'}"


def tensors_text(change: Change) -> str:
    """The tensors, the worst first."""
    return few((item.tensor for item in change.tensors), MAX_SHOWN)


def standing(state: TensorState) -> str:
    """A verdict with what is special about it."""
    if not state.compared:
        return "none"
    mark = {Status.KNOWN: ", accepted", Status.SUSPECT: ", suspect", Status.BELOW: ", below the level"}
    return state.verdict + mark.get(state.status, "")


def size_text(value: float | None, state: TensorState) -> str:
    """A factor for reading."""
    return UNKNOWN if value is None or not state.compared else factor(value)


def reasons_text(change: Change) -> Iterator[str]:
    """Why there is nothing to compare with, or why it is accepted."""
    for name, state in (("A", change.before), ("B", change.after)):
        if state.reason:
            yield state.reason if f"in {name}" in state.reason else f"{name}: {state.reason}"
    old, new = change.before.known, change.after.known
    if old != new:
        yield from (f"was accepted: {listed(old)}",) if old else ()
        yield from (f"accepted: {listed(new)}",) if new else ()


def groups(changes: Sequence[Change]) -> list[ReasonGroup]:
    """Changes by their reason, the findings first, then the largest group."""
    reasons = ((change, dict.fromkeys(t.after.reason or t.before.reason for t in change.tensors)) for change in changes)
    by_reason = grouped((reason, change) for change, its_reasons in reasons for reason in its_reasons)
    rows = [ReasonGroup(reason, tuple(its_changes)) for reason, its_changes in by_reason.items()]
    return sorted(rows, key=lambda group: (-group.n_findings, -group.n_cells))
