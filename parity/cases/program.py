"""An op's reference as a program: a flat list of steps that can be evaluated, printed and changed.

`trace` runs a reference once on stand-ins for its tensors and options, through HIPS autograd where gradients are
wanted, and records every NumPy call: those of the forward pass, and those that the rules of reverse-mode
differentiation make of it. A step knows its function, its operands (other steps, inputs, options, constants) and the
name that the source gives its result; `grad of h` is the gradient that flows back into `h`.
"""

from __future__ import annotations

import cProfile
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property, wraps
from types import FrameType
from typing import Any

import autograd.numpy
import numpy as np
from autograd.core import VJPNode, VSpace, backward_pass
from autograd.extend import defvjp
from autograd.extend import primitive as autograd_primitive
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.numpy.numpy_vjps import unbroadcast_f
from autograd.tracer import getval, isbox, new_box, notrace_primitives, trace_stack
from numpy.typing import DTypeLike, NDArray

from parity.cases.factorizations import FACTORIZATIONS, factorized

Array = NDArray[Any]
Tensors = Mapping[str, Array]


class TraceError(TypeError):
    """A reference does something that cannot be recorded as a step: it branches on data, or calls something other than
    NumPy."""


@dataclass(frozen=True)
class Ref:
    """The value with this number: an input, an option or the result of a step."""

    index: int


@dataclass(frozen=True, init=False)
class Step:
    """One call: `function(*operands, **keywords)`, whose result is value `index`. Operands are `Ref`, constants, or
    sequences of them.

    `label` is the name of the result in the reference's source, "" if it has none; `backward`: the step belongs to the
    gradients. `site` is equal for the runs of one call in the source, as in a loop; `of` is the number of the value
    whose gradient a step of the backward pass comes from (-1: none).
    """

    index: int
    function: Callable[..., Any]
    operands: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    backward: bool = False
    site: int = 0
    of: int = -1

    def __init__(
        self,
        index: int,
        function: Callable[..., Any],
        operands: tuple[Any, ...],
        keywords: Mapping[str, Any] | None = None,
        label: str = "",
        backward: bool = False,
        site: int = 0,
        of: int = -1,
    ) -> None:
        # A finding makes thousands of them, and a frozen dataclass's own constructor takes three times as long.
        self.__dict__.update(
            index=index,
            function=function,
            operands=operands,
            keywords={} if keywords is None else keywords,
            label=label,
            backward=backward,
            site=site,
            of=of,
        )

    @property
    def name(self) -> str:
        """The function's name: `multiply`, `sum`, `matmul`."""
        return str(getattr(self.function, "__name__", self.function))

    @cached_property
    def refs(self) -> tuple[int, ...]:
        """The numbers of the values that it reads."""
        return tuple(leaf.index for leaf in leaves(self.operands) if isinstance(leaf, Ref))


@dataclass(frozen=True)
class Program:
    """The steps of a reference for one set of shapes.

    `inputs` are the values of tensors (`x`, and `grad.y` for the gradient of an output), `options` those of the op's
    numbers, with the number itself; `outputs` are the results by tensor name (`y`, `grad.x`). `branches`: the reference
    branched on an option, so other numbers may give other steps.
    """

    inputs: Mapping[str, int]
    options: Mapping[str, tuple[int, float]]
    steps: tuple[Step, ...]
    outputs: Mapping[str, int]
    branches: bool = False

    def run(
        self,
        tensors: Tensors,
        dtype: DTypeLike,
        *,
        options: Mapping[str, float] | None = None,
        functions: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> dict[str, Array]:
        """The outputs for `tensors`, computed in `dtype`; integers stay integers.

        `options` changes numbers of the op, `functions` replaces the functions of steps.
        """
        kind, instead, numbers = np.dtype(dtype), functions or {}, options or {}
        values: list[Any] = [None] * self.size
        for name, index in self.inputs.items():
            values[index] = in_dtype(np.asarray(tensors[name]), kind)
        for name, (index, number) in self.options.items():
            values[index] = numbers.get(name, number)
        with np.errstate(all="ignore"):
            for step in self.steps:
                values[step.index] = call(
                    instead.get(step.function, step.function), filled(step.operands, values, kind), step.keywords
                )
                for index in self._last_used.get(step.index, ()):
                    values[index] = None
        return {name: np.asarray(values[index]) for name, index in self.outputs.items()}

    @cached_property
    def size(self) -> int:
        """How many values there are."""
        indices = [*self.inputs.values(), *(i for i, _ in self.options.values()), *(s.index for s in self.steps)]
        return max(indices, default=-1) + 1

    @cached_property
    def _last_used(self) -> dict[int, list[int]]:
        """The values that nothing reads after a step, by that step."""
        last = {ref: step.index for step in self.steps for ref in step.refs}
        kept = set(self.outputs.values())
        freed: dict[int, list[int]] = {}
        for ref, index in last.items():
            if ref not in kept:
                freed.setdefault(index, []).append(ref)
        return freed

    def with_numbers(self, numbers: Mapping[str, float | tuple[float, ...]]) -> Program:
        """The program with other numbers for its options, by the names of the params."""

        def number(name: str) -> float:
            head, _, item = name.partition(".")
            value = numbers[head]
            return value[int(item)] if isinstance(value, tuple) else value

        options = {name: (index, number(name)) for name, (index, _) in self.options.items()}
        return self if options == self.options else replace(self, options=options)

    def reach(self, outputs: Collection[str]) -> set[int]:
        """The positions of the steps that these outputs depend on."""
        wanted = {self.outputs[name] for name in outputs}
        reached = set()
        for position in range(len(self.steps) - 1, -1, -1):
            step = self.steps[position]
            if step.index in wanted:
                reached.add(position)
                wanted.update(step.refs)
        return reached

    def needed(self, outputs: Collection[str] | None = None) -> Program:
        """The program with only the steps that these outputs (by default all) depend on."""
        kept = {n: i for n, i in self.outputs.items() if outputs is None or n in outputs}
        reached = self.reach(kept)
        return replace(self, steps=tuple(s for p, s in enumerate(self.steps) if p in reached), outputs=kept)


PYTHON: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.power: operator.pow,
    np.negative: operator.neg,
    np.sqrt: math.sqrt,
}
"""Options are computed as Python floats, so that a result takes the dtype of the tensor it is combined with."""


NUMBERS = (int, float, bool)


def call(function: Callable[..., Any], operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The function's result; a Python float if all operands are."""
    for item in operands or (None,):
        if type(item) not in NUMBERS:
            if function in FACTORIZATIONS:
                return factorized(function, operands, keywords)
            return function(*operands, **keywords)
    try:
        result = PYTHON.get(function, function)(*operands, **keywords)
        return result.item() if isinstance(result, np.generic) else result
    except (ArithmeticError, ValueError):
        return float(function(*operands, **keywords))  # inf and nan, as for arrays


def in_dtype(values: Array, kind: np.dtype[Any]) -> Array:
    """Floating-point values in the dtype; all others as they are."""
    return values.astype(kind, copy=False) if values.dtype.kind == "f" else values


def filled(operands: Any, values: Sequence[Any], kind: np.dtype[Any]) -> Any:
    """Operands with references replaced by values, and floating-point constants in the dtype."""
    if isinstance(operands, Ref):
        return values[operands.index]
    if isinstance(operands, (tuple, list)):
        return type(operands)([filled(item, values, kind) for item in operands])
    return in_dtype(operands, kind) if isinstance(operands, np.ndarray) else operands


def leaves(operands: Any) -> Iterator[Any]:
    """Operands, those of inner sequences one by one."""
    if isinstance(operands, (tuple, list)):
        for item in operands:
            yield from leaves(item)
    else:
        yield operands


# Tracing.


class Handle:
    """What a reference has instead of a value that it may write to: `value` is the current one."""

    value: Any


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """A stand-in for an array or an option: what is computed with it is recorded in its `tape`."""

    __array_priority__ = 50.0

    def __init__(self, tape: Tape, value: Any, index: int) -> None:
        self.tape, self.value, self.index = tape, value, index

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if any(map(isbox, inputs)):
            return NotImplemented
        if method != "__call__":
            raise TraceError(f"np.{ufunc.__name__}.{method} cannot be a step; use a function of NumPy")
        return self.tape.record(ufunc, inputs, keywords)

    def __array_function__(
        self, function: Callable[..., Any], _types: Any, operands: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        if function in ABOUT_SHAPES:
            return function(*(concrete(item) for item in operands), **keywords)
        if function in MOMENTS:
            return MOMENTS[function](*operands, **keywords)
        return self.tape.record(function, tuple(operands), keywords)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return np.shape(self.value)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return np.ndim(self.value)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.size(self.value))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return np.asarray(self.value).dtype

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The axes in reverse order."""
        return np.transpose(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.tape.record(getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TraceError("a reference must not assign to elements; use np.where, np.stack or np.concatenate")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TraceError("a reference must not need the values of tensors: no assignment to elements, only NumPy")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a traced tensor has no {name}; use the functions of NumPy")

    def __bool__(self) -> bool:
        if isinstance(self.value, (bool, int, float)) and not isinstance(self.value, np.generic):
            self.tape.branches = True
            return bool(self.value)
        raise TraceError("a reference must not branch on the values of tensors; use np.where")

    def __float__(self) -> float:
        raise TraceError("a reference must not turn an option or a tensor into a float")

    def view(self, _kind: Any) -> Any:
        """This stand-in: it already is an array."""
        return self

    def reshape(self, *shape: Any) -> Any:
        """np.reshape."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def max(self, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
        """np.max."""
        limit = {} if initial is None else {"initial": initial}
        return np.max(self, axis=axis, keepdims=keepdims, **limit)

    def __iadd__(self, other: Any) -> Any:
        return self + other


def mean(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """np.mean as a sum, so that edits know what it adds up."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / (math.prod(x.shape) // max(math.prod(total.shape), 1))


def var(x: Any, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Any:
    """np.var in two passes."""
    centred = x - mean(x, axis, keepdims=True)
    total = np.sum(centred * centred, axis=axis, keepdims=keepdims)
    return total / (math.prod(x.shape) // max(math.prod(total.shape), 1) - ddof)


def std(x: Any, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Any:
    """The root of `var`."""
    return np.sqrt(var(x, axis, ddof=ddof, keepdims=keepdims))


MOMENTS: Mapping[Callable[..., Any], Callable[..., Any]] = {np.mean: mean, np.var: var, np.std: std}


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy as a method."""
    return lambda self, *rest, **keywords: function(self, *rest, **keywords)


METHODS = (
    np.sum, np.mean, np.min, np.prod, np.var, np.std, np.any, np.all, np.argmax, np.argmin, np.cumsum, np.clip,
    np.transpose, np.squeeze, np.swapaxes, np.ravel, np.repeat, np.dot,
)  # fmt: skip
"""Methods that a user's reference may call, such as `x.sum(axis)`, besides those that `Traced` defines."""
for _function in METHODS:
    setattr(Traced, _function.__name__, method(_function))

ABOUT_SHAPES = frozenset((np.shape, np.ndim, np.size, np.result_type, np.iscomplexobj, np.isscalar))


def getitem(values: Any, index: Any) -> Any:
    """values[index]."""
    return values[index]


def concrete(item: Any) -> Any:
    """The array behind a stand-in."""
    return item.value if isinstance(item, Traced) else item


LEFT = "a reference must not use a value that an earlier call has left: make it a function of its arguments only"


@dataclass
class Tape:
    """The record of a reference's run."""

    values: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    known: dict[Any, Traced] = field(default_factory=dict)
    backward: bool = False
    branches: bool = False
    labelled: bool = True
    of: int = -1
    kind: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    gates: dict[int, Gate] = field(default_factory=dict)

    def stand_in(self, value: Any) -> Traced:
        """A stand-in for a new value."""
        self.values.append(value)
        return Traced(self, value, len(self.values) - 1)

    def record(self, function: Callable[..., Any], operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Compute a step and record it, unless it is a sum over axes of length 1 or was recorded before."""
        if function is np.sum and sums_nothing(operands[0], keywords):
            return operands[0]
        if any(isinstance(item, Traced) and item.tape is not self for item in leaves(operands)):
            raise TraceError(LEFT)
        gated = gated_operand(self.gates, function, operands) if self.backward and self.gates else None
        if self.backward and self.gates:
            operands = [item if item is gated else self.opened(item) for item in operands]
        for name in (name for name, item in keywords.items() if any(isinstance(i, Traced) for i in leaves(item))):
            raise TraceError(
                f"np.{function.__name__} is given the tensor {name}=, which cannot be a step; use np.where"
            )
        function, operands, keywords = as_broadcast(function, operands, keywords)
        operands = tuple(constant(function, item, self.kind) for item in operands)
        names = referred(operands)
        key = (function, repr(names), repr(keywords)) if has_no_arrays(names) and has_no_arrays(keywords) else None
        if key in self.known:
            return self.known[key]
        result = self.stand_in(outlined(function, plain(operands), plain(keywords)))
        site = call_site() if self.labelled else 0
        self.steps.append(Step(result.index, function, names, dict(keywords), "", self.backward, site, self.of))
        if gated is not None:
            factors = [item for item in operands if item is not gated and isinstance(item, Traced)]
            gate = self.gates[gated.index]
            self.gates[result.index] = replace(gate, multiplied=gate.multiplied or bool(factors))
        if key is not None:
            self.known[key] = result
        return result

    def opened(self, item: Any) -> Any:
        """A gradient with zeros where another operand of np.where was chosen, whatever it was multiplied with."""
        gate = self.gates.get(item.index) if isinstance(item, Traced) else None
        if gate is None or not gate.multiplied:
            return item
        del self.gates[item.index]
        result = item
        for choice, if_true in gate.choices:
            result = np.where(choice, result, 0.0) if if_true else np.where(choice, 0.0, result)
        self.gates[item.index] = gate
        return result


@dataclass(frozen=True)
class Gate:
    """Where a gradient is zero because np.where chose another operand: the choices, and whether each chose this one
    where it is true; `multiplied`: with values that may be infinite, for which 0 times a value is no longer 0."""

    choices: tuple[tuple[Any, bool], ...]
    multiplied: bool = False


PASSING = frozenset((np.multiply, np.true_divide, np.negative))
"""Functions whose result is zero where their first gradient is."""


def gated_operand(gates: Mapping[int, Gate], function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The operand whose gate a step's result has, too; None if there is none."""
    if function not in PASSING:
        return None
    candidates = operands[:1] if function is np.true_divide else operands
    gated = next((item for item in candidates if isinstance(item, Traced) and item.index in gates), None)
    alike = gated is not None and np.broadcast_shapes(*(np.shape(concrete(item)) for item in operands)) == gated.shape
    return gated if alike else None


AUTOGRAD = backward_pass.__code__.co_filename
RECORDED_CALL: ContextVar[int] = ContextVar("RECORDED_CALL", default=0)
"""The number of the call that is computed, where a reference is a recording: its calls come from one place here."""


@contextmanager
def one_call(number: int) -> Iterator[None]:
    """Inside, steps belong to the call of this number in a recording."""
    token = RECORDED_CALL.set(number)
    try:
        yield
    finally:
        RECORDED_CALL.reset(token)


def labelled_as(value: Any, name: str) -> Any:
    """The value; if it is traced, its step gets this name, as by an assignment in a source."""
    traced = getval(value.value if isinstance(value, Handle) else value)
    if isinstance(traced, Traced):
        traced.tape.labels.setdefault(traced.index, name)
    return value


def call_site() -> int:
    """Equal for calls of `record` from one instruction of the source through the same callers, however many gradients
    autograd computes together."""
    frames, frame = [], sys._getframe(2)
    while frame.f_back is not None and frame.f_code is not trace.__code__:
        if frame.f_code.co_filename != AUTOGRAD:
            frames.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash((RECORDED_CALL.get(), *frames))


def has_no_arrays(operands: Any) -> bool:
    """Whether equal texts mean equal operands."""
    items = operands.values() if isinstance(operands, Mapping) else operands
    return not any(isinstance(item, (np.ndarray, Traced)) for item in leaves(tuple(items)))


OUTLINED = 1 << 19
"""From this number of elements on, a tape holds an array's shape and one number instead of the array."""


def outlined(function: Callable[..., Any], operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The result of a step; a large one as its shape and dtype, filled with one number."""
    is_elementwise = isinstance(function, np.ufunc) and function.signature is None  # np.matmul is a ufunc, too.
    shape_of = np.broadcast_shapes if is_elementwise else getattr(function, "result_shape", None)
    shapes = [np.shape(item) for item in operands] if shape_of else []
    if shape_of is None or max(map(math.prod, shapes), default=0) < OUTLINED:
        value = one_array(function, call(function, operands, keywords))
        return value if np.size(value) < OUTLINED else np.broadcast_to(value.ravel()[0], value.shape)
    small = [item[(slice(1),) * np.ndim(item)] if np.ndim(item) else item for item in operands]
    return np.broadcast_to(np.ravel(function(*small, **keywords))[0], shape_of(*shapes))


def one_array(function: Callable[..., Any], value: Any) -> Any:
    """What a step returns; TraceError for several arrays of different shapes."""
    if isinstance(value, (tuple, list)) and len({np.shape(item) for item in value}) > 1:
        raise TraceError(f"{spelled(function)} returns several arrays, and a step returns one")
    return value


def spelled(function: Callable[..., Any]) -> str:
    """A function of NumPy as a reference calls it: `np.linalg.svd`."""
    module = str(getattr(function, "__module__", None) or "numpy")
    return f"{module.replace('numpy', 'np', 1)}.{function.__name__}"


def sums_nothing(operand: Any, keywords: Mapping[str, Any]) -> bool:
    """Whether a sum keeps the axes it sums over, and all of them have length 1."""
    axis = keywords.get("axis")
    axes = range(np.ndim(concrete(operand))) if axis is None else np.atleast_1d(axis)
    return bool(keywords.get("keepdims")) and all(operand.shape[i] == 1 for i in axes)


def as_broadcast(
    function: Callable[..., Any], operands: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """autograd repeats a gradient by adding an array of zeros: that is a broadcast."""
    if function is np.add and isinstance(operands[1], np.ndarray) and operands[1].ndim and not operands[1].any():
        shape = np.broadcast_shapes(np.shape(concrete(operands[0])), operands[1].shape)
        return np.broadcast_to, (operands[0], shape), {}
    return function, operands, keywords


def constant(function: Callable[..., Any], item: Any, kind: np.dtype[Any]) -> Any:
    """An operand other than a stand-in: a shape is a tuple, a tensor of zeros to choose from is 0."""
    if not isinstance(item, np.ndarray):
        return item
    if function in (np.reshape, np.broadcast_to):
        return tuple(item.tolist())
    return 0.0 if function is np.where and item.dtype.kind == "f" and not item.any() else in_dtype(item, kind)


def plain(item: Any) -> Any:
    """Stand-ins replaced by arrays."""
    if isinstance(item, (tuple, list)):
        return type(item)(map(plain, item))
    if isinstance(item, Mapping):
        return {key: plain(value) for key, value in item.items()}
    return concrete(item)


def referred(item: Any) -> Any:
    """Stand-ins replaced by references."""
    if isinstance(item, (tuple, list)):
        return tuple(map(referred, item)) if isinstance(item, tuple) else list(map(referred, item))
    if isbox(item):
        raise TraceError("a differentiable tensor reached a function that autograd does not know")
    return Ref(item.index) if isinstance(item, Traced) else item


class TracedSpace(VSpace):  # type: ignore[misc]  # autograd has no types
    """How gradients of stand-ins are added up."""

    def __init__(self, value: Traced) -> None:
        self.shape, self.dtype = value.shape, value.dtype

    def _add(self, one: Any, other: Any) -> Any:
        return one + other

    _mut_add = _add


class NamedNode(VJPNode):  # type: ignore[misc]  # autograd has no types
    """A node of autograd's graph that labels the gradient which flows back into it."""

    __slots__ = ()
    vjp: Any

    def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, parent_argnums: Any, parents: Any) -> None:
        super().__init__(value, fun, args, kwargs, parent_argnums, parents)
        inner = self.vjp

        def vjp(gradient: Any) -> Any:
            label = value.tape.labels.get(value.index)
            if label and isinstance(gradient, Traced):
                value.tape.labels.setdefault(gradient.index, f"grad of {label}")
            value.tape.of = value.index
            return inner(gradient)

        self.vjp = vjp


class TracedBox(ArrayBox):  # type: ignore[misc]  # autograd has no types
    """A differentiable stand-in; the gradient of a part of it is a step."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return part_of(self, index)


TracedBox.register(Traced)
VSpace.register(Traced, TracedSpace)
notrace_primitives[NamedNode] = notrace_primitives[VJPNode]

Reference = Callable[..., Mapping[str, Any]]


def trace(
    reference: Reference,
    tensors: Tensors,
    params: Any = None,
    *,
    differentiable: Sequence[str] = (),
    gradients: Tensors | None = None,
    regroup: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    flatten: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    labelled: bool = True,
) -> tuple[Program, dict[str, Array]]:
    """The program of `reference(tensors, params)` and what it computes for these tensors, in their dtype.

    `params` is a dataclass; its floats become options. `gradients` are those of outputs, by output name: with them the
    program also has `grad.<input>` for every input in `differentiable`. `regroup` and `flatten` go between tensors by
    name and what the reference takes and returns (lists). `labelled` steps have the names of the source. Of values with
    OUTLINED elements or more only shape and dtype are computed. Raises TraceError for what cannot be recorded.
    """
    floats = [np.asarray(v).dtype for v in tensors.values() if np.asarray(v).dtype.kind == "f"]
    tape = Tape(kind=floats[0] if floats else np.dtype(np.float64), labelled=labelled)
    stand_ins = {name: tape.stand_in(np.asarray(value)) for name, value in tensors.items()}
    arriving = {name: tape.stand_in(np.asarray(value)) for name, value in (gradients or {}).items()}
    inputs = {name: item.index for name, item in stand_ins.items()}
    inputs |= {f"grad.{name}": item.index for name, item in arriving.items()}
    tape.labels = {index: name for name, index in inputs.items()}
    options: dict[str, tuple[int, float]] = {}
    traced_params = TracedParams(params, tape, options)

    def forward(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: counted(tape, item) for name, item in flatten(reference(regroup(given), traced_params)).items()}

    names = [name for name in differentiable if name in stand_ins]
    with np.errstate(all="ignore"), named(tape) if labelled else nullcontext():
        outputs = differentiated(forward, tape, stand_ins, names, arriving) if arriving else forward(stand_ins)
    outputs = {
        name: item if isinstance(item, Traced) else tape.record(np.array, (np.asarray(item),), {})
        for name, item in outputs.items()
    }
    if any(item.tape is not tape for item in outputs.values()):
        raise TraceError(LEFT)
    steps = tuple(replace(step, label=label) for step, label in zip(tape.steps, labels(tape, outputs), strict=True))
    ends = {name: item.index for name, item in outputs.items()}
    program = Program(inputs, options, steps, ends, tape.branches).needed()
    return program, {name: np.asarray(item.value) for name, item in outputs.items()}


def as_integers(values: Any) -> Array:
    """Booleans, and integers of any size, as int64, which all backends' integers are."""
    return np.asarray(values).astype(np.int64)


def counted(tape: Tape, item: Any) -> Any:
    """An output of a reference; booleans and small integers as int64, and a constant as a step. Raises TraceError for
    complex numbers."""
    dtype = np.asarray(concrete(item)).dtype if not isbox(item) else getval(item).dtype
    if dtype.kind not in "biuf":
        raise TraceError(f"a reference must return real numbers or booleans, not {dtype}")
    if dtype.kind != "f" and dtype != np.int64:
        return tape.record(as_integers, (item if isinstance(item, Traced) else np.asarray(item),), {})
    return item if isinstance(getval(item), Traced) else tape.record(np.asarray, (np.asarray(item),), {})


def differentiated(
    forward: Callable[[Mapping[str, Any]], dict[str, Any]],
    tape: Tape,
    stand_ins: Mapping[str, Traced],
    names: Sequence[str],
    arriving: Mapping[str, Traced],
) -> dict[str, Any]:
    """The outputs of `forward`, and `grad.<name>` for the inputs `names`, from the gradients of the outputs."""
    collected: dict[str, Any] = {}
    with trace_stack.new_trace() as level:
        roots = {name: NamedNode.new_root() for name in names}
        for name, root in roots.items():
            root.vjp = lambda gradient, name=name: collected.update({name: gradient}) or ()
        boxes = {name: new_box(stand_ins[name], level, root) for name, root in roots.items()}
        outputs = forward({**stand_ins, **boxes})
    ends = [(outputs[name]._node, gradient) for name, gradient in arriving.items() if isbox(outputs[name])]
    tape.backward = True
    if ends:
        last = NamedNode.new_root()
        last.parents = [node for node, _ in ends]
        last.vjp = lambda _: [gradient for _, gradient in ends]
        backward_pass(None, last)
    for name, gradient in collected.items():
        if np.shape(gradient) != stand_ins[name].shape:
            raise TraceError(f"a function has no gradient for {name} of shape {list(stand_ins[name].shape)}")
    gradients = {f"grad.{name}": tape.opened(collected.get(name)) for name in names}
    zeros = {f"grad.{n}": tape.record(np.zeros_like, (stand_ins[n],), {}) for n in names if n not in collected}
    return {**{name: getval(item) for name, item in outputs.items()}, **gradients, **zeros}


class TracedParams:
    """An op's params with stand-ins for floats."""

    def __init__(self, params: Any, tape: Tape, options: dict[str, tuple[int, float]]) -> None:
        self._params = params
        for name, value in numbers_of(params).items():
            if isinstance(value, float):
                setattr(self, name, option(name, value, tape, options))
            else:
                setattr(self, name, tuple(option(f"{name}.{i}", v, tape, options) for i, v in enumerate(value)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._params, name)


def numbers_of(params: Any) -> dict[str, float | tuple[float, ...]]:
    """The params that become options: floats, and tuples of them."""
    values = vars(params) if is_dataclass(params) else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, float)
        or (isinstance(value, tuple) and value and all(isinstance(item, float) for item in value))
    }


def option(name: str, value: float, tape: Tape, options: dict[str, tuple[int, float]]) -> Traced:
    """The stand-in of a number of the op."""
    item = tape.stand_in(value)
    options[name] = (item.index, value)
    tape.labels[item.index] = name
    return item


# Names.

ELSEWHERE = frozenset(("autograd", "numpy", "contextlib", "importlib"))
OWN = frozenset((__name__, *(f"parity.cases.{room}" for room in ("op", "brought", "user_code", "writable"))))
"""Modules whose local variables do not count as names of a reference."""


@contextmanager
def named(tape: Tape) -> Iterator[None]:
    """Inside, a value that the reference assigns to a local variable is labelled with its name."""

    def on_event(frame: FrameType, event: str, _argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "return" or module in OWN or module.partition(".")[0] in ELSEWHERE:
            return
        code = frame.f_code
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name, item in frame.f_locals.items():
            value = getval(item.value if isinstance(item, Handle) else item)
            if isinstance(value, Traced) and value.tape is tape and name not in parameters:
                tape.labels.setdefault(value.index, name)

    with profiled(on_event):
        yield


@contextmanager
def profiled(on_event: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Inside, `on_event` is this thread's profile function; afterwards, what was before is back."""
    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        # cProfile's own object is what getprofile returns under it, and setprofile takes functions only.
        before.enable() if isinstance(before, cProfile.Profile) else sys.setprofile(before)


def labels(tape: Tape, outputs: Mapping[str, Traced]) -> Iterator[str]:
    """The label of every step: its name in the source if unique, else that of an output, else ""."""
    counts = Counter(tape.labels.values())
    of_outputs = {item.index: name for name, item in outputs.items()}
    for step in tape.steps:
        label = tape.labels.get(step.index, "")
        yield label if counts[label] == 1 else of_outputs.get(step.index, "")


LIFTED: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The differentiable form of the functions of primitive steps."""


def put_back(values: Array, like: Array, index: Any) -> Array:
    """Zeros of the shape of `like`, to whose elements at `index` the `values` are added."""
    result = np.zeros_like(like)
    np.add.at(result, index, values)
    return result


def by_hand(function: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """`function(x, *rest)` whose gradient is `backward(gradient, result, x, *rest)` instead of the derivative of its
    steps.

    Unlike a `primitive`, both are recorded in steps.
    """
    whole = autograd_primitive(function)
    defvjp(whole, lambda result, x, *rest: lambda gradient: backward(gradient, result, x, *rest), argnums=(0,))
    return whole  # type: ignore[no-any-return]


def primitive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of arrays one step of programs, and a primitive of autograd, whose rule `defvjp` gives."""

    @autograd_primitive  # type: ignore[untyped-decorator]
    @wraps(function)
    def recorded(*operands: Any, **keywords: Any) -> Any:
        stand_in = next((item for item in leaves(operands) if isinstance(item, Traced)), None)
        if stand_in is None:
            return function(*operands, **keywords)
        return stand_in.tape.record(function, operands, keywords)

    recorded.raw = function
    LIFTED[function] = recorded
    return recorded  # type: ignore[no-any-return]


def chosen_gradient(operand: Any, choice: Any, *, if_true: bool) -> Callable[[Any], Any]:
    """The gradient of an operand of np.where, in the operand's shape, unlike that of autograd 1.9."""

    def gradient(arriving: Any) -> Any:
        zeros = autograd.numpy.zeros(arriving.shape)
        return autograd.numpy.where(choice, *((arriving, zeros) if if_true else (zeros, arriving)))

    return unbroadcast_f(operand, gradient)  # type: ignore[no-any-return]


def selected(choice: Any, one: Any, other: Any) -> Any:
    """np.where whose gradient is zero where another operand is chosen, also if what is not chosen has none."""
    return np.where(choice, one, other)


def gate_of(operand: Any, choice: Any, *, if_true: bool) -> Callable[[Any], Any]:
    """The gradient of an operand, which remembers where it is zero."""
    inner = chosen_gradient(operand, choice, if_true=if_true)

    def gradient(arriving: Any) -> Any:
        before = arriving.tape.gates.get(arriving.index) if isinstance(arriving, Traced) else None
        result = inner(arriving)
        if isinstance(result, Traced) and result.shape == np.shape(arriving):
            earlier = before or Gate(())
            result.tape.gates[result.index] = replace(earlier, choices=(*earlier.choices, (choice, if_true)))
        return result

    return gradient


selected = autograd_primitive(selected)
defvjp(
    selected,
    None,
    lambda _, choice, one, other: gate_of(one, choice, if_true=True),  # noqa: ARG005 - autograd's signature
    lambda _, choice, one, other: gate_of(other, choice, if_true=False),  # noqa: ARG005 - autograd's signature
)
# Since autograd 1.8, its `where` is a function around the primitive.
defvjp(
    getattr(autograd.numpy, "_original_where", autograd.numpy.where),
    None,
    lambda _, choice, one, other: chosen_gradient(one, choice, if_true=True),  # noqa: ARG005 - autograd's signature
    lambda _, choice, one, other: chosen_gradient(other, choice, if_true=False),  # noqa: ARG005 - autograd's signature
)
put_back = primitive(put_back)
part_of = autograd_primitive(getitem)
LIFTED[getitem] = part_of
defvjp(part_of, lambda _, x, index: lambda gradient: put_back(gradient, x, index), None)
defvjp(put_back, lambda _, __, ___, index: lambda gradient: gradient[index], None, None)
