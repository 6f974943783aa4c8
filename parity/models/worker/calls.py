"""The calls of a layer's code between its children, in order, with the value of each.

Nothing is translated, so this holds for any framework that hands out its calls. A call's result may be replaced.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Mapping, Tuple

from parity.models.worker.tape import TensorTape
from parity.models.worker.trace import (
    ValueTable,
    attribute_of,
    is_inplace,
    keywords_of_caller,
    source_of_call,
    written,
)

SUM, PRODUCT, SIGN, POWER, PART, WHOLE = range(1, 7)
"""The precedence of expressions, from `a + b` to `f(a)`."""
INFIX: Mapping[str, Tuple[str, int]] = {
    **dict.fromkeys(("add", "iadd"), ("+", SUM)),
    **dict.fromkeys(("sub", "isub", "subtract"), ("-", SUM)),
    **dict.fromkeys(("mul", "imul", "multiply"), ("*", PRODUCT)),
    **dict.fromkeys(("div", "truediv", "itruediv", "divide", "true_divide"), ("/", PRODUCT)),
    **dict.fromkeys(("matmul", "bmm", "mm"), ("@", PRODUCT)),
    "pow": ("**", POWER),
    **{
        name: (sign, 0)
        for sign, names in {
            "==": ("eq", "equal"),
            "!=": ("ne", "not_equal"),
            "<": ("lt", "less_than", "less"),
            "<=": ("le", "less_equal"),
            ">": ("gt", "greater_than", "greater"),
            ">=": ("ge", "greater_equal"),
            "&": ("and", "logical_and", "bitwise_and"),
            "|": ("or", "logical_or", "bitwise_or"),
        }.items()
        for name in names
    },
}
REVERSED: Mapping[str, str] = {
    "radd": "add", "rsub": "sub", "rmul": "mul", "rdiv": "div", "rtruediv": "div", "rmatmul": "matmul", "rpow": "pow",
    "rand": "and", "ror": "or",
}  # fmt: skip
"""Operators that the second operand implements."""
PREFIX: Mapping[str, str] = {"neg": "-", "negative": "-", "invert": "~", "logical_not": "~", "bitwise_not": "~"}
BACKWARD = frozenset(("detach", "stop_gradient", "register_hook"))
"""Functions that change only gradients."""
WITHOUT = " without gradients"
OPERANDS = ("x", "input", "y", "other")
"""Arguments that are shown without their names."""
IN_PLACE = frozenset(("inplace", "out"))
"""Arguments that say where a result is stored, not what it is."""
LONGEST = 40
"""The most characters of an argument that is neither a tensor nor a number."""


class CallRecorder(ValueTable):
    """Records each call of a framework's functions.

    `steps` are expressions with marks for values, which go to the tape. `others` replace the results of steps, by
    number; `backward` are the calls that change only gradients. A tensor whose values are not those that it had, since
    a call has `written` to memory that it shares, gets a step of its own when it is read.
    """

    def __init__(self, port: Any, tape: TensorTape, others: Mapping[int, Any]) -> None:
        super().__init__()
        self.port, self.tape, self.others = port, tape, others
        self.steps: List[Dict[str, Any]] = []
        self.written = ""
        self._writing: List[Any] = []
        self._values: Dict[int, Any] = {}
        self.backward: List[str] = []
        self.parameters = {id(state.tensor): state.name for state in port.tensors()}

    def var(self, tensor: Any) -> Any:
        """The value of a tensor; a parameter of another layer keeps its name."""
        is_target = any(tensor is one for one in self._writing)
        if id(tensor) in self._known and not is_target and self._has_changed(tensor):
            old, writer = self._known[id(tensor)][1], self.written
            self._known_anew(tensor, f"written({old!r}{f', {writer}' if writer else ''})", WHOLE, "written")
        if id(tensor) not in self._known and id(tensor) in self.parameters:
            var = self.know(tensor, self.parameters[id(tensor)])
            self.constants[self.names[var.mark]] = tensor
        return super().var(tensor)

    def know(self, tensor: Any, wanted: str = "") -> Any:
        """The value of a tensor; a new one goes to the tape."""
        new = id(tensor) not in self._known
        var = super().know(tensor, wanted)
        if new:
            array = self.port.to_array(tensor)
            self._values[id(tensor)] = digest(array)
            self.tape.put(var.mark, array)
        return var

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
            self._known_anew(args[0], f"{self._text(args[0])} with [{self._index(args[1])}] = {self._text(args[2])}", 0)
            self.written, self._writing = repr(self._known[id(args[0])][1]), []
            return result
        outputs = self._outputs(result)
        self._writing = [output for output in outputs if id(output) in self._known]
        try:
            return self._called(named, function, args, kwargs, result, outputs)
        finally:
            self._writing = []

    def _called(self, named: str, function: Any, args: Any, kwargs: Any, result: Any, outputs: Any) -> Any:
        """Record a call that returns tensors; returns the result, or its replacement."""
        if named.strip("_") in BACKWARD:
            self.backward.append(self.expression(named.strip("_"), args, kwargs)[0])
        elif not named.endswith("_like") and self.is_cut(outputs, (args, kwargs)):
            self.backward.append(
                f"{self.expression(named.strip('_'), args, self._shown_arguments(function, kwargs))[0]}{WITHOUT}"
            )
        if not outputs or named == "__set__":
            return result
        is_written = is_inplace(named) or any(map(self._has_changed, self._writing))
        if len(self._writing) == len(outputs) and not is_written:
            return result
        text, level = self.expression(named.strip("_"), args, self._shown_arguments(function, kwargs))
        if self.port.is_tensor(result):
            other = self._other(result)
            self._known_anew(other, text, level, named)
            self.written = repr(self._known[id(other)][1]) if is_written else self.written
            return other
        for i, output in enumerate(outputs):
            self._known_anew(output, f"{text}[{i}]", PART, named)
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
        """The replacement of the next step's result, or the result itself."""
        other = self.others.get(len(self.steps))
        return result if other is None else self.port.to_tensor(other.reshape(tuple(result.shape)), result)

    def _known_anew(self, tensor: Any, text: str, level: int, named: str = "") -> None:
        """Add a step whose result is this tensor; one that was changed in place gets a new value."""
        self._known.pop(id(tensor), None)
        wanted, location = source_of_call(self.port.roots)
        self.steps.append(
            {"mark": self.know(tensor).mark, "text": text, "level": level, "wanted": wanted, "location": location,
             "function": named.strip("_") or "t"}
        )  # fmt: skip

    def named(self) -> List[Dict[str, Any]]:
        """The steps with names: the last call of a statement has the name that the source assigns to."""
        rows = []
        for step, following in zip(self.steps, [*self.steps[1:], None]):
            last = following is None or following["location"] != step["location"]
            name = self.names[step["mark"]] = self.free((last and step["wanted"]) or step["function"])
            rows.append({"mark": step["mark"], "name": name, "text": step["text"], "level": step["level"],
                         "labelled": bool(last and step["wanted"])})  # fmt: skip
        return rows

    def reply(self, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Dict[str, Any]:
        """The reply for the host: `steps`, `names` by mark, the locations of `inputs` by mark, the marks of `outputs`,
        and the calls that change only gradients, `backward`."""
        steps = self.named()
        constants = {mark: f"constant:{name}" for mark, name in self.names.items() if name in self.constants}
        message = {"steps": steps, "names": self.names, "inputs": {**inputs, **constants}, "outputs": dict(outputs)}
        return {**message, "backward": self.backward}

    # Words

    def expression(self, plain: str, args: Any, kwargs: Mapping[str, Any]) -> Tuple[str, int]:
        """A call as an expression, and its precedence."""
        kwargs = {k: v for k, v in kwargs.items() if v is not None and k != "name"}
        args = [*args, *(kwargs.pop(name) for name in OPERANDS if name in kwargs)]
        if plain in REVERSED and len(args) > 1:
            plain, args[:2] = REVERSED[plain], [args[1], args[0]]
        if plain in INFIX and len(args) + len(kwargs) == 2 and set(kwargs) <= {"y", "other"}:
            sign, level = INFIX[plain]
            one, other = (self._text(value) for value in (*args, *kwargs.values()))
            return f"{one} {sign} {other}", level
        if plain in PREFIX and len(args) == 1 and not kwargs:
            return f"{PREFIX[plain]}{self._text(args[0])}", SIGN
        if plain == "getitem":
            return f"{self._text(args[0])}[{self._index(args[1])}]", PART
        texts = [self._text(value) for value in args]
        while texts and texts[-1] == "None":
            texts.pop()
        texts += [f"{name}={self._text(value)}" for name, value in kwargs.items()]
        return f"{plain}({', '.join(texts)})", WHOLE

    def _index(self, index: Any) -> str:
        parts = index if isinstance(index, tuple) else (index,)
        return ", ".join(self._part(part) for part in parts)

    def _part(self, part: Any) -> str:
        """A part of an index."""
        if isinstance(part, slice):
            a, b, c = ("" if v is None else self._text(v) for v in (part.start, part.stop, part.step))
            return f"{a}:{b}:{c}" if c else f"{a}:{b}"
        return "..." if part is Ellipsis else self._text(part)

    def _text(self, value: Any) -> str:
        """An argument."""
        if self.port.is_tensor(value):
            return repr(self.var(value))
        if isinstance(value, (tuple, list)):
            inner = ", ".join(map(self._text, value))
            return f"[{inner}]"
        if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
            return repr(value)
        if isinstance(value, float):
            return number(value)
        if isinstance(value, type):
            return value.__name__
        if isinstance(value, slice) or value is Ellipsis:
            return written(value)
        word = getattr(value, "__name__", str(value))
        return word.rpartition(".")[2] if word.partition(".")[0] in self.port.roots else word[:LONGEST]


def digest(array: Any) -> int:
    """A number that differs for other values."""
    return hash((array.shape, array.tobytes()))


def number(value: float) -> str:
    """A number in few characters: 0.3535533906, 1e-12, -1e9."""
    text, short = f"{value:.10g}", f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return short if len(short) < len(text) and float(short) == value else text


def unusual(function: Any, given: Mapping[str, Any]) -> Dict[str, Any]:
    """The keyword arguments that differ from the function's defaults."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(given)
    plain = {name: item.default for name, item in parameters.items() if isinstance(item.default, PLAIN)}
    return {n: v for n, v in given.items() if not (n in plain and isinstance(v, PLAIN) and v == plain[n])}


PLAIN = (bool, int, float, str)
