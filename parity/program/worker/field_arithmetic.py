"""Residues of what PyTorch's elementwise calls give: helpers of all rules, sums, products, powers, functions."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Tuple

import torch

from parity.program.worker import field, field_constants
from parity.program.worker.field_primes import MODULI, ORDER, ROOT_TAKEN, P
from parity.program.worker.field_tensor import NOTES, FieldTensor, of_constants, part_of

Rule = Callable[[Any, Any, Dict[str, Any]], Any]
"""A rule takes a call of the dispatcher and its arguments, and returns the result, or NotImplemented where a
decomposition will do."""
Pair = Tuple[Any, Any]
"""The residues `q` and `p` of a result."""
UNDERFLOW = -740.0
"""exp of less is 0 in float64."""
MOST_POWER = 32
"""Larger exponents are no products of so many factors."""
ERF, SIN, COS = 101, 102, 103
"""Keys of hashes that stand for functions of which no field knows anything."""


def values_of(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """What PyTorch gives in float64."""
    args, kwargs = part_of((args, kwargs), "value")
    return func(*args, **kwargs)


def name_of(func: Any) -> str:
    """The name of a call without its overload."""
    return str(func._schema.name.partition("::")[2])


def named(func: Any, args: Any, kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """All arguments of a call by name."""
    return {**dict(zip([argument.name for argument in func._schema.arguments], args)), **kwargs}


def result(value: Any, q: Any, p: Any) -> Any:
    """A result; residues get the strides of its value."""
    if value.storage_offset():
        value = value.clone()
    return FieldTensor(value, *(part if is_laid_out(part, value) else strided(part, value) for part in (q, p)))


def is_laid_out(part: Any, value: Any) -> bool:
    """Whether a residue has the strides of a value."""
    return bool(part.shape == value.shape and part.stride() == value.stride() and not part.storage_offset())


def strided(part: Any, value: Any) -> Any:
    """A residue with the strides of a value."""
    return torch.empty_strided(value.shape, value.stride(), dtype=torch.float64).copy_(part.expand(value.shape))


def number(value: Any) -> Any:
    """An operand as tensors: a number of code, or a tensor of whole numbers, as a constant."""
    if isinstance(value, FieldTensor):
        return value
    if isinstance(value, torch.Tensor):
        return of_constants(value)
    if isinstance(value, complex):
        raise NotImplementedError("complex numbers")
    q, p = field_constants.of_constant(float(value))
    return FieldTensor(*(torch.tensor(part, dtype=torch.float64) for part in (float(value), q, p)))


def nan_in(part: Any) -> bool:
    """Whether a residue is not known."""
    return bool(part.isnan().any())


def filled_p(x: Any) -> Any:
    """The residues modulo P; where there are none, a hash of those modulo Q."""
    return torch.where(x.p.isnan(), field.filled_p(x.q), x.p) if nan_in(x.p) else x.p


def filled_q(x: Any) -> Any:
    """The residues that `exp` reads; where there are none, a hash of those modulo P."""
    return torch.where(x.q.isnan(), field.filled_q(x.p), x.q) if nan_in(x.q) else x.q


def only_p(p: Any) -> Pair:
    """The residues of a result that is known modulo P."""
    return (field.filled_q(p) if field.NOW.eager else torch.full_like(p, math.nan)), p


def only_q(q: Any) -> Pair:
    """The residues of a logarithm."""
    return q, (field.filled_p(q) if field.NOW.eager else torch.full_like(q, math.nan))


def with_common(operands: Any) -> Any:
    """Operands of which at least one kind of residue is known in all: what only has `p` gets the `q` that its `exp`
    would read."""
    if any(nan_in(x.q) for x in operands) and any(nan_in(x.p) for x in operands):
        return [FieldTensor(x.value, filled_q(x), x.p) for x in operands]
    return operands


def per_modulus(compute: Callable[..., Any], *operands: Any) -> Pair:
    """The residues of a result, from the modulus and those of the operands."""
    q, p = (
        torch.remainder(compute(modulus, *[getattr(x, name) for x in with_common(operands)]), modulus)
        for name, modulus in MODULI.items()
    )
    return q, p


def combined(compute: Callable[..., Any], *operands: Any) -> Pair:
    """The residues of a result that is computed alike for either modulus."""
    return per_modulus(lambda _, *parts: compute(*parts), *operands)


def pure(compute: Callable[..., Pair], n: int = 1) -> Rule:
    """A rule for a call whose first `n` arguments are operands."""

    def rule(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        operands = [number(value) for value in args[:n]]
        return result(values_of(func, args, kwargs), *compute(*operands))

    return rule


def added(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`a + alpha b`, `a - alpha b`; `b - alpha a` for `rsub`."""
    a, b = number(args[0]), number(args[1])
    alpha = args[2] if len(args) > 2 else kwargs.get("alpha", 1)
    if name_of(func) == "rsub":
        a, b = b, a
    if alpha != 1:
        b = FieldTensor(b.value, *times(b, number(alpha)))
    pair = combined(torch.add if name_of(func) == "add" else torch.sub, a, b)
    return result(values_of(func, args, kwargs), *pair)


def times(a: Any, b: Any) -> Pair:
    """The residues of a product; those of 0 are 0, whatever is not known."""
    q, p = combined(torch.mul, a, b)
    zero = is_zero(a) | is_zero(b)
    return (torch.where(zero, 0.0, q), torch.where(zero, 0.0, p)) if bool(zero.any()) else (q, p)


def is_zero(x: Any) -> Any:
    """Where a number is exactly 0."""
    return (x.value == 0) & ((x.p == 0) | (x.q == 0))


def over(a: Any, b: Any) -> Pair:
    """The residues of a quotient."""
    return per_modulus(lambda m, x, y: x * field.inverse(y, m), a, b)


def divided(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A quotient, also rounded."""
    if kwargs.get("rounding_mode") is not None:
        return of_constants(values_of(func, args, kwargs))
    return result(values_of(func, args, kwargs), *over(number(args[0]), number(args[1])))


def remainder(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`x - n y`, whose whole number n goes by values."""
    a, b = number(args[0]), number(args[1])
    value = values_of(func, args, kwargs)
    n = of_constants(torch.round((a.value - value) / b.value))
    return result(value, *per_modulus(lambda m, x, y, c: x - torch.remainder(c * y, m), a, b, n))


def raised(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A power: by products for a whole number, by roots for halves, else by `exp` and `log`."""
    value, base, exponent = values_of(func, args, kwargs), number(args[0]), number(args[1])
    twice = 2 * exponent.value.flatten()[:1]
    is_one = isinstance(args[0], torch.Tensor) and bool((2 * exponent.value == twice).all()) and twice.numel()
    if is_one and float(twice) == int(twice) and abs(float(twice)) < 2 * MOST_POWER:
        n = int(twice)
        return result(value, *(half_power(base, n) if n % 2 else whole_power(base, n // 2)))
    q, _ = times(FieldTensor(base.value, *logarithm(base)), FieldTensor(exponent.value, filled_q(exponent), exponent.p))
    return result(value, *only_p(field.exp(q)))


def whole_power(x: Any, exponent: int) -> Pair:
    """The residues of a power with a whole exponent."""

    def compute(modulus: int, part: Any) -> Any:
        own = field.power(part, abs(exponent), modulus)
        return own if exponent >= 0 else field.inverse(own, modulus)

    return per_modulus(compute, x)


def half_power(x: Any, twice: int) -> Pair:
    """The residues of the root's power; a sign is lost where the field has no root, or the root itself."""
    NOTES.add(ROOT_TAKEN)

    def compute(modulus: int, part: Any) -> Any:
        own = field.root(part, modulus)
        if field.NOW.strict:
            own = torch.where(field.is_square(part, modulus), own, math.nan)
        own = field.power(own, abs(twice), modulus)
        return own if twice > 0 else field.inverse(own, modulus)

    return per_modulus(compute, x)


def exponential(x: Any) -> Pair:
    """The residues of exp: modulo P only."""
    p = field.exp(filled_q(x))
    return only_p(torch.where(x.value < UNDERFLOW, 0.0, p))


def logarithm(x: Any) -> Pair:
    """The residues of log: modulo Q only."""
    return only_q(field.log(filled_p(x)))


def scaled(compute: Callable[[Any], Pair], before: float = 1.0, after: float = 1.0) -> Callable[[Any], Pair]:
    """`compute(before x) / after`, as for exp2 and log2."""

    def own(x: Any) -> Pair:
        inner = x if before == 1 else FieldTensor(x.value * before, *times(x, number(before)))
        pair = compute(inner)
        return pair if after == 1 else over(FieldTensor(x.value, *pair), number(after))

    return own


def shifted(compute: Callable[[Any], Pair], before: int = 0, after: int = 0) -> Callable[[Any], Pair]:
    """`compute(x + before) + after`, as for log1p and expm1."""

    def own(x: Any) -> Pair:
        inner = FieldTensor(x.value + before, *combined(lambda part: part + before, x))
        return combined(lambda part: part + after, FieldTensor(x.value, *compute(inner)))

    return own


def sigmoid(x: Any) -> Pair:
    """1 / (1 + exp(-x))."""
    p = field.exp(torch.remainder(-filled_q(x), ORDER))
    own = field.inverse(torch.remainder(1 + p, P), P)
    return only_p(torch.where(x.value < UNDERFLOW, 0.0, own))


def tanh(x: Any) -> Pair:
    """1 - 2 / (exp(2 x) + 1)."""
    squared = field.exp(torch.remainder(2 * filled_q(x), ORDER))
    p = torch.remainder(1 - 2 * field.inverse(torch.remainder(squared + 1, P), P), P)
    return only_p(p)


def hashed(key: int, sign: int = 0) -> Callable[[Any], Pair]:
    """A function of which nothing is known but that it is even (`sign` 1) or odd (-1)."""

    def own(x: Any) -> Pair:
        flip = (x.value < 0) & (sign != 0)
        p = filled_p(x)
        out = field.mixed(torch.where(flip, torch.remainder(-p, P), p), key, P)
        out = torch.where(flip & (sign < 0), torch.remainder(-out, P), out)
        return only_p(out)

    return own


def complement(compute: Callable[[Any], Pair]) -> Callable[[Any], Pair]:
    """1 - f(x), as for erfc."""

    def own(x: Any) -> Pair:
        q, p = compute(x)
        return torch.remainder(1 - q, ORDER), torch.remainder(1 - p, P)

    return own


def tangent(x: Any) -> Pair:
    """sin / cos."""
    sine, cosine = hashed(SIN, -1)(x), hashed(COS, 1)(x)
    return over(FieldTensor(x.value, *sine), FieldTensor(x.value, *cosine))


def hyperbolic(sign: int) -> Callable[[Any], Pair]:
    """(exp(x) + sign exp(-x)) / 2."""

    def own(x: Any) -> Pair:
        q = filled_q(x)
        both = field.exp(q) + sign * field.exp(torch.remainder(-q, ORDER))
        p = torch.remainder(torch.remainder(both, P) * ((P + 1) // 2), P)
        return only_p(p)

    return own
