"""Residues (`field.py`) of the numbers in code: each stands for the fraction, root, power of e, logarithm or multiple
of pi that it is rounded from."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import torch

from parity.program.worker.field import filled_p, filled_q, log, root
from parity.program.worker.field_primes import ORDER, ROOT, P, Q

Pair = Tuple[float, float]
"""The residues `q` and `p` of a number; NaN where there is none."""
MOST_DENOMINATOR, MOST_SIMPLE = 100_000, 1000
"""A constant is a fraction with no larger denominator, or the root, logarithm or multiple of pi of one."""
NEAR = 4e-16
"""How near a constant is to what it stands for, in relation to its size: two roundings of float64."""
MOST_ROUND, ROUNDED = 10_000, 2.3e-16
"""A difference from 1 is rounded as 1 is; a fraction with no larger denominator is meant then."""
SEVERAL = 8
"""So many times for a fraction with no denominator above MOST_SIMPLE, as 0.9 * 12 - 10."""
DECIMALS, FEW_DECIMALS = 12, 9
"""A number that is written in no more digits is meant as a decimal fraction; or its square."""
LOG_FACTORS = (
    *map(Fraction, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)),
    *(Fraction(1, n) for n in range(2, 65)),
)
"""A constant may be a logarithm divided by one of them, as log(10000) / d in positions, or n logarithms."""
MOST_EXPONENT = 10.0
"""Larger exponents lose the digits that tell what is meant."""
PI = (31415928, 53589793)
"""Residues for pi, which satisfies no equation that matters here; they are squares."""
READ: Dict[float, Pair] = {}
"""The residues of numbers that code has read from tensors, by their values: it may compute with them further."""


def of_constant(number: float) -> Pair:
    """The residues of a number in code; a missing one is a hash of the other."""
    if number in READ:
        return READ[number]
    q, p = _of_constant(number)
    return q if q == q else hash_of(p, filled_q), p if p == p else hash_of(q, filled_p)


@lru_cache(maxsize=1 << 16)
def _of_constant(number: float) -> Pair:
    if not math.isfinite(number):
        return math.nan, math.nan
    for meaning in (as_fraction, as_root, as_multiple_of_pi, as_root_of_pi, as_power_of_e, as_logarithm):
        pair: Optional[Pair] = meaning(number)
        if pair is not None:
            return pair
    return of_fraction(Fraction(number))


def hash_of(residue: float, fill: Callable[[Any], Any]) -> float:
    """What stands for a missing residue."""
    return float(fill(torch_number(residue)))


def as_fraction(number: float) -> Optional[Pair]:
    """0.3333333333333333, 1e-5."""
    fraction = simple_fraction(number, MOST_DENOMINATOR)
    fraction = decimal_fraction(number) if fraction is None else fraction
    return None if fraction is None else of_fraction(fraction)


def as_root(number: float) -> Optional[Pair]:
    """The root of a fraction, as 1 / sqrt(d)."""
    squared = simple_fraction(number * number, MOST_DENOMINATOR) or decimal_fraction(number * number, FEW_DECIMALS)
    return root_of(of_fraction(squared), sign_of(number)) if squared else None


def root_of(pair: Pair, sign: int) -> Pair:
    """The residues of a root."""
    q, p = (root(torch_number(part), modulus) for part, modulus in zip(pair, (ORDER, P)))
    return float(sign * q % ORDER), float(sign * p % P)


def as_multiple_of_pi(number: float) -> Optional[Pair]:
    """2 pi, pi / 4."""
    turned = simple_fraction(number / math.pi, MOST_SIMPLE)
    if turned is None:
        return None
    q, p = of_fraction(turned)
    return q * PI[0] % ORDER, p * PI[1] % P


def as_root_of_pi(number: float) -> Optional[Pair]:
    """sqrt(2 / pi), sqrt(2 pi)."""
    for unit, (q, p) in ((math.pi, PI), (1 / math.pi, (pow(PI[0], -1, Q), pow(PI[1], -1, P)))):
        squared = simple_fraction(number * number / unit, MOST_SIMPLE)
        if squared is not None:
            own = of_fraction(squared)
            return root_of((own[0] * q % ORDER, own[1] * p % P), sign_of(number))
    return None


def as_power_of_e(number: float) -> Optional[Pair]:
    """exp(-r t) for simple r t."""
    exponent = simple_fraction(math.log(abs(number)), MOST_SIMPLE)
    if exponent is None or abs(float(exponent)) > 2 * MOST_EXPONENT:
        return None
    return math.nan, float(sign_of(number) * pow(P - ROOT, int(of_fraction(exponent)[0]), P) % P)


def as_logarithm(number: float) -> Optional[Pair]:
    """log(2), log(10000) / 64, 3 log(2 pi)."""
    for factor in LOG_FACTORS:
        exponent = abs(number) * float(factor)
        for unit, pi in ((1.0, 1), (math.pi, PI[1])) if exponent < MOST_EXPONENT else ():
            raised = simple_fraction(math.exp(exponent) / unit, MOST_SIMPLE, 16.0)
            if raised is not None:
                own = sign_of(number) * log_of(of_fraction(raised)[1] * pi % P) % ORDER
                return (own if factor == 1 else own * of_fraction(1 / factor)[0] % ORDER), math.nan
    return None


def log_of(residue: float) -> float:
    """The residue of a logarithm."""
    return float(log(torch_number(residue).reshape(1))[0])


def torch_number(residue: float) -> Any:
    """A residue as a tensor."""
    return torch.tensor(residue, dtype=torch.float64)


def sign_of(number: float) -> int:
    """-1 or 1."""
    return -1 if number < 0 else 1


def of_fraction(fraction: Fraction) -> Pair:
    """The residues of a fraction; NaN where the denominator has none."""
    if fraction.denominator == 1:
        return float(fraction.numerator % ORDER), float(fraction.numerator % P)
    residues = []
    for modulus in (Q, P):
        under = fraction.denominator % modulus
        residues.append(float(fraction.numerator * pow(under, -1, modulus) % modulus) if under else math.nan)
    return residues[0] + Q * (residues[0] % 2), residues[1]


def simple_fraction(number: float, most: int, times: float = 1.0) -> Optional[Fraction]:
    """The fraction that a number is rounded from, if both of its terms are small; 0.01 for 1 - 0.99, too."""
    if not 1e-9 < abs(number) < 1e15:  # NaN, too
        return Fraction(0) if number == 0 else None
    if number == int(number):
        return Fraction(int(number))
    tiers = (
        (most, times * NEAR * abs(number)),
        (min(most, MOST_ROUND), ROUNDED * (abs(number) > 1e-5)),
        (min(most, MOST_SIMPLE), SEVERAL * ROUNDED * (abs(number) > 1e-3)),
    )
    for limit, near in tiers:
        fraction = Fraction(number).limit_denominator(limit)
        if fraction and abs(fraction.numerator) <= most * most and abs(float(fraction) - number) <= near:
            return fraction
    return None


def decimal_fraction(number: float, digits: int = DECIMALS) -> Optional[Fraction]:
    """The decimal fraction of few digits that a number is written as, also one that was rounded to float32."""
    if not abs(number) < 1e38:
        return None
    single = np.float32(number)
    near = max(2 * NEAR * abs(number), ROUNDED if 1e-5 < abs(number) < 1 else 0.0)
    texts = [str(single)] if float(single) == number else []
    texts += [text for text in (f"{number:.{digits}g}",) if abs(float(text) - number) <= near]
    return next((Fraction(text) for text in texts if digits_of(text) <= digits), None)


def digits_of(text: str) -> int:
    """How many digits a decimal number is written in."""
    return len(text.partition("e")[0].strip("-0.").replace(".", ""))
