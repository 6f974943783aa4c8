"""Recovers a kernel's mean and variance. Their errors identify the algorithm and predict all other tensors.

In every group, a shift and a scale are fitted to the error of the normalised output. The residual must be rounding, and
the gradients must follow from the same statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from parity.cases.dtypes import COMPUTED_IN
from parity.cases.exact.formats import FORMATS
from parity.cases.op import Implied, IncompatibleError, group_lists
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, WORK, Array
from parity.judge.diagnose.causes import NO_COINCIDENCE, Cause, formats_below
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, ratio
from parity.judge.diagnose.explanation import KernelExplanation

LEAST = 0.02
MOST_ROUNDING = 4.0
"""A statistic's error is rounding if it is between these multiples of a unit roundoff, the upper one times n."""
LEAST_ROUNDING, MOST_ROUNDING = 0.1, 16.0
SEEN = 1.0
ENOUGH = 4
"""Two numbers are fitted in every group, so with fewer elements they would always fit."""
BETTER = 3.0
SCATTER = 0.005
RANDOM = 0.1
MANY = 8
PART = 1 / 64
OFFSET = "an offset of x that is large relative to its spread"


def implies(evaluator: Evaluator, observed: Observed) -> bool:
    """Whether the output implies the statistics of the op: it is returned, of the right shape and finite."""
    statistics = evaluator.op.statistics
    if statistics is None or statistics.output not in evaluator.base:
        return False
    values, exact = observed.get(statistics.output), evaluator.base[statistics.output].values
    if values is None or exact is None or values.shape != exact.shape:
        return False
    return bool(np.isfinite(values).all())


def statistics_causes(origin: KernelExplanation) -> Iterator[Cause]:
    """Causes from the implied statistics: lost to cancellation, or computed in a lower precision."""
    evaluator, statistics, implied = origin.evaluator, origin.evaluator.op.statistics, implied_by(origin)
    if statistics is None or implied is None or implied.n < ENOUGH:
        return
    alteration = Alteration(arguments={statistics.errors: (implied.mean_error, implied.variance_error)})
    try:
        prediction = evaluator.predict(origin.alteration.with_(alteration))
    except IncompatibleError:
        return
    before, output = origin.left[statistics.output], statistics.output
    limit = min(ERROR_BOUND, before / BETTER)
    if prediction is None or before < SEEN or ratio(origin.observed[output], prediction[output]) > limit:
        return
    unit, narrow = UNIT_ROUNDOFF[evaluator.dtype], evaluator.dtype in COMPUTED_IN
    squares = unit * (implied.mean**2 + implied.variance)
    lost = relative(implied.variance_error, squares)
    right_mean = relative(implied.mean_error, unit * size_of(implied)) <= MOST_ROUNDING * implied.n
    likely = scattered(implied.variance_error) and everywhere(implied.variance_error, squares)
    cause = partial(Cause, alteration=alteration, weight=1.0, shared=True, portable=False)
    # In a narrow dtype the error of a stored variance is no evidence for how it was computed.
    stored = narrow and relative(implied.variance_error, unit * implied.variance) <= MOST_ROUNDING
    if LEAST <= lost <= MOST_ROUNDING * implied.n and right_mean and likely and not stored:
        shown = {"variance_error_over_u_mean_square": lost}
        yield cause("variance-naive", shown, shown_by=OFFSET, lossy=True)
    below = formats_below(evaluator.dtype) - {"tf32"}  # nothing is stored in it
    for target in (target for name, target in FORMATS.items() if name in below):
        errors = (
            relative(implied.variance_error, target.unit_roundoff * implied.variance),
            relative(implied.mean_error, target.unit_roundoff * size_of(implied)),
        )
        if all(LEAST_ROUNDING <= error <= MOST_ROUNDING for error in errors) and random(implied):
            parameters = {"format": target.name, "statistics_errors_over_its_unit_roundoff": max(errors)}
            yield cause(
                "reduced-precision",
                parameters,
                shown_by="statistics that the lower precision cannot represent",
                expression=f"mean and variance rounded to {target.name}, where the reference has them in full",
            )


def implied_by(origin: KernelExplanation) -> Implied | None:
    """The statistics that the observed output implies; None if no statistics fit it."""
    evaluator, statistics = origin.evaluator, origin.evaluator.op.statistics
    values = None if statistics is None else origin.observed.get(statistics.output)
    if statistics is None or values is None:
        return None
    work = WORK[evaluator.dtype]
    tensors = group_lists({name: given.astype(work) for name, given in evaluator.inputs.items()}, evaluator.op)
    params = replace(evaluator.case.params, **origin.alteration.params)
    return statistics.implied(tensors, params, values.astype(work))


def relative(error: Array, unit: Array) -> float:
    """The largest error in units."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nanmax(np.abs(error) / unit, initial=0.0))


def size_of(statistics: Implied) -> Array:
    """The size of the values in a mean."""
    total: Array = np.abs(statistics.mean) + np.sqrt(statistics.variance)
    return total


def random(statistics: Implied) -> bool:
    """Whether the errors of the means are like rounding, not a constant part of the means."""
    return statistics.mean.size >= NO_COINCIDENCE and scattered(statistics.mean_error / size_of(statistics), RANDOM)


def everywhere(errors: Array, unit: Array) -> bool:
    """Whether errors are in more than a few groups: a quarter of all groups have at least `PART` of the largest error,
    in units."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.nan_to_num(np.abs(errors) / unit)
    return sizes.size < MANY or float(np.quantile(sizes, 0.75)) >= PART * float(sizes.max())


def scattered(errors: Array, least: float = SCATTER) -> bool:
    """Whether errors differ from group to group, as lost precision does."""
    return errors.size < NO_COINCIDENCE or float(np.std(errors)) >= least * float(np.abs(np.mean(errors)))
