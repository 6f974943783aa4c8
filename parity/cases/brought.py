"""Ops that a user brings: a NumPy function in a user's file, as an op with its reference.

The file is code that its user chose to run: it runs in this process, because a trace needs it. Its `import numpy` gives
autograd's NumPy, through which the function is traced and differentiated.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache, partial
from hashlib import sha256
from itertools import count, product
from math import prod
from operator import attrgetter
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol, get_type_hints
from warnings import catch_warnings

import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Shape
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, no_variants
from parity.cases.program import Program, Traced, profiled, trace
from parity.cases.replay import (
    agree,
    drawn_inputs,
    first_difference,
    is_slope,
    lowest,
    narrowest,
    slopes,
    spaced,
)
from parity.cases.user_code import BroughtError, contained, described, placed, user_code
from parity.cases.writable import NUMPY, Writable, is_traced, unwrapped, wrapped, writing

MODULE = "parity_reference"
NUMBER = count(1)
TYPES: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
ANY = bool | int | float | str | tuple[int | float, ...]
"""The type of a param if neither its annotation nor its default shows it."""
NUMBERS = tuple[int | float, ...]
SAMPLE = 0.75
"""The value of all floating-point inputs while shapes are inferred."""
MOST_REPLAYED = 1 << 22
"""A reference is replayed on tensors with up to so many elements."""
REMEDY = (
    "parity records a reference once, so it must not depend on anything but NumPy's functions of its arguments: no "
    "branch on values or types and no count of elements with some value (use np.where), and no view of a result "
    "(assign to the array itself)"
)
BEYOND = (
    "the reference computes in {0}, and a value is beyond {0}'s range with these inputs, numbers between -3 and 3: "
    "scale the values down, or compute in the dtype of the inputs"
)
AGAIN = (
    "another {} when it is called again with the same inputs: it must not use random numbers, a clock, or what an "
    "earlier call has left"
)


@dataclass(frozen=True)
class ReferenceFile:
    """A user's file with a reference; `text` is its content when it was read."""

    path: Path
    text: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """The digest of the text."""
        return sha256(self.text).hexdigest()


@dataclass(frozen=True, eq=False)
class RecordedFunction(ReferenceFile):
    """A reference that was recorded elsewhere: `function` computes it, `text` is for readers.

    Its arguments are those of its signature. It raises BroughtError with the user's line. Whoever recorded it has
    compared it with the code that it comes from.
    """

    function: Callable[..., Any]


@dataclass(frozen=True)
class Brought:
    """An op made of a user's function `name`: `tensors` are its inputs, `integers` the bounds of those that hold
    integers, `params` the arguments that a config sets, `grad_outputs` the floating-point outputs. `kernel_params` are
    texts that only kernels get."""

    source: ReferenceFile
    name: str
    tensors: tuple[str, ...]
    integers: tuple[tuple[str, int, int], ...]
    differentiable: tuple[str, ...]
    params: tuple[str, ...]
    grad_outputs: tuple[str, ...] = ()
    kernel_params: tuple[str, ...] = ()


def namespace(source: ReferenceFile, *, plain: bool = False) -> Mapping[str, Any]:
    """The names that the file defines; raises BroughtError where it cannot be run. `plain`: it imports NumPy itself."""
    names = loaded(source, plain)
    if isinstance(names, str):
        raise BroughtError(names)
    return names


@cache
def loaded(source: ReferenceFile, plain: bool) -> Mapping[str, Any] | str:
    """The names that the file defines, or why it cannot be run, which is tried once."""
    names = module_of(source)
    names |= {} if plain else {"__builtins__": {**vars(builtins), "__import__": imported}}
    try:
        with user_code(source.path):
            code = compile(source.text, str(source.path), "exec", dont_inherit=True)
            exec(code, names)  # noqa: S102 - its user chose to run it
    except BroughtError as error:
        return str(error)
    except Exception as error:
        return placed(error, source.path)
    return names


def module_of(source: ReferenceFile) -> dict[str, Any]:
    """The names of a new module for the file. It stays in `sys.modules`, where its classes look for their names."""
    module = ModuleType(f"{MODULE}_{next(NUMBER)}")
    module.__file__ = str(source.path)
    sys.modules[module.__name__] = module
    return vars(module)


def imported(name: str, into: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
    """`__import__` of a reference."""
    module = __import__(name, into, local, wanted, level)
    if level or name.partition(".")[0] != "numpy":
        return module
    return module if wanted and name != "numpy" else NUMPY


def function_of(source: ReferenceFile, name: str, *, plain: bool = False) -> Callable[..., Any]:
    """The file's function of this name, or the recorded one; raises BroughtError if there is none."""
    if isinstance(source, RecordedFunction):
        return source.function
    function = namespace(source, plain=plain).get(name)
    if not callable(function):
        raise BroughtError(f"{source.path.name} defines no function {name}")
    return function  # type: ignore[no-any-return]


def arguments(source: ReferenceFile, name: str) -> Mapping[str, inspect.Parameter]:
    """The function's arguments by name; raises BroughtError if some cannot be given by keyword."""
    function = function_of(source, name)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise BroughtError(
            f"{source.path.name}: {name} does not show its arguments ({error}); use def {name}(x)"
        ) from error
    for argument in parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise BroughtError(f"{where(source, name)} takes {argument}: each tensor and param needs a name of its own")
    return parameters


def where(source: ReferenceFile, name: str) -> str:
    """`my_reference.py:3: my_swiglu`."""
    function = function_of(source, name)
    with suppress(ValueError):  # a wrapper that wraps itself
        function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
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

    def reference(tensors: Mapping[str, Any], values: Any, **changes: Any) -> Mapping[str, Any]:
        return called(brought, tensors, values, changes=changes)

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
        variants=variants_of(brought.source),
        fits=tuple(
            Fit("param-value", name, attrgetter(name), f"another value of {name}")
            for name, kind in get_type_hints(params).items()
            if kind is float
        ),
    )


class ShapesWhenCalled(Protocol):
    """A recorded function that can be called without being recorded again."""

    @property
    def is_recorded(self) -> bool:
        """Whether it has been recorded for some shapes."""

    def output_kinds(
        self, tensors: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Mapping[str, tuple[Shape, np.dtype[Any]]]:
        """Shape and dtype of every output."""


def shapes_when_called(source: ReferenceFile) -> ShapesWhenCalled | None:
    """The function of a source, if it tells shapes by being called."""
    function: Any = source.function if isinstance(source, RecordedFunction) else None
    return function if hasattr(function, "output_kinds") else None


def variants_of(source: ReferenceFile) -> Callable[..., Any]:
    """The variants of a recorded function: those of the ops that it calls."""
    return getattr(source.function, "variants", no_variants) if isinstance(source, RecordedFunction) else no_variants


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
    items += [(name, str) for name in brought.kernel_params]
    return make_dataclass(f"{brought.name}_params", items, frozen=True, kw_only=True)


def type_of(argument: inspect.Parameter) -> Any:
    """The type of a param: as its annotation or its default says."""
    word = getattr(argument.annotation, "__name__", argument.annotation)
    if word in TYPES:
        return TYPES[word]
    if isinstance(argument.default, (tuple, list)):
        return NUMBERS
    return TYPES.get(type(argument.default).__name__, ANY if argument.default is argument.empty else ANY | None)


def outputs_of(
    brought: Brought, params: Any, shapes: tuple[tuple[str, Shape], ...]
) -> Mapping[str, tuple[Shape, np.dtype[Any]]]:
    """Shape and dtype of every output, pairs by running the reference; raises CaseError if it fails."""
    return run_once(replace(brought, grad_outputs=()), params, shapes)


@cache
def run_once(
    brought: Brought, params: Any, shapes: tuple[tuple[str, Shape], ...]
) -> Mapping[str, tuple[Shape, np.dtype[Any]]]:
    """`outputs_of`, whatever outputs a config gives gradients."""
    # Offsets, for example, must grow, and a matrix of equal numbers has no inverse.
    integers = (lowest, spaced) if brought.integers else (lowest,)
    errors: list[CaseError] = []
    for whole, fill in product(integers, (filled, diagonal)):
        try:
            outputs, graded = kinds_of(brought, params, shapes, whole, fill)
            break
        except CaseError as error:
            errors.append(error)
    else:
        raise errors[0]
    if sum(prod(shape) for _, shape in shapes) <= MOST_REPLAYED and not isinstance(brought.source, RecordedFunction):
        with suppress(np.linalg.LinAlgError):  # A user's matrices may have a factorization that drawn ones have not.
            replay(brought, params, dict(shapes))
            if graded:
                replay_gradients(brought, params, dict(shapes), {name: outputs[name][0] for name in graded})
    return outputs


def filled(shape: Shape) -> Any:
    """A tensor of equal numbers, which takes no memory."""
    return np.broadcast_to(SAMPLE, shape)


def diagonal(shape: Shape) -> Any:
    """A tensor with a larger diagonal in its last two axes: square matrices are positive definite."""
    values = np.full(shape, SAMPLE)
    return values + np.eye(shape[-2], shape[-1]) if len(shape) > 1 else values


def kinds_of(
    brought: Brought,
    params: Any,
    shapes: tuple[tuple[str, Shape], ...],
    whole: Callable[..., Any],
    fill: Callable[[Shape], Any],
) -> tuple[Mapping[str, tuple[Shape, np.dtype[Any]]], list[str]]:
    """Shape and dtype of every output, and the outputs whose gradients were run; `whole` draws integers, `fill` makes
    other inputs. Raises CaseError if the reference fails."""
    integers, rng = dict_of(brought.integers), np.random.default_rng(0)
    tensors = {name: whole(rng, *integers[name], shape) if name in integers else fill(shape) for name, shape in shapes}
    grad_outputs: dict[str, Any] = {}
    known = shapes_when_called(brought.source)
    try:
        if known is not None and known.is_recorded:
            return known.output_kinds(tensors, {name: getattr(params, name) for name in brought.params}), []
        with nullcontext() if isinstance(brought.source, RecordedFunction) else contained(brought.source.path):
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
    kinds = {name: (values.shape, values.dtype) for name, values in outputs.items()}
    return kinds, list(grad_outputs) if brought.differentiable else []


def replay(brought: Brought, params: Any, shapes: Mapping[str, Shape]) -> None:
    """Compare the recorded program with the function itself, as NumPy runs it; raises CaseError where they differ."""
    code, given = FunctionRun(brought, params), list(drawn_inputs(shapes, dict_of(brought.integers)))
    try:
        own = [code(inputs) for inputs in given]
        again, _ = code(given[0])
    except TimeoutError:
        return
    except np.linalg.LinAlgError:
        raise
    except Exception as error:
        raise CaseError("reference", failed(brought, error, tuple(shapes.items()), backward=False)) from error
    changed = next((name for name, values in own[0][0].items() if not agree(again[name], values, "float64", 0.0)), "")
    if changed:
        raise CaseError("reference", f"{where(brought.source, brought.name)} returns {AGAIN.format(changed)}")
    with replaying(brought):
        program = recording_of(brought, params, given[0])
        pairs = zip(given, own, strict=True)
        differences = [first_difference(program, inputs, *results, "float64") for inputs, results in pairs]
    for difference in (item for item in differences if item is not None):
        line = code.line_of(difference.name)
        remedy = BEYOND.format(difference.overflow) if difference.overflow else REMEDY
        raise CaseError("reference", f"{line}: {difference.name} {difference.text}; {remedy}")


def recording_of(brought: Brought, params: Any, inputs: Mapping[str, Any], **how: Any) -> Program:
    """The program of a function for these inputs; `how` are arguments of `trace`."""
    return trace(lambda tensors, values: called(brought, tensors, values), inputs, params, **how)[0]


@contextmanager
def replaying(brought: Brought) -> Iterator[None]:
    """Inside, what keeps a recording from being computed for other inputs is a CaseError."""
    try:
        yield
    except BroughtError as error:
        raise CaseError("reference", str(error)) from error
    except Exception as error:
        text = f"its recording fails for other inputs ({described(error)}); {REMEDY}"
        raise CaseError("reference", f"{where(brought.source, brought.name)}: {text}") from error


def replay_gradients(brought: Brought, params: Any, shapes: Mapping[str, Shape], outputs: Mapping[str, Any]) -> None:
    """Compare recorded gradients with slopes of the function as NumPy runs it; raises CaseError if none agrees.

    `outputs` are floating-point outputs' shapes by name. A single set of inputs may lie next to a kink.
    """
    code = FunctionRun(brought, params)
    rng = np.random.default_rng(2)
    arriving = {name: rng.uniform(0.5, 1.5, shape) for name, shape in outputs.items()}
    pairs = []
    given = list(drawn_inputs(shapes, dict_of(brought.integers)))
    how = {"differentiable": brought.differentiable, "gradients": arriving, "labelled": False}
    with replaying(brought):
        program = recording_of(brought, params, given[0], **how)
        if narrowest(program, {}, "float64") != "float64":
            return  # Rounding has steps, and its gradient by convention none.
        arrived = {f"grad.{name}": values for name, values in arriving.items()}
        computed = [program.run({**inputs, **arrived}, "float64") for inputs in given]
    for inputs, values in zip(given, computed, strict=True):
        gradients = {name: values[f"grad.{name}"] for name in brought.differentiable}
        pairs.append(slopes(lambda tensors: code(tensors)[0], gradients, inputs, arriving))
    clear = [pair for pair in pairs if pair is not None]
    if clear and not any(is_slope(*pair) for pair in clear):
        own, recorded = clear[0]
        raise CaseError(
            "reference",
            f"{where(brought.source, brought.name)} has the slope {own:.6g} along a direction, and {recorded:.6g} by "
            "its recorded gradients: autograd's rule for one of its functions is wrong; use other functions, or set "
            "gradients: false",
        )


@dataclass
class FunctionRun:
    """A user's function as NumPy itself runs it."""

    brought: Brought
    params: Any

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its outputs, and the last values of its local variables; both as arrays."""
        named: dict[str, Any] = {}
        path = str(self.brought.source.path)

        def on_event(frame: FrameType, event: str, _: Any) -> None:
            if event == "return" and frame.f_code.co_filename == path:
                named.update(
                    {n: np.array(v) for n, v in frame.f_locals.items() if isinstance(v, (np.ndarray, np.generic))}
                )

        copies = {name: values.copy() for name, values in inputs.items()}
        with profiled(on_event), np.errstate(all="ignore"), catch_warnings(action="ignore"):
            outputs = called(self.brought, copies, self.params, plain=True)
        return {name: np.array(values) for name, values in outputs.items()}, named

    def line_of(self, name: str) -> str:
        """`my_reference.py:4`, the last line that assigns to a name; the one that returns if none does."""
        source = self.brought.source
        nodes = list(ast.walk(ast.parse(source.text)))
        lines = [n.lineno for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
        own = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == self.brought.name]
        returns = [n.lineno for function in own for n in ast.walk(function) if isinstance(n, ast.Return)]
        return f"{source.path.name}:{(lines or returns or [1])[-1]}"


def failed(brought: Brought, error: Exception, shapes: tuple[tuple[str, Shape], ...], *, backward: bool) -> str:
    """Why a reference gives no outputs, or no gradients, for these shapes."""
    if isinstance(error, BroughtError):
        return str(error)
    given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes)
    if backward:
        remedy = "use other functions of NumPy, or set gradients: false"
        return f"{where(brought.source, brought.name)} has no gradient: {described(error)}; {remedy}"
    return f"{placed(error, brought.source.path)} (with {given})"


def called(
    brought: Brought, tensors: Mapping[str, Any], params: Any, *, plain: bool = False, changes: Mapping[str, Any] = {}
) -> Mapping[str, Any]:
    """What the function returns, by output name; raises BroughtError for anything but arrays.

    `changes` are those of a variant of a recorded function.
    """
    function, location = function_of(brought.source, brought.name, plain=plain), where(brought.source, brought.name)
    function = partial(function, **changes) if changes else function
    given = {**tensors, **{name: getattr(params, name) for name in brought.params}}
    # A recorded function runs the user's code only while it records, and contains it there.
    with nullcontext() if isinstance(brought.source, RecordedFunction) else user_code(brought.source.path):
        outputs = traced(function, given) if is_traced(list(given.values())) else function(**given)
        outputs = dict(outputs) if isinstance(outputs, Mapping) else {"y": outputs}
    for name, value in outputs.items():
        if not is_array(value):
            kind = type(value).__name__
            raise BroughtError(f"{location} returns {kind}; return an array, or a mapping of arrays by name")
        if not isinstance(name, str) or not name.isidentifier():
            raise BroughtError(f"{location} returns an output named {name!r}; a name is a word")
    if not outputs:
        raise BroughtError(f"{location} returns no outputs")
    return outputs


def traced(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What the function returns for stand-ins, which it may write to."""
    with writing():
        outputs = function(**{name: Writable(v) if is_tensor(v) else wrapped(v) for name, v in given.items()})
    return {n: unwrapped(v) for n, v in outputs.items()} if isinstance(outputs, Mapping) else unwrapped(outputs)


def is_tensor(value: Any) -> bool:
    """Whether a stand-in is one of an array, not of a number."""
    return isinstance(getval(value), Traced) and isinstance(getval(value).value, np.ndarray)


def is_array(value: Any) -> bool:
    """Whether a reference may return it: a tensor, a stand-in for one, or a number."""
    return isinstance(getval(value), (np.ndarray, np.generic, Traced, float, int))
