"""The code of a layer between its children as NumPy: the PyTorch functions that it calls, in order.

PyTorch passes every call of its functions to a `TorchFunctionMode`, which records it. Children are not entered: their
outputs are given, and are inputs of the program; their inputs are its outputs. Tensors that depend on no input, such as
an arange or a mask that is created, are constants, and inputs, too.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import re
import sys
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, FrozenSet, List, Mapping, Optional, Tuple

import numpy as np


class UntracedError(ValueError):
    """The code calls something that has no translation; the message names it."""


class Var:
    """A value of the program; its text is a mark, which is replaced by its name at the end."""

    def __init__(self, number: int, tensor: Any) -> None:
        self.mark, self.shape, self.ndim = f"_v{number}_", tuple(tensor.shape), tensor.ndim
        self.dtype = str(tensor.dtype).rpartition(".")[2]

    def __repr__(self) -> str:
        return self.mark


@dataclass
class Statement:
    """A statement: the mark of its result and the expression, or the name of an op and its arguments.

    `wanted` is the name that the source assigns the result to, in the statement at `location`; `function` is the one
    that is called, `source_line` the file and line, `value` the result.
    """

    mark: str
    text: str
    function: str
    wanted: str = ""
    location: Any = None
    given: Optional[Dict[str, str]] = None
    source_line: str = ""
    value: Any = None


class ValueTable:
    """A program's values by tensor, and their names."""

    def __init__(self) -> None:
        self.active = True
        self.constants: Dict[str, Any] = {}
        self.names: Dict[str, str] = {}
        self._known: Dict[int, Tuple[Any, Var]] = {}
        self._taken: Dict[str, int] = {}
        self._n = 0

    def free(self, wanted: str) -> str:
        """A name that is not used yet."""
        word = re.sub(r"\W+", "_", wanted).strip("_") or "t"
        word = f"t{word}" if word[0].isdigit() or word in RESERVED else word
        n = self._taken[word] = self._taken.get(word, 0) + 1
        return word if n == 1 else self.free(f"{word}_{n}")

    def know(self, tensor: Any, wanted: str = "") -> Var:
        """The value of a tensor, a new one if it has none yet; an input gets the name `wanted`."""
        if id(tensor) not in self._known:
            var = Var(self._n, tensor)
            self._n += 1
            self._known[id(tensor)] = (tensor, var)
            if wanted:
                self.names[var.mark] = self.free(wanted)
        return self._known[id(tensor)][1]

    def var(self, tensor: Any) -> Var:
        """The value of a tensor; a constant if no call has returned it."""
        if id(tensor) not in self._known:
            var = self.know(tensor, "constant")
            self.constants[self.names[var.mark]] = tensor
        return self._known[id(tensor)][1]

    def put(self, text: str) -> str:
        """A text with names for marks."""
        return MARK.sub(lambda match: self.names[match.group(0)], text)


ASSIGNED = re.compile(r"\s*(\w+)\s*[-+*/]?=[^=]")


def caller_of(roots: Collection[str]) -> Any:
    """The innermost frame outside parity and the packages `roots`: the user's code."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("parity", *roots):
        frame = frame.f_back
    return frame


def keywords_of_caller(roots: Collection[str]) -> FrozenSet[str]:
    """The keywords that the user's function uses in any of its calls."""
    frame = caller_of(roots)
    consts = () if frame is None else frame.f_code.co_consts
    return frozenset(name for item in consts if isinstance(item, tuple) for name in item if isinstance(name, str))


def source_of_call(roots: Collection[str]) -> Tuple[str, Any]:
    """The name that the user's current statement assigns to, and the statement's location."""
    frame = caller_of(roots)
    if frame is None:
        return "", None
    match = ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
    return (match.group(1) if match else ""), (id(frame), frame.f_lineno)


MARK = re.compile(r"_[vw]\d+_")


def attribute_of(function: Any) -> str:
    """The attribute that a call reads: `T` of `x.T`, `data` of `x.data`; "" of any other function."""
    return str(function.__self__.__name__) if function.__name__ == "__get__" else ""


def is_inplace(named: str) -> bool:
    """Whether a function changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    return (named.endswith("_") and not named.endswith("__")) or named.startswith("__i") or named == "__setitem__"


RESERVED = frozenset(("np", "op", "code", "cast", "assigned", "added", *keyword.kwlist))


def is_listed(value: Any, torch: Any) -> bool:
    """Whether a value is several tensors."""
    return isinstance(value, (tuple, list)) and bool(value) and all(isinstance(item, torch.Tensor) for item in value)


def tensors_in(value: Any, kind: Any) -> List[Any]:
    """All tensors in nested arguments."""
    if isinstance(value, kind):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in tensors_in(item, kind)]


# Translations: from a call to an expression

Translation = Callable[..., str]


def translated(named: str, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Tuple[str, Optional[Dict[str, str]]]:
    """The expression for a call, or the arguments of the op of that name; raises UntracedError."""
    plain = named.strip("_")
    kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
    for name in (named, plain):
        if name in TRANSLATIONS:
            try:
                return TRANSLATIONS[name](*args, **kwargs), None
            except (TypeError, AttributeError) as error:
                raise UntracedError(f"{named}: {error}") from error
    given = bound(plain, function, args, kwargs)
    if given is None:
        raise UntracedError(f"{named} has no translation to NumPy")
    return "", {name: repr(value) for name, value in given.items()}


def bound(named: str, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """The arguments by name, `x` for the input, without those that are None."""
    names = ARGUMENTS.get(named)
    if names is None:
        try:
            names = tuple(inspect.signature(function).parameters)
        except (ValueError, TypeError):
            names = ("input",) if len(args) == 1 and not kwargs else None
    if names is None or len(args) > len(names):
        return None
    given = {**dict(zip(names, args)), **kwargs}
    given = {("x" if name == "input" else name): value for name, value in given.items()}
    given.pop("inplace", None)
    return {name: value for name, value in given.items() if value is not None and not name.startswith("_")}


ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    "gelu": ("input", "approximate"),
    "softmax": ("input", "dim"),
    "log_softmax": ("input", "dim"),
    "embedding": ("input", "weight"),
    "bilinear": ("x", "other", "weight", "bias"),
    "softplus": ("input", "beta", "threshold"),
    "prelu": ("input", "weight"),
    "logsumexp": ("input", "dim", "keepdim"),
    **dict.fromkeys(("cumsum", "cumprod", "argmax", "argmin"), ("input", "dim")),
    **dict.fromkeys(("gather", "index_select"), ("input", "dim", "index")),
    "scatter_add": ("input", "dim", "index", "src"),
    "topk": ("input", "k", "dim", "largest"),
    "sort": ("input", "dim", "descending"),
    "pixel_shuffle": ("input", "upscale_factor"),
    "cosine_similarity": ("x", "other", "dim", "eps"),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_max_pool1d", "adaptive_max_pool2d"), ("input", "output_size")),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d"),
        ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    ),
}
"""The arguments of functions without a signature, or with irrelevant ones."""


def infix(sign: str, swapped: bool = False) -> Translation:
    """An operator of two operands."""

    def text(a: Any, b: Any, *, alpha: Any = 1) -> str:
        b = b if alpha == 1 else f"{b!r} * {alpha!r}"
        return f"{b!r} {sign} {a!r}" if swapped else f"{a!r} {sign} {b if isinstance(b, str) else repr(b)}"

    return text


def call(function: str) -> Translation:
    """A function of one operand."""
    return lambda x, *_a, **_k: f"{function}({x!r})"


def sizes(first: Any, rest: Any) -> Any:
    """Sizes that are given as several arguments, or as one sequence."""
    return tuple(first) if isinstance(first, (tuple, list)) else (first, *rest)


def reduced(function: str) -> Translation:
    """A reduction."""

    def text(
        x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False, **rest: Any
    ) -> str:
        dim = axis if dim is None else dim
        if any(value is not None for name, value in rest.items() if name not in ("unbiased", "correction")):
            raise TypeError(", ".join(rest))
        ddof = ""
        if function in ("np.var", "np.std"):
            n = rest.get("correction")
            n = (1 if rest.get("unbiased", True) else 0) if n is None else n
            ddof = f", ddof={n!r}"
        return f"{function}({x!r}, axis={axes(dim)!r}, keepdims={bool(keepdim or keepdims)}{ddof})"

    return text


def extreme(name: str) -> Translation:
    """max and min: of all elements, of two tensors, or along an axis with the positions."""

    def text(x: Any, dim: Any = None, keepdim: bool = False) -> str:
        if dim is None:
            return f"np.{name}({x!r})"
        if isinstance(dim, Var):
            return f"np.{name}imum({x!r}, {dim!r})"
        values, at = f"np.{name}({x!r}, axis={dim!r}, keepdims={keepdim})", f"np.arg{name}({x!r}, axis={dim!r})"
        return f"({values}, {f'np.expand_dims({at}, {dim!r})' if keepdim else at})"

    return text


def euclidean(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    """x.norm"""
    if p not in (2, "fro", None) or dtype is not None:
        raise TypeError(f"a norm of order {p}")
    return f"np.sqrt(np.sum({x!r} * {x!r}, axis={axes(dim)!r}, keepdims={keepdim}))"


def axes(dim: Any) -> Any:
    """An axis, or several as a tuple."""
    return tuple(dim) if isinstance(dim, (tuple, list)) else dim


def permuted(x: Var, *dims: Any) -> str:
    """x.permute"""
    return f"np.transpose({x}, {sizes(dims[0], dims[1:])!r})"


def reshaped(x: Var, *shape: Any) -> str:
    """x.reshape"""
    return f"np.reshape({x}, {tuple(int(n) for n in sizes(shape[0], shape[1:]))!r})"


def swapped(x: Var, a: int = 0, b: int = 1) -> str:
    """x.transpose"""
    return f"np.swapaxes({x}, {a}, {b})"


def unsqueezed(x: Var, dim: int) -> str:
    """x.unsqueeze"""
    return f"np.expand_dims({x}, {dim % (x.ndim + 1)})"


def squeezed(x: Var, dim: Any = None) -> str:
    """x.squeeze"""
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in dims if x.shape[d] == 1}
    return f"np.reshape({x}, {tuple(n for i, n in enumerate(x.shape) if i not in gone)!r})"


def flattened(x: Var, start_dim: int = 0, end_dim: int = -1) -> str:
    """x.flatten"""
    start, end = start_dim % x.ndim, end_dim % x.ndim
    shape = (*x.shape[:start], int(np.prod(x.shape[start : end + 1])), *x.shape[end + 1 :])
    return f"np.reshape({x}, {shape!r})"


def expanded(x: Var, *shape: Any) -> str:
    """x.expand"""
    wanted = list(sizes(shape[0], shape[1:]))
    own = [1] * (len(wanted) - x.ndim) + list(x.shape)
    return f"np.broadcast_to({x}, {tuple(o if w == -1 else w for w, o in zip(wanted, own))!r})"


def indexed(x: Var, index: Any) -> str:
    """x[index]"""
    parts = index if isinstance(index, tuple) else (index,)
    return f"{x}[{', '.join(map(written, parts))}]"


def written(part: Any) -> str:
    """A part of an index."""
    if isinstance(part, slice):
        return f"slice({part.start!r}, {part.stop!r}, {part.step!r})"
    return "Ellipsis" if part is Ellipsis else repr(part)


def joined(tensors: Any, dim: int = 0) -> str:
    """torch.cat"""
    return f"np.concatenate([{', '.join(map(repr, tensors))}], axis={dim})"


def stacked(tensors: Any, dim: int = 0) -> str:
    """torch.stack"""
    return f"np.stack([{', '.join(map(repr, tensors))}], axis={dim})"


def parts(x: Var, n: Any, dim: int = 0) -> str:
    """x.split: parts of these sizes."""
    ends = np.cumsum(n) if isinstance(n, (tuple, list)) else np.arange(n, x.shape[dim] + n, n)
    return cut(x, [int(end) for end in ends], dim)


def chunked(x: Var, chunks: int, dim: int = 0) -> str:
    """x.chunk"""
    return parts(x, -(-x.shape[dim] // chunks), dim)


def cut(x: Var, ends: List[int], dim: int) -> str:
    """Slices of an axis up to each of these ends."""
    before = ":, " * (dim % x.ndim)
    return f"({', '.join(f'{x}[{before}{a}:{b}]' for a, b in zip([0, *ends], ends))},)"


def filled(x: Var, mask: Any, value: Any) -> str:
    """x.masked_fill"""
    return f"np.where({mask!r}, {value!r}, {x})"


def assigned(x: Var, index: Any, value: Any) -> str:
    """x[index] = value, as a new value."""
    parts = index if isinstance(index, tuple) else (index,)
    return f"assigned({x}, np.s_[{', '.join(map(written, parts))}], {value!r})"


def put_at(x: Var, indices: Any, values: Any, accumulate: bool = False) -> str:
    """x.index_put"""
    parts = tuple(slice(None) if index is None else index for index in indices)
    return added(x, parts, values) if accumulate else assigned(x, parts, values)


def added(x: Var, index: Any, values: Any, sign: str = "") -> str:
    """The values added at an index, also where that repeats."""
    return f"added({x}, np.s_[{', '.join(map(written, index))}], {sign}{values!r})"


def along(dim: int, x: Var, index: Any) -> Any:
    """An index along an axis."""
    return (*[slice(None)] * (dim % x.ndim), index)


def index_added(x: Var, dim: int, index: Any, source: Any, alpha: Any = 1) -> str:
    """x.index_add"""
    return added(x, along(dim, x, index), source, "" if alpha == 1 else f"{alpha!r} * ")


def replaced_by(x: Var, value: Any, non_blocking: bool = False) -> str:  # noqa: ARG001 - PyTorch's argument
    """x.copy_(value) and x.fill_(value)"""
    return f"np.broadcast_to({value!r}, {x.shape})" if isinstance(value, Var) else f"np.full({x.shape}, {value!r})"


def made(number: float) -> Translation:
    """zeros_like, new_ones and others of one number."""
    return lambda x, *size, **_k: f"np.full({new_shape(x, size)}, {number!r})"


def new_shape(x: Var, size: Any) -> Any:
    """The shape of a new tensor: that of x, or the one that is given."""
    return tuple(map(int, sizes(size[0], size[1:]))) if size else x.shape


def clamped(x: Any, min: Any = None, max: Any = None) -> str:  # noqa: A002 - PyTorch's names
    """x.clamp"""
    low = repr(x) if min is None else f"np.maximum({x!r}, {min!r})"
    return low if max is None else f"np.minimum({low}, {max!r})"


def einsum(equation: str, *operands: Any) -> str:
    """torch.einsum"""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    return f"np.einsum({equation!r}, {', '.join(map(repr, given))})"


def moved(x: Var, source: Any, destination: Any) -> str:
    """x.movedim"""
    left = [i for i in range(x.ndim) if i not in {s % x.ndim for s in sizes(source, ())}]
    for there, s in sorted((d % x.ndim, s % x.ndim) for s, d in zip(sizes(source, ()), sizes(destination, ()))):
        left.insert(there, s)
    return f"np.transpose({x}, {tuple(left)!r})"


def rolled(x: Any, shifts: Any, dims: Any = None) -> str:
    """x.roll"""
    return f"np.roll({x!r}, {axes(shifts)!r}, axis={axes(dims)!r})"


def reversed_along(x: Var, *dims: Any) -> str:
    """x.flip"""
    gone = {d % x.ndim for d in sizes(dims[0], dims[1:])}
    return f"{x}[{', '.join('::-1' if i in gone else ':' for i in range(x.ndim))}]"


def tiled(x: Any, *sizes_: Any) -> str:
    """x.repeat"""
    return f"np.tile({x!r}, {sizes(sizes_[0], sizes_[1:])!r})"


def repeated(x: Any, repeats: int, dim: Any = None) -> str:
    """x.repeat_interleave"""
    if not isinstance(repeats, int):
        raise TypeError("repeats is a tensor")
    return f"np.repeat({x!r}, {repeats}, axis={dim!r})"


def selected(x: Var, dim: int, index: int) -> str:
    """x.select"""
    return f"{x}[{':, ' * (dim % x.ndim)}{index}]"


def narrowed(x: Var, dim: int, start: int, length: int) -> str:
    """x.narrow"""
    return f"{x}[{':, ' * (dim % x.ndim)}{start}:{start + length}]"


def unbound(x: Var, dim: int = 0) -> str:
    """x.unbind"""
    return f"({', '.join(selected(x, dim, i) for i in range(x.shape[dim]))},)"


def unflattened(x: Var, dim: int, lengths: Any) -> str:
    """x.unflatten"""
    n, at = x.shape[dim], dim % x.ndim
    rest = int(np.prod([length for length in lengths if length != -1]))
    known = tuple(n // rest if length == -1 else length for length in lengths)
    return f"np.reshape({x}, {(*x.shape[:at], *known, *x.shape[at + 1 :])!r})"


def chosen(condition: Any, a: Any, b: Any) -> str:
    """torch.where"""
    return f"np.where({condition!r}, {a!r}, {b!r})"


def power(x: Any, exponent: Any) -> str:
    """x ** exponent"""
    return f"{x!r} ** {exponent!r}"


def itself(x: Any, *_a: Any, **_k: Any) -> str:
    """A copy, or a cast, to which the recorder adds its rounding."""
    return repr(x)


def dropped(x: Var, p: float = 0.5, training: bool = True, inplace: bool = False) -> str:  # noqa: ARG001
    """F.dropout in evaluation mode."""
    if training and p:
        raise TypeError("dropout is random")
    return repr(x)


def attention(
    query: Any, key: Var, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, **_k: Any,
) -> str:  # fmt: skip
    """F.scaled_dot_product_attention, spelled out."""
    if dropout_p or (attn_mask is not None and attn_mask.dtype == "bool"):
        raise TypeError("dropout or a mask of booleans")
    factor = key.shape[-1] ** -0.5 if scale is None else scale
    scores = f"np.matmul({query!r}, np.swapaxes({key!r}, -1, -2)) * {factor!r}"
    scores += f" + {attn_mask!r}" if attn_mask is not None else ""
    scores += f" + np.triu(np.full(({key.shape[-2]}, {key.shape[-2]}), -1e30), 1)" if is_causal else ""
    return f"np.matmul(op('softmax', x={scores}, dim=-1), {value!r})"


def turned(x: Var) -> str:
    """x.t()"""
    return f"np.transpose({x})"


def triangle(function: str) -> Translation:
    """tril and triu."""
    return lambda x, diagonal=0: f"{function}({x!r}, {diagonal})"


TRANSLATIONS: Dict[str, Translation] = {
    **{name: infix("+") for name in ("add", "radd", "iadd")},
    **{name: infix("-") for name in ("sub", "isub", "subtract")},
    **{name: infix("*") for name in ("mul", "rmul", "imul", "multiply")},
    **{name: infix("/") for name in ("div", "truediv", "itruediv", "divide", "true_divide")},
    **{name: infix("-", swapped=True) for name in ("rsub", "__rsub__")},
    **{name: infix("/", swapped=True) for name in ("rdiv", "rtruediv")},
    **{name: infix("@") for name in ("matmul", "bmm", "mm")},
    "rmatmul": infix("@", swapped=True),
    **{
        name: infix(sign)
        for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
    },
    **dict.fromkeys(("pow", "ipow"), power),
    "neg": lambda x: f"-{x!r}",
    "square": lambda x: f"{x!r} * {x!r}",
    "rsqrt": lambda x: f"1 / np.sqrt({x!r})",
    "reciprocal": lambda x: f"1 / {x!r}",
    **{
        name: call(f"np.{name}")
        for name in ("exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "abs", "sign")
    },
    **{
        name: infix(sign)
        for sign, word in (("&", "and"), ("|", "or"), ("^", "xor"))
        for name in (word, f"r{word}", f"i{word}", f"logical_{word}", f"bitwise_{word}")
    },
    **{name: lambda a, b, name=name: f"np.{name}({a!r}, {b!r})" for name in ("maximum", "minimum", "outer")},
    **dict.fromkeys(("clamp", "clip"), clamped),
    "clamp_min": clamped,
    "clamp_max": lambda x, max: clamped(x, max=max),  # noqa: A006 - PyTorch's name
    "einsum": einsum,
    "movedim": moved,
    "roll": rolled,
    "flip": reversed_along,
    "repeat": tiled,
    "repeat_interleave": repeated,
    "select": selected,
    "narrow": narrowed,
    "unbind": unbound,
    "unflatten": unflattened,
    "T": turned,
    "setitem": assigned,
    "index_put": put_at,
    "index_add": index_added,
    "index_copy": lambda x, dim, index, source: assigned(x, along(dim, x, index), source),
    "index_fill": lambda x, dim, index, value: assigned(x, along(dim, x, index), value),
    **dict.fromkeys(("copy", "fill"), replaced_by),
    "zero": lambda x: replaced_by(x, 0.0),
    **dict.fromkeys(("zeros_like", "new_zeros", "empty_like", "new_empty"), made(0.0)),
    **dict.fromkeys(("ones_like", "new_ones"), made(1.0)),
    "full_like": lambda x, value, **_k: replaced_by(x, value),
    "new_full": lambda _, size, value, **_k: f"np.full({tuple(map(int, size))}, {value!r})",
    "addcmul": lambda x, a, b, value=1: f"{x!r} + {value!r} * {a!r} * {b!r}",
    "addcdiv": lambda x, a, b, value=1: f"{x!r} + {value!r} * {a!r} / {b!r}",
    "lerp": lambda x, end, weight: f"{x!r} + {weight!r} * ({end!r} - {x!r})",
    **dict.fromkeys(
        ("addmm", "baddbmm"), lambda x, a, b, beta=1, alpha=1: f"{beta!r} * {x!r} + {alpha!r} * ({a!r} @ {b!r})"
    ),
    "mT": lambda x: f"np.swapaxes({x!r}, -1, -2)",
    **{name: call("np.logical_not") for name in ("logical_not", "invert", "bitwise_not")},
    "sum": reduced("np.sum"),
    "mean": reduced("np.mean"),
    "var": reduced("np.var"),
    "std": reduced("np.std"),
    "max": extreme("max"),
    "min": extreme("min"),
    "norm": euclidean,
    "relu6": lambda x: f"np.minimum(np.maximum({x!r}, 0), 6)",
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: clamped(x, min_val, max_val),
    "amax": reduced("np.max"),
    "amin": reduced("np.min"),
    **dict.fromkeys(("reshape", "view"), reshaped),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), swapped),
    "permute": permuted,
    "t": turned,
    "unsqueeze": unsqueezed,
    "squeeze": squeezed,
    "flatten": flattened,
    "expand": expanded,
    "expand_as": lambda x, other: expanded(x, other.shape),
    "view_as": lambda x, other: reshaped(x, other.shape),
    "reshape_as": lambda x, other: reshaped(x, other.shape),
    "getitem": indexed,
    **dict.fromkeys(("cat", "concat", "concatenate"), joined),
    "stack": stacked,
    **dict.fromkeys(("split", "split_with_sizes"), parts),
    "chunk": chunked,
    "masked_fill": filled,
    "where": chosen,
    "tril": triangle("np.tril"),
    "triu": triangle("np.triu"),
    "dropout": dropped,
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("contiguous", "clone", "detach", "cpu", "data", "requires_grad"), itself),
    **dict.fromkeys(
        (
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
        ),
        itself,
    ),
}
"""By the function's name, without underscores around it; other functions may be ops."""
