"""A run that ends when its time is over, or when the candidate is known to be wrong; what was not run is said."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from parity import exit_codes
from parity.cases.op import GRADIENT
from parity.config.plan import ORACLE, Plan
from parity.engine import CellFinished, EngineOptions, Event, execute
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.patience import ENDED
from parity.outcome import Outcome
from parity.program.worker.user_module import AFTER

MOST_WITHOUT = 3
"""Cases that ended the candidate's process, after which no more are asked: each starts a new one."""
OFFSET, SCALE, TINY, OUTLIER, NAN = "offset", "scale", "tiny", "outlier", "nan"
"""Kinds of cases that are judged in a way of their own."""
KEPT_NAN = "nan-kept"
"""A NaN where the reference's file speaks of NaN: one that is lost counts."""
FAR_OFFSET, ZEROS, TIES = "far-offset", "zeros", "ties"
SINGLE = "size-one"
"""Cases in which an axis has one element: gradients may then be differences of equal numbers, as of a weight that a
batch norm divides out."""
FAR = frozenset((OFFSET, FAR_OFFSET, SCALE, TINY, OUTLIER))
"""Those whose numbers are far from 1."""
KINKS = frozenset((ZEROS, TIES))
"""Those in which functions such as relu and max have several gradients, all of them right."""
ONE_DIGIT = 0.1
"""The relative error that counts where inputs have a mean of 10,000 deviations, or outputs elements of 10,000 before
them: of float32's seven digits, four are gone with the inputs, or with what cancels of their squares, and sums take a
digit or two."""
FEW_DIGITS = 1e-2
"""The relative error that says another formula, not rounding."""
TWO_DIGITS = 1e-4
"""What an output may lose where inputs have a mean of 100 deviations, relatively: two digits and a bit of float32's
seven are gone with the inputs; where scores are in the thousands, with these."""
PARALLEL = 1e-10
"""What the cosine of two results lacks where they differ by 1e-5 of their norm."""
LEAST_NORMAL = 2.0**-126
"""The smallest normal number of float32: code that goes through smaller ones may end with 0 / 0."""
HALF = 1e-3
"""The relative error of half of float32's digits."""
SHAPE = re.compile(r"\[([\d, ]*)\]")
"""The shapes in the message of results of different shapes."""
END_OF_RANGE = 1e-5
"""What the reference's own code loses, relatively, where powers of numbers such as 1e-10 have few digits left: other
code may have none."""
CLEARLY, FEWEST = 1e4, 4
"""The factor between two errors that no order of sums explains; the fewest elements of which most may differ."""
NONFINITE = "nonfinite"
"""The verdict of a NaN or an infinity in one of two tensors; their largest difference is that of other elements."""
STRUCTURE = "structure"
"""The verdict of another shape or kind of numbers."""
NEW, REFERENCE = "new", "reference"
"""The backends of a check."""


def excused(
    comparisons: Iterable[Comparison], kinds: Mapping[str, str], *, loses_digits: bool = False
) -> frozenset[tuple[str, str, str]]:
    """The tensors in which the reference's own code is as far from its formula as the candidate: it is what the
    candidate has to do, and no more can be asked. `kinds` says what each case varies.

    That holds in cases in which that code exceeds its error bound somewhere, and in those whose numbers are far from 1,
    where slices of a tensor may be many times smaller than what is rounded in it. A NaN that spreads further than in
    the reference is not counted, and one that is lost only where the reference's file speaks of NaN; nor are other
    finite gradients at kinks, few digits where few are left, and half of float32's digits where the candidate
    `loses_digits`: in float64 it has them.
    """
    comparisons = list(comparisons)
    exact = [row for row in comparisons if row.expected == ORACLE]
    own, reference = ({row.tensor_key: row for row in exact if row.actual == name} for name in (NEW, REFERENCE))
    beyond = {(row.case, row.dtype) for row in reference.values() if REFERENCE in row.culprit}
    hard = {key for key in own if key[:2] in beyond or kinds[key[0]] in FAR}
    same = {key for key in hard & reference.keys() if as_far(own[key], reference[key])}
    same -= {row.tensor_key for row in comparisons if row.fails and is_of_another_structure(row, reference)}
    # Attention, for example, may or may not look at keys that are masked.
    same |= {key for key in own if kinds[key[0]] == KEPT_NAN and is_lost(own[key]) and is_lost(reference.get(key))}
    free = {key for key, row in own.items() if is_free(row, kinds[key[0]]) or is_not_kept(row)}
    tiny = (row for key, row in reference.items() if kinds[key[0]] == TINY)
    at_end = {row.tensor_key[:2] for row in tiny if (row.required_rtol or 0.0) > END_OF_RANGE}
    free |= {key for key in own if key[:2] in at_end}
    free |= {key for key in own if loses_digits and has_digits(own[key], kinds[key[0]])}
    return frozenset(same | free | alone(own, same | free, kinds))


def has_digits(row: Comparison, kind: str) -> bool:
    """Whether a result in float32 has the digits that tests ask for: half of them in each element, more where numbers
    are far from 1, which shows what is lost; or all but two in relation to the whole tensor."""
    if row.dtype != "float32" or row.required_rtol is None:
        return False
    is_parallel = row.cosine is not None and 1 - row.cosine < PARALLEL
    return is_parallel or row.required_rtol < (TWO_DIGITS if kind in FAR else HALF)


def is_asked(comparisons: Sequence[Comparison], kinds: Mapping[str, str], *, loses_digits: bool = False) -> bool:
    """Whether a candidate fails where it is not excused, so that the cause is searched."""
    same = excused(comparisons, kinds, loses_digits=loses_digits)
    wrong = (row for row in comparisons if (row.actual, row.expected) == (NEW, ORACLE) and row.fails)
    return any(row.tensor_key not in same for row in wrong) or bool(of_another_kind(comparisons, kinds))


def alone(
    own: Mapping[tuple[str, str, str], Comparison], free: Collection[tuple[str, str, str]], kinds: Mapping[str, str]
) -> set[tuple[str, str, str]]:
    """The gradients that differ in cases whose numbers are far from 1, or axes of one element, while outputs do not:
    where a softmax has one large term, for example, they are differences of almost equal numbers. A wrong backward pass
    shows elsewhere. One of NaN counts, but for inputs of a large mean, at which values in between underflow."""
    hard = {key for key in own if kinds[key[0]] in (*FAR, SINGLE)}
    gradients = {key for key in hard if key[2].startswith(GRADIENT)}
    gradients = {k for k in gradients if own[k].verdict.value != NONFINITE or kinds[k[0]] in (OFFSET, FAR_OFFSET)}
    outputs = {key: row for key, row in own.items() if not key[2].startswith(GRADIENT) and key not in free}
    wrong = {key[:2] for key, row in outputs.items() if row.fails and NEW in row.culprit}
    return {key for key in gradients if key[:2] not in wrong}


def is_lost(row: Comparison | None) -> bool:
    """Whether a NaN is not kept, or spreads."""
    return row is not None and row.verdict.value == NONFINITE


def is_free(row: Comparison, kind: str) -> bool:
    """Whether a case of this kind does not say what the candidate has to return."""
    if kind in (NAN, KEPT_NAN):
        return kind == NAN or spreads(row)
    got, is_gradient = row.actual_value, row.tensor.startswith(GRADIENT)
    if kind == SINGLE and keeps_axes(row):
        return True
    if kind in KINKS:
        return is_gradient and got is not None and math.isfinite(got)
    if kind in FAR and row.verdict.value == NONFINITE:
        exact = row.oracle_value
        if exact is not None and 0 < abs(exact) < LEAST_NORMAL:
            return True
        if is_gradient:
            return exact is None or not math.isfinite(exact)
    if kind in (OFFSET, SCALE) and not is_gradient:
        return row.required_rtol is not None and row.required_rtol < TWO_DIGITS
    few = kind == FAR_OFFSET or (kind == OUTLIER and not is_gradient)
    return few and row.required_rtol is not None and row.required_rtol < ONE_DIGIT


def keeps_axes(row: Comparison) -> bool:
    """Whether a result of another shape has all axes of the exact answer: where a size is one, a reference may drop or
    broadcast axes that code for other sizes keeps. One that the candidate drops counts."""
    shapes = [shape.split(", ") if shape else [] for shape in SHAPE.findall(row.message)]
    return row.verdict.value == STRUCTURE and len(shapes) == 2 and len(shapes[0]) >= len(shapes[1])


def lost_nans(comparisons: Iterable[Comparison], kinds: Mapping[str, str]) -> list[Comparison]:
    """The comparisons that show a NaN of an input which the candidate does not keep, and which does not count."""
    own = [row for row in comparisons if (row.actual, row.expected) == (NEW, ORACLE) and kinds[row.case] == NAN]
    return [row for row in own if row.verdict.value == NONFINITE and not spreads(row)]


def is_not_kept(row: Comparison) -> bool:
    """Whether a candidate does not have the running statistics that the reference's call leaves."""
    return row.tensor.startswith(AFTER) and row.actual_value is None


def of_another_kind(comparisons: Iterable[Comparison], kinds: Mapping[str, str]) -> list[Comparison]:
    """The comparisons with the exact answer that an error bound lets pass, although the reference's own code has hardly
    any error, and most elements of the candidate differ, by a percent and more.

    The bound is wide where digits decide between values, as between equal ones: then rounding may change results, but
    few of them. Numbers far from 1, kinks and NaN are left out.
    """
    exact = [
        row for row in comparisons if row.expected == ORACLE and kinds[row.case] not in FAR | KINKS | {NAN, KEPT_NAN}
    ]
    reference = {row.tensor_key: row for row in exact if row.actual == REFERENCE}
    return [row for row in exact if row.actual == NEW and is_of_another_kind(row, reference.get(row.tensor_key))]


def is_of_another_kind(row: Comparison, reference: Comparison | None) -> bool:
    """The same for one comparison."""
    if row.verdict.value != "rounding" or row.tensor.startswith(GRADIENT) or (row.n_elements or 0) < FEWEST:
        return False
    own, other = row.max_abs_diff, None if reference is None else reference.max_abs_diff
    if own is None or other is None or row.n_mismatched is None:
        return False
    far = (row.required_rtol or 0.0) > FEW_DIGITS and 2 * row.n_mismatched > (row.n_elements or 0)
    return far and other * CLEARLY <= own


def spreads(row: Comparison) -> bool:
    """Whether a candidate returns NaN where the exact answer is a number."""
    got, exact = row.actual_value, row.oracle_value
    return got is not None and exact is not None and math.isnan(got) and not math.isnan(exact)


def as_far(own: Comparison, reference: Comparison) -> bool:
    """Whether a candidate's largest error is not much more than the reference's own, or than rounding's."""
    if NONFINITE in (own.verdict.value, reference.verdict.value):
        return own.verdict == reference.verdict and str(own.actual_value) == str(reference.actual_value)
    if own.max_abs_diff is None or reference.max_abs_diff is None:
        return str(own.actual_value) == str(reference.actual_value)
    rounding = max((row.envelope.max for row in (own, reference) if row.envelope is not None), default=0.0)
    return own.max_abs_diff <= ERROR_BOUND * max(reference.max_abs_diff, rounding)


def is_of_another_structure(row: Comparison, reference: Mapping[tuple[str, str, str], Comparison]) -> bool:
    """Whether a comparison is that of the candidate with the reference's own result, and the exact answer has another
    shape or kind than this: it says nothing of either."""
    exact = reference.get(row.tensor_key)
    is_direct = (row.actual, row.expected) == (NEW, REFERENCE)
    return is_direct and exact is not None and exact.verdict.value == STRUCTURE


class CheckWatch:
    """Passes events on to an observer, and notes whether the candidate is wrong in a case. `deadline` is a time of the
    monotonic clock; the first case is finished in any case."""

    def __init__(
        self,
        observer: Any,
        kinds: Mapping[str, str],
        deadline: float,
        fail_on: str,
        loses_digits: Callable[[], bool],
        *,
        everything: bool,
    ) -> None:
        self.observer, self.kinds, self.deadline, self.everything = observer, kinds, deadline, everything
        self.loses_digits = loses_digits
        self.failing = exit_codes.FAILING[fail_on]
        self.is_wrong, self.n_without = False, 0

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Note what is wrong."""
        self.observer.on_event(event, comparisons)
        same = excused(comparisons, self.kinds, loses_digits=self.loses_digits())
        rows = [row for row in comparisons if row.counts and row.verdict.value in self.failing]
        self.is_wrong = self.is_wrong or any(row.tensor_key not in same for row in rows)

    def source(self, plan: Plan, options: EngineOptions, run_dir: Path, done: Collection[str]) -> Iterator[Event]:
        """The events of a run, up to the end."""
        finished = False
        with closing(execute(plan, options, run_dir, done)) as events:  # type: ignore[type-var]
            for event in events:
                yield event
                if ENDED.get():
                    return
                if isinstance(event, CellFinished):
                    finished = finished or event.last_of_case
                    own = [cell.outcome for cell in event.outcomes if cell.backend == NEW]
                    self.n_without += any(outcome in (Outcome.CRASH, Outcome.TIMEOUT) for outcome in own)
                if self.n_without == MOST_WITHOUT and not self.everything:
                    return
                if finished and (time.monotonic() > self.deadline or (self.is_wrong and not self.everything)):
                    return
