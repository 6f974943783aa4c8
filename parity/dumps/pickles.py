"""Pickles of weights, read by an interpreter that runs nothing: a few opcodes, and a table of names with stand-ins.

Python's own interpreter of opcodes is the base (`pickle._Unpickler`, whose memo is a dict, so a large index costs
nothing). What builds objects is replaced: a name is looked up in the table given and nowhere else, nothing but these
stand-ins is called, and no attribute is set on anything.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, ClassVar, TypeVar

import ml_dtypes  # noqa: F401 - NumPy knows its dtypes by name from then on
import numpy as np

from parity.config.nodes import printable
from parity.dumps.tensors import Array, DumpError, Shape, count, is_numeric

SPAN = 1 << 16
"""Bytes of a text or a bytes object from which on it stays in the file; pickle puts such out of its frames."""
MAX_ITEMS = 2_000_000
"""Tensors, numbers and containers of a checkpoint, and of what it repeats."""
MAX_NESTED = 100

FORBIDDEN = (
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID),
    *(pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)
"""Opcodes that make objects in ways that weights do not need."""


class RefusedError(Exception):
    """A pickle names something that is not in the table."""


@dataclass(frozen=True)
class Span:
    """Bytes that stay in the file."""

    start: int
    length: int


class Called:
    """A name of the table: what a pickle gets for it, which only REDUCE calls."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


BASE: Any = pickle._Unpickler
Container = TypeVar("Container", list[Any], dict[Any, Any], set[Any])


class WeightsUnpickler(BASE):  # type: ignore[misc]
    """Reads one pickle from a file."""

    dispatch: ClassVar[dict[int, Any]] = {
        code: run for code, run in BASE.dispatch.items() if code not in {opcode[0] for opcode in FORBIDDEN}
    }

    def __init__(
        self, file: IO[bytes], names: Mapping[str, Any], persistent: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(file, encoding="latin1")
        self.file, self.names, self.persistent = file, names, persistent

    def find_class(self, module: str, name: str) -> Any:
        """What the table has for a name."""
        full = f"{module}.{name}"
        if full not in self.names:
            raise RefusedError(printable(full[:200]))
        return self.names[full]

    def persistent_load(self, pid: Any) -> Any:
        """A storage."""
        if self.persistent is None:
            raise RefusedError("a persistent id")
        return self.persistent(pid)

    def load_reduce(self) -> None:
        """Call a stand-in."""
        args = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, Called) or not isinstance(args, tuple):
            raise RefusedError(f"a call of {type(function).__name__}")
        self.stack[-1] = function.make(*args)

    def load_build(self) -> None:
        """Give a stand-in its state; an ordered dict's attributes are left out."""
        state = self.stack.pop()
        made = self.stack[-1]
        if isinstance(made, (PickledArray, PickledDtype)):
            made.build(state)
        elif not isinstance(made, dict):
            raise RefusedError(f"a state for {type(made).__name__}")

    def load_append(self) -> None:
        """Append to a list."""
        value = self.stack.pop()
        self.top(list).append(value)

    def load_appends(self) -> None:
        """Append several to a list."""
        values = self.pop_mark()
        self.top(list).extend(values)

    def load_setitem(self) -> None:
        """Set an item of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self.top(dict)[key] = value

    def load_setitems(self) -> None:
        """Set several items of a dict."""
        items = self.pop_mark()
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def load_additems(self) -> None:
        """Add to a set."""
        items = self.pop_mark()
        self.top(set).update(items)

    def top(self, kind: type[Container]) -> Container:
        """The container on top of the stack."""
        container = self.stack[-1]
        if not isinstance(container, kind):
            raise RefusedError(f"items for {type(container).__name__}")
        return container

    def load_binbytes(self) -> None:
        """Bytes of a length of four bytes."""
        self.append(self.spanned(int.from_bytes(self.read(4), "little")))

    def load_binbytes8(self) -> None:
        """Bytes of a length of eight."""
        self.append(self.spanned(int.from_bytes(self.read(8), "little")))

    def spanned(self, length: int) -> Any:
        """Bytes, or where they are."""
        if length < SPAN or self._unframer.current_frame is not None:
            return self.read(length)
        start = self.file.tell()
        if start + length > self.file.seek(0, 2):
            raise EOFError("truncated")
        self.file.seek(start + length)
        return Span(start, length)

    for code, run in (
        (pickle.REDUCE, load_reduce), (pickle.BUILD, load_build),
        (pickle.APPEND, load_append), (pickle.APPENDS, load_appends),
        (pickle.SETITEM, load_setitem), (pickle.SETITEMS, load_setitems), (pickle.ADDITEMS, load_additems),
        (pickle.BINBYTES, load_binbytes), (pickle.BINBYTES8, load_binbytes8), (pickle.BYTEARRAY8, load_binbytes8),
    ):  # fmt: skip
        dispatch[code[0]] = run
    del code, run


def interpreted(
    file: IO[bytes], where: str, names: Mapping[str, Any], persistent: Callable[[Any], Any] | None = None
) -> Any:
    """The object of a pickle; raises DumpError, which names what was refused."""
    try:
        return WeightsUnpickler(file, names, persistent).load()
    except RefusedError as error:
        raise DumpError(f"{where}: it holds {error}, which parity does not load: a pickle may run any code. Save the "
                        f"weights alone (a state dict), or as safetensors") from error  # fmt: skip
    except DumpError:
        raise
    except Exception as error:  # a damaged pickle fails anywhere
        said = printable(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
        raise DumpError(f"{where}: a damaged pickle, or none: {said}") from error


# Stand-ins for NumPy's own classes in pickles of arrays


class PickledDtype:
    """A dtype: `numpy.dtype("f4", False, True)`, and its byte order as a state."""

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str):
            raise RefusedError("a dtype without a name")
        self.dtype = np.dtype(name)
        if not is_numeric(self.dtype):
            raise RefusedError(f"an array of dtype {self.dtype}")

    def build(self, state: Any) -> None:
        """Set the byte order."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class PickledArray:
    """An array whose values may still be in the file."""

    def __init__(self, *_: Any) -> None:
        self.shape: Shape = (0,)
        self.dtype = np.dtype(np.float64)
        self.fortran = False
        self.data: bytes | Span = b""

    def build(self, state: Any) -> None:
        """Shape, dtype, order and bytes, as `numpy.ndarray.__reduce__` has them."""
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, bool(fortran))

    def fill(self, data: Any, dtype: Any, shape: Any, fortran: bool) -> None:
        """The same one by one."""
        data = data.encode("latin1") if isinstance(data, str) else data
        n = count(shape)
        if not isinstance(dtype, PickledDtype) or n is None or not isinstance(data, (bytes, Span)):
            raise ValueError("an array without dtype, shape and bytes")
        if n * dtype.dtype.itemsize != (data.length if isinstance(data, Span) else len(data)):
            raise ValueError("an array with more or fewer bytes than its shape needs")
        self.shape, self.dtype, self.fortran, self.data = tuple(shape), dtype.dtype, fortran, data

    def arranged(self, flat: Array) -> Array:
        """Its values in its shape."""
        return flat.reshape(self.shape[::-1]).T if self.fortran else flat.reshape(self.shape)


def from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    """`numpy.core.numeric._frombuffer`, of protocol 5."""
    array = PickledArray()
    array.fill(bytes(data) if isinstance(data, bytearray) else data, dtype, shape, order == "F")
    return array


def scalar(dtype: Any, data: Any = b"") -> PickledArray:
    """A NumPy scalar."""
    array = PickledArray()
    array.fill(data, dtype, (), fortran=False)
    return array


def encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """`_codecs.encode`, by which Python 3 writes bytes in protocol 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise RefusedError(f"text encoded as {encoding!s:.40}")
    return text.encode("latin1")


def evaluated(text: Any, names: Any) -> Any:
    """`eval("data", {"data": array})`, by which Paddle writes a tensor within others: the array, and no other text."""
    if text != "data" or not isinstance(names, dict):
        raise RefusedError("builtins.eval")
    return names[text]


def ordered(items: Any = ()) -> dict[Any, Any]:
    """A dict; also an ordered one."""
    return dict(items)


COMMON: Mapping[str, Any] = {
    "collections.OrderedDict": Called(ordered),
    "builtins.dict": Called(ordered),
    "builtins.tuple": Called(tuple),
    "builtins.eval": Called(evaluated),
    "builtins.set": Called(set),
    "builtins.frozenset": Called(frozenset),
    "_codecs.encode": Called(encoded),
    "numpy.ndarray": "ndarray",
    "numpy.dtype": Called(PickledDtype),
    **{
        f"numpy.{core}.{name}": Called(make)
        for core in ("core", "_core")
        for name, make in (
            ("multiarray._reconstruct", PickledArray),
            ("multiarray.scalar", scalar),
            ("numeric._frombuffer", from_buffer),
        )
    },
}
"""The names of containers and of NumPy's arrays."""


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All values of nested dicts and lists, with dotted names; of a parameter's name and array the array."""
    if depth > MAX_NESTED:
        raise ValueError(f"{printable(name[:60])}... is nested more than {MAX_NESTED} deep")
    items: Any = None
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], PickledArray):
        yield name, value[1]
        return
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    if items is None:
        yield name, value
        return
    for key, item in items:
        yield from leaves(item, f"{name}.{key}" if name else str(key), depth + 1)
