"""What is asked of clip_grad_norm: its scope, its norm, what is added to it, whether it clamps, how it sums.

An element that is a power of two gives the coefficient away without a rounding: clipped / element = max_norm/(N + e),
so N + e is known, whatever `total_norm` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.clip import ClipGradNormParams
from parity.cases.draw import generator
from parity.fingerprint.claims import Answers, Claim, Probe, UnusableError, attempt, undecided
from parity.fingerprint.precision import Precision

Float64 = NDArray[np.float64]

OP = "clip_grad_norm"
DOCUMENTED_EPS = 1e-6
SMALL = (20, 24)
"""The norms 2**-20 and 2**-24: about the size of what is added to them."""
FIRST, SECOND = (3.0, 4.0), (5.0, 12.0)
"""Two tensors with norms 5 and 13."""
TERMS = 2**16
NEARLY = 0.9
PARTLY = 0.003
"""A share of ones above this is lost for a reason; rounding alone hides a tenth of it."""
GROWTH = (16, 256, 4096, 65536)


def clip_probe(name: str, grads: list[Any], max_norm: float) -> Probe:
    """A probe with a list of gradients."""
    tensors = {f"grads.{i}": np.asarray(grad, np.float64) for i, grad in enumerate(grads)}
    return Probe(name, OP, ClipGradNormParams(max_norm), tensors)


def big(precision: Precision) -> float:
    """B: a power of two whose square swallows ones, 2**13 in float32 and 2**28 in float64."""
    return float(2.0 ** ((precision.digits + 3) // 2))


def clip_probes(precision: Precision) -> Iterator[Probe]:
    """All probes in one dtype."""
    for exponent in SMALL:
        yield clip_probe(f"small-{exponent}", [[2.0**-exponent]], 2.0 ** -(exponent + 10))
    yield clip_probe("below", [[0.25]], 1.0)
    yield clip_probe("scope", [FIRST, SECOND], 1.0)
    for name, place in (("first", 0), ("middle", TERMS // 2), ("last", TERMS - 1)):
        ones = np.ones(TERMS)
        ones[place] = big(precision)
        yield clip_probe(f"order-{name}", [ones], 1.0)
    octaves = np.floor(np.log2(np.maximum(np.arange(TERMS), 1)))
    rising = np.sqrt(NEARLY * big(precision) ** 2 * precision.u / 2.0**octaves)
    rising = rising.astype(precision.name).astype(np.float64)
    rising[0] = big(precision)
    yield clip_probe("wide", [rising], 1.0)
    for n in GROWTH:
        values = generator(0, "fingerprint", OP, precision.name, str(n)).uniform(0.5, 1.5, size=(8, n))
        values = values.astype(precision.name).astype(np.float64)
        for row, grad in enumerate(values):
            yield clip_probe(f"growth-{n}-{row}", [grad], 1.0)


def coefficients(answers: Answers, probe: str) -> list[NDArray[np.longdouble]]:
    """clipped / given, elementwise for each gradient."""
    given = {name: value for name, value in answers.probe(probe).tensors.items() if name.startswith("grads.")}
    return [answers.output(probe, name, np.shape(value)).astype(np.longdouble) / value for name, value in given.items()]


def divisor(answers: Answers, probe: str) -> np.longdouble:
    """N + e: max_norm over the coefficient, from the first element."""
    coefficient = coefficients(answers, probe)[0].ravel()[0]
    if not np.isfinite(coefficient) or coefficient <= 0:
        raise UnusableError(f"{probe}: the coefficient is {float(coefficient)}")
    found: np.longdouble = np.longdouble(answers.probe(probe).params.max_norm) / coefficient
    return found


def scope_claim(answers: Answers) -> Claim:
    """One norm over all gradients, or one for each."""
    aspect = "scope"
    first, second = (float(1 / c.ravel()[0]) for c in coefficients(answers, "scope"))
    evidence = {
        "norm that clips (3, 4)": first,
        "norm that clips (5, 12)": second,
        "both together": float(np.sqrt(194.0)),
    }
    if abs(first / second - 1) < 1e-3:
        return Claim(aspect, "global", f"both tensors are divided by {first:.6g}", evidence)
    if abs(first - 5) < 1e-2 and abs(second - 13) < 1e-2:
        return Claim(aspect, "per tensor", f"the tensors are divided by {first:.6g} and {second:.6g}", evidence)
    return undecided(aspect, f"the tensors are divided by {first:.6g} and {second:.6g}", **evidence)


def norm_claim(answers: Answers) -> Claim:
    """Which norm clips."""
    aspect = "norm"
    used = float(1 / coefficients(answers, "scope")[0].ravel()[0])
    both = np.array(FIRST + SECOND)
    known = {
        "2-norm": (5.0, float(np.sqrt((both**2).sum()))),
        "1-norm": (7.0, float(both.sum())),
        "max norm": (4.0, float(both.max())),
    }
    for name, values in known.items():
        if any(abs(used / value - 1) < 1e-3 for value in values):
            return Claim(aspect, name, f"(3, 4) is divided by {used:.6g}", {"divisor": used})
    return undecided(aspect, f"(3, 4) is divided by {used:.6g}", divisor=used)


def added(answers: Answers) -> list[np.longdouble]:
    """What is added to the norm, at the two small norms."""
    return [divisor(answers, f"small-{e}") - np.longdouble(2.0**-e) for e in SMALL]


def eps_claim(answers: Answers) -> Claim:
    """What is added to the norm in the denominator."""
    aspect = "denominator eps"
    at = added(answers)
    evidence = {f"added to 2^-{e}": float(value) for e, value in zip(SMALL, at, strict=True)}
    size = float(abs(at[0]) + abs(at[1])) / 2
    blur = 16 * answers.precision.u * 2.0 ** -SMALL[0]
    if size < blur:
        return Claim(aspect, "none", f"the norm is off by {size:.1e} at most", evidence)
    if abs(float(at[0] - at[1])) < max(blur, 1e-3 * size):
        return Claim(aspect, f"{size:.4g}", "added to the norm", evidence)
    floors = [float(divisor(answers, f"small-{e}")) for e in SMALL]
    if abs(floors[0] / floors[1] - 1) < 1e-3:
        return Claim(aspect, f"floor {floors[0]:.4g}", "the norm is replaced by it where it is smaller", evidence)
    return undecided(aspect, "what is added changes with the norm", **evidence)


def eps_precision_claim(answers: Answers) -> Claim:
    """Whether what is added is kept in float32."""
    aspect = "eps precision"
    value = sum(added(answers)) / 2
    deviation = float(value / np.longdouble(DOCUMENTED_EPS) - 1)
    narrow = float(np.longdouble(np.float32(DOCUMENTED_EPS)) / np.longdouble(DOCUMENTED_EPS) - 1)
    evidence = {"relative deviation from 1e-6": deviation, "deviation of float32(1e-6)": narrow}
    if abs(deviation) > 1e-3:
        return undecided(aspect, "what is added is not 1e-6", **evidence)
    if 16 * answers.precision.u > abs(narrow):
        return undecided(aspect, f"{answers.dtype} does not resolve the {abs(narrow):.1e} of float32(1e-6)", **evidence)
    for name, wanted in (("float32", narrow), ("float64", 0.0)):
        if abs(deviation - wanted) < 0.05 * abs(narrow):
            return Claim(aspect, name, f"1e-6 is off by {deviation:.2e}", evidence)
    return undecided(aspect, f"1e-6 is off by {deviation:.2e}", **evidence)


def clamp_claim(answers: Answers) -> Claim:
    """What happens to a norm below max_norm."""
    aspect = "below max_norm"
    c = float(coefficients(answers, "below")[0].ravel()[0])
    evidence = {"coefficient where the norm is a quarter of max_norm": c}
    if c == 1.0:
        return Claim(aspect, "left alone", "the coefficient is 1, bit for bit", evidence)
    if c > 1.5:
        return Claim(aspect, "scaled up: not clamped", f"the coefficient is {c:.6g}", evidence)
    return undecided(aspect, f"the coefficient is {c:.9g}", **evidence)


def kept(answers: Answers, probe: str, whole: float) -> float:
    """The share of the small squares that reached the sum, beside B squared."""
    norm = divisor(answers, probe) - added(answers)[0]
    return float((norm * norm - np.longdouble(big(answers.precision)) ** 2) / whole)


def order_claim(answers: Answers) -> Claim:
    """The order in which squares are summed, from how many ones B swallows at the first, middle and last place."""
    aspect = "sum of squares"
    shares = {place: kept(answers, f"order-{place}", TERMS - 1) for place in ("first", "middle", "last")}
    octaves = float((answers.probe("wide").tensors["grads.0"][1:].astype(np.longdouble) ** 2).sum())
    wide = kept(answers, "wide", octaves)
    evidence = {
        **{f"ones kept with B {place}": round(share, 4) for place, share in shares.items()},
        "kept of what any float sum in pairs loses": round(wide, 3),
    }
    name, reason = order_name(shares["first"], shares["middle"], shares["last"], wide, answers.dtype)
    return Claim(aspect, name, reason, evidence) if name else undecided(aspect, reason, **evidence)


def order_name(first: float, middle: float, last: float, wide: float, dtype: str) -> tuple[str, str]:
    """The order's name (empty where none fits) and why, from the shares of ones that are kept."""
    lost = 1 - first
    if not all(-0.01 < share < 1.01 for share in (first, middle, last)):
        return "", "the norm is not that of the squares"
    if first < 0.005 and abs(middle - 0.5) < 0.01 and last > 0.99:
        return "sequential", "B swallows all ones behind it"
    if first > 0.99 and abs(middle - 0.5) < 0.01 and last < 0.005:
        return "sequential from the last element", "B swallows all ones before it"
    if PARTLY < lost < 0.6 and abs(1 / lost - round(1 / lost)) < 0.05 / lost:
        halved = abs((1 - middle) - lost / 2) < 0.1 * lost
        parts = f"{round(1 / lost)} lanes" if halved else f"blocks of {TERMS // round(1 / lost)}"
        return f"{parts}, each in sequence", f"B swallows 1 of {1 / lost:.2f} parts"
    if min(first, middle, last) < 1 - PARTLY:
        return "", "what B swallows fits no order known here"
    if wide > 0.7:
        more = "float64 accumulation" if dtype == "float32" else f"accumulated with more digits than {dtype}"
        return more, "nothing is swallowed"
    return "pairwise or in small blocks", "B swallows its nearest neighbours only"


def drift(answers: Answers) -> list[tuple[float, float]]:
    """(number of elements, RMS relative error of total_norm) for the plot."""
    found = []
    for n in GROWTH:
        wrong = []
        for row in range(8):
            name = f"growth-{n}-{row}"
            grad = answers.probe(name).tensors["grads.0"].astype(np.longdouble)
            norm = answers.output(name, "total_norm", ()).astype(np.longdouble)
            wrong.append(norm / np.sqrt((grad * grad).sum()) - 1)
        found.append((float(n), float(np.sqrt(np.mean(np.square(wrong))))))
    return found


def theory(_: int, u: float, n: float) -> Mapping[str, float]:
    """Relative error of a 2-norm: (n/2 + 1)u at most in sequence (Higham 2002), and its expected size."""
    return {
        "bound, sequential": (n / 2 + 1) * u,
        "expected, sequential": (float(np.sqrt(n)) / 2 + 1) * u,
        "bound, pairwise": (float(np.log2(n)) / 2 + 1) * u,
    }


QUESTIONS: Mapping[str, Callable[[Answers], Claim]] = {
    "scope": scope_claim,
    "norm": norm_claim,
    "denominator eps": eps_claim,
    "eps precision": eps_precision_claim,
    "below max_norm": clamp_claim,
    "sum of squares": order_claim,
}
"""What is asked, by aspect."""


def clip_claims(answers: Answers) -> list[Claim]:
    """All claims about a gradient clip."""
    return [attempt(aspect, question, answers) for aspect, question in QUESTIONS.items()]
