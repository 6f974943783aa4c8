"""What the cases of a config can detect, op by op: a table of mistakes, least detected first, and the blind spots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from parity.cases.dtypes import coarsest
from parity.config.plan import CasePlan, Plan
from parity.engine.inputs import overflows
from parity.judge.audit import CaseAudit, Mistake, audit_case
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
    console = stdout_console()
    for op, of_op in grouped((audit.op, audit) for audit in audits).items():
        show(op, of_op, console)
    console.print()
    console.print(LEGEND, style="dim", soft_wrap=True)


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


def show(op: str, cases: Sequence[CaseAudit], console: Console) -> None:
    """Print what the cases of one op can detect together."""
    dtypes = tuple(dict.fromkeys(dtype for case in cases for dtype in case.dtypes))
    rows = cause_rows(cases, dtypes)
    console.print()
    if rows:
        n_audited = count(not case.problem for case in cases)
        console.print(table(f"{op}: {plural(n_audited, 'case')} audited", rows, dtypes))
    for line in lines(rows, cases):
        console.print(line, soft_wrap=True)


def table(title: str, rows: Sequence[CauseRow], dtypes: Sequence[str]) -> Table:
    """The table of mistakes, least detected first."""
    report = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    report.add_column("mistake", no_wrap=True)
    report.add_column("detected in", justify="right", no_wrap=True)
    per_dtype = dtypes if len(dtypes) > 1 else ()
    for dtype in per_dtype:
        report.add_column(dtype, justify="right", no_wrap=True)
    report.add_column("fails in", justify="right", no_wrap=True)
    report.add_column("detected by", overflow="fold")
    for row in rows:
        counts = [str(n) for n in row.n_seen_in] if per_dtype else []
        seen = Text(f"{row.n_seen} of {row.n_cases}", style=style(row))
        report.add_row(row.id, seen, *counts, str(row.n_failing), Text("; ".join(row.shown_by), style="dim"))
    return report


def style(row: CauseRow) -> str:
    """Red if no case detects a mistake, yellow if no case fails for it."""
    return "bold red" if not row.n_seen else "" if row.n_failing else "yellow"


def lines(rows: Sequence[CauseRow], cases: Sequence[CaseAudit]) -> Iterator[Text]:
    """Remarks that are not in the table, the worst first."""
    for row in rows:
        if row.unseen:
            why = (
                "; on these inputs its error is below 8 times that of a careful implementation" if row.unstable else ""
            )
            yield remark("not detected", "red", f"{row.id} ({few(row.unseen, MAX_NAMES, '; ')}){why}")
    for row in rows:
        if row.n_seen and not row.n_failing:
            yield remark("never fails", "yellow", f"{row.id}: within every tolerance, at most a suspect pass")
    yield from pair_lines(cases)
    yield from remark_lines(cases)
    for case in cases:
        if case.problem:
            yield remark("not audited", "yellow", f"{case.case}: {case.problem}")


def pair_lines(cases: Sequence[CaseAudit]) -> Iterator[Text]:
    """Pairs of mistakes that look alike: in all cases that detect both, then in some of them."""
    pairs = {frozenset((a.id, b.id)): (a, b) for case in reversed(cases) for a, b in case.alike}
    sometimes: list[Text] = []
    for ids, (a, b) in pairs.items():
        confusing = [case.case for case in cases if any(ids == {x.id, y.id} for x, y in case.alike)]
        both = [case for case in cases if ids <= {m.id for m in case.mistakes if m.seen_in}]
        words = f"{described(a)} from {described(b)}"
        if len(confusing) == len(both):
            yield remark("not distinguished", "red", words)
        else:
            sometimes.append(remark("not distinguished in some cases", "yellow", f"{words}: {few(confusing)}"))
    yield from sometimes


def described(mistake: Mistake) -> str:
    """`eps-value (eps=0.001)`."""
    return f"{mistake.id} ({variant(mistake)})" if mistake.parameters else mistake.id


def remark_lines(cases: Sequence[CaseAudit]) -> Iterator[Text]:
    """The blind spots of the inputs, the most frequent first."""
    frequent = Counter(text for case in cases for text in case.remarks)
    for text, n in frequent.most_common():
        where = [case.case for case in cases if text in case.remarks]
        yield remark("in every case" if n == len(cases) else few(where), "dim", text)


def remark(label: str, color: str, words: str) -> Text:
    """A line with a coloured label, without markup."""
    return Text.assemble((label, color), f": {words}")
