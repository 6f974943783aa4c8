"""A recorded call of a framework's function, and how it is written.

Workers send calls as rows (`worker/recording.py`); a value is known by its mark. All recordings are read here: the
calls of a port (`call_traces.py`), those of a graph, and the program of a layer's code (`code.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from parity.cases.formula import SIGN, bracketed

COMPARISON, SUM, PRODUCT, POWER, PART, WHOLE = 0, 1, 2, 4, 8, 9
"""The precedence of expressions, from `a < b` to `f(a)`; `SIGN` is that of `-a`."""
INFIX: Mapping[str, tuple[str, int]] = {
    **dict.fromkeys(("add", "iadd"), ("+", SUM)),
    **dict.fromkeys(("sub", "isub", "subtract"), ("-", SUM)),
    **dict.fromkeys(("mul", "imul", "multiply"), ("*", PRODUCT)),
    **dict.fromkeys(("div", "truediv", "itruediv", "divide", "true_divide"), ("/", PRODUCT)),
    **dict.fromkeys(("matmul", "bmm", "mm"), ("@", PRODUCT)),
    "pow": ("**", POWER),
    **dict.fromkeys(("eq", "equal"), ("==", COMPARISON)),
    **dict.fromkeys(("ne", "not_equal"), ("!=", COMPARISON)),
    **dict.fromkeys(("lt", "less_than", "less"), ("<", COMPARISON)),
    **dict.fromkeys(("le", "less_equal"), ("<=", COMPARISON)),
    **dict.fromkeys(("gt", "greater_than", "greater"), (">", COMPARISON)),
    **dict.fromkeys(("ge", "greater_equal"), (">=", COMPARISON)),
    **dict.fromkeys(("and", "logical_and", "bitwise_and"), ("&", COMPARISON)),
    **dict.fromkeys(("or", "logical_or", "bitwise_or"), ("|", COMPARISON)),
}
"""The operators of functions with two operands, by name."""
REVERSED: Mapping[str, str] = {
    "radd": "add", "rsub": "sub", "rmul": "mul", "rdiv": "div", "rtruediv": "div", "rmatmul": "matmul", "rpow": "pow",
    "rand": "and", "ror": "or",
}  # fmt: skip
"""Operators that the second operand implements."""
PREFIX: Mapping[str, str] = {"neg": "-", "negative": "-", "invert": "~", "logical_not": "~", "bitwise_not": "~"}
OPERANDS = ("x", "input", "y", "other")
"""Arguments that are written without their names."""
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze", "contiguous", "expand", "unflatten"), "reshape"),
    "reducemean": "mean",
    "reducesum": "sum",
    **dict.fromkeys(("reducemax", "max"), "amax"),
    **dict.fromkeys(("reducemin", "min"), "amin"),
    "gemm": "linear",
    **dict.fromkeys(("upsample", "resize"), "interpolate"),
    **dict.fromkeys(("permute", "swapaxes", "movedim"), "transpose"),
    **dict.fromkeys(("cat", "concatenate"), "concat"),
    "masked_fill": "where",
    **dict.fromkeys(("to", "type", "cast", "float", "double", "half", "bool", "bfloat16"), "astype"),
}
"""Functions that do the same, by their common name."""

Text = tuple[str, int]
"""An expression, and the precedence of its outermost operator."""


@dataclass(frozen=True)
class Value:
    """The value with this mark, as an argument."""

    mark: str


@dataclass(frozen=True)
class WordArgument:
    """An argument that is no tensor, number, text or list, such as a dtype: how it is written."""

    text: str


@dataclass(frozen=True)
class RecordedCall:
    """A call, whose result is the value `mark` with a `name`; `labelled`: the source names it.

    `part` is the number of the result among several. `cut`: the call has no gradient, although its operands have.
    """

    mark: str
    name: str
    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    part: int | None = None
    labelled: bool = False
    source_line: str = ""
    parameters: tuple[str, ...] | None = None
    cut: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RecordedCall:
        """The call of a worker's row."""
        kwargs = {name: decoded(value) for name, value in row["kwargs"].items()}
        names = row.get("parameters")
        given = {"args": tuple(map(decoded, row["args"])), "kwargs": kwargs, "parameters": names and tuple(names)}
        return cls(**{"mark": "", "name": "", **row, **given})

    @cached_property
    def reads(self) -> list[str]:
        """The marks of its operands, as often as they are read."""
        return [item.mark for item in leaves((*self.args, *self.kwargs.values())) if isinstance(item, Value)]

    @property
    def kind(self) -> str:
        """What it does, by a name that is the same for all frameworks and for all operands."""
        word = self.function.lower()
        name = INFIX[word][0] if word in INFIX else PREFIX.get(word) or KINDS.get(word, word)
        if word == "getitem":
            name = written(self, lambda _: ("", WHOLE))[0].translate(NO_DIGITS)
        return name if self.part is None else f"{name}[]"

    def reading(self, marks: Mapping[str, str]) -> RecordedCall:
        """The same call of other values, by mark."""
        return self.mapped(lambda value: Value(marks.get(value.mark, value.mark)))

    def mapped(self, change: Callable[[Value], Any]) -> RecordedCall:
        """The call with each operand changed."""
        args = tuple(mapped(item, change) for item in self.args)
        return replace(self, args=args, kwargs={name: mapped(item, change) for name, item in self.kwargs.items()})


NO_DIGITS = str.maketrans("", "", "0123456789 ")


def decoded(value: Any) -> Any:
    """An argument of a row."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return DECODED[kind](content)


DECODED: Mapping[str, Callable[[Any], Any]] = {
    "value": Value,
    "word": lambda text: Ellipsis if text == "..." else WordArgument(text),
    "tuple": lambda items: tuple(map(decoded, items)),
    "slice": lambda ends: slice(*map(decoded, ends)),
}
"""The forms of arguments in JSON, by their key."""


def leaves(value: Any) -> Iterator[Any]:
    """An argument, the items of lists and the ends of slices one by one."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def mapped(value: Any, change: Callable[[Value], Any]) -> Any:
    """An argument with each value in it changed."""
    if isinstance(value, Value):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(item, change) for item in value])
    if isinstance(value, slice):
        return slice(*(mapped(end, change) for end in (value.start, value.stop, value.step)))
    return value


# Words


def written(call: RecordedCall, value: Callable[[str], Text]) -> Text:
    """A call as an expression; `value` gives the text of each operand, by mark."""
    text = whole(call, value)
    return text if call.part is None else (f"{text[0]}[{call.part}]", PART)


def whole(call: RecordedCall, value: Callable[[str], Text]) -> Text:
    """All results of a call as an expression."""
    args = [*call.args]
    kwargs = {name: item for name, item in call.kwargs.items() if item is not None and name != "name"}
    args += [kwargs.pop(name) for name in OPERANDS if name in kwargs]
    function = call.function
    if function in REVERSED and len(args) > 1:
        function, args[:2] = REVERSED[function], [args[1], args[0]]
    if function in INFIX and len(args) == 2 and not kwargs:
        sign, level = INFIX[function]
        one, other = (argument(item, value) for item in args)
        return f"{bracketed(one, level)} {sign} {bracketed(other, level + 1)}", level
    if function in PREFIX and len(args) == 1 and not kwargs:
        return f"{PREFIX[function]}{bracketed(argument(args[0], value), SIGN + 1)}", SIGN
    if function == "getitem":
        return f"{bracketed(argument(args[0], value), PART)}[{index(args[1], value)}]", PART
    if function == "setitem":
        x, new = (bracketed(argument(item, value), SUM) for item in (args[0], args[2]))
        return f"{x} with [{index(args[1], value)}] = {new}", COMPARISON
    while args and args[-1] is None:
        args.pop()
    texts = [argument(item, value)[0] for item in args]
    texts += [f"{name}={argument(item, value)[0]}" for name, item in kwargs.items()]
    return f"{function}({', '.join(texts)})", WHOLE


def index(parts: Any, value: Callable[[str], Text]) -> str:
    """An index without its brackets."""
    return ", ".join(index_part(part, value) for part in (parts if isinstance(parts, tuple) else (parts,)))


def index_part(part: Any, value: Callable[[str], Text]) -> str:
    """A part of an index."""
    if not isinstance(part, slice):
        return argument(part, value)[0]
    first, last, step = ("" if end is None else argument(end, value)[0] for end in (part.start, part.stop, part.step))
    return f"{first}:{last}:{step}" if step else f"{first}:{last}"


def argument(item: Any, value: Callable[[str], Text]) -> Text:
    """An argument as it is written."""
    if isinstance(item, Value):
        return value(item.mark)
    if isinstance(item, (tuple, list)):
        return f"[{', '.join(argument(one, value)[0] for one in item)}]", WHOLE
    if isinstance(item, slice):
        return f"slice({item.start!r}, {item.stop!r}, {item.step!r})", WHOLE
    if isinstance(item, WordArgument):
        return item.text, WHOLE
    if isinstance(item, float):
        return number(item), WHOLE
    return ("..." if item is Ellipsis else repr(item)), WHOLE


def number(value: float) -> str:
    """A number in few characters: 0.3535533906, 1e-12, -1e9."""
    text, short = f"{value:.10g}", f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return short if len(short) < len(text) and float(short) == value else text
