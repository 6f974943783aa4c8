"""Where eps stands, how large it is in fact, in which precision it is kept, and the divisor of the variance.

From r = 1/sqrt(c*v + e) or 1/(sqrt(c*v) + e) over variances from 1 down to 2**-30: both are linear in c (or its root)
and e, and only one of them fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.fingerprint.claims import Answers, Claim, NotMeasuredError, UnusableError, undecided
from parity.fingerprint.moments import Root, fit
from parity.fingerprint.norm_probes import EPS, SWEEP_EPS
from parity.fingerprint.precision import Long

POOR = 1e-4
"""A form whose RMS residual is above this does not describe the kernel at all."""
APART = 8.0
"""How many times better the one form must fit."""


@dataclass(frozen=True)
class Fitted:
    """One form with its best c and eps; `residual` is the relative RMS that it leaves of r."""

    inside: bool
    c: float
    eps: Long
    residual: float


@dataclass(frozen=True)
class Epsilon:
    """Both forms, the better one first."""

    best: Fitted
    other: Fitted
    n: int

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The numbers, in the form in which they are stored."""
        return {
            "eps asked": EPS,
            "eps recovered": float(self.best.eps),
            "relative deviation": float(self.deviation),
            "residual of this form": self.best.residual,
            "residual of the other form": self.other.residual,
            "divisor n / n recovered": self.best.c,
        }

    @property
    def deviation(self) -> Long:
        """How far the recovered eps is from the one that was asked for, relative."""
        deviation: Long = self.best.eps / np.longdouble(EPS) - 1
        return deviation

    @property
    def ddof(self) -> int | None:
        """0 or 1 for a divisor of n or n - 1, None for another."""
        near = {ddof: abs(self.best.c - self.n / (self.n - ddof)) for ddof in (0, 1)}
        best = min(near, key=near.__getitem__)
        return best if near[best] < 0.02 / self.n else None

    @property
    def absent(self) -> bool:
        """Whether no eps is added."""
        return abs(float(self.best.eps)) < 0.01 * EPS

    @property
    def apart(self) -> bool:
        """Whether one form fits, and the other does not."""
        return self.best.residual < POOR and self.other.residual > APART * self.best.residual


def measure(answers: Answers) -> Epsilon:
    """Fit both forms to the probe of small variances; raises UnusableError where it has no numbers."""
    fitted = fit(answers, "eps")
    if not fitted.finite.all():
        raise UnusableError("eps: y has no usable numbers at small variances")
    r, var = fitted.r, fitted.var
    inside = solve(True, var * r * r, r * r)
    outside = solve(False, np.sqrt(var) * r, r)
    best, other = sorted((inside, outside), key=lambda form: form.residual)
    return Epsilon(best, other, fitted.n)


def solve(inside: bool, slope: Long, unit: Long) -> Fitted:
    """Least squares for c*slope + e*unit = 1 in longdouble, whose columns are near orthogonal after scaling."""
    a, b, d = (slope * slope).sum(), (slope * unit).sum(), (unit * unit).sum()
    p, q = slope.sum(), unit.sum()
    det = a * d - b * b
    c, e = (p * d - q * b) / det, (a * q - b * p) / det
    residual = float(np.sqrt(((c * slope + e * unit - 1) ** 2).mean()))
    return Fitted(inside, float(c if inside else c * c), e, residual)


def root_of(answers: Answers) -> Root:
    """How r follows from the variance, for the sweep; the documented form where the probe of eps has no numbers."""
    try:
        found = measure(answers)
    except NotMeasuredError:
        return Root()
    if found.best.residual > POOR:
        return Root(known=False)
    c = found.best.c if found.ddof is None else found.n / (found.n - found.ddof)
    if found.absent:
        return Root(c, 0.0)
    as_asked = abs(float(found.deviation)) < 1e-3
    return Root(c, SWEEP_EPS if as_asked else float(found.best.eps), found.best.inside)


def placement_claim(answers: Answers) -> Claim:
    """Inside or outside of the root, and its value."""
    aspect, found = "eps", measure(answers)
    if found.best.residual > POOR:
        return undecided(aspect, "r follows neither 1/sqrt(v + eps) nor 1/(sqrt(v) + eps)", **found.evidence)
    if found.absent:
        return Claim(aspect, "none", "r is 1/sqrt(v) down to the smallest variance", found.evidence)
    if not found.apart:
        return undecided(aspect, "both forms fit equally well", **found.evidence)
    place = "inside the root" if found.best.inside else "outside the root"
    same = abs(float(found.deviation)) < 1e-3
    value = "" if same else f", {float(found.best.eps):.3g} where {EPS:g} was asked"
    return Claim(aspect, place + value, evidence=found.evidence)


def precision_claim(answers: Answers) -> Claim:
    """Whether eps is kept in float32 in a float64 computation."""
    aspect, found = "eps precision", measure(answers)
    narrow = float(np.longdouble(np.float32(EPS)) / np.longdouble(EPS) - 1)
    evidence = {**found.evidence, "deviation of float32(eps)": narrow}
    if not found.apart or found.absent:
        return undecided(aspect, "no eps was recovered", **evidence)
    if found.best.residual * 10 > abs(narrow):
        reason = f"{answers.dtype} does not resolve the {abs(narrow):.1e} by which float32(eps) differs"
        return undecided(aspect, reason, **evidence)
    deviation = float(found.deviation)
    if abs(deviation - narrow) < 0.05 * abs(narrow):
        return Claim(aspect, "float32", f"the recovered eps is off by {deviation:.2e}, as float32(eps) is", evidence)
    if abs(deviation) < 0.05 * abs(narrow):
        return Claim(aspect, "float64", f"the recovered eps is off by {deviation:.1e} only", evidence)
    return undecided(aspect, f"the recovered eps is off by {deviation:.2e}", **evidence)


def divisor_claim(answers: Answers) -> Claim:
    """The divisor of the variance that normalises."""
    aspect, found = "variance divisor", measure(answers)
    if found.best.residual > POOR:
        return undecided(aspect, "r follows no known form", **found.evidence)
    if found.ddof is None:
        return undecided(aspect, f"v is multiplied by {found.best.c:.6f}", **found.evidence)
    return Claim(aspect, "n - 1" if found.ddof else "n", evidence=found.evidence)
