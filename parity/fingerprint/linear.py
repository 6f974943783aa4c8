"""Aspects of y = x W^T + b: the order of its sums, its accumulator, operands, bias and products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import generator
from parity.cases.matmul import LinearParams
from parity.fingerprint.claims import Experiment, KernelClaim, KernelProbe, ProbeAnswers, undecided
from parity.fingerprint.precision import Precision, loglog_slope, rms
from parity.fingerprint.summation import name_sum, patterns

Float64 = NDArray[np.float64]

OP = "linear"
TERMS = 512
OUTPUTS = 16
TILE = 64
BITS = 52
NARROW = 64
"""in_features of the small probes."""
GROWTH = (16, 64, 256, 1024, 4096)
"""in_features at which the error is measured."""
STRIDES = (1, 2, 4, 8, 16, 32)
"""Distances at which two terms may meet in one lane."""
FORMATS: Mapping[int, str] = {7: "bfloat16", 10: "TF32 or float16", 23: "float32", 52: "float64"}
"""Bits after the leading one, and the format with that many."""


def linear_probe(name: str, x: Float64, weight: Float64, bias: Float64 | None = None) -> KernelProbe:
    """x (rows, in_features), weight (out_features, in_features), bias (out_features)."""
    given = np.zeros(weight.shape[0]) if bias is None else bias
    return KernelProbe(name, OP, LinearParams(), {"x": x, "weight": weight, "bias": given})


def linear_probes(precision: Precision) -> Iterator[KernelProbe]:
    """All probes in one dtype."""
    for size in ("huge", "immense"):
        rows = whole_tiles(patterns(TERMS, getattr(precision, size)))
        yield linear_probe(f"batch-{size}", rows, np.ones((OUTPUTS, TERMS)))
        yield linear_probe(f"single-{size}", np.ones((1, TERMS)), rows)
    yield linear_probe("batch-reversed", rows[::-1].copy(), np.ones((OUTPUTS, TERMS)))
    ladder = precision.rounded(one_hot(np.array([1 + 2.0**-k for k in range(1, BITS + 1)] + [2.0**40, 2.0**-40])))
    yield linear_probe("bits-x", ladder, np.ones((OUTPUTS, NARROW)))
    yield linear_probe("bits-weight", np.ones((OUTPUTS, NARROW)), ladder)
    yield bias_probe(precision)
    yield linear_probe("fused", whole_tiles(fused_rows(precision)), fused_weight(precision))
    for n in GROWTH:
        yield growth_probe(precision, n)


def whole_tiles(rows: Float64) -> Float64:
    """As many rows as fill tiles of 64: rows of a partial tile may be summed by another kernel."""
    return np.resize(rows, (len(rows) + -len(rows) % TILE, rows.shape[1]))


def one_hot(values: Float64) -> Float64:
    """(len(values), NARROW): each value in the first column of a row of zeros."""
    rows = np.zeros((len(values), NARROW))
    rows[:, 0] = values
    return rows


def bias_probe(precision: Precision) -> KernelProbe:
    """M first and -M second, in the middle or last, so that a bias of 1 survives only if it is added after both."""
    rows = np.zeros((4, TERMS))
    rows[:, 0] = precision.immense
    for row, column in zip(rows, (1, 32, TERMS // 2, TERMS - 1), strict=True):
        row[column] = -precision.immense
    return linear_probe("bias", rows, np.ones((OUTPUTS, TERMS)), np.ones(OUTPUTS))


def half_bits(precision: Precision) -> float:
    """2**-12 in float32: the square of 1 + it needs one bit more than the dtype has."""
    return float(2.0 ** -((precision.digits + 1) // 2))


def fused_rows(precision: Precision) -> Float64:
    """For each stride, the product (1 + h)^2 and the term -(1 + 2h) beside it, in both orders."""
    h = half_bits(precision)
    rows = np.zeros((2 * len(STRIDES), TERMS))
    for index, stride in enumerate(STRIDES):
        rows[2 * index, [0, stride]] = 1 + h, -(1 + 2 * h)
        rows[2 * index + 1, [0, stride]] = -(1 + 2 * h), 1 + h
    return rows


def fused_weight(precision: Precision) -> Float64:
    """The weight that makes the squares: 1 + h or 1.

    Output 0 multiplies column 0 by 1 + h; output k + 1 column STRIDES[k].
    """
    weight = np.ones((OUTPUTS, TERMS))
    for row, column in zip(weight, (0, *STRIDES), strict=False):
        row[column] = 1 + half_bits(precision)
    return weight


def growth_probe(precision: Precision, n: int) -> KernelProbe:
    """Positive random operands, so that the sum's condition number is 1."""
    rng = generator(0, "fingerprint", OP, precision.name, str(n))
    x, weight = (precision.rounded(rng.uniform(0.5, 1.5, size=(16, n))) for _ in range(2))
    return linear_probe(f"growth-{n}", x, weight)


def result(answers: ProbeAnswers, probe: str) -> NDArray[Any]:
    """y of a probe."""
    tensors = answers.probe(probe).tensors
    return answers.output(probe, "y", (tensors["x"].shape[0], tensors["weight"].shape[0]))


def batch_claim(answers: ProbeAnswers) -> KernelClaim:
    """The order of the sum for many rows of x."""
    huge, immense = (result(answers, f"batch-{size}")[: 2 * TERMS - 3, 0] for size in ("huge", "immense"))
    again = result(answers, "batch-reversed")[::-1][: 2 * TERMS - 3, 0]
    if not np.array_equal(immense, again):
        share = float((immense != again).mean())
        reason = "the order differs between rows of x"
        return undecided(reason, {"rows that change when the rows of x are reversed": share})
    return name_sum(TERMS, huge, immense, answers.dtype)


def single_claim(answers: ProbeAnswers) -> KernelClaim:
    """The order of the sum for one row of x."""
    huge, immense = (result(answers, f"single-{size}")[0, : 2 * TERMS - 3] for size in ("huge", "immense"))
    return name_sum(TERMS, huge, immense, answers.dtype)


def operands_claim(answers: ProbeAnswers) -> KernelClaim:
    """How many bits of each operand reach the product."""
    ladders = {"x": result(answers, "bits-x")[:, 0], "weight": result(answers, "bits-weight")[0]}
    kept = {name: bits_kept(values) for name, values in ladders.items()}
    reach = {name: [float(v) for v in values[-2:]] for name, values in ladders.items()}
    evidence = {
        "bits kept": kept,
        "2^40 and 2^-40 come out as": {n: [repr(v) for v in pair] for n, pair in reach.items()},
    }
    bits = min(kept.values())
    if kept["x"] != kept["weight"]:
        return KernelClaim(f"{kept['x']} bits of x, {kept['weight']} of weight", evidence=evidence)
    short = any(pair != [2.0**40, 2.0**-40] for pair in reach.values())
    if bits == 10:
        return KernelClaim("float16" if short else "TF32", "10 bits, 2^40 " + ("lost" if short else "kept"), evidence)
    return KernelClaim(FORMATS.get(bits, f"{bits} bits"), f"1 + 2^-{bits} is still distinct from 1", evidence)


def bits_kept(values: NDArray[Any]) -> int:
    """The largest k for which 1 + 2**-k is kept, with all smaller ones."""
    expected = 1 + 2.0 ** -np.arange(1, BITS + 1)
    same = values[:BITS].astype(np.float64) == expected
    return BITS if same.all() else int(np.argmin(same))


def bias_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether the bias is added before or after the products."""
    survived = [bool(v) for v in result(answers, "bias")[:, 0] == 1.0]
    lost = [bool(v) for v in result(answers, "bias")[:, 0] == 0.0]
    evidence = {"survives with M at 0 and -M at 1, 32, the middle, the end": survived}
    if all(survived):
        return KernelClaim("added last", "1 survives wherever M and -M meet", evidence)
    if all(lost):
        return KernelClaim("added first", "1 is absorbed wherever M and -M meet", evidence)
    if all(a or b for a, b in zip(survived, lost, strict=True)):
        return KernelClaim("added with a part of the sum", "1 survives for some positions of -M only", evidence)
    return undecided("the sums are neither 0 nor 1", evidence)


def fused_claim(answers: ProbeAnswers) -> KernelClaim:
    """Whether products are added unrounded."""
    h = half_bits(answers.precision)
    y = result(answers, "fused").astype(np.float64)
    first = y[0 : 2 * len(STRIDES) : 2, 0]
    second = np.array([y[2 * k + 1, 1 + k] for k in range(len(STRIDES))])
    seen = {"square first": [int(v == h * h) for v in first], "square second": [int(v == h * h) for v in second]}
    evidence = {"strides": list(STRIDES), **seen}
    n_first, n_second = sum(seen["square first"]), sum(seen["square second"])
    if n_first and n_second and n_first + n_second == 2 * len(STRIDES):
        return KernelClaim("exact in a wider accumulator", "both orders keep the last bit of a square", evidence)
    if n_first or n_second:
        return KernelClaim("fused (FMA)", "a square keeps its last bit in one order", evidence)
    if set(first.tolist()) | set(second.tolist()) <= {0.0}:
        return KernelClaim("rounded, or never fused with their neighbour", "no square keeps its last bit", evidence)
    return undecided("the differences are neither 0 nor the last bit of a square", evidence)


def growth_claim(answers: ProbeAnswers) -> KernelClaim:
    """How the error grows with K, on positive operands."""
    points = drift(answers)
    errors = {int(n): error / answers.precision.u for n, error in points}
    seen = [(n, error) for n, error in points if error > 0]
    if len(seen) < 3:
        return KernelClaim("none: correctly rounded", evidence={"RMS error in u": errors})
    slope = loglog_slope([n for n, _ in seen], [error for _, error in seen])
    kind = "about constant" if slope < 0.2 else "about K^0.5" if slope < 0.75 else "about K"
    return KernelClaim(
        f"{kind}; {errors[GROWTH[-1]]:.2g} u at K = {GROWTH[-1]}",
        evidence={"slope": round(slope, 3), "RMS error in u": errors},
    )


def drift(answers: ProbeAnswers) -> list[tuple[float, float]]:
    """(K, RMS relative error) for the plot."""
    points = []
    for n in GROWTH:
        tensors = answers.probe(f"growth-{n}").tensors
        exact = tensors["x"].astype(np.longdouble) @ tensors["weight"].astype(np.longdouble).T
        wrong = result(answers, f"growth-{n}").astype(np.longdouble) / exact - 1
        points.append((float(n), rms(wrong)))
    return points


def theory(_: int, u: float, n: float) -> Mapping[str, float]:
    """Relative error of a sum of n positive products: bounds (Higham 2002) and the expected size in sequence."""
    return {
        "bound, sequential": n * u,
        "expected, sequential": float(np.sqrt(n)) * u,
        "bound, pairwise": float(np.log2(n) + 1) * u,
    }


LINEAR = Experiment(
    linear_probes,
    {
        "operands": operands_claim,
        "sum over K, many rows": batch_claim,
        "sum over K, one row": single_claim,
        "products": fused_claim,
        "bias": bias_claim,
        "error over K": growth_claim,
    },
    drift,
    theory,
    ("in_features", "relative error of y, positive operands"),
)
