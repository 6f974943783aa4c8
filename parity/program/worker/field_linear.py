"""Residues of what PyTorch's calls give that move elements, add them, or are linear in two tensors."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, Dict, List, Tuple

import torch
from torch.utils._pytree import tree_map

from parity.program.worker import field, field_constants
from parity.program.worker.field_arithmetic import (
    Rule,
    filled_q,
    name_of,
    named,
    nan_in,
    number,
    result,
    values_of,
    with_common,
)
from parity.program.worker.field_primes import MODULI, P, Q
from parity.program.worker.field_tensor import FieldTensor, as_field, of_constants, part_of

MOST_MATRIX = 1 << 20
"""Elements of the matrix of an interpolation."""


def moved(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Elements in other positions; numbers among the arguments are constants."""
    parts = [
        func(*own, **others) for own, others in (with_constants(func, args, kwargs, n) for n in ("value", "q", "p"))
    ]
    return rewrapped(*parts)


def rewrapped(value: Any, q: Any, p: Any) -> Any:
    """Results of the same call on values and residues; views stay views."""
    if isinstance(value, (list, tuple)):
        return type(value)(rewrapped(*items) for items in zip(value, q, p))
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    return FieldTensor(value, q, p)


def with_constants(func: Any, args: Any, kwargs: Dict[str, Any], name: str) -> Tuple[Any, Dict[str, Any]]:
    """Arguments with the values or residues of tensors, and those of a number that is written."""
    own = named(func, *part_of((args, kwargs), name))
    for key in ("value", "fill_value"):
        if name != "value" and isinstance(own.get(key), (int, float)):
            own[key] = field_constants.of_constant(float(own[key]))[name == "p"]
    return [own.pop(a.name) for a in func._schema.arguments if a.name in own and not a.kwarg_only], own


def with_one_kind(args: Any, kwargs: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
    """Arguments whose tensors have a kind of residue in common, as far as any has."""
    tensors = [v for v in [*args, *kwargs.values()] if isinstance(v, FieldTensor)]
    if not (any(nan_in(x.q) for x in tensors) and any(nan_in(x.p) for x in tensors)):
        return args, kwargs
    filled: Tuple[Any, Dict[str, Any]] = tree_map(
        lambda v: FieldTensor(v.value, filled_q(v), v.p) if isinstance(v, FieldTensor) else v, (args, kwargs)
    )
    return filled


def summed(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A call that only adds elements."""
    own = with_one_kind(args, kwargs)
    parts = [(part_of(own, name), modulus) for name, modulus in MODULI.items()]
    return result(values_of(func, args, kwargs), *(torch.remainder(func(*a, **k), m) for (a, k), m in parts))


def mean(_: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A sum over the number of its elements."""
    total = torch.ops.aten.sum(*args, **kwargs)
    return total / (args[0].numel() // max(1, total.numel()))


def variance(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`var`, `std` and either with the mean: the sum of squared differences from it over `n - correction`."""
    given = named(func, args, kwargs)
    x, dims, keep = given["self"], given.get("dim"), given.get("keepdim", False)
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    correction = 1 if correction is None else correction
    dims = dims or list(range(x.dim()))
    center = x.mean(dims, keepdim=True)
    own = (x - center).square().sum(dims, keepdim=keep)
    own = own / max(0, x.numel() // max(1, own.numel()) - correction)
    own = own.sqrt() if name_of(func).startswith("std") else own
    return (own, center if keep else x.mean(dims)) if name_of(func).endswith("_mean") else own


def bilinear(i: int, j: int) -> Rule:
    """A call that is linear in its arguments `i` and `j`; one of them is cut in two, so that sums are exact."""

    def rule(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        pair, residues = with_common([args[i], args[j]]), []
        for name, modulus in MODULI.items():
            one, other = (getattr(x, name) for x in pair)
            high = torch.floor(other / field.HALF)
            pieces = []
            for piece in (high, other - high * field.HALF):
                own = list(part_of(args, name))
                own[i], own[j] = one, piece
                pieces.append(func(*own, **kwargs))
            residues.append(joined(pieces[0], pieces[1], modulus))
        return wrapped_all(values_of(func, args, kwargs), *residues)

    return rule


def joined(high: Any, low: Any, modulus: int) -> Any:
    """Results from those for the two pieces of an operand."""
    if isinstance(high, (tuple, list)):
        return [joined(*pieces, modulus) for pieces in zip(high, low)]
    if high is None:
        return None
    return torch.remainder(torch.remainder(high, modulus) * field.HALF + torch.remainder(low, modulus), modulus)


def wrapped_all(value: Any, q: Any, p: Any) -> Any:
    """Results, one or several."""
    if isinstance(value, (tuple, list)):
        return tuple(None if v is None else result(v, a, b) for v, a, b in zip(value, q, p))
    return result(value, q, p)


def product_and_sum(name: str) -> Rule:
    """`addmm` and its kind: beta c + alpha a @ b."""

    def rule(_: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        product = getattr(torch.ops.aten, name)(args[1], args[2])
        product = product if alpha == 1 else product * alpha
        return product if beta == 0 else product + (args[0] if beta == 1 else args[0] * beta)

    return rule


def convolution(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A convolution without its bias, then the bias."""
    x, weight, bias = args[:3]
    out = bilinear(0, 1)(func, [x, weight, None, *args[3:]], kwargs)
    return out if bias is None else out + bias.reshape([1, -1] + [1] * (out.dim() - 2))


def convolution_backward(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The gradients of a convolution, one at a time: each is linear in two tensors."""
    gradient, x, weight, _, *rest, mask = args
    own: List[Any] = [None, None, None]
    if mask[0]:
        own[0] = bilinear(0, 2)(func, [gradient, x, weight, None, *rest, [True, False, False]], kwargs)[0]
    if mask[1]:
        own[1] = bilinear(0, 1)(func, [gradient, x, weight, None, *rest, [False, True, False]], kwargs)[1]
    if mask[2]:
        own[2] = gradient.sum([d for d in range(gradient.dim()) if d != 1])
    return tuple(own)


def averaged(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Average pooling: sums of windows over their counts."""
    given = named(func, args, kwargs)
    return summed(func, [], {**given, "divisor_override": 1}) / window_counts(func, given)


def averaged_backward(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The gradient of average pooling."""
    given = named(func, args, kwargs)
    forward = getattr(torch.ops.aten, name_of(func).replace("_backward", ""))
    gradient = given.pop("grad_output") / window_counts(forward, given)
    ones = torch.ones_like(given["self"].value)
    return summed(func, [], {**given, "grad_output": gradient, "self": ones, "divisor_override": 1})


def window_counts(pooling: Any, given: Dict[str, Any]) -> Any:
    """By what pooling divides the sums of its windows: those of ones, over their averages."""
    own = {**given, "self": torch.ones_like(given["self"].value)}
    return of_constants(torch.round(pooling(**{**own, "divisor_override": 1}) / pooling(**own)))


def multiplied(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A product along an axis: of all elements, or of those so far for `cumprod`."""
    value, given = values_of(func, args, kwargs), named(func, args, kwargs)
    dim, parts = given.get("dim"), []
    for name, modulus in MODULI.items():
        part = getattr(given["self"], name)
        items = part.reshape(-1).unbind() if dim is None else part.unbind(dim)
        so_far = list(accumulate(items, lambda one, other: torch.remainder(one * other, modulus)))  # noqa: B023  # used at once
        whole = so_far[-1] if so_far else torch.ones(value.shape, dtype=torch.float64)
        parts.append((torch.stack(so_far, dim) if name_of(func) == "cumprod" else whole).reshape(value.shape))
    return result(value, *parts)


def interpolation_backward(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The gradient of interpolation: the transposed matrix of what this does to each element."""
    given = named(func, args, kwargs)
    gradient, sizes = given.pop("grad_output"), list(given.pop("input_size"))
    n = math.prod(sizes[2:])
    if n * math.prod(gradient.shape[2:]) > MOST_MATRIX:
        return NotImplemented
    unit = of_constants(torch.eye(n)).reshape(n, 1, *sizes[2:])
    matrix = getattr(torch.ops.aten, name_of(func).replace("_backward", ""))(unit, *given.values()).reshape(n, -1)
    return (gradient.reshape(-1, matrix.shape[1]) @ matrix.t()).reshape(sizes)


def inverse_matrix(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`linalg.inv`, by elimination in either field; with it, `info` as PyTorch gives it."""
    value, info = values_of(func, args, kwargs)
    parts = []
    for part, modulus in ((args[0].q, Q), (args[0].p, P)):
        own, other = without_zeros(part, modulus)
        unit = torch.eye(part.shape[-1], dtype=torch.float64).expand(part.shape)
        rows, _ = eliminated(torch.cat([own, unit], -1), modulus)
        parts.append(product(other.expand(part.shape), rows[..., part.shape[-1] :], modulus))
    return result(value, field.even(parts[0]), parts[1]), info


def determinant(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`linalg.det`; with it, the factors as PyTorch gives them."""
    values, parts = values_of(func, args, kwargs), []
    for part, modulus in ((args[0].q, Q), (args[0].p, P)):
        (_, own), (_, other) = (eliminated(rows, modulus) for rows in without_zeros(part, modulus))
        parts.append(torch.remainder(own * field.inverse(other, modulus), modulus))
    return (result(values[0], field.even(parts[0]), parts[1]), *map(as_field, values[1:]))


def without_zeros(a: Any, modulus: int) -> Tuple[Any, Any]:
    """Matrices times one that is drawn, and that one: no pivot of the product is 0."""
    n = a.shape[-1]
    other = field.mixed(torch.arange(n * n, dtype=torch.float64), n, modulus).reshape(n, n)
    return product(torch.remainder(a, modulus), other, modulus), other


def product(a: Any, b: Any, modulus: int) -> Any:
    """The product of matrices."""
    high = torch.floor(b / field.HALF)
    return joined(a @ high, a @ (b - high * field.HALF), modulus)


def eliminated(rows: Any, modulus: int) -> Tuple[Any, Any]:
    """Rows of which the first columns are made the unit matrix, and the determinant of these columns."""
    n = rows.shape[-2]
    pivots = torch.ones(rows.shape[:-2], dtype=torch.float64)
    for i in range(n):
        pivot = rows[..., i, i]
        pivots = torch.remainder(pivots * pivot, modulus)
        row = torch.remainder(rows[..., i, :] * field.inverse(pivot, modulus)[..., None], modulus)
        rest = torch.remainder(rows - torch.remainder(rows[..., i : i + 1] * row[..., None, :], modulus), modulus)
        rows = torch.cat([rest[..., :i, :], row[..., None, :], rest[..., i + 1 :, :]], -2)
    return rows, pivots


def indexed(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`index_put`: elements written or added."""
    given = named(func, args, kwargs)
    own = {**given, "values": number(given["values"])}
    return summed(func, [], own) if given.get("accumulate") else moved(func, [], own)


def scattered(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`scatter`, also with a reduction."""
    reduction = named(func, args, kwargs).get("reduce")
    if reduction is None:
        return moved(func, args, kwargs)
    return summed(func, args, kwargs) if reduction == "add" else NotImplemented


def scatter_reduced(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`scatter_reduce`: a sum; an extreme goes by values."""
    given = named(func, args, kwargs)
    if given["reduce"] == "sum":
        return summed(func, args, kwargs)
    if given["reduce"] not in ("amax", "amin"):
        return NotImplemented
    value, x, source = values_of(func, args, kwargs), given["self"], given["src"]
    dim, index = given["dim"], given["index"]
    hits = torch.gather(value, dim, index) == source.value.narrow(dim, 0, index.shape[dim])
    parts = []
    for own, theirs in ((x.q, source.q), (x.p, source.p)):
        part = torch.where(value == x.value, own, math.nan)
        for i in range(index.shape[dim]):  # One position after the other: of equal ones, the last.
            at, hit, new = (tensor.narrow(dim, i, 1) for tensor in (index, hits, theirs))
            part = torch.scatter(part, dim, at, torch.where(hit, new, torch.gather(part, dim, at)))
        parts.append(part)
    return result(value, *parts)
