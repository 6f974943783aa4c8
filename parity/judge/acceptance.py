"""The `known` entries that would accept what a run found: one per cause, for as many cases as a glob covers exactly.

Each limits what it accepts, so that no other fault can hide behind it: see `entries_for`.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from glob import escape

from parity.config.plan import KnownDeviation, Plan
from parity.diagnoses import observations
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.known import (
    Answer,
    AppliedKnown,
    EntryState,
    Reach,
    applies_to,
    apply,
    claim,
    claim_of_missing,
    covered_parts,
    is_covered,
    matches,
    ratios_of,
    returned_in,
)

HEADROOM = 2.0
"""The factor by which an accepted error may grow: on another machine, the worst element may be another one."""
SPREAD = 10.0
"""If error ratios differ by more, one limit would not limit the smaller ones: float64 is often 1e9 above float32."""
UNDECIDED = "not-identifiable"
"""The diagnosis beside several causes that explain equally much: entries name these causes, since any other is a new
finding."""
TOKEN = re.compile(r"[^-]+|-")
"""Ids are made of parts with dashes between them; a swept value is one part, or two where a number has a sign."""

Cell = tuple[str, str]
"""Case and dtype."""
Location = tuple[str, str, str]
"""Case, dtype and tensor."""
Kind = tuple[str, str | None]
"""What an entry is for: a backend, with the cause that is accepted, or with its message where it cannot compute."""


@dataclass(frozen=True)
class JudgedRun:
    """A judged run; `plan.known` are its current entries."""

    plan: Plan
    comparisons: Sequence[Comparison]
    diagnoses: Sequence[Diagnosis]
    unsupported: Mapping[Answer, str]
    today: datetime.date

    @cached_property
    def causes(self) -> frozenset[tuple[str, ...]]:
        """Case, dtype, backend, diagnosis and tensor of every diagnosis."""
        return frozenset((d.case, d.dtype, d.backend, d.id, tensor) for d in self.diagnoses for tensor in d.tensors)

    @cached_property
    def diagnosed(self) -> dict[tuple[str, ...], set[str]]:
        """The diagnoses of each case, dtype, backend and tensor."""
        diagnoses: dict[tuple[str, ...], set[str]] = {}
        for case, dtype, backend, name, tensor in self.causes:
            diagnoses.setdefault((case, dtype, backend, tensor), set()).add(name)
        return diagnoses

    @cached_property
    def locations(self) -> frozenset[Location]:
        """Case, dtype and tensor of all comparisons."""
        return frozenset((c.case, c.dtype, c.tensor) for c in self.comparisons)

    @cached_property
    def reach(self) -> Reach:
        """The cells that were asked for, answered, and unsupported."""
        return Reach(self.plan.everything, frozenset(returned_in(self.comparisons)), frozenset(self.unsupported))

    def held(self, known: Iterable[KnownDeviation] | None = None) -> AppliedKnown:
        """The comparisons and entries after the run, with the plan's entries or with `known`."""
        plan = self.plan if known is None else replace(self.plan, known=tuple(known))
        return apply(plan, self.comparisons, self.diagnoses, self.today, self.unsupported)

    def sized(self, entries: Sequence[KnownDeviation]) -> list[KnownDeviation]:
        """Entries with an `error_ratio`: the largest that each covers in this run, with room."""
        measured = self.held(replace(entry, error_ratio=None) for entry in entries).entries
        return [replace(e.deviation, error_ratio=with_room(e.worst_ratio)) for e in measured]


def with_room(ratio: float | None) -> float | None:
    """The error ratio to record, of two digits; None where none was measured, or it is infinite."""
    if not ratio or not math.isfinite(ratio):
        return None
    return rounded_up(HEADROOM * ratio)


def rounded_up(value: float) -> float:
    """The smallest number of two digits that is at least `value`."""
    if not value or not math.isfinite(value):
        return value
    near = float(f"{value:.1e}")
    return near if near >= value else float(f"{near + 10.0 ** (math.floor(math.log10(value)) - 1):.1e}")


Chosen = Callable[[str, str, str, str | None], bool]
"""Whether a case, dtype, backend and diagnosis is to be accepted."""


def outgrown(run: JudgedRun, chosen: Chosen) -> list[KnownDeviation]:
    """The entries that fail and still cover something chosen: they are renewed instead of added again."""
    deviating = {i: c for i, c in enumerate(run.comparisons) if c.verdict.fails or c.suspect}
    missing = {i: c for i, c in enumerate(run.comparisons) if c.verdict is Verdict.NOT_COMPARED}
    entries = []
    failing = (EntryState.WORSE, EntryState.EXPIRED)
    for known in (entry.deviation for entry in run.held().entries if entry.state in failing):
        if known.unsupported:
            covered = claim_of_missing(known, missing, run.reach).covered
        else:
            covered = claim(known, deviating, run.causes).covered
        parts_covered = ((run.comparisons[i], part) for i, parts in covered.items() for part in parts)
        if any(chosen(c.case, c.dtype, name, cause) for c, (name, cause) in parts_covered):
            entries.append(known)
    return entries


def lacking(run: JudgedRun, chosen: Chosen, level: Collection[str]) -> list[KnownDeviation]:
    """Entries, without a reason, for the chosen findings that nothing accepts; `level` are the verdicts that count."""
    held = run.held()
    valid = [entry.deviation for entry in held.entries if entry.state is EntryState.MATCHED]
    present: dict[Kind, dict[Location, float]] = {}
    needed: dict[Kind, set[Location]] = {}
    for c in held.comparisons:
        fails = c.verdict in level
        if c.known is not None or not c.counts or not (fails or (c.suspect and c.culprit)):
            continue
        location = (c.case, c.dtype, c.tensor)
        for backend in c.counted or c.culprit or (c.actual,):
            causes = run.diagnosed.get((c.case, c.dtype, backend, c.tensor), set())
            kinds = [(backend, cause) for cause in to_name(causes) if chosen(c.case, c.dtype, backend, cause)]
            for kind in kinds:
                ratios = present.setdefault(kind, {})
                ratios[location] = max([ratios.get(location, 0.0), *ratios_of(c, {backend})])
            local = {(c.case, c.dtype, backend, cause, c.tensor) for cause in causes}
            for kind in uncovered(c, backend, kinds, valid, local) if fails else ():
                needed.setdefault(kind, set()).add(location)
    by_kind = (without_doubles(entries_for(run, kind, needed[kind], present[kind]), needed[kind]) for kind in needed)
    return run.sized([entry for entries in by_kind for entry in entries])


def to_name(causes: Collection[str]) -> list[str | None]:
    """The diagnoses that name a deviation of one backend in one tensor; None alone if there are none."""
    return [*(sorted(set(causes) - {UNDECIDED}) or causes)] or [None]


def entries_for(
    run: JudgedRun, kind: Kind, needed: Collection[Location], ratios: Mapping[Location, float]
) -> Iterator[KnownDeviation]:
    """Entries of one kind for all locations in `needed`, each of which limits what it accepts.

    Errors that are not finite have no limit, so they are apart; dtypes and tensors are apart if their ratios differ.
    Many faults look alike to a diagnosis that is an observation, so its entries name tensors.
    """
    backend, cause = kind
    finite = {location for location in ratios if math.isfinite(ratios[location])}
    groups = [group for group in (finite, ratios.keys() - finite) if group]
    named = cause is None or cause in observations() or len(groups) > 1
    for group in groups:
        wanted = {location for location in needed if location in group}
        for tensor, cells in tensors_as_globs(run, wanted, ratios, group) if named else [(None, cells_of(wanted))]:
            allowed = cells_of(group) if tensor is None else cells_with(run, tensor, group)
            for case, dtype in cells_as_globs(cells, allowed, dict(run.plan.everything.cases)):
                entry = KnownDeviation(case, "", backend=backend, diagnosis=cause, dtype=dtype, tensor=tensor)
                yield from by_dtype(
                    entry, {location: ratios[location] for location in group if covers(entry, location)}
                )


def cells_of(locations: Iterable[Location]) -> set[Cell]:
    """The cases and dtypes of locations."""
    return {(case, dtype) for case, dtype, _ in locations}


def cells_with(run: JudgedRun, tensor: str, group: Collection[Location]) -> set[Cell]:
    """The cells in which a glob means tensors of the group and no other."""
    means = {name for _, _, name in run.locations if matches(name, tensor)}
    meant = {location for location in run.locations if location[2] in means}
    return cells_of(meant) - cells_of(meant.difference(group))


def tensors_as_globs(
    run: JudgedRun, wanted: Collection[Location], ratios: Mapping[Location, float], group: Collection[Location]
) -> Iterator[tuple[str, set[Cell]]]:
    """Tensors with their cells; one glob for those of one prefix (`grad.`) with the same cells and like ratios."""
    cells: dict[str, set[Cell]] = {}
    worst: dict[str, float] = {}
    for case, dtype, tensor in wanted:
        cells.setdefault(tensor, set()).add((case, dtype))
        worst[tensor] = max(worst.get(tensor, 0.0), ratios[case, dtype, tensor])
    alike: dict[tuple[str, frozenset[Cell]], list[str]] = {}
    for tensor in sorted(cells):
        alike.setdefault((tensor.partition(".")[0], frozenset(cells[tensor])), []).append(tensor)
    for (prefix, shared), names in alike.items():
        glob = f"{escape(prefix)}.*"
        if len(names) > 1 and are_like(worst[name] for name in names) and shared <= cells_with(run, glob, group):
            yield glob, set(shared)
        else:
            yield from ((name, set(shared)) for name in names)


def by_dtype(entry: KnownDeviation, ratios: Mapping[Location, float]) -> list[KnownDeviation]:
    """The entry, or one per dtype if the dtypes' largest ratios differ much; `ratios` are the covered ones."""
    worst: dict[str, float] = {}
    for (_, dtype, _), ratio in ratios.items():
        worst[dtype] = max(worst.get(dtype, 0.0), ratio)
    if entry.dtype is not None or are_like(worst.values()):
        return [entry]
    return [replace(entry, dtype=dtype) for dtype in sorted(worst)]


def are_like(ratios: Iterable[float]) -> bool:
    """Whether one limit suits all of these error ratios."""
    measured = [ratio for ratio in ratios if 0.0 < ratio < math.inf]
    return not measured or max(measured) <= SPREAD * min(measured)


def without_doubles(entries: Iterable[KnownDeviation], needed: Collection[Location]) -> list[KnownDeviation]:
    """The entries without those whose locations the others cover, removing narrow entries first."""
    meant = [(entry, {location for location in needed if covers(entry, location)}) for entry in entries]
    for pair in sorted(meant, key=lambda pair: len(pair[1])):
        if pair[1] <= {location for other in meant if other is not pair for location in other[1]}:
            meant = [other for other in meant if other is not pair]
    return [entry for entry, _ in meant]


def covers(entry: KnownDeviation, location: Location) -> bool:
    """Whether an entry covers a location."""
    case, dtype, tensor = location
    return (
        entry.dtype in (None, dtype)
        and matches(case, entry.case)
        and (entry.tensor is None or matches(tensor, entry.tensor))
    )


def uncovered(
    c: Comparison,
    backend: str,
    kinds: Sequence[Kind],
    valid: Sequence[KnownDeviation],
    causes: Collection[tuple[str, ...]],
) -> list[Kind]:
    """The kinds of entries that a comparison lacks for one of its backends, of which `causes` are those."""
    covered = {part for known in valid if applies_to(known, c) for part in covered_parts(known, c, causes)}
    return [] if is_covered(backend, c, covered, causes) else [kind for kind in kinds if kind not in covered]


def unsupported(run: JudgedRun, chosen: Chosen) -> list[KnownDeviation]:
    """Entries for what a backend cannot compute and nothing accepts; their reason is the backend's message."""
    needed: dict[Kind, set[Cell]] = {}
    for c in run.held().comparisons:
        if c.verdict is Verdict.NOT_COMPARED and c.known is None and c.counts:
            for name in run.reach.absent(c):
                message = run.unsupported.get((c.case, c.dtype, name))
                if message is not None and chosen(c.case, c.dtype, name, None):
                    needed.setdefault((name, message), set()).add((c.case, c.dtype))
    return [
        KnownDeviation(case, message or "", backend=backend, dtype=dtype, unsupported=True)
        for (backend, message), cells in needed.items()
        for case, dtype in cells_as_globs(cells, cells, dict(run.plan.everything.cases))
    ]


def cells_as_globs(
    needed: Collection[Cell], allowed: Collection[Cell], dtypes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str | None]]:
    """Globs, each with its dtype or None for all, that mean all `needed` cells and none that is not `allowed`.

    `dtypes` are those of every case.
    """
    every = {case for case, of_case in dtypes.items() if all((case, dtype) in allowed for dtype in of_case)}
    cases_by_dtype: dict[str | None, set[str]] = {}
    for case, dtype in sorted(needed):
        cases_by_dtype.setdefault(None if case in every else dtype, set()).add(case)
    for of_dtype, cases in cases_by_dtype.items():
        free = every if of_dtype is None else {case for case, other in allowed if other == of_dtype}
        others = [case for case in dtypes if case not in free]
        yield from ((glob, of_dtype) for glob in globs(sorted(cases), others))


def globs(needed: Sequence[str], others: Sequence[str]) -> list[str]:
    """Few globs that mean all `needed` ids and none of the `others`.

    Where one glob does not do, the ids are split by the part that leaves the fewest groups for which one does not.
    """
    pattern = fitting(needed, others)
    if pattern is not None:
        return [pattern]
    groups = min(splits(needed), key=lambda groups: (sum(fitting(g, others) is None for g in groups), len(groups)))
    return [glob for group in groups for glob in globs(group, others)]


def fitting(needed: Sequence[str], others: Sequence[str]) -> str | None:
    """A glob that means all `needed` ids and none of the `others`, where one is found."""
    tokens = [TOKEN.findall(case) for case in needed]
    if len(needed) == 1:
        patterns = [needed[0], escape(needed[0])]
    elif len(set(map(len, tokens))) == 1:
        patterns = ["".join(starred(column, begins) for column in zip(*tokens, strict=True)) for begins in (0, 1)]
    else:
        return None
    # A star at the beginning would mean cases of other ops that are added later.
    safe = (p for p in patterns if len(needed) == 1 or p[0] != "*")
    return next((p for p in safe if not any(matches(case, p) for case in others)), None)


def splits(ids: Sequence[str]) -> Iterator[list[list[str]]]:
    """The ways to split ids: by their number of parts, or else by one of their parts."""
    tokens = [TOKEN.findall(case) for case in ids]
    lengths = [len(parts) for parts in tokens]
    for column in [lengths] if len(set(lengths)) > 1 else zip(*tokens, strict=True):
        groups: dict[int | str, list[str]] = {}
        for value, case in zip(column, ids, strict=True):
            groups.setdefault(value, []).append(case)
        if len(groups) > 1:
            yield list(groups.values())


def starred(column: Sequence[str], begins: int) -> str:
    """One part of several ids: what they share up to a value, or as far into the value as they do, and a star."""
    if len(set(column)) == 1:
        return escape(column[0])
    shared = os.path.commonprefix(column)  # noqa: RUF071 - of characters is what is meant
    return escape(shared if begins else shared[: shared.rfind("=") + 1]) + "*"
