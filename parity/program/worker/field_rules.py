"""What PyTorch's calls do to residues (`field_tensor.py`): a rule per call of the dispatcher.

Values are those of PyTorch in float64. What depends on order, as a maximum, goes by them.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Mapping

import torch
from torch._decomp import decomposition_table

from parity.program.worker import field_constants
from parity.program.worker.field_arithmetic import (
    COS,
    ERF,
    SIN,
    Pair,
    Rule,
    added,
    combined,
    complement,
    divided,
    exponential,
    half_power,
    hashed,
    hyperbolic,
    logarithm,
    name_of,
    named,
    number,
    pure,
    raised,
    remainder,
    result,
    scaled,
    shifted,
    sigmoid,
    tangent,
    tanh,
    times,
    values_of,
    whole_power,
)
from parity.program.worker.field_linear import (
    averaged,
    averaged_backward,
    bilinear,
    convolution,
    convolution_backward,
    determinant,
    indexed,
    interpolation_backward,
    inverse_matrix,
    mean,
    moved,
    multiplied,
    product_and_sum,
    scatter_reduced,
    scattered,
    summed,
    variance,
)
from parity.program.worker.field_primes import NUMBER_READ
from parity.program.worker.field_tensor import NOTES, as_field, of_constants

DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = decomposition_table
"""PyTorch's own, by call."""


def selected(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Of each element one of two operands, as a maximum."""
    a, b = number(args[0]), number(args[1])
    value = values_of(func, args, kwargs)
    first = value == a.value
    return result(value, torch.where(first, a.q, b.q), torch.where(first, a.p, b.p))


def clamped(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A number between limits, which may be tensors or None."""
    value, given = values_of(func, args, kwargs), named(func, args, kwargs)
    x = given["self"]
    q, p = x.q, x.p
    for limit in (number(given[name]) for name in ("min", "max") if given.get(name) is not None):
        at = (value == limit.value) & (value != x.value)
        q, p = torch.where(at, limit.q, q), torch.where(at, limit.p, p)
    return result(value, q, p)


def absolute(x: Any) -> Pair:
    """The residues of |x|."""
    return combined(lambda part: torch.where(x.value < 0, -part, part), x)


def constant(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A call whose results are whole numbers by values, as `floor` and `sign`, or no floating-point numbers."""
    out = values_of(func, args, kwargs)
    return tuple(map(as_field, out)) if isinstance(out, tuple) else as_field(out)


def empty(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A tensor that has no values yet: zeros."""
    return as_field(values_of(func, args, kwargs).zero_())


def read(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A number that code reads from a tensor: what it computes with it has no residues of its own."""
    value = values_of(func, args, kwargs)
    if isinstance(value, float) and math.isfinite(value) and value != int(value):
        NOTES.add(NUMBER_READ)
        field_constants.READ[value] = float(args[0].q), float(args[0].p)
    return value


def finite_of(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`nan_to_num`: what is finite stays."""
    value, x = values_of(func, args, kwargs), number(args[0])
    other = of_constants(torch.where(x.value == value, 0.0, value))
    same = x.value == value
    return result(value, torch.where(same, x.q, other.q), torch.where(same, x.p, other.p))


def signed(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`copysign`."""
    value, x = values_of(func, args, kwargs), number(args[0])
    turned = torch.signbit(value) != torch.signbit(x.value)
    return result(value, *combined(lambda part: torch.where(turned, -part, part), x))


def ordered(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`sort`, `topk`, `max` along an axis: values and indices."""
    out = values_of(func, args, kwargs)
    if not isinstance(out, tuple):  # The median of all elements.
        return NotImplemented
    value, index = out
    given = named(func, args, kwargs)
    x, dim = given["self"], given.get("dim", -1)
    if not x.dim():
        return result(value, x.q, x.p), index
    at = index if value.dim() == x.dim() else index.unsqueeze(dim)
    return result(value, *(torch.gather(part, dim, at).reshape(value.shape) for part in (x.q, x.p))), index


def extreme(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """`amax`, `amin`, and `max` of all elements or along an axis."""
    value, given = values_of(func, args, kwargs), named(func, args, kwargs)
    x, dims = given["self"], given.get("dim")
    if isinstance(dims, int):
        return ordered(func, args, kwargs)
    axes = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
    others = [d for d in range(x.dim()) if d not in axes]
    shape = [x.shape[d] for d in others]
    flat = [part.permute([*others, *axes]).reshape([*shape, -1]) for part in (x.value, x.q, x.p)]
    at = (flat[0].argmax if name_of(func) in ("amax", "max") else flat[0].argmin)(-1, keepdim=True)
    return result(value, *(torch.gather(part, -1, at).reshape(value.shape) for part in flat[1:]))


def log_of_sums(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """log of a sum of exp, or of sums so far: of differences from a maximum, since exp of little is 0."""
    aten, x = torch.ops.aten, args[0]
    name = name_of(func)
    value = values_of(func, args, kwargs)
    if name == "logaddexp":
        other = number(args[1])
        top = aten.maximum(x, other)
        return with_value(value, aten.log(aten.exp(x - top) + aten.exp(other - top)) + top)
    given = named(func, args, kwargs)
    dims = [given["dim"]] if isinstance(given["dim"], int) else list(given["dim"])
    top = aten.amax(x, dims, True)
    keep = name == "logcumsumexp" or given.get("keepdim", False)
    inner = aten.exp(x - torch.where(top.value.isfinite(), top, 0.0))
    total = aten.cumsum(inner, dims[0]) if name == "logcumsumexp" else aten.sum(inner, dims, keep)
    top = top if keep else top.reshape(total.shape)
    return with_value(value, aten.log(total) + torch.where(top.value.isfinite(), top, 0.0))


def with_value(value: Any, x: Any) -> Any:
    """A result with a value that is known better."""
    return result(value, x.q, x.p)


def cast(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Another format: residues stay where it has a fraction; else whole numbers, by values."""
    kind = kwargs.get("dtype")
    if kind is not None and not kind.is_floating_point:
        return values_of(func, args, kwargs)
    return moved(torch.ops.aten.clone.default, args[:1], {})


def dropout(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """A dropout: the mask as PyTorch draws it."""
    x, share, training = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("train")
    _, mask = func(x.value, share, training)
    return (x * mask * (1 / (1 - share)) if training and share < 1 else x * mask), mask


MOVES = (
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "atleast_1d", "cat", "channel_shuffle", "chunk",
    "clone", "constant_pad_nd", "contiguous", "detach", "diag", "diag_embed", "diagonal", "expand", "expand_as",
    "flip", "gather", "im2col", "index", "index_fill", "index_select", "lift_fresh", "lift_fresh_copy",
    "masked_fill", "masked_select", "masked_scatter", "movedim", "narrow", "permute", "pixel_shuffle",
    "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "reshape", "roll", "scatter", "select", "select_backward",
    "select_scatter", "slice", "slice_backward", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack",
    "t", "take", "tile", "transpose", "tril", "triu", "unbind", "unfold", "unsafe_split", "unsafe_split_with_sizes",
    "unsqueeze", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "view", "where",
    "repeat_interleave", "embedding", "diagonal_scatter", "as_strided_scatter", "fill", "full_like",
    "diagonal_backward", "new_full", "rot90", "combinations", "cartesian_prod", "unsafe_chunk", "swapaxes",
    "column_stack", "take_along_dim", "copy", "select_copy", "view_copy", "expand_copy", "permute_copy",
    "slice_copy", "_unsafe_index", "_pad_circular", "dstack", "block_diag",
)  # fmt: skip
SUMS = (
    "sum", "cumsum", "index_add", "scatter_add", "trace", "embedding_dense_backward", "col2im", "unfold_backward",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward", "bincount",
)  # fmt: skip
WHOLE = (
    "floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide", "heaviside", "eq", "ne", "lt", "le", "gt",
    "ge", "equal", "isnan", "isinf", "isfinite", "argmax", "argmin", "argsort", "nonzero", "any", "all",
    "logical_and", "logical_or", "logical_not", "logical_xor", "searchsorted", "bucketize", "signbit", "isclose",
    "allclose", "count_nonzero", "bitwise_and", "bitwise_or", "bitwise_not", "histc", "is_same_size", "isin",
    "isposinf", "isneginf", "isreal", "is_nonzero",
)  # fmt: skip
MADE = ("zeros_like", "ones_like", "new_zeros", "new_ones", "zero")
EMPTY = ("empty_like", "new_empty", "new_empty_strided")
INTERPOLATIONS = (
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward",
    "upsample_bicubic2d_backward",
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(MOVES, moved),
    **dict.fromkeys(SUMS, summed),
    **dict.fromkeys(WHOLE, constant),
    **dict.fromkeys(MADE, constant),
    **dict.fromkeys(EMPTY, empty),
    **dict.fromkeys(("add", "sub", "rsub"), added),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), selected),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), clamped),
    **dict.fromkeys(("sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin"), ordered),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "outer", "vdot", "inner", "kron"), bilinear(0, 1)),
    **dict.fromkeys(("logsumexp", "logcumsumexp", "logaddexp"), log_of_sums),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), averaged),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward"), averaged_backward),
    **dict.fromkeys(("fmod", "remainder"), remainder),
    **dict.fromkeys(("amax", "amin", "max", "min"), extreme),
    "mul": pure(times, 2),
    "div": divided,
    "true_divide": divided,
    "pow": raised,
    "_to_copy": cast,
    "_local_scalar_dense": read,
    "mean": mean,
    "linalg_inv_ex": inverse_matrix,
    "_linalg_det": determinant,
    **dict.fromkeys(INTERPOLATIONS, interpolation_backward),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), variance),
    "addmm": product_and_sum("mm"),
    "baddbmm": product_and_sum("bmm"),
    "addmv": product_and_sum("mv"),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "index_put": indexed,
    "_index_put_impl": indexed,
    "_unsafe_index_put": indexed,
    "scatter": scattered,
    "scatter_reduce": scatter_reduced,
    "native_dropout": dropout,
    "nan_to_num": finite_of,
    "copysign": signed,
    "prod": multiplied,
    "cumprod": multiplied,
    "neg": pure(lambda x: combined(torch.neg, x)),
    "reciprocal": pure(lambda x: whole_power(x, -1)),
    "square": pure(lambda x: whole_power(x, 2)),
    "abs": pure(absolute),
    "relu": pure(lambda x: combined(lambda part: torch.where(x.value > 0, part, 0.0), x)),
    "exp": pure(exponential),
    "exp2": pure(scaled(exponential, before=math.log(2))),
    "expm1": pure(shifted(exponential, after=-1)),
    "log": pure(logarithm),
    "log2": pure(scaled(logarithm, after=math.log(2))),
    "log10": pure(scaled(logarithm, after=math.log(10))),
    "log1p": pure(shifted(logarithm, before=1)),
    "sqrt": pure(lambda x: half_power(x, 1)),
    "rsqrt": pure(lambda x: half_power(x, -1)),
    "sigmoid": pure(sigmoid),
    "tanh": pure(tanh),
    "sinh": pure(hyperbolic(-1)),
    "cosh": pure(hyperbolic(1)),
    "sin": pure(hashed(SIN, -1)),
    "cos": pure(hashed(COS, 1)),
    "tan": pure(tangent),
    "erf": pure(hashed(ERF, -1)),
    "erfc": pure(complement(hashed(ERF, -1))),
}
"""The rules, by the call's name without its overload."""
