"""Aspects of clip_grad_norm: its scope, its norm, what is added to it, whether it clamps, how it sums.

An element that is a power of two reveals the coefficient without rounding: clipped / element = max_norm/(N + e), which
gives N + e, whatever `total_norm` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.clip import ClipGradNormParams
from parity.cases.draw import generator
from parity.fingerprint.claims import (
    UNDECIDED,
    Experiment,
    KernelClaim,
    KernelProbe,
    ProbeAnswers,
    UnusableError,
    undecided,
)
from parity.fingerprint.precision import Precision, kept_in, narrowing, rms

OP = "clip_grad_norm"
DOCUMENTED_EPS = 1e-6
SMALL = (20, 24)
"""The norms 2**-20 and 2**-24: about the size of what is added to them."""
FIRST, SECOND = (3.0, 4.0), (5.0, 12.0)
"""Two tensors with norms 5 and 13."""
TERMS = 2**16
NEARLY = 0.9
PARTLY = 0.003
"""A larger share of lost ones is significant; rounding alone hides a tenth of it."""
GROWTH = (16, 256, 4096, 65536)


def clip_probe(name: str, grads: list[Any], max_norm: float) -> KernelProbe:
    """A probe with a list of gradients."""
    tensors = {f"grads.{i}": np.asarray(grad, np.float64) for i, grad in enumerate(grads)}
    return KernelProbe(name, OP, ClipGradNormParams(max_norm), tensors)


def big(precision: Precision) -> float:
    """B: a power of two whose square absorbs ones, 2**13 in float32 and 2**28 in float64."""
    return float(2.0 ** ((precision.digits + 3) // 2))


def clip_probes(precision: Precision) -> Iterator[KernelProbe]:
    """All probes in one dtype."""
    for exponent in SMALL:
        yield clip_probe(f"small-{exponent}", [[2.0**-exponent]], 2.0 ** -(exponent + 10))
    yield clip_probe("below", [[0.25]], 1.0)
    yield clip_probe("scope", [FIRST, SECOND], 1.0)
    for name, index in (("first", 0), ("middle", TERMS // 2), ("last", TERMS - 1)):
        ones = np.ones(TERMS)
        ones[index] = big(precision)
        yield clip_probe(f"order-{name}", [ones], 1.0)
    octaves = np.floor(np.log2(np.maximum(np.arange(TERMS), 1)))
    rising = np.sqrt(NEARLY * big(precision) ** 2 * precision.u / 2.0**octaves)
    rising = precision.rounded(rising)
    rising[0] = big(precision)
    yield clip_probe("wide", [rising], 1.0)
    for n in GROWTH:
        values = generator(0, "fingerprint", OP, precision.name, str(n)).uniform(0.5, 1.5, size=(8, n))
        for row, grad in enumerate(precision.rounded(values)):
            yield clip_probe(f"growth-{n}-{row}", [grad], 1.0)


def coefficients(answers: ProbeAnswers, probe: str) -> list[NDArray[np.longdouble]]:
    """clipped / given, elementwise for each gradient."""
    return [answers.wide_output(probe, name) / given for name, given in answers.probe(probe).tensors.items()]


def divisor(answers: ProbeAnswers, probe: str) -> np.longdouble:
    """N + e: max_norm over the coefficient, from the first element."""
    coefficient = coefficients(answers, probe)[0].ravel()[0]
    if not np.isfinite(coefficient) or coefficient <= 0:
        raise UnusableError(f"{probe}: the coefficient is {float(coefficient)}")
    size: np.longdouble = np.longdouble(answers.probe(probe).params.max_norm) / coefficient
    return size


def scope_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether one norm is taken over all gradients, or one for each."""
    first, second = (float(1 / c.ravel()[0]) for c in coefficients(answers, "scope"))
    evidence = {
        "norm for (3, 4)": first,
        "norm for (5, 12)": second,
        "both together": float(np.sqrt(194.0)),
    }
    if abs(first / second - 1) < 1e-3:
        return KernelClaim("global", f"both tensors are divided by {first:.6g}", evidence)
    if abs(first - 5) < 1e-2 and abs(second - 13) < 1e-2:
        return KernelClaim("per tensor", f"the tensors are divided by {first:.6g} and {second:.6g}", evidence)
    return undecided(f"the tensors are divided by {first:.6g} and {second:.6g}", evidence)


def norm_claim(answers: ProbeAnswers) -> KernelClaim:
    """The type of the norm."""
    used = float(1 / coefficients(answers, "scope")[0].ravel()[0])
    both = np.array(FIRST + SECOND)
    known = {
        "2-norm": (5.0, float(np.sqrt((both**2).sum()))),
        "1-norm": (7.0, float(both.sum())),
        "max norm": (4.0, float(both.max())),
    }
    for name, values in known.items():
        if any(abs(used / value - 1) < 1e-3 for value in values):
            return KernelClaim(name, f"(3, 4) is divided by {used:.6g}", {"divisor": used})
    return undecided(f"(3, 4) is divided by {used:.6g}", {"divisor": used})


def added(answers: ProbeAnswers) -> list[np.longdouble]:
    """The constant added to the norm, at the two small norms."""
    return [divisor(answers, f"small-{e}") - np.longdouble(2.0**-e) for e in SMALL]


def eps_claim(answers: ProbeAnswers) -> KernelClaim:
    """The constant added to the norm in the denominator."""
    at = added(answers)
    evidence = {f"added to 2^-{e}": float(value) for e, value in zip(SMALL, at, strict=True)}
    size = float(abs(at[0]) + abs(at[1])) / 2
    blur = 16 * answers.precision.u * 2.0 ** -SMALL[0]
    if size < blur:
        return KernelClaim("none", f"the error of the norm is {size:.1e} at most", evidence)
    if abs(float(at[0] - at[1])) < max(blur, 1e-3 * size):
        return KernelClaim(f"{size:.4g}", "added to the norm", evidence)
    floors = [float(divisor(answers, f"small-{e}")) for e in SMALL]
    if abs(floors[0] / floors[1] - 1) < 1e-3:
        return KernelClaim(f"floor {floors[0]:.4g}", "a smaller norm is replaced by it", evidence)
    return undecided("the added value changes with the norm", evidence)


def eps_precision_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether the added constant is stored as float32."""
    value = sum(added(answers)) / 2
    deviation = float(value / np.longdouble(DOCUMENTED_EPS) - 1)
    narrow = narrowing(DOCUMENTED_EPS)
    evidence = {"relative deviation from 1e-6": deviation, "deviation of float32(1e-6)": narrow}
    if abs(deviation) > 1e-3:
        return undecided("the added value is not 1e-6", evidence)
    if 16 * answers.precision.u > abs(narrow):
        return undecided(f"{answers.dtype} does not resolve the error of float32(1e-6), {abs(narrow):.1e}", evidence)
    return KernelClaim(
        kept_in(deviation, narrow) or UNDECIDED, f"1e-6 has a relative error of {deviation:.2e}", evidence
    )


def clamp_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether gradients below max_norm are scaled."""
    c = float(coefficients(answers, "below")[0].ravel()[0])
    evidence = {"coefficient for a norm of a quarter of max_norm": c}
    if c == 1.0:
        return KernelClaim("left alone", "the coefficient is 1, bit for bit", evidence)
    if c > 1.5:
        return KernelClaim("scaled up: not clamped", f"the coefficient is {c:.6g}", evidence)
    return undecided(f"the coefficient is {c:.9g}", evidence)


def kept(answers: ProbeAnswers, probe: str, whole: float) -> float:
    """The share of the small squares that reached the sum, next to B squared."""
    norm = divisor(answers, probe) - added(answers)[0]
    return float((norm * norm - np.longdouble(big(answers.precision)) ** 2) / whole)


def order_claim(answers: ProbeAnswers) -> KernelClaim:
    """The order in which squares are summed, from how many ones B absorbs at the first, middle and last position."""
    shares = {position: kept(answers, f"order-{position}", TERMS - 1) for position in ("first", "middle", "last")}
    octaves = float((answers.probe("wide").tensors["grads.0"][1:].astype(np.longdouble) ** 2).sum())
    wide = kept(answers, "wide", octaves)
    evidence = {
        **{f"ones kept with B {position}": round(share, 4) for position, share in shares.items()},
        "kept of what a pairwise sum in any float loses": round(wide, 3),
    }
    name, reason = order_name(shares["first"], shares["middle"], shares["last"], wide, answers.dtype)
    return KernelClaim(name or UNDECIDED, reason, evidence)


def order_name(first: float, middle: float, last: float, wide: float, dtype: str) -> tuple[str, str]:
    """The order's name (empty if none fits) and the reason, from the shares of ones that are kept."""
    lost = 1 - first
    if not all(-0.01 < share < 1.01 for share in (first, middle, last)):
        return "", "the norm is not that of the squares"
    if first < 0.005 and abs(middle - 0.5) < 0.01 and last > 0.99:
        return "sequential", "B absorbs all ones after it"
    if first > 0.99 and abs(middle - 0.5) < 0.01 and last < 0.005:
        return "sequential from the last element", "B absorbs all ones before it"
    if PARTLY < lost < 0.6 and abs(1 / lost - round(1 / lost)) < 0.05 / lost:
        halved = abs((1 - middle) - lost / 2) < 0.1 * lost
        parts = f"{round(1 / lost)} lanes" if halved else f"blocks of {TERMS // round(1 / lost)}"
        return f"{parts}, each in sequence", f"B absorbs 1 of {1 / lost:.2f} parts"
    if min(first, middle, last) < 1 - PARTLY:
        return "", "what B absorbs fits no known order"
    if wide > 0.7:
        more = "float64 accumulation" if dtype == "float32" else f"accumulated in a wider precision than {dtype}"
        return more, "nothing is absorbed"
    return "pairwise or in small blocks", "B absorbs its nearest neighbours only"


def drift(answers: ProbeAnswers) -> list[tuple[float, float]]:
    """(number of elements, RMS relative error of total_norm) for the plot."""
    return [(float(n), rms([norm_error(answers, f"growth-{n}-{row}") for row in range(8)])) for n in GROWTH]


def norm_error(answers: ProbeAnswers, probe: str) -> np.longdouble:
    """Relative error of total_norm, for one gradient."""
    grad = answers.probe(probe).tensors["grads.0"].astype(np.longdouble)
    norm = answers.output(probe, "total_norm", ()).astype(np.longdouble)
    error: np.longdouble = norm[()] / np.sqrt((grad * grad).sum()) - 1
    return error


def theory(_: int, u: float, n: float) -> Mapping[str, float]:
    """Relative error of a 2-norm: (n/2 + 1)u at most in sequence (Higham 2002), and its expected size."""
    return {
        "bound, sequential": (n / 2 + 1) * u,
        "expected, sequential": (float(np.sqrt(n)) / 2 + 1) * u,
        "bound, pairwise": (float(np.log2(n)) / 2 + 1) * u,
    }


CLIPPING = Experiment(
    clip_probes,
    {
        "scope": scope_claim,
        "norm": norm_claim,
        "denominator eps": eps_claim,
        "eps precision": eps_precision_claim,
        "below max_norm": clamp_claim,
        "sum of squares": order_claim,
    },
    drift,
    theory,
    ("number of elements", "relative error of total_norm"),
)
