"""Calls a layer with its children closed, and records its code as a program or as a list of calls."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Collection, Dict, List, Mapping

from parity.capture.frameworks.visit import filled, is_placeholder
from parity.models.worker.calls import CallRecorder
from parity.models.worker.crossing import IN, OUT, Crossing, key
from parity.models.worker.ports.base import ClosedCall, Port
from parity.models.worker.ports.layered import LayeredPort, Watch, named
from parity.models.worker.tape import TensorTape
from parity.program.worker.recording import UntracedError
from parity.program.worker.tracer import Tracer


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
            self.tracer.backward.append({"layer": word})
        others = {}
        for i, tensor in enumerate(self.port.tensors_in(result)):
            name, values = key(layer, call, OUT, i), self.port.to_array(tensor)
            others[i] = self.port.to_tensor(self.values.get(name, values), tensor, self.port.flows(tensor))
            self.inputs[self.tracer.know(others[i], word)] = f"child:{name}"
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
        self.named[output] = self.tracer.mark_of(tensor)


def traced(port: Port, given: ClosedCall, tape: TensorTape) -> Dict[str, Any]:
    """The recording of a layer's code (`parity.program.recorded_code.Recording`); its constants go to the tape by mark,
    and what each call computed as `value:<mark>`. Raises UntracedError if the code cannot be recorded."""
    if not port.traced or not isinstance(port, LayeredPort):
        raise UntracedError(f"the calls of {port.framework.__name__} cannot be traced")
    tracer = Tracer(port.framework)
    closed = closed_run(port, given, tracer)
    calls = tracer.named_rows()
    inputs = dict(closed.inputs)
    for mark, name in tracer.names.items():
        if name in tracer.constants:
            tape.put(mark, port.to_array(tracer.constants[name]))
            inputs[mark] = f"constant:{name}"
    for mark, tensor in tracer.values.items():
        tape.put(f"value:{mark}", port.to_array(tensor))
    message = {"calls": calls, "names": tracer.names, "inputs": inputs, "outputs": closed.outputs}
    return {**message, "returned": closed.named, "reads": tracer.reads}


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
        closed.inputs[tracer.know(tensor, words[i] if i < len(words) else f"x{i}")] = f"in:{i}"
    for name, (tensor, _) in port.parts(module).items():
        closed.inputs[tracer.know(tensor, name)] = f"param:{name}"
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
