"""Calls a layer with its children closed, and records its code as a program or as a list of calls."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, List, Mapping

from parity.capture.frameworks.visit import filled, is_placeholder
from parity.models.worker.calls import WITHOUT, CallRecorder
from parity.models.worker.crossing import IN, OUT, Crossing, key
from parity.models.worker.ports.base import ClosedCall, Port
from parity.models.worker.ports.layered import LayeredPort, Watch, named
from parity.models.worker.tape import TensorTape
from parity.models.worker.trace import UntracedError
from parity.models.worker.tracer import Tracer


@dataclass(frozen=True)
class TracedProgram:
    """A layer's code as a program.

    `lines` are those of `Tracer.named`. `inputs` maps arguments to locations (`in:0`, `param:weight`,
    `child:<tensor>`, `constant:`), `outputs` maps outputs to tensors at boundaries, `returned` maps them to values;
    `constants` are by argument, `values` what each line computed, by its name. `reads` are the places where the code
    gives tensors' values to Python, as in `model.py:12 (item)`.
    """

    lines: List[Dict[str, Any]]
    returned: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    constants: Mapping[str, Any]
    values: Mapping[str, Any]
    reads: List[str]


class Closed(Watch):
    """Children that are not entered: their inputs are outputs of the program, their outputs are given."""

    def __init__(self, port: LayeredPort, layers: Collection[str], values: Mapping[str, Any], tracer: Any) -> None:
        super().__init__(port, Crossing(TensorTape.nowhere(), layers))
        self.values, self.tracer = values, tracer
        self.inputs: Dict[str, str] = {}
        self.outputs: Dict[str, str] = {}
        self.named: Dict[str, str] = {}

    def passed(self, layer: str, call: int, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a child's inputs, and return the given outputs."""
        word = word_of(layer)
        for i, tensor in enumerate(self.port.tensors_in((args, kwargs))):
            self.note(tensor, f"{word}_in{i or ''}", key(layer, call, IN, i))
        self.tracer.active = False
        result = original(*args, **kwargs)
        if isinstance(self.tracer, CallRecorder) and self.tracer.is_cut(result, (args, kwargs)):
            self.tracer.backward.append(f"{word}{WITHOUT}")
        others = {}
        for i, tensor in enumerate(self.port.tensors_in(result)):
            name, values = key(layer, call, OUT, i), self.port.to_array(tensor)
            others[i] = self.port.to_tensor(self.values.get(name, values), tensor, self.port.flows(tensor))
            self.inputs[repr(self.tracer.know(others[i], word))] = f"child:{name}"
        if isinstance(self.tracer, Tracer):
            self.tracer.passed(layer, (args, kwargs), self.port.tensors_in(result), list(others.values()))
        self.tracer.active = True
        return filled(self.port.emptied(result), others)

    def note(self, tensor: Any, wanted: str, name: str) -> None:
        """Add an output of the program, if it has floats."""
        if "float" not in self.port.dtype_of(tensor):
            return
        output = self.tracer.free(f"{wanted}_out" if wanted in self.outputs else wanted)
        self.outputs[output] = name
        self.named[output] = repr(self.tracer.var(tensor))


def traced(port: Port, given: ClosedCall) -> TracedProgram:
    """The program of a layer's call. Raises UntracedError if it calls a function without a translation."""
    if not port.traced or not isinstance(port, LayeredPort):
        raise UntracedError(f"the calls of {port.framework.__name__} cannot be traced")
    tracer = Tracer(port.framework)
    return program_of(port, tracer, closed_run(port, given, tracer))


def calls_of(
    port: Port, given: ClosedCall, tape: TensorTape, others: Mapping[int, Any], *, gradients: bool
) -> Dict[str, Any]:
    """The calls of a layer's code, as in `CallRecorder.reply`; the values go to the tape.

    `others` replace the results of steps. With `gradients`, gradients are recorded. Raises UntracedError.
    """
    if not isinstance(port, LayeredPort):
        return port.noted(given, tape, others)
    calls = CallRecorder(port, tape, others)
    closed = closed_run(port, given, calls, gradients=gradients)
    outputs = {closed.outputs[name]: mark for name, mark in closed.named.items()}
    return calls.reply(closed.inputs, outputs)


def closed_run(port: LayeredPort, given: ClosedCall, tracer: Any, *, gradients: bool = False) -> Closed:
    """Call a layer with its children closed, while the tracer records its code's calls. Raises UntracedError."""
    layer, call = given.layer, given.call
    if (layer, call) not in port.calls:
        raise UntracedError(f"{layer or 'the model'} was not called {call + 1} times")
    module = port.module(layer)
    closed = Closed(port, [name for name in given.children if name != layer], given.values, tracer)
    leaves = {i: port.to_tensor(a, port.held(a), gradients and a.dtype.kind == "f") for i, a in given.inputs.items()}
    words = words_of(port.entered(module), port.calls[layer, call])
    for i, tensor in leaves.items():
        closed.inputs[repr(tracer.know(tensor, words[i] if i < len(words) else f"x{i}"))] = f"in:{i}"
    for name, (tensor, _) in port.parts(module).items():
        closed.inputs[repr(tracer.know(tensor, name))] = f"param:{name}"
    args, kwargs = filled(port.calls[layer, call], leaves)
    port.seeded()
    with port.recorded() if gradients else port.no_gradients(), closed, port.intercepted(tracer.called):
        result = port.entered(module)(*args, **kwargs)
    for i, tensor in enumerate(port.tensors_in(result)):
        closed.note(tensor, f"y{i or ''}", key(layer, call, OUT, i))
    return closed


def word_of(layer: str) -> str:
    """A layer's name in a program: its last part, with the list's before a number, as in `encoder_1`."""
    first, _, last = layer.rpartition(".")
    return f"{first.rpartition('.')[2]}_{last}" if last.isdigit() and first else last


def words_of(function: Callable[..., Any], given: Any, is_tensor: Callable[[Any], bool] = is_placeholder) -> List[str]:
    """Names for a call's tensors, or for their placeholders: those of arguments, and of items of mappings."""
    parameters = list(inspect.signature(function).parameters)
    args, kwargs = given
    words: List[str] = []
    for name, value in [*zip([*parameters, *["x"] * len(args)], args), *kwargs.items()]:
        if isinstance(value, Mapping):
            words += [word for word, item in value.items() for _ in named(item, is_tensor)]
        else:
            words += [name for _ in named(value, is_tensor)]
    return words


def program_of(port: Port, tracer: Tracer, closed: Closed) -> TracedProgram:
    """The program that was recorded."""
    lines = tracer.named()
    constants = {name: port.to_array(tensor) for name, tensor in tracer.constants.items()}
    inputs = {tracer.put(mark): location for mark, location in closed.inputs.items()}
    inputs.update({name: f"constant:{name}" for name in constants})
    returned = {name: tracer.put(mark) for name, mark in closed.named.items()}
    values = {name: port.to_array(tensor) for name, tensor in tracer.values().items()}
    return TracedProgram(lines, returned, inputs, closed.outputs, constants, values, tracer.reads)
