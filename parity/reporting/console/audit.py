"""What the cases of a config can detect, op by op: a table of mistakes, least detected first, and the blind spots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from parity.cases.dtypes import coarsest
from parity.config.plan import CasePlan, Plan
from parity.engine.inputs import overflows
from parity.judge.audit import CaseAudit, Mistake, audit_case
from parity.reporting.blocks import Block, Grid, GridCell, GridColumn, Sentence
from parity.reporting.blocks.console import block_parts, print_parts
from parity.reporting.console.run import stdout_console
from parity.reporting.text.evidence import plain
from parity.reporting.text.words import few, grouped, plural

MAX_NAMES = 4
"""The number of cases or variants named in a line; the others are counted."""


@dataclass(frozen=True)
class CauseRow:
    """A mistake over the cases of an op: how many cases detect it, in any dtype and in each, and in how many it fails.

    `unseen` are its variants (an eps of 0, an eps of 1e-3) that no case detects. `unstable`: it is a loss of precision,
    known only by the size of its error.
    """

    id: str
    n_cases: int
    n_seen: int
    n_seen_in: tuple[int, ...]
    n_failing: int
    shown_by: tuple[str, ...]
    unseen: tuple[str, ...]
    unstable: bool


def audit_and_show(plan: Plan, of_client: Callable[[CasePlan, Plan], CaseAudit]) -> None:
    """Audit every case of the plan and print the results; `of_client` audits a case that is not an op."""
    progress = Console(stderr=True)
    quiet = not progress.is_terminal
    cases = track(plan.cases, "audit", console=progress, transient=True, disable=quiet)
    audits = [audited(case, plan.seed) if case.is_op else of_client(case, plan) for case in cases]
    by_op = grouped((audit.op, audit) for audit in audits)
    blocks = [block for op, of_op in by_op.items() for block in (Sentence(""), *audit_blocks(op, of_op))]
    console = stdout_console()
    parts = block_parts([*blocks, Sentence(""), Sentence(LEGEND, "quiet")], console.width, verbose=True)
    print_parts(parts, console)


LEGEND = (
    "detected in: cases where the mistake's error is at least 8 times that of a careful implementation, of the cases "
    "that could show it; fails in: cases where it also exceeds the tolerance. The least detected mistakes come first."
)


def audited(case: CasePlan, seed: int) -> CaseAudit:
    """The audit of a case with the inputs that a run would draw."""
    arrays = {plan.name: plan.sample(seed, case.id, *case.dtypes) for plan in case.tensors}
    if any(overflows(plan, arrays[plan.name]) for plan in case.tensors):
        problem = f"its inputs overflow in {coarsest(case.dtypes)}, so no backend runs it"
        return CaseAudit(case.id, case.op, case.dtypes, problem=problem)
    return audit_case(case, arrays)


def cause_rows(cases: Sequence[CaseAudit], dtypes: Sequence[str]) -> list[CauseRow]:
    """The mistakes of an op, least detected first."""
    ids = dict.fromkeys(mistake.id for case in cases for mistake in case.mistakes)
    rows = [cause_row(name, cases, dtypes) for name in ids]
    return sorted(rows, key=lambda row: (row.n_seen / row.n_cases, row.n_failing / row.n_cases))


def cause_row(name: str, cases: Sequence[CaseAudit], dtypes: Sequence[str]) -> CauseRow:
    """One mistake over all cases to which it applies."""
    groups = [asked for case in cases if (asked := [m for m in case.mistakes if m.id == name])]
    every = [mistake for group in groups for mistake in group]
    seen = {variant(m) for m in every if m.seen_in}
    blind = [m for m in every if variant(m) not in seen]
    return CauseRow(
        name,
        n_cases=len(groups),
        n_seen=count(any(m.seen_in for m in group) for group in groups),
        n_seen_in=tuple(count(any(dtype in m.seen_in for m in group) for group in groups) for dtype in dtypes),
        n_failing=count(any(m.fails_in for m in group) for group in groups),
        shown_by=tuple(dict.fromkeys(m.shown_by for m in blind or every if m.shown_by)),
        unseen=tuple(dict.fromkeys(variant(m) for m in blind)),
        unstable=all(m.unstable for m in every),
    )


def count(items: Iterable[bool]) -> int:
    """Number of true values."""
    return sum(items)


def variant(mistake: Mistake) -> str:
    """The parameters as text, `eps=0.001`."""
    return plain(mistake.parameters, 3)


def audit_blocks(op: str, cases: Sequence[CaseAudit]) -> Iterator[Block]:
    """What the cases of one op can detect together."""
    dtypes = tuple(dict.fromkeys(dtype for case in cases for dtype in case.dtypes))
    rows = cause_rows(cases, dtypes)
    if rows:
        n_audited = count(not case.problem for case in cases)
        yield table(f"{op}: {plural(n_audited, 'case')} audited", rows, dtypes)
    yield from lines(rows, cases)


def table(title: str, rows: Sequence[CauseRow], dtypes: Sequence[str]) -> Grid:
    """The table of mistakes, least detected first."""
    per_dtype = dtypes if len(dtypes) > 1 else ()
    numbers = (GridColumn(name, number=True) for name in ("detected in", *per_dtype, "fails in"))
    columns = [GridColumn("mistake"), *numbers, GridColumn("detected by", prose=True, style="quiet", least=16)]
    return Grid(columns, [table_row(row, per_dtype) for row in rows], title)


def table_row(row: CauseRow, per_dtype: Sequence[str]) -> list[GridCell]:
    """A mistake in the table."""
    counts = [str(n) for n in row.n_seen_in] if per_dtype else []
    seen = GridCell(f"{row.n_seen} of {row.n_cases}", style(row))
    return [GridCell(row.id), seen, *map(GridCell, (*counts, str(row.n_failing), "; ".join(row.shown_by)))]


def style(row: CauseRow) -> str:
    """That of a mistake that no case detects, or for which none fails."""
    return "bad" if not row.n_seen else "" if row.n_failing else "warning"


def lines(rows: Sequence[CauseRow], cases: Sequence[CaseAudit]) -> Iterator[Sentence]:
    """Remarks that are not in the table, the worst first."""
    for row in rows:
        if row.unseen:
            why = (
                "; on these inputs its error is below 8 times that of a careful implementation" if row.unstable else ""
            )
            yield Sentence(f"{row.id} ({few(row.unseen, MAX_NAMES, '; ')}){why}", "off", "not detected")
    for row in rows:
        if row.n_seen and not row.n_failing:
            yield Sentence(f"{row.id}: within every tolerance, at most a suspect pass", "warning", "never fails")
    yield from pair_lines(cases)
    yield from remark_lines(cases)
    for case in cases:
        if case.problem:
            yield Sentence(f"{case.case}: {case.problem}", "warning", "not audited")


def pair_lines(cases: Sequence[CaseAudit]) -> Iterator[Sentence]:
    """Pairs of mistakes that look alike: in all cases that detect both, then in some of them."""
    pairs = {frozenset((a.id, b.id)): (a, b) for case in reversed(cases) for a, b in case.alike}
    sometimes: list[Sentence] = []
    for ids, (a, b) in pairs.items():
        confusing = [case.case for case in cases if any(ids == {x.id, y.id} for x, y in case.alike)]
        both = [case for case in cases if ids <= {m.id for m in case.mistakes if m.seen_in}]
        words = f"{described(a)} from {described(b)}"
        if len(confusing) == len(both):
            yield Sentence(words, "off", "not distinguished")
        else:
            sometimes.append(Sentence(f"{words}: {few(confusing)}", "warning", "not distinguished in some cases"))
    yield from sometimes


def described(mistake: Mistake) -> str:
    """`eps-value (eps=0.001)`."""
    return f"{mistake.id} ({variant(mistake)})" if mistake.parameters else mistake.id


def remark_lines(cases: Sequence[CaseAudit]) -> Iterator[Sentence]:
    """The blind spots of the inputs, the most frequent first."""
    frequent = Counter(text for case in cases for text in case.remarks)
    for text, n in frequent.most_common():
        where = [case.case for case in cases if text in case.remarks]
        yield Sentence(text, "quiet", "in every case" if n == len(cases) else few(where))
