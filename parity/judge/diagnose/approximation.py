"""Finds the function that a kernel approximates, in a step that depends on one operand.

The error of that function is fitted as a linear spline of the operand. The spline has few numbers; put through the
reference it must give the observed tensors for several inputs and options, including the half of the elements it was
not fitted to. Rounding is not a smooth function of the operand, so it does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.candidates import APPROXIMABLE, MAX_STEPS
from parity.cases.edits import NewValues, inserted
from parity.cases.formula import INFIX, Formulas, short
from parity.cases.op import IncompatibleError
from parity.cases.oracle import program_of
from parity.cases.program import Program, Ref, Step
from parity.cases.repeats import repeats
from parity.cases.trial import Trial
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.kernel import Kernel
from parity.judge.diagnose.patience import in_time, is_late
from parity.judge.diagnose.probes import KEEPS_ALL, generic, within

APPROXIMATED = "approximated-function"
KNOTS = (16, 64, 128, 256, 512)
"""Numbers of knots that a spline may have."""
PER_NUMBER = 4
"""The fewest elements for each number of a spline, and the fewest different operands."""
SMALL = 0.02
"""A larger error, as a part of the function's values, is not an approximation's."""
FITS, HOLDS = 0.15, 0.25
"""The largest part of the error that a spline may leave: in the elements it was fitted to, and in the others."""
STEP, RESOLVED = 1e-6, 1e-5
"""The change whose effect is measured, and the part of the largest effect below which an effect counts as none."""
MOST_WORK = 60_000
"""The most steps that are computed for one spline."""
MOST_TRIED = 12
ELEMENTS, LEAST_SAMPLES, MOST_SAMPLES, N_OTHERS = 2048, 6, 48, 5
"""How many elements of a tensor are sampled, from how many further inputs, and how many other options are tried."""
Columns = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A program's values for some inputs, and what was returned."""

    trial: Trial
    observed: Mapping[str, Array]


@dataclass(frozen=True)
class Approximation:
    """The steps with an approximated function, its largest error, and where it occurs. `left` is the part of the
    output's error that stays unexplained, `part` the function's error as a part of its values."""

    step: Step
    operand: int
    error: float
    share: float
    at: float
    left: float
    part: float

    def text(self, program: Program) -> str:
        """`erf(x) with an error of up to about 2.5e-05 (4.6e-05 of its value), at x = 0.53`."""
        words = Formulas(program)
        index = self.step.operands[self.operand].index
        where = f"{words.value(index)[0]} = {self.at:.3g}"
        size, share = (short(float(f"{number:.2g}")) for number in (self.error, self.share))
        error = f"an error of up to about {size} ({share} of its value)"
        return f"{words.expression(self.step)} with {error}, at {where}"


@np.errstate(all="ignore")
def approximated(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Mapping[str, Array], wrong: Sequence[str]
) -> dict[str, Any] | None:
    """The functions whose approximation explains all wrong tensors, as evidence. Of several for one tensor, the one
    that explains other tensors too."""
    samples = sampled(kernel, case, dtype, inputs, wrong)
    by_tensor: dict[str, list[Approximation]] = {}
    for name in wrong if samples else ():
        by_tensor[name] = approximations_of(name, samples)
        if not by_tensor[name]:
            return None
    if not by_tensor:
        return None
    counts = Counter(one.step.index for candidates in by_tensor.values() for one in candidates)
    best = {name: min(candidates, key=partial(order, counts)) for name, candidates in by_tensor.items()}
    texts = dict.fromkeys(one.text(samples[0].trial.program) for one in best.values())
    left = {name: one.left for name, one in best.items()}
    return {"tensors": list(best), "expression": "; ".join(texts), "left_of_the_error": left}


def order(counts: Mapping[int, int], one: Approximation) -> tuple[int, bool, float]:
    """Sort key: those that explain most tensors first, quotients last."""
    return -counts[one.step.index], one.step.name in INFIX, one.left


def sampled(
    kernel: Kernel, case: CasePlan, dtype: str, inputs: Mapping[str, Array], wrong: Sequence[str]
) -> list[Sample]:
    """Results for the user's inputs, for other inputs of that size, and for other options; none if the kernel does not
    give them."""

    def drawn(numbers: Iterable[int]) -> Iterator[Sample]:
        for number in numbers:
            sample = asked(kernel, *within(*generic(case, number), inputs, number % 2), dtype, wrong)
            if sample is not None:
                yield sample

    first = asked(kernel, case, inputs, dtype, wrong)
    others = [*islice(drawn(n for n in range(N_OTHERS) if n % 3 != KEEPS_ALL), 1)]
    if first is None or not others:
        return []
    smallest = min(first.observed[name].size for name in wrong)
    n_samples = max(LEAST_SAMPLES, min(MOST_SAMPLES, ELEMENTS // smallest))
    return [first, *drawn(range(KEEPS_ALL, 3 * n_samples, 3)), *others]


def asked(
    kernel: Kernel, case: CasePlan, inputs: Mapping[str, Array], dtype: str, wrong: Sequence[str]
) -> Sample | None:
    """The kernel's results in float64, or in its own dtype if it has no other; None if one is not finite."""
    answer = kernel(case, "float64", inputs) or kernel(case, dtype, inputs) or {}
    if not all(name in answer and np.isfinite(answer[name]).all() for name in wrong):
        return None
    program = program_of(case.definition, case.params, inputs, gradients=case.gradients)
    trial = Trial(program, inputs)
    same = all(trial.base[name].shape == answer[name].shape for name in wrong)
    return Sample(trial, answer) if same and len(program.steps) <= MAX_STEPS else None


def approximations_of(name: str, samples: Sequence[Sample]) -> list[Approximation]:
    """The steps of an output's program that, approximated, explain the error in all samples."""
    errors = [np.ravel(one.observed[name] - one.trial.base[name]).astype(np.float64) for one in samples]
    sizes = [float(np.linalg.norm(error)) for error in errors]
    if not min(sizes) > 0:
        return []
    targets = [error / size for error, size in zip(errors, sizes, strict=True)]
    approximations: list[Approximation] = []
    for positions, operand in in_time(list(steps_of(samples[0].trial.program, name))[:MOST_TRIED]):
        models = (ErrorModel(name, positions, operand, relative) for relative in kinds_of_error(positions, samples))
        fits = (fitted(model, samples, targets, sizes) for model in models)
        approximations += islice((fit for fit in fits if fit is not None and fit.part <= SMALL), 1)
    return approximations


def kinds_of_error(positions: Sequence[int], samples: Sequence[Sample]) -> tuple[bool, ...]:
    """Whether the error is relative to the function's value; where the value may be 0, both kinds are tried."""
    steps = [samples[0].trial.program.steps[position] for position in positions]
    values = [np.ravel(one.trial.value(step.index)) for one in samples for step in steps]
    whole = np.concatenate(values)
    return (True, False) if whole.min() <= 0 <= whole.max() else (True,)


def steps_of(program: Program, name: str) -> Iterator[tuple[tuple[int, ...], int]]:
    """The positions of steps that may be approximated, those of a loop together, and the operand of which each is a
    function, the last ones first."""
    same, options = repeats(program), {index for index, _ in program.options.values()}
    groups = dict.fromkeys(same.get(position, (position,)) for position in sorted(program.reach([name]), reverse=True))
    for positions in groups:
        step = program.steps[positions[0]]
        values = [i for i, o in enumerate(step.operands) if isinstance(o, Ref) and o.index not in options]
        if values == [APPROXIMABLE.get(step.name)]:
            yield positions, values[0]


@dataclass(frozen=True)
class ErrorModel:
    """How the error of some steps reaches an output: it is added to their results, or is `relative`."""

    name: str
    positions: tuple[int, ...]
    operand: int
    relative: bool

    def operands(self, trial: Trial) -> list[Columns]:
        """The operand values of each step."""
        steps = (trial.program.steps[position] for position in self.positions)
        given = [step.operands[self.operand] for step in steps]
        return [np.asarray(trial.value(o.index) if isinstance(o, Ref) else o, np.float64) for o in given]

    def change(self, trial: Trial, knots: Columns) -> Columns | None:
        """How much the output changes with each number of the spline [elements, numbers]; None if nothing changes."""
        columns = [spline(values, knots) for values in self.operands(trial)]
        rows = []
        for number in range(knots.size):
            if is_late():
                return None
            changes = [(1 + STEP * c[number]) if self.relative else STEP * c[number] for c in columns]
            output = self._with(trial, changes)
            if output is None:
                rows.append(np.zeros(trial.base[self.name].size))
                continue
            rows.append(np.ravel(output - trial.base[self.name]).astype(np.float64) / STEP)
        table = np.array(rows).T
        return table if np.isfinite(table).all() and table.any() else None

    def _with(self, trial: Trial, changes: Sequence[Any]) -> Array | None:
        new = NewValues(trial.program)
        function = np.multiply if self.relative else np.add
        steps = {}
        for position, change in zip(self.positions, changes, strict=True):
            steps[position] = inserted(trial.program.steps[position], -1, new, function, (change,))
        return trial.with_steps(steps, self.name)


def fitted(
    model: ErrorModel, samples: Sequence[Sample], targets: Sequence[Columns], sizes: Sequence[float]
) -> Approximation | None:
    """The spline that is fitted to the error of every other element and explains the elements between them; None if
    there is none."""
    given = np.unique(np.concatenate([np.ravel(values) for one in samples for values in model.operands(one.trial)]))
    given = given[np.isfinite(given)]
    n_elements = min(given.size, sum(target.size // 2 for target in targets))
    work = len(samples) * len(samples[0].trial.program.steps)
    for n in in_time(n for n in KNOTS if PER_NUMBER * n <= n_elements and n * work <= MOST_WORK):
        knots = knots_of(given, n)
        approximation = None if knots is None else over(knots, model, samples, targets, sizes)
        if approximation is not None:
            return approximation
    return None


def over(
    knots: Columns, model: ErrorModel, samples: Sequence[Sample], targets: Sequence[Columns], sizes: Sequence[float]
) -> Approximation | None:
    """The same for given knots."""
    try:
        tables = [model.change(one.trial, knots) for one in samples]
    except (IncompatibleError, ValueError, TypeError):
        return None
    if any(table is None for table in tables):
        return None
    scaled = [table / size for table, size in zip(tables, sizes, strict=True) if table is not None]
    seen, unseen = (np.concatenate([table[start::2] for table in scaled]) for start in (0, 1))
    given, hidden = (np.concatenate([target[start::2] for target in targets]) for start in (0, 1))
    numbers = np.linalg.lstsq(seen, given, rcond=RESOLVED)[0]
    if part_of(seen @ numbers - given, given) > FITS or (left := part_of(unseen @ numbers - hidden, hidden)) > HOLDS:
        return None
    return described(model, samples, knots, numbers, left)


def part_of(some: Columns, whole: Columns) -> float:
    """The root mean square of some numbers as a part of that of others."""
    return float(np.linalg.norm(some) / np.linalg.norm(whole))


def described(
    model: ErrorModel, samples: Sequence[Sample], knots: Columns, numbers: Columns, left: float
) -> Approximation:
    """The largest error of the function in all samples, and its location."""
    step = samples[0].trial.program.steps[model.positions[0]]
    error, share, at, part = -1.0, 0.0, 0.0, 0.0
    for one in samples:
        for position, values in zip(model.positions, model.operands(one.trial), strict=True):
            deviation = np.tensordot(numbers, spline(values, knots), 1)
            result = np.asarray(one.trial.value(one.trial.program.steps[position].index), np.float64)
            deviation = np.abs(deviation * result if model.relative else np.broadcast_to(deviation, result.shape))
            worst = int(np.nanargmax(deviation))
            part = max(part, float(np.linalg.norm(deviation) / np.linalg.norm(result)))
            if deviation.item(worst) > error:
                error, at = deviation.item(worst), np.broadcast_to(values, result.shape).item(worst)
                share = error / abs(result.item(worst))
    return Approximation(step, model.operand, error, share, at, left, part)


def knots_of(values: Columns, n: int) -> Columns | None:
    """The knots of a spline, with equally many values between neighbours; None if there are too few different
    values."""
    knots = np.unique(np.quantile(values, np.linspace(0, 1, n))) if values.size else values
    return knots if knots.size > n // 2 else None


def spline(values: Columns, knots: Columns) -> Columns:
    """The linear splines over the knots, each 1 at one of them, at some values [numbers, *shape]."""
    return np.array([np.interp(values, knots, row) for row in np.eye(knots.size)])
