"""How a batch norm keeps its running statistics: the weight of the new one, its precision, the variance's divisor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity.fingerprint.claims import Answers, Claim, undecided
from parity.fingerprint.moments import fit
from parity.fingerprint.norm_probes import BATCH_MEAN, GROUPS, MOMENTUM, OLD_MEAN


def momentum_claim(answers: Answers) -> Claim:
    """The weight of the new statistic, and the precision in which it is kept."""
    aspect = "momentum"
    mean = answers.output("running", "running_mean", (GROUPS,)).astype(np.longdouble)
    first = np.arange(GROUPS) < GROUPS // 2
    weight = np.median(mean[first]) / np.longdouble(BATCH_MEAN)
    kept = np.median(mean[~first]) / np.longdouble(OLD_MEAN)
    evidence = {"momentum asked": MOMENTUM, "weight of the new": float(weight), "weight of the old": float(kept)}
    found = [text for text, value in weights().items() if abs(weight / value - 1) < 1.5 * answers.precision.u]
    if not found:
        return undecided(aspect, f"the new statistic has the weight {float(weight):.9g}", **evidence)
    if len(found) > 1:
        return Claim(aspect, found[0].partition(",")[0], "its precision cannot be told in this dtype", evidence)
    return Claim(aspect, found[0], f"recovered as {float(weight):.17g}", evidence)


def weights() -> Mapping[str, np.longdouble]:
    """What the weight of the new statistic may be: the momentum or its complement, in float64 or in float32."""
    one, narrow = np.longdouble(1), np.float32
    complement = 1 - MOMENTUM
    return {
        "weighs the new, kept in float64": np.longdouble(MOMENTUM),
        "weighs the new, kept in float32": np.longdouble(narrow(MOMENTUM)),
        "weighs the new, kept as float32(1 - momentum)": one - np.longdouble(narrow(complement)),
        "weighs the old, kept in float64": np.longdouble(complement),
        "weighs the old, kept in float32": np.longdouble(narrow(complement)),
    }


def running_var_claim(answers: Answers) -> Claim:
    """The divisor of the variance that is written into running_var."""
    aspect = "running_var divisor"
    shape = (GROUPS,)
    mean = answers.output("running", "running_mean", shape).astype(np.longdouble)
    var = answers.output("running", "running_var", shape).astype(np.longdouble)
    fitted = fit(answers, "running")
    first = np.arange(GROUPS) < GROUPS // 2
    weight = np.median(mean[first]) / np.longdouble(BATCH_MEAN)
    factor = float(np.median(var / (weight * fitted.var)))
    evidence = {"recovered factor": factor, "n / (n - 1)": fitted.n / (fitted.n - 1), "n": fitted.n}
    for name, value in (("n", 1.0), ("n - 1", fitted.n / (fitted.n - 1))):
        if abs(factor - value) < 0.02 / fitted.n:
            return Claim(aspect, name, f"recovered factor {factor:.7f}", evidence)
    return undecided(aspect, f"the batch variance enters with a factor of {factor:.6g}", **evidence)
