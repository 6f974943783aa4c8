"""Tensors in files: what a reader gives, and the arrays behind it, mapped or streamed."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity.errors import UserError

Array = NDArray[Any]
Shape = tuple[int, ...]

MAX_AXES = 64
"""NumPy's limit."""
WHOLE = 1 << 26
"""Bytes of a tensor that may be held in memory as a whole: one that is transposed, or read from a compressed file."""

NARROW: dict[str, Any] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (*("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),)
}
"""Dtypes that NumPy lacks; float32 holds their values."""


class DumpError(UserError):
    """A dump that cannot be read; the message says which file and why."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file; `order` is its position in the dump.

    `view` gives the values as an array: mapped, or read if they are few. `stream`, if given, gives them as flat parts
    of so many elements instead, since the file can only be read from its start. Both raise DumpError for a damaged
    file. A `weak` tensor has numbers without a dtype of their own, and takes that of its partner.
    """

    name: str
    shape: Shape
    dtype: str
    order: int
    view: Callable[[], Array] = field(repr=False, compare=False)
    stream: Callable[[int], Iterator[Array]] | None = field(default=None, repr=False, compare=False)
    weak: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its values in bytes."""
        return self.size * numpy_dtype(self.dtype).itemsize

    def whole(self) -> Array:
        """All values; raises DumpError if they are too large for that."""
        if self.stream is not None and self.nbytes > WHOLE:
            raise DumpError(f"{self.name} is compressed and too large to be rearranged; store it uncompressed")
        return self.view()


@dataclass(frozen=True)
class Dump:
    """The tensors of a file or a folder, in order; `ordered` says whether that is the order in which they were written.

    `notes` say what was left out, `options` what a capture knows of its layers: their class, eps, stride and so on.
    `in_out` are the layers of a capture whose weight is stored as [in, out].
    """

    path: Path
    tensors: tuple[Stored, ...]
    ordered: bool = True
    notes: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_out: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """The size of all values in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of the arrays that hold a tensor's values."""
    return NARROW[name] if name in NARROW else np.dtype(name)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether values of a dtype can be compared."""
    return dtype.name in NARROW or dtype.kind in "fiubc"


class Mapped:
    """A file in memory, page by page as it is read."""

    def __init__(self, path: Path) -> None:
        """Map a file; raises DumpError."""
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except (OSError, ValueError) as error:
            raise DumpError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        self.path = path

    def bytes(self, start: int, stop: int) -> bytes:
        """A few bytes."""
        return b"" if self.map is None else self.map[start:stop]

    def array(self, dtype: np.dtype[Any], shape: Shape, offset: int) -> Array:
        """A contiguous array; raises DumpError if the file does not have it."""
        n = count(shape)
        if n is None or offset < 0 or offset + n * dtype.itemsize > self.size:
            raise DumpError(f"{self.path}: truncated, or its header is wrong: an array of shape {shown(shape)} at byte "
                            f"{offset} ends beyond its {self.size} bytes")  # fmt: skip
        if not n or self.map is None:
            return np.empty(shape, dtype)
        return np.frombuffer(self.map, dtype, n, offset).reshape(shape)


def count(shape: Any) -> int | None:
    """The number of elements; None for what is no shape."""
    if not isinstance(shape, (tuple, list)) or len(shape) > MAX_AXES:
        return None
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        return None
    n = math.prod(shape)
    return n if n < 1 << 62 else None


def shown(shape: Any) -> str:
    """A shape in a message."""
    return str(list(shape) if isinstance(shape, tuple) else shape)[:80]
