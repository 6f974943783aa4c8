"""Recovers a kernel's mean and variance from y, by projection and by the spacing of their values.

With d = x - mean(x), y is fitted as a + r*d + rest. Then the kernel's mean is mean(x) - a/r, and its variance follows
from r and eps. Everything is computed in longdouble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parity.fingerprint.claims import NotMeasuredError, ProbeAnswers, UnusableError
from parity.fingerprint.norm_probes import NORM_LAYOUTS, SWEEP_EPS, TERMS, sweep_id
from parity.fingerprint.precision import Long, Precision, rms
from parity.fingerprint.summation import pairs

NEAR_A_MULTIPLE = 0.1
"""How close to a multiple, as a share of the spacing, a value must be to count as one; by chance one in five is."""
ABOUT = 0.05
POOR = 1e-4
"""A form of the root with a larger RMS residual does not describe the kernel."""

Running = Callable[[ProbeAnswers, int | None], tuple[Long, Long]]
"""Gives the kernel's mean and variance at an offset."""


@dataclass(frozen=True)
class NormFit:
    """y = a + r*d + rest for each group; arrays over groups. `noise` is the standard error of r, relative."""

    n: int
    mean: Long
    var: Long
    a: Long
    r: Long
    rest: Long
    noise: Long
    x: Long
    d: Long

    @property
    def kappa(self) -> Long:
        """sqrt(1 + mean^2 / var), the condition number of the variance (Chan, Golub, LeVeque 1983)."""
        kappa: Long = np.sqrt(1 + self.mean**2 / self.var)
        return kappa

    @property
    def mean_used(self) -> Long:
        """The mean that the kernel subtracted."""
        return self.mean - self.a / self.r

    @property
    def finite(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which groups have finite numbers."""
        return np.isfinite(self.r) & (self.r > 0)


@dataclass(frozen=True)
class Root:
    """How r follows from the variance v: r = 1/sqrt(c*v + eps), or 1/(sqrt(c*v) + eps) if not `inside`.

    `residual` is the relative RMS error of r. If the form is not `known`, the variance is measured against that of the
    same values without an offset.
    """

    c: float = 1.0
    eps: float | np.longdouble = SWEEP_EPS
    inside: bool = True
    residual: float = 0.0

    @property
    def known(self) -> bool:
        """Whether it describes the kernel."""
        return not self.residual > POOR

    def variance(self, r: Long) -> Long:
        """The variance behind r."""
        if self.inside:
            return (r**-2 - np.longdouble(self.eps)) / np.longdouble(self.c)
        return (1 / r - np.longdouble(self.eps)) ** 2 / np.longdouble(self.c)

    def scale(self, variance: Long) -> Long:
        """r from the variance."""
        scaled = variance * np.longdouble(self.c)
        eps = np.longdouble(self.eps)
        r: Long = 1 / (np.sqrt(scaled + eps) if self.inside else np.sqrt(scaled) + eps)
        return r


def fit(answers: ProbeAnswers, probe: str) -> NormFit:
    """The fit of one probe of a normalisation."""
    asked = answers.probe(probe)
    layout = NORM_LAYOUTS[asked.op]
    x = layout.gather(asked.tensors["x"]).astype(np.longdouble)
    y = layout.gather(answers.wide_output(probe, "y", like="x"))
    n = x.shape[1]
    mean = x.mean(axis=1)
    d = x - mean[:, None]
    d -= d.mean(axis=1, keepdims=True)
    squares = (d * d).sum(axis=1)
    a, r = y.mean(axis=1), (y * d).sum(axis=1) / squares
    residual = y - a[:, None] - r[:, None] * d
    rest = np.sqrt((residual**2).mean(axis=1))
    noise = rest / np.abs(r) / np.sqrt(squares)
    return NormFit(n, mean, squares / n, a, r, rest, noise, x, d)


@dataclass(frozen=True)
class SweepPoint:
    """One offset of the sweep.

    `kappa`: median over groups. `error`, `noise`: relative error of the kernel's variance, and of the measurement
    itself. `mean_error`: error of the kernel's mean in standard deviations. `mean_ulps`: the same in ulps of the mean.
    `rest`: RMS of the residual of y, in u. `n_lost`: groups without finite numbers.
    """

    kappa: float
    error: Long
    noise: Long
    mean_error: Long
    mean_ulps: Long
    rest: float
    n_lost: int
    fit: NormFit
    multiples: Long

    @property
    def rms(self) -> float:
        """RMS of the relative error of the variance over the groups."""
        return rms(self.error) if len(self.error) else float("nan")


def point(answers: ProbeAnswers, exponent: int | None, root: Root, running: Running | None = None) -> SweepPoint:
    """The measurements at one offset of the sweep."""
    precision, fitted = answers.precision, fit(answers, sweep_id(exponent))
    ok = fitted.finite
    var, mean = fitted.var[ok], fitted.mean[ok]
    used, mean_used = variance_used(answers, fitted, root)[ok], fitted.mean_used[ok]
    noise = 2 * fitted.noise[ok]
    if running is not None and ok.all():
        mean_used, used = running(answers, exponent)
        noise = np.zeros_like(noise)
    wrong = mean_used - mean
    return SweepPoint(
        kappa=float(np.median(fitted.kappa)),
        error=used / var - 1,
        noise=noise,
        mean_error=(wrong / np.sqrt(var)).astype(np.longdouble),
        mean_ulps=wrong / precision.ulp(mean),
        rest=rms(fitted.rest[ok]) / precision.u if ok.any() else float("nan"),
        n_lost=int((~ok).sum()),
        fit=fitted,
        multiples=used / precision.ulp(mean * mean),
    )


def variance_used(answers: ProbeAnswers, fitted: NormFit, root: Root) -> Long:
    """The variance behind r, by group."""
    if root.known:
        return root.variance(fitted.r)
    plain = fit(answers, sweep_id(None))
    return plain.var * (plain.r / fitted.r) ** 2


def require_normalised(fitted: NormFit) -> None:
    """Raises UnusableError unless y is x with a standard deviation of about 1."""
    scale = float(np.median(fitted.r * np.sqrt(fitted.var)))
    if not abs(scale - 1) < ABOUT:
        raise UnusableError(f"y is not normalised: its standard deviation is {scale:.3g}")


def running_statistics(answers: ProbeAnswers) -> Running | None:
    """Mean and variance from the running statistics of a batch norm of momentum 1, free of the noise of y; else None.

    The variance's divisor (n or n - 1) follows from y where the mean is about zero.
    """
    asked = answers.probe(sweep_id(None))
    if asked.op != "batch_norm":
        return None
    try:
        fitted = fit(answers, sweep_id(None))
        ratio = float(np.median(written(answers, None)[1] / Root().variance(fitted.r)))
    except NotMeasuredError:
        return None
    unbiased = fitted.n / (fitted.n - 1)
    if min(abs(ratio - 1), abs(ratio - unbiased)) > 1e-5:
        return None
    factor = np.longdouble(fitted.n - 1) / fitted.n if abs(ratio - unbiased) < abs(ratio - 1) else np.longdouble(1)

    def read(given: ProbeAnswers, exponent: int | None) -> tuple[Long, Long]:
        mean, var = written(given, exponent)
        return mean, var * factor

    return read


def written(answers: ProbeAnswers, exponent: int | None) -> tuple[Long, Long]:
    """The running statistics after one step of momentum 1."""
    probe = sweep_id(exponent)
    return answers.wide_output(probe, "running_mean"), answers.wide_output(probe, "running_var")


def sweep(answers: ProbeAnswers, root: Root) -> list[SweepPoint]:
    """The points of the sweep with finite numbers, in rising order of kappa; raises NotMeasuredError if none has."""
    require_normalised(fit(answers, sweep_id(None)))
    points, problem = [], "no offset was measured"
    running = running_statistics(answers)
    for exponent in (None, *answers.precision.offsets):
        try:
            points.append(point(answers, exponent, root, running))
        except NotMeasuredError as error:
            problem = str(error)
    if len(points) < 1 + len(answers.precision.offsets):
        raise NotMeasuredError(problem)
    return points


def on_lattice(multiples: Sequence[Long]) -> float:
    """The share of values close to whole numbers; by chance it is 2 * NEAR_A_MULTIPLE."""
    values = np.concatenate(list(multiples)) if multiples else np.zeros(0, np.longdouble)
    values = values[np.isfinite(values)]
    return float((np.abs(values - np.rint(values)) <= NEAR_A_MULTIPLE).mean()) if len(values) else float("nan")


def mean_lattice(precision: Precision, fitted: NormFit) -> Long:
    """The kernel's mean in units of its ulp: whole if the kernel rounded it to the dtype."""
    units: Long = fitted.mean_used / precision.ulp(fitted.mean)
    return units


def shift_lattice(precision: Precision, fitted: NormFit) -> Long:
    """For a folded affine step x*s + c: c, with s rounded to the dtype, in units of its ulp; whole if c was stored."""
    s = fitted.r.astype(precision.name).astype(np.longdouble)
    c = fitted.a - (s - fitted.r) * fitted.d.mean(axis=1) - s * fitted.mean
    units: Long = c / precision.ulp(c)
    return units


def group_sums(answers: ProbeAnswers, probe: str) -> Long:
    """The sum behind the mean of each pattern.

    x is M, -M and ones; at a one y is (1 - m)*r, at M it is (M - m)*r, so their ratio gives m whatever r is. If M hides
    m in y (a folded affine step), a batch norm's running mean, after one step of momentum 1, still has it.
    """
    asked = answers.probe(probe)
    if asked.op == "batch_norm" and "running_mean" in answers.by_probe[probe].outputs:
        return answers.wide_output(probe, "running_mean")[: len(pairs(TERMS))] * TERMS
    layout = NORM_LAYOUTS[asked.op]
    x = layout.gather(asked.tensors["x"])[: len(pairs(TERMS))]
    y = layout.gather(answers.wide_output(probe, "y", like="x"))[: len(x)]
    high = y[np.arange(len(y)), np.argmax(x, axis=1)]
    low = np.array([np.median(row[values == 1.0]) for row, values in zip(y, x, strict=True)])
    huge, ratio = np.longdouble(x.max()), low / high
    mean_used: Long = (1 - huge * ratio) / (1 - ratio)
    if not np.isfinite(mean_used).all():
        raise UnusableError(f"{probe}: y has no finite numbers where x holds {float(huge):.1e}")
    return mean_used * TERMS
