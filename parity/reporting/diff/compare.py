"""Compares two runs tensor by tensor; reports one change per cell and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from parity import exit_codes
from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.diff.compared_run import ComparedRun, Pair, TensorState, compared_runs
from parity.reporting.diff.notes import KnownChange, case_notes, known_changes, run_notes, tolerance_note
from parity.reporting.kinds import reports_of
from parity.reporting.results.cells import Status
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import FAILING, FINDINGS, SEVERITY, CellKey

FACTOR = 2.0
"""An error must be this many times larger to be worse; smaller changes come from the machine."""
STRICT = ("mismatch", "degraded")
"""The levels at which an error counts even if the tolerance hides it."""


class ChangeKind(StrEnum):
    """How a tensor changed from A to B, the most urgent kind first."""

    NEW = "new"
    """It fails in B; in A it passed, was accepted or did not exist."""
    WORSE = "worse"
    """It differed in A, and in B its verdict is worse or its error larger."""
    VANISHED = "vanished"
    """It was compared in A but not in B."""
    FIXED = "fixed"
    """It failed or was accepted in A and passes in B."""
    BETTER = "better"
    """Its verdict is milder or its error smaller."""
    CAUSE = "cause"
    """The verdict is the same, the root cause is not."""
    ACCEPTED = "accepted"
    """A known deviation accepts it in B but not in A."""
    TOLERATED = "tolerated"
    """It is worse, but does not fail the run: suspect, accepted, or below the failing level."""
    GAINED = "gained"
    """It was not compared in A and passes in B."""


GATING = (ChangeKind.NEW, ChangeKind.WORSE)
"""The kinds that set exit code 1."""


@dataclass(frozen=True)
class TensorChange:
    """A tensor before and after."""

    tensor: str
    before: TensorState
    after: TensorState


@dataclass(frozen=True)
class Change:
    """A change of some tensors of a cell, the worst first; `notes` say why numbers are not comparable."""

    kind: ChangeKind
    case: str
    op: str
    dtype: str
    backend: str
    tensors: tuple[TensorChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> TensorState:
        """The worst tensor in A."""
        return self.tensors[0].before

    @property
    def after(self) -> TensorState:
        """The worst tensor in B."""
        return self.tensors[0].after

    @property
    def was_finding(self) -> bool:
        """Whether any of it failed in A."""
        return any(change.before.status is Status.FAILED for change in self.tensors)


@dataclass(frozen=True)
class Diff:
    """Two runs compared, with the changes in the order of `ChangeKind` and the worst first.

    Every cell of either run counts once: it has changes, or it counts in `same` (compared in both),
    `never` (compared in neither) or `only_b` (by its status). `divergences` are notes on trainings whose
    first divergence changed. `not_alike` maps cases whose inputs or params changed to the changes.
    """

    a: ComparedRun
    b: ComparedRun
    level: str
    factor: float
    changes: tuple[Change, ...]
    known_changes: tuple[KnownChange, ...] = ()
    run_notes: tuple[str, ...] = ()
    divergences: tuple[str, ...] = ()
    not_alike: dict[str, tuple[str, ...]] = field(default_factory=dict)
    same: int = 0
    never: int = 0
    only_b: dict[str, int] = field(default_factory=dict)

    def of(self, kind: ChangeKind) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind is kind)

    @property
    def counts(self) -> dict[str, int]:
        """Number of changes of each kind."""
        numbers = Counter(change.kind for change in self.changes)
        return {kind.value: numbers[kind] for kind in ChangeKind}

    @property
    def met(self) -> bool:
        """Whether anything was compared in both runs."""
        pairs = ((item.before, item.after) for change in self.changes for item in change.tensors)
        return self.same > 0 or any(before.compared and after.compared for before, after in pairs)

    @property
    def exit_code(self) -> int:
        """1 if anything is new or worse, 3 if the subject lost something or nothing was compared, else 0."""
        kinds = {change.kind for change in self.changes}
        if kinds & set(GATING):
            return exit_codes.MISMATCH
        subject = self.b.results.run.subject
        if any(not subject or change.backend in subject for change in self.of(ChangeKind.VANISHED)) or not self.met:
            return exit_codes.INCOMPLETE
        return exit_codes.PASSED


@dataclass(frozen=True)
class DiffRule:
    """How two states are compared: the level of `--fail-on` and the smallest factor between different errors."""

    level: str
    factor: float

    def kind(self, a: TensorState, b: TensorState) -> ChangeKind | None:
        """The kind of change; None if nothing changed, or neither run compared the tensor."""
        if not b.compared:
            return ChangeKind.VANISHED if a.compared else None
        if not a.compared:
            return APPEARED[b.status]
        if b.status is Status.FAILED:
            return self.still(a, b) if a.status is Status.FAILED or differs(a) else ChangeKind.NEW
        if b.status is Status.PASSED:
            return PASSES_NOW.get(a.status)
        if b.status is Status.KNOWN and a.status is not Status.KNOWN:
            return ChangeKind.ACCEPTED
        if (a.status is Status.PASSED or (b.is_wrong and not a.is_wrong)) and not self.worse(a, b):
            return ChangeKind.TOLERATED
        if a.status is Status.FAILED and b.status is Status.SUSPECT and a.limits != b.limits:
            return ChangeKind.TOLERATED
        return self.still(a, b)

    def still(self, a: TensorState, b: TensorState) -> ChangeKind | None:
        """The change of a tensor that differs in both runs: worse, better, another cause, or None."""
        if self.worse(a, b):
            return ChangeKind.WORSE if self.gates(b) else ChangeKind.TOLERATED
        if self.worse(b, a):
            return ChangeKind.BETTER
        return ChangeKind.CAUSE if set(a.causes) != set(b.causes) else None

    def gates(self, state: TensorState) -> bool:
        """Whether being worse counts: if it fails, or if only a tolerance hides it and the level is in `STRICT`."""
        hidden = state.status is Status.SUSPECT and state.is_wrong and self.level in STRICT
        return hidden or state.status is Status.FAILED

    def worse(self, a: TensorState, b: TensorState) -> bool:
        """Whether `b` has the worse verdict or the larger error."""
        return rank(b) > rank(a) or self.grown(a, b)

    def grown(self, a: TensorState, b: TensorState) -> bool:
        """Whether the error is `factor` times larger, and exceeds that of a careful implementation.

        Without a measured ratio, a backend within its error bound counts as `ERROR_BOUND`; otherwise the excess is
        compared.
        """
        if b.ratio is not None and (a.ratio is not None or a.verdict not in FINDINGS):
            return exceeds(b.ratio, max(a.ratio or 0.0, ERROR_BOUND), self.factor)
        if a.verdict in FINDINGS and b.verdict in FINDINGS:
            return exceeds(b.excess, max(a.excess, 1.0), self.factor)
        return False


APPEARED = {
    Status.FAILED: ChangeKind.NEW,
    Status.KNOWN: ChangeKind.ACCEPTED,
    Status.BELOW: ChangeKind.TOLERATED,
    Status.SUSPECT: ChangeKind.TOLERATED,
    Status.PASSED: ChangeKind.GAINED,
}
"""The change of a tensor that was not compared in A, by its status in B."""

PASSES_NOW = {
    Status.FAILED: ChangeKind.FIXED,
    Status.KNOWN: ChangeKind.FIXED,
    Status.BELOW: ChangeKind.BETTER,
    Status.SUSPECT: ChangeKind.BETTER,
}
"""The change of a tensor that passes in B, by its status in A."""


def differs(state: TensorState) -> bool:
    """Whether it differed without failing the run: below the level or hidden by the tolerance, not accepted."""
    return state.status is Status.BELOW or (state.status is Status.SUSPECT and state.is_wrong)


def exceeds(after: float, before: float, factor: float) -> bool:
    """Whether a size grew by at least the factor; infinity is not larger than itself."""
    return after > before and after >= factor * before


def rank(state: TensorState) -> int:
    """The severity of a verdict; 0 for all that pass."""
    return SEVERITY[state.verdict] if state.verdict in FAILING else 0


def compare(
    run_a: Path,
    run_b: Path,
    *,
    maps: Sequence[str] = (),
    level: str | None = None,
    factor: float = FACTOR,
    fail_on_others: bool = False,
) -> Diff:
    """Compare two run directories; `level` is that of `--fail-on` (default: B's). Raises ResultsError and DiffError.

    `fail_on_others`: every backend is judged, not only the subjects of the runs.
    """
    results = read_results(run_a), read_results(run_b)
    results = (results[0].judging_all(), results[1].judging_all()) if fail_on_others else results
    stored = results[1].run.fail_on
    level = level or (stored if stored in exit_codes.FAILING else exit_codes.DEFAULT_FAIL_ON)
    a, b = compared_runs((run_a, run_b), results, maps, level)
    return compared(a, b, DiffRule(level, factor))


def compared(a: ComparedRun, b: ComparedRun, rule: DiffRule) -> Diff:
    """Compare two runs, cell by cell."""
    not_alike = case_notes(a, b)
    changes: list[Change] = []
    same = never = 0
    only_b: Counter[Status] = Counter()
    for key in dict.fromkeys([*a.cells, *b.cells]):
        of_cell = list(cell_changes(key, a, b, rule, not_alike.get(key[0], ())))
        if key not in a.cells and all(change.kind is ChangeKind.GAINED for change in of_cell):
            only_b[b.cells[key].status] += 1
        elif of_cell:
            changes += of_cell
        elif any(state.compared for state in b.tensor_states(key).values()):
            same += 1
        else:
            never += 1
    return Diff(
        a=a,
        b=b,
        level=rule.level,
        factor=rule.factor,
        changes=tuple(sorted(changes, key=urgency)),
        known_changes=tuple(known_changes(a, b)),
        run_notes=tuple(run_notes(a, b)),
        divergences=tuple(note for report in reports_of(a.results) for note in report.diff_notes(a, b)),
        not_alike=not_alike,
        same=same,
        never=never,
        only_b={status.value: only_b[status] for status in Status if only_b[status]},
    )


def cell_changes(
    key: CellKey, a: ComparedRun, b: ComparedRun, rule: DiffRule, notes: tuple[str, ...]
) -> Iterator[Change]:
    """The changes of a cell, one for each kind."""
    before, after = a.tensor_states(key), b.tensor_states(key)
    by_kind: dict[ChangeKind, list[TensorChange]] = {}
    for tensor in dict.fromkeys([*before, *after]):
        change = TensorChange(tensor, before.get(tensor) or gap(a, key, "A"), after.get(tensor) or gap(b, key, "B"))
        kind = rule.kind(change.before, change.after)
        if kind is ChangeKind.NEW:
            kind, change = if_new(key, change, a)
        elif kind is ChangeKind.FIXED and notes:
            gone = replace(change.after, reason="its inputs or params changed, which may hide the difference")
            kind, change = ChangeKind.VANISHED, replace(change, after=gone)
        elif kind is ChangeKind.FIXED:
            kind, change = if_fixed(key, change, b)
        if kind is not None:
            by_kind.setdefault(kind, []).append(change)
    cell = b.cells.get(key) or a.cells[key]
    for kind, tensors in by_kind.items():
        tensors.sort(key=size, reverse=True)
        limits = tuple(dict.fromkeys(note for t in tensors if (note := tolerance_note(t.before, t.after))))
        yield Change(kind, cell.id, cell.op, cell.dtype, key[2], tuple(tensors), (*notes, *limits))


def if_new(key: CellKey, change: TensorChange, a: ComparedRun) -> tuple[ChangeKind, TensorChange]:
    """A difference with no backend at fault is not new if the two differed in A because the other was wrong."""
    ranks = [a.pairs.get(pair, 0) for pair in between(key, change, change.after)]
    if change.after.is_wrong or min(ranks, default=0) < rank(change.after):
        return ChangeKind.NEW, change
    return ChangeKind.BETTER, because(change, "it differed in A, too, because the other backend was wrong")


def if_fixed(key: CellKey, change: TensorChange, b: ComparedRun) -> tuple[ChangeKind, TensorChange]:
    """A difference with no backend at fault is not fixed if the two are no longer compared, or still differ."""
    pairs = between(key, change, change.before)
    lost = [", ".join(sorted(pair[3] - {key[2]})) for pair in pairs if pair not in b.pairs]
    if lost:
        gone = TensorState(Status.NOT_RUN, "not-compared", reason=f"no longer compared with {lost[0]}")
        return ChangeKind.VANISHED, replace(change, after=gone)
    if any(b.pairs[pair] for pair in pairs):
        return ChangeKind.BETTER, because(change, "it still differs, because the other backend is wrong")
    return ChangeKind.FIXED, change


def between(key: CellKey, change: TensorChange, state: TensorState) -> list[Pair]:
    """The comparisons of a tensor in which neither backend exceeds its error bound."""
    return [(key[0], key[1], change.tensor, names) for names in state.unowned]


def because(change: TensorChange, reason: str) -> TensorChange:
    """The change with a reason."""
    return replace(change, after=replace(change.after, reason=reason))


def gap(run: ComparedRun, key: CellKey, name: str) -> TensorState:
    """The state of a tensor that a run lacks, with the reason; `name` is "A" or "B"."""
    case, dtype, backend = key
    row = run.cases.get(case)
    cell = run.cells.get(key)
    if backend not in run.backends:
        reason = f"the backend is not in {name}"
    elif row is None:
        reason = f"the case is not in {name}"
    elif cell is None:
        reason = f"{name} does not run it in {dtype}"
    elif cell.outcome == "ok" and cell.rows:
        reason = f"{name} has no such tensor"
    else:
        return run.absent(cell, Status.NOT_RUN)
    return TensorState(Status.NOT_RUN, "not-compared", reason=reason)


def size(change: TensorChange) -> tuple[float, ...]:
    """The sort key of a tensor: its severity in B, then in A."""
    return (*measure(change.after), *measure(change.before))


def measure(state: TensorState) -> tuple[float, ...]:
    """Verdict, error ratio and excess."""
    return rank(state), state.ratio or 0.0, state.excess


def urgency(change: Change) -> tuple[float, ...]:
    """Orders changes: by kind, then the worst first."""
    return list(ChangeKind).index(change.kind), *(-part for part in size(change.tensors[0]))


def total_cells(changes: Iterable[Change]) -> int:
    """Number of cells with any of these changes."""
    return len({(change.case, change.dtype, change.backend) for change in changes})
