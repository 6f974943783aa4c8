"""Arithmetic in two finite fields, on tensors of float64 whose elements are whole numbers.

An element stands for a real number by its residues `q` modulo Q and `p` modulo P = 2 Q + 1, both prime: sums, products
and quotients are exact, so two formulas that are equal for all numbers have equal residues. `exp` maps `q` to a power
modulo P, so exp(a + b) = exp(a) exp(b), and `log` is its inverse. NaN stands for a residue that is not known.
Two rational functions of degree d that differ agree at a random point with probability at most d / Q
(Schwartz 1980, doi:10.1145/322217.322225).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Tuple

import torch

from parity.program.worker.field_primes import ORDER, ROOT, P, Q

HALF = 1 << 13
"""Residues are cut into two numbers below `2 * HALF`, so that sums of 8,192 products are exact in float64."""
BABY = 1 << 20
"""Powers of ROOT that are kept, to find logarithms."""
CHUNK = 1 << 12
"""Numbers whose logarithms are found at a time."""


@dataclass
class Interpretation:
    """How functions that no field has are read. `eager`: what only has one kind of residue gets the other one as a
    hash at once, else where it is needed. `strict`: a number that is no square has no root, instead of one whose square
    is its opposite. `key`: which numbers are drawn for inputs."""

    eager: bool = True
    strict: bool = False
    key: int = 0


NOW = Interpretation()
"""The present one."""


def inverse(a: Any, modulus: int) -> Any:
    """1 / a; NaN for 0."""
    if modulus == P:
        return torch.where(a == 0, math.nan, power(a, P - 2, P))
    part = torch.remainder(a, Q)
    return torch.where(part == 0, math.nan, torch.where(a == 1, 1.0, even(power(part, Q - 2, Q))))


def even(a: Any) -> Any:
    """The even number of those that are equal modulo Q."""
    return torch.where(a % 2 == 1, a + Q, a)


def power(a: Any, exponent: int, modulus: int) -> Any:
    """a to a whole number, at least 0."""
    result = torch.where(a.isnan(), a, 1.0)
    while exponent:
        if exponent & 1:
            result = torch.remainder(result * a, modulus)
        a, exponent = torch.remainder(a * a, modulus), exponent >> 1
    return result


def root(a: Any, modulus: int) -> Any:
    """A square root that is multiplicative: root(a b) = root(a) root(b); its square is a or -a."""
    if modulus == P:
        return power(a, (P + 1) // 4, P)
    return even(power(a % Q, (Q + 1) // 4, Q))


def is_square(a: Any, modulus: int) -> Any:
    """Whether an element is 0 or a square modulo the prime."""
    prime = P if modulus == P else Q
    return power(a % prime, prime // 2, prime) <= 1


def exp(a: Any) -> Any:
    """The residue modulo P of exp of what has the residue `a`: the power a of -ROOT."""
    result, base, bits = torch.where(a.isnan(), a, 1.0), P - ROOT, torch.nan_to_num(a).long()
    while bool((bits > 0).any()):
        result = torch.where(bits % 2 == 1, torch.remainder(result * base, P), result)
        bits, base = bits // 2, base * base % P
    return result


@lru_cache(maxsize=1)
def _tables() -> Tuple[Any, Any, Any]:
    """The first powers of ROOT, sorted, their exponents, and the factors of giant steps."""
    powers = torch.ones(1, dtype=torch.float64)
    while len(powers) < BABY:
        powers = torch.cat([powers, torch.remainder(powers * pow(ROOT, len(powers), P), P)])
    back = pow(pow(ROOT, BABY, P), P - 2, P)
    giants = torch.tensor([pow(back, step, P) for step in range(Q // BABY + 1)], dtype=torch.float64)
    return (*torch.sort(powers), giants)


def log(a: Any) -> Any:
    """The inverse of `exp`; NaN for 0. By baby steps and giant steps (Shanks 1971)."""
    known = ~(a.isnan() | (a == 0))
    flat, back = torch.unique(a[known], return_inverse=True)
    logarithms = torch.cat([log_of_some(part) for part in flat.split(CHUNK)]) if len(flat) else flat
    result = torch.full_like(a, math.nan)
    result[known] = logarithms[back]
    return result


def log_of_some(a: Any) -> Any:
    """The logarithms of some numbers that are not 0."""
    powers, exponents, giants = _tables()
    square = is_square(a, P)
    steps = torch.remainder(torch.where(square, a, P - a)[:, None] * giants, P)
    at = torch.searchsorted(powers, steps).clamp_(max=BABY - 1)
    row, step = (powers[at] == steps).nonzero(as_tuple=True)
    logarithms = torch.empty_like(a)
    logarithms[row] = step.double() * BABY + exponents[at[row, step]].double()
    parity = logarithms % 2
    return torch.where(parity == torch.where(square, 0.0, 1.0), logarithms, torch.remainder(logarithms + Q, ORDER))


def mixed(a: Any, key: int, modulus: int) -> Any:
    """A hash of each element, another one for each key; NaN stays NaN."""
    known = ~a.isnan()
    bits = torch.nan_to_num(a).long() + (key * 0x9E3779B97F4A7C15 >> 20) % (1 << 40)
    for factor in (-4658895280553007687, -7723592293110705685):  # The constants of splitmix64.
        bits = (bits ^ (bits >> 30)) * factor
    return torch.where(known, torch.remainder((bits ^ (bits >> 31)) & ((1 << 52) - 1), modulus).double(), math.nan)


def filled_p(q: Any) -> Any:
    """What stands for the residues modulo P where only those that `exp` reads are known."""
    return torch.where(q == 0, q, mixed(torch.remainder(q, Q), 1, P))


def filled_q(p: Any) -> Any:
    """What `exp` reads where only the residues modulo P are known."""
    return torch.where(p == 0, p, 2 * mixed(p, 2, Q))


def of_values(values: Any, key: int) -> Tuple[Any, Any]:
    """Residues that are drawn for numbers: equal ones for equal numbers, opposite ones for opposite numbers."""
    bits = values.abs().contiguous().view(torch.int64)
    folded = ((bits ^ (bits >> 26)) & ((1 << 52) - 1)).double()
    parts = []
    for number, modulus in enumerate((Q, P)):
        part = mixed(folded, 2 * key + number + 1, modulus)
        part = 2 * part if modulus == Q else part
        part = torch.where(values < 0, torch.remainder(-part, ORDER if modulus == Q else P), part)
        part = torch.where(values == 0, 0.0, part)
        parts.append(torch.where(values.isfinite(), part, math.nan))
    return parts[0], parts[1]
