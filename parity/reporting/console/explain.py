"""`parity explain`: a diagnosis in a paragraph, or one case of a stored run on one screen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from parity.config.errors import nearest
from parity.config.nodes import printable
from parity.diagnoses import Entry, catalogue
from parity.errors import UserError
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison, Verdict
from parity.reporting.blocks import Grid, GridColumn
from parity.reporting.blocks.console import answer_parts, block_parts, grid_parts, print_parts
from parity.reporting.console.run import OpTable, finding_lines, lineup, tensor_lines
from parity.reporting.kinds import report_of
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import FAILING, FINDINGS, BackendRow, CaseRow, Results, RunRow
from parity.reporting.text.evidence import diagnosis_lines, residual_text
from parity.reporting.text.findings import by_cause
from parity.reporting.text.reasons import (
    CaseRows,
    aligned,
    case_rows,
    failing,
    tolerance_entry,
    worst_first,
)
from parity.reporting.text.steps import steps
from parity.reporting.text.values import values_text
from parity.reporting.text.words import grouped, number, plural

MAX_LISTED = 20
MAX_INPUTS = 4
MAX_FINDINGS = 3
MAX_ROWS = 8
MAX_PAIRS = 4
"""The number of comparisons of a tensor that are shown with values; the others are counted."""

LABEL_WIDTH = 11


class ExplainError(UserError):
    """There is no such diagnosis, case, dtype or tensor; the message lists those that exist."""


def explain_list(console: Console) -> None:
    """Every diagnosis with its title."""
    columns = (GridColumn("", style="strong"), GridColumn("", prose=True))
    print_parts(
        grid_parts(Grid(columns, [(entry.id, entry.title) for entry in catalogue().values()]), console.width), console
    )


def explain_id(name: str, console: Console) -> None:
    """What is known about a diagnosis."""
    if name not in catalogue():
        meant = hint(name, catalogue())
        raise ExplainError(
            f'"{printable(name)}" is neither a diagnosis nor a run directory{meant}; see `parity explain --list`'
        )
    for part in entry_parts(catalogue()[name]):
        console.print(part)


def entry_parts(entry: Entry) -> Iterator[RenderableType]:
    """The paragraphs of a diagnosis."""
    yield Text.assemble((entry.id, "bold"), f": {entry.title}")
    labels = (("", entry.what), ("In the data: ", entry.shows), ("Known in: ", entry.known_in))
    for label, text in (*labels, ("Source: ", entry.source)):
        if text:
            yield Padding(Text.assemble((label, "bold"), text), (1, 0, 0, 2), expand=False)


def explain_case(
    run_dir: Path,
    name: str | None,
    console: Console,
    *,
    dtype: str | None = None,
    tensor: str | None = None,
    verbose: bool = False,
) -> None:
    """Explain one case of a stored run, with `verbose` in full; raises ExplainError and ResultsError."""
    results = read_results(run_dir)
    case = case_called(name, results)
    rows, results = narrowed(case_rows(results)[case.id], dtype, tensor), results.of(case)
    parts = screen(rows, results, run_dir, console.width) if verbose else brief(rows, results, run_dir, console.width)
    print_parts(parts, console)


def case_called(name: str | None, results: Results) -> CaseRow:
    """The case with this id, or the only one whose id begins with it or contains it.

    Of several, the only one that ends with it or has it as a whole word: `offset=100` is not `offset=10000`.
    """
    by_id = {case.id: case for case in results.cases}
    if name is None and len(by_id) == 1:
        return next(iter(by_id.values()))
    if name is None:
        raise ExplainError(f"name a case: {choices(by_id)}")
    if name in by_id:
        return by_id[name]
    folded = name.casefold()
    having = [case_id for case_id in by_id if folded in case_id.casefold()]
    having = [case_id for case_id in having if case_id.casefold().startswith(folded)] or having
    ends = [case_id for case_id in having if case_id.casefold().endswith(folded)]
    word = re.compile(rf"(?<![\w.]){re.escape(folded)}(?![\w.])")
    words = [case_id for case_id in having if folded and word.search(case_id.casefold())]
    for meant in (having, ends, words):
        if len(meant) == 1:
            return by_id[meant[0]]
    if meant := ends or words or having:
        raise ExplainError(f'"{printable(name)}" matches {len(meant)} cases: {choices(meant)}')
    raise ExplainError(f'this run has no case "{printable(name)}"{hint(name, by_id)}\n{choices(by_id)}')


def hint(word: str, words: Iterable[str]) -> str:
    """`; did you mean "x"?`, if something is similar."""
    near = nearest(word, words)
    return f'; did you mean "{printable(near)}"?' if near else ""


def choices(names: Iterable[str]) -> str:
    """The names, one per line, up to MAX_LISTED."""
    shown = [f"\n  {printable(name)}" for name in names]
    hidden = len(shown) - MAX_LISTED
    return "".join(shown[:MAX_LISTED]) + (f"\n  ... and {hidden} more" if hidden > 0 else "")


def narrowed(rows: CaseRows, dtype: str | None, tensor: str | None) -> CaseRows:
    """The rows of one dtype and of the tensors that match a glob."""
    dtypes = dict.fromkeys(row.dtype for row in rows.comparisons)
    if dtype is not None and dtype not in dtypes:
        raise ExplainError(f'{printable(rows.case.id)} has no dtype "{printable(dtype)}": {choices(dtypes)}')
    tensors = dict.fromkeys(row.tensor for row in rows.comparisons)
    meant = {name for name in tensors if tensor is None or name == tensor or fnmatchcase(name, tensor)}
    if tensor is not None and not meant:
        near = hint(tensor, tensors)
        raise ExplainError(f'{printable(rows.case.id)} has no tensor "{printable(tensor)}"{near}: {choices(tensors)}')
    kept = [row for row in rows.comparisons if dtype in (None, row.dtype) and row.tensor in meant]
    diagnoses = [d for d in rows.diagnoses if dtype in (None, d.dtype) and (tensor is None or meant & set(d.tensors))]
    return replace(rows, comparisons=kept, diagnoses=diagnoses)


def brief(rows: CaseRows, results: Results, run_dir: Path, width: int) -> Iterator[RenderableType]:
    """One case on one screen: what was computed, the verdict, its findings, the numbers, what to do."""
    case = rows.case
    yield Text.assemble((printable(case.id), "bold"), f"  {printable(report_of(case.op).call(case))}")
    for name, item in list(case.inputs.items())[:MAX_INPUTS]:
        yield Text(printable(f"  {name} {item.shape} {item.draw}"), style="dim")
    if len(case.inputs) > MAX_INPUTS:
        yield Text(f"  and {plural(len(case.inputs) - MAX_INPUTS, 'more input')}", style="dim")
    yield lineup(results)
    yield from not_run(rows, results)
    yield Text.assemble(("\naligned? ", "bold"), printable(aligned(rows.comparisons)))
    yield from answers(rows, results, {row.dtype for row in rows.comparisons}, width)
    different = [row for row in rows.comparisons if row.verdict in FINDINGS or row.hides]
    case_findings = [replace(finding, cases=(case,)) for finding in by_cause(results, different)]
    for i, finding in enumerate(case_findings[:MAX_FINDINGS], 1):
        yield Text()
        yield from finding_lines(finding, i, width)
        if (diagnosis := finding.worst.diagnosis) is not None:
            yield Text(printable(f"   {diagnosis.dtype}: {residual_text(diagnosis)}"))
    if len(case_findings) > MAX_FINDINGS:
        yield Text(f"and {plural(len(case_findings) - MAX_FINDINGS, 'more finding')} (-v shows them)", style="dim")
    lines = [line for group in tensor_lines(results).values() for line in group if line.worst.case == case.id]
    failed = [line for line in lines if line.verdict in FAILING and line.worst in rows.comparisons]
    if failed:
        yield Text()
        yield from OpTable(failed[:MAX_ROWS], results).lines(width)[2:]
        if len(failed) > MAX_ROWS:
            yield Text(f"    and {plural(len(failed) - MAX_ROWS, 'more tensor')} (-v shows them)", style="dim")
    yield from do_next(rows, run_dir)


def do_next(rows: CaseRows, run_dir: Path) -> Iterator[Text]:
    """The tolerance that rounding needs, and the next commands."""
    failures = [row for row in failing(rows.comparisons) if row.known is None]
    rounding = [row for row in failures if row.verdict == Verdict.ROUNDING]
    if rounding:
        yield Text("\ntensors that exceed rtol/atol by rounding alone pass with")
        yield Text(f"  {printable(tolerance_entry(rounding))}")
    arguments = f"{shlex.quote(str(run_dir))} {shlex.quote(rows.case.id)}"
    yield Text(f"\nparity explain {printable(arguments)} -v", style="bold").append(
        "  every number and the evidence", style="dim"
    )
    if any(row.verdict in FINDINGS and row.counts for row in failures):
        if not report_of(rows.case.op).no_script:
            yield Text(f"parity repro {printable(arguments)}", style="bold").append(
                "  a script without parity", style="dim"
            )
        yield Text(f"parity accept {printable(arguments)} --reason ...", style="bold").append(
            "  add it to the config's known deviations", style="dim"
        )


def screen(rows: CaseRows, results: Results, run_dir: Path, width: int) -> Iterator[RenderableType]:
    """One case in full: what was computed, the verdict, the tensors, the causes, what to do."""
    yield from computed(rows.case, results, run_dir)
    yield from not_run(rows, results)
    yield Text()
    yield Text.assemble(("aligned? ", "bold"), printable(aligned(rows.comparisons)))
    dtypes = {row.dtype for row in rows.comparisons} or set(rows.case.dtypes)
    yield from answers(rows, results, dtypes, width)
    for (dtype, tensor), group in by_tensor(rows).items():
        yield Text()
        yield from tensor_parts(dtype, tensor, group, rows)
    yield from passing_parts(rows)
    if rows.diagnoses:
        yield Text("\ncauses", style="bold")
    explained: set[str] = set()
    for diagnosis in rows.diagnoses:
        lines = diagnosis_lines(diagnosis, brief=diagnosis.id in explained)
        yield from (Padding(line, (0, 0, 0, 4 if i else 2), expand=False) for i, line in enumerate(lines))
        explained.add(diagnosis.id)
    yield from next_steps(rows, run_dir, width)


def answers(rows: CaseRows, results: Results, dtypes: Collection[str], width: int) -> Iterator[RenderableType]:
    """What the report of this kind of case says about it, in full."""
    chapter = report_of(rows.case.op).chapter(results)
    for answer in chapter.answers if chapter else ():
        if answer.case == rows.case.id and answer.dtype in dtypes:
            yield from answer_parts(answer, width, verbose=True)


def computed(case: CaseRow, results: Results, run_dir: Path) -> Iterator[RenderableType]:
    """The op with its params and inputs, and the backends."""
    yield Text.assemble((printable(case.id), "bold"), "\n")
    rows = [*report_of(case.op).recipe(case), ("from", f"{case.source.file}:{case.source.line}")]
    if case.brought is not None:
        rows.append(("reference", case.brought.file))
    for i, (name, item) in enumerate(case.inputs.items()):
        rows.append(("" if i else "inputs", f"{name} {item.shape} {item.draw}"))
    rows.append(("dtypes", ", ".join(case.dtypes)))
    for i, backend in enumerate(results.backends):
        rows.append(("" if i else "backends", backend_text(backend, results.run)))
    if case.files:
        rows.append(("stored in", f"{(run_dir / case.files[0]).parent}"))
    width = max(LABEL_WIDTH, *(len(label) + 1 for label, _ in rows))
    for label, text in rows:
        yield Text.assemble((f"{printable(label):<{width}}", "dim"), printable(text))


def backend_text(row: BackendRow, run: RunRow) -> str:
    """`paddle: paddle 3.3.1, eager, cpu, numpy 2.1.0 = baseline`."""
    parts = [f"{row.framework} {row.version or '(version unknown)'}", row.mode, row.device]
    parts += [f"numpy {row.numpy}"] if row.numpy else []
    text = f"{row.name}: {', '.join(filter(None, parts))}"
    return (
        text + (" = baseline" if row.name == run.baseline else "") + (" = subject" if row.name in run.subject else "")
    )


def not_run(rows: CaseRows, results: Results) -> Iterator[RenderableType]:
    """The backends that gave no result, with the reason."""
    dtypes = {row.dtype for row in rows.comparisons}
    for row in results.outcomes:
        if row.case == rows.case.id and row.dtype in dtypes and row.outcome != "ok":
            who, message = f"{row.backend} {row.dtype}", row.message.replace("\n", " | ")
            yield Text.assemble((printable(f"{who}: {row.outcome}"), "yellow"), f": {printable(message)}")


def by_tensor(rows: CaseRows) -> dict[tuple[str, str], list[Comparison]]:
    """The failing and suspect comparisons of each tensor, the worst first."""
    worst = sorted((row for row in rows.comparisons if row.fails or row.suspect), key=worst_first)
    return grouped(((row.dtype, row.tensor), row) for row in worst)


def tensor_parts(dtype: str, tensor: str, group: Sequence[Comparison], rows: CaseRows) -> Iterator[RenderableType]:
    """A failing or suspect tensor: the values at the worst elements, the error ratios, the verdict in words."""
    worst = group[0]
    style, label = ("bold red", worst.verdict) if worst.fails else ("yellow", f"{worst.verdict}, suspect")
    yield Text.assemble((printable(f"{dtype} {tensor}: "), "bold"), (label, style))
    for row in group[:MAX_PAIRS]:
        yield Text(f"  {printable(values_text(row, report_of(rows.case.op)))}")
    if len(group) > MAX_PAIRS:
        yield Text(f"  ... and {plural(len(group) - MAX_PAIRS, 'more comparison')} of this tensor")
    ratios = rows.ratios(dtype, tensor)
    if ratios:
        shown = " · ".join(f"{printable(name)} {number(ratio)}" for name, ratio in ratios.items())
        yield Text(f"  error over that of a careful {printable(dtype)} implementation: {shown}")
    for said in dict.fromkeys(
        report_of(rows.case.op).reason(row, rows) for row in group if row.verdict == worst.verdict
    ):
        yield Padding(Text(f"why: {printable(said)}"), (0, 0, 0, 2), expand=False)
    for accepted in dict.fromkeys(row.known for row in group if row.known is not None):
        yield Padding(Text(f"accepted: {printable(accepted)}", style="green"), (0, 0, 0, 2), expand=False)


def passing_parts(rows: CaseRows) -> Iterator[RenderableType]:
    """How close the passing tensors are to the limit, by dtype."""
    report, doubtful = report_of(rows.case.op), {(dtype, tensor) for dtype, tensor in by_tensor(rows)}
    fine = [row for row in rows.comparisons if row.verdict in (Verdict.EQUAL, Verdict.CLOSE)]
    fine = [row for row in fine if (row.dtype, row.tensor) not in doubtful]
    for dtype in dict.fromkeys(row.dtype for row in fine):
        group = [row for row in fine if row.dtype == dtype]
        nearest_miss = max(group, key=report.excess)
        tensors = ", ".join(dict.fromkeys(row.tensor for row in group))
        size = report.excess(nearest_miss)
        text = f"{tensors} agree; the worst element differs by {number(size, 2)} tolerances"
        if report.enveloped(nearest_miss):
            ratio = number(size * ERROR_BOUND, 2)
            text = f"{tensors} agree; the largest error ratio is {ratio}; {ERROR_BOUND:g} exceeds the error bound"
        elif nearest_miss.worst_index is not None:
            text += f": {values_text(nearest_miss, report)}"
        yield Text()
        yield Text.assemble((printable(f"{dtype}: "), "bold"), ("aligned", "green"), f", {printable(text)}")


def next_steps(rows: CaseRows, run_dir: Path, width: int) -> Iterator[RenderableType]:
    """The next steps, ready to paste."""
    if [row for row in failing(rows.comparisons) if row.known is None and row.counts]:
        yield Text("\nwhat to do", style="bold")
        yield from block_parts(steps(rows), width, verbose=True)
        yield from stored(rows, run_dir)


def stored(rows: CaseRows, run_dir: Path) -> Iterator[RenderableType]:
    """Where the tensors are stored."""
    if not rows.case.files:
        return
    folder = (run_dir / rows.case.files[0]).parent
    yield Text(f"  inputs: {printable(str(folder))}/*.npy")
    for dtype in dict.fromkeys(row.dtype for row in failing(rows.comparisons)):
        if (folder / dtype).is_dir():
            folders = sorted(path.name for path in (folder / dtype).iterdir())
            yield Text(f"  outputs in {dtype}: {printable(str(folder / dtype))}/{printable(braced(folders))}/*.npy")


def braced(names: Sequence[str]) -> str:
    """`{oracle,torch}`, as a shell takes it."""
    return names[0] if len(names) == 1 else f"{{{','.join(names)}}}"
