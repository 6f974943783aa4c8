"""The answer to a check: one JSON object, whose schema is `schema.json`, from the results of its run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity import exit_codes
from parity.cases.layout import LAYOUTS
from parity.cases.op import GRADIENT
from parity.check.at_size import SizeAnswer
from parity.check.cases import SIZE
from parity.check.limit import (
    KEPT_NAN,
    NAN,
    NEW,
    REFERENCE,
    SINGLE,
    excused,
    has_digits,
    lost_nans,
    of_another_kind,
)
from parity.check.lines import FaultLines
from parity.check.meanings import LARGE_INTEGERS
from parity.check.pair import FilePair
from parity.check.place import FaultLine
from parity.check.prepare import PreparedCheck
from parity.check.triton_code import is_interpreted
from parity.check.written import line_that_keeps
from parity.config.plan import ORACLE
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.patience import ENDED
from parity.outcome import Outcome
from parity.reporting.results.cells import CellResult, Status, cells
from parity.reporting.results.rows import Results
from parity.reporting.text.findings import EDIT, STATEFUL, Finding, by_cause, findings
from parity.reporting.text.words import number, plural

SCHEMA = "parity-check/1"
VERDICTS: Mapping[str, str] = {"unstable": "unstable", "degraded": "degraded", "rounding": "degraded"}
"""A run's verdicts as those of a check; every other failing one is `wrong`."""
DEVICE = re.compile(r"\b(cuda|hip|nvcc|nvidia|triton|gpu|mps)\b", re.IGNORECASE)
"""What an error says that is due to a device that is not there."""
KEPT_GRAPH = "Trying to backward through the graph a second time"
"""What PyTorch says where a result depends on one of an earlier call."""
LINE = re.compile(r"[\w.-]+\.py:\d+")
POWER_OF_TWO = "must be a power of 2"
"""What Triton says of other sizes."""
REFUSED: Mapping[str, str] = {NAN: "a NaN", LARGE_INTEGERS: "integers that are no index"}
"""What code may end with an error for, besides memory layouts, by the kind of case."""
LEAST_CASES = 2
"""A candidate is not said to be right after fewer cases, where the time did not allow more."""
MOST_TEXT = 600
DIFFERENT_STEP = "different-step"
WITHOUT_FORMULA = ("unexplained", "localized")
"""Diagnoses that say less than the lines of both files."""
LESS = ("scaled", "batch-variant")
"""Diagnoses that say less than a repair."""
SAME_FORMULA = "same-formula"
"""The check of the formula, by exact arithmetic."""
LONGEST_FORMULA = 240
"""A formula with more characters, as one with a number for each element, is not read beside a line."""


@dataclass(frozen=True)
class CheckAnswer:
    """What a check says; `as_json` is one line."""

    verdict: str
    exit_code: int
    sentence: str
    details: Sequence[str] = ()
    cause: str = ""
    location: str = ""
    repair: Mapping[str, str] | None = None
    counterexample: Mapping[str, Any] | None = None
    error_ratio: float | None = None
    tolerance_needed: float | None = None
    same_formula: str = "not shown"
    checks: Sequence[tuple[str, str, str]] = ()
    not_judged: Sequence[str] = ()
    seconds: float = 0.0
    run: str = ""

    def as_json(self, *, hide_inputs: bool = False) -> str:
        """One line of at most 2 kB or so."""
        shown = None if self.counterexample is None else dict(self.counterexample)
        if shown is not None and hide_inputs:
            shown = {key: value for key, value in shown.items() if key != "inputs"}
        row = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "cause": self.cause,
            "sentence": short("; ".join((self.sentence, *self.details))),
            "place": self.location,
            "repair": self.repair,
            "counterexample": shown,
            "error_ratio": finite(self.error_ratio),
            "tolerance_needed": finite(self.tolerance_needed),
            "same_formula": self.same_formula,
            "checks": [list(check) for check in self.checks],
            "not_judged": [short(text, 160) for text in self.not_judged],
            "seconds": round(self.seconds, 2),
            "run": self.run,
        }
        return json.dumps(row, allow_nan=False)


def short(text: str, most: int = MOST_TEXT) -> str:
    """A text in one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def finite(number: float | None, digits: int = 4) -> float | None:
    """A number that JSON has."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.{digits}g}")


def not_judged(
    sentence: str, location: str = "", seconds: float = 0.0, exit_code: int = exit_codes.INCOMPLETE
) -> CheckAnswer:
    """The answer where nothing was compared."""
    return CheckAnswer("not-judged", exit_code, sentence, location=location or line_in(sentence), seconds=seconds)


def line_in(text: str) -> str:
    """The first `new.py:14` in a text; empty if there is none."""
    match = LINE.search(text)
    return match[0] if match else ""


def answer(results: Results, prepared: PreparedCheck, run_dir: Path, seconds: float, lines: FaultLines) -> CheckAnswer:
    """What a run says about a pair."""
    pair, notes, kinds = prepared.pair, prepared.notes, prepared.kinds
    own = [cell for cell in cells(results) if cell.backend == NEW]
    same = excused(results.comparisons, kinds, loses_digits=lines.lose_digits())
    every = findings(results)
    all_findings = [finding for finding in every if not finding.tensor_keys <= same]
    failed, refused, unposed = errors_of(results, own, kinds, pair)
    checks = list(checks_of(own, kinds, same, [*refused, *unposed]))
    notes = [*notes, *(refusal(cell, kinds) for cell in refused)]
    notes += [f"{REFERENCE} itself gives no result for {cell.id}" for cell in unposed]
    notes += ["interrupted: the search for a cause was ended"] if ENDED.get() else []
    notes += [
        f"a NaN of an input does not reach {row.tensor}: {NEW} returns {row.actual_value:g} there ({row.case})"
        for row in lost_nans(results.comparisons, kinds)[:1]
        if row.actual_value is not None
    ]
    notes += lost_digits(results, kinds) if lines.lose_digits() else []
    common: dict[str, Any] = {"checks": checks, "seconds": seconds, "run": str(run_dir), "not_judged": notes}
    unlike = [row for row in of_another_kind(results.comparisons, kinds) if row.tensor_key not in same]
    others = by_cause(results, unlike) if unlike and not failed and all(map(loses_digits, all_findings)) else []
    if others or all_findings:
        finding = others[0] if others else min(all_findings, key=is_of_gradients)
        reply = of_finding(finding, pair, run_dir, lines.of(run_dir, finding), common)
        return replace(reply, verdict="wrong") if others else reply
    if failed:
        return of_error(failed[0], own, pair, common)
    if results.summary.exit_code == exit_codes.INTERRUPTED:
        return CheckAnswer("not-judged", exit_codes.INTERRUPTED, "interrupted", **common)
    unsure = [cell for cell in own if cell.status in (Status.UNSUPPORTED, Status.NOT_RUN)]
    compared = [cell for cell in own if cell.compared]
    if not compared:
        why = next((cell.message for cell in unsure if cell.message), "nothing could be compared")
        return CheckAnswer("not-judged", exit_codes.INCOMPLETE, why, location=line_in(why), **common)
    if prepared.degenerate:
        text = f"{pair.reference.location}: a constant would pass, so nothing is shown: the reference returns one"
        return CheckAnswer("degenerate-problem", exit_codes.INCOMPLETE, text, **common)
    lost = [cell for cell in own if cell.outcome == Outcome.OK and not cell.compared]
    numberless = [cell for cell in lost if kinds[cell.id] in (NAN, KEPT_NAN, SINGLE) or cell in unposed]
    lost = [cell for cell in lost if cell not in numberless]
    if lost:
        why = next((row.message for row in lost[0].rows if row.message), "its results were not compared")
        text = f"{lost[0].id}: {why}; {len(compared)} other cases agree"
        return CheckAnswer("not-judged", exit_codes.INCOMPLETE, text, **common)
    n = sum(len(cell.compared_rows) for cell in compared)
    text = f"{pair.candidate.name} computes what {pair.reference.name} does: {n} tensors in {len(compared)} cases agree"
    lacking = [cell for cell in unsure if cell.status is Status.UNSUPPORTED]
    without = {cell.id for cell in (*compared, *refused, *lacking, *numberless, *unposed)}
    left = sum(cell.id not in without for cell in own)
    if left and len(compared) < LEAST_CASES:
        text = f"the time was over after {plural(len(compared), 'case')} of {len(own)}, which agree: try --seconds 300"
        return CheckAnswer("not-judged", exit_codes.INCOMPLETE, text, **common)
    if left:
        text += f"; {left} cases were not run, the time was over"
    if lacking:
        text += f"; {len(lacking)} cases could not be judged, such as {lacking[0].id}: {lacking[0].message}"
    return CheckAnswer("right", exit_codes.PASSED, text, **common)


def lost_digits(results: Results, kinds: Mapping[str, str]) -> list[str]:
    """The note on digits that are lost, where they do not count."""
    own = [row for row in results.comparisons if (row.actual, row.expected) == (NEW, ORACLE) and row.fails]
    lost = [row for row in own if has_digits(row, kinds[row.case])]
    if not lost:
        return []
    worst = max(lost, key=lambda row: row.required_rtol or 0.0)
    where = f"most in {worst.tensor} of {worst.case}"
    return [f"{NEW} loses digits, {where}: a relative tolerance of {number(worst.required_rtol or 0.0, 2)} is needed"]


def refusal(cell: CellResult, kinds: Mapping[str, str]) -> str:
    """Why a cell without a result says nothing."""
    if cell.outcome == Outcome.TIMEOUT:
        return f"{cell.id} in Triton's interpreter: {cell.message}"
    kind = kinds[cell.id]
    what = cell.id if kind in (SIZE, SINGLE) else REFUSED.get(kind, f"the layout {kind}")
    return f"{NEW} refuses {what}: {cell.message}"


def errors_of(
    results: Results, own: Sequence[CellResult], kinds: Mapping[str, str], pair: FilePair
) -> tuple[list[CellResult], list[CellResult], list[CellResult]]:
    """The candidate's cells that failed; those in which it refuses what it may (`REFUSED`, layouts, a size in its own
    words), or takes too long in an interpreter; those, whatever it returns, for which the reference has no result."""
    without = {row.case for row in results.outcomes if row.backend == REFERENCE and row.outcome == Outcome.ERROR}
    ended = [cell for cell in own if cell.status is Status.ERROR and cell.ended is not None]
    failed = [cell for cell in ended if cell.id not in without]
    is_slow = is_interpreted(pair.candidate)
    refused = [
        cell
        for cell in failed
        if kinds[cell.id] in {*LAYOUTS, *REFUSED}
        or (kinds[cell.id] in (SIZE, SINGLE) and is_own_refusal(cell.message, pair))
        or (is_slow and cell.outcome == Outcome.TIMEOUT)
    ]
    return [c for c in failed if c not in refused], refused, [cell for cell in own if cell.id in without]


def of_one_reference(reply: CheckAnswer, prepared: PreparedCheck) -> CheckAnswer:
    """The answer, unless the reference's file is no longer what was judged: some processes may have read another."""
    if not prepared.problem.is_changed:
        return reply
    reference, candidate = (item.own_path.name for item in (prepared.pair.reference, prepared.pair.candidate))
    text = f"{reference} has changed while it was checked; {candidate} must not write it: check again"
    return not_judged(text, seconds=reply.seconds)


def with_size(reply: CheckAnswer, size: SizeAnswer, prepared: PreparedCheck, seconds: float) -> CheckAnswer:
    """The answer to a candidate that is right at small sizes, with what a call at the size of the file shows."""
    checks = [*reply.checks, ("at-size", size.state, size.reason)]
    if size.state == "failed":
        return replace(
            reply,
            verdict="wrong",
            exit_code=exit_codes.MISMATCH,
            sentence=f"at the size of the file, {size.reason}; at small sizes it is right ({prepared.smaller})",
            location=prepared.pair.candidate.location,
            counterexample={k: finite(v) if isinstance(v, float) else v for k, v in (size.counterexample or {}).items()}
            or None,
            checks=checks,
            seconds=seconds,
        )
    ran = f"at its size, outputs were compared for its own inputs only, the rest at {prepared.smaller}"
    why = f": {size.reason}" if size.reason else ""
    note = ran if size.state == "passed" else f"not run at its size: {prepared.smaller}{why}"
    return replace(reply, checks=checks, not_judged=[*reply.not_judged, note], seconds=seconds)


def why_outputs_only(results: Results, reference: str, new: str) -> str:
    """Why gradients cannot be judged, as the first case shows; "" where they can."""
    if has_no_gradients(results):
        return f"{reference} itself gives no result with gradients: only outputs are judged"
    return f"{new} has no gradients: only outputs are judged" if lacks_gradients(results) else ""


def has_no_gradients(results: Results) -> bool:
    """Whether the reference itself fails in the first case, as code does that keeps a graph from one call to the
    next."""
    first = results.cases[0].id
    return any((row.case, row.backend, row.outcome) == (first, REFERENCE, Outcome.ERROR) for row in results.outcomes)


def lacks_gradients(results: Results) -> bool:
    """Whether the candidate gives all outputs of the first case and no gradient: it is not made for training."""
    first = results.cases[0].id
    rows = [r for r in results.comparisons if (r.case, r.actual, r.expected) == (first, NEW, ORACLE)]
    gradients = [row for row in rows if row.tensor.startswith("grad.")]
    absent = [row for row in gradients if row.verdict.value == "structure" and row.actual_value is None]
    return (
        bool(gradients)
        and len(absent) == len(gradients)
        and all(r.verdict.value != "structure" for r in rows if r not in gradients)
    )


def of_finding(
    finding: Finding, pair: FilePair, run_dir: Path, location: FaultLine | None, common: Mapping[str, Any]
) -> CheckAnswer:
    """The answer where the candidate differs, with the line at fault."""
    row = finding.worst.row
    # In one dtype alone, the size of an error does not tell a wrong formula from one that loses digits; an edit does.
    verdict = VERDICTS[row.verdict.value] if loses_digits(finding) else "wrong"
    ratio = row.ratios.get(finding.worst.backend)
    if verdict == "unstable" and location is not None and location.repair is not None and not location.repair.of_dtype:
        verdict = "wrong"  # Mutants run in float64 where the candidate takes that: digits are not what differs.
    cause, formula = finding.id.partition(" ")[0], finding.formula()
    formula = formula if len(formula) <= LONGEST_FORMULA or location is None else ""
    is_repaired = location is not None and location.repair is not None
    is_open = cause in WITHOUT_FORMULA or row.verdict.value == "rounding" or (is_repaired and cause in LESS)
    if location is not None and (is_open or (cause == EDIT and not formula)):
        named = f"{location.difference} ({DIFFERENT_STEP}), {finding.scope()}"
        cause, details = DIFFERENT_STEP, [formula] if cause not in WITHOUT_FORMULA else []
    else:
        title = finding.sentence().plain.removeprefix(f"{NEW}: ")
        details = [location.sentence if location else "", formula]
        if cause == EDIT and formula:  # Its title says only that a step differs.
            first, *details = details if is_repaired else reversed(details)
            title = f"{first} ({cause})"
        named = f"{title}, {finding.scope()}"
    return CheckAnswer(
        verdict,
        exit_codes.MISMATCH,
        named,
        details=list(filter(None, details)),
        cause=cause,
        location=str(location or pair.candidate.location),
        repair=repair_in(location),
        counterexample=counterexample(row, finding, run_dir),
        error_ratio=ratio,
        tolerance_needed=row.required_rtol,
        **common,
    )


def loses_digits(finding: Finding) -> bool:
    """Whether a finding says no more than that digits are lost."""
    return finding.worst.row.verdict.value in VERDICTS and not finding.id.startswith(EDIT)


def repair_in(location: FaultLine | None) -> dict[str, str] | None:
    """The code that the change of a repair begins with, and what it is instead; None without one."""
    mutant = None if location is None else location.repair
    return None if mutant is None else {"before": short(mutant.before), "after": short(mutant.after)}


def is_of_gradients(finding: Finding) -> bool:
    """Whether only gradients differ: what is wrong in an output makes gradients wrong, too."""
    return all(difference.row.tensor.startswith(GRADIENT) for difference in finding.differences)


def counterexample(row: Comparison, finding: Finding, run_dir: Path) -> dict[str, Any]:
    """Where the results differ most."""
    case = next(case for case in finding.cases if case.id == row.case)
    files = [item.file for item in case.inputs.values() if item.file]
    return {
        "inputs": str(run_dir / Path(files[0]).parent) if files else "",
        "case": row.case,
        "tensor": row.tensor,
        "index": row.worst_index,
        "got": finite(row.actual_value, 9),
        "exact": finite(row.oracle_value, 9),
        "bound": finite(None if row.envelope is None else row.envelope.max),
    }


def lacks_device(message: str, pair: FilePair) -> bool:
    """Whether an error is due to a device that is not there, by what it says, or by the line that asserts it."""
    text = LINE.sub("", message)
    return bool(DEVICE.search(text + (code_at(message, pair) if "AssertionError" in text else "")))


def is_own_refusal(message: str, pair: FilePair) -> bool:
    """Whether the candidate's own code says that it is not made for a size, or Triton, which has powers of 2 only."""
    return code_at(message, pair).startswith(("assert ", "raise ")) or POWER_OF_TWO in message


def code_at(message: str, pair: FilePair) -> str:
    """The candidate's line in which an error is; "" outside of its file."""
    location, path = line_in(message), pair.candidate.own_path
    if not location.startswith(f"{path.name}:"):
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(lines[int(location.rpartition(":")[2]) - 1 :][:1]).strip()


def of_error(failed: CellResult, own: Sequence[CellResult], pair: FilePair, common: Mapping[str, Any]) -> CheckAnswer:
    """The answer where the candidate gives no result: it needs a device that is not there, or it is wrong."""
    if failed.outcome == Outcome.UNAVAILABLE:
        return CheckAnswer("not-judged", exit_codes.INCOMPLETE, failed.message, **common)
    location = line_in(failed.message)
    is_absent = "ModuleNotFoundError" in failed.message
    if (is_absent or lacks_device(failed.message, pair)) and not any(cell.compared for cell in own):
        text = f"{NEW} needs a {'package' if is_absent else 'device'} that is not here: {failed.message}"
        return CheckAnswer("not-judged", exit_codes.INCOMPLETE, text, location=location, **common)
    if KEPT_GRAPH in failed.message:
        line = line_that_keeps(pair.candidate.own_path)
        location = f"{pair.candidate.own_path.name}:{line}" if line else location
        text = f"{location or NEW} keeps a result of an earlier call, whose gradients are gone (stateful): {failed.id}"
        return CheckAnswer("wrong", exit_codes.MISMATCH, text, cause=STATEFUL, location=location, **common)
    text = f"{NEW} gives no result for {failed.id}: {failed.outcome}: {failed.message}"
    return CheckAnswer("wrong", exit_codes.MISMATCH, text, cause="no-result", location=location, **common)


def checks_of(
    own: Sequence[CellResult],
    kinds: Mapping[str, str],
    same: frozenset[tuple[str, str, str]],
    refused: Sequence[CellResult],
) -> Iterator[tuple[str, str, str]]:
    """What was asked, and how it ended, by what the cases vary, in the order in which they are asked."""
    groups: dict[str, list[CellResult]] = {}
    order = {name: number for number, name in enumerate(kinds)}
    for cell in sorted(own, key=lambda cell: order[cell.id]):
        groups.setdefault(kinds[cell.id], []).append(cell)
    for kind, group in groups.items():
        bad = [cell for cell in group if is_bad(cell, same) and cell not in refused]
        ran = [cell for cell in group if cell.compared]
        state = "failed" if bad else "passed" if ran else "not run"
        yield kind, state, bad[0].id if bad else f"{len(ran)} of {len(group)}"


def is_bad(cell: CellResult, same: frozenset[tuple[str, str, str]]) -> bool:
    """Whether a cell has no result, or differs in a tensor that is not `same` as the reference's own."""
    if cell.status is Status.FAILED:
        return any(row.tensor_key not in same for row in cell.failing)
    return cell.status is Status.ERROR
