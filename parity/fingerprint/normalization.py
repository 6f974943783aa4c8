"""What is asked of a normalisation: its variance, affine step, eps, divisor, sums, running statistics and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.fingerprint.backward import backward_claim
from parity.fingerprint.claims import Answers, Claim, attempt, undecided
from parity.fingerprint.epsilon import divisor_claim, placement_claim, precision_claim, root_of
from parity.fingerprint.moments import Point, mean_lattice, on_lattice, shift_lattice, sweep
from parity.fingerprint.running import momentum_claim, running_var_claim
from parity.fingerprint.sums import bias_claim, mean_claim
from parity.fingerprint.variance import BROKEN, variance_claim

UNFOLDED = 4.0
"""(x - m)*r leaves .3 to .6 u of rest whatever kappa is; x*s + (b - m*s) leaves .2 to .5 kappa*u."""
FOLDED = 0.02


def norm_claims(answers: Answers) -> list[Claim]:
    """All claims about a normalisation."""
    return [attempt(aspect, question, answers) for aspect, question in QUESTIONS.items()]


def batch_norm_claims(answers: Answers) -> list[Claim]:
    """All claims about a batch norm."""
    return [attempt(aspect, question, answers) for aspect, question in {**QUESTIONS, **RUNNING}.items()]


def affine_claim(answers: Answers) -> Claim:
    """Whether mean and scale are folded into one multiplication and one addition."""
    aspect, precision = "affine", answers.precision
    points = [p for p in sweep(answers, root_of(answers)) if p.kappa > 100 and p.n_lost == 0 and p.rms < BROKEN]
    if not points:
        return undecided(aspect, "no offset with kappa above 100 leaves a usable variance")
    rest = float(np.median([p.rest for p in points]))
    slope = float(np.median([p.rest / p.kappa for p in points]))
    on_mean = on_lattice([mean_lattice(precision, p.fit) for p in points])
    on_shift = on_lattice([shift_lattice(precision, p.fit) for p in points])
    evidence = {
        "rest, in u": rest,
        "rest / kappa, in u": slope,
        "subtracted mean on its lattice": round(on_mean, 3),
        "added shift on its lattice": round(on_shift, 3),
    }
    if slope > FOLDED and rest > UNFOLDED:
        return Claim(aspect, "folded: x*s + (b - m*s)", f"the rest is {slope:.2g} kappa*u", evidence)
    if rest > UNFOLDED:
        return undecided(aspect, f"the rest is {rest:.1f} u and does not follow kappa", **evidence)
    if on_shift > 0.9 and on_mean < 0.6:
        reason = "the added shift, not the subtracted mean, is rounded to the dtype; x*s is not"
        return Claim(aspect, "folded: fma(x, s, b - m*s)", reason, evidence)
    return Claim(aspect, "not folded: (x - m)*r", f"the rest is {rest:.2f} u at every kappa", evidence)


def control_claim(answers: Answers) -> Claim:
    """Scaling by a power of two changes nothing, once eps is scaled with it."""
    aspect = "scaling by 2^3"
    shape = answers.probe("control").tensors["x"].shape
    plain = answers.output("control", "y", shape)
    same = {
        "as the variance": bool(np.array_equal(plain, answers.output("control-variance", "y", shape))),
        "as the deviation": bool(np.array_equal(plain, answers.output("control-deviation", "y", shape))),
    }
    evidence: dict[str, Any] = {"bit for bit with eps scaled " + key: value for key, value in same.items()}
    if any(same.values()):
        [how, *_] = [key for key, value in same.items() if value]
        return Claim(aspect, "changes no bit", f"with eps scaled {how}", evidence)
    largest = min(float(np.abs(plain - answers.output(f"control-{k}", "y", shape)).max()) for k in SCALED)
    evidence["largest change of y"] = largest
    return Claim(
        aspect, "changes y", f"by up to {largest:.1e}: a constant in the kernel has a size of its own", evidence
    )


SCALED = ("variance", "deviation")


Question = Callable[[Answers], Claim]
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
"""What is asked of every normalisation, by aspect."""

RUNNING: Mapping[str, Question] = {"momentum": momentum_claim, "running_var divisor": running_var_claim}
"""What is asked of a batch norm beside."""


def drift(answers: Answers) -> list[tuple[float, float]]:
    """(kappa, relative error of the implied variance) for the plot, where there are numbers."""
    points: Sequence[Point] = sweep(answers, root_of(answers))
    return [(p.kappa, p.rms) for p in points if np.isfinite(p.rms) and p.rms > 0]


def theory(n: int, u: float, kappa: float) -> Mapping[str, float]:
    """Relative error of the variance by algorithm (Chan, Golub, LeVeque 1983), with eps of no weight."""
    return {
        "naive": n * kappa**2 * u,
        "Welford": n * kappa * u,
        "two-pass": n * u + (n * kappa * u) ** 2,
    }
