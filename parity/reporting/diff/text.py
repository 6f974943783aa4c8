"""The texts of `parity diff`, shared by its formats: the verdict, the sections, a row for each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parity import exit_codes
from parity.reporting.diff.compare import Change, ChangeKind, Diff, total_cells
from parity.reporting.diff.compared_run import ComparedRun, TensorState, shortened
from parity.reporting.results.cells import LABELS, Status
from parity.reporting.text.words import factor, few, grouped, listed, plural

ARROW = "->"
UNKNOWN = "–"
MAX_SHOWN = 2
"""The number of names shown in a list."""

NOUNS: Mapping[ChangeKind, str] = {ChangeKind.CAUSE: "with another root cause", ChangeKind.GAINED: "newly compared"}
"""The words after the number of changes, for kinds whose own name does not fit."""

MEANINGS: Mapping[ChangeKind, str] = {
    ChangeKind.NEW: "fails in B; passed, was accepted or was not compared in A",
    ChangeKind.WORSE: "the verdict is worse or the error is larger than in A, even if the tolerance hides it",
    ChangeKind.VANISHED: "compared in A, not compared in B",
    ChangeKind.FIXED: "failed or was accepted in A, passes in B",
    ChangeKind.BETTER: "the verdict is milder or the error is smaller than in A",
    ChangeKind.CAUSE: "the verdict is the same, the root cause is not",
    ChangeKind.ACCEPTED: "a known deviation accepts it in B but not in A",
    ChangeKind.TOLERATED: "worse, but not a failure: suspect, accepted, or below the level of --fail-on",
    ChangeKind.GAINED: "not compared in A, passes in B",
}
"""The meaning of each kind of change."""

GROUPED = (ChangeKind.VANISHED, ChangeKind.GAINED)
"""The kinds that are grouped by reason: one missing backend affects hundreds of cells."""

OPEN = (ChangeKind.NEW, ChangeKind.WORSE, ChangeKind.VANISHED)
"""The kinds that are not folded."""

LEGEND = (
    "× tol: the worst element's difference in units of its tolerance. error ratio: the error over that of a careful "
    "implementation in the same dtype; 8 or more is a finding, a dash means not measured."
)


@dataclass(frozen=True)
class ReasonGroup:
    """The changes with the same reason."""

    reason: str
    changes: tuple[Change, ...]

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return total_cells(self.changes)

    @property
    def n_findings(self) -> int:
        """Number of cells that failed in A."""
        return total_cells(change for change in self.changes if change.was_finding)

    @property
    def text(self) -> str:
        """`the backend is not in B: 12 cells on oneflow, 4 of them failed in A and do not count as fixed; ...`."""
        backends = few(dict.fromkeys(change.backend for change in self.changes), MAX_SHOWN)
        first = self.changes[0]
        example = f"{first.case} {first.dtype} {tensors_text(first)}"
        lost = f", {self.n_findings} of them failed in A and do not count as fixed" if self.n_findings else ""
        shown = f"for example {example}" if self.n_cells > 1 else example
        return f"{self.reason}: {plural(self.n_cells, 'cell')} on {backends}{lost}; {shown}"


def sections(diff: Diff) -> list[tuple[ChangeKind, tuple[Change, ...]]]:
    """The non-empty kinds with their changes."""
    return [(kind, changes) for kind in ChangeKind if (changes := diff.of(kind))]


def headline(diff: Diff) -> tuple[str, str]:
    """The verdict in a word, and the numbers."""
    if diff.exit_code == exit_codes.MISMATCH:
        return "WORSE", changed_text(diff)
    if not diff.met:
        return "INCOMPLETE", f"nothing was compared in both runs: {changed_text(diff)}"
    if diff.exit_code == exit_codes.INCOMPLETE:
        return "INCOMPLETE", f"nothing is worse, but {changed_text(diff)}"
    if not diff.changes:
        return "SAME", f"no differences: {changed_text(diff)}"
    kinds = {change.kind for change in diff.changes}
    return "BETTER" if kinds <= {ChangeKind.FIXED, ChangeKind.BETTER, ChangeKind.GAINED} else "CHANGED", changed_text(
        diff
    )


def changed_text(diff: Diff) -> str:
    """`2 new findings, 1 worse; 540 cells unchanged`."""
    counted = ", ".join(count_text(kind, n) for kind, n in diff.counts.items() if n)
    return f"{counted}{'; ' if counted else ''}{same_text(diff)}{only_b_text(diff)}{known_text(diff)}"


def count_text(kind: str, n: int) -> str:
    """`1 new finding`, `2 new findings`, `3 vanished`."""
    return plural(n, "new finding") if kind == ChangeKind.NEW else f"{n} {NOUNS.get(ChangeKind(kind), kind)}"


def same_text(diff: Diff) -> str:
    """`543 cells unchanged (11 of them compared in neither run)`."""
    never = f" ({diff.never} of them compared in neither run)" if diff.never else ""
    return f"{plural(diff.same + diff.never, 'cell')} unchanged{never}"


def only_b_text(diff: Diff) -> str:
    """`; 12 more only in B (10 passed, 2 no result)`, or nothing."""
    if not diff.only_b:
        return ""
    parts = ", ".join(f"{n} {LABELS[Status(status)]}" for status, n in diff.only_b.items())
    return f"; {sum(diff.only_b.values())} more only in B ({parts})"


def known_text(diff: Diff) -> str:
    """`; 1 known entry is now out of date`, or nothing."""
    n = sum(change.fails for change in diff.known_changes)
    return f"; {plural(n, 'known entry is', 'known entries are')} now out of date" if n else ""


def runs_text(diff: Diff) -> str:
    """Which run is A and which is B."""
    return f"A {run_text(diff.a)} {ARROW} B {run_text(diff.b)}"


def run_text(run: ComparedRun) -> str:
    """`reports/a (2026-11-21T06:26:20)`."""
    started = shortened(run.results.run.started)[:19]
    return f"{run.run_dir} ({started})" if started else str(run.run_dir)


def differences(diff: Diff) -> Iterator[str]:
    """Other differences: first divergences of trainings, the runs, the cases, known deviations."""
    yield from diff.divergences
    yield from diff.run_notes
    if diff.not_alike:
        n = len(diff.not_alike)
        kinds = few(dict.fromkeys(note for notes in diff.not_alike.values() for note in notes), MAX_SHOWN, "; ")
        yield f"{plural(n, 'case')} changed, so {'its' if n == 1 else 'their'} numbers are not comparable: {kinds}"
    for change in diff.known_changes:
        yield f"known: {change.before or 'no entry'} {ARROW} {change.after or 'no entry'}: {change.message}"


def columns(change: Change) -> tuple[str, ...]:
    """A change as a row of a table: case, dtype, backend, tensors, verdict, × tol, error ratio, cause, note."""
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


def comparability(change: Change) -> Iterator[str]:
    """Why the numbers are not comparable."""
    if change.notes:
        yield f"not comparable: {few(change.notes, MAX_SHOWN, '; ')}"


def moved(before: str, after: str) -> str:
    """`before -> after`, or only `after` if both are equal or `before` is unknown."""
    if before in ("", UNKNOWN, after):
        return after
    return f"{before} {ARROW} {after or 'none'}"


def tensors_text(change: Change) -> str:
    """The tensors, the worst first."""
    return few((item.tensor for item in change.tensors), MAX_SHOWN)


def standing(state: TensorState) -> str:
    """A verdict with its status."""
    if not state.compared:
        return "none"
    mark = {Status.KNOWN: ", accepted", Status.SUSPECT: ", suspect", Status.BELOW: ", below the level"}
    return state.verdict + mark.get(state.status, "")


def size_text(value: float | None, state: TensorState) -> str:
    """A factor as text."""
    return UNKNOWN if value is None or not state.compared else factor(value)


def reasons_text(change: Change) -> Iterator[str]:
    """Why a tensor was not compared, or why it is accepted."""
    for name, state in (("A", change.before), ("B", change.after)):
        if state.reason:
            yield state.reason if f"in {name}" in state.reason else f"{name}: {state.reason}"
    old, new = change.before.known, change.after.known
    if old != new:
        yield from (f"was accepted: {listed(old)}",) if old else ()
        yield from (f"accepted: {listed(new)}",) if new else ()


def groups(changes: Sequence[Change]) -> list[ReasonGroup]:
    """Changes grouped by reason: groups with findings first, then the largest."""
    reasons = ((change, dict.fromkeys(t.after.reason or t.before.reason for t in change.tensors)) for change in changes)
    by_reason = grouped((reason, change) for change, its_reasons in reasons for reason in its_reasons)
    rows = [ReasonGroup(reason, tuple(its_changes)) for reason, its_changes in by_reason.items()]
    return sorted(rows, key=lambda group: (-group.n_findings, -group.n_cells))
