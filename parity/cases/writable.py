"""Arrays that a user's reference may write to: what it does in place becomes steps of new values.

A traced value never changes. A `Writable` stands for an array: it refers to the array's current value, and a view
refers to the array that it shows a part of. Assignments, `out=` and in-place operators give the array a new value,
which its views show, and which a step of the program computes.
"""

from __future__ import annotations

import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import takewhile
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, defvjp_argnum
from autograd.numpy.numpy_vjps import unbroadcast
from autograd.tracer import getval, isbox

from parity.cases.primitives import narrow
from parity.cases.program import (
    Array,
    Handle,
    Traced,
    TraceError,
    concrete,
    getitem,
    leaves,
    part_of,
    primitive,
    put_back,
    selected,
    spelled,
)

Function = Callable[..., Any]


@primitive
def put(values: Array, new: Any, index: Any) -> Array:
    """A copy of `values` with `new` at an index."""
    result = values.copy()
    result[index] = new
    return result


@primitive
def last_put(values: Array, index: Any) -> Array:
    """Where what is put at an index is not overwritten by a later element of the same place."""
    positions = np.arange(values.size).reshape(values.shape)[index]
    written = np.empty(values.size, np.intp)
    written[positions.ravel()] = np.arange(positions.size)
    return np.asarray(written[positions] == np.arange(positions.size).reshape(positions.shape))


def gradient_of_new(_: Any, values: Any, new: Any, index: Any) -> Function:
    """The gradient of `put` for what is written."""
    shape = np.shape(new)
    meta = (shape, len(shape), np.dtype(float), False)
    return lambda g: unbroadcast(anp.where(last_put(values, index), part_of(g, index), 0.0), meta)


defvjp(put, lambda _, __, ___, index: lambda g: put(g, 0.0, index), gradient_of_new, None)


@primitive
def as_float(values: Array, like: Array) -> Array:
    """Integers or booleans as floating-point numbers, in the dtype of `like`."""
    return values.astype(like.dtype)


@primitive
def as_type(values: Array, dtype: str) -> Array:
    """values.astype(dtype), for a dtype of integers or booleans."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values).astype(dtype)


defvjp(narrow, lambda _, __, ___: lambda g: g, None)


def axes_of(subscripts: Any) -> tuple[list[str], str]:
    """The axes of the operands and of the result of np.einsum; TraceError for what has no gradient here."""
    if not isinstance(subscripts, str) or "..." in subscripts:
        raise TraceError("np.einsum has a gradient only with a letter for each axis")
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if any(len(set(axes)) < len(axes) for axes in operands):
        raise TraceError("np.einsum has no gradient where an axis occurs twice in an operand; use np.diagonal")
    return operands, output if arrow else "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))


def gradient_of_einsum(argnum: int, _: Any, operands: Any, __: Any) -> Function:
    """The gradient of an operand of np.einsum, for which autograd needs the values of all."""
    given, output = axes_of(operands[0])
    axes, shape = given[argnum - 1], np.shape(getval(operands[argnum]))
    rest = [(letters, operands[i]) for i, letters in enumerate(given, 1) if i != argnum]
    known = output + "".join(letters for letters, _ in rest)
    kept = "".join(letter for letter in axes if letter in known)
    lengths = [n if letter in known else 1 for letter, n in zip(axes, shape, strict=True)]
    subscripts = f"{','.join([output, *(letters for letters, _ in rest)])}->{kept}"

    def gradient(arriving: Any) -> Any:
        product = anp.einsum(subscripts, arriving, *(operand for _, operand in rest))
        return product if kept == axes else anp.broadcast_to(anp.reshape(product, lengths), shape)

    return gradient


defvjp_argnum(anp.einsum, gradient_of_einsum)

VIEWING = frozenset(
    (
        np.reshape, np.ravel, np.transpose, np.swapaxes, np.squeeze, np.expand_dims, np.moveaxis, np.rollaxis, np.split,
        np.array_split, np.hsplit, np.vsplit, np.dsplit, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to,
        np.diagonal, np.flip, np.flipud, np.fliplr, np.rot90, np.asanyarray, np.ascontiguousarray, np.real,
    )
)  # fmt: skip
"""Functions whose result may be a view of their operand."""
REDUCED: Mapping[str, Function] = {
    "add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min, "logical_and": np.all,
    "logical_or": np.any,
}  # fmt: skip
ACCUMULATED: Mapping[str, Function] = {"add": np.cumsum, "multiply": np.cumprod}
"""The functions that methods of ufuncs are."""
WRITING = frozenset((np.put, np.place, np.fill_diagonal, np.put_along_axis))
"""Functions that write to their operand, and that no step replaces."""
WIDE = 8
"""Dtypes of at least so many bytes round nothing: the interpreter's dtype takes their place."""
REMEDY = "make it inside the function, with np.zeros or np.empty"


@cache
def differentiable(package: str) -> Mapping[Function, Function]:
    """autograd's functions by those of `numpy` or `scipy`."""
    if package == "scipy":
        import autograd.scipy.special as theirs_of_scipy
        import scipy.special

        pairs = [(scipy.special, theirs_of_scipy)]
    else:
        pairs = [(np, anp), (np.linalg, anp.linalg), (np.fft, anp.fft)]
    table = {
        function: vars(theirs)[name]
        for ours, theirs in pairs
        for name, function in vars(ours).items()
        if callable(function) and not isinstance(function, type) and callable(vars(theirs).get(name))
    }
    return {**table, **OWN}


def lifted(function: Function) -> Function:
    """The differentiable form of a function of NumPy, or the function itself."""
    known = differentiable("numpy").get(function)
    if known is None and "scipy.special" in sys.modules:
        known = differentiable("scipy").get(function)
    return known or function


def take(values: Any, index: Any, axis: int | None = None) -> Any:
    """np.take, with a gradient."""
    return anp.reshape(values, -1)[index] if axis is None else values[(slice(None),) * (axis % values.ndim) + (index,)]


def take_along_axis(values: Any, index: Any, axis: int) -> Any:
    """np.take_along_axis, with a gradient."""
    positions = [np.arange(n).reshape((-1,) + (1,) * (values.ndim - i - 1)) for i, n in enumerate(index.shape)]
    return values[tuple(index if i == axis % values.ndim else position for i, position in enumerate(positions))]


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """np.stack."""
    return anp.concatenate([anp.expand_dims(item, axis) for item in arrays], axis=axis)


def parts_by(function: Function) -> Function:
    """np.split and np.array_split, as slices: parts may have different lengths."""

    def parts(x: Any, sections: Any, axis: int = 0) -> list[Any]:
        before = (slice(None),) * (axis % np.ndim(getval(x)))
        positions = function(np.arange(np.shape(getval(x))[axis]), sections)
        return [x[(*before, slice(p[0], p[-1] + 1) if p.size else slice(0, 0))] for p in positions]

    return parts


def spread(values: Any, shape: tuple[int, ...]) -> Any:
    """Values broadcast to a shape; autograd's function takes no further axes."""
    given = np.shape(getval(values))
    return anp.broadcast_to(
        anp.reshape(values, (1,) * (len(shape) - len(given)) + given[-len(shape) or len(given) :]), shape
    )


def dot(x: Any, y: Any) -> Any:
    """np.dot."""
    if not x.ndim or not np.ndim(getval(y)):
        return x * y
    if np.ndim(getval(y)) > 2:
        raise TraceError("np.dot of more than two axes cannot be a step; use np.matmul")
    return anp.matmul(x, y)


def pad(x: Any, width: Any, mode: str = "constant", **options: Any) -> Any:
    """np.pad."""
    return anp.pad(x, width, mode, **options)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002 - NumPy's name
    """np.linalg.norm; autograd's gradient of it is wrong with `keepdims`."""
    if ord is None or (ord == 2 and (isinstance(axis, int) or x.ndim == 1)):
        return anp.sqrt(anp.sum(x * x, axis=axis, keepdims=keepdims))
    result = anp.linalg.norm(x, ord, axis)
    return anp.reshape(result, kept(x.shape, axis)) if keepdims else result


def tensorinv(a: Any, ind: int = 2) -> Any:
    """np.linalg.tensorinv, as the inverse of a matrix."""
    shape = np.shape(getval(a))
    inverse = anp.linalg.inv(anp.reshape(a, (math.prod(shape[ind:]), -1)))
    return anp.reshape(inverse, shape[ind:] + shape[:ind])


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """np.linalg.tensorsolve, as equations with a matrix."""
    moved = list(axes or ())
    a = anp.transpose(a, [i for i in range(np.ndim(getval(a))) if i not in moved] + moved)
    shape = np.shape(getval(a))[np.ndim(getval(b)) :]
    solution = anp.linalg.solve(anp.reshape(a, (-1, math.prod(shape))), anp.reshape(b, (-1, 1)))
    return anp.reshape(solution, shape)


def kept(shape: tuple[int, ...], axis: Any) -> tuple[int, ...]:
    """A shape with length 1 along some axes, or along all for None."""
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis) % len(shape)
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def where(choice: Any, *operands: Any) -> Any:
    """np.where."""
    return selected(choice, *operands) if operands else anp.where(choice)


def select(conditions: Any, choices: Any, default: Any = 0) -> Any:
    """np.select."""
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        default = selected(condition, choice, default)
    return default


def block(arrays: Any) -> Any:
    """np.block."""
    depth, inner = 0, arrays
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]

    def joined(item: Any, level: int) -> Any:
        if not isinstance(item, list):
            shape = np.shape(getval(item))
            return anp.reshape(item, (1,) * (depth - len(shape)) + shape)
        return anp.concatenate([joined(part, level - 1) for part in item], axis=-level)

    return joined(arrays, depth)


def sliding_window_view(x: Any, window_shape: Any, axis: Any = None, **_: Any) -> Any:
    """np.lib.stride_tricks.sliding_window_view, as a copy."""
    widths = np.atleast_1d(window_shape)
    axes = range(len(widths)) if axis is None else np.atleast_1d(axis) % x.ndim
    for i, width in zip(axes, widths, strict=True):
        positions = np.arange(np.shape(getval(x))[i] - width + 1)[:, None] + np.arange(width)
        x = anp.moveaxis(x[(*(slice(None),) * i, positions)], i + 1, -1)
    return x


def without_gradient(function: Function) -> Function:
    """A function whose gradient by autograd cannot be recorded."""

    def forward(x: Any, *rest: Any, **keywords: Any) -> Any:
        if isbox(x):
            raise TraceError(f"parity has no gradient of {spelled(function)}")
        return function(x, *rest, **keywords)

    return forward


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """np.diagonal; autograd's gradient of it has the last two axes alone."""
    x = anp.moveaxis(x, (axis1, axis2), (-2, -1))
    n, m = np.shape(getval(x))[-2:]
    rows, columns = np.nonzero(np.eye(n, m, k=offset))
    return x[..., rows, columns]


OWN: Mapping[Function, Function] = {
    np.linalg.norm: norm, np.linalg.tensorinv: tensorinv, np.linalg.tensorsolve: tensorsolve, np.diagonal: diagonal,
    np.take: take, np.take_along_axis: take_along_axis, np.stack: stack, np.dot: dot, np.pad: pad,
    np.broadcast_to: spread, np.split: parts_by(np.split), np.array_split: parts_by(np.array_split),
    np.where: where, np.select: select, np.block: block, np.lib.stride_tricks.sliding_window_view: sliding_window_view,
    **{f: without_gradient(f) for f in (np.linalg.svd, np.linalg.eigh, np.linalg.slogdet, np.gradient)},
}  # fmt: skip
"""What autograd lacks, or does not trace."""


class Writable(Handle, np.lib.mixins.NDArrayOperatorsMixin):
    """An array that may be written to: `origin` is the one of which it is a view, `read` the function that gives it.

    A `scalar` is what NumPy returns for one element or for a sum of all: an in-place operator makes another one.
    `dtype` is the one that what is written is cast to.
    """

    def __init__(
        self, value: Any, origin: Writable | None = None, read: Function | None = None, dtype: Any = None
    ) -> None:
        self._value, self._origin, self._read = value, origin, read
        self._version = 0 if origin is None else origin.version
        self.dtype: np.dtype[Any] = np.dtype(dtype or dtype_of(value)) if origin is None else origin.dtype
        self.scalar = False

    @property
    def version(self) -> int:
        """How often the array was written to."""
        return self._version if self._origin is None else self._origin.version

    @property
    def value(self) -> Any:
        """The current value: a stand-in, a box of one, or an array."""
        if self._origin is not None and self._read is not None and self._version != self._origin.version:
            self._value, self._version = self._read(self._origin.value), self._origin.version
        return self._value

    def write(self, new: Any) -> None:
        """Write to all elements."""
        new = cast(new, self.dtype)
        new = new if np.shape(getval(new)) == self.shape else spread(new, self.shape)
        if self._origin is None or self._read is None:
            self._value = new
            self._version += 1
            return
        whole = self._origin
        positions = self._read(np.arange(whole.size).reshape(whole.shape)).ravel()
        flat = put_in(anp.reshape(whole.value, -1), anp.reshape(new, -1), positions)
        whole.write(anp.reshape(flat, whole.shape))

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method not in UFUNC_METHODS or ufunc.nout > 1:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TraceError(f"np.{name} cannot be a step; use other functions of NumPy")
        if keywords.pop("dtype", None) is not None:
            raise TraceError(f"np.{ufunc.__name__} is given a dtype, which cannot be a step; use astype")
        return UFUNC_METHODS[method](ufunc, *inputs, **keywords)

    def __array_function__(self, function: Function, _types: Any, operands: Any, keywords: Mapping[str, Any]) -> Any:
        if function in WRITING:
            raise TraceError(f"np.{function.__name__} cannot be a step; assign to elements, or use np.where")
        if function in REPLACED:
            return REPLACED[function](*operands, **keywords)
        options = {name: value for name, value in keywords.items() if name != "out"}
        operands, options = by_position(function, operands, options)
        if function in VIEWING and isinstance(operands[0], Writable):
            rest, named = unwrapped(operands[1:]), unwrapped(options)
            return operands[0].seen(lambda values: lifted(function)(values, *rest, **named))
        if options.get("dtype") is not None:
            raise TraceError(f"np.{function.__name__} is given a dtype, which cannot be a step; use astype")
        result = lifted(function)(*unwrapped(operands), **unwrapped(options))
        return wrapped(result) if keywords.get("out") is None else written_to(keywords["out"], result)

    @property
    def model(self) -> Any:
        """An array of this shape; of a view, with the view's strides."""
        if self._origin is None or self._read is None:
            return np.empty(self.shape, np.int8)
        return self._read(self._origin.model)

    def seen(self, read: Function) -> Any:
        """What a function shows of this array: a view where NumPy returns one."""
        model = self.model
        shown = read(model)
        if isinstance(shown, (list, tuple)):
            return [self.seen(lambda values, i=i: read(values)[i]) for i in range(len(shown))]
        is_view = isinstance(shown, np.ndarray) and np.may_share_memory(shown, model)
        return Writable(read(self.value), self, read) if is_view else wrapped(read(self.value))

    def __getitem__(self, index: Any) -> Any:
        index = unwrapped(index)
        if any(isinstance(item, (Traced, np.ndarray)) for item in leaves(index)):
            return wrapped(item_of(self.value, index))
        return self.seen(lambda values: item_of(values, index))

    def __setitem__(self, index: Any, new: Any) -> None:
        index, new = unwrapped(index), unwrapped(new)
        new = lifted(np.stack)(new) if isinstance(new, (list, tuple)) and is_traced(new) else new
        if is_mask(index) and np.ndim(getval(new)) == 0:
            mask = anp.reshape(index, index.shape + (1,) * (self.ndim - index.ndim))
            self.write(selected(mask, cast(new, self.dtype), self.value))
        elif index is Ellipsis or (isinstance(index, slice) and index == slice(None)):
            self.write(new)
        else:
            self.write(put_in(self.value, cast(new, self.dtype), index))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.known(np.asarray)

    def __bool__(self) -> bool:
        return bool(getval(self.value))

    def __float__(self) -> float:
        return float(self.known(float))

    def __int__(self) -> int:
        return int(self.known(int))

    def __index__(self) -> int:
        return int(self.known(operator.index))

    def __repr__(self) -> str:
        return repr(concrete(getval(self.value)))

    def __str__(self) -> str:
        return str(concrete(getval(self.value)))

    def __format__(self, spec: str) -> str:
        return format(concrete(getval(self.value)), spec)

    def known(self, function: Function) -> Any:
        """A function of the array if it depends on no tensor and no param; TraceError if it does."""
        if is_traced(self.value):
            raise TraceError(
                "a reference must not need the values of tensors or params as Python's numbers, nor give them to NumPy "
                "in a list (use np.stack), nor write them to an array that NumPy has made elsewhere: use NumPy's "
                f"functions, and if an array is written to, {REMEDY}"
            )
        return function(self.value)

    # Attributes and methods

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return np.shape(getval(self.value))

    @shape.setter
    def shape(self, _: Any) -> None:
        raise TraceError("a reference must not set the shape of a tensor; use np.reshape")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.size(getval(self.value)))

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The axes in reverse order."""
        return np.transpose(self)

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name, None)
        if name.startswith("_") or function is None or not hasattr(np.ndarray, name):
            raise AttributeError(f"a traced tensor has no {name}; use the functions of NumPy")
        if not callable(getattr(np.ndarray, name)):
            return function(self)
        return lambda *rest, **keywords: function(self, *rest, **keywords)

    def reshape(self, *shape: Any, **keywords: Any) -> Any:
        """np.reshape."""
        return np.reshape(self, unwrapped(shape[0] if len(shape) == 1 else shape), **keywords)

    def transpose(self, *axes: Any) -> Any:
        """np.transpose."""
        return np.transpose(self, *((axes,) if len(axes) > 1 else axes))

    def flatten(self) -> Any:
        """A copy with one axis."""
        return wrapped(anp.reshape(self.value, -1))

    def copy(self, *_: Any, **__: Any) -> Any:
        """A copy."""
        return Writable(self.value, dtype=self.dtype)

    __copy__ = __deepcopy__ = copy

    def fill(self, value: Any) -> None:
        """Write a number to all elements."""
        self.write(unwrapped(value))

    def sort(self, axis: int = -1) -> None:
        """Sort the elements."""
        self.write(unwrapped(np.sort(self, axis)))

    def item(self, *index: Any) -> Any:
        """The number, if it depends on no tensor."""
        return self.known(lambda values: np.asarray(values).item(*index))

    def tolist(self) -> Any:
        """The numbers, if they depend on no tensor."""
        return self.known(lambda values: np.asarray(values).tolist())

    def view(self, *dtype: Any) -> Any:
        """The array itself; no step if it reads the bits of a dtype."""
        if dtype:
            raise TraceError("a reference must not view the bits of a tensor")
        return self.seen(lambda values: values)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """A copy in another dtype: a narrower one rounds, one of integers cuts off the fraction."""
        kind = np.dtype(dtype)
        return Writable(cast(self.value, kind, self.dtype), dtype=kind)


def by_position(function: Function, operands: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A call whose tensors are given by position, where those before them are: others cannot be operands of a step."""
    if not is_traced(unwrapped(list(keywords.values()))):
        return operands, keywords
    names = list(inspect.signature(function).parameters)[len(operands) :]
    moved = list(takewhile(lambda name: name in keywords, names))
    rest = {name: value for name, value in keywords.items() if name not in moved}
    return (*operands, *(keywords[name] for name in moved)), rest


def called(ufunc: np.ufunc, *inputs: Any, out: Any = None, where: Any = True, **keywords: Any) -> Any:
    """A ufunc, whose result is written to `out` where the mask says so."""
    function, given = lifted(ufunc), unwrapped(inputs)
    if function is ufunc and any(map(isbox, given)):
        raise TraceError(f"parity has no gradient of {ufunc.__name__}; use other functions, or set gradients: false")
    result = function(*given, **unwrapped(keywords))
    if out is None and where is not True:
        raise TraceError(f"np.{ufunc.__name__} with where= but without out= leaves elements undefined; use np.where")
    return wrapped(result) if out is None else written_to(out, result, where)


def written_to(out: Any, result: Any, where: Any = True) -> Any:
    """The array `out` with a result in it."""
    target = out[0] if isinstance(out, tuple) else out
    if not isinstance(target, Writable):
        raise TraceError(f"a reference must not write tensors to an array that NumPy has made elsewhere: {REMEDY}")
    if target.scalar:
        return wrapped(result)
    target.write(result if where is True else selected(unwrapped(where), result, target.value))
    return target


def reduced(ufunc: np.ufunc, x: Any, axis: Any = 0, **keywords: Any) -> Any:
    """A ufunc's reduction, as NumPy's function of that name."""
    return method_of(ufunc, "reduce", REDUCED)(x, axis=axis, **keywords)


def accumulated(ufunc: np.ufunc, x: Any, axis: int = 0, **keywords: Any) -> Any:
    """A ufunc's running reduction."""
    return method_of(ufunc, "accumulate", ACCUMULATED)(x, axis=axis, **keywords)


def outer(ufunc: np.ufunc, x: Any, y: Any) -> Any:
    """A ufunc of all pairs of elements."""
    return ufunc(np.reshape(x, np.shape(x) + (1,) * np.ndim(y)), y)


def added_at(ufunc: np.ufunc, x: Any, index: Any, values: Any) -> None:
    """np.add.at and np.subtract.at."""
    if ufunc not in (np.add, np.subtract):
        raise TraceError(f"np.{ufunc.__name__}.at cannot be a step; np.add.at and np.subtract.at can")
    if not isinstance(x, Writable):
        raise TraceError(f"a reference must not write tensors to an array that NumPy has made elsewhere: {REMEDY}")
    index, values = unwrapped(index), unwrapped(values)
    shape = np.shape(getval(item_of(x.value, index)))
    signed = values if ufunc is np.add else -values
    x.write(x.value + put_back(spread(signed, shape), getval(x.value), index))


def method_of(ufunc: np.ufunc, method: str, table: Mapping[str, Function]) -> Function:
    """The function that a ufunc's method is."""
    if ufunc.__name__ not in table:
        raise TraceError(f"np.{ufunc.__name__}.{method} cannot be a step; use other functions of NumPy")
    return table[ufunc.__name__]


UFUNC_METHODS: Mapping[str, Function] = {
    "__call__": called, "reduce": reduced, "accumulate": accumulated, "outer": outer, "at": added_at,
}  # fmt: skip


def like(number: float) -> Function:
    """np.zeros_like and others of one number."""
    return lambda x, dtype=None, **_: Writable(np.full(np.shape(x), number, dtype or x.dtype))


def full_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    """np.full_like."""
    result = like(0)(x, dtype)
    result.fill(value)
    return result


def copied(to: Any, values: Any, where: Any = True, **_: Any) -> None:
    """np.copyto."""
    written_to(to, unwrapped(values), where)


def masked(to: Any, mask: Any, values: Any) -> None:
    """np.putmask."""
    written_to(to, unwrapped(values), mask)


def full(shape: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    """np.full."""
    known = np.full(unwrapped(shape), 0 if is_traced(unwrapped(value)) else value, dtype)
    result = Writable(known if dtype or known.dtype.kind == "f" or not is_traced(unwrapped(value)) else known * 1.0)
    result.fill(value)
    return result


REPLACED: Mapping[Function, Function] = {
    **dict.fromkeys((np.zeros_like, np.empty_like), like(0)),
    np.ones_like: like(1),
    np.full_like: full_like,
    np.copyto: copied,
    np.putmask: masked,
    np.copy: lambda x, **_: x.copy(),
}


def wrapped(value: Any) -> Any:
    """What a function of NumPy returned, for a reference."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(wrapped, value)) if not hasattr(value, "_fields") else tuple(map(wrapped, value))
    if not isinstance(getval(value), (Traced, np.ndarray)):
        return value
    result = Writable(value)
    result.scalar = not result.shape
    return result


def unwrapped(value: Any) -> Any:
    """The values of arrays, also in lists and indices."""
    if isinstance(value, Writable):
        return value.value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(unwrapped, value))
    if isinstance(value, dict):
        return {name: unwrapped(item) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*map(unwrapped, (value.start, value.stop, value.step)))
    return value


def is_traced(value: Any) -> bool:
    """Whether a stand-in is among these values."""
    return any(isinstance(getval(item), Traced) for item in leaves(value))


def is_mask(index: Any) -> bool:
    """Whether an index is an array of booleans."""
    return isinstance(index, (Traced, np.ndarray)) and index.dtype == bool


def dtype_of(value: Any) -> np.dtype[Any]:
    """The dtype of a value."""
    given = getval(value)
    return given.dtype if isinstance(given, Traced) else np.asarray(given).dtype


def item_of(values: Any, index: Any) -> Any:
    """values[index]; a table may be read at traced integers."""
    traced = next((item for item in leaves(index) if isinstance(item, Traced)), None)
    if isinstance(values, np.ndarray) and traced is not None:
        return traced.tape.record(getitem, (values, index), {})
    return part_of(values, index)


def put_in(values: Any, new: Any, index: Any) -> Any:
    """`values` with `new` at an index."""
    return put(values if is_traced(values) else np.asarray(values), new, index)


def cast(value: Any, kind: np.dtype[Any], own: np.dtype[Any] | None = None) -> Any:
    """A value in a dtype: a narrow one rounds, float64 and wider ones are that in which the program is evaluated."""
    own = own or dtype_of(value)
    if kind.kind not in "fiub":
        raise TraceError(f"{kind.name} is no dtype of a tensor")
    if own == kind or (own.kind == kind.kind == "f" and kind.itemsize >= min(own.itemsize, WIDE)):
        return value
    if not is_traced(value):
        return np.asarray(value).astype(kind)
    if kind.kind != "f":
        return as_type(getval(value), kind.name)
    return narrow(value, kind.name) if own.kind == "f" else as_float(value, np.zeros(()))


# NumPy as a reference imports it

TRACING: ContextVar[bool] = ContextVar("TRACING", default=False)


@contextmanager
def writing() -> Iterator[None]:
    """Inside, arrays that a reference makes may be written to."""
    token = TRACING.set(True)
    try:
        yield
    finally:
        TRACING.reset(token)


def made(function: Function) -> Function:
    """A function that makes an array."""

    def make(*operands: Any, **keywords: Any) -> Any:
        result = function(*unwrapped(operands), **unwrapped(keywords))
        return Writable(result) if TRACING.get() else result

    return make


def array(values: Any, dtype: Any = None, **keywords: Any) -> Any:
    """np.array; traced numbers in lists stay traced."""
    if not TRACING.get():
        return np.array(values, dtype, **keywords)
    if isinstance(values, Writable):
        return values.copy() if dtype is None else values.astype(dtype)
    if is_traced(unwrapped(values)):
        result = np.stack([array(item) if isinstance(item, (list, tuple)) else wrapped_number(item) for item in values])
        return result if dtype is None else result.astype(dtype)
    return Writable(np.array(unwrapped(values), dtype, **keywords))


def wrapped_number(item: Any) -> Any:
    """An item of a list, as an array."""
    return item if isinstance(item, Writable) else Writable(np.asarray(item))


def asarray(values: Any, dtype: Any = None, **keywords: Any) -> Any:
    """np.asarray."""
    if not isinstance(values, Writable):
        return array(values, dtype, **keywords)
    return values if dtype is None or np.dtype(dtype) == values.dtype else values.astype(dtype)


NUMPY = ModuleType("numpy")
"""NumPy for a reference: arrays that it makes may be written to."""
vars(NUMPY).update(
    {
        **vars(np),
        **{name: made(getattr(np, name)) for name in ("zeros", "ones", "eye", "identity", "tri")},
        "empty": made(np.zeros),
        "full": lambda *given, **named: full(*given, **named) if TRACING.get() else np.full(*given, **named),
        "array": array,
        **dict.fromkeys(("asarray", "asanyarray", "ascontiguousarray"), asarray),
    }
)
