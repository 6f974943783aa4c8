"""The calls of a layer's code between its children, in order, with the value of each.

Nothing is translated, so this holds for any framework that hands out its calls. A call's result may be replaced.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Mapping

from parity.models.worker.tape import TensorTape
from parity.program.worker.recording import ValueTable, attribute_of, is_inplace, keywords_of_caller

BACKWARD = frozenset(("detach", "stop_gradient", "register_hook"))
"""Functions that change only gradients."""
IN_PLACE = frozenset(("inplace", "out"))
"""Arguments that say where a result is stored, not what it is."""


class CallRecorder(ValueTable):
    """Records each call of a framework's functions; the values go to the tape.

    `others` replace the results of calls, by number; `backward` are the calls that change only gradients, and the
    children whose outputs have none. A tensor whose values are not those that it had, since a call has `written` to
    memory that it shares, gets a row of its own when it is read.
    """

    def __init__(self, port: Any, tape: TensorTape, others: Mapping[int, Any]) -> None:
        super().__init__(port.roots)
        self.port, self.tape, self.others = port, tape, others
        self.written: List[str] = []
        self._writing: List[Any] = []
        self._values: Dict[int, Any] = {}
        self.backward: List[Dict[str, Any]] = []
        self.parameters = {id(state.tensor): state.name for state in port.tensors()}

    def mark_of(self, tensor: Any) -> str:
        """The mark of a tensor's value; a parameter of another layer keeps its name."""
        is_target = any(tensor is one for one in self._writing)
        if id(tensor) in self._known and not is_target and self._has_changed(tensor):
            marks = [self._known[id(tensor)][1], *self.written]
            self._known_anew(tensor, {"function": "written", "args": [{"value": m} for m in marks], "kwargs": {}})
        if id(tensor) not in self._known and id(tensor) in self.parameters:
            mark = self.know(tensor, self.parameters[id(tensor)])
            self.constants[self.names[mark]] = tensor
        return super().mark_of(tensor)

    def know(self, tensor: Any, wanted: str = "") -> str:
        """The mark of a tensor's value; a new one goes to the tape."""
        new = id(tensor) not in self._known
        mark = super().know(tensor, wanted)
        if new:
            array = self.port.to_array(tensor)
            self._values[id(tensor)] = digest(array)
            self.tape.put(mark, array)
        return mark

    def _has_changed(self, tensor: Any) -> bool:
        """Whether a tensor's values are not those that were recorded."""
        return bool(self._values[id(tensor)] != digest(self.port.to_array(tensor)))

    def called(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Record a call of a function; returns the result, or its replacement."""
        if not self.active:
            return result
        self.active = False
        try:
            return self._noted(function, args, kwargs, result)
        finally:
            self.active = True

    def _noted(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        named = attribute_of(function) or function.__name__
        if named == "__setitem__":
            self._writing = [args[0]]
            self._known_anew(args[0], self.row("setitem", args, {}))
            self.written, self._writing = [self._known[id(args[0])][1]], []
            return result
        outputs = self._outputs(result)
        self._writing = [output for output in outputs if id(output) in self._known]
        try:
            return self._called(named, function, args, kwargs, result, outputs)
        finally:
            self._writing = []

    def _called(self, named: str, function: Any, args: Any, kwargs: Any, result: Any, outputs: Any) -> Any:
        """Record a call that returns tensors; returns the result, or its replacement."""
        word = named.strip("_") or "t"
        if word in BACKWARD:
            self.backward.append(self.row(word, args, kwargs))
        elif not named.endswith("_like") and self.is_cut(outputs, (args, kwargs)):
            self.backward.append({**self.row(word, args, self._shown_arguments(function, kwargs)), "cut": True})
        if not outputs or named == "__set__":
            return result
        is_written = is_inplace(named) or any(map(self._has_changed, self._writing))
        if len(self._writing) == len(outputs) and not is_written:
            return result
        row = self.row(word, args, self._shown_arguments(function, kwargs))
        if self.port.is_tensor(result):
            other = self._other(result)
            self._known_anew(other, row)
            self.written = [self._known[id(other)][1]] if is_written else self.written
            return other
        for i, output in enumerate(outputs):
            self._known_anew(output, {**row, "part": i})
        return result

    def is_cut(self, outputs: Any, given: Any) -> bool:
        """Whether a call cuts the gradient: an operand requires one, and no result does."""
        floats = [tensor for tensor in self.port.tensors_in(outputs) if "float" in self.port.dtype_of(tensor)]
        return (
            bool(floats)
            and not any(map(self.port.flows, floats))
            and any(map(self.port.flows, self.port.tensors_in(given)))
        )

    def _shown_arguments(self, function: Any, given: Mapping[str, Any]) -> Dict[str, Any]:
        """The keyword arguments that differ from the function's defaults, or that the source writes."""
        shown = keywords_of_caller(self.port.roots).union(unusual(function, given))
        return {name: value for name, value in given.items() if name in shown and name not in IN_PLACE}

    def _outputs(self, result: Any) -> List[Any]:
        """The tensors that a function returned."""
        if self.port.is_tensor(result):
            return [result]
        listed = isinstance(result, (tuple, list)) and bool(result) and all(map(self.port.is_tensor, result))
        return list(result) if listed else []

    def _other(self, result: Any) -> Any:
        """The replacement of the next call's result, or the result itself."""
        other = self.others.get(len(self.rows))
        return result if other is None else self.port.to_tensor(other.reshape(tuple(result.shape)), result)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of the framework."""
        return bool(self.port.is_tensor(value))

    def _known_anew(self, tensor: Any, call: Mapping[str, Any]) -> None:
        """Add a row whose result is this tensor; one that was changed in place gets a new value."""
        self._known.pop(id(tensor), None)
        self.add(self.know(tensor), call)

    def reply(self, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Dict[str, Any]:
        """The reply for the host: the rows of calls, `names` by mark, the locations of `inputs` by mark, the marks of
        `outputs`, and the calls that change only gradients, `backward`."""
        rows = self.named_rows()
        constants = {mark: f"constant:{name}" for mark, name in self.names.items() if name in self.constants}
        message = {"calls": rows, "names": self.names, "inputs": {**inputs, **constants}, "outputs": dict(outputs)}
        return {**message, "backward": self.backward}


def digest(array: Any) -> int:
    """A number that differs for other values."""
    return hash((array.shape, array.tobytes()))


def unusual(function: Any, given: Mapping[str, Any]) -> Dict[str, Any]:
    """The keyword arguments that differ from the function's defaults."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(given)
    plain = {name: item.default for name, item in parameters.items() if isinstance(item.default, PLAIN)}
    return {n: v for n, v in given.items() if not (n in plain and isinstance(v, PLAIN) and v == plain[n])}


PLAIN = (bool, int, float, str)
