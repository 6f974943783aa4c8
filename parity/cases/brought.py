"""Ops that a user brings: a NumPy function in a user's file, as an op with its reference.

The file is code that its user chose to run: it runs in this process, because a trace needs it. Its `import numpy` gives
autograd's NumPy, through which the function is traced and differentiated.
"""

from __future__ import annotations

import builtins
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import autograd.numpy
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Shape
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes
from parity.cases.program import Traced, leaves, trace

MODULE = "parity_reference"
TYPES: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
ANY = bool | int | float | str | tuple[int | float, ...]
"""The type of a param if neither its annotation nor its default shows it."""
NUMBERS = tuple[int | float, ...]
SAMPLE = 0.75
"""The value of all floating-point inputs while shapes are inferred."""
NUMPY = ModuleType("numpy")
"""NumPy for a reference: autograd's functions, and what autograd lacks."""


def take(values: Any, index: Any, axis: int | None = None) -> Any:
    """np.take, with a gradient."""
    return values.reshape(-1)[index] if axis is None else values[(slice(None),) * (axis % values.ndim) + (index,)]


def take_along_axis(values: Any, index: Any, axis: int) -> Any:
    """np.take_along_axis, with a gradient."""
    positions = [np.arange(n).reshape((-1,) + (1,) * (values.ndim - i - 1)) for i, n in enumerate(index.shape)]
    return values[tuple(index if i == axis % values.ndim else position for i, position in enumerate(positions))]


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """np.stack."""
    return autograd.numpy.concatenate([autograd.numpy.expand_dims(item, axis) for item in arrays], axis=axis)


def array(values: Any, *rest: Any, **keywords: Any) -> Any:
    """np.array; traced numbers in lists stay traced."""
    if is_traced(values):
        return values
    if isinstance(values, (list, tuple)) and any(map(is_traced, leaves(values))):
        return stack([array(item) for item in values])
    return np.array(values, *rest, **keywords)


def is_traced(value: Any) -> bool:
    """Whether a value is a stand-in."""
    return isinstance(getval(value), Traced)


OWN = {function.__name__: function for function in (take, take_along_axis, stack, array)}
vars(NUMPY).update({**vars(np), **vars(autograd.numpy), **OWN, "asarray": array})


LIMIT_S = 30.0
"""A reference that takes longer hangs: it computes on small tensors, or on stand-ins."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError in the user's code after `LIMIT_S`; only the main thread can be interrupted this way."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"no result after {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class BroughtError(ValueError):
    """A user's reference cannot be used; the message has its file and line."""


@dataclass(frozen=True)
class ReferenceFile:
    """A user's file with a reference; `text` is its content when it was read."""

    path: Path
    text: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """The digest of the text."""
        return sha256(self.text).hexdigest()


@dataclass(frozen=True)
class Brought:
    """An op made of a user's function `name`: `tensors` are its inputs, `integers` the bounds of those that hold
    integers, `params` the arguments that a config sets, `grad_outputs` the floating-point outputs."""

    source: ReferenceFile
    name: str
    tensors: tuple[str, ...]
    integers: tuple[tuple[str, int, int], ...]
    differentiable: tuple[str, ...]
    params: tuple[str, ...]
    grad_outputs: tuple[str, ...] = ()


@cache
def namespace(source: ReferenceFile) -> Mapping[str, Any]:
    """The names that the file defines; raises BroughtError where it cannot be run."""
    names = {
        "__name__": MODULE,
        "__file__": str(source.path),
        "__builtins__": {**vars(builtins), "__import__": imported},
    }
    try:
        with redirect_stdout(sys.stderr), limited():
            exec(compile(source.text, str(source.path), "exec"), names)  # noqa: S102 - its user chose to run it
    except (Exception, SystemExit) as error:
        raise BroughtError(placed(error, source.path)) from error
    return names


def imported(name: str, into: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
    """`__import__` of a reference."""
    module = __import__(name, into, local, wanted, level)
    if level or name.partition(".")[0] != "numpy":
        return module
    return sys.modules.get(f"autograd.{name}", module) if wanted and name != "numpy" else NUMPY


def placed(error: BaseException, path: Path) -> str:
    """`my_reference.py:12: ValueError: ...`, the last line of the file that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines = [error.lineno or 1]
    text = str(error) if isinstance(error, BroughtError) else f"{type(error).__name__}: {error}"
    return f"{path.name}:{lines[-1] if lines else 1}: {text}"


def function_of(source: ReferenceFile, name: str) -> Callable[..., Any]:
    """The file's function of this name; raises BroughtError if there is none."""
    function = namespace(source).get(name)
    if not callable(function):
        raise BroughtError(f"{source.path.name} defines no function {name}")
    return function  # type: ignore[no-any-return]


def arguments(source: ReferenceFile, name: str) -> Mapping[str, inspect.Parameter]:
    """The function's arguments by name; raises BroughtError if some cannot be given by keyword."""
    parameters = inspect.signature(function_of(source, name)).parameters
    for argument in parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise BroughtError(f"{where(source, name)} takes {argument}: each tensor and param needs a name of its own")
    return parameters


def where(source: ReferenceFile, name: str) -> str:
    """`my_reference.py:3: my_swiglu`."""
    code = getattr(inspect.unwrap(function_of(source, name)), "__code__", None)
    return name if code is None else f"{source.path.name}:{code.co_firstlineno}: {name}"


@cache
def op_of(brought: Brought) -> Op:
    """The op; without `grad_outputs`, it serves only to read a config."""
    params = params_of(brought)

    def infer_shapes(values: Any, given: Mapping[str, Shape]) -> TensorShapes:
        for name in brought.tensors:
            if name not in given:
                raise CaseError(f"inputs.{name}", f"a shape (or `values`, or a `file`) is needed for {name}")
        shapes = tuple((name, tuple(given[name])) for name in brought.tensors)
        outputs = {name: shape for name, (shape, _) in outputs_of(brought, values, shapes).items()}
        return TensorShapes(dict(shapes), outputs, {name: (low, high) for name, low, high in brought.integers})

    def reference(tensors: Mapping[str, Any], values: Any) -> Mapping[str, Any]:
        return called(brought, tensors, values)

    return Op(
        name=brought.name,
        summary=(inspect.getdoc(function_of(brought.source, brought.name)) or "").partition("\n")[0],
        params=params,
        inputs=tuple(
            Input(name, differentiable=name in brought.differentiable, integers=name in dict_of(brought.integers))
            for name in brought.tensors
        ),
        infer_shapes=infer_shapes,
        reference=reference,
        grad_outputs=brought.grad_outputs,
        fits=tuple(
            Fit("param-value", name, attrgetter(name), f"another value of {name}")
            for name, kind in get_type_hints(params).items()
            if kind is float
        ),
    )


def dict_of(integers: tuple[tuple[str, int, int], ...]) -> dict[str, tuple[int, int]]:
    """The bounds by name."""
    return {name: (low, high) for name, low, high in integers}


def params_of(brought: Brought) -> type[Any]:
    """The dataclass of the params; their types are those of annotations and defaults."""
    given = arguments(brought.source, brought.name)
    items: list[Any] = []
    for name in brought.params:
        kind, default = type_of(given[name]), given[name].default
        default = tuple(default) if isinstance(default, list) else default
        items.append((name, kind) if default is inspect.Parameter.empty else (name, kind, field(default=default)))
    return make_dataclass(f"{brought.name}_params", items, frozen=True, kw_only=True)


def type_of(argument: inspect.Parameter) -> Any:
    """The type of a param: as its annotation or its default says."""
    word = getattr(argument.annotation, "__name__", argument.annotation)
    if word in TYPES:
        return TYPES[word]
    if isinstance(argument.default, (tuple, list)):
        return NUMBERS
    return TYPES.get(type(argument.default).__name__, ANY if argument.default is argument.empty else ANY | None)


@cache
def outputs_of(
    brought: Brought, params: Any, shapes: tuple[tuple[str, Shape], ...]
) -> Mapping[str, tuple[Shape, np.dtype[Any]]]:
    """Shape and dtype of every output, found by running the reference; raises CaseError if it fails."""
    integers = dict_of(brought.integers)
    tensors = {
        name: np.broadcast_to(np.int64(integers[name][0]) if name in integers else SAMPLE, shape)
        for name, shape in shapes
    }
    grad_outputs: dict[str, Any] = {}
    try:
        with redirect_stdout(sys.stderr):
            _, outputs = trace(lambda given, values: called(brought, given, values), tensors, params, labelled=False)
            grad_outputs = {n: np.broadcast_to(SAMPLE, v.shape) for n, v in outputs.items() if v.dtype.kind == "f"}
            if grad_outputs and brought.differentiable:
                trace(
                    lambda given, values: called(brought, given, values),
                    tensors,
                    params,
                    differentiable=brought.differentiable,
                    gradients=grad_outputs,
                    labelled=False,
                )
    except Exception as error:
        raise CaseError("reference", failed(brought, error, shapes, backward=bool(grad_outputs))) from error
    return {name: (values.shape, values.dtype) for name, values in outputs.items()}


def failed(brought: Brought, error: Exception, shapes: tuple[tuple[str, Shape], ...], *, backward: bool) -> str:
    """Why a reference gives no outputs, or no gradients, for these shapes."""
    if isinstance(error, BroughtError):
        return str(error)
    given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes)
    if backward:
        remedy = "use other functions of NumPy, or set gradients: false"
        return f"{where(brought.source, brought.name)} has no gradient: {type(error).__name__}: {error}; {remedy}"
    return f"{placed(error, brought.source.path)} (with {given})"


def called(brought: Brought, tensors: Mapping[str, Any], params: Any) -> Mapping[str, Any]:
    """What the function returns, by output name; raises BroughtError for anything but arrays."""
    function, location = function_of(brought.source, brought.name), where(brought.source, brought.name)
    with limited():
        outputs = function(**tensors, **{name: getattr(params, name) for name in brought.params})
    if not isinstance(outputs, Mapping):
        outputs = {"y": outputs}
    for name, value in outputs.items():
        if not is_array(value):
            kind = type(value).__name__
            raise BroughtError(f"{location} returns {kind}; return an array, or a mapping of arrays by name")
        if not isinstance(name, str) or not name.isidentifier():
            raise BroughtError(f"{location} returns an output named {name!r}; a name is a word")
    if not outputs:
        raise BroughtError(f"{location} returns no outputs")
    return dict(outputs)


def is_array(value: Any) -> bool:
    """Whether a reference may return it: a tensor, a stand-in for one, or a number."""
    return isinstance(getval(value), (np.ndarray, np.generic, Traced, float, int))
