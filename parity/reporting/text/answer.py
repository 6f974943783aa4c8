"""The answer in a few lines: whether there are findings, which, and what is worth a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from parity import exit_codes
from parity.config.nodes import printable
from parity.judge.compare.verdict import Comparison
from parity.judge.failures import FAILURES, LOG
from parity.judge.known import EntryState
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import Status, tally, tensor_statuses
from parity.reporting.results.rows import KnownRow, Results, ResultsError
from parity.reporting.text.evidence import CHOICES, evidence_text
from parity.reporting.text.findings import Finding, findings, of_others, tolerated
from parity.reporting.text.reasons import needs
from parity.reporting.text.words import few, grouped, listed, plural

MAX_CAUSES = 12
MAX_OTHERS = 8
"""Number of causes in backends that the run does not judge."""
MAX_NEEDS = 4
"""Number of cases whose tolerance the warning about rounding shows; `explain` shows it for each case."""
ROUNDING, CHOICE = "rounding", "choice"
BELOW = {
    frozenset((ROUNDING,)): "by rounding alone",
    frozenset((CHOICE,)): "where several results are right",
}


def answer(results: Results) -> Text:
    """The verdict line: `FAIL  2 findings in 16 of 148 tensors: paddle, torch`."""
    code = results.summary.exit_code
    all_findings = findings(results)
    if code == exit_codes.INTERRUPTED:
        so_far = f"; {in_tensors(all_findings, results)} so far" if all_findings else ""
        return Text.assemble(
            ("INTERRUPTED", "bold yellow"), f"  {plural(sum(results.summary.outcomes.values()), 'result')} kept{so_far}"
        )
    n_bad = sum(row.fails for row in results.known)
    outdated = f"{plural(n_bad, 'known deviation is', 'known deviations are')} out of date"
    if all_findings:
        known = f"; {outdated}" if n_bad else ""
        said = (in_tensors(all_findings, results), known, not_compared(results), stopped_text(results))
        return Text.assemble(("FAIL", "bold red"), "  ", *said)
    if n_bad:
        return Text.assemble(("FAIL", "bold red"), f"  no findings, but {outdated}{not_compared(results)}")
    if code == exit_codes.INCOMPLETE:
        return Text.assemble(
            ("INCOMPLETE", "bold yellow"), "  no findings, but", (not_compared(results) or JUDGE_FAILED)[1:]
        )
    if code != exit_codes.PASSED:
        raise ResultsError(f"its exit code is {code}, but it has no findings")
    return Text.assemble(("PASS", "bold green"), f"  no findings{passed(results)}")


def in_tensors(all_findings: Sequence[Finding], results: Results) -> str:
    """`2 findings in 16 of 148 tensors: paddle, torch`; the backend that differs in most tensors comes first."""
    rows = [(d.backend, d.row.tensor_key) for finding in all_findings for d in finding.differences]
    ranked = Counter(backend for backend, _ in dict.fromkeys(rows)).most_common()
    n, total = len({key for _, key in rows}), sum(tally(results).values())
    names = few((printable(name) for name, _ in ranked), 6)
    return f"{plural(len(all_findings), 'finding')} in {n} of {plural(total, 'tensor')}: {names}"


def stopped_text(results: Results) -> str:
    """`; stopped at the first finding: 5 of 8 cases were not run`, or nothing."""
    left = {case.id for case in results.cases} - {row.case for row in results.comparisons}
    if not results.run.stopped or not left:
        return ""
    return f"; stopped at the first finding: {len(left)} of {plural(len(results.cases), 'case')} were not run"


def passed(results: Results) -> str:
    """`; 96 tensors agree`, or how many differ without failing the run."""
    numbers = Counter(tally(results))
    judged = [row for row in results.comparisons if row.counts]
    n_missing = count_tensors([row for row in judged if not row.compared])
    kinds = {row.verdict for row in judged if row.fails and row.known is None}
    if kinds:
        why = BELOW.get(frozenset(kinds)) or f"below the level that fails ({few(sorted(kinds))})"
        exceed = "tensor exceeds", "tensors exceed"
        parts = [f"{plural(numbers[Status.BELOW], *exceed)} rtol/atol {why}"]
    else:
        n_agree = numbers[Status.PASSED] + numbers[Status.SUSPECT]
        n_partly = count_tensors([row for row in judged if row.agrees_in_part])
        partly = f" ({n_partly} of them in part)" if n_partly else ""
        parts = [f"{plural(n_agree, 'tensor agrees', 'tensors agree')}{partly}"]
    n_lacking = count_tensors(judged) - count_tensors([row for row in judged if row.compared])
    n_known = numbers[Status.KNOWN] - n_lacking
    parts += [f"{n_known} as known"] if n_known > 0 else []
    parts += [f"{n_missing} lack the result of some backend, as known"] if n_missing else []
    parts += [f"{who} wrong in {n}, not counted" for who, n in [others_text(of_others(results))] if n]
    return "".join(f"; {part}" for part in parts)


def others_text(uncounted: Sequence[Finding]) -> tuple[str, int]:
    """`torch itself is`, and in how many tensors the backends of these findings are wrong."""
    names = dict.fromkeys(name for finding in uncounted for name in finding.backends)
    keys = {d.row.tensor_key for finding in uncounted for d in finding.differences}
    return printable(f"{listed(names)} {'itself is' if len(names) == 1 else 'themselves are'}"), len(keys)


def not_compared(results: Results) -> str:
    """`; 4 tensors lack the result of some backend`; accepted ones count only where nothing at all was compared."""
    if not results.summary.verdicts and not any(row.compared for row in results.comparisons):
        return "; nothing was compared"
    judged = [row for row in results.comparisons if row.counts]
    missing = [row for row in judged if not row.compared]
    wanted = [row for row in missing if row.known is None or len(missing) == len(judged)]
    which = "a" if len(missing) == len(judged) else "some"
    lack = f"tensor lacks the result of {which} backend", f"tensors lack the result of {which} backend"
    return f"; {plural(count_tensors(wanted), *lack)}" if wanted else ""


JUDGE_FAILED = "; parity itself failed"


def failed_judgements(results: Results) -> Iterator[Text]:
    """Where parity itself failed, each error in a line."""
    failures = (
        (f"{f['doing']}: {f['error']}", row.case) for row in results.diagnoses for f in row.evidence.get(FAILURES, ())
    )
    for error, cases in list(grouped(failures).items())[:MAX_CAUSES]:
        where = few(map(printable, dict.fromkeys(cases)))
        yield warning(printable(f"parity itself failed in {where}, {error}; {LOG} has the traceback: please report it"))


def warnings(results: Results) -> Iterator[Text]:
    """Warnings, a line each: where parity itself failed; then about passes: differences below the failing level, passes
    because the tolerance is loose, curves that drift, and tensors that zeros would have matched."""
    yield from failed_judgements(results)
    statuses = tensor_statuses(results)
    judged = [row for row in results.comparisons if row.counts]
    below = [row for row in judged if row.fails and statuses[row.tensor_key] is Status.BELOW]
    yield from others(results)
    rounding = [row for row in below if row.verdict == ROUNDING]
    if rounding:
        yield warning(
            f"{plural(count_tensors(rounding), 'tensor exceeds', 'tensors exceed')} rtol/atol by rounding alone"
        )
        cases = grouped((row.case, row) for row in rounding)
        for case, rows in list(cases.items())[:MAX_NEEDS]:
            yield Text(printable(f"  {case} needs {needs(rows)}"), style="dim")
        if len(cases) > MAX_NEEDS:
            yield Text(
                f"  {plural(len(cases) - MAX_NEEDS, 'more case')}; parity explain RUN CASE shows what each needs",
                style="dim",
            )
    for text in dict.fromkeys(choices(below, results)):
        yield warning(text)
    for verdict, rows in grouped((row.verdict, row) for row in below if row.verdict not in (ROUNDING, CHOICE)).items():
        n = plural(count_tensors(rows), "tensor is", "tensors are")
        yield warning(f"{n} {verdict}, which --fail-on {results.run.fail_on} lets pass")
    yield from undefined(judged)
    yield from suspects(results)


def undefined(judged: Sequence[Comparison]) -> Iterator[Text]:
    """The passes that leave elements out, each reason in a line."""
    partly = grouped((row.message, row) for row in judged if row.agrees_in_part)
    for message, rows in list(partly.items())[:MAX_CAUSES]:
        first, n = rows[0], plural(count_tensors(rows), "tensor is", "tensors are")
        yield warning(printable(f"{n} {message} (for example {first.case} {first.dtype} {first.tensor})"))


def others(results: Results) -> Iterator[Text]:
    """What backends do wrong, or did not compute, that the run does not judge."""
    uncounted = of_others(results)
    who, n = others_text(uncounted)
    if uncounted:
        total = sum(tally(results).values())
        yield warning(f"{who} wrong in {n} of {plural(total, 'tensor')}; not counted (--fail-on-others counts it)")
        yield from (Text.assemble("  ", finding.line()) for finding in uncounted[:MAX_OTHERS])
        if len(uncounted) > MAX_OTHERS:
            yield Text(
                f"  and {plural(len(uncounted) - MAX_OTHERS, 'more cause')}; --fail-on-others shows all", style="dim"
            )
    absent = {(row.case, row.dtype, row.actual) for row in results.comparisons if not row.compared and row.is_of_others}
    for name, cells in grouped((backend, cell) for *cell, backend in sorted(absent)).items():
        yield warning(printable(f"{name} has no result in {plural(len(cells), 'cell')}; not counted"))


def choices(below: Sequence[Comparison], results: Results) -> Iterator[str]:
    """Which of several right results each backend chose."""
    chosen = {row.tensor_key[:2] for row in below if row.verdict == CHOICE}
    ops = {case.id: case.op for case in results.cases}
    for row in results.diagnoses:
        if row.id in CHOICES and (row.case, row.dtype) in chosen:
            what, takes = CHOICES[row.id], evidence_text("chosen", row.evidence["chosen"])
            yield printable(
                f"several {what} of {ops[row.case]} are right in {', '.join(row.tensors)}: {takes} ({row.id})"
            )


def suspects(results: Results) -> Iterator[Text]:
    """The passes that hide an error, each cause in a line, then curves that drift and passes that say little."""
    tolerated_findings = tolerated(results)
    for finding in tolerated_findings[:MAX_CAUSES]:
        n = plural(finding.n_tensors, "tensor passes", "tensors pass")
        yield warning(
            f"{n} only because the tolerance is loose: ",
            finding.sentence(),
            f" ({'; '.join(filter(None, (finding.op, finding.history())))}, for example {example(finding.worst.row)})",
        )
    statuses = tensor_statuses(results)
    doubtful = [row for row in results.comparisons if row.suspect and row.counts]
    doubtful = [row for row in doubtful if statuses[row.tensor_key] is Status.SUSPECT]
    ops = {case.id: case.op for case in results.cases}
    drifting = [row for row in doubtful if row.message and report_of(ops[row.case]).drifts(row)]
    vacuous = [row for row in doubtful if not row.culprit and row not in drifting]
    for rows, text in (
        (drifting, "leave the envelope of the curves, though every stage of that step is right"),
        (vacuous, "would also match zeros"),
    ):
        if rows:
            yield warning(f"{plural(count_tensors(rows), 'tensor')} {text}, for example {example(rows[0])}")


def warning(*parts: str | Text) -> Text:
    """A line that begins with `warning:`."""
    return Text.assemble(("warning: ", "yellow"), *parts)


def example(row: Comparison) -> str:
    """`group-norm-offset=100 float64 y`."""
    return printable(" ".join(row.tensor_key))


def count_tensors(rows: Sequence[Comparison]) -> int:
    """How many tensors the rows are about; one in two dtypes or cases counts twice."""
    return len({row.tensor_key for row in rows})


KNOWN_STYLES = {
    EntryState.STALE.value: "bold red",
    EntryState.EXPIRED.value: "bold red",
    EntryState.WORSE.value: "bold red",
    EntryState.NOT_CHECKED.value: "yellow",
    EntryState.MATCHED.value: "dim",
}
"""The states of `known` entries: first those that fail, then what was not checked, last what is accepted."""


def known_lines(rows: Sequence[KnownRow], *, verbose: bool = True) -> Iterator[Text]:
    """A line for each entry of `known`: what to do about it, or what it accepts and why.

    Without `verbose`, entries that this run did not check are left out.
    """
    lines = {
        (accepted_text(row) if state == EntryState.MATCHED.value else row.message): style
        for state, style in KNOWN_STYLES.items()
        for row in rows
        if row.state == state and (verbose or state != EntryState.NOT_CHECKED.value)
    }
    yield from (Text.assemble(("known: ", style), printable(line)) for line, style in lines.items())


def accepted_text(row: KnownRow) -> str:
    """`paddle running-var-ddof: Paddle 3.3.1 updates running_var with the biased variance`."""
    what = " ".join(filter(None, (row.backend, row.diagnosis or row.outcome)))
    return f"{what or row.case}: {row.reason}"
