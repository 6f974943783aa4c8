"""Checks a config's `known` entries against a run: which deviations are accepted, and which entries are out of date.

An entry applies to a failing comparison, or to a pass that hides a culprit, if its case, dtype and tensor match. It
covers the culprits that it names by backend or diagnosis (any backend if there is no culprit). A comparison is accepted
once every culprit is covered, for all of its causes. An entry that was checked in full and matches nothing is stale;
one for something that this run did not compare is not checked.

An entry for `unsupported` applies to comparisons that could not be made, and covers the backends that do not support
the cell, or not its gradients. Such a comparison is accepted once every backend without a result is covered.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from msgspec import structs

from parity.config.plan import ORACLE, Asked, KnownDeviation, Plan
from parity.judge.compare.cell import NOTHING_FINITE
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import Judgement

Answer = tuple[str, str, str]
"""A case, a dtype and a backend."""
Part = tuple[str, str | None]
"""A backend in a comparison, with the cause for which it is accepted; None: any cause."""


class EntryState(Judgement):
    """The state of an entry after a run."""

    MATCHED = "matched"
    STALE = "stale"
    EXPIRED = "expired"
    WORSE = "worse"
    NOT_CHECKED = "not-checked"

    @property
    def fails(self) -> bool:
        """Whether the entry is out of date."""
        return self in (EntryState.STALE, EntryState.EXPIRED, EntryState.WORSE)


@dataclass(frozen=True)
class AppliedEntry:
    """An entry after a run: `n_matched` comparisons that it covers, their largest error ratio, and what to do."""

    deviation: KnownDeviation
    state: EntryState
    n_matched: int
    worst_ratio: float | None
    message: str


@dataclass(frozen=True)
class AppliedKnown:
    """All comparisons, the accepted ones with `known` set, and every entry in the order of the config."""

    comparisons: tuple[Comparison, ...]
    entries: tuple[AppliedEntry, ...]

    @property
    def fails(self) -> bool:
        """Whether any entry is out of date."""
        return any(entry.state.fails for entry in self.entries)


@dataclass(frozen=True)
class Claim:
    """The comparisons that an entry applies to, by index, with the parts that it covers."""

    deviation: KnownDeviation
    covered: Mapping[int, frozenset[Part]]
    worst_ratio: float | None


@dataclass(frozen=True)
class Reach:
    """The cells that a run asked for, what backends returned (an answer and a tensor), the cells they do not support,
    and those of backends that the run does not judge."""

    asked: Asked
    returned: frozenset[tuple[Answer, str]]
    unsupported: frozenset[Answer]
    others: frozenset[Answer] = frozenset()

    @cached_property
    def answered(self) -> frozenset[Answer]:
        """The answers with at least one tensor in a comparison."""
        return frozenset(answer for answer, _ in self.returned)

    def answers(self, known: KnownDeviation) -> list[Answer]:
        """All answers that an entry applies to."""
        named = None if known.backend is None else (known.backend,)
        return [(c, dtype, name) for c, dtype in self.cells(known) for name in named or self.asked.backends_of(c)]

    def cells(self, known: KnownDeviation) -> list[tuple[str, str]]:
        """All cells that an entry applies to."""
        cases = [(case, dtypes) for case, dtypes in self.asked.cases if means(known, case)]
        return [(case, dtype) for case, dtypes in cases for dtype in dtypes if known.dtype in (None, dtype)]

    def absent(self, c: Comparison) -> list[str]:
        """The backends without which a comparison could not be made; none if it was made."""
        names = (c.actual, c.expected) if c.verdict is Verdict.NOT_COMPARED and c.message != NOTHING_FINITE else ()
        return [n for n in names if n != ORACLE and ((c.case, c.dtype, n), c.tensor) not in self.returned]


def apply(
    plan: Plan,
    comparisons: Sequence[Comparison],
    diagnoses: Sequence[Diagnosis],
    today: datetime.date,
    unsupported: Collection[Answer] = (),
) -> AppliedKnown:
    """The comparisons with the accepted ones marked, and the state of every entry of `plan.known`.

    `unsupported`: cells that a backend does not support. Only these can be accepted as missing, and their absence does
    not leave an entry unchecked.
    """
    if not plan.known:
        return AppliedKnown(tuple(comparisons), ())
    deviating = {i: c for i, c in enumerate(comparisons) if c.verdict.fails or c.suspect or c.message == NOTHING_FINITE}
    causes = {(d.case, d.dtype, d.backend, d.id, tensor) for d in diagnoses for tensor in d.tensors}
    returned = frozenset(returned_in(comparisons))
    reach = Reach(plan.everything, returned, frozenset(unsupported), frozenset(not_judged(comparisons)))
    missing = {i: c for i, c in enumerate(comparisons) if c.verdict is Verdict.NOT_COMPARED}
    claims = [
        claim_of_missing(known, missing, reach) if known.unsupported else claim(known, deviating, causes)
        for known in plan.known
    ]
    entries = tuple(assess(c, reach, today) for c in claims)
    valid = [c for c, entry in zip(claims, entries, strict=True) if entry.state is EntryState.MATCHED]
    return AppliedKnown(tuple(accepted(comparisons, valid, causes, reach)), entries)


def foreseen(plan: Plan, today: datetime.date) -> Iterator[str]:
    """A message for each entry that fails any run of a plan: it has expired, or matches no case."""
    own = {case.id: plan.of(case) for case in plan.cases}
    answers = {(case.id, d, spec.name) for case in plan.cases for d in case.dtypes for spec in own[case.id].backends}
    others = frozenset(a for a in answers if not own[a[0]].judges(a[2]))
    reach = Reach(plan.everything, frozenset((answer, "") for answer in answers), frozenset(), others)
    for known in plan.known:
        entry = assess(Claim(known, {}, None), reach, today)
        if entry.state is EntryState.EXPIRED:
            remedy = "remove the entry, or set another `until`"
            yield f"{known.source.file}:{known.source.line}: {EntryState.EXPIRED.value}: on {known.until}; {remedy}"
        elif not reach.cells(known):
            yield entry.message


def returned_in(comparisons: Sequence[Comparison]) -> Iterator[tuple[Answer, str]]:
    """Every answer and tensor that took part in a comparison, or could have if the exact value were finite."""
    for c in comparisons:
        if c.verdict is not Verdict.NOT_COMPARED or c.message == NOTHING_FINITE:
            yield (c.case, c.dtype, c.actual), c.tensor
            yield (c.case, c.dtype, c.expected), c.tensor


def not_judged(comparisons: Sequence[Comparison]) -> set[Answer]:
    """The cells of backends that the run does not judge: no comparison counts against them."""
    judged = {(c.case, c.dtype, name) for c in comparisons for name in c.counted or ()}
    return {(c.case, c.dtype, c.actual) for c in comparisons if c.counted == ()} - judged


def means(known: KnownDeviation, case: str) -> bool:
    """Whether an entry is for a case: one of its own config that its pattern matches."""
    return (known.config_cases is None or case in known.config_cases) and matches(case, known.case)


def matches(name: str, pattern: str) -> bool:
    """Whether a glob, or an exact name (which may contain brackets), matches `name`."""
    return name == pattern or fnmatchcase(name, pattern)


def claim(known: KnownDeviation, deviating: Mapping[int, Comparison], causes: Collection[tuple[str, ...]]) -> Claim:
    """What an entry covers among the comparisons that deviate."""
    parts_by_index = {i: covered_parts(known, c, causes) for i, c in deviating.items() if applies_to(known, c)}
    covered = {i: parts for i, parts in parts_by_index.items() if parts}
    ratios = [ratio for i, parts in covered.items() for ratio in ratios_of(deviating[i], {name for name, _ in parts})]
    return Claim(known, covered, max(ratios, default=None))


def claim_of_missing(known: KnownDeviation, missing: Mapping[int, Comparison], reach: Reach) -> Claim:
    """What an entry for `unsupported` covers among the comparisons that could not be made."""
    covered, responded = {}, reach.answered | reach.unsupported
    for i, c in missing.items():
        names = [name for name in reach.absent(c) if (c.case, c.dtype, name) in responded]
        if applies_to(known, c) and (parts := frozenset((s, None) for s in names if known.backend in (None, s))):
            covered[i] = parts
    return Claim(known, covered, None)


def applies_to(known: KnownDeviation, c: Comparison) -> bool:
    """Whether case, dtype and tensor match."""
    return (
        known.dtype in (None, c.dtype)
        and means(known, c.case)
        and (known.tensor is None or matches(c.tensor, known.tensor))
    )


def covered_parts(known: KnownDeviation, c: Comparison, causes: Collection[tuple[str, ...]]) -> frozenset[Part]:
    """What an entry covers in a comparison: culprits, or both backends if there is none."""
    if c.verdict.passes and not c.culprit and known.diagnosis is None:
        # A tolerance that lets zeros pass is not a deviation unless there is a diagnosis.
        return frozenset()
    return frozenset(
        (name, known.diagnosis)
        for name in c.culprit or (c.actual, c.expected)
        if known.backend in (None, name)
        and (known.diagnosis is None or (c.case, c.dtype, name, known.diagnosis, c.tensor) in causes)
    )


def ratios_of(c: Comparison, names: Collection[str]) -> list[float]:
    """The known error ratios of these backends; NaN counts as infinite."""
    ratios = [ratio for name, ratio in c.backend_ratios if name in names and ratio is not None]
    return [math.inf if math.isnan(ratio) else ratio for ratio in ratios]


def assess(claimed: Claim, reach: Reach, today: datetime.date) -> AppliedEntry:
    """The state of an entry after a run, with its message; one about what is not judged is never out of date."""
    known, n = claimed.deviation, len(claimed.covered)
    state = state_of(claimed, reach, today)
    if state.fails and is_about_others(known, reach):
        state = EntryState.NOT_CHECKED
    text_of = {
        EntryState.MATCHED: matched_text,
        EntryState.STALE: stale_text,
        EntryState.EXPIRED: expired_text,
        EntryState.WORSE: worse_text,
        EntryState.NOT_CHECKED: unchecked_text,
    }[state]
    message = f"{known.source.file}:{known.source.line}: {state.value}: {text_of(claimed, reach)}"
    return AppliedEntry(known, state, n, claimed.worst_ratio, message)


def state_of(claimed: Claim, reach: Reach, today: datetime.date) -> EntryState:
    """The state of an entry; `expired` takes precedence if any cell of the entry ran."""
    known = claimed.deviation
    answers = reach.answers(known)
    ran = reach.answered | reach.unsupported
    if known.until is not None and known.until < today and (not answers or not ran.isdisjoint(answers)):
        return EntryState.EXPIRED
    if not claimed.covered:
        return EntryState.STALE if settled(known, answers, reach) else EntryState.NOT_CHECKED
    limit, ratio = known.error_ratio, claimed.worst_ratio
    return EntryState.WORSE if limit is not None and ratio is not None and ratio > limit else EntryState.MATCHED


def is_about_others(known: KnownDeviation, reach: Reach) -> bool:
    """Whether the run judges none of the backends of an entry."""
    ran = [answer for answer in reach.answers(known) if answer in reach.answered | reach.unsupported]
    return bool(ran) and reach.others.issuperset(ran)


def settled(known: KnownDeviation, answers: Sequence[Answer], reach: Reach) -> bool:
    """Whether everything that an entry covers was checked; an entry without any cell counts, since its glob may be
    wrong."""
    if not answers:
        return True
    return (known.unsupported or not reach.asked.altered) and set(answers) <= reach.answered | reach.unsupported


def matched_text(claimed: Claim, _: Reach) -> str:
    """What is accepted, and why."""
    size = "" if claimed.worst_ratio is None else f", error ratio up to {claimed.worst_ratio:.3g}"
    what = " that cannot be made" if claimed.deviation.unsupported else ""
    return f"{comparisons_text(claimed)}{what}{size}: {claimed.deviation.reason}"


def stale_text(claimed: Claim, reach: Reach) -> str:
    """Why an entry matches nothing."""
    known = claimed.deviation
    if not any(means(known, case) for case, _ in reach.asked.cases):
        return f"no case matches {known.case}; fix the pattern or remove the entry"
    if not reach.cells(known):
        return f"no case matching {known.case} runs in {known.dtype}; fix the dtype or remove the entry"
    if known.unsupported:
        return "everything it covers is supported; remove the entry"
    if not reach.unsupported.isdisjoint(reach.answers(known)):
        remedy = "to accept that it is unsupported, use `outcome: unsupported`"
        return f"nothing it covers deviates where it was compared; remove the entry, or {remedy}"
    return "nothing it covers deviates; remove the entry"


def expired_text(claimed: Claim, _: Reach) -> str:
    """What an expired entry still covers."""
    until, unsupported = f"on {claimed.deviation.until}", claimed.deviation.unsupported
    if not claimed.covered:
        gone = "is unsupported" if unsupported else "deviates"
        return f"{until}, and nothing it covers {gone} any more; remove the entry"
    still = "still unsupported" if unsupported else "still deviating"
    return f"{until}, with {comparisons_text(claimed)} {still}; fix the cause, or set a later `until`"


def worse_text(claimed: Claim, _: Reach) -> str:
    """How much a deviation has grown."""
    ratio, limit = claimed.worst_ratio, claimed.deviation.error_ratio
    remedy = "find out why before you raise `error_ratio`"
    return f"error ratio {ratio:.3g} in {comparisons_text(claimed)}, more than the recorded {limit:.3g}; {remedy}"


def unchecked_text(claimed: Claim, reach: Reach) -> str:
    """Why an entry was not checked."""
    if is_about_others(claimed.deviation, reach):
        return f"this run does not judge {claimed.deviation.backend or 'what it covers'}"
    answers = reach.answers(claimed.deviation)
    missing = [answer for answer in answers if answer not in reach.answered | reach.unsupported]
    if not missing:
        return "this run has other tolerances or another baseline than the config"
    names = ", ".join(dict.fromkeys(name for _, _, name in missing))
    n_missing, n_cells = (len({(case, dtype) for case, dtype, _ in group}) for group in (missing, answers))
    return f"this run did not compare {names} in {n_missing} of {n_cells} cells"


def comparisons_text(claimed: Claim) -> str:
    """`1 comparison`, `3 comparisons`."""
    n = len(claimed.covered)
    return f"{n} comparison" + ("" if n == 1 else "s")


def accepted(
    comparisons: Sequence[Comparison], claims: Sequence[Claim], causes: Collection[tuple[str, ...]], reach: Reach
) -> Iterator[Comparison]:
    """The comparisons, with the reasons in those of which every culprit, or absent backend, is covered."""
    parts: dict[int, set[Part]] = {}
    reasons: dict[int, dict[str, None]] = {}
    for c in claims:
        for i, covered in c.covered.items():
            parts.setdefault(i, set()).update(covered)
            reasons.setdefault(i, {}).setdefault(c.deviation.reason)
    placed: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in causes:
        placed.setdefault(row[:3], []).append(row)
    for i, comparison in enumerate(comparisons):
        blamed = (*comparison.culprit, *reach.absent(comparison))
        causes_of_blamed = [(name, placed.get((comparison.case, comparison.dtype, name), ())) for name in blamed]
        if i in parts and all(is_covered(name, comparison, parts[i], own) for name, own in causes_of_blamed):
            yield structs.replace(comparison, known="; ".join(reasons[i]))
        else:
            yield comparison


def is_covered(name: str, c: Comparison, parts: Collection[Part], causes: Collection[tuple[str, ...]]) -> bool:
    """Whether a culprit is accepted for any cause, or for all of its causes (for one of several that the data do not
    distinguish)."""
    cell = (c.case, c.dtype, name)
    diagnosed = {row[3] for row in causes if row[:3] == cell and row[4] == c.tensor}
    if (name, None) in parts:
        return True
    accepted = {cause for cause in diagnosed if (name, cause) in parts}
    return bool(accepted) and ("not-identifiable" in diagnosed or accepted == diagnosed)
