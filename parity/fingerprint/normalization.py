"""Aspects of a normalisation: variance, affine step, eps, divisor, sums, running statistics and backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from parity.fingerprint.backward import backward_claim
from parity.fingerprint.claims import Experiment, KernelClaim, NotMeasuredError, ProbeAnswers, Question, undecided
from parity.fingerprint.epsilon import divisor_claim, placement_claim, precision_claim, root_of
from parity.fingerprint.moments import fit, group_sums, mean_lattice, on_lattice, shift_lattice, sweep
from parity.fingerprint.norm_probes import BATCH_MEAN, GROUPS, MOMENTUM, OLD_MEAN, TERMS, N, norm_probes
from parity.fingerprint.precision import Long
from parity.fingerprint.summation import name_sum, pairs
from parity.fingerprint.variance import BROKEN, variance_claim

UNFOLDED = 4.0
"""The residual of (x - m)*r is .3 to .6 u whatever kappa is; that of x*s + (b - m*s) is .2 to .5 kappa*u."""
FOLDED = 0.02


def affine_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether mean and scale are folded into one multiplication and one addition."""
    precision = answers.precision
    points = [p for p in sweep(answers, root_of(answers)) if p.kappa > 100 and p.n_lost == 0 and p.rms < BROKEN]
    if not points:
        return undecided("no offset with kappa above 100 leaves a usable variance")
    rest = float(np.median([p.rest for p in points]))
    slope = float(np.median([p.rest / p.kappa for p in points]))
    on_mean = on_lattice([mean_lattice(precision, p.fit) for p in points])
    on_shift = on_lattice([shift_lattice(precision, p.fit) for p in points])
    evidence = {
        "residual, in u": rest,
        "residual / kappa, in u": slope,
        "subtracted mean on multiples of its ulp": round(on_mean, 3),
        "added shift on multiples of its ulp": round(on_shift, 3),
    }
    if slope > FOLDED and rest > UNFOLDED:
        return KernelClaim("folded: x*s + (b - m*s)", f"the residual is {slope:.2g} kappa*u", evidence)
    if rest > UNFOLDED:
        return undecided(f"the residual is {rest:.1f} u and does not grow with kappa", evidence)
    if on_shift > 0.9 and on_mean < 0.6:
        reason = "the added shift, not the subtracted mean, is rounded to the dtype; x*s is not"
        return KernelClaim("folded: fma(x, s, b - m*s)", reason, evidence)
    return KernelClaim("not folded: (x - m)*r", f"the residual is {rest:.2f} u at every kappa", evidence)


def control_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether scaling by a power of two, with eps scaled too, changes any bit."""
    shape = answers.probe("control").tensors["x"].shape
    plain = answers.output("control", "y", shape)
    scaled = {how: answers.output(f"control-{how}", "y", shape) for how in ("variance", "deviation")}
    same = {how: bool(np.array_equal(plain, y)) for how, y in scaled.items()}
    evidence = {f"bit for bit with eps scaled as the {how}": value for how, value in same.items()}
    for how, value in same.items():
        if value:
            return KernelClaim("changes no bit", f"with eps scaled as the {how}", evidence)
    largest = min(float(np.abs(plain - y).max()) for y in scaled.values())
    reason = f"by up to {largest:.1e}: the kernel has a constant of fixed size"
    return KernelClaim("changes y", reason, {**evidence, "largest change of y": largest})


def mean_claim(answers: ProbeAnswers) -> KernelClaim:
    """The order of the mean's sum, without the immense term if the kernel overflows on it."""
    huge = group_sums(answers, "mean-huge")
    try:
        immense = group_sums(answers, "mean-immense")
    except NotMeasuredError:
        immense = np.full(len(pairs(TERMS)), np.nan, np.longdouble)
    return name_sum(TERMS, huge, immense, answers.dtype)


def bias_claim(answers: ProbeAnswers) -> KernelClaim:
    """The order of the sum of dy over rows, the gradient of the bias."""
    huge, immense = (answers.wide_output(f"bias-{size}", "grad.bias", like="bias") for size in ("huge", "immense"))
    n = len(pairs(TERMS))
    return name_sum(TERMS, huge[:n], immense[:n], answers.dtype)


def running_means(answers: ProbeAnswers) -> tuple[np.longdouble, np.longdouble]:
    """The weights of the new and the old mean, from channels that have only one of them."""
    mean = answers.wide_output("running", "running_mean")
    first = np.arange(GROUPS) < GROUPS // 2
    return np.median(mean[first]) / np.longdouble(BATCH_MEAN), np.median(mean[~first]) / np.longdouble(OLD_MEAN)


def momentum_claim(answers: ProbeAnswers) -> KernelClaim:
    """The weight of the new statistic, and the precision in which it is stored."""
    weight, kept = running_means(answers)
    evidence = {"momentum given": MOMENTUM, "weight of the new": float(weight), "weight of the old": float(kept)}
    names = [text for text, value in WEIGHTS.items() if abs(weight / value - 1) < 1.5 * answers.precision.u]
    if not names:
        return undecided(f"the new statistic has the weight {float(weight):.9g}", evidence)
    if len(names) > 1:
        return KernelClaim(names[0].partition(",")[0], "this dtype does not resolve its precision", evidence)
    return KernelClaim(names[0], f"recovered as {float(weight):.17g}", evidence)


NARROW_COMPLEMENT = np.longdouble(np.float32(1 - MOMENTUM))
WEIGHTS: Mapping[str, np.longdouble] = {
    "weights the new, stored in float64": np.longdouble(MOMENTUM),
    "weights the new, stored in float32": np.longdouble(np.float32(MOMENTUM)),
    "weights the new, stored as float32(1 - momentum)": 1 - NARROW_COMPLEMENT,
    "weights the old, stored in float64": np.longdouble(1 - MOMENTUM),
    "weights the old, stored in float32": NARROW_COMPLEMENT,
}
"""Candidates for the weight of the new statistic: the momentum or its complement, in float64 or float32."""


def running_var_claim(answers: ProbeAnswers) -> KernelClaim:
    """The divisor of the variance in running_var."""
    weight, _ = running_means(answers)
    var: Long = answers.wide_output("running", "running_var")
    fitted = fit(answers, "running")
    factor = float(np.median(var / (weight * fitted.var)))
    unbiased = fitted.n / (fitted.n - 1)
    evidence = {"recovered factor": factor, "n / (n - 1)": unbiased, "n": fitted.n}
    for name, value in (("n", 1.0), ("n - 1", unbiased)):
        if abs(factor - value) < 0.02 / fitted.n:
            return KernelClaim(name, f"recovered factor {factor:.7f}", evidence)
    return undecided(f"the batch variance is added with a factor of {factor:.6g}", evidence)


QUESTIONS: Mapping[str, Question] = {
    "variance": variance_claim,
    "variance divisor": divisor_claim,
    "affine": affine_claim,
    "eps": placement_claim,
    "eps precision": precision_claim,
    "sum of the mean": mean_claim,
    "sum of grad.bias": bias_claim,
    "grad.weight": backward_claim,
    "scaling by 2^3": control_claim,
}
"""The aspects of every normalisation."""

RUNNING: Mapping[str, Question] = {"momentum": momentum_claim, "running_var divisor": running_var_claim}
"""Further aspects of a batch norm."""


def drift(answers: ProbeAnswers) -> list[tuple[float, float]]:
    """(kappa, relative error of the implied variance) for the plot, if finite."""
    return [(p.kappa, p.rms) for p in sweep(answers, root_of(answers)) if np.isfinite(p.rms) and p.rms > 0]


def theory(n: int, u: float, kappa: float) -> Mapping[str, float]:
    """Relative error of the variance by algorithm (Chan, Golub, LeVeque 1983), with a negligible eps."""
    return {
        "naive": n * kappa**2 * u,
        "Welford": n * kappa * u,
        "two-pass": n * u + (n * kappa * u) ** 2,
    }


def norm_experiment(op: str) -> Experiment:
    """The experiment for one of NORM_LAYOUTS."""
    questions = {**QUESTIONS, **(RUNNING if op == "batch_norm" else {})}
    axes = ("kappa = sqrt(1 + mean² / variance)", "relative error of the kernel's variance")
    return Experiment(partial(norm_probes, op), questions, drift, theory, axes, N)
