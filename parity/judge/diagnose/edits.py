"""Finds single edits of the reference that give the backend's result. Thousands are tried, on small tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from parity.cases.candidates import COMPARISONS, detachments, edits_of, fits_of, is_number
from parity.cases.edit_words import described
from parity.cases.edits import ACCUMULATED, READ, RESULT, RETURNED, Edit, format_of, option_of, with_number
from parity.cases.op import GRADIENT, IncompatibleError
from parity.cases.program import Ref
from parity.cases.substitutes import OVERWRITING
from parity.cases.trial import Trial
from parity.judge.bound.envelope import ERROR_BOUND, Array, size
from parity.judge.diagnose.causes import BAND_WEIGHT, Cause, formats_below
from parity.judge.diagnose.evaluator import Alteration, ratio
from parity.judge.diagnose.explanation import KernelExplanation
from parity.judge.diagnose.fits import newton
from parity.judge.diagnose.patience import is_late

MAX_ELEMENTS = 1 << 14
"""The most elements of the inputs that wrong tensors depend on: thousands of edits of larger inputs take minutes."""
MAX_KEPT = 24
MAX_TARGETS = 2
OF_A_PART = ("without one", "without tail")
"""The edits of a result that leave a part of it out."""
FIT_STEPS = 6
FIT_STEP = 2.0**-20
GAPS, FEW_COMPARED = 9, 4
"""How many thresholds are tried in a round, and the fewest values that determine a threshold."""
OF_ANY_SIZE = ("plus", "floor", "cap")
DECADES = (1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1.0, -1e-2, -1.0, -100.0)
"""Starts of the search for an added number."""
LIMITS = ("floor", "cap")
QUANTILES = (0.02, 0.1, 0.25, 0.4, 0.6, 0.75, 0.9, 0.98)
"""Starts of the search for a limit, as quantiles of the limited values: a limit outside of them changes nothing."""
FEW_CHARACTERS = 150
"""If no edit explains all wrong tensors in so few characters, values without a gradient are tried too."""
PER_CHARACTER = 1e-3
"""Among forms that explain equally much, the one with the shorter expression comes first."""
BELIEF = 0.3
"""The weight of an edit of cost 1; a named variant has 0, so it comes first if both explain."""
OVERFLOW = 1.0
CLOSE = 2.0**-7
"""An edit that leaves less of the error is worth further runs, which measure the error of a careful implementation of
it."""
MOST_OWN = 12
NEAR = 4.0
"""Room for the trial's own rounding in float64."""


@dataclass
class WorkBudget:
    """The work for one finding, in computed steps of a program (3 to 4 microseconds each for tensors of a few hundred
    elements), so the result does not depend on the machine. `untried` counts the edits that were left out, the least
    probable ones."""

    left: int = 800_000
    most: int = 200_000
    untried: int = 0

    def spent_on(
        self, edits: Iterable[Edit], trial: Trial, n_steps: int, right: frozenset[int] = frozenset()
    ) -> Iterator[Edit]:
        """The edits, as long as their work is at most `most` and the budget lasts. If about `n_steps` steps for each
        may be too many, edits of steps that no `right` tensor depends on come first, then the simplest."""
        listed, start = list(edits), trial.work
        if len(listed) * n_steps > self.most:
            listed.sort(key=lambda e: (e.kind in OF_ANY_SIZE, not right.isdisjoint(e.positions), e.cost))
        most = min(self.most, self.left)
        for number, edit in enumerate(listed):
            if trial.work - start > most or is_late():
                self.untried += len(listed) - number
                break
            yield edit
        self.left -= trial.work - start


OF_A_PASS: Mapping[str, int] = {"left": 300_000, "most": 60_000}
"""The budget for a deviation that passes the tolerance."""


TRACED = 12
"""The cost of differentiating a step, in computed steps."""


@dataclass(frozen=True)
class Match:
    """An edit, and the wrong tensors that it explains; `overflows`: it makes a value infinite."""

    edit: Edit
    tensors: frozenset[str]
    form: Mapping[str, Any]
    name: str = "reference-edit"
    overflows: bool = False

    @property
    def cause(self) -> Cause:
        """The hypothesis that a kernel differs by the edit."""
        alteration = Alteration(arguments=self.form, edits=(self.edit,))
        name, shown = self._named()
        return Cause(name, shown, alteration, weight=BELIEF * self.cost)

    @property
    def cost(self) -> float:
        """The cost of the edit. An overflow that explains a tensor is no coincidence, although the zeros it leaves are
        easy to explain."""
        return self.edit.cost - (OVERFLOW if self.overflows else 0.0)

    def _named(self) -> tuple[str, Mapping[str, Any]]:
        """The id of the cause, and its parameters: some kinds of edits have their own ids."""
        edit = self.edit
        if name := format_of(edit):
            id_ = "narrow-overflow" if self.overflows else "reduced-precision"
            return "narrow-accumulation" if edit.kind == ACCUMULATED else id_, {"format": name}
        if edit.kind == RETURNED and edit.value[0] == "instead" and edit.value[1][0] == "input":
            return "stale", {"equals": {edit.function: edit.value[1][1]}}
        if edit.kind == "function" and edit.value in OVERWRITING:
            return "repeated-rows", {"kept": edit.value}
        if edit.kind == "along" and edit.operand == RESULT and edit.value[0] in OF_A_PART:
            return "localized", {
                "where": dict.fromkeys(sorted(self.tensors), f"{edit.value[0]} of axis {edit.value[1]}")
            }
        return self.name, {"kind": edit.kind}


@np.errstate(all="ignore")
def edit_causes(origin: KernelExplanation, budget: WorkBudget | None = None, *, rounding: bool = True) -> list[Cause]:
    """The edits that explain a tensor which `origin` leaves wrong: those that explain most tensors, the simplest first.

    `rounding`: steps in a lower precision are tried too.
    """
    budget = budget or WorkBudget()
    if is_beyond(origin):
        return []
    for forms_of in (forms, lossy_forms):
        scans = [Scan(origin, form, rounding=rounding) for form in forms_of(origin)]
        for target in scans[0].targets[:MAX_TARGETS] if scans else ():
            matches = [(scan, match) for scan in scans for match in scan.matches(target, budget)]
            if forms_of is forms and not any(scan.says_all(match) for scan, match in matches):
                matches += [(scans[0], match) for match in scans[0].detached(target, budget)]
            if matches:
                most = max(len(match.tensors) for _, match in matches)
                best = [(scan.effort(match), match.cause) for scan, match in matches if len(match.tensors) == most]
                if forms_of is lossy_forms:  # the form is a cause, too
                    best = [(effort, replace(cause, weight=cause.weight + BAND_WEIGHT)) for effort, cause in best]
                return [cause for _, cause in sorted(best, key=itemgetter(0))][:MAX_KEPT]
    return []


@np.errstate(all="ignore")
def fitted_causes(origin: KernelExplanation, budget: WorkBudget | None = None) -> list[Cause]:
    """The edits with one fitted number that explain most of what `origin` leaves wrong. They are evidence only if other
    inputs confirm the number."""
    if is_beyond(origin):
        return []
    budget = budget or WorkBudget()
    matches = [match for form in forms(origin) for match in Scan(origin, form, rounding=False).fits(budget)]
    most = max((len(match.tensors) for match in matches), default=0)
    return [match.cause for match in matches if len(match.tensors) == most][:MAX_KEPT]


def is_beyond(origin: KernelExplanation) -> bool:
    """Whether edits are skipped: a cause changes the prediction, or the inputs of the wrong tensors are too large."""
    if any(cause.change is not None for cause in origin.causes):
        return True
    evaluator = origin.evaluator
    if evaluator.n_elements <= MAX_ELEMENTS:
        return False
    program = evaluator.program(origin.alteration)
    needed = program.needed([name for name in origin.wrong if name in program.outputs])
    read = {*needed.outputs.values(), *(ref for step in needed.steps for ref in step.refs)}
    given = evaluator.tensors(origin.alteration)
    return sum(given[name].size for name, index in program.inputs.items() if index in read) > MAX_ELEMENTS


def forms(origin: KernelExplanation) -> Iterator[Mapping[str, Any]]:
    """The forms of the reference, as options; only the first if something has already been altered."""
    yield {}
    if not origin.causes:
        yield from origin.evaluator.op.forms


def lossy_forms(origin: KernelExplanation) -> Iterator[Mapping[str, Any]]:
    """The forms that are equal in exact arithmetic only, as options: a kernel may use one of them and have a fault."""
    if not origin.causes:
        evaluator = origin.evaluator
        variants = evaluator.op.variants(evaluator.case.params, evaluator.shapes)
        yield from (variant.arguments for variant in variants if variant.unstable and not variant.params)


def shortened(value: float) -> Iterator[float]:
    """0, and a fitted number with more and more digits: people write few, and data do not determine the last ones."""
    yield 0.0
    yield from (float(f"{value:.{digits}g}") for digits in range(1, 18))


class Scan:
    """All edits of one form of the reference, altered by an explanation, compared with the tensors it leaves wrong."""

    def __init__(self, origin: KernelExplanation, form: Mapping[str, Any], *, rounding: bool) -> None:
        self._evaluator, self._form, self._rounding = origin.evaluator, form, rounding
        self._alteration = origin.alteration.with_(Alteration(arguments=form))
        self._program = self._evaluator.program(self._alteration)
        self._trial = Trial(self._program, self._evaluator.tensors(self._alteration))
        self._wrong = {
            name: values
            for name in origin.wrong
            if (values := origin.observed.get(name)) is not None
            and (exact := origin.prediction[name].values) is not None
            and values.shape == exact.shape == self._evaluator.shape_of(name)
            and name in self._program.outputs
        }
        self._limits = {name: self._limit(name) for name in self._wrong}
        self._little = {name: self._little_of(name) for name in self._wrong}
        self._screens = {name: self._screen(name, origin) for name in self._wrong}
        self._right = frozenset(
            self._program.reach([name for name in self._program.outputs if name not in origin.wrong])
        )
        # Many formulas give nothing but NaN, so only a format that overflows explains it.
        self._lost = frozenset(name for name, values in self._wrong.items() if np.isnan(values).all())
        self._formats = formats_below(self._evaluator.dtype)
        self._n_own = 0
        self._forward = {name for name in self._wrong if not name.startswith(GRADIENT)}

    def _name_of(self, edit: Edit) -> str:
        """The id of an edit's cause: an option stored as float32 has its own, as has one that the op names."""
        option = option_of(self._program, edit)
        if option and "float32" in (edit.value, edit.value[-1] if isinstance(edit.value, tuple) else ""):
            return "attribute-precision"
        fits = (fit.id for fit in self._evaluator.op.fits if fit.target == option)
        return next(fits, "reference-edit")

    def effort(self, match: Match) -> float:
        """The cost of an edit, and the length of its expression."""
        return match.cost + PER_CHARACTER * len(described(self._program, match.edit))

    def says_all(self, match: Match) -> bool:
        """Whether an edit explains all wrong tensors, with a short expression."""
        whole = match.tensors >= self._wrong.keys()
        return whole and len(described(self._program, match.edit)) <= FEW_CHARACTERS

    def _limit(self, name: str) -> float:
        """How far, roughly, a prediction may differ from the observed tensor."""
        values = np.abs(self._wrong[name], dtype=np.float64)
        size = float(np.max(values, initial=0.0, where=np.isfinite(values)))
        dtype = self._wrong[name].dtype
        unit = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
        return NEAR * ERROR_BOUND * max(self._evaluator.base[name].envelope.max, size * unit)

    def _little_of(self, name: str) -> float:
        """The largest root mean square that a close prediction may leave; below 0 if there are no exact values."""
        exact = self._evaluator.base[name].values
        return -1.0 if exact is None else CLOSE * size(np.asarray(self._wrong[name] - exact)).rms

    def _screen(self, name: str, origin: KernelExplanation) -> tuple[int, float, float]:
        """The element with the largest finite error, its value, and the largest distance from it at which a prediction
        may still fit or be close."""
        observed, excused = np.ravel(self._wrong[name]), self._evaluator.envelopes[name].excused
        error = np.abs(observed - np.ravel(np.asarray(origin.prediction[name].values)))
        usable = np.isfinite(error) if excused is None else np.isfinite(error) & ~np.ravel(excused)
        if not usable.any():
            return 0, 0.0, math.inf
        index = int(np.argmax(np.where(usable, error, -1)))
        most = max(self._limits[name], self._little[name] * math.sqrt(observed.size))
        return index, float(observed[index]), most

    @property
    def targets(self) -> list[str]:
        """The wrong tensors: outputs before gradients, those with few steps first."""
        return sorted(self._wrong, key=lambda name: (name not in self._forward, self._trial.costs[name]))

    def matches(self, target: str, budget: WorkBudget) -> Iterator[Match]:
        """The edits that explain a tensor, each with the other tensors it explains."""
        edits = (edit for edit in edits_of(self._program, self._trial.shapes, target) if self._is_tried(edit))
        for edit in budget.spent_on(edits, self._trial, self._trial.costs[target], self._right):
            yield from self._matched(edit, target)

    def detached(self, target: str, budget: WorkBudget) -> Iterator[Match]:
        """The values through which no gradient flows, if outputs are right and a gradient is not."""
        if self._forward or target.removeprefix(GRADIENT) not in self._program.inputs:
            return
        work = TRACED * len(self._program.steps)
        for edit in detachments(self._program, self._trial.shapes, target):
            if budget.left < work:
                budget.untried += 1
                continue
            budget.left -= work
            yield from (match for match in self._again(edit) if target in match.tensors)

    def _is_tried(self, edit: Edit) -> bool:
        """Whether an edit changes the formula, or rounds to a format in which digits are lost."""
        name = format_of(edit)
        return not name or (self._rounding and name in self._formats)

    def _matched(self, edit: Edit, target: str) -> Iterator[Match]:
        """An edit as a match if it explains a tensor, alone or with the gradients that follow from it."""
        if target in self._lost and not format_of(edit):
            return
        if not self._fits(target, self._trial.output(edit, target), edit):
            return
        others = (name for name in self._wrong if name != target)
        tensors = frozenset((target, *(n for n in others if self._fits(n, self._trial.output(edit, n), edit))))
        overflows = format_of(edit) == "float16" and self._trial.overflows(edit)
        yield Match(edit, tensors, self._form, self._name_of(edit), overflows)
        if tensors >= self._forward and len(tensors) < len(self._wrong):
            yield from self._again(edit)

    def fits(self, budget: WorkBudget) -> Iterator[Match]:
        """The edits with a number that was fitted to the first target."""
        for target in self.targets[:1]:
            edits = fits_of(self._program, target)
            for edit in budget.spent_on(edits, self._trial, FIT_STEPS * self._trial.costs[target]):
                value = self._fitted(edit, target)
                near = None if value is None else self._trial.output(with_number(edit, value), target)
                if value is None or near is None or not self._close(target, near):
                    continue
                forms = (with_number(edit, short) for short in shortened(value))
                yield from next(filter(None, ([*self._matched(form, target)] for form in forms)), [])

    def _fitted(self, edit: Edit, target: str) -> float | None:
        """The number with which an edit comes closest to the target (Gauss-Newton); None if it has no effect."""
        value = float(edit.value[-1] if edit.kind == READ else edit.value)
        if edit.function in COMPARISONS and self._is_of_number(edit):
            return self._threshold(edit, target)
        if edit.kind in OF_ANY_SIZE:
            return self._fitted_from_decades(edit, target)
        for _ in range(FIT_STEPS):
            here = self._trial.output(with_number(edit, value), target)
            other = value * (1 + FIT_STEP) if value else FIT_STEP
            there = self._trial.output(with_number(edit, other), target)
            here = self._trial.base[target] if here is None else here
            if there is None or there.shape != here.shape:
                return None
            slope, rest = (there - here) / (other - value), self._wrong[target] - here
            square = float(np.sum(slope * slope))
            if not 0 < square < np.inf or not np.isfinite(rest).all():
                return None
            value += float(np.sum(slope * rest)) / square
        return value

    def _threshold(self, edit: Edit, target: str) -> float | None:
        """The threshold that comes closest to the target; None if no threshold has an effect. The result changes only
        where the threshold passes a compared value: some of the gaps between values are tried, then those around the
        best one."""
        observed, unit = self._wrong[target], self._compared_with(edit)
        gaps = self._gaps(edit) / unit if unit else np.zeros(0)
        if not gaps.size or not np.isfinite(observed).all():
            return None
        known: dict[int, float] = {}

        def error(at: int) -> float:
            if at not in known:
                predicted = self._trial.output(with_number(edit, float(gaps[at])), target)
                predicted = self._trial.base[target] if predicted is None else predicted
                fits = predicted.shape == observed.shape
                known[at] = float(np.linalg.norm(np.ravel(observed - predicted))) if fits else math.inf
            return known[at]

        low, high = 0, gaps.size - 1
        while True:
            tried = np.unique(np.linspace(low, high, GAPS).astype(int)).tolist()
            best = min(range(len(tried)), key=lambda i: error(tried[i]))
            if high - low < GAPS:
                return float(gaps[tried[best]])
            low, high = tried[max(0, best - 1)], tried[min(len(tried) - 1, best + 1)]

    def _is_of_number(self, edit: Edit) -> bool:
        """Whether an edit changes an operand that is a number."""
        step = self._program.steps[edit.positions[0]]
        return edit.operand != RESULT and is_number(self._program, step.operands[edit.operand])

    def _compared_with(self, edit: Edit) -> float:
        """The number that a factor multiplies; 1 if the number itself is replaced."""
        operand = self._program.steps[edit.positions[0]].operands[edit.operand]
        return float(self._trial.value(operand.index)) if edit.kind == "times" and isinstance(operand, Ref) else 1.0

    def _gaps(self, edit: Edit) -> Array:
        """Numbers between the compared values, and one beyond either end."""
        steps = [self._program.steps[position] for position in edit.positions]
        others = [step.operands[1 - edit.operand] for step in steps]
        given = [np.ravel(self._trial.value(other.index)) for other in others if isinstance(other, Ref)]
        values = np.unique(np.concatenate(given).astype(np.float64)) if given else np.zeros(0)
        values = values[np.isfinite(values)]
        if values.size < FEW_COMPARED:
            return np.zeros(0)
        return np.concatenate([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])

    def _fitted_from_decades(self, edit: Edit, target: str) -> float | None:
        """The same for a number of any size, such as an epsilon: a search over decades, then in its logarithm."""
        observed = self._wrong[target]

        def residuals(value: float) -> Array | None:
            predicted = self._trial.output(with_number(edit, value), target)
            fits = predicted is not None and predicted.shape == observed.shape and np.isfinite(predicted).all()
            return None if predicted is None or not fits else np.ravel(observed - predicted).astype(np.float64)

        tried = [(left, value) for value in self._starts(edit) if (left := residuals(value)) is not None]
        if not tried or not np.isfinite(observed).all():
            return None
        best = min(tried, key=lambda pair: float(np.linalg.norm(pair[0])))[1]
        return float(np.sign(best)) * newton(lambda size: residuals(float(np.sign(best)) * size), abs(best))

    def _starts(self, edit: Edit) -> Sequence[float]:
        """The numbers with which the search for an added number or a limit begins."""
        step = self._program.steps[edit.positions[0]] if edit.kind in LIMITS else None
        changed = None if step is None else Ref(step.index) if edit.operand == RESULT else step.operands[edit.operand]
        values = np.asarray(self._trial.value(changed.index)) if isinstance(changed, Ref) else np.zeros(0)
        usable = values[np.isfinite(values)] if values.dtype.kind == "f" else np.zeros(0)
        starts = np.quantile(usable, QUANTILES).tolist() if usable.size else DECADES
        return [value for value in dict.fromkeys(starts) if value] or DECADES

    def _again(self, edit: Edit) -> Iterator[Match]:
        """The edit of the outputs, with the gradients that follow from them."""
        again = replace(edit, again=True)
        try:
            values = self._evaluator.values_of(self._alteration.with_(Alteration(edits=(again,))))
        except IncompatibleError:
            return
        tensors = frozenset(n for n in self._wrong if self._fits(n, values.get(n)))
        yield Match(again, tensors, self._form, self._name_of(edit))

    def _fits(self, name: str, values: Array | None, edit: Edit | None = None) -> bool:
        """Whether a prediction matches the observed tensor within the error bound; or is close, and within the error
        bound of a careful implementation of the edit. Most predictions fail already in the element with the largest
        error."""
        index, value, most = self._screens[name]
        if values is not None and values.size > index and abs(values.item(index) - value) > most:
            return False
        if self._fits_the_bound(name, values):
            return True
        return edit is not None and values is not None and self._close(name, values) and self._fits_its_own(name, edit)

    def _close(self, name: str, values: Array) -> bool:
        """Whether a prediction leaves only a small part of the error."""
        observed, limit = self._wrong[name], self._little[name]
        if values.dtype.kind != "f" or values.shape != observed.shape:
            return False
        left = np.abs(observed - values)
        # The largest error is at most this far above the root mean square; most edits leave more than that.
        if left.max(initial=0.0) > limit * math.sqrt(left.size):
            return False
        return size(left).rms <= limit and bool(np.isfinite(values).all())

    def _fits_its_own(self, name: str, edit: Edit) -> bool:
        """Whether the observed tensor is as close to an edit's prediction as a careful implementation of it would
        be."""
        if self._n_own >= MOST_OWN:
            return False
        self._n_own += 1
        alteration = self._alteration.with_(Alteration(edits=(edit,)))
        try:
            prediction = self._evaluator.predict(alteration)
            own = self._evaluator.own_envelopes(alteration)
        except IncompatibleError:
            return False
        if prediction is None or name not in prediction:
            return False
        predicted = prediction[name]
        return ratio(self._wrong[name], replace(predicted, envelope=predicted.envelope.joined(own[name]))) < ERROR_BOUND

    def _fits_the_bound(self, name: str, values: Array | None) -> bool:
        """Whether a prediction lies within the error bound of the observed tensor, checked roughly first."""
        observed = self._wrong[name]
        if values is None or values.dtype.kind not in "fi" or values.shape != observed.shape:
            return False
        beyond = np.abs(values - observed) > self._limits[name]
        excused = self._evaluator.envelopes[name].excused
        if (beyond if excused is None else beyond & ~excused).any():
            return False
        return ratio(observed, self._evaluator.predicted(name, values)) < ERROR_BOUND
