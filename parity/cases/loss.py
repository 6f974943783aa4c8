"""The losses of a training: the mean over what counts in a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.exact.summation import total
from parity.cases.functions import entries, rows_of
from parity.cases.op import Knob


def cross_entropy(output: Any, target: Any, *, reduction: str = "mean") -> Any:
    """The mean of -log softmax(output)[target] over the targets that are not negative; output [..., C], target [...].

    `reduction`: `sum` does not divide, `all` divides by the number of all targets.
    """
    classes = target.reshape(-1)
    counted = np.flatnonzero(classes >= 0)
    logits = rows_of(anp.reshape(output, (classes.size, -1)), counted)
    shifted = logits - getval(logits).max(axis=1, keepdims=True, initial=-np.inf)
    losses = anp.log(total(anp.exp(shifted), (1,))) - entries(shifted, classes[counted])
    return total(losses, (0, 1))[0, 0] / divisor(reduction, counted.size, classes.size)


def mse_loss(output: Any, target: Any, *, reduction: str = "mean") -> Any:
    """The mean of (output - target)^2; `reduction` `sum` does not divide, `half` divides by 2 n."""
    difference = anp.reshape(output - target, (-1,))
    n = target.size
    return total(difference * difference, (0,))[0] / divisor(reduction, n, 2 * n)


def divisor(reduction: str, counted: int, other: int) -> float:
    """What a sum is divided by; NaN where nothing counts."""
    found = {"mean": counted, "sum": 1}.get(reduction, other)
    return float(found) if found else float("nan")


LOSSES: Mapping[str, Callable[..., Any]] = {"cross_entropy": cross_entropy, "mse_loss": mse_loss}
"""Every loss, by the name that a config calls it by."""

LOSS_KNOBS: Mapping[str, tuple[Knob, ...]] = {
    "cross_entropy": (
        Knob("mean-vs-sum", {"reduction": "sum"}, told_by="more than one target"),
        Knob("mean-vs-sum", {"reduction": "all"}, told_by="targets that are ignored"),
    ),
    "mse_loss": (
        Knob("mean-vs-sum", {"reduction": "sum"}, told_by="more than one target"),
        Knob("scaled", {"reduction": "half"}, told_by="any target"),
    ),
}
"""The hypotheses about each loss."""
