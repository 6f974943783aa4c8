"""Pairs with millions of weights: what both return for a few inputs, without error bounds, gradients and causes.

An exact answer takes many evaluations of a reference in extended precision. Where no size makes a model small, as one
whose layers have fixed widths, its outputs are compared with the reference's in float64, as at the size of a file.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity import exit_codes
from parity.check import CheckError
from parity.check.answer import DIFFERENT_STEP, CheckAnswer, finite, not_judged, repair_in
from parity.check.at_size import Arrays, CandidateCalls, SizeAnswer, compared, too_large
from parity.check.candidate_process import fault_case, stored
from parity.check.cases import DRAWN, SIZE, Designer, sample, weight_of
from parity.check.limit import NEW
from parity.check.lines import FaultLines
from parity.check.place import VALUE
from parity.check.prepare import StartedCheck
from parity.check.problem import ReferenceProblem, Sized, is_finite
from parity.engine import EngineOptions
from parity.outcome import Outcome
from parity.program.torch_reference import MOST_STEPS
from parity.program.worker.user_module import TRAINING
from parity.reporting.text.words import plural

MOST_JUDGED, MOST_OF_LONG = 1 << 20, 1 << 17
"""Elements of inputs, weights and outputs up to which a pair gets exact answers, and of code that is so long that no
call of it is a step."""
MOST_CASES = 6
LEAST = 2
"""Compared cases below which a candidate is not judged."""
CHANGED, OF_OTHER = "input.", "other.0."
LATER = {
    OF_OTHER: "in a second call, on other inputs",
    "again.": "in a third call, on the inputs of the first",
    "overwritten.": "after a second call",
}
"""The results of further calls, by the prefix of their names."""
NOT_ENDED = (Outcome.TIMEOUT, Outcome.UNAVAILABLE, Outcome.UNSUPPORTED)
Array = NDArray[Any]


def is_large(start: StartedCheck) -> bool:
    """Whether a pair has too many elements for exact answers at all sizes that its reference takes."""
    cost = start.problem.cost(start.settings)
    limit = MOST_JUDGED if start.problem.n_counted <= MOST_STEPS else MOST_OF_LONG
    return cost is not None and cost[0] > limit


@dataclass(frozen=True)
class LargeCase:
    """A call of both: `kind` is what it varies, `options` are further params."""

    kind: str
    sized: Sized
    options: Mapping[str, Any] = field(default_factory=dict)
    other: Sized | None = None
    """Inputs of a second call, before a third one with the first inputs."""

    @property
    def params(self) -> dict[str, Any]:
        """The params of the call."""
        return {**self.sized.params, **self.options}


def large_answer(
    start: StartedCheck, engine: EngineOptions, folder: Path, until: float, lines: FaultLines
) -> CheckAnswer:
    """What a few calls show, made until a time of the monotonic clock. Raises CheckError."""
    problem, pair, began = start.problem, start.problem.pair, time.monotonic()
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    is_whole = not start.settings or not too_large(problem, (until - began) / (2 * MOST_CASES))
    sized = problem.at({} if is_whole else start.settings)
    designer = Designer(problem, folder / "inputs", forward_only=True)
    checks: list[tuple[str, str, str]] = []
    with closing(CandidateCalls(pair, replace(engine, timeout_s=max(until - began, 1.0)), folder)) as call:
        calls = LargeCalls(problem, call, until)
        for case in cases(designer, sized):
            answer = calls.asked(case)
            if answer is None:
                continue
            checks.append((case.kind, answer.state, answer.reason))
            if answer.state == "failed":
                return wrong(problem, case, answer, checks, lines)
    n_passed = sum(state == "passed" for _, state, _ in checks)
    n_elements, _ = problem.cost(sized.settings) or (0, 0)
    how = f"outputs were compared with {pair.reference.location} in float64"
    notes = [f"with {n_elements:,} elements, {how}; gradients, error bounds and unusual inputs were not"]
    notes += [] if is_whole else [f"not run at its size: {start.smaller}"]
    if n_passed < LEAST:
        first = next(reason for _, state, reason in checks if state != "passed")
        text = f"{plural(n_passed, 'call')} could be compared: {first}"
        return replace(not_judged(text), checks=checks, not_judged=[*designer.notes, *notes])
    sentence = (
        f"{pair.candidate.name} computes what {pair.reference.name} does: outputs of {plural(n_passed, 'call')} agree"
    )
    return CheckAnswer("right", exit_codes.PASSED, sentence, checks=checks, not_judged=[*designer.notes, *notes])


def cases(designer: Designer, sized: Sized) -> Iterator[LargeCase]:
    """The inputs and weights of the file, others, evaluation mode, other batches, several calls. Raises CheckError."""
    designer.settle(sized)
    options = dict(designer.options)
    yield LargeCase("given", sized, options)
    other = drawn(designer, sized)
    yield LargeCase(DRAWN, other, options)
    if sized.modal and not options:
        yield LargeCase("eval", other, {TRAINING: False})
    for batch in batches(other):
        yield LargeCase(SIZE, batch, options)
    yield LargeCase(
        "calls", other, options, with_arguments(other, {a.name: a.value for a in sized.arguments if a.is_tensor})
    )


def drawn(designer: Designer, sized: Sized) -> Sized:
    """The problem with other weights, and other inputs where the reference stays finite."""
    weights = [
        weight if weight.name in sized.state else replace(weight, values=sample(weight.name, weight_of(weight)))
        for weight in sized.weights
    ]
    own = replace(sized, weights=weights)
    for signed in (True, False):
        items = {a.name: designer.input_of(sized, a, signed=signed) for a in sized.arguments if a.is_tensor}
        free = {name: sample(name, item) for name, item in items.items() if "shape" in item and "integers" not in item}
        other = with_arguments(own, free)
        with suppress(CheckError):  # It may refuse numbers of either sign.
            if is_finite(designer.problem.call(other, designer.options)):
                return other
    return own


def batches(sized: Sized) -> Iterator[Sized]:
    """The problem with a batch of one, and of one more: of all arguments whose first axis is as long as the first's."""
    arrays = {a.name: a.value for a in sized.arguments if a.is_tensor and a.value.ndim}
    batch = next(iter(arrays.values())).shape[0] if arrays else 0
    for n in {1, batch + 1} - {batch} if batch else ():
        yield with_arguments(sized, {k: np.resize(a, (n, *a.shape[1:])) for k, a in arrays.items() if len(a) == batch})


def with_arguments(sized: Sized, arrays: Mapping[str, Array]) -> Sized:
    """The problem with other values of some arguments."""
    own = [replace(a, value=arrays[a.name].astype(a.value.dtype)) if a.name in arrays else a for a in sized.arguments]
    return replace(sized, arguments=own)


@dataclass
class LargeCalls:
    """Calls of both, the candidate's first; what the reference returns is kept."""

    problem: ReferenceProblem
    call: CandidateCalls
    until: float
    known: dict[tuple[Sized, str], tuple[Arrays, Arrays]] = field(default_factory=dict)

    def asked(self, case: LargeCase) -> SizeAnswer | None:
        """What one call shows; None where the reference does not take it."""
        if time.monotonic() > self.until:
            return SizeAnswer("not run", "the time was over")
        outcome, message, own = self.call(case.sized, case.params, self.until, case.other)
        if outcome in NOT_ENDED:
            return SizeAnswer("not run", f"{NEW}: {message}")
        try:
            exact, reference = self.of_reference(case)
        except (CheckError, MemoryError) as error:
            reason = str(error) or "there is not enough memory"
            return None if case.kind == SIZE else SizeAnswer("not run", reason)
        if outcome != Outcome.OK:
            return SizeAnswer("failed", f"{NEW} gives no result: {message}")
        first = compared(own, exact, reference)
        return self.later(case, own) if case.other is not None and first.state == "passed" else first

    def later(self, case: LargeCase, own: Arrays) -> SizeAnswer:
        """What further calls show: they give other results, or change the first one's, or inputs."""
        changed = [name.removeprefix(CHANGED) for name in own if name.startswith(CHANGED)]
        if changed:
            return SizeAnswer("failed", f"{NEW} changes {', '.join(changed)} in place")
        for prefix, words in LATER.items():
            arrays = {n.removeprefix(prefix): array for n, array in own.items() if n.startswith(prefix)}
            if not arrays and prefix == OF_OTHER:
                return SizeAnswer("not run", f"{words}, {NEW} gives no result")
            sized = case.other if prefix == OF_OTHER else None
            exact, reference = self.of_reference(case if sized is None else replace(case, sized=sized))
            answer = compared(arrays, *({n: values[n] for n in arrays} for values in (exact, reference)))
            if answer.state == "failed":
                return replace(answer, reason=f"{words}, {answer.reason}")
        return SizeAnswer("passed", "3 calls")

    def of_reference(self, case: LargeCase) -> tuple[Arrays, Arrays]:
        """What the reference returns in float64, and in the dtype of the case."""
        key = case.sized, repr(case.options)
        if key not in self.known:
            one, other = (self.problem.call(case.sized, case.options, dtype=dtype) for dtype in ("float64", ""))
            self.known[key] = one, other
        return self.known[key]


def wrong(
    problem: ReferenceProblem,
    case: LargeCase,
    answer: SizeAnswer,
    checks: Sequence[tuple[str, str, str]],
    lines: FaultLines,
) -> CheckAnswer:
    """The answer where outputs differ, with the line at fault where it can be told."""
    pair, shown = problem.pair, dict(answer.counterexample or {})
    with tempfile.TemporaryDirectory(prefix="parity-fault-") as name:
        given = {a.name: a.value for a in case.sized.arguments if a.is_tensor}
        given |= {weight.name: weight.values for weight in case.sized.weights}
        files = {each: Path(file) for each, file in stored(Path(name) / "input", given).items()}
        tensors = [shown["tensor"]] if shown else []
        line = lines.line_of(fault_case(files, case.params, case.sized.dtype, tensors)) if shown else None
        line = line if line is not None and line.kind == VALUE else None
    reason = f"in the case {case.kind}, {answer.reason}"
    return CheckAnswer(
        "wrong",
        exit_codes.MISMATCH,
        reason
        if line is None
        else f"{line.difference} ({DIFFERENT_STEP}), in {shown['tensor']} of {pair.reference.name}",
        details=[] if line is None else [reason],
        cause="" if line is None else DIFFERENT_STEP,
        location=str(line or pair.candidate.location),
        repair=repair_in(line),
        counterexample={k: finite(v) if isinstance(v, float) else v for k, v in {**shown, "case": case.kind}.items()}
        if shown
        else None,
        checks=checks,
    )
