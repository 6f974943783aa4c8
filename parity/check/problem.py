"""The problem that a reference's file poses, at any size: constructor's arguments, inputs and weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from dis import get_instructions
from math import isfinite, isqrt
from types import CodeType
from typing import Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

from parity.cases.brought import ReferenceFile, namespace
from parity.cases.user_code import BroughtError, placed, user_code
from parity.check import CheckError
from parity.check.literals import Literals, with_globals
from parity.check.pair import INIT_INPUTS, FilePair
from parity.program.opaque import checked_calls
from parity.program.torch_reference import array_of, torch_namespace
from parity.program.worker import user_module
from parity.program.worker.recording import is_inplace
from parity.program.worker.torch_calls import passing
from parity.program.worker.user_module import (
    ARGUMENTS,
    STATE,
    TRAINING,
    UserModule,
    encoded,
    in_parts,
    named_arguments,
    outputs_of,
    seed,
    state_of,
    word_of,
)

UNIFORM, NORMAL, INTEGERS, GIVEN, NUMBER = "uniform", "normal", "integers", "given", "number"
POSITIVE = "positive"
"""Uniform numbers to which a positive one is added, as prices, scales and variances: no others are meant."""
DRAWS: Mapping[str, str] = {
    **dict.fromkeys(("rand", "rand_like"), UNIFORM),
    **dict.fromkeys(("randn", "randn_like"), NORMAL),
    **dict.fromkeys(("randint", "randint_like"), INTEGERS),
}
"""PyTorch's functions that draw tensors, and what they draw."""
Settings = Mapping[str, Any]
Size = int | tuple[int, ...] | list[int]
SCALING = (
    "mul",
    "__mul__",
    "__rmul__",
    "add",
    "__add__",
    "__radd__",
    "sub",
    "__sub__",
    "__rsub__",
    "div",
    "__truediv__",
    *("contiguous", "clone", "detach", "to", "float", "half", "bfloat16", "cpu", "reshape", "view"),
)
"""Functions that, with a number, keep how a tensor is distributed, but for its mean and deviation."""
KEEPING = frozenset(("requires_grad", "mul", "imul", "add", "iadd", "sub", "isub", "div", "itruediv", "detach"))
"""Functions that change a tensor, but not how it is distributed."""
PRODUCTS = frozenset(
    (
        *("linear", "bilinear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention"),
        *(f"conv{word}{n}d" for word in ("", "_transpose") for n in (1, 2, 3)),
    )
)
SIZES = "parity_sizes"
"""The global of a generated file that lists its sizes; those of the file that it runs are none."""
CASE_DTYPES = {"float16", "bfloat16", "float32", "float64"}
RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
CALLS_A_TURN = 8
"""Calls that a turn of a recurrent layer stands for: it is some twenty steps of a program."""
MOST_CALLED = 1 << 21
"""Elements of inputs and weights with which a call that only shows its cost has values: without values, PyTorch first
imports its compiler (two seconds), and is slow in loops."""


@dataclass(frozen=True, eq=False)
class Argument:
    """An argument of a call: how it is drawn, its `dtype` if that is neither the case's nor int64, its value; `bounds`
    are those of integers."""

    name: str
    kind: str
    dtype: str
    value: Any
    bounds: tuple[int, int] = (0, 0)

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.kind != NUMBER


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter or a running statistic with its initial values."""

    name: str
    values: NDArray[Any]
    is_statistic: bool = False
    """Whether it is a running statistic, or a buffer that calls change."""


@dataclass(frozen=True, eq=False)
class Sized:
    """The problem at one size: `settings` are values of the file's globals, `outputs` what the reference returns."""

    settings: Settings
    init: Mapping[str, Any]
    arguments: Sequence[Argument]
    weights: Sequence[Weight]
    outputs: Mapping[str, NDArray[Any]]
    state: Sequence[str] = ()
    """The weights that are buffers which a call changes, but for running statistics."""
    modal: bool = False
    """Whether the reference computes something else in evaluation mode."""
    dtype: str = "float32"
    """The dtype of a case: that of all floating-point arguments of a function, if they have one."""

    @property
    def spec(self) -> str:
        """The param `arguments` of a case: the order of arguments, with dtypes."""
        return ", ".join(f"{a.name}: {a.dtype}" if a.dtype else a.name for a in self.arguments)

    @property
    def params(self) -> dict[str, Any]:
        """The params of a case."""
        numbers = {a.name: encoded(a.value) for a in self.arguments if not a.is_tensor}
        return {**self.init, **numbers, ARGUMENTS: self.spec, **({STATE: ", ".join(self.state)} if self.state else {})}


@dataclass
class ReferenceProblem:
    """A reference's file, loaded in this process, and the values of its globals that a user has set."""

    pair: FilePair
    given: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changing: frozenset[str] | None = None
        self.n_calls = self.n_counted = 0
        self.literals = Literals({}, ())
        path = self.pair.reference.path.absolute()
        self.source = ReferenceFile(path, path.read_bytes())
        with self.telling():
            self.names = self.loaded()
        unknown = [name for name in self.given if name not in self.names]
        if unknown:
            raise CheckError(f"--set {unknown[0]}: {path.name} has no global of this name")
        self.names.update(self.given)
        self.entry: Any = self.names[self.pair.reference.name]
        own_path, name = self.pair.inputs
        if own_path.absolute() == path:
            self.inputs: Any = self.names.get(name)
        else:
            other = ReferenceFile(own_path.absolute(), own_path.read_bytes())
            with self.telling():
                self.inputs = namespace(other, plain=True).get(name)
        if not callable(self.inputs):
            raise CheckError(f"{own_path} defines no function {name}")

    def loaded(self) -> dict[str, Any]:
        """The names that the file defines. Raises BroughtError where it cannot be run."""
        names = dict_of(torch_namespace(self.source))
        if SIZES not in names:
            self.literals = with_globals(
                self.source.text, str(self.source.path), names, self.pair.inputs[1], INIT_INPUTS
            )
        return names

    @property
    def is_changed(self) -> bool:
        """Whether the file is another one than when it was read."""
        try:
            return self.source.path.read_bytes() != self.source.text
        except OSError:
            return True

    @property
    def numbers(self) -> dict[str, Size]:
        """The globals that are sizes: whole numbers from 2 on, and shapes, that the user has not set, and that only the
        functions for inputs read: the reference itself has the file's own values wherever it is called."""
        fixed = {*self.given, *globals_read(self.entry, self.names)}
        own = {name: value for name, value in self.names.items() if name not in fixed and name[:2] != "__"}
        sizes = own.get(SIZES, own)
        return {name: value for name, value in own.items() if name in sizes and is_size(value)}

    @property
    def of_constructor(self) -> set[str]:
        """The globals that only `get_init_inputs` reads: how often, how wide, in how many groups; no input's size."""
        return globals_read(self.names.get(INIT_INPUTS), self.names) - globals_read(self.inputs, self.names)

    @property
    def n_given(self) -> int:
        """The number of elements of the inputs as the file gives them; 0 where that cannot be told without values."""
        import torch

        try:
            with user_code(self.source.path), without_values():
                return sum(value.numel() for value in self.inputs() if isinstance(value, torch.Tensor))
        except Exception:  # Whatever a user's code raises; it is told when it is called with values.
            return 0

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Inside, code of the user's file runs; what it raises is a CheckError with its location."""
        try:
            with (
                catch_warnings(action="ignore"),
                user_code(self.source.path if hasattr(self, "source") else self.pair.reference.path),
            ):
                yield
        except CheckError:
            raise
        except BroughtError as error:
            raise CheckError(str(error)) from error
        except Exception as error:
            raise CheckError(placed(error, self.pair.reference.own_path.absolute())) from error

    @contextmanager
    def having(self, settings: Settings) -> Iterator[None]:
        """Inside, the file's globals have these values."""
        before = {name: self.names[name] for name in settings}
        self.names.update(settings)
        try:
            yield
        finally:
            self.names.update(before)

    def arguments_of_init(self) -> list[Any]:
        """What `get_init_inputs` returns; nothing for a function, or where there is none."""
        function = self.names.get(INIT_INPUTS)
        if not self.pair.reference.is_class or function is None:
            return []
        given = function()
        return [given] if isinstance(given, Mapping) else list(given)

    def cost(self, settings: Settings) -> tuple[int, int] | None:
        """The elements of all tensors, and roughly the operations of a call, which is made without values where it is
        large; None where the reference does not work with these sizes."""
        import torch

        n_operations = self.n_counted = 0

        def count(function: Any, args: Any, _kwargs: Any, result: Any) -> Any:
            nonlocal n_operations
            self.n_counted += turns(getattr(function, "__name__", ""), args)
            n_operations += operations(getattr(function, "__name__", ""), args, result, torch)
            return result

        is_class = self.pair.reference.is_class
        try:
            with catch_warnings(action="ignore"), user_code(self.source.path), self.having(settings), torch.no_grad():
                with without_values():
                    shaped = [*self.inputs()]
                shaped += self.module_in(without_values()).parameters() if is_class else ()
                elements = [value.numel() for value in shaped if isinstance(value, torch.Tensor)]
                is_meta = sum(elements) > MOST_CALLED
                module = self.entry
                if is_class:
                    module = self.module_in(torch.device("meta")).to("meta") if is_meta else self.built()
                with torch.device("meta") if is_meta else nullcontext(), passing(count):
                    outputs = outputs_of(module(*self.inputs()))
        except TimeoutError as error:
            raise CheckError(placed(error, self.pair.reference.own_path.absolute())) from error
        except Exception:  # Whatever a user's code raises: these sizes do not fit.
            return None
        elements += [value.numel() for value in outputs.values() if isinstance(value, torch.Tensor)]
        return None if 0 in elements else (sum(elements), n_operations)

    def module_in(self, context: AbstractContextManager[Any]) -> Any:
        """The module, built in a context in which tensors have no values, unless its constructor reads some of them, as
        `.item()` of numbers that `linspace` makes."""
        try:
            with context:
                return self.built()
        except (RuntimeError, NotImplementedError):
            return self.built()

    def built(self) -> Any:
        """A new instance of the reference's class."""
        return self.entry(*self.arguments_of_init())

    def at(self, settings: Settings) -> Sized:
        """The problem with these values of globals, and its outputs. Raises CheckError where the reference fails."""
        sized = self.shaped(settings)
        outputs = self.call(sized)
        modal = self.pair.reference.is_class and not same(outputs, self.call(sized, {TRAINING: False}))
        return replace(sized, outputs=outputs, modal=modal)

    def shaped(self, settings: Settings) -> Sized:
        """The problem with these values of globals, without outputs. Raises CheckError where the reference fails."""
        import torch

        with self.telling(), self.having(settings):
            init = self.arguments_of_init()
            arguments = drawn(self.inputs, argument_names(self.entry), torch)
            dtype = "float32" if self.pair.reference.is_class else common_dtype(arguments)
            arguments = [replace(a, dtype="") if a.dtype == dtype else a for a in arguments]
            module = UserModule(self.entry)
            weights = list(weights_of(module.module(init))) if self.pair.reference.is_class else []
        numbers = named_arguments(self.entry, init) if self.pair.reference.is_class else {}
        sized = Sized(dict(settings), numbers, arguments, weights, {}, dtype=dtype)
        return self.with_state(sized, module.module(init)) if self.pair.reference.is_class else sized

    def with_state(self, sized: Sized, built: Any) -> Sized:
        """The problem with the buffers that a call changes among its weights: running statistics are there already."""
        known = {weight.name for weight in sized.weights}
        buffers = ((n, buffer) for n, buffer in built.named_buffers() if buffer.is_floating_point())
        others = {name: buffer for name, buffer in buffers if word_of(name) not in known and buffer.numel()}
        if self.changing is None:
            self.changing = self.changed(sized, others) if others else frozenset()
        state = [Weight(word_of(n), array_of(b.float()), True) for n, b in others.items() if n in self.changing]
        return replace(sized, weights=[*sized.weights, *state], state=tuple(weight.name for weight in state))

    def changed(self, sized: Sized, before: Mapping[str, Any]) -> frozenset[str]:
        """The names of the buffers to which a call gives other values, and no other shape."""
        import torch

        given = {a.name: torch.tensor(a.value) for a in sized.arguments if a.is_tensor}
        module = UserModule(self.entry)
        with self.telling(), self.having(sized.settings), torch.no_grad():
            module(**given, **sized.params)
        after = {n: buffer for called in module.modules.values() for n, buffer in called.named_buffers()}
        same_shape = (n for n, buffer in before.items() if n in after and after[n].shape == buffer.shape)
        return frozenset(name for name in same_shape if not torch.equal(after[name], before[name]))

    def is_random(self, sized: Sized, options: Mapping[str, Any]) -> bool:
        """Whether the reference returns something else after another seed."""
        first = self.call(sized, options)
        with other_seed():
            return not same(first, self.call(sized, options))

    def functions(self, sized: Sized) -> set[str]:
        """The names of PyTorch's functions that a call makes, without underscores."""
        names = set[str]()

        def record(function: Any, _args: Any, _kwargs: Any, result: Any) -> Any:
            names.add(getattr(function, "__name__", "").strip("_"))
            return result

        with passing(record):
            self.call(sized)
        return names

    @contextmanager
    def overflowing(self) -> Iterator[set[str]]:
        """Inside, the names of PyTorch's functions that make an infinity or a NaN of finite numbers are collected, and
        its functions are counted (`n_calls`)."""
        import torch

        names = set[str]()
        self.n_calls = self.n_counted = 0

        def is_finite(value: Any) -> bool:
            if isinstance(value, torch.Tensor):
                return not value.is_floating_point() or bool(torch.isfinite(value).all())
            return not isinstance(value, float) or isfinite(value)

        def record(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
            self.n_calls += 1
            with torch._C.DisableTorchFunction():
                given = list(flat_values([args, list(kwargs.values())]))
                reads = any(isinstance(value, torch.Tensor) for value in given)
                if reads and not all(map(is_finite, flat_values([result]))) and all(map(is_finite, given)):
                    names.add(getattr(function, "__name__", ""))
            return result

        with passing(record):
            yield names

    def call(
        self,
        sized: Sized,
        options: Mapping[str, Any] | None = None,
        values: Mapping[str, NDArray[Any]] | None = None,
        dtype: str = "",
    ) -> dict[str, NDArray[Any]]:
        """What the reference returns at a size, for its own inputs or for other `values` of them; in another `dtype` of
        floating-point numbers if one is given."""
        import torch

        given = {a.name: torch.tensor(a.value) for a in sized.arguments if a.is_tensor}
        given |= {weight.name: torch.tensor(weight.values) for weight in sized.weights}
        given |= {name: torch.tensor(array) for name, array in (values or {}).items()}
        given = {
            name: t.to(getattr(torch, dtype)) if dtype and t.is_floating_point() else t for name, t in given.items()
        }
        with self.telling(), self.having(sized.settings), torch.no_grad(), checked_calls():
            outputs = UserModule(self.entry)(**given, **sized.params, **(options or {}))
        return {name: array_of(value) for name, value in outputs.items()}


def globals_read(entry: Any, names: Mapping[str, Any]) -> set[str]:
    """The globals of a file that its class or function reads when it is called, also through functions of the file."""
    waiting, seen, read = [entry], set[int](), set[str]()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            waiting += [value for kind in item.__mro__ for value in vars(kind).values() if hasattr(value, "__code__")]
        code = item if isinstance(item, CodeType) else getattr(item, "__code__", None)
        if code is not None:
            waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            globals_of = {step.argval for step in get_instructions(code) if step.opname == "LOAD_GLOBAL"}
            known = {name: names[name] for name in globals_of if name in names}
            waiting += [value for value in known.values() if isinstance(value, type) or hasattr(value, "__code__")]
            read |= known.keys()
    return read


def is_size(value: Any) -> bool:
    """Whether a global is a size or a shape."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    return bool(items) and all(type(item) is int and item > 0 for item in items) and max(items) > 1


def dict_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a module, to be changed in place."""
    if not isinstance(names, dict):
        raise TypeError("a module's names are a dict")
    return names


def argument_names(entry: Any) -> list[str]:
    """The names of a call's arguments."""
    function: Any = getattr(entry, "forward", entry) if isinstance(entry, type) else entry
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [n for n, p in inspect.signature(function).parameters.items() if n != "self" and p.kind not in kinds]


def drawn(function: Callable[[], Any], names: Sequence[str], torch: Any) -> list[Argument]:
    """The arguments that a function of the user draws after the seed. Raises CheckError for anything but a list."""
    drawers: dict[int, tuple[Any, str]] = {}
    declared: dict[int, tuple[int, int]] = {}
    plain = (torch.Tensor, torch.dtype, torch.device)

    def record(called: Any, args: Any, _kwargs: Any, result: Any) -> Any:
        name = getattr(called, "__name__", "")
        kind = DRAWS.get(name)
        if is_inplace(name) and name.strip("_") not in KEEPING:
            # What is written into a draw has a meaning, such as a label that is ignored.
            drawers.pop(id(args[0]), None)
        if name in SCALING and all(isinstance(a, plain) or type(a) in (int, float) for a in args):
            known = [drawers[id(a)][1] for a in args if id(a) in drawers]
            kind = known[0] if len(known) == sum(isinstance(a, torch.Tensor) for a in args) == 1 else None
            kind = None if kind == INTEGERS else shifted(kind, name, args)
        if kind is not None:
            drawers[id(result)] = result, kind
        if kind == INTEGERS and (bounds := bounds_of(args)) is not None:
            declared[id(result)] = bounds
        return result

    seed(torch)
    with passing(record):
        given = function()
    if isinstance(given, torch.Tensor) or not isinstance(given, (list, tuple)):
        raise CheckError(f"{function.__name__}() returns {type(given).__name__}; return the list of a call's arguments")
    words = [*names, *(f"x{i}" for i in range(len(names), len(given)))]
    arguments = [
        argument(word, value, drawers.get(id(value)), torch, declared.get(id(value)))
        for word, value in zip(words, given, strict=False)
    ]
    if not any(a.is_tensor for a in arguments):
        raise CheckError(
            f"{function.__name__}() returns no tensor, so there is nothing to compare (none in lists is seen)"
        )
    return arguments


def shifted(kind: str | None, name: str, args: Sequence[Any]) -> str | None:
    """How a draw is distributed after a call of `SCALING` with a number."""
    number = next((a for a in args if type(a) in (int, float)), 0)
    if kind not in (UNIFORM, POSITIVE) or not number:
        return kind
    if "add" in name:
        return POSITIVE if number > 0 else UNIFORM
    return UNIFORM if "sub" in name or number < 0 else kind


def bounds_of(args: Sequence[Any]) -> tuple[int, int] | None:
    """The bounds in the arguments of `randint(low, high, size)` or `randint(high, size)`; None if they are no such."""
    numbers = [a for a in args if type(a) is int]
    if len(numbers) not in (1, 2):
        return None
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, numbers[0])


def argument(
    name: str, value: Any, drawer: tuple[Any, str] | None, torch: Any, declared: tuple[int, int] | None = None
) -> Argument:
    """One argument, with how it was drawn, and the bounds that were `declared` of integers. Raises CheckError."""
    if not isinstance(value, torch.Tensor):
        if any(isinstance(item, torch.Tensor) for item in flat_values(value)):
            raise CheckError(f"{name} is a {type(value).__name__} with tensors; give each as an argument of its own")
        return Argument(name, NUMBER, "", value)
    if not value.numel():
        raise CheckError(f"{name} has no elements (shape {list(value.shape)}): not supported")
    dtype = str(value.dtype).rpartition(".")[2]
    if value.is_sparse:
        raise CheckError(f"{name} is a tensor of a sparse layout: not supported")
    drawn_as = drawer[1] if drawer is not None else GIVEN
    if value.is_complex():
        return Argument(name, drawn_as, dtype, array_of(in_parts(value).float()))
    if value.is_floating_point():
        drawn_as = UNIFORM if drawn_as == POSITIVE and float(value.min()) <= 0 else drawn_as
        return Argument(name, drawn_as, "" if dtype == "float32" else dtype, array_of(value.float()))
    array = array_of(value.to(torch.int64))
    bounds = declared or (int(array.min(initial=0)), int(array.max(initial=0)) + 1)
    return Argument(name, drawn_as, "" if dtype == "int64" else dtype, array, bounds)


def common_dtype(arguments: Sequence[Argument]) -> str:
    """The dtype of all floating-point arguments, or float32."""
    dtypes = {a.dtype or "float32" for a in arguments if a.is_tensor and a.value.dtype.kind == "f"}
    return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= CASE_DTYPES else "float32"


def weights_of(module: Any) -> Iterator[Weight]:
    """The parameters and running statistics of a module."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    parameters = {name for name, _ in module.named_parameters()}
    for word, name in state_of(module).items():
        yield Weight(word, array_of(tensors[name].float()), name not in parameters)


def operations(name: str, args: Any, result: Any, torch: Any) -> int:
    """Roughly the operations of a call: of a product of (m, k) and (k, n), 2 m k n. PyTorch's own counter would import
    its compiler, two seconds."""
    known = [value for value in flat_values((args, result)) if isinstance(value, torch.Tensor) and value.ndim > 1]
    if name.strip("_") in RECURRENT and known:
        x, *others = known
        return int(2 * x.numel() // x.shape[-1] * sum(value.numel() for value in others))
    if name.strip("_") not in PRODUCTS or len(known) < 3:
        return 0
    one, other, *_ = known
    return 2 * isqrt(one.numel() * other.numel() * known[-1].numel())


def turns(name: str, args: Any) -> int:
    """The calls that a call stands for: a layer of a recurrent network makes several in each turn of its loop."""
    shape = tuple(getattr(args[0], "shape", ())) if args else ()
    if name.strip("_") not in RECURRENT or len(shape) < 2:
        return 1
    layers: int = next((arg for arg in args if type(arg) is int), 1)
    return max(1, CALLS_A_TURN * int(max(shape[:-1])) * layers)


def flat_values(value: Any) -> Iterator[Any]:
    """The items of nested lists."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from flat_values(item)
    else:
        yield value


@contextmanager
def other_seed() -> Iterator[None]:
    """Inside, calls are made after another seed."""
    before, user_module.SEED = user_module.SEED, user_module.SEED + 1
    try:
        yield
    finally:
        user_module.SEED = before


@contextmanager
def without_values() -> Iterator[None]:
    """Inside, new tensors have no memory. `torch.device("meta")` would import PyTorch's compiler, two seconds."""
    from torch.utils._device import _device_constructors

    constructors = set(_device_constructors())

    def on_meta(function: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if function not in constructors:
            return given
        return {**{name: value for name, value in given.items() if name != "generator"}, "device": "meta"}

    with passing(lambda _function, _args, _kwargs, result: result, on_meta):
        yield


def same(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Whether two results are equal, bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n], equal_nan=True) for n in one)


def alike(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Whether two results differ in their last digits at most, as where threads add up in another order."""
    pairs = [(one[name], other[name]) for name in one if name in other]
    shapes = one.keys() == other.keys() and all(a.shape == b.shape for a, b in pairs)
    return shapes and all(np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs)


def is_finite(outputs: Mapping[str, NDArray[Any]]) -> bool:
    """Whether all numbers are finite."""
    return all(np.isfinite(values).all() for values in outputs.values())


def varies(outputs: Mapping[str, NDArray[Any]]) -> bool:
    """Whether some output has different elements, as far as it can."""
    return any(values.size == 1 or (values != values.flat[0]).any() for values in outputs.values() if values.size)
