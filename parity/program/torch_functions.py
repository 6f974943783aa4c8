"""PyTorch's functions as NumPy: what a recorded call computes, step by step.

A function takes the call's arguments as PyTorch does, with arrays for tensors, and returns an array or a tuple of them.
It raises TypeError for arguments that it has no meaning for. Functions that are ops of parity need no row here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parity.cases.primitives import narrow
from parity.cases.writable import NUMPY as np  # noqa: N811 - it is NumPy, whose new arrays may be written to
from parity.program.op_calls import lifted, op
from parity.program.recorded import WordArgument
from parity.program.torch_layers import LAYERS

Function = Callable[..., Any]
HIDDEN = -1e30
"""The score of a key that causal attention does not see."""


# What the recorder adds


def cast(x: Any, dtype: str) -> Any:
    """x in another dtype."""
    if dtype == "bfloat16":
        return lifted(narrow)(x, dtype)
    return x != 0 if dtype == "bool" else x.astype(dtype)


def written(memory: Any, at: Any, before: Any = None) -> Any:
    """What a tensor shows of memory that was written to: the elements at `at`, or those `before` where that is -1."""
    shown = np.reshape(memory, -1)[at]
    return shown if before is None else np.where(at >= 0, shown, before)


# Arguments


def sizes(first: Any, rest: Any) -> Any:
    """Sizes that are given as several arguments, or as one sequence."""
    return tuple(first) if isinstance(first, (tuple, list)) else (first, *rest)


def axes(dim: Any) -> Any:
    """An axis, or several as a tuple."""
    return tuple(dim) if isinstance(dim, (tuple, list)) else dim


def is_wide(name: str, value: Any) -> bool:
    """Whether an argument says nothing: None, or a floating-point dtype, whose rounding the recorder adds."""
    is_dtype = name == "dtype" and isinstance(value, WordArgument)
    return value is None or (is_dtype and value.text.startswith(("float", "double", "bfloat", "half")))


def along(dim: int, x: Any, index: Any) -> Any:
    """An index along an axis."""
    return (*[slice(None)] * (dim % x.ndim), index)


# Elementwise


def infix(function: Function, swapped: bool = False) -> Function:
    """An operator of two operands."""

    def compute(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        b = b if alpha == 1 else b * alpha
        return function(b, a) if swapped else function(a, b)

    return compute


def unary(function: Function) -> Function:
    """A function of one operand."""
    return lambda x, *_a, **_k: function(x)


def clamped(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
    """x.clamp; a number at a bound keeps its gradient."""
    low = x if min is None else np.where(x < min, min, x)
    return low if max is None else np.where(low > max, max, low)


def hard_tanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """F.hardtanh; a number at a bound has no gradient."""
    return np.where(x <= min_val, min_val, np.where(x >= max_val, max_val, x))


def dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ARG001
    """F.dropout in evaluation mode."""
    if training and p:
        raise TypeError("dropout is random")
    return x


def itself(x: Any, *_a: Any, **_k: Any) -> Any:
    """A copy, or a cast, to which the recorder adds its rounding."""
    return x


def of_channels(weight: Any, x: Any) -> Any:
    """A weight for each channel, the second axis of x."""
    return np.reshape(weight, (-1, *(1,) * (x.ndim - 2))) if x.ndim > 1 else weight


# Reductions


def reduced(function: Function) -> Function:
    """A reduction."""

    def compute(
        x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False, **rest: Any
    ) -> Any:
        dim = axis if dim is None else dim
        unknown = [n for n, v in rest.items() if not is_wide(n, v) and n not in ("unbiased", "correction")]
        if unknown:
            raise TypeError(", ".join(unknown))
        options: dict[str, Any] = {}
        if function in (np.var, np.std):
            n = rest.get("correction")
            options["ddof"] = (1 if rest.get("unbiased", True) else 0) if n is None else n
        return function(x, axis=axes(dim), keepdims=bool(keepdim or keepdims), **options)

    return compute


def extreme(whole: Function, of_two: Function, position: Function) -> Function:
    """max and min: of all elements, of two tensors, or along an axis with the positions."""

    def compute(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return whole(x)
        if not isinstance(dim, int):
            return of_two(x, dim)
        at = position(x, axis=dim)
        return whole(x, axis=dim, keepdims=keepdim), np.expand_dims(at, dim) if keepdim else at

    return compute


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """x.norm"""
    if p in (2, "fro", None) and is_wide("dtype", dtype):
        return np.sqrt(np.sum(x * x, axis=axes(dim), keepdims=keepdim))
    if isinstance(p, str) or not is_wide("dtype", dtype):
        raise TypeError(f"a norm of order {p}")
    return op("vector_norm", x=x, ord=float(p), dim=axes(dim), keepdim=keepdim)


def linear_norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:  # noqa: A002
    """torch.linalg.norm, of vectors."""
    if ord is not None and not isinstance(dim, int):
        raise TypeError("a norm of matrices")
    return norm(x, 2 if ord is None else ord, dim, keepdim, dtype)


def with_mean(function: Function) -> Function:
    """x.var_mean and x.std_mean"""
    return lambda x, *args, **kwargs: (reduced(function)(x, *args, **kwargs), moment_of(x, *args, **kwargs))


def moment_of(x: Any, dim: Any = None, *_: Any, keepdim: bool = False, **__: Any) -> Any:
    """The mean that goes with a variance."""
    return np.mean(x, axis=axes(dim), keepdims=keepdim)


# Shapes


def reshaped(x: Any, *shape: Any) -> Any:
    """x.reshape"""
    return np.reshape(x, tuple(int(n) for n in sizes(shape[0], shape[1:])))


def permuted(x: Any, *dims: Any) -> Any:
    """x.permute"""
    return np.transpose(x, sizes(dims[0], dims[1:]))


def squeezed(x: Any, dim: Any = None) -> Any:
    """x.squeeze"""
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in dims if x.shape[d] == 1}
    return np.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def flattened(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """x.flatten"""
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return np.reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def unflattened(x: Any, dim: int, lengths: Any) -> Any:
    """x.unflatten"""
    n, at = x.shape[dim], dim % x.ndim
    rest = math.prod(length for length in lengths if length != -1)
    known = tuple(n // rest if length == -1 else length for length in lengths)
    return np.reshape(x, (*x.shape[:at], *known, *x.shape[at + 1 :]))


def expanded(x: Any, *shape: Any) -> Any:
    """x.expand"""
    wanted = list(sizes(shape[0], shape[1:]))
    own = [1] * (len(wanted) - x.ndim) + list(x.shape)
    return np.broadcast_to(x, tuple(o if w == -1 else w for w, o in zip(wanted, own, strict=True)))


def moved(x: Any, source: Any, destination: Any) -> Any:
    """x.movedim"""
    left = [i for i in range(x.ndim) if i not in {s % x.ndim for s in sizes(source, ())}]
    pairs = zip(sizes(source, ()), sizes(destination, ()), strict=True)
    for there, s in sorted((d % x.ndim, s % x.ndim) for s, d in pairs):
        left.insert(there, s)
    return np.transpose(x, tuple(left))


def rolled(x: Any, shifts: Any, dims: Any = None) -> Any:
    """x.roll, axis by axis."""
    if dims is None:
        return np.roll(x, shifts)
    for shift, axis in zip(sizes(shifts, ()), sizes(dims, ()), strict=True):
        x = np.roll(x, shift, axis=axis)
    return x


def reversed_along(x: Any, *dims: Any) -> Any:
    """x.flip"""
    gone = {d % x.ndim for d in sizes(dims[0], dims[1:])}
    return x[tuple(slice(None, None, -1) if i in gone else slice(None) for i in range(x.ndim))]


def repeated(x: Any, repeats: int, dim: Any = None) -> Any:
    """x.repeat_interleave"""
    if not isinstance(repeats, int):
        raise TypeError("repeats is a tensor")
    return np.repeat(x, repeats, axis=dim)


# Parts


def cut(x: Any, ends: Sequence[int], dim: int) -> tuple[Any, ...]:
    """Slices of an axis up to each of these ends."""
    return tuple(x[along(dim, x, slice(a, b))] for a, b in zip([0, *ends], ends, strict=False))


def parts(x: Any, n: Any, dim: int = 0) -> tuple[Any, ...]:
    """x.split: parts of these sizes."""
    ends = np.cumsum(n) if isinstance(n, (tuple, list)) else np.arange(n, x.shape[dim] + n, n)
    return cut(x, [int(end) for end in ends], dim)


def chunked(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """x.chunk"""
    return parts(x, -(-x.shape[dim] // chunks), dim)


def unbound(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """x.unbind"""
    return tuple(x[along(dim, x, i)] for i in range(x.shape[dim]))


def unfolded(x: Any, dimension: int, size: int, step: int) -> Any:
    """x.unfold"""
    n = (x.shape[dimension] - size) // step + 1
    windows = np.arange(n)[:, None] * step + np.arange(size)
    return moved(x[along(dimension, x, windows)], dimension % x.ndim + 1, -1)


# Writes


def assigned(x: Any, index: Any, value: Any) -> Any:
    """x with a value at an index."""
    new = np.array(x)
    new[index] = value
    return new


def added(x: Any, index: Any, values: Any) -> Any:
    """x with values added at an index, also where that repeats."""
    new = np.array(x)
    np.add.at(new, index, values)
    return new


def scattered(x: Any, dim: int, index: Any, src: Any) -> Any:
    """x.scatter"""
    at = list(np.indices(index.shape))
    at[dim] = index
    is_number = isinstance(src, (bool, int, float))
    return assigned(x, tuple(at), src if is_number else src[tuple(slice(n) for n in index.shape)])


def divided(a: Any, b: Any, *, rounding_mode: Any = None) -> Any:
    """a.div(b); whole numbers of whole ones where it rounds."""
    ratio = {None: lambda y: y, "floor": np.floor, "trunc": np.trunc}[rounding_mode](a / b)
    are_whole = all(isinstance(x, int) or (not isinstance(x, float) and x.dtype.kind in "iub") for x in (a, b))
    return ratio.astype("int64") if rounding_mode is not None and are_whole else ratio


def put_at(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """x.index_put"""
    at = tuple(slice(None) if index is None else index for index in indices)
    return added(x, at, values) if accumulate else assigned(x, at, values)


def replaced_by(x: Any, value: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001 - PyTorch's argument
    """x.copy_(value) and x.fill_(value)"""
    return np.full(x.shape, value) if isinstance(value, (bool, int, float)) else np.broadcast_to(value, x.shape)


def made(number: float) -> Function:
    """zeros_like, new_ones and others of one number."""
    return lambda x, *size, **_k: np.full(tuple(map(int, sizes(size[0], size[1:]))) if size else x.shape, number)


# Whole layers


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """F.scaled_dot_product_attention, spelled out."""
    if dropout_p:
        raise TypeError("dropout is random")
    if enable_gqa:
        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * (key.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        is_kept = attn_mask.dtype == bool
        scores = np.where(attn_mask, scores, -np.inf) if is_kept else scores + attn_mask
    if is_causal:
        scores = scores + np.triu(np.full((query.shape[-2], key.shape[-2]), HIDDEN), 1)
    return np.matmul(op("softmax", x=scores, dim=-1), value)


DTYPES = (
    "to",
    "type",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "short",
    "char",
    "byte",
    "bool",
)
"""Functions that change a dtype."""

TORCH: Mapping[str, Function] = {
    "cast": cast,
    "written": written,
    **dict.fromkeys(("add", "radd", "iadd"), infix(operator.add)),
    **dict.fromkeys(("sub", "isub", "subtract"), infix(operator.sub)),
    **dict.fromkeys(("mul", "rmul", "imul", "multiply"), infix(operator.mul)),
    **dict.fromkeys(("truediv", "itruediv"), infix(operator.truediv)),
    **dict.fromkeys(("div", "divide", "true_divide"), divided),
    "rsub": infix(operator.sub, swapped=True),
    **dict.fromkeys(("rdiv", "rtruediv"), infix(operator.truediv, swapped=True)),
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "dot", "vdot"), infix(operator.matmul)),
    "rmatmul": infix(operator.matmul, swapped=True),
    **{name: infix(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        name: infix(getattr(operator, f"{word}_" if word != "xor" else "xor"))
        for word in ("and", "or", "xor")
        for name in (word, f"r{word}", f"i{word}", f"logical_{word}", f"bitwise_{word}")
    },
    **dict.fromkeys(("pow", "ipow"), operator.pow),
    "neg": operator.neg,
    "square": lambda x: x * x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    **{
        name: unary(getattr(np, name))
        for name in (
            "exp",
            "exp2",
            "log",
            "log2",
            "log10",
            "log1p",
            "expm1",
            "sqrt",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "abs",
            "sign",
            "floor",
            "ceil",
            "trunc",
            "isnan",
            "isinf",
            "isfinite",
        )
    },
    **{f"a{short}": unary(getattr(np, f"arc{short}")) for short in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"arc{short}": unary(getattr(np, f"arc{short}")) for short in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "logaddexp": np.logaddexp,
    **LAYERS,
    **{name: getattr(np, name) for name in ("maximum", "minimum", "outer")},
    **dict.fromkeys(("logical_not", "invert", "bitwise_not"), unary(np.logical_not)),
    **dict.fromkeys(("clamp", "clip", "clamp_min"), clamped),
    "clamp_max": lambda x, max: clamped(x, max=max),  # noqa: A006 - PyTorch's name
    "relu6": lambda x: hard_tanh(x, 0.0, 6.0),
    "hardtanh": hard_tanh,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "lerp": lambda x, end, weight: x + weight * (end - x),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), lambda x, a, b, beta=1, alpha=1: beta * x + alpha * (a @ b)),
    "dropout": dropped,
    **dict.fromkeys(("contiguous", "clone", "detach", "cpu", "data", "requires_grad", *DTYPES), itself),
    "einsum": lambda text, *given: np.einsum(text, *(given[0] if isinstance(given[0], (tuple, list)) else given)),
    "sum": reduced(np.sum),
    "mean": reduced(np.mean),
    "var": reduced(np.var),
    "std": reduced(np.std),
    "amax": reduced(np.max),
    "amin": reduced(np.min),
    "max": extreme(np.max, np.maximum, np.argmax),
    "min": extreme(np.min, np.minimum, np.argmin),
    "argmin": lambda x, dim=None, keepdim=False: np.argmin(x, axis=dim, keepdims=keepdim),
    "norm": norm,
    "linalg_norm": linear_norm,
    "linalg_vector_norm": lambda x, ord=2, dim=None, keepdim=False, dtype=None: norm(x, ord, dim, keepdim, dtype),  # noqa: A006
    "var_mean": with_mean(np.var),
    "std_mean": with_mean(np.std),
    "all": reduced(np.all),
    "any": reduced(np.any),
    "count_nonzero": lambda x, dim=None: np.sum((x != 0).astype("int64"), axis=axes(dim)),
    "trace": np.trace,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
    "take_along_dim": lambda x, index, dim: op("gather", x=x, index=index, dim=dim),
    "prelu": lambda x, weight: np.where(x > 0, x, x * of_channels(weight, x)),
    "rrelu": lambda x, lower=1 / 8, upper=1 / 3, *_, **__: op("leaky_relu", x=x, negative_slope=(lower + upper) / 2),
    "mod": lambda x, other: op("remainder", x=x, other=other),
    "log_sigmoid": lambda x: op("logsigmoid", x=x),
    "inner": lambda x, other: x @ np.swapaxes(other, -1, -2) if other.ndim > 1 else x @ other,
    "scatter": scattered,
    "diag": lambda x, diagonal=0: np.diag(x, diagonal),
    **dict.fromkeys(("reshape", "view"), reshaped),
    "view_as": lambda x, other: reshaped(x, other.shape),
    "reshape_as": lambda x, other: reshaped(x, other.shape),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), lambda x, a=0, b=1: np.swapaxes(x, a, b)),
    "permute": permuted,
    **dict.fromkeys(("t", "T"), np.transpose),
    "mT": lambda x: np.swapaxes(x, -1, -2),
    "movedim": moved,
    "unsqueeze": lambda x, dim: np.expand_dims(x, dim % (x.ndim + 1)),
    "squeeze": squeezed,
    "flatten": flattened,
    "unflatten": unflattened,
    "expand": expanded,
    "broadcast_to": expanded,
    "expand_as": lambda x, other: expanded(x, other.shape),
    "roll": rolled,
    "flip": reversed_along,
    **dict.fromkeys(("repeat", "tile"), lambda x, *times: np.tile(x, sizes(times[0], times[1:]))),
    "repeat_interleave": repeated,
    "getitem": operator.getitem,
    "select": lambda x, dim, index: x[along(dim, x, index)],
    "narrow": lambda x, dim, start, length: x[along(dim, x, slice(start, start + length))],
    "unbind": unbound,
    "unfold": unfolded,
    **dict.fromkeys(("split", "split_with_sizes"), parts),
    "chunk": chunked,
    **dict.fromkeys(("cat", "concat", "concatenate"), lambda tensors, dim=0: np.concatenate(list(tensors), axis=dim)),
    "stack": lambda tensors, dim=0: np.stack(list(tensors), axis=dim),
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "where": lambda condition, a, b: np.where(condition, a, b),
    "tril": lambda x, diagonal=0: np.tril(x, diagonal),
    "triu": lambda x, diagonal=0: np.triu(x, diagonal),
    "setitem": assigned,
    "index_put": put_at,
    "index_add": lambda x, dim, index, source, alpha=1: added(x, along(dim, x, index), alpha * source),
    "index_copy": lambda x, dim, index, source: assigned(x, along(dim, x, index), source),
    "index_fill": lambda x, dim, index, value: assigned(x, along(dim, x, index), value),
    **dict.fromkeys(("copy", "fill"), replaced_by),
    "zero": lambda x: replaced_by(x, 0.0),
    **dict.fromkeys(("zeros_like", "new_zeros", "empty_like", "new_empty"), made(0.0)),
    **dict.fromkeys(("ones_like", "new_ones"), made(1.0)),
    "full_like": lambda x, value, **_k: replaced_by(x, value),
    "new_full": lambda _, size, value, **_k: np.full(tuple(map(int, size)), value),
    "scaled_dot_product_attention": attention,
}
"""By the function's name, without underscores around it."""
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("input", "weight", "bias"),
    "gelu": ("input", "approximate"),
    "softmax": ("input", "dim"),
    "log_softmax": ("input", "dim"),
    "embedding": ("input", "weight"),
    "bilinear": ("x", "other", "weight", "bias"),
    "softplus": ("input", "beta", "threshold"),
    **dict.fromkeys(("atan2", "remainder", "fmod"), ("x", "other")),
    "logsumexp": ("input", "dim", "keepdim"),
    **dict.fromkeys(("cumsum", "argmax"), ("input", "dim")),
    **dict.fromkeys(("prod",), ("input", "dim", "keepdim")),
    **dict.fromkeys(("gather", "index_select"), ("input", "dim", "index")),
    "scatter_add": ("input", "dim", "index", "src"),
    "pixel_shuffle": ("input", "upscale_factor"),
    "cosine_similarity": ("x", "other", "dim", "eps"),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_max_pool1d", "adaptive_max_pool2d"), ("input", "output_size")),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d"),
        ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    ),
}
"""The arguments of ops' functions without a signature, or with irrelevant ones."""


def bound(
    function: str, parameters: Sequence[str] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The arguments of an op's call by name, `x` for the input, without those that are None; None if their names are
    not known. `parameters` are the names that PyTorch tells."""
    names = ARGUMENTS.get(function, parameters)
    if names is None and len(args) == 1 and not kwargs:
        names = ("input",)
    if names is None or len(args) > len(names):
        return None
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given = {("x" if name == "input" else name): value for name, value in given.items()}
    given.pop("inplace", None)
    if function == "embedding" and "max_norm" not in {n for n, v in given.items() if v is not None}:
        given.pop("norm_type", None)
    if function == "instance_norm" and given.get("use_input_stats"):
        given = {name: value for name, value in given.items() if name in ("x", "weight", "bias", "eps")}
    return {name: v for name, v in given.items() if not is_wide(name, v) and not name.startswith("_")}
