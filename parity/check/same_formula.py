"""Whether a candidate's formula is the reference's, by arithmetic in finite fields (`program/worker/field.py`).

Both are called once more, in processes of their own, on numbers that carry residues. "The same" is said where values
in float64 agree and residues are equal, in outputs and in gradients; "another one" where values differ in float64. It
holds for these inputs' shapes and the branches that they take; nothing is said of rounding, overflow or state.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np

from parity.cases.op import GRADIENT
from parity.check.answer import SAME_FORMULA, CheckAnswer
from parity.check.candidate_process import fault_case, running, stored
from parity.check.cases import DRAWN
from parity.check.frameworks import TORCH
from parity.check.match import Array
from parity.check.pair import FilePair
from parity.check.prepare import PreparedCheck
from parity.check.triton_code import has_triton
from parity.config.plan import CasePlan
from parity.engine.forking import Script
from parity.exit_codes import INTERRUPTED, PASSED
from parity.program.worker import same_formula as worker
from parity.program.worker.field_primes import NUMBER_READ, ROOT_TAKEN, Q
from parity.reporting.text.words import number

SECONDS = 8.0
"""All processes of a pair, together."""
YES, NO, NOT_SHOWN = "yes", "no", "not shown"
FIRST = ((True, False, 0),)
"""How functions that no field has are read first: `field.Interpretation`."""
LAZY = ((False, False, 0),)
"""How they are read where that shows nothing."""
USUAL = (*FIRST, *LAZY)
STRICT = tuple((eager, True, key) for eager in (True, False) for key in range(1, 5))
"""How they are read then where there are roots: elements without one are left out, and readings count together."""
SAME = 1e-9
"""Values in float64 agree up to so much of the largest element."""
ANOTHER = 1e-7
"""A larger difference is no rounding in float64."""
NOISE = 1e-12
"""Elements that are so small beside those of all tensors are rounding errors of 0."""


@dataclass(frozen=True)
class FieldValues:
    """What one code gives: an error, or for each interpretation the calls without a rule, and values and residues by
    tensor."""

    error: str = ""
    notes: Sequence[frozenset[str]] = ()
    tensors: Sequence[Mapping[str, worker.Parts]] = ()


@dataclass(frozen=True)
class FormulaAnswer:
    """`state` is "yes", "no" or "not shown", with the reason in words."""

    state: str
    reason: str


def with_formula(reply: CheckAnswer, prepared: PreparedCheck, start: Callable[[Script], Any]) -> CheckAnswer:
    """The answer with what is shown of the formula, in the case that differs, else in the one whose inputs and weights
    are drawn: initial weights of 0 and 1 hide what they do."""
    if not reply.checks or reply.exit_code == INTERRUPTED:
        return reply
    started = time.monotonic()
    try:
        shown = same_formula(prepared.pair, asked_case(reply, prepared), start)
    except KeyboardInterrupt:
        shown = FormulaAnswer(NOT_SHOWN, "interrupted")
    states = {YES: "passed", NO: "failed" if reply.exit_code != PASSED else "not run", NOT_SHOWN: "not run"}
    is_hidden = shown.state == NO and reply.exit_code == PASSED
    notes = [f"another formula by exact arithmetic, within error bounds: {shown.reason}"] if is_hidden else []
    return replace(
        reply,
        same_formula=shown.state,
        checks=[*reply.checks, (SAME_FORMULA, states[shown.state], shown.reason)],
        not_judged=[*reply.not_judged, *notes],
        seconds=reply.seconds + time.monotonic() - started,
    )


def asked_case(reply: CheckAnswer, prepared: PreparedCheck) -> CasePlan:
    """The case in which the formula is asked."""
    differing = str((reply.counterexample or {}).get("case"))
    by_id = {case.id: case for case in prepared.plan.cases}
    drawn = (case for case in prepared.plan.cases if prepared.kinds[case.id] == DRAWN)
    return by_id.get(differing) or next(drawn, prepared.plan.cases[0])


def same_formula(pair: FilePair, case: CasePlan, start: Callable[[Script], Any]) -> FormulaAnswer:
    """What is shown for a case."""
    if {pair.candidate.adapter, pair.reference.adapter} != {TORCH}:
        return FormulaAnswer(NOT_SHOWN, "code in PyTorch only")
    if has_triton(pair.candidate.own_path):
        return FormulaAnswer(NOT_SHOWN, "a kernel of Triton")
    with suppress(Exception):  # Whatever the files that processes have written may be.
        until = time.monotonic() + SECONDS
        own = [plan for plan in case.tensors if not plan.name.startswith(GRADIENT)]
        inputs = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in own}
        codes = both(pair, case, inputs, FIRST, start, until)
        shown = compared(*codes)
        if shown.state == NOT_SHOWN and not any(code.error for code in codes):
            has_roots = all(ROOT_TAKEN in code.notes[0] for code in codes)
            more = both(pair, case, inputs, (*LAZY, *(STRICT if has_roots else ())), start, until)
            shown = compared(*map(joined, codes, more)) if not any(code.error for code in more) else shown
        return shown
    return FormulaAnswer(NOT_SHOWN, "no answer")


def joined(one: FieldValues, other: FieldValues) -> FieldValues:
    """What one code gives in all interpretations."""
    return FieldValues("", [*one.notes, *other.notes], [*one.tensors, *other.tensors])


def both(
    pair: FilePair,
    case: CasePlan,
    inputs: Mapping[str, Array],
    interpretations: Sequence[tuple[bool, bool, int]],
    start: Callable[[Script], Any],
    until: float,
) -> list[FieldValues]:
    """What reference and candidate give, in two processes at once."""
    with tempfile.TemporaryDirectory(prefix="parity-formula-") as name, ExitStack() as stack:
        folders: list[Path] = []
        processes = []
        for code in (pair.reference, pair.candidate):
            folder = Path(name, str(len(folders)))
            folder.mkdir()
            folders.append(folder)
            request = {
                "file": str(code.path.absolute()),
                "name": pair.reference.name if code.origin else code.name,
                "is_reference": code is pair.reference,
                "params": asdict(case.params),
                "given": stored(folder / "given", inputs),
                "gradients": bool(case.gradients),
                "interpretations": interpretations,
            }
            (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
            asked = replace(fault_case({}, {}, "float64", ()), start=start)
            processes.append(stack.enter_context(running("same_formula", folder, asked, pair)))
        for process in processes:
            with suppress(TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        return [values_in(folder) for folder in folders]


def values_in(folder: Path) -> FieldValues:
    """What a process has written. Raises ValueError, LookupError or TypeError."""
    files = [folder / worker.REPLY, folder / worker.NUMBERS]
    if not all(path.is_file() and path.stat().st_size <= 16 * worker.MOST_NUMBERS for path in files):
        return FieldValues(f"no answer within {SECONDS:g} s")
    reply = json.loads(files[0].read_text(encoding="utf-8"))
    if reply["error"]:
        return FieldValues(str(reply["error"]))
    flat, at = np.fromfile(files[1], np.float64), 0
    tensors: list[dict[str, worker.Parts]] = []
    for row in reply["replies"]:
        tensors.append({})
        for name, shape in row["shapes"].items():
            size = int(np.prod(shape, dtype=np.int64))
            parts = [flat[at + i * size : at + (i + 1) * size].reshape(shape) for i in range(3)]
            tensors[-1][name] = (parts[0], parts[1], parts[2])
            at += 3 * size
    return FieldValues("", [frozenset(row["notes"]) for row in reply["replies"]], tensors)


def compared(reference: FieldValues, candidate: FieldValues) -> FormulaAnswer:
    """What both codes show."""
    for code, name in ((reference, "the reference"), (candidate, "new")):
        if code.error:
            return FormulaAnswer(NOT_SHOWN, f"{name} cannot be computed so: {code.error}")
    theirs, own = reference.tensors[0], candidate.tensors[0]
    largest = max((size_of(parts[0]) for parts in theirs.values()), default=0.0)
    unshown = []
    for name in sorted(theirs.keys() | own.keys(), key=lambda name: (name.startswith(GRADIENT), name)):
        if name not in theirs or name not in own:
            if size_of((theirs.get(name) or own[name])[0]) > NOISE * largest:
                return FormulaAnswer(NO, f"{name} is missing in one of them")
            continue
        gap = gap_of(theirs[name][0], own[name][0])
        is_noise = max(size_of(theirs[name][0]), size_of(own[name][0])) <= NOISE * largest
        if gap > ANOTHER and not is_noise:
            return FormulaAnswer(NO, f"{name} differs by {number(gap, 2)} of its largest element without rounding")
        if (gap > SAME and not is_noise) or not is_same(name, reference, candidate):
            unshown.append(name)
    if unshown:
        return FormulaAnswer(NOT_SHOWN, why(unshown, reference, candidate))
    what = "outputs and gradients" if any(name.startswith(GRADIENT) for name in theirs) else "outputs"
    return FormulaAnswer(YES, f"{len(theirs)} {what} of one call")


def why(unshown: Sequence[str], reference: FieldValues, candidate: FieldValues) -> str:
    """Why nothing is shown: calls without a rule, if there are any."""
    names = sorted(frozenset().union(*reference.notes, *candidate.notes))
    reasons = [REASONS.get(name, f"no rule for {name}") for name in names]
    return f"{', '.join(unshown[:3])}: {'; '.join(reasons) if reasons else 'residues differ'}"


REASONS: Mapping[str, str] = {
    NUMBER_READ: "a number is read from a tensor",
    ROOT_TAKEN: "a root has two signs in a finite field",
}
"""What is said of notes that name no call."""


def size_of(values: Array) -> float:
    """The largest finite element, without its sign."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def gap_of(one: Array, other: Array) -> float:
    """The largest difference in relation to the largest element; infinite where only one has infinities or NaN."""
    if one.shape != other.shape:
        return np.inf
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return np.inf
    scale = max(size_of(one), size_of(other))
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / scale if scale else 0.0


def is_same(name: str, reference: FieldValues, candidate: FieldValues) -> bool:
    """Whether all residues of a tensor are equal modulo one of the primes, in one interpretation; or in all elements
    that strict ones of a kind know, which are all together."""
    strict: dict[bool, list[tuple[Array, Array]]] = {}
    for i, (theirs, own) in enumerate(zip(reference.tensors, candidate.tensors, strict=True)):
        (values, q, p), (_, own_q, own_p) = theirs[name], own[name]
        infinite = ~np.isfinite(values)
        same_p = (p == own_p) | infinite
        if same_p.all() or ((np.remainder(q, Q) == np.remainder(own_q, Q)) | infinite).all():
            return True
        if i >= len(USUAL):
            unknown = np.isnan(p) | np.isnan(own_p)
            strict.setdefault(STRICT[i - len(USUAL)][0], []).append((same_p, same_p | unknown))
    known = (np.any([one for one, _ in readings], axis=0).all() for readings in strict.values())
    agreeing = (np.all([other for _, other in readings]) for readings in strict.values())
    return any(a and b for a, b in zip(known, agreeing, strict=True))
