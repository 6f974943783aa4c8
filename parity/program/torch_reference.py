"""A reference in PyTorch: a user's class or function, recorded here, once for all inputs of the same shapes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np
from autograd.tracer import getval

from parity.cases.brought import MOST_REPLAYED, RecordedFunction, ReferenceFile, namespace, traced
from parity.cases.program import Traced, trace
from parity.cases.replay import drawn_inputs, first_difference
from parity.cases.user_code import BroughtError, placed, user_code
from parity.cases.writable import unwrapped
from parity.program.recorded import RecordedCall
from parity.program.recorded_code import Array, CodeFunction, Recording
from parity.program.worker.recording import UntracedError
from parity.program.worker.tracer import Tracer
from parity.program.worker.user_module import UserModule

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Bounds = tuple[str, int, int]
Params = tuple[tuple[str, Any], ...]
REPLAYS = 2
"""The number of further inputs for which a recording is compared with its code."""


@cache
def torch_reference(
    source: ReferenceFile,
    name: str,
    tensors: Sequence[str],
    integers: Sequence[Bounds],
    params: Sequence[str],
) -> RecordedFunction:
    """The class or function `name` of a file that imports PyTorch, as a reference of these inputs and params.

    Raises BroughtError if the file cannot be run, or does not define it.
    """
    return RecordedFunction(source.path, source.text, TorchFunction(source, name, tensors, integers, params))


class TorchFunction:
    """What the user's code computes, as a function of arrays by name; raises BroughtError with the user's line."""

    def __init__(
        self,
        source: ReferenceFile,
        name: str,
        tensors: Sequence[str],
        integers: Sequence[Bounds],
        params: Sequence[str],
    ) -> None:
        entry = namespace(source, plain=True).get(name)
        if not callable(entry):
            raise BroughtError(f"{source.path.name} defines no class or function {name}")
        self.source, self.name, self.tensors, self.params = source, name, tensors, params
        self.integers = {n: (low, high) for n, low, high in integers}
        self.module = UserModule(entry)
        self.codes: dict[tuple[Shapes, Params], TorchCode | BroughtError] = {}
        kind = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in (*tensors, *params)])
        self.__name__ = name

    def __call__(self, **given: Any) -> dict[str, Any]:
        """The outputs by name."""
        shapes = tuple((name, tuple(given[name].shape)) for name in self.tensors)
        params = tuple((name, plain(given[name])) for name in self.params)
        if (shapes, params) not in self.codes:
            try:
                self.codes[shapes, params] = self.recorded(shapes, params)
            except BroughtError as error:
                self.codes[shapes, params] = error
        code = self.codes[shapes, params]
        if isinstance(code, BroughtError):
            raise code
        return code({name: given[name] for name in self.tensors})

    def recorded(self, shapes: Shapes, params: Params) -> TorchCode:
        """The recording for these shapes and params, compared with the code itself."""
        sizes = dict(shapes)
        small = sum(map(prod, sizes.values())) <= MOST_REPLAYED
        draws = [self.scaled(inputs) for inputs in drawn_inputs(sizes, self.integers)]
        with user_code(self.source.path), self.placing():
            code = TorchCode(*recording_of(self.module, draws[0], dict(params)))
            own = [called(self.module, inputs, dict(params)) for inputs in draws[:REPLAYS] if small]
        code.compare(draws, own)
        return code

    def scaled(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs as float32; those with several axes as small as initial weights, so that no product grows."""
        return {
            name: a if a.dtype.kind != "f" else (a * gain(a.shape)).astype(np.float32) for name, a in inputs.items()
        }

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Inside, any error becomes a BroughtError with the user's line."""
        try:
            yield
        except BroughtError:
            raise
        except UntracedError as error:
            raise BroughtError(str(error)) from error
        except Exception as error:
            raise BroughtError(placed(error, self.source.path)) from error


def gain(shape: tuple[int, ...]) -> float:
    """The scale of an input."""
    return 1.0 if len(shape) < 2 else min(1.0, prod(shape[1:]) ** -0.5 * 2)


def plain(value: Any) -> Any:
    """A param's value."""
    value = getval(unwrapped(value))
    return value.value.item() if isinstance(value, Traced) else value


class TorchCode:
    """A recording as a function of arrays by name, with its constants."""

    def __init__(self, recording: Recording, constants: Mapping[str, Array]) -> None:
        self.recording, self.constants = recording, constants

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name."""
        given = {**inputs, **self.constants}
        function = CodeFunction(self.recording, {name: tuple(value.shape) for name, value in given.items()})
        return function(**given, **function.options.values)

    def of_arrays(self, **inputs: Any) -> dict[str, Any]:
        """The outputs by name."""
        return self(inputs)

    def compare(self, draws: Sequence[Mapping[str, Array]], own: Sequence[Mapping[str, Array]]) -> None:
        """Raise BroughtError if the recording gives other outputs than its `own` code for some inputs."""
        if not own:
            return
        program = trace(lambda tensors, _: traced(self.of_arrays, tensors), draws[0], labelled=False)[0]
        for inputs, outputs in zip(draws, own, strict=False):
            difference = first_difference(program, inputs, outputs, {}, "float32")
            if difference is not None:
                raise BroughtError(self.differing(difference.name, difference.text))

    def differing(self, output: str, text: str) -> str:
        """What a recording computes differently from its code, with the line that returns it."""
        lines = {call.name: call.source_line for call in self.recording.calls}
        returned = {name: self.recording.names[mark] for name, mark in self.recording.returned.items()}
        reads = ", ".join(self.recording.reads)
        why = f"; Python gets values of tensors at {reads}" if reads else ""
        return f"{lines.get(returned.get(output, ''), '')}: its recording differs: {output} {text}{why}"


def called(module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]) -> dict[str, Array]:
    """What the code returns for arrays, as arrays by name."""
    import torch

    with torch.no_grad():
        outputs = module(**{name: torch.tensor(array) for name, array in inputs.items()}, **params)
    return {name: array_of(value) for name, value in outputs.items()}


def recording_of(
    module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]
) -> tuple[Recording, dict[str, Array]]:
    """A call of the code, recorded, and its constants by name. Raises UntracedError, or what the code raises."""
    import torch

    tracer = Tracer(torch)
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    marks = {tracer.know(tensor, name): f"in:{name}" for name, tensor in tensors.items()}
    called(module, inputs, params)  # Builds the module before calls are recorded.
    with torch.no_grad(), intercepted(tracer.called):
        outputs = module(**tensors, **params)
    returned = {name: tracer.mark_of(value) for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    rows = tracer.named_rows()
    constants = {name: array_of(tensor) for name, tensor in tracer.constants.items()}
    marks |= {mark: f"constant:{name}" for mark, name in tracer.names.items() if name in constants}
    calls = tuple(map(RecordedCall.of, rows))
    return Recording(calls, tracer.names, marks, {name: name for name in returned}, returned, tracer.reads), constants


def array_of(value: Any) -> Array:
    """A tensor or a number as an array."""
    array: Array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return array


@contextmanager
def intercepted(record: Callable[..., Any]) -> Iterator[None]:
    """Inside, each call of PyTorch's functions is passed to `record` with its result."""
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):  # type: ignore[misc] # PyTorch has no types here
        """Passes every call to `record`."""

        def __torch_function__(self, function: Any, _kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return record(function, args, kwargs or {}, result)

    with Mode():
        yield


def is_torch(source: ReferenceFile, name: str) -> bool:
    """Whether a file defines a class of this name, or a function of PyTorch: it imports PyTorch, and not NumPy."""
    try:
        nodes = list(ast.walk(ast.parse(source.text)))
    except (SyntaxError, ValueError):
        return False
    modules = {a.name.partition(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
    modules |= {(n.module or "").partition(".")[0] for n in nodes if isinstance(n, ast.ImportFrom)}
    is_class = any(isinstance(n, ast.ClassDef) and n.name == name for n in nodes)
    return "torch" in modules and (is_class or "numpy" not in modules)
