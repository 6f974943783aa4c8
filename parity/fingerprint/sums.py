"""The sums inside of a normalisation: the mean's, seen through y, and that of the bias' gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.fingerprint.claims import Answers, Claim, NotMeasuredError, UnusableError
from parity.fingerprint.norm_layouts import LAYOUTS
from parity.fingerprint.norm_probes import TERMS
from parity.fingerprint.precision import Long
from parity.fingerprint.summation import name_sum, pairs


def group_sums(answers: Answers, probe: str) -> Long:
    """The sum behind the mean of each pattern.

    x is M, -M and ones; at a one y is (1 - m)*r, at M it is (M - m)*r, so their ratio gives m whatever r is. Where M
    hides m in y (a folded affine), a batch norm's running mean, after one step of momentum 1, still has it.
    """
    asked = answers.probe(probe)
    if asked.op == "batch_norm" and "running_mean" in answers.by_probe[probe].outputs:
        mean = answers.output(probe, "running_mean", asked.tensors["running_mean"].shape)
        return mean.astype(np.longdouble)[: len(pairs(TERMS))] * TERMS
    layout = LAYOUTS[asked.op]
    x = layout.gather(asked.tensors["x"])[: len(pairs(TERMS))]
    y = layout.gather(answers.output(probe, "y", asked.tensors["x"].shape)).astype(np.longdouble)[: len(x)]
    top = np.argmax(x, axis=1)
    high = y[np.arange(len(y)), top]
    low = np.array([np.median(row[values == 1.0]) for row, values in zip(y, x, strict=True)])
    huge, ratio = np.longdouble(x.max()), low / high
    mean_used: Long = (1 - huge * ratio) / (1 - ratio)
    if not np.isfinite(mean_used).all():
        raise UnusableError(f"{probe}: y has no finite numbers where x holds {float(huge):.1e}")
    return mean_used * TERMS


def mean_claim(answers: Answers) -> Claim:
    """The order of the mean's sum."""
    return name_sum("sum of the mean", TERMS, group_sums(answers, "mean-huge"), _or_none(answers), answers.dtype)


def _or_none(answers: Answers) -> NDArray[Any]:
    """The sums beside an immense term; no counts where a kernel overflows on them."""
    try:
        return group_sums(answers, "mean-immense")
    except NotMeasuredError:
        return np.full(len(pairs(TERMS)), np.nan)


def bias_claim(answers: Answers) -> Claim:
    """The order of the sum of dy over rows, which is the bias' gradient."""
    huge, immense = (bias_sums(answers, f"bias-{size}") for size in ("huge", "immense"))
    return name_sum("sum of grad.bias", TERMS, huge, immense, answers.dtype)


def bias_sums(answers: Answers, probe: str) -> NDArray[Any]:
    """The bias' gradient of each pattern."""
    shape = answers.probe(probe).tensors["bias"].shape
    return answers.output(probe, "grad.bias", shape)[: len(pairs(TERMS))]
