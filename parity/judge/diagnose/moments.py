"""Which mean and variance must a kernel have had? Their errors name what computed them, and predict everything else.

The instrument is that of projection: the error of a normalised output is fitted in each group by a shift and a scale.
What these leave must be rounding, and the gradients must follow from the same statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.cases.op import Implied, group_lists
from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF, WORK
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, ratio

Array = NDArray[Any]
LEAST = 0.02
MOST = 4.0
"""An error of a statistic is of a unit roundoff's making between these multiples of it, the upper one times n."""
LEAST_ROUNDING, MOST_ROUNDING = 0.1, 16.0
SEEN = 1.0
ENOUGH = 4
"""Two numbers are fitted in each group: fewer elements would fit whatever they are."""
BETTER = 3.0
SCATTER = 0.005
RANDOM = 0.1
FEW = 3
MANY = 8
PART = 1 / 64


def implies(evaluator: Evaluator, observed: Observed) -> bool:
    """Whether the observed output tells the statistics of the op: it is there, of the right shape and finite."""
    if evaluator.op.statistics is None or evaluator.op.statistics.output not in evaluator.base:
        return False
    values, exact = observed.get(evaluator.op.statistics.output), evaluator.base[evaluator.op.statistics.output].values
    right = values is not None and exact is not None and values.shape == exact.shape
    return right and bool(np.isfinite(values).all())  # type: ignore[arg-type]


def statistics_causes(evaluator: Evaluator, observed: Observed, asked: Alteration, before: float) -> Iterator[Cause]:
    """Statistics as the output implies them: lost to cancellation, or computed in a format of fewer digits.

    They come beside what is `asked` already, which leaves the error ratio `before` in the output that tells them.
    """
    found, told_by_output = implied(evaluator, observed, asked), evaluator.op.statistics
    if found is None or told_by_output is None or found.n < ENOUGH:
        return
    output = told_by_output.output
    alteration = Alteration(arguments={told_by_output.errors: (found.mean_error, found.variance_error)})
    both = asked.with_(alteration)
    answer = None if both is None else evaluator.ask(both)
    if answer is None or before < SEEN or ratio(observed[output], answer[output]) > min(OFF, before / BETTER):
        return
    unit = UNIT_ROUNDOFF[evaluator.dtype]
    squares = unit * (found.mean**2 + found.variance)
    lost = relative(found.variance_error, squares)
    right_mean = relative(found.mean_error, unit * size_of(found)) <= MOST * found.n
    likely = scattered(found.variance_error) and everywhere(found.variance_error, squares)
    if LEAST <= lost <= MOST * found.n and right_mean and likely:
        shown = {"variance_error_over_u_mean_square": lost}
        yield Cause(
            "variance-naive", shown, alteration, weight=1.0, shown_by=OFFSET, lossy=True, shared=True, portable=False
        )
    for target in FORMATS.values():
        coarse = target.unit_roundoff
        if coarse <= unit:
            continue
        errors = (
            relative(found.variance_error, coarse * found.variance),
            relative(found.mean_error, coarse * size_of(found)),
        )
        if all(LEAST_ROUNDING <= error <= MOST_ROUNDING for error in errors) and random(found):
            parameters = {"format": target.name, "statistics_errors_over_its_unit_roundoff": max(errors)}
            shown_by = "statistics of many digits"
            yield Cause(
                "reduced-precision", parameters, alteration, weight=1.0, shown_by=shown_by, shared=True, portable=False
            )


OFFSET = "an offset of x that is large beside its spread"


def implied(evaluator: Evaluator, observed: Observed, asked: Alteration) -> Implied | None:
    """The statistics that the observed output implies for these params; None where it cannot come from any."""
    y = None if evaluator.op.statistics is None else observed.get(evaluator.op.statistics.output)
    if evaluator.op.statistics is None or y is None:
        return None
    wide = {name: values.astype(WORK[evaluator.dtype]) for name, values in evaluator.inputs.items()}
    return evaluator.op.statistics.implied(
        group_lists(wide, evaluator.op), replace(evaluator.case.params, **asked.params), y.astype(WORK[evaluator.dtype])
    )


def relative(error: Array, unit: Array) -> float:
    """The largest error in units."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nanmax(np.abs(error) / unit, initial=0.0))


def size_of(found: Implied) -> Array:
    """The size of the numbers that a mean is taken of."""
    size: Array = np.abs(found.mean) + np.sqrt(found.variance)
    return size


def random(found: Implied) -> bool:
    """Whether the errors of the means are no constant part of them, as rounding is not."""
    return found.mean.size >= FEW and scattered(found.mean_error / size_of(found), RANDOM)


def everywhere(errors: Array, unit: Array) -> bool:
    """Whether errors are not those of a few groups alone: a quarter of all have a part of the largest, in units."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.nan_to_num(np.abs(errors) / unit)
    return sizes.size < MANY or float(np.quantile(sizes, 0.75)) >= PART * float(sizes.max())


def scattered(errors: Array, least: float = SCATTER) -> bool:
    """Whether errors differ from group to group, as lost digits do, and are not one number."""
    return errors.size < FEW or float(np.std(errors)) >= least * float(np.abs(np.mean(errors)))
