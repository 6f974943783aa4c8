"""Identifies the algorithm of the variance by its error over kappa and the effect of the error of its mean.

Relative errors (Chan, Golub, LeVeque 1983): naive n*kappa^2*u; Welford n*kappa*u; two-pass n*u + n^2*kappa^2*u^2;
corrected two-pass n*u + n^3*kappa^3*u^3. The quadratic term of a two-pass is an identity, not a bound: with an error
delta of the mean, mean((x - m - delta)^2) = v + delta^2, and both are measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.fingerprint.claims import UNDECIDED, KernelClaim, ProbeAnswers
from parity.fingerprint.epsilon import root_of
from parity.fingerprint.moments import SweepPoint, group_sums, on_lattice, sweep
from parity.fingerprint.norm_probes import TERMS
from parity.fingerprint.precision import FLOAT32_U, FLOAT64_U, Precision, loglog_slope, rms

BROKEN = 0.3
"""Relative errors above this no longer follow the theory."""
VISIBLE = 6.0
"""An error counts from this multiple of the error without an offset, or of the measurement's noise, on."""
EXPLAINED = 0.9
"""The share of the squared error that delta^2 must explain for a two-pass; it explains .97 and more of a plain one."""
POSITIVE = 0.97
"""All errors of a two-pass are positive, whatever its mean; those of a naive variance are not."""
SMALLEST = {1: 1e-3, 2: 0.05}
"""The least constant of Welford's kappa*u and of the naive kappa^2*u (.07 and .6 were seen); the largest is n."""
WIDER = {"float32": (FLOAT64_U, "naive, accumulated in float64"), "float64": (2.0**-64, "naive, in a wider precision")}
"""The unit roundoff of the next wider accumulator, and the name of a naive variance in it."""


@dataclass(frozen=True)
class Growth:
    """How the error grows: `slope` of log(error) over log(kappa) on the `visible` points, and what explains it.

    `positive`: the share of positive errors among the visible ones. `noise`: of the measurement, at its worst.
    """

    precision: Precision
    floor: float
    visible: tuple[SweepPoint, ...]
    slope: float
    squared_mean_error: float
    positive: float
    noise: float
    n: int

    def constant(self, power: int, u: float) -> float:
        """Median of error / (kappa**power * u)."""
        return float(np.median([p.rms / (p.kappa**power * u) for p in self.visible]))

    def fits(self, power: int, u: float) -> bool:
        """Whether the error has the size of kappa**power * u, and grows so."""
        return abs(self.slope - power) <= 0.45 and SMALLEST[power] <= self.constant(power, u) <= self.n

    @property
    def rough(self) -> bool:
        """Whether the measurement's noise hides errors well above the floor."""
        return self.noise > VISIBLE * self.floor

    @property
    def flat(self) -> bool:
        """Whether the visible errors are too small and too irregular for an error that grows with kappa."""
        irregular = len(self.visible) < 3 or self.slope < 0.3
        return irregular and max(p.rms / p.kappa for p in self.visible) < SMALLEST[1] * self.precision.u

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The numbers as they are stored."""
        return {
            "slope": round(self.slope, 3) if self.visible else None,
            "visible points": len(self.visible),
            "kappa": [self.visible[0].kappa, self.visible[-1].kappa] if self.visible else None,
            "error without offset, in u": self.floor / self.precision.u,
            "explained by the squared error of the mean": round(self.squared_mean_error, 4),
            "share of positive errors": round(self.positive, 3),
            "noise of the measurement, in u": self.noise / self.precision.u,
        }


def growth(points: Sequence[SweepPoint], precision: Precision) -> Growth:
    """Sums up a sweep."""
    floor = max(2 * precision.u, points[0].rms)
    visible = tuple(p for p in points if is_visible(p, floor))
    slope = float("nan")
    if len(visible) >= 3:
        slope = loglog_slope([p.kappa for p in visible], [p.rms for p in visible])
    judged = [share_explained(p) for p in points if is_visible(p, floor) and telling(p, floor)]
    errors = np.concatenate([p.error for p in visible]) if visible else np.zeros(0)
    errors = errors[np.abs(errors) > VISIBLE * floor]
    return Growth(
        precision,
        floor,
        visible,
        slope,
        float(np.median(judged)) if judged else 0.0,
        float((errors > 0).mean()) if len(errors) else 0.0,
        max((float(np.median(p.noise)) for p in points if len(p.noise)), default=0.0),
        points[0].fit.n,
    )


def is_visible(point: SweepPoint, floor: float) -> bool:
    """Whether the error is visible, and small enough to follow the theory."""
    noise = float(np.median(point.noise)) if len(point.noise) else 0.0
    return point.n_lost == 0 and VISIBLE * max(floor, noise) < point.rms < BROKEN


def telling(point: SweepPoint, floor: float) -> bool:
    """Whether the squared error of the mean is large enough to be recognised."""
    return rms(point.mean_error**2) > 3 * floor


def share_explained(point: SweepPoint) -> float:
    """The share of the squared error of the variance that the squared error of the mean explains."""
    rest = ((point.error - point.mean_error**2) ** 2).sum()
    return 1 - float(rest / (point.error**2).sum())


def lattice_share(points: Sequence[SweepPoint], precision: Precision) -> tuple[float, int]:
    """The share of variances on multiples of ulp(mean^2), and how many were measured.

    Only where that spacing is larger than what the rounding of r hides, and small beside the variance.
    """
    chosen = []
    for p in points:
        spacing = float(np.median(precision.ulp(p.fit.mean**2) / p.fit.var))
        noise = float(np.median(p.noise)) if len(p.noise) else 0.0
        if max(noise, 4 * precision.u) * 20 < spacing < 0.5:
            chosen.append(p.multiples)
    return on_lattice(chosen), sum(map(len, chosen))


def variance_claim(answers: ProbeAnswers) -> KernelClaim:
    """The name of the variance's algorithm."""
    points = sweep(answers, root_of(answers))
    precision = answers.precision
    grown = growth(points, precision)
    share, n_seen = lattice_share(points, precision)
    evidence = {
        **grown.evidence,
        "on multiples of ulp(mean^2)": None if n_seen == 0 else round(share, 3),
        "values without a number": sum(p.n_lost for p in points),
    }
    name, reason = name_variance(grown, wide_mean(answers))
    lost = [p.kappa for p in points if p.n_lost]
    if lost and name:
        reason = f"{reason}; NaN from kappa {lost[0]:.2g} on"
    return KernelClaim(name or UNDECIDED, reason, evidence)


def name_variance(grown: Growth, wide: bool) -> tuple[str, str]:
    """The algorithm's name (empty if none fits) and the reason."""
    u = grown.precision.u
    if grown.precision.name == "float64" and 0.01 * FLOAT32_U < grown.floor < 16 * FLOAT32_U:
        return "float32 accuracy in float64", f"relative error {grown.floor:.1e} without any offset"
    if len(grown.visible) == 0:
        return no_growth(grown, wide)
    # With a folded affine step, what looks like an error of the mean is one of the shift.
    if grown.squared_mean_error >= EXPLAINED and not grown.rough:
        return "two-pass", f"{grown.squared_mean_error:.1%} of its error is the squared error of the mean"
    if grown.flat:
        return no_growth(grown, wide)
    if len(grown.visible) < 3:
        return "", "the error is visible at fewer than three offsets only"
    if grown.positive > POSITIVE and grown.slope > 1.2 and grown.constant(2, u * u) < grown.n**2:
        return "two-pass", "always too large, by about (kappa*u)^2"
    if grown.fits(2, u):
        return "naive", describe(grown, 2, u)
    wider, name = WIDER[grown.precision.name]
    if grown.fits(2, wider) and grown.positive < 0.8:
        return name, describe(grown, 2, wider)
    if grown.fits(1, u):
        return "Welford or merged blocks", describe(grown, 1, u)
    return "", f"the error grows as kappa^{grown.slope:.2f}, which fits no algorithm known here"


def no_growth(grown: Growth, wide: bool) -> tuple[str, str]:
    """The algorithm if the error does not grow."""
    name = grown.precision.name
    if grown.rough:
        return "", "not naive; smaller errors are hidden by the rounding of a folded affine step"
    if wide and name == "float32":
        return "float64 accumulation", "no error grows with kappa; the sum of the mean keeps 16 bits more than float32"
    if wide:
        return (
            f"accumulated in a wider precision than {name}",
            f"no error grows with kappa; sums keep more bits than {name}",
        )
    reason = f"no error grows with kappa, although the mean is summed in {name}"
    return "corrected, shifted or in a wider precision", reason


def describe(grown: Growth, power: int, u: float) -> str:
    """`error 1.3 * kappa^2.01 * u`."""
    unit = "u" if u == grown.precision.u else f"2^{round(math.log2(u))}"
    return f"error about {grown.constant(power, u):.2g} kappa^{power} {unit}, slope {grown.slope:.2f}"


def wide_mean(answers: ProbeAnswers) -> bool:
    """Whether the sum of the mean keeps bits that a sum in this dtype loses."""
    sums = group_sums(answers, "mean-huge")
    return bool(np.abs(sums - (TERMS - 2)).max() < 0.5)
