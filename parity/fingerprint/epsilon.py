"""Where eps is added, its actual value, the precision in which it is stored, and the divisor of the variance.

From r = 1/sqrt(c*v + e) or 1/(sqrt(c*v) + e) over variances from 1 down to 2**-30: both are linear in c (or its root)
and e, and only one of them fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.fingerprint.claims import UNDECIDED, KernelClaim, NotMeasuredError, ProbeAnswers, UnusableError, undecided
from parity.fingerprint.moments import Root, fit
from parity.fingerprint.norm_probes import EPS, SWEEP_EPS
from parity.fingerprint.precision import Long, kept_in, narrowing, rms

APART = 8.0
"""How many times better the better form must fit."""


@dataclass(frozen=True)
class Epsilon:
    """Both forms, the better one first."""

    best: Root
    other: Root
    n: int

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The numbers as they are stored."""
        return {
            "eps asked": EPS,
            "eps recovered": float(self.best.eps),
            "relative deviation": float(self.deviation),
            "residual of this form": self.best.residual,
            "residual of the other form": self.other.residual,
            "divisor n / n recovered": self.best.c,
        }

    @property
    def deviation(self) -> np.longdouble:
        """The relative error of the recovered eps."""
        return np.longdouble(self.best.eps) / np.longdouble(EPS) - 1

    @property
    def as_asked(self) -> bool:
        """Whether the recovered eps is the given one, to three digits."""
        return abs(float(self.deviation)) < 1e-3

    @property
    def ddof(self) -> int | None:
        """0 or 1 for a divisor of n or n - 1, else None."""
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
        return self.best.known and self.other.residual > APART * self.best.residual


def measure(answers: ProbeAnswers) -> Epsilon:
    """Fit both forms to the probe of small variances; raises UnusableError if it has no finite numbers."""
    fitted = fit(answers, "eps")
    if not fitted.finite.all():
        raise UnusableError("eps: y has no finite numbers at small variances")
    r, var = fitted.r, fitted.var
    inside = solve(True, var * r * r, r * r)
    outside = solve(False, np.sqrt(var) * r, r)
    best, other = sorted((inside, outside), key=lambda form: form.residual)
    return Epsilon(best, other, fitted.n)


def solve(inside: bool, slope: Long, unit: Long) -> Root:
    """Least squares for c*slope + e*unit = 1 in longdouble, whose columns are near orthogonal after scaling."""
    a, b, d = (slope * slope).sum(), (slope * unit).sum(), (unit * unit).sum()
    p, q = slope.sum(), unit.sum()
    det = a * d - b * b
    c, e = (p * d - q * b) / det, (a * q - b * p) / det
    residual = rms(c * slope + e * unit - 1)
    return Root(float(c if inside else c * c), e, inside, residual)


def root_of(answers: ProbeAnswers) -> Root:
    """How r follows from the variance, for the sweep; the documented form if the probe of eps has no finite numbers."""
    try:
        eps = measure(answers)
    except NotMeasuredError:
        return Root()
    if not eps.best.known:
        return eps.best
    c = eps.best.c if eps.ddof is None else eps.n / (eps.n - eps.ddof)
    if eps.absent:
        return Root(c, 0.0)
    return Root(c, SWEEP_EPS if eps.as_asked else float(eps.best.eps), eps.best.inside)


def placement_claim(answers: ProbeAnswers) -> KernelClaim:
    """Inside or outside the root, and its value."""
    eps = measure(answers)
    if not eps.best.known:
        return undecided("r follows neither 1/sqrt(v + eps) nor 1/(sqrt(v) + eps)", eps.evidence)
    if eps.absent:
        return KernelClaim("none", "r is 1/sqrt(v) down to the smallest variance", eps.evidence)
    if not eps.apart:
        return undecided("both forms fit equally well", eps.evidence)
    placement = "inside the root" if eps.best.inside else "outside the root"
    value = "" if eps.as_asked else f", {float(eps.best.eps):.3g} instead of {EPS:g}"
    return KernelClaim(placement + value, evidence=eps.evidence)


def precision_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether eps is stored as float32 in a float64 computation."""
    eps = measure(answers)
    narrow = narrowing(EPS)
    evidence = {**eps.evidence, "deviation of float32(eps)": narrow}
    if not eps.apart or eps.absent:
        return undecided("no eps was recovered", evidence)
    if eps.best.residual * 10 > abs(narrow):
        reason = f"{answers.dtype} does not resolve the {abs(narrow):.1e} by which float32(eps) differs"
        return undecided(reason, evidence)
    deviation = float(eps.deviation)
    dtype = kept_in(deviation, narrow)
    size = {"float32": f"{deviation:.2e}, that of float32(eps)", "float64": f"{deviation:.1e} only"}
    reason = f"the recovered eps has a relative error of {size.get(dtype, f'{deviation:.2e}')}"
    return KernelClaim(dtype or UNDECIDED, reason, evidence)


def divisor_claim(answers: ProbeAnswers) -> KernelClaim:
    """The divisor of the variance that normalises."""
    eps = measure(answers)
    if not eps.best.known:
        return undecided("r follows no known form", eps.evidence)
    if eps.ddof is None:
        return undecided(f"v is multiplied by {eps.best.c:.6f}", eps.evidence)
    return KernelClaim("n - 1" if eps.ddof else "n", evidence=eps.evidence)
