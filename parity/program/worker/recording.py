"""What every recorder of calls shares: values by tensor, calls as rows, and the user's source.

A call is a row for the host (`parity.program.recorded`): the `mark` of its result, the function's name and its
arguments, in which a tensor is the mark of its value. Runs on Python 3.8 inside a worker.
"""

from __future__ import annotations

import keyword
import linecache
import re
import sys
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, Tuple

LONGEST = 40
"""The most characters of an argument that is neither a tensor nor a number."""
CALLING = "parity.program.worker.user_module"
"""The module that calls the user's code."""
ASSIGNED = re.compile(r"\s*(\w+)\s*[-+*/]?=[^=]")


class UntracedError(ValueError):
    """The code does something that cannot be recorded; the message names it."""


class ValueTable:
    """The marks of values by tensor, the names of values by mark, and the rows of calls, `rows`.

    Tensors that depend on no input, such as an arange or a mask that is created, are `constants`, by name. `roots` are
    the framework's packages.
    """

    def __init__(self, roots: Collection[str] = ()) -> None:
        self.active = True
        self.roots = roots
        self.constants: Dict[str, Any] = {}
        self.names: Dict[str, str] = {}
        self.rows: List[Dict[str, Any]] = []
        self._known: Dict[int, Tuple[Any, str]] = {}
        self._taken: Dict[str, int] = {}
        self._n = 0

    def free(self, wanted: str) -> str:
        """A name that is not used yet."""
        word = re.sub(r"\W+", "_", wanted).strip("_") or "t"
        word = f"t{word}" if word[0].isdigit() or keyword.iskeyword(word) else word
        n = self._taken[word] = self._taken.get(word, 0) + 1
        return word if n == 1 else self.free(f"{word}_{n}")

    def know(self, tensor: Any, wanted: str = "") -> str:
        """The mark of a tensor's value, a new one if it has none yet; an input gets the name `wanted`."""
        if id(tensor) not in self._known:
            mark = self.new_mark()
            self._known[id(tensor)] = (tensor, mark)
            if wanted:
                self.names[mark] = self.free(wanted)
        return self._known[id(tensor)][1]

    def new_mark(self) -> str:
        """A mark that no value has."""
        self._n += 1
        return f"v{self._n - 1}"

    def mark_of(self, tensor: Any) -> str:
        """The mark of a tensor's value; a constant's if no call has returned it."""
        if id(tensor) not in self._known:
            mark = self.know(tensor, "constant")
            self.constants[self.names[mark]] = tensor
        return self._known[id(tensor)][1]

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of the framework."""
        raise NotImplementedError

    def row(self, function: str, args: Any, kwargs: Mapping[str, Any]) -> Dict[str, Any]:
        """A call as a part of a row."""
        given = {name: self.encoded(value) for name, value in kwargs.items()}
        return {"function": function, "args": [self.encoded(value) for value in args], "kwargs": given}

    def encoded(self, value: Any) -> Any:
        """An argument in JSON: a tensor as the mark of its value; what has no form of its own as a word."""
        if self.is_tensor(value):
            return {"value": self.mark_of(value)}
        if isinstance(value, (tuple, list)):
            items = [self.encoded(item) for item in value]
            return {"tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, slice):
            return {"slice": [self.encoded(end) for end in (value.start, value.stop, value.step)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        word = "..." if value is Ellipsis else str(getattr(value, "__name__", value))
        return {"word": word.rpartition(".")[2] if word.partition(".")[0] in self.roots else word[:LONGEST]}

    def add(self, mark: str, call: Mapping[str, Any]) -> None:
        """Add the row of a call in the user's current statement; its result has this mark."""
        self.rows.append({"mark": mark, "part": None, **call, **statement_of_call(self.roots)})

    def named_rows(self) -> List[Dict[str, Any]]:
        """The rows with names: the last call of a statement has the name that the source assigns to."""
        named = []
        for row, following in zip(self.rows, [*self.rows[1:], None]):
            last = following is None or following["location"] != row["location"]
            wanted = row["wanted"] if last else ""
            self.names[row["mark"]] = self.free(wanted or row["function"])
            kept = {key: value for key, value in row.items() if key not in ("wanted", "location")}
            named.append({**kept, "name": self.names[row["mark"]], "labelled": bool(wanted)})
        return named


def caller_of(roots: Collection[str]) -> Any:
    """The innermost frame outside parity and the packages `roots`: the user's code. None if parity itself calls."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("parity", *roots):
            return frame
        frame = None if module == CALLING else frame.f_back
    return None


def keywords_of_caller(roots: Collection[str]) -> FrozenSet[str]:
    """The keywords that the user's function uses in any of its calls."""
    frame = caller_of(roots)
    consts = () if frame is None else frame.f_code.co_consts
    return frozenset(name for item in consts if isinstance(item, tuple) for name in item if isinstance(name, str))


def statement_of_call(roots: Collection[str]) -> Dict[str, Any]:
    """The user's current statement: the name `wanted` that it assigns to, its `location`, and `source_line`, as in
    `model.py:12`."""
    frame = caller_of(roots)
    if frame is None:
        return {"wanted": "", "location": None, "source_line": ""}
    file, line = frame.f_code.co_filename, frame.f_lineno
    match = ASSIGNED.match(linecache.getline(file, line))
    source_line = f"{file.rpartition('/')[2]}:{line}"
    return {"wanted": match.group(1) if match else "", "location": (id(frame), line), "source_line": source_line}


def attribute_of(function: Any) -> str:
    """The attribute that a call reads: `T` of `x.T`, `data` of `x.data`; "" of any other function."""
    return str(function.__self__.__name__) if function.__name__ == "__get__" else ""


def is_inplace(named: str) -> bool:
    """Whether a function changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    return (named.endswith("_") and not named.endswith("__")) or named.startswith("__i") or named == "__setitem__"


def tensors_in(value: Any, kind: Any) -> List[Any]:
    """All tensors in nested arguments."""
    if isinstance(value, kind):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in tensors_in(item, kind)]
