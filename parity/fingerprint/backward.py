"""Whether a normalisation sums the weight's gradient from centred values."""

from __future__ import annotations

import numpy as np

from parity.fingerprint.claims import KernelClaim, ProbeAnswers, undecided
from parity.fingerprint.epsilon import root_of
from parity.fingerprint.moments import NormFit, Root, fit, mean_lattice, on_lattice, running_statistics, sweep
from parity.fingerprint.norm_probes import NORM_LAYOUTS, sweep_id
from parity.fingerprint.precision import Long, loglog_slope, rms
from parity.fingerprint.variance import BROKEN

AUDIBLE = 6.0
"""An error counts from this multiple of the measurement's own error on."""


def backward_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether the weight's gradient is summed from centred values.

    The error from sum(dy*(x - m)*r), with m and r of the forward pass, is about u for a centred kernel, and about
    kappa*u for sum(dy*x) - m*sum(dy), and for x*r - m*r instead of (x - m)*r. dy sums to zero in each group.
    """
    root = root_of(answers)
    exponents = (None, *answers.precision.offsets)
    points = zip(sweep(answers, root), exponents, strict=True)
    usable = [(p.kappa, e) for p, e in points if p.n_lost == 0 and p.rms < BROKEN and p.kappa > 100]
    errors = [(kappa, *weight_error(answers, e, root)) for kappa, e in usable]
    if len(errors) < 3:
        return undecided("too few offsets with kappa above 100 leave a usable variance")
    kappa, error, noise = np.array(errors, np.float64).T
    if not np.isfinite(error).all():
        return undecided("grad.weight is not finite")
    slope = loglog_slope(kappa.tolist(), np.maximum(error, 1e-3).tolist())
    share = float(np.median(error / kappa))
    evidence = {
        "slope": round(slope, 3),
        "error / kappa, in u": share,
        "error at the largest kappa, in u": float(error[-1]),
        "noise at the largest kappa, in u": float(noise[-1]),
    }
    if 0.7 < slope < 1.4 and np.median(error / noise) > AUDIBLE:
        reason = f"its error grows as kappa^{slope:.2f}, about {share:.2g} kappa*u"
        return KernelClaim("not centred: x*r - m*r or raw moments", reason, evidence)
    if abs(slope) < 0.3 and error[-1] < 0.01 * kappa[-1]:
        return KernelClaim("centred", f"its error stays near {error[-1]:.2g} u", evidence)
    why = "close to the measurement's noise" if np.median(error / noise) <= AUDIBLE else "which rounding does not"
    return undecided(f"its error grows as kappa^{slope:.2f}, {why}", evidence)


def weight_error(answers: ProbeAnswers, exponent: int | None, root: Root) -> tuple[float, float]:
    """RMS error of the weight's gradient at one offset, and how much of it may be noise.

    In u, relative to sum|dy*(x - m)*r|.
    """
    name = sweep_id(exponent)
    asked, fitted = answers.probe(name), fit(answers, name)
    layout = NORM_LAYOUTS[asked.op]
    given = answers.wide_output(name, "grad.weight", like="weight")
    r, uncertain = scale(answers, exponent, fitted, root)
    dy = layout.gather(asked.tensors["grad.y"]).astype(np.longdouble)
    terms = dy * (fitted.x - fitted.mean_used[:, None]) * r[:, None]
    axes = (0,) if layout.per_element else (0, *range(2, asked.tensors["x"].ndim))
    total, size, noise = (
        layout.arrange(values).sum(axis=axes) for values in (terms, np.abs(terms), terms * uncertain[:, None])
    )
    if layout.per_element:
        # Elsewhere dy sums to zero over all elements of one mean.
        blur = mean_blur(answers, fitted) * r
        noise = noise + np.sqrt(((dy * blur[:, None]) ** 2).sum(axis=0))
    wrong = np.stack([given - total, noise]) / size / answers.precision.u
    error, noise_rms = map(rms, wrong)
    return error, noise_rms + 0.1


def mean_blur(answers: ProbeAnswers, fitted: NormFit) -> Long:
    """How far the kernel's mean may be from the one that follows from y: a folded shift is rounded too."""
    units = mean_lattice(answers.precision, fitted)
    sharp = on_lattice([units]) > 0.9
    return np.zeros_like(units) if sharp else answers.precision.ulp(fitted.mean) / 2


def scale(answers: ProbeAnswers, exponent: int | None, fitted: NormFit, root: Root) -> tuple[Long, Long]:
    """r of each group and its relative uncertainty; from the running variance if y is too inaccurate."""
    running = running_statistics(answers)
    if running is None or float(np.median(fitted.noise)) < answers.precision.u:
        return fitted.r, fitted.noise
    return root.scale(running(answers, exponent)[1]), np.zeros_like(fitted.noise)
